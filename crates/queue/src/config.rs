//! Settings: of the queues, and of one next hop. Every limit has a name and a default; nothing here does anything.

use std::time::Duration;

use crate::Retry;

/// The settings of all queues.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The queues; their places here are their numbers. At most one of them adopts: the first that says so.
    pub queues: Vec<QueueConfig>,
    /// No attempt starts while so many have ended and are not reported, 10,000 by default. What is in flight at that
    /// moment comes on top, so no more than this and the concurrency of all queues are ever unrecorded.
    pub unrecorded_max: usize,
    /// A message with more recipients than this is a mailing, and so is all that comes from a sender while more than so
    /// many recipients of letters from there are ready in a queue. 1,000 by default.
    pub mailing_above: usize,
    /// Letters get so many turns for each turn of a mailing, where both are ready. 3 by default; 0 is taken for 1.
    pub letters_share: u32,
}

impl Default for Config {
    /// No queues yet.
    fn default() -> Self {
        Config { queues: Vec::new(), unrecorded_max: 10_000, mailing_above: 1000, letters_share: 3 }
    }
}

/// The place of a queue in [`Config::queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNumber(pub u16);

/// The settings of a named queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueConfig {
    /// For the operator.
    pub name: Box<str>,
    /// How many attempts hold a slot at most; 0 holds the queue.
    pub concurrency: usize,
    /// When to try again, and when to stop.
    pub retry: Retry,
    /// How many recipients one attempt takes at most; 0 is taken for 1.
    pub recipients_per_attempt_max: usize,
    /// Whether next hops of other queues that fail or are slow are moved here.
    pub adopts: Option<Adopt>,
    /// It has been taken out of the settings, and is here for its number: nothing leaves it but to be sorted anew
    /// ([`Purpose::Sort`](crate::Purpose::Sort)).
    pub retired: bool,
}

impl Default for QueueConfig {
    /// `standard`, with 1,000 attempts of 100 recipients at most.
    fn default() -> Self {
        QueueConfig {
            name: "standard".into(),
            concurrency: 1000,
            retry: Retry::default(),
            recipients_per_attempt_max: 100,
            adopts: None,
            retired: false,
        }
    }
}

/// When a next hop is adopted, and how it is kept. One that adapts by latency is never adopted: its concurrency follows
/// its slowness already.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopt {
    /// After so many failures in a row ([`Contact::Failed`](crate::Contact::Failed)); 0 is taken for 1.
    pub failures: u32,
    /// After an answer that took longer than this, or an attempt that has waited longer
    /// ([`Queues::slow`](crate::Queues::slow)).
    pub slower_than: Duration,
    /// It moves back when it neither failed nor was slow for so long, and its last answer was quick.
    pub release_after: Duration,
    /// How many attempts at one next hop the adopting queue makes at once; 0 is taken for 1. It holds for those that
    /// are at home there as well.
    pub per_next_hop: usize,
}

impl Default for Adopt {
    /// 3 failures or 10 seconds; back after an hour; 2 attempts at once.
    fn default() -> Self {
        Adopt {
            failures: 3,
            slower_than: Duration::from_secs(10),
            release_after: Duration::from_secs(3600),
            per_next_hop: 2,
        }
    }
}

/// What one next hop is given. The default has no rate, and leaves the size of attempts to the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// How many attempts at once.
    pub concurrency: Concurrency,
    /// How many attempts a span.
    pub rate: Option<Rate>,
    /// What is done when it cannot be reached.
    pub probe: Probe,
    /// How many recipients one attempt takes at most, beside the limit of the queue; 0 is taken for 1.
    pub recipients_per_attempt_max: Option<usize>,
}

/// How many attempts at one next hop are made at once, and how that number is found.
///
/// | contact | before the first answer | after it | after the first shrink |
/// |---|---|---|---|
/// | a good answer | `start` | + 1 | + `grow` a round: as many good answers as the number itself |
/// | busy, failed; slow where that counts | stays 1 | x `shrink` | x `shrink` |
///
/// It grows only while at least half of it was in use lately, and shrinks once for all attempts that were under way
/// together.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// After the first answer; before it, one attempt at a time.
    pub start: usize,
    /// Never more than this; 0 is taken for 1.
    pub most: usize,
    /// What a round of successes adds once it has shrunk.
    pub grow: f64,
    /// What a refusal or failure leaves, from 0 to 1; never less than one attempt.
    pub shrink: f64,
    /// What counts as a good answer.
    pub adapt: Adapt,
}

impl Default for Concurrency {
    /// From 2 to 20, one more a round, halved; by answers.
    fn default() -> Self {
        Concurrency { start: 2, most: 20, grow: 1.0, shrink: 0.5, adapt: Adapt::ByAnswers }
    }
}

/// What counts as a good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapt {
    /// Any.
    ByAnswers,
    /// One within the target; a slower one shrinks. For deliveries to disks of our own.
    ByLatency {
        /// What an attempt may take.
        target: Duration,
    },
}

/// So many attempts a span, evenly: a burst is at most one second's worth, and at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many; 0 is taken for 1.
    pub messages: u32,
    /// In how long.
    pub per: Duration,
}

/// When a next hop counts as dead, and how often it is tried then: one attempt at a time, when a probe is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// So many failures in a row make it dead; 0 is taken for 1.
    pub failures: u32,
    /// From the last failure to the first probe.
    pub first: Duration,
    /// Each wait is this many times the one before.
    pub factor: f64,
    /// No wait is longer.
    pub longest: Duration,
}

impl Default for Probe {
    /// Dead after 3 failures; probed after a minute, twice that, up to every 10 minutes.
    fn default() -> Self {
        Probe { failures: 3, first: Duration::from_secs(60), factor: 2.0, longest: Duration::from_secs(600) }
    }
}
