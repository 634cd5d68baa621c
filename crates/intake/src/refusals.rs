//! Refusals for lack of resources, not because of the message: disk space, memory, sessions, the
//! client's limits, the recipient's quota.
//!
//! They come in large numbers, and when resources are short. So all are counted, but only a few of
//! each kind are logged per second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mail::{EnhancedCode, Reply};
use net::ConnectionRefusal;
use parking_lot::Mutex;

use crate::replies;

/// The maximum number of logged events of one kind per second.
const EVENTS_PER_SECOND_MAX: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceRefusal {
    /// The load of the machine is too high; at connect.
    Load,
    /// The server drains its queue and is to stop; at connect, and at MAIL.
    Stopping,
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

impl From<ConnectionRefusal> for ResourceRefusal {
    fn from(refused: ConnectionRefusal) -> ResourceRefusal {
        match refused {
            ConnectionRefusal::Full => ResourceRefusal::SessionsFull,
            ConnectionRefusal::ClientFull => ResourceRefusal::ClientSessionsFull,
            ConnectionRefusal::ClientTooOften => ResourceRefusal::ClientConnections,
        }
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct RefusalCounters {
    counters: [KindCounter; ResourceRefusal::ALL.len()],
}

#[derive(Debug, Default)]
struct KindCounter {
    count: AtomicU64,
    log_limit: Mutex<LogLimit>,
}

/// How many events there were in the current second.
#[derive(Debug, Default)]
struct LogLimit {
    began_at: Option<Instant>,
    events: u32,
}

impl ResourceRefusal {
    /// All kinds.
    pub const ALL: [ResourceRefusal; 9] = [
        ResourceRefusal::Load,
        ResourceRefusal::Stopping,
        ResourceRefusal::SessionsFull,
        ResourceRefusal::ClientSessionsFull,
        ResourceRefusal::ClientConnections,
        ResourceRefusal::ClientMessages,
        ResourceRefusal::DiskShort,
        ResourceRefusal::MemoryShort,
        ResourceRefusal::MailboxFull,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ResourceRefusal::Load => "load",
            ResourceRefusal::Stopping => "stopping",
            ResourceRefusal::SessionsFull => "sessions",
            ResourceRefusal::ClientSessionsFull => "client_sessions",
            ResourceRefusal::ClientConnections => "client_connections",
            ResourceRefusal::ClientMessages => "client_messages",
            ResourceRefusal::DiskShort => "disk",
            ResourceRefusal::MemoryShort => "memory",
            ResourceRefusal::MailboxFull => "mailbox",
        }
    }

    /// The reply to the client.
    pub(crate) fn reply(self) -> Reply {
        match self {
            ResourceRefusal::Load => replies::LOAD_HIGH,
            ResourceRefusal::Stopping => replies::STOPPING,
            ResourceRefusal::SessionsFull => replies::SESSIONS_FULL,
            ResourceRefusal::ClientSessionsFull => replies::CLIENT_SESSIONS_FULL,
            ResourceRefusal::ClientConnections => replies::CLIENT_CONNECTIONS,
            ResourceRefusal::ClientMessages => replies::CLIENT_MESSAGES,
            ResourceRefusal::DiskShort => replies::DISK_SHORT,
            ResourceRefusal::MemoryShort => replies::MEMORY_SHORT,
            ResourceRefusal::MailboxFull => replies::MAILBOX_FULL,
        }
    }

    /// The refusal that a reply reports, if any.
    pub(crate) fn from_reply(reply: &Reply) -> Option<ResourceRefusal> {
        match reply.enhanced {
            // The text contains the mailbox, so it varies.
            Some(EnhancedCode(4 | 5, 2, 2)) => Some(ResourceRefusal::MailboxFull),
            _ => ResourceRefusal::ALL.into_iter().find(|refusal| refusal.reply() == *reply),
        }
    }
}

impl RefusalCounters {
    /// The number of refusals of a kind.
    pub fn count_of(&self, refusal: ResourceRefusal) -> u64 {
        self.counters[refusal as usize].count.load(Relaxed)
    }

    /// Counts a refusal. Returns whether to log it.
    pub(crate) fn count(&self, refusal: ResourceRefusal, now: Instant) -> bool {
        let kind = &self.counters[refusal as usize];
        kind.count.fetch_add(1, Relaxed);
        kind.log_limit.lock().may_log(now)
    }
}

impl LogLimit {
    fn may_log(&mut self, now: Instant) -> bool {
        if self.began_at.is_none_or(|began_at| now.saturating_duration_since(began_at) >= SECOND) {
            *self = LogLimit { began_at: Some(now), events: 0 };
        }
        self.events += 1;
        self.events <= EVENTS_PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_some_a_second_are_written_down() {
        let (refusals, start) = (RefusalCounters::default(), Instant::now());
        let written = |now| (0..100).filter(|_| refusals.count(ResourceRefusal::Load, now)).count();
        assert_eq!(written(start), 10);
        assert_eq!(written(start + SECOND / 2), 0);
        assert_eq!(written(start + SECOND), 10);
        assert!(refusals.count(ResourceRefusal::DiskShort, start));
        assert_eq!(ResourceRefusal::ALL.map(|refusal| refusals.count_of(refusal)), [300, 0, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn each_is_known_by_what_it_tells() {
        for refusal in ResourceRefusal::ALL {
            assert_eq!(ResourceRefusal::from_reply(&refusal.reply()), Some(refusal));
        }
        assert_eq!(ResourceRefusal::from_reply(&replies::RELAY_DENIED), None);
        for for_good in [false, true] {
            let reply = replies::mailbox_full(&"bob@example.org".parse().unwrap(), for_good);
            assert_eq!(ResourceRefusal::from_reply(&reply), Some(ResourceRefusal::MailboxFull));
        }
    }
}
