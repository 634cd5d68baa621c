//! The laboratory: loads for any mail server, sinks, and the proof that nothing was lost.
