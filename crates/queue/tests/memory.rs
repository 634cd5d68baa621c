//! How much memory a million queued messages take: every container's capacity times the size of what it holds.

use std::time::Duration;

use mail::{QueueId, SpoolId, Timestamp};
use queue::{Admission, Config, Pending, Queue, Retry};

const MILLION: u64 = 1_000_000;
const BYTES_PER_MESSAGE_MAX: usize = 110;
const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// A million messages of one recipient each, due after `delay`, spread over destinations and their senders.
fn filled(destinations: u64, senders: u64, delay: Duration) -> Queue {
    let config =
        Config { name: "standard".into(), concurrency: 1000, retry: Retry::default(), recipients_per_attempt_max: 100 };
    let mut queue = Queue::new(config, 1);
    let names: Vec<String> = (0..destinations).map(|n| format!("destination-{n}.example")).collect();
    for n in 0..MILLION {
        let destination = queue.destination(&names[(n % destinations) as usize]);
        let recipients = vec![Pending { ordinal: 0, destination, attempts: 0, due: NOW + delay }];
        let id = QueueId::new(SpoolId::new(1), 0, n);
        let sender = n / destinations % senders;
        queue.admit(NOW, &Admission { id, sender, accepted_at: NOW, recovered: false, recipients });
    }
    assert_eq!((queue.messages(), queue.destinations()), (MILLION as usize, destinations as usize));
    queue
}

fn check(name: &str, queue: &Queue) {
    let bytes = queue.bytes().div_ceil(MILLION as usize);
    println!("{name}: {bytes} bytes a message");
    assert!(bytes < BYTES_PER_MESSAGE_MAX, "{name}: {bytes} bytes a message");
}

#[test]
fn a_million_to_one_destination_stay_small_ready_and_waiting() {
    check("one destination, ready", &filled(1, 1, Duration::ZERO));
    let mut queue = filled(1, 1, Duration::from_secs(60));
    check("one destination, waiting", &queue);
    let _first = queue.next(NOW + Duration::from_secs(60));
    check("one destination, waking", &queue);
}

#[test]
fn a_million_to_a_thousand_destinations_from_a_hundred_senders_each_stay_small() {
    check("1,000 destinations, ready", &filled(1000, 100, Duration::ZERO));
    check("1,000 destinations, waiting", &filled(1000, 100, Duration::from_secs(60)));
}

#[test]
fn an_emptied_queue_gives_its_memory_back() {
    let mut queue = filled(1000, 100, Duration::ZERO);
    while let Some(attempt) = queue.next(NOW) {
        let verdicts = vec![queue::Verdict::Delivered; attempt.recipients.len()];
        queue.report(NOW, attempt, &verdicts);
    }
    assert_eq!((queue.len(), queue.messages(), queue.destinations()), (0, 0, 0));
    assert!(queue.bytes() < 1_000_000, "{} bytes", queue.bytes());
}
