//! Who is told no for want of something, by no fault of the message: room, memory, sessions, the
//! client's share, the recipient's quota.
//!
//! Such a no comes in floods, and while the machine has the least to spare. So all are counted, and of each kind only so
//! many a second are written down as facts; the counts tell of the others.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mail::{Enhanced, Reply};
use net::Turned;

use crate::replies;

/// Facts of one kind in a second.
const FACTS_PER_SECOND_MAX: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// What there was too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The machine's load is too high; at connect.
    Load,
    /// There are as many sessions as there may be; at connect.
    SessionsFull,
    /// The client has as many sessions as it may have; at connect.
    ClientSessionsFull,
    /// The client comes too often; at connect.
    ClientConnections,
    /// The client brings too many messages; at MAIL.
    ClientMessages,
    /// A disk is short of space or inodes; at MAIL, or at the end where the spool found out first.
    DiskShort,
    /// Memory is short: the machine's, at MAIL, or what bodies may have, at DATA.
    MemoryShort,
    /// The recipient's mailbox is full by its quota; at RCPT.
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

/// Counts them.
#[derive(Debug, Default)]
pub struct Refusals {
    kinds: [Kind; Refusal::ALL.len()],
}

#[derive(Debug, Default)]
struct Kind {
    count: AtomicU64,
    recent: Mutex<Recent>,
}

/// The facts of the second that began last.
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

    /// For metrics: one word.
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

    /// What the client is told.
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

    /// Which of them a reply tells of, if any.
    pub(crate) fn told_by(reply: &Reply) -> Option<Refusal> {
        match reply.enhanced {
            // It names the mailbox, so its text is not always the same.
            Some(Enhanced(4 | 5, 2, 2)) => Some(Refusal::MailboxFull),
            _ => Refusal::ALL.into_iter().find(|refusal| refusal.reply() == *reply),
        }
    }
}

impl Refusals {
    /// How many of a kind there were.
    pub fn counted(&self, refusal: Refusal) -> u64 {
        self.kinds[refusal as usize].count.load(Relaxed)
    }

    /// Counts one, and says whether it is to be written down.
    pub(crate) fn count(&self, refusal: Refusal, now: Instant) -> bool {
        let kind = &self.kinds[refusal as usize];
        kind.count.fetch_add(1, Relaxed);
        // Counting cannot panic half-way.
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
