//! The adapter and the lane tasks against real NATS servers (see `servers.rs`).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod comparison;
mod credentials;
mod lane_tasks;
mod local_mail;
mod nodes;
mod servers;
mod sharing;
mod streams;
mod unfit_servers;
