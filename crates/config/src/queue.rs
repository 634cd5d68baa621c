//! Queues: which mail each gets, how many attempts run at a time, when to retry, and which queue
//! takes over slow next hops.

use std::time::Duration;

use dispatch::{HeaderRule, SenderRule};
use mail::Network;

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
    pub retry: RetrySettings,
    /// Which next hops it takes over.
    pub adopt: Option<AdoptSettings>,
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
        QueueSettings {
            name: name.into(),
            concurrency: 1000,
            rules: QueueRules::default(),
            retry: RetrySettings::default(),
            adopt: None,
        }
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

/// When to retry a deferred recipient: after `first * factor^n`, at most `longest`, plus or minus
/// `jitter`.
#[derive(Clone, Debug, PartialEq)]
pub struct RetrySettings {
    /// The wait after the first attempt.
    pub first: Duration,
    /// Each wait is this many times the one before; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub longest: Duration,
    /// The fraction by which a wait varies at random, from 0 to 1.
    pub jitter: f64,
    /// The time from acceptance to the bounce.
    pub lifetime: Duration,
}

impl Default for RetrySettings {
    fn default() -> Self {
        RetrySettings {
            first: Duration::from_secs(60),
            factor: 2.0,
            longest: Duration::from_secs(4 * 3600),
            jitter: 0.2,
            lifetime: Duration::from_secs(5 * 86_400),
        }
    }
}

/// Which next hops a queue takes over from the others, and when it releases them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptSettings {
    /// Next hops that this many connections in a row could not reach.
    pub failures: u32,
    /// Next hops that take longer to answer.
    pub slower_than: Duration,
    /// It releases a next hop after this time without a failure.
    pub release_after: Duration,
    /// Concurrent attempts to each next hop; at least 1.
    pub per_next_hop: usize,
}

impl Default for AdoptSettings {
    fn default() -> Self {
        AdoptSettings {
            failures: 3,
            slower_than: Duration::from_secs(10),
            release_after: Duration::from_secs(3600),
            per_next_hop: 2,
        }
    }
}

/// Settings of all queues together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Attempts that have ended but whose outcomes are not recorded yet. At this limit, none start.
    pub unrecorded_max: usize,
    /// A message with more recipients is bulk; so is all mail of a sender with more recipients
    /// ready in a queue.
    pub bulk_above: usize,
    /// Turns of single mail for each turn of bulk mail.
    pub single_share: u32,
}

impl Default for SchedulerSettings {
    fn default() -> Self {
        SchedulerSettings { unrecorded_max: 10_000, bulk_above: 1000, single_share: 3 }
    }
}
