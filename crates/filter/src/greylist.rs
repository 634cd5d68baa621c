//! Greylisting: the first try of an unknown sender is deferred. Servers try again; most programs that
//! only send spam do not.
//!
//! The client's network, the sender and the recipient are a triplet.
//!
//! | triplet | on a try | reply |
//! |---|---|---|
//! | unknown, or first seen longer ago than [`GreylistSettings::retry_window`] | is recorded | 450 4.7.1 |
//! | waiting, first seen less than [`GreylistSettings::delay`] ago | | 450 4.7.1 |
//! | waiting, longer | passes | |
//! | passed, last seen within [`GreylistSettings::known_for`] | | |
//!
//! A client of which [`GreylistSettings::client_passes`] triplets have passed, at most one an hour, is
//! known, and no longer asked to wait. Users, relay networks and programs on this machine never are.
//!
//! | limit | result |
//! |---|---|
//! | [`GreylistSettings::entries_max`] triplets wait | the oldest is forgotten; if none has had an hour, the recipient passes |
//! | ... have passed; ... clients | the one not seen for the longest is forgotten |
//! | `WAITING_PER_CLIENT_MAX` triplets of a client wait | others are deferred, and not recorded |
//!
//! The state is in memory and in a [file](GreylistFile), which a thread writes: no session waits for it.
//! SPF is not known yet at RCPT, so its verdict spares nobody.

mod check;
mod file;
mod record;
mod state;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mail::Networks;
use parking_lot::Mutex;

use crate::access::RecipientMatcher;
use crate::check::{Check, CheckFactory, CheckOrder, Origin};
use crate::key_digest::ClientPrefixes;
use crate::stage::{Stage, Stages};

pub use file::GreylistFile;
use state::{GreylistState, GreylistVerdict};

/// How unknown senders are deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreylistSettings {
    /// How long a triplet waits.
    pub delay: Duration,
    /// Within which time of the first try it must come again.
    pub retry_window: Duration,
    /// How long triplets and clients are known after they were last seen.
    pub known_for: Duration,
    /// After how many triplets that passed a client is known; 0: never.
    pub client_passes: u32,
    /// By which a client is known.
    pub prefixes: ClientPrefixes,
    /// Triplets that wait, triplets that have passed, and clients, each.
    pub entries_max: usize,
    /// Only sessions on these listeners, by the address in the configuration; empty: all.
    pub listeners: Vec<SocketAddr>,
    /// Clients in these networks need not wait.
    pub exempt: Networks,
}

impl Default for GreylistSettings {
    /// Five minutes, two days, 35 days, five triplets; /24 and /64; 200,000 entries.
    fn default() -> Self {
        let days = |count: u64| Duration::from_secs(count * 86_400);
        GreylistSettings {
            delay: Duration::from_secs(300),
            retry_window: days(2),
            known_for: days(35),
            client_passes: 5,
            prefixes: ClientPrefixes { v4: 24, v6: 64 },
            entries_max: 200_000,
            listeners: Vec::new(),
            exempt: Networks::default(),
        }
    }
}

/// What is known of triplets and clients, over reloads.
#[derive(Debug, Default)]
pub struct GreylistMemory {
    state: Mutex<GreylistState>,
    /// For each of [`GreylistVerdict::ALL`].
    counts: [AtomicU64; GreylistVerdict::ALL.len()],
}

/// The numbers of greylisting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreylistStats {
    /// Recipients by result since the start.
    pub results: [(&'static str, u64); GreylistVerdict::ALL.len()],
    /// Triplets that wait, triplets that have passed, and clients.
    pub entries: [(&'static str, usize); 3],
}

impl GreylistMemory {
    /// The numbers so far.
    pub fn stats(&self) -> GreylistStats {
        let [waiting, passed, clients] = self.state.lock().entry_counts();
        let count = |verdict: GreylistVerdict| (verdict.name(), self.counts[verdict as usize].load(Relaxed));
        GreylistStats {
            results: GreylistVerdict::ALL.map(count),
            entries: [("waiting", waiting), ("passed", passed), ("clients", clients)],
        }
    }
}

/// Greylisting as configured: makes the [`Check`]s of sessions, which keep nothing.
pub struct Greylist {
    /// The settings.
    pub settings: GreylistSettings,
    /// Recipients that need not wait.
    pub exempt_recipients: RecipientMatcher,
    /// What is known.
    pub memory: Arc<GreylistMemory>,
}

impl CheckFactory for Greylist {
    fn order(&self) -> CheckOrder {
        CheckOrder::Greylist
    }

    fn stages(&self, origin: Origin) -> Stages {
        (origin == Origin::Client).then_some(Stage::Rcpt).into_iter().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}
