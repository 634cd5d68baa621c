//! Says in the log that no NATS server is connected, why, and when one is again. Twice for each time at the most:
//! when it begins, and if the servers refuse the node then, such as when its credentials have expired. A server that is
//! too old is left for another one, and named. One that can lose records is named once.

use std::sync::Arc;
use std::time::Duration;

use mail::LogLevel;
use tokio::time::{Instant, sleep};

use super::NodeShared;

/// How often it is looked whether a server is connected.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

const LOST: &str = "no NATS server is connected: what needs a second copy or a lease waits, or is answered 451";
const BACK: &str = "a NATS server is connected again";
const TOO_OLD: &str =
    "a NATS server is too old to be used; trying others: upgrade it, or take it out of `cluster.servers`";
const LOSSY: &str =
    "NATS servers of this version can lose records if they are killed soon after a purge: upgrade nats-server";

/// What the log says at present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reported {
    Connected,
    Lost,
    Refused,
    TooOld,
}

/// Looks after the connection until the node stops.
pub(super) async fn run(shared: Arc<NodeShared>) {
    let (mut reported, mut connected_at) = (Reported::Connected, Instant::now());
    let mut has_warned = false;
    loop {
        sleep(LOOK_INTERVAL).await;
        has_warned = has_warned || warn_of_losses(&shared);
        if let Some(error) = shared.connection.unusable_server() {
            if std::mem::replace(&mut reported, Reported::TooOld) != Reported::TooOld {
                shared.log(LogLevel::Error, TOO_OLD, &[("node", &shared.parts.config.node), ("error", &error)]);
            }
            shared.connection.leave_server().await;
            continue;
        }
        if shared.connection.is_connected() {
            connected_at = Instant::now();
            if std::mem::replace(&mut reported, Reported::Connected) != Reported::Connected {
                shared.log(LogLevel::Info, BACK, &[("node", &shared.parts.config.node)]);
            }
            continue;
        }
        // Shorter than that, nobody notices.
        if connected_at.elapsed() < shared.parts.config.lease {
            continue;
        }
        let error = shared.connection.disconnection_reason();
        let now = if error.is_temporary() { Reported::Lost } else { Reported::Refused };
        if reported == Reported::Connected || (reported, now) == (Reported::Lost, Reported::Refused) {
            shared.log(LogLevel::Error, LOST, &[("node", &shared.parts.config.node), ("error", &error)]);
            reported = now;
        }
    }
}

/// Whether a server is connected that can lose records: then the log says so.
fn warn_of_losses(shared: &NodeShared) -> bool {
    let Some((server, version)) = shared.connection.lossy_server() else { return false };
    shared.log(LogLevel::Warning, LOSSY, &[("server", &server), ("version", &version)]);
    true
}
