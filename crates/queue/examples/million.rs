//! The cost of a million recipients: `cargo run --release -p queue --example million` prints
//! nanoseconds per call, for 20,000 destinations with a next hop each and for 20,000 that share
//! 1,000, as single messages and as one bulk message. Half of the recipients are picked by an
//! operator's action, part by part, and end like the others.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock; the queue does not")]

use std::time::{Duration, Instant};

use mail::{QueueId, SpoolId, Timestamp};
use queue::{
    AdmittedMessage, ContactResult, DestinationId, NextHopLimits, NextHopRoute, OperatorAction, PendingRecipient,
    QueueConfig, QueueNumber, Queues, RecipientVerdict, SchedulerConfig,
};

const RECIPIENTS: u64 = 1_000_000;
const DESTINATIONS: u64 = 20_000;
const SLOTS_PER_PART: u32 = 64 * 1024;
const NOW: Timestamp = Timestamp(1_700_000_000_000);
const QUEUE: QueueNumber = QueueNumber(0);

fn main() {
    println!("{RECIPIENTS} recipients at {DESTINATIONS} destinations; nanoseconds per call");
    for (name, hops, recipients, delay) in [
        ("one next hop each", DESTINATIONS, 1, 0),
        ("1,000 next hops", 1000, 1, 0),
        ("1,000 next hops, woken", 1000, 1, 60),
        ("one message", DESTINATIONS, RECIPIENTS, 0),
    ] {
        measure(name, hops, recipients, Duration::from_secs(delay));
    }
}

fn measure(name: &str, hops: u64, recipients_per_message: u64, delay: Duration) {
    let mut queues =
        Queues::new(SchedulerConfig { queues: vec![QueueConfig::default()], ..SchedulerConfig::default() }, 1);
    let destinations: Vec<DestinationId> =
        (0..DESTINATIONS).map(|n| queues.intern_destination(QUEUE, &format!("{n}.example"))).collect();
    let start = Instant::now();
    for number in 0..RECIPIENTS / recipients_per_message {
        queues.admit(NOW, &admission(number, recipients_per_message, &destinations, delay));
    }
    let admit = start.elapsed();
    let start = Instant::now();
    answer(&mut queues, hops);
    let routed = start.elapsed();
    let (held, parts) = pick_half(&mut queues);
    let pick = parts.iter().sum();
    let (mut next, mut ended, mut report) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut attempts = 0;
    let now = NOW + delay;
    assert_eq!(held, RECIPIENTS / 2);
    while !queues.is_empty() {
        let start = Instant::now();
        let mut batch: Vec<_> = std::iter::from_fn(|| queues.next_attempt(now)).collect();
        answer(&mut queues, hops);
        next += start.elapsed();
        let start = Instant::now();
        let contact = ContactResult::Answered { slowest: Duration::from_millis(5) };
        batch.iter_mut().for_each(|attempt| queues.finish_contact(now, attempt, contact.clone()));
        ended += start.elapsed();
        let start = Instant::now();
        for attempt in batch {
            let verdicts = vec![RecipientVerdict::Delivered; attempt.recipients.len()];
            attempts += 1;
            queues.report_verdicts(now, attempt, &verdicts);
        }
        report += start.elapsed();
    }
    let each = |time: Duration, count: u64| time.as_nanos() as u64 / count;
    println!(
        "{name:>24}: admit {:4}  routed {:4}  next {:4}  ended {:4}  report {:4}  pick {:3}, at most {} ms at a time",
        each(admit, RECIPIENTS),
        each(routed, DESTINATIONS),
        each(next, attempts),
        each(ended, attempts),
        each(report, attempts),
        each(pick, RECIPIENTS),
        parts.iter().max().map_or(0, Duration::as_millis),
    );
}

/// Picks each second recipient, part by part, as the control socket does. Returns their number, and how long
/// each part took.
fn pick_half(queues: &mut Queues<()>) -> (u64, Vec<Duration>) {
    let (mut held, mut parts) = (0, Vec::new());
    for from in (0..queues.slot_count()).step_by(SLOTS_PER_PART as usize) {
        let start = Instant::now();
        held += queues
            .pick_recipients_for_action(OperatorAction::Hold, NOW, from..from + SLOTS_PER_PART, &mut |entry| {
                entry.ordinal % 2 == 1 || entry.id.sequence() % 2 == 1
            })
            .picked as u64;
        parts.push(start.elapsed());
    }
    (held, parts)
}

fn admission(number: u64, count: u64, destinations: &[DestinationId], delay: Duration) -> AdmittedMessage {
    let pending = |n: u64| PendingRecipient {
        ordinal: n as u32,
        destination: destinations[((number + n) % DESTINATIONS) as usize],
        attempts: 0,
        due: NOW + delay,
        held: false,
    };
    AdmittedMessage {
        id: QueueId::new(SpoolId::new(1), 0, number),
        sender: number % 1000,
        accepted_at: NOW,
        recovered: false,
        separate_attempts: false,
        recipients: (0..count).map(pending).collect(),
    }
}

fn answer(queues: &mut Queues<()>, hops: u64) {
    while let Some(destination) = queues.next_unrouted() {
        let number: u64 = queues
            .destination_name(destination)
            .trim_end_matches(".example")
            .parse()
            .expect("test domains end in .example");
        let next_hop = format!("smtp:mx{}.example", number % hops).into();
        let (limits, until) = (NextHopLimits::default(), Timestamp(u64::MAX));
        queues.set_route(NOW, destination, NextHopRoute { next_hop, route: (), limits, until, transient: false });
    }
}
