//! Refusals for lack of resources, not because of the message: disk space, memory, sessions, the
//! client's limits, the recipient's quota.
//!
//! They come in large numbers, and when resources are short. So all are counted, but only a few of
//! each kind are logged per second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mail::{Enhanced, Reply};
use net::Turned;

use crate::replies;

/// The maximum number of logged events of one kind per second.
const FACTS_PER_SECOND_MAX: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The load of the machine is too high; at connect.
    Load,
    /// Too many sessions; at connect.
    SessionsFull,
    /// Too many sessions of this client; at connect.
    ClientSessionsFull,
    /// The client connects too often; at connect.
    ClientConnections,
    /// The client sends too many messages; at MAIL.
    ClientMessages,
    /// A disk is short of space or inodes; at MAIL, or at the end of data if the spool runs out.
    DiskShort,
    /// Memory is short: that of the machine, at MAIL, or that for bodies, at DATA.
    MemoryShort,
    /// The recipient's mailbox is over its quota; at RCPT.
    MailboxFull,
}

impl From<Turned> for Refusal {
    fn from(turned: Turned) -> Refusal {
        match turned {
            Turned::Full => Refusal::SessionsFull,
            Turned::ClientFull => Refusal::ClientSessionsFull,
            Turned::ClientTooOften => Refusal::ClientConnections,
        }
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct Refusals {
    kinds: [Kind; Refusal::ALL.len()],
}

#[derive(Debug, Default)]
struct Kind {
    count: AtomicU64,
    recent: Mutex<Recent>,
}

/// How many events there were in the current second.
#[derive(Debug, Default)]
struct Recent {
    began_at: Option<Instant>,
    facts: u32,
}

impl Refusal {
    /// All kinds.
    pub const ALL: [Refusal; 8] = [
        Refusal::Load,
        Refusal::SessionsFull,
        Refusal::ClientSessionsFull,
        Refusal::ClientConnections,
        Refusal::ClientMessages,
        Refusal::DiskShort,
        Refusal::MemoryShort,
        Refusal::MailboxFull,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Load => "load",
            Refusal::SessionsFull => "sessions",
            Refusal::ClientSessionsFull => "client_sessions",
            Refusal::ClientConnections => "client_connections",
            Refusal::ClientMessages => "client_messages",
            Refusal::DiskShort => "disk",
            Refusal::MemoryShort => "memory",
            Refusal::MailboxFull => "mailbox",
        }
    }

    /// The reply to the client.
    pub(crate) fn reply(self) -> Reply {
        match self {
            Refusal::Load => replies::LOAD_HIGH,
            Refusal::SessionsFull => replies::SESSIONS_FULL,
            Refusal::ClientSessionsFull => replies::CLIENT_SESSIONS_FULL,
            Refusal::ClientConnections => replies::CLIENT_CONNECTIONS,
            Refusal::ClientMessages => replies::CLIENT_MESSAGES,
            Refusal::DiskShort => replies::DISK_SHORT,
            Refusal::MemoryShort => replies::MEMORY_SHORT,
            Refusal::MailboxFull => replies::MAILBOX_FULL,
        }
    }

    /// The refusal that a reply reports, if any.
    pub(crate) fn told_by(reply: &Reply) -> Option<Refusal> {
        match reply.enhanced {
            // The text contains the mailbox, so it varies.
            Some(Enhanced(4 | 5, 2, 2)) => Some(Refusal::MailboxFull),
            _ => Refusal::ALL.into_iter().find(|refusal| refusal.reply() == *reply),
        }
    }
}

impl Refusals {
    /// The number of refusals of a kind.
    pub fn counted(&self, refusal: Refusal) -> u64 {
        self.kinds[refusal as usize].count.load(Relaxed)
    }

    /// Counts a refusal. Returns whether to log it.
    pub(crate) fn count(&self, refusal: Refusal, now: Instant) -> bool {
        let kind = &self.kinds[refusal as usize];
        kind.count.fetch_add(1, Relaxed);
        // No panic can leave the counter inconsistent.
        kind.recent.lock().unwrap_or_else(PoisonError::into_inner).has_turn(now)
    }
}

impl Recent {
    fn has_turn(&mut self, now: Instant) -> bool {
        if self.began_at.is_none_or(|began_at| now.saturating_duration_since(began_at) >= SECOND) {
            *self = Recent { began_at: Some(now), facts: 0 };
        }
        self.facts += 1;
        self.facts <= FACTS_PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_some_a_second_are_written_down() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let written = |now| (0..100).filter(|_| refusals.count(Refusal::Load, now)).count();
        assert_eq!(written(start), 10);
        assert_eq!(written(start + SECOND / 2), 0);
        assert_eq!(written(start + SECOND), 10);
        assert!(refusals.count(Refusal::DiskShort, start));
        assert_eq!(Refusal::ALL.map(|refusal| refusals.counted(refusal)), [300, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn each_is_known_by_what_it_tells() {
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::told_by(&refusal.reply()), Some(refusal));
        }
        assert_eq!(Refusal::told_by(&replies::RELAY_DENIED), None);
        for for_good in [false, true] {
            let reply = replies::mailbox_full(&"bob@example.org".parse().unwrap(), for_good);
            assert_eq!(Refusal::told_by(&reply), Some(Refusal::MailboxFull));
        }
    }
}
