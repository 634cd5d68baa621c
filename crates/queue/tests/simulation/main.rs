//! The queues on a virtual clock: rules that hold at every step, fairness, lame next hops, messages
//! that interrupt sessions, restarts.
//!
//! A failing case prints its seed.

mod environment;
mod fairness;
mod lame;
mod poison;
mod rules;
