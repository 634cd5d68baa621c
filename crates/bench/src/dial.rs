//! Opening a connection for a load: timed, counted, and not tried again at once when it could not be made.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use net::Wire;
use tokio::time::{Instant, sleep};

use crate::engine::Worker;

/// How long a connection waits before it is tried again, when it could not be made. Else a closed loop against a closed
/// port would do nothing but spin.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

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
        Err(error) => {
            sleep(RECONNECT_DELAY).await;
            Err(format!("connect: {}", plainly(&error)))
        }
    }
}

/// What the system said, without the number that it has for it.
pub(crate) fn plainly(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut { "no answer in time".to_owned() } else { error.kind().to_string() }
}
