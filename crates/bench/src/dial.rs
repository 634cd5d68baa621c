//! Opens a connection for a load, times it and counts it.
//!
//! Errors are texts for the list of errors: the words of the system or TLS, without numbers that
//! would split equal errors. Nothing is retried here; the load decides about that.

use std::io;
use std::net::SocketAddr;

use net::{OutboundConnection, TlsClient};
use tokio::time::Instant;

use crate::TargetServer;
use crate::engine::Worker;

/// Connects from the worker's address and records the time in phase `phase`. The error is a text
/// for the list of errors.
pub(crate) async fn dial(to: SocketAddr, worker: &Worker, phase: usize) -> Result<OutboundConnection, String> {
    let begun = Instant::now();
    match OutboundConnection::connect(to, worker.local, begun + worker.timeout).await {
        Ok(wire) => {
            let mut tally = worker.tally.lock();
            tally.counts.connections += 1;
            tally.record_phase(phase, begun.elapsed());
            Ok(wire)
        }
        Err(error) => Err(format!("connect: {}", error_text(&error))),
    }
}

/// The phases of [`dial_secured`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct DialPhases {
    pub(crate) connect: usize,
    pub(crate) tls: usize,
}

/// Connects as [`dial`] does, and starts TLS if there is a client for it.
pub(crate) async fn dial_secured(
    target: &TargetServer,
    tls: Option<&TlsClient>,
    worker: &Worker,
    phases: DialPhases,
) -> Result<OutboundConnection, String> {
    let wire = dial(target.address, worker, phases.connect).await?;
    let Some(tls) = tls else { return Ok(wire) };
    let begun = Instant::now();
    let secured = wire.start_tls(tls, &target.host, worker.deadline()).await;
    let secured = secured.map_err(|error| format!("TLS: {}", error_text(&error)))?;
    let mut tally = worker.tally.lock();
    tally.counts.tls_connections += 1;
    tally.record_phase(phases.tls, begun.elapsed());
    Ok(secured)
}

/// The text of a system error without its number.
pub(crate) fn error_text(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        return "no answer in time".to_owned();
    }
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
