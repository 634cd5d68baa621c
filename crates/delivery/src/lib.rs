//! One attempt at one next hop, and the text of bounces.

pub mod bounce;
