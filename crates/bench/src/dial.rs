//! Opening a connection for a load: timed and counted.
//!
//! What fails is a text for the list of errors, worded as the system or TLS had it but without numbers that would part
//! the like from the like. Nothing here is fatal, and nothing is tried again: the load decides that.

use std::io;
use std::net::SocketAddr;

use net::Wire;
use tokio::time::Instant;

use crate::engine::Worker;

/// Connects from the worker's address; `phase` is where the time that it took is noted. The error is for the list of
/// errors.
pub(crate) async fn dial(to: SocketAddr, worker: &Worker, phase: usize) -> Result<Wire, String> {
    let begun = Instant::now();
    match Wire::connect(to, worker.local, begun + worker.timeout).await {
        Ok(wire) => {
            let mut tally = worker.tally();
            tally.counts.connections += 1;
            tally.phase(phase, begun.elapsed());
            Ok(wire)
        }
        Err(error) => Err(format!("connect: {}", plainly(&error))),
    }
}

/// What the system said, without the number that it has for it.
pub(crate) fn plainly(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        return "no answer in time".to_owned();
    }
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
