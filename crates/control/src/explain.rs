//! What `mailrace explain` asks: how mail for an address would be routed, the state of a message, and what
//! holds it now. The answers are values ([`crate::explanation`]); this folder makes no text for people.

pub(super) mod access;
mod address;
mod message;

use mail::Timestamp;
use queue::{BlockReason, DestinationId, NextHopView, PauseEnd, QueueNumber, Queues};

pub use address::AddressExplainer;
pub(super) use address::AddressTrace;
pub(super) use message::MessageState;

use crate::explanation::{DueTime, NextHopLoad, Obstacle};

/// An obstacle of the queue; `name` gives the names of queues.
fn obstacle<'a>(reason: &BlockReason, now: Timestamp, name: impl Fn(QueueNumber) -> &'a str) -> Obstacle {
    let name = |queue: QueueNumber| name(queue).to_owned();
    match *reason {
        BlockReason::Stopped => Obstacle::Stopped,
        BlockReason::Unrecorded { attempts, max } => Obstacle::Unrecorded { attempts, attempts_max: max },
        BlockReason::Paused(queue) => Obstacle::QueuePaused { queue: name(queue) },
        BlockReason::NextHopPaused { until } => Obstacle::NextHopPaused { until: pause_end(until, now) },
        BlockReason::DestinationPaused { until } => Obstacle::DestinationPaused { until: pause_end(until, now) },
        BlockReason::NoRoute => Obstacle::NoRoute,
        BlockReason::Dead { probe_at, ref error } => {
            Obstacle::NextHopUnreachable { next_attempt: due_time(probe_at, now), error: error.to_string() }
        }
        BlockReason::Suspect { messages, resume_at, ref error } => {
            Obstacle::NextHopInterrupts { messages, next_attempt: due_time(resume_at, now), error: error.to_string() }
        }
        BlockReason::Rate { until } => Obstacle::RateLimit { next_attempt: due_time(until, now) },
        BlockReason::NextHopFull { attempts, max } => Obstacle::NextHopFull { attempts, attempts_max: max },
        BlockReason::SlotsElsewhere { attempts, granted, max } => {
            Obstacle::SlotsElsewhere { attempts, attempts_max: granted, cluster_max: max }
        }
        BlockReason::QueueFull { queue, attempts, max } => {
            Obstacle::QueueFull { queue: name(queue), attempts, attempts_max: max }
        }
        BlockReason::Adopted { queue, release_after, since } => Obstacle::Adopted {
            queue: name(queue),
            release_after_seconds: release_after.as_secs(),
            trouble_age_seconds: now.since(since).as_secs(),
        },
    }
}

/// What blocks a destination now.
pub(super) fn obstacles<R: Clone>(queues: &Queues<R>, destination: DestinationId, now: Timestamp) -> Vec<Obstacle> {
    let name = |number: QueueNumber| &*queues.config().queues[usize::from(number.0)].name;
    let reasons = queues.block_reasons(now, destination);
    reasons.iter().map(|reason| obstacle(reason, now, name)).collect()
}

/// The current load of a next hop.
fn next_hop_load(hop: &NextHopView<'_>) -> NextHopLoad {
    NextHopLoad { attempts: hop.attempts, attempts_max: hop.concurrency, failures: hop.failures }
}

fn pause_end(until: PauseEnd, now: Timestamp) -> Option<DueTime> {
    until.map(|until| due_time(until, now))
}

fn due_time(at: Timestamp, now: Timestamp) -> DueTime {
    DueTime { at: at.to_rfc3339(), in_ms: u64::try_from(at.since(now).as_millis()).unwrap_or(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use mail::Reply;

    use super::super::sample::{HOUR, NOW};
    use super::*;
    use crate::explanation_text::obstacle_sentence;

    #[test]
    fn each_obstacle_is_a_sentence() {
        let name = |number: QueueNumber| ["standard", "lame"][usize::from(number.0)];
        let (standard, lame) = (QueueNumber(0), QueueNumber(1));
        let obstacles = [
            BlockReason::Stopped,
            BlockReason::Unrecorded { attempts: 10_001, max: 10_000 },
            BlockReason::Paused(standard),
            BlockReason::NextHopPaused { until: None },
            BlockReason::DestinationPaused { until: Some(NOW + HOUR) },
            BlockReason::NoRoute,
            BlockReason::Dead { probe_at: NOW + HOUR, error: Reply::without_enhanced_code(451, "connection refused") },
            BlockReason::Dead { probe_at: NOW - HOUR, error: Reply::without_enhanced_code(451, "timed out") },
            BlockReason::Suspect {
                messages: 4,
                resume_at: NOW + HOUR / 60,
                error: Reply::without_enhanced_code(451, "connection lost"),
            },
            BlockReason::Rate { until: NOW + HOUR / 60 },
            BlockReason::NextHopFull { attempts: 1, max: 1 },
            BlockReason::SlotsElsewhere { attempts: 2, granted: 2, max: 5 },
            BlockReason::QueueFull { queue: lame, attempts: 75, max: 75 },
            BlockReason::Adopted { queue: lame, release_after: HOUR, since: NOW - HOUR / 2 },
        ];
        let sentence = |reason| format!("waits: {}", obstacle_sentence(&obstacle(reason, NOW, name)));
        let lines: Vec<_> = obstacles.iter().map(sentence).collect();
        insta::assert_snapshot!("obstacles", lines.join("\n"));
    }
}
