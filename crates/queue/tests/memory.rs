//! The memory that a million queued messages take: what the thread of the test has asked the allocator for,
//! and not given back.

mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use harness::*;
use queue::{ContactResult, PendingRecipient, QueueConfig, RecipientVerdict, SchedulerConfig};

const MILLION: u64 = 1_000_000;
const BYTES_PER_MESSAGE_MAX: usize = 130;

struct CountingAllocator;

thread_local! {
    /// A queue stays on the thread that made it.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

#[expect(unsafe_code, reason = "the interface of an allocator is unsafe")]
// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the promises of this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.set(ALLOCATED.get().wrapping_sub(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A million messages with one recipient each, due after `delay`, spread over destinations and
/// their senders.
fn filled(destinations: u64, senders: u64, delay: Duration) -> Harness {
    let mut harness =
        Harness::new(SchedulerConfig { queues: vec![QueueConfig::default()], ..SchedulerConfig::default() });
    let names: Vec<String> = (0..destinations).map(|n| format!("destination-{n}.example")).collect();
    for n in 0..MILLION {
        let pending =
            PendingRecipient { due: NOW + delay, ..harness.pending(STANDARD, &names[(n % destinations) as usize], 0) };
        let admission = harness.admission(n, n / destinations % senders, vec![pending]);
        harness.queues.admit(NOW, &admission);
    }
    harness.answer();
    assert_eq!(
        (harness.queues.message_count(), harness.queues.destination_count()),
        (MILLION as usize, destinations as usize)
    );
    harness
}

/// Everything else on the thread of a test is small.
fn check(name: &str, _queued: &Harness, bytes_max: usize) {
    let bytes = ALLOCATED.get().div_ceil(MILLION as usize);
    println!("{name}: {bytes} bytes per message");
    assert!((1..bytes_max).contains(&bytes), "{name}: {bytes} bytes per message");
}

#[test]
fn a_million_to_one_destination_stay_small_ready_and_waiting() {
    check("one destination, ready", &filled(1, 1, Duration::ZERO), BYTES_PER_MESSAGE_MAX);
    let mut harness = filled(1, 1, seconds(60));
    check("one destination, waiting", &harness, BYTES_PER_MESSAGE_MAX);
    harness.now = NOW + seconds(60);
    let _first = harness.take();
    check("one destination, waking", &harness, BYTES_PER_MESSAGE_MAX);
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
fn an_emptied_queue_frees_its_memory() {
    let mut harness = filled(1000, 100, Duration::ZERO);
    while let Some(mut attempt) = harness.next() {
        harness.queues.finish_contact(NOW, &mut attempt, ContactResult::Unknown);
        let verdicts = vec![RecipientVerdict::Delivered; attempt.recipients.len()];
        harness.queues.report_verdicts(NOW, attempt, &verdicts);
    }
    assert_eq!(
        (harness.queues.recipient_count(), harness.queues.message_count(), harness.queues.destination_count()),
        (0, 0, 0)
    );
    assert!(ALLOCATED.get() < 2_000_000, "{} bytes", ALLOCATED.get());
}
