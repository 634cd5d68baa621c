//! Counts what each listener of SMTP, LMTP and submission does: its connections, and what it answers to
//! recipients and messages. The counters last as long as the server: a reload finds those of an address
//! again. Counting is one addition to an atomic number, in the session that answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mail::Reply;
use parking_lot::Mutex;

/// The verdicts, in the order of their counters.
const VERDICTS: [&str; 3] = ["accepted", "deferred", "refused"];

/// A listener, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerCounts {
    /// `smtp`, `lmtp` or `submission`.
    pub protocol: &'static str,
    /// Its address in the configuration.
    pub address: SocketAddr,
    /// Sessions since the start.
    pub connections: u64,
    /// Sessions that are open.
    pub sessions: u64,
    /// Recipients by the class of the reply to RCPT.
    pub recipients: [(&'static str, u64); 3],
    /// Messages by the class of the reply at the end of data.
    pub messages: [(&'static str, u64); 3],
}

/// Counters by the class of a reply: 2xx, 4xx, 5xx.
#[derive(Debug, Default)]
struct VerdictCounters([AtomicU64; VERDICTS.len()]);

impl VerdictCounters {
    fn count(&self, refusal: Option<&Reply>) {
        let place = match refusal {
            None => 0,
            Some(reply) if reply.is_transient() => 1,
            Some(_) => 2,
        };
        self.0[place].fetch_add(1, Relaxed);
    }

    fn counts(&self) -> [(&'static str, u64); VERDICTS.len()] {
        std::array::from_fn(|place| (VERDICTS[place], self.0[place].load(Relaxed)))
    }
}

/// The counters of one listener.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    connections: AtomicU64,
    sessions: AtomicU64,
    recipients: VerdictCounters,
    messages: VerdictCounters,
}

impl ListenerCounters {
    /// Counts a session, which is open until the guard is dropped.
    pub(crate) fn open_session(self: &Arc<Self>) -> CountedSession {
        self.connections.fetch_add(1, Relaxed);
        self.sessions.fetch_add(1, Relaxed);
        CountedSession(self.clone())
    }
}

/// An open session of a listener.
pub(crate) struct CountedSession(Arc<ListenerCounters>);

impl CountedSession {
    /// Counts a recipient that was accepted, or refused with this reply.
    pub(crate) fn count_recipient(&self, refusal: Option<&Reply>) {
        self.0.recipients.count(refusal);
    }

    /// Counts a message that was accepted, or refused with this reply.
    pub(crate) fn count_message(&self, refusal: Option<&Reply>) {
        self.0.messages.count(refusal);
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Relaxed);
    }
}

/// The counters of all listeners that the configurations since the start have had.
#[derive(Debug, Default)]
pub struct ListenerMonitor {
    listeners: Mutex<BTreeMap<(SocketAddr, &'static str), Arc<ListenerCounters>>>,
}

impl ListenerMonitor {
    /// The counters of a listener, which are those of before a reload.
    pub fn of_listener(&self, protocol: &'static str, address: SocketAddr) -> Arc<ListenerCounters> {
        self.listeners.lock().entry((address, protocol)).or_default().clone()
    }

    /// What was counted, by address.
    pub fn counts(&self) -> Vec<ListenerCounts> {
        let counts =
            |(&(address, protocol), counters): (&(SocketAddr, &'static str), &Arc<ListenerCounters>)| ListenerCounts {
                protocol,
                address,
                connections: counters.connections.load(Relaxed),
                sessions: counters.sessions.load(Relaxed),
                recipients: counters.recipients.counts(),
                messages: counters.messages.counts(),
            };
        self.listeners.lock().iter().map(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use mail::EnhancedCode;

    use super::*;

    #[test]
    fn a_listener_counts_on_after_a_reload() {
        let (monitor, address) = (ListenerMonitor::default(), SocketAddr::from(([127, 0, 0, 1], 25)));
        let first = monitor.of_listener("smtp", address).open_session();
        let second = monitor.of_listener("smtp", address).open_session();
        first.count_recipient(None);
        first.count_recipient(Some(&Reply::new(450, EnhancedCode(4, 7, 1), "later")));
        second.count_recipient(Some(&Reply::new(550, EnhancedCode(5, 1, 1), "no")));
        second.count_message(None);
        drop(first);
        let expected = ListenerCounts {
            protocol: "smtp",
            address,
            connections: 2,
            sessions: 1,
            recipients: [("accepted", 1), ("deferred", 1), ("refused", 1)],
            messages: [("accepted", 1), ("deferred", 0), ("refused", 0)],
        };
        assert_eq!(monitor.counts(), [expected]);
    }
}
