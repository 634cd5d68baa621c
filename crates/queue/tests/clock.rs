//! The clock is set back by a day: nothing waits a day because of it.

mod post;

use std::time::Duration;

use post::*;
use queue::{Contact, Purpose, Rate};

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_rate_goes_on() {
    let mut post = post();
    post.limits.rate = Some(Rate { messages: 1, per: seconds(10) });
    post.admit_each(1..=3, "a.example");
    let first = post.take();
    post.deliver(first);
    post.now = NOW - DAY;
    assert!(post.next().is_none());
    assert_eq!(post.queues.next_deadline(), Some(post.now + seconds(10)));
    post.now = post.now + seconds(10);
    assert_eq!(post.take().id, id(2));
}

#[test]
fn the_dead_are_probed_after_one_wait() {
    let mut post = post();
    post.admit_each(1..=3, "a.example");
    for _ in 0..3 {
        let attempt = post.take();
        post.defer(attempt, unreachable());
    }
    post.now = NOW - DAY;
    assert!(post.next().is_none());
    let probe_at = post.now + seconds(60);
    assert_eq!(post.hop("a.example").probe_at, Some(probe_at));
    post.now = probe_at;
    post.admit(4, 5, "a.example", 1);
    assert_eq!(post.take().purpose, Purpose::Deliver);
}

#[test]
fn the_lame_are_released_in_time() {
    let mut post = post();
    post.admit_each(1..=2, "a.example");
    let slow = post.take();
    post.defer(slow, Contact::Answered { slowest: seconds(30) });
    let quick = post.take();
    post.deliver(quick);
    assert_eq!(post.hop("a.example").adopted_by, Some(LAME));
    post.now = NOW - DAY;
    assert!(post.next().is_none());
    let release_after = config().queues[1].adopts.as_ref().map(|adopt| adopt.release_after).unwrap();
    assert_eq!(post.queues.next_deadline(), Some(post.now + release_after));
    post.now = post.now + release_after;
    assert!(post.next().is_none());
    assert_eq!(post.hop("a.example").adopted_by, None);
}
