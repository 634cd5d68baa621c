//! Queues: which mail each gets, how many attempts run at a time, when to retry, and which queue
//! takes over slow next hops.

use dispatch::{HeaderRule, SenderRule};
use mail::Network;
use queue::{HopAdoptionPolicy, QueueConfig, RetryPolicy};

use super::DomainPattern;

/// A queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// Its name.
    pub name: Box<str>,
    /// Concurrent attempts; 0 holds the queue.
    pub concurrency: usize,
    /// The mail that it gets.
    pub rules: QueueRules,
    /// When to retry deferred recipients.
    pub retry: RetryPolicy,
    /// Which next hops it takes over.
    pub adopt: Option<HopAdoptionPolicy>,
}

impl QueueSettings {
    /// The queue of mail for Maildirs; always the first.
    pub const LOCAL: &str = "local";
    /// The queue of mail that matches no rule; always the second.
    pub const STANDARD: &str = "standard";
    /// The queue that adopts unless another one does; always the third.
    pub const LAME: &str = "lame";

    /// The queues that always exist, in their order.
    pub(super) fn built_in() -> [QueueSettings; 3] {
        let local = QueueSettings { concurrency: 2000, ..QueueSettings::new(QueueSettings::LOCAL) };
        let lame = QueueSettings { concurrency: 75, ..QueueSettings::new(QueueSettings::LAME) };
        [local, QueueSettings::new(QueueSettings::STANDARD), lame]
    }

    /// A queue with all defaults.
    pub(super) fn new(name: &str) -> QueueSettings {
        let QueueConfig { concurrency, retry, adopts, .. } = QueueConfig::default();
        QueueSettings { name: name.into(), concurrency, rules: QueueRules::default(), retry, adopt: adopts }
    }
}

/// Which mail goes into a queue. A message is compared with the headers of all queues, in their
/// order, then with all senders, then all clients, then each recipient with all domains. The first
/// match wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueRules {
    /// Mail with one of these header fields.
    pub headers: Vec<HeaderRule>,
    /// Mail from one of these senders.
    pub senders: Vec<SenderRule>,
    /// A table of senders, keyed by address or by `@domain`. It is used for senders that match no
    /// list.
    pub sender_table: Option<Box<str>>,
    /// Mail from clients in these networks.
    pub clients: Vec<Network>,
    /// Mail to these domains.
    pub domains: Vec<DomainPattern>,
}

impl QueueRules {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        let QueueRules { headers, senders, sender_table, clients, domains } = self;
        headers.is_empty() && senders.is_empty() && sender_table.is_none() && clients.is_empty() && domains.is_empty()
    }
}
