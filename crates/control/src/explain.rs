//! `mailrace explain`: how mail for an address would be routed, the state of a message, and what
//! holds it now. The answers are text for people; each obstacle of the queue has a sentence.

pub(super) mod access;
mod address;
mod message;

use mail::Timestamp;
use queue::{BlockReason, DestinationId, NextHopView, PauseEnd, QueueNumber, Queues};

pub(super) use address::AddressTrace;
pub use address::{AddressExplainer, Deliverability};
pub(super) use message::MessageState;

use super::text::{plural, short_duration};

/// An obstacle as a sentence without period; `name` gives the names of queues.
fn obstacle_text<'a>(obstacle: &BlockReason, now: Timestamp, name: impl Fn(QueueNumber) -> &'a str) -> String {
    match obstacle {
        BlockReason::Stopped => "deliveries are stopped because of high load (see `mailrace load`)".into(),
        BlockReason::Unrecorded { attempts, max: most } => {
            format!("{} ended but not recorded (limit {most}): the disk is slow", plural(*attempts, "attempt"))
        }
        BlockReason::Paused(queue) => format!("the queue {} is paused, or its concurrency is 0", name(*queue)),
        BlockReason::NextHopPaused { until } => format!("the next hop is paused {}", pause_end(*until, now)),
        BlockReason::DestinationPaused { until } => format!("the destination is paused {}", pause_end(*until, now)),
        BlockReason::NoRoute => "the route is not resolved yet".into(),
        BlockReason::Dead { probe_at, error } => {
            format!("the next hop is unreachable ({error}); next attempt {}", time_text(*probe_at, now))
        }
        BlockReason::Suspect { messages, resume_at, error } => format!(
            "the next hop interrupted {} in a row ({error}); trying one message at a time, the next {}",
            plural(*messages as usize, "message"),
            time_text(*resume_at, now)
        ),
        BlockReason::Rate { until } => {
            format!("the rate limit of the next hop is reached; next message {}", time_text(*until, now))
        }
        BlockReason::NextHopFull { attempts, max: most } => {
            format!("the next hop has {}, its current limit ({most})", plural(*attempts, "attempt"))
        }
        BlockReason::QueueFull { queue, attempts, max: most } => {
            format!("the queue {} has {}, its limit ({most})", name(*queue), plural(*attempts, "attempt"))
        }
        BlockReason::Adopted { queue, release_after, since } => format!(
            "the next hop failed or was slow {} ago and is served by the queue {}, with fewer attempts, until it \
             has worked well for {}",
            short_duration(now.since(*since)),
            name(*queue),
            short_duration(*release_after)
        ),
    }
}

/// What blocks a destination now, a sentence each.
pub(super) fn block_sentences<R: Clone>(queues: &Queues<R>, destination: DestinationId, now: Timestamp) -> Vec<String> {
    let name = |number: QueueNumber| &*queues.config().queues[usize::from(number.0)].name;
    let reasons = queues.block_reasons(now, destination);
    reasons.iter().map(|reason| obstacle_text(reason, now, name)).collect()
}

/// What mail for a destination waits for, one line each, or that nothing holds it. "Held" is only
/// what the operator holds.
fn obstacle_lines<'a>(
    obstacles: &[BlockReason],
    now: Timestamp,
    name: impl Fn(QueueNumber) -> &'a str + Copy,
) -> Vec<String> {
    match obstacles {
        [] => vec!["nothing holds this destination: mail leaves when it is due".into()],
        _ => obstacles.iter().map(|obstacle| format!("waits: {}", obstacle_text(obstacle, now, name))).collect(),
    }
}

/// The current load of a next hop.
fn next_hop_load(hop: &NextHopView<'_>) -> String {
    let attempts = format!("{} in progress, limit {} now", plural(hop.attempts, "attempt"), hop.concurrency);
    match hop.failures {
        0 => attempts,
        failures => format!("{attempts}, {} since it last answered", plural(failures as usize, "failure")),
    }
}

fn pause_end(until: PauseEnd, now: Timestamp) -> String {
    until.map_or_else(|| "until it is resumed".to_owned(), |until| format!("and resumes {}", time_text(until, now)))
}

/// A time, absolute and relative to now.
fn time_text(at: Timestamp, now: Timestamp) -> String {
    match at.since(now) {
        left if left.is_zero() => "now".into(),
        left => format!("at {} (in {})", at.to_rfc3339(), short_duration(left)),
    }
}

#[cfg(test)]
mod tests {
    use mail::Reply;

    use super::super::sample::{HOUR, NOW};
    use super::*;

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
            BlockReason::QueueFull { queue: lame, attempts: 75, max: 75 },
            BlockReason::Adopted { queue: lame, release_after: HOUR, since: NOW - HOUR / 2 },
        ];
        let lines = [obstacle_lines(&obstacles, NOW, name), obstacle_lines(&[], NOW, name)].concat();
        insta::assert_snapshot!("obstacles", lines.join("\n"));
    }
}
