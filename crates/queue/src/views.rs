//! What listings show: entries, queues, next hops, and what holds a destination.

use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, Reply, Timestamp};

use crate::{Destination, NextHop, QueueNumber};

/// One recipient, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The message.
    pub id: QueueId,
    /// The recipient's place in the envelope.
    pub ordinal: u32,
    /// Where it is.
    pub destination: Destination,
    /// How many attempts were made.
    pub attempts: u16,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// What it waits for.
    pub progress: Progress,
    /// Why the last attempt was not the last one; None before the first one since the start. Texts are cut to 200
    /// bytes, and beyond 10,000 different ones there is one for all others.
    pub error: Option<Arc<str>>,
}

/// What a recipient waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A later moment.
    Waiting(Timestamp),
    /// Its turn.
    Ready,
    /// The end of its attempt, or of an act of the operator.
    InFlight,
    /// The operator's release.
    Held,
}

/// One queue, for listings and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView<'a> {
    /// Its number.
    pub number: QueueNumber,
    /// Its name.
    pub name: &'a str,
    /// How many attempts hold a slot, those of adopted next hops included.
    pub attempts: usize,
    /// How many may.
    pub concurrency: usize,
    /// Nothing leaves it.
    pub paused: bool,
    /// The settings have it no more.
    pub retired: bool,
    /// Recipients at home here that wait for a later moment.
    pub waiting: usize,
    /// Recipients at home here that wait for their turn.
    pub ready: usize,
    /// Recipients at home here whose attempt or act is not reported.
    pub in_flight: usize,
    /// Recipients at home here that the operator holds.
    pub held: usize,
}

impl QueueView<'_> {
    /// The settings have it no more, and nothing is left in it.
    pub fn is_gone(&self) -> bool {
        self.retired && self.attempts + self.waiting + self.ready + self.in_flight + self.held == 0
    }
}

/// One next hop, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHopView<'a> {
    /// Its number.
    pub number: NextHop,
    /// Its identity.
    pub name: &'a str,
    /// How many destinations are routed there.
    pub destinations: usize,
    /// Attempts that hold a slot.
    pub attempts: usize,
    /// How many may now.
    pub concurrency: usize,
    /// The queue that has adopted it.
    pub adopted_by: Option<QueueNumber>,
    /// Failures since the last answer.
    pub failures: u32,
    /// Where it is dead: when the next probe is due.
    pub probe_at: Option<Timestamp>,
    /// Where it has a rate: from when on that lets another attempt leave; a moment in the past is now.
    pub rate_free_at: Option<Timestamp>,
    /// The last failure since it was known.
    pub error: Option<&'a Reply>,
}

/// One thing that holds a destination now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No attempts at all: load.
    Stopped,
    /// So many attempts have ended and are not recorded.
    Unrecorded {
        /// How many.
        attempts: usize,
        /// How many may be.
        most: usize,
    },
    /// The queue that serves it is paused, or has no concurrency.
    Paused(QueueNumber),
    /// Nobody has said yet where it goes, or the time of what was said is over.
    NoRoute,
    /// Its next hop cannot be reached.
    Dead {
        /// When it is tried again.
        probe_at: Timestamp,
        /// What went wrong last.
        error: Reply,
    },
    /// Messages broke off at its next hop, and none was answered since: it is tried by one at a time, or not at once.
    Suspect {
        /// How many messages.
        messages: u32,
        /// The next attempt leaves no earlier.
        resume_at: Timestamp,
        /// What went wrong last.
        error: Reply,
    },
    /// Its next hop has had as many attempts as its rate allows.
    Rate {
        /// When the next attempt may leave.
        until: Timestamp,
    },
    /// Its next hop has as many attempts as it may.
    NextHopFull {
        /// Those that hold a slot.
        attempts: usize,
        /// How many may now.
        most: usize,
    },
    /// The queue that serves it has as many attempts as it may.
    QueueFull {
        /// Which one.
        queue: QueueNumber,
        /// Those that hold a slot.
        attempts: usize,
        /// How many may.
        most: usize,
    },
    /// Its next hop failed or was slow, and was moved to a queue for such. What waits there has fewer slots.
    Adopted {
        /// Which one.
        queue: QueueNumber,
        /// How long it must go without trouble.
        release_after: Duration,
        /// The last trouble.
        since: Timestamp,
    },
}
