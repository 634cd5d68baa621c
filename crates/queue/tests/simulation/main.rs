//! The queues on a virtual clock: what only time shows. Rules that hold at every step, fairness, lame next hops, poison
//! messages, restarts.
//!
//! A failing case prints its seed.

mod fairness;
mod lame;
mod poison;
mod rules;
mod world;
