//! The types of listings: recipients, queues, next hops, and what blocks a destination.

use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, Reply, Timestamp};

use crate::{ConcurrencyPolicy, DestinationId, NextHopId, QueueNumber};

/// A recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipientView {
    /// The message.
    pub id: QueueId,
    /// The index of the recipient in the envelope.
    pub ordinal: u32,
    /// Its destination.
    pub destination: DestinationId,
    /// The number of attempts made so far.
    pub attempts: u16,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// What it waits for.
    pub progress: RecipientProgress,
    /// The reason of the last deferral; None before the first attempt since the start. Texts are
    /// cut to 200 bytes, and there are at most 10,000 different ones.
    pub error: Option<Arc<str>>,
}

/// What a recipient waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecipientProgress {
    /// It is due at a later time.
    Waiting(Timestamp),
    /// Its turn.
    Ready,
    /// Its attempt or action is not reported yet.
    InFlight,
    /// The operator holds it.
    Held,
}

/// When a pause ends; None: when the operator resumes what is paused.
pub type PauseEnd = Option<Timestamp>;

/// A destination with recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationView<'a> {
    /// Its number.
    pub number: DestinationId,
    /// Its name, in most cases a domain.
    pub name: &'a str,
    /// Its queue.
    pub queue: QueueNumber,
    /// How many recipients it has, queued or in flight.
    pub recipients: usize,
    /// Its next hop, if it is known.
    pub next_hop: Option<&'a str>,
    /// The operator has paused it.
    pub pause: Option<PauseEnd>,
}

/// A queue, for listings and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView<'a> {
    /// Its number.
    pub number: QueueNumber,
    /// Its name.
    pub name: &'a str,
    /// Attempts that hold a slot, including those at adopted next hops.
    pub attempts: usize,
    /// The maximum of `attempts`.
    pub concurrency: usize,
    /// The operator has paused it: nothing leaves it.
    pub pause: Option<PauseEnd>,
    /// It was removed from the settings.
    pub retired: bool,
    /// Recipients with this home queue that are due at a later time.
    pub waiting: usize,
    /// Recipients with this home queue that wait for their turn.
    pub ready: usize,
    /// Recipients with this home queue whose attempt or action is not reported.
    pub in_flight: usize,
    /// Recipients with this home queue that the operator holds.
    pub held: usize,
}

impl QueueView<'_> {
    /// Whether it was removed from the settings and is empty.
    pub fn is_retired_and_empty(&self) -> bool {
        self.retired && self.attempts + self.waiting + self.ready + self.in_flight + self.held == 0
    }
}

/// A next hop.
#[derive(Clone, Debug, PartialEq)]
pub struct NextHopView<'a> {
    /// Its number.
    pub number: NextHopId,
    /// Its name.
    pub name: &'a str,
    /// The number of destinations routed there.
    pub destinations: usize,
    /// Attempts that hold a slot.
    pub attempts: usize,
    /// The maximum of `attempts`, as of now.
    pub concurrency: usize,
    /// Why it is what it is.
    pub concurrency_reason: ConcurrencyReason,
    /// How it starts and adapts.
    pub policy: &'a ConcurrencyPolicy,
    /// The queue that has adopted it.
    pub adopted_by: Option<QueueNumber>,
    /// The operator has paused it: nothing leaves for it.
    pub pause: Option<PauseEnd>,
    /// Failures in a row since the last answer.
    pub failures: u32,
    /// When the next probe is due, if it is dead.
    pub probe_at: Option<Timestamp>,
    /// When the rate lets the next attempt leave, if it has a rate; a time in the past means now.
    pub rate_free_at: Option<Timestamp>,
    /// Its last error since it became known.
    pub error: Option<&'a Reply>,
}

/// Why the concurrency of a next hop is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencyReason {
    /// It cannot be reached: one attempt probes it.
    Dead,
    /// Sessions were interrupted: one message at a time.
    Suspect,
    /// It has not answered yet: one attempt at a time.
    Unproven,
    /// This queue has adopted it, and allows no more.
    Adopted(QueueNumber),
    /// Failures, refusals or slow answers have reduced it; since then it grows by rounds of good answers.
    Reduced,
    /// Good answers have raised it.
    Raised,
    /// It is as at the start.
    Start,
}

/// A reason why a destination is blocked now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// The server is overloaded: no attempt starts.
    Stopped,
    /// Too many attempts have ended and are not recorded.
    Unrecorded {
        /// How many.
        attempts: usize,
        /// The limit.
        max: usize,
    },
    /// The queue that serves it is paused, or has no concurrency.
    Paused(QueueNumber),
    /// The operator has paused the destination.
    DestinationPaused {
        /// The end of the pause.
        until: PauseEnd,
    },
    /// The operator has paused its next hop.
    NextHopPaused {
        /// The end of the pause.
        until: PauseEnd,
    },
    /// The destination has no valid route yet.
    NoRoute,
    /// Its next hop cannot be reached.
    Dead {
        /// When the next probe is due.
        probe_at: Timestamp,
        /// Its last error.
        error: Reply,
    },
    /// Messages were interrupted at its next hop, and none was answered since: attempts are made
    /// one at a time or after a delay.
    Suspect {
        /// How many different messages.
        messages: u32,
        /// The next attempt does not leave earlier.
        resume_at: Timestamp,
        /// The last error.
        error: Reply,
    },
    /// Its next hop has reached its rate limit.
    Rate {
        /// When the next attempt may leave.
        until: Timestamp,
    },
    /// Its next hop has reached its concurrency limit.
    NextHopFull {
        /// Attempts that hold a slot.
        attempts: usize,
        /// The limit now.
        max: usize,
    },
    /// Others hold the slots of its next hop, whose concurrency is shared.
    SlotsElsewhere {
        /// Attempts that hold a slot here.
        attempts: usize,
        /// How many may.
        granted: usize,
        /// The limit of all who share it.
        max: usize,
    },
    /// The queue that serves it has reached its concurrency limit.
    QueueFull {
        /// The queue.
        queue: QueueNumber,
        /// Attempts that hold a slot.
        attempts: usize,
        /// The limit.
        max: usize,
    },
    /// Its next hop failed or was slow, and is served by another queue, which has fewer slots.
    Adopted {
        /// The queue that serves it.
        queue: QueueNumber,
        /// How long the next hop must be well before it is released.
        release_after: Duration,
        /// The time of the last trouble.
        since: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: QueueView<'_> = QueueView {
        number: QueueNumber(0),
        name: "bulk",
        attempts: 0,
        concurrency: 5,
        pause: None,
        retired: true,
        waiting: 0,
        ready: 0,
        in_flight: 0,
        held: 0,
    };

    #[test]
    fn a_removed_queue_can_go_when_nothing_is_in_it() {
        assert!(EMPTY.is_retired_and_empty());
        let used = [
            QueueView { attempts: 1, ..EMPTY },
            QueueView { waiting: 1, ..EMPTY },
            QueueView { ready: 1, ..EMPTY },
            QueueView { in_flight: 1, ..EMPTY },
            QueueView { held: 1, ..EMPTY },
            QueueView { retired: false, ..EMPTY },
        ];
        used.iter().for_each(|view| assert!(!view.is_retired_and_empty(), "{view:?}"));
    }
}
