//! The memory that a million queued messages take: the capacity of every container times the size
//! of its elements.

mod post;

use std::time::Duration;

use post::*;
use queue::{Config, Contact, Pending, QueueConfig, Verdict};

const MILLION: u64 = 1_000_000;
const BYTES_PER_MESSAGE_MAX: usize = 130;

/// A million messages with one recipient each, due after `delay`, spread over destinations and
/// their senders.
fn filled(destinations: u64, senders: u64, delay: Duration) -> Post {
    let mut post = Post::new(Config { queues: vec![QueueConfig::default()], ..Config::default() });
    let names: Vec<String> = (0..destinations).map(|n| format!("destination-{n}.example")).collect();
    for n in 0..MILLION {
        let pending = Pending { due: NOW + delay, ..post.pending(STANDARD, &names[(n % destinations) as usize], 0) };
        let admission = post.admission(n, n / destinations % senders, vec![pending]);
        post.queues.admit(NOW, &admission);
    }
    post.answer();
    assert_eq!((post.queues.messages(), post.queues.destinations()), (MILLION as usize, destinations as usize));
    post
}

fn check(name: &str, post: &Post, bytes_max: usize) {
    let bytes = post.queues.bytes().div_ceil(MILLION as usize);
    println!("{name}: {bytes} bytes per message");
    assert!(bytes < bytes_max, "{name}: {bytes} bytes per message");
}

#[test]
fn a_million_to_one_destination_stay_small_ready_and_waiting() {
    check("one destination, ready", &filled(1, 1, Duration::ZERO), BYTES_PER_MESSAGE_MAX);
    let mut post = filled(1, 1, seconds(60));
    check("one destination, waiting", &post, BYTES_PER_MESSAGE_MAX);
    post.now = NOW + seconds(60);
    let _first = post.take();
    check("one destination, waking", &post, BYTES_PER_MESSAGE_MAX);
}

#[test]
fn a_million_to_a_thousand_destinations_from_a_hundred_senders_each_stay_small() {
    check("1,000 destinations, ready", &filled(1000, 100, Duration::ZERO), BYTES_PER_MESSAGE_MAX);
    check("1,000 destinations, waiting", &filled(1000, 100, seconds(60)), BYTES_PER_MESSAGE_MAX);
}

#[test]
fn a_million_to_50_000_next_hops_stay_within_200_bytes() {
    check("50,000 next hops, ready", &filled(50_000, 1, Duration::ZERO), 200);
}

#[test]
fn an_emptied_queue_gives_its_memory_back() {
    let mut post = filled(1000, 100, Duration::ZERO);
    while let Some(mut attempt) = post.next() {
        post.queues.ended(NOW, &mut attempt, Contact::None);
        let verdicts = vec![Verdict::Delivered; attempt.recipients.len()];
        post.queues.report(NOW, attempt, &verdicts);
    }
    assert_eq!((post.queues.len(), post.queues.messages(), post.queues.destinations()), (0, 0, 0));
    assert!(post.queues.bytes() < 2_000_000, "{} bytes", post.queues.bytes());
}
