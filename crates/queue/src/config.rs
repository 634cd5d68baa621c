//! The settings of the queues and of next hops.

use std::time::Duration;

use mail::Rate;

use crate::RetryPolicy;

/// The settings of all queues.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerConfig {
    /// The queues; their indexes are their numbers. At most one adopts: the first that says so.
    pub queues: Vec<QueueConfig>,
    /// What they share.
    pub policy: SchedulerPolicy,
}

/// What all queues share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerPolicy {
    /// No attempt starts while this many have ended and are not reported, 10,000 by default.
    /// Attempts in flight at that moment come on top, so at most this number plus the concurrency
    /// of all queues is ever unrecorded.
    pub unrecorded_max: usize,
    /// A message with more recipients than this is bulk mail, and so are all messages of a sender
    /// while it has more ready recipients of single messages in a queue than this. 1,000 by
    /// default.
    pub bulk_above: usize,
    /// Turns of single messages for each turn of bulk mail, if both are ready. 3 by default; 0
    /// means 1.
    pub single_share: u32,
}

impl Default for SchedulerPolicy {
    fn default() -> Self {
        SchedulerPolicy { unrecorded_max: 10_000, bulk_above: 1000, single_share: 3 }
    }
}

/// The index of a queue in [`SchedulerConfig::queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNumber(pub u16);

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueConfig {
    /// Its name.
    pub name: Box<str>,
    /// The maximum number of attempts that hold a slot; 0 stops the queue.
    pub concurrency: usize,
    /// When to retry, and when to stop.
    pub retry: RetryPolicy,
    /// The maximum number of recipients in one attempt; 0 means 1.
    pub recipients_per_attempt_max: usize,
    /// Set if slow and failing next hops of other queues are moved here.
    pub adopts: Option<HopAdoptionPolicy>,
    /// It was removed from the settings and is only kept for its number: recipients only leave it
    /// to be classified again ([`AttemptPurpose::Reclassify`](crate::AttemptPurpose::Reclassify)).
    pub retired: bool,
}

impl Default for QueueConfig {
    /// `standard`, with 1,000 attempts of up to 100 recipients.
    fn default() -> Self {
        QueueConfig {
            name: "standard".into(),
            concurrency: 1000,
            retry: RetryPolicy::default(),
            recipients_per_attempt_max: 100,
            adopts: None,
            retired: false,
        }
    }
}

/// When a next hop is adopted and released. A next hop whose concurrency adapts to latency is never
/// adopted, because its concurrency already follows its speed.
#[derive(Clone, Debug, PartialEq)]
pub struct HopAdoptionPolicy {
    /// Adopt after this many failures in a row
    /// ([`ContactResult::Failed`](crate::ContactResult::Failed)); 0 means 1.
    pub failures: u32,
    /// Adopt after an answer that took longer than this, or when an attempt has waited longer
    /// ([`Queues::report_slow`](crate::Queues::report_slow)).
    pub slower_than: Duration,
    /// Release if it neither failed nor was slow for this long and its last answer was quick.
    pub release_after: Duration,
    /// The maximum number of attempts of the adopting queue to one next hop at a time; 0 means 1.
    /// Also applies to mail whose home is that queue.
    pub per_next_hop: usize,
}

impl Default for HopAdoptionPolicy {
    /// 3 failures or 10 seconds; released after an hour; 2 attempts at a time.
    fn default() -> Self {
        HopAdoptionPolicy {
            failures: 3,
            slower_than: Duration::from_secs(10),
            release_after: Duration::from_secs(3600),
            per_next_hop: 2,
        }
    }
}

/// The limits of one next hop. By default there is no rate, and the queue sets the size of
/// attempts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NextHopLimits {
    /// The number of attempts at a time.
    pub concurrency: ConcurrencyPolicy,
    /// The number of attempts per time span, evenly spaced: a burst is at most one second's worth,
    /// and at least one. 0 means 1.
    pub rate: Option<Rate>,
    /// The rate is shared with other servers: attempts wait for departures
    /// ([`Queues::next_departure_request`](crate::Queues::next_departure_request)).
    pub is_rate_shared: bool,
    /// The maximum of the concurrency is shared with other servers: attempts wait for slots
    /// ([`Queues::next_slot_report`](crate::Queues::next_slot_report)).
    pub shared_concurrency: Option<SharedConcurrency>,
    /// What to do when it cannot be reached.
    pub probe: ProbePolicy,
    /// The maximum number of recipients in one attempt, in addition to the queue's limit; 0 means
    /// 1.
    pub recipients_per_attempt_max: Option<usize>,
}

/// A maximum that is shared with other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedConcurrency {
    /// How long a connection stays open after its last attempt. Others may not use its slot before.
    pub idle: Duration,
}

/// How many attempts are made to one next hop at a time, and how that number adapts.
///
/// | contact | before the first answer | after it | after the first shrink |
/// |---|---|---|---|
/// | a good answer | `start` | + 1 | + `grow` per round: as many good answers as the number itself |
/// | busy, failed; slow where that counts | stays 1 | x `shrink` | x `shrink` |
///
/// It grows only while at least half of it was in use recently, and shrinks once for all attempts
/// that were in flight together.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyPolicy {
    /// After the first answer; before it, attempts are made one at a time.
    pub start: usize,
    /// The maximum; 0 means 1.
    pub max: usize,
    /// Added by each round of good answers after the first shrink.
    pub grow: f64,
    /// The factor after a refusal or failure, from 0 to 1; at least one attempt remains.
    pub shrink: f64,
    /// What counts as a good answer.
    pub adapt: ConcurrencyFeedback,
}

impl Default for ConcurrencyPolicy {
    /// From 2 to 20, plus one per round, halved on failure; by answers.
    fn default() -> Self {
        ConcurrencyPolicy { start: 2, max: 20, grow: 1.0, shrink: 0.5, adapt: ConcurrencyFeedback::ByAnswers }
    }
}

/// What counts as a good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyFeedback {
    /// Any answer.
    ByAnswers,
    /// An answer within the target; a slower one shrinks. For deliveries to local disks.
    ByLatency {
        /// The time an attempt may take.
        target: Duration,
    },
}

/// When a next hop counts as dead, and how often it is probed: one attempt at a time, when a probe
/// is due.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbePolicy {
    /// Failures in a row that make it dead; 0 means 1.
    pub failures: u32,
    /// From the last failure to the first probe.
    pub first: Duration,
    /// Each wait is this many times the previous one.
    pub factor: f64,
    /// The maximum wait.
    pub longest: Duration,
}

impl Default for ProbePolicy {
    /// Dead after 3 failures; probed after a minute, then twice that, up to every 10 minutes.
    fn default() -> Self {
        ProbePolicy { failures: 3, first: Duration::from_secs(60), factor: 2.0, longest: Duration::from_secs(600) }
    }
}
