//! Reclaiming disk space: dead mail leaves the disk, and nothing is removed before its replacement
//! is on the disk.
//!
//! | obstacle | expected |
//! |---|---|
//! | a half-live segment with many dead ones behind it | its mail is copied forward, the dead ones are freed |
//! | no space for another segment | a dead one is reused, at run time and at start |
//! | an unreadable live message | it is set aside once, its segment is freed |
//! | a copy that is not synced (relaxed durability) | its source stays until it is |
//! | a segment whose sync failed | its file is removed when nothing in it is needed |

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mail::QueueId;
use sim::{EIO, OperationKind};
use spool::{Config, Durability, RecipientState, SpoolEntry, SpoolEvent};

use crate::harness::{RecordedEvents, SEED, SpoolHarness, close, config, open, open_damaged};

const DELIVERED: [(u32, RecipientState); 1] = [(0, RecipientState::Delivered)];

/// The segment has too much live mail to count as mostly dead. Every later segment has an outcome
/// for the one before, so none could be freed before it, and the log grew forever.
#[test]
fn a_half_alive_segment_does_not_keep_all_that_died_behind_it() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(128 << 10)).unwrap();
    let ids: Vec<_> = (0..28).map(|_| harness.accept(3500, 1).unwrap()).collect();
    for id in ids.iter().step_by(3) {
        harness.settle(*id, &DELIVERED).unwrap();
    }
    let mut before = harness.accept(4000, 1).unwrap();
    for _ in 0..200 {
        let id = harness.accept(4000, 1).unwrap();
        harness.settle(before, &DELIVERED).unwrap();
        before = id;
    }
    // Twenty without copies. With them: two with the live mail, up to seven dead ones, one open,
    // one ready.
    harness.wait_until("dead segments are not freed", |harness| harness.spool.stats().segments <= 11);
    assert!(harness.spool.stats().messages_copied >= 18, "{:?}", harness.spool.stats());
    harness.promises.check(&harness.recovered()).unwrap();
    let (promises, _) = harness.close();
    let after = disk.crash_harshly(1);
    let (spool, found) = open(&after, config(128 << 10)).unwrap();
    promises.check(&found).unwrap();
    close(spool, &after);
}

/// Maintenance tried to create a segment, failed, paused and tried again, and never freed what was
/// dead in the meantime, although that was the space it needed.
#[test]
fn a_full_disk_frees_dead_segments_and_accepts_mail_again() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let old = [harness.accept(6000, 1).unwrap(), harness.accept(6000, 1).unwrap()];
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    disk.set_bytes_free(100);
    let created = disk.count(OperationKind::Create);
    // This begins the spare segment, and there is no space for another.
    harness.accept(6000, 1).unwrap();
    harness.wait_until("no segment is tried", |_| disk.count(OperationKind::Create) > created);
    for id in old {
        harness.settle(id, &DELIVERED).unwrap();
    }
    harness.wait_until("no mail is accepted again", |harness| harness.accept(6000, 1).is_ok());
    assert_eq!(harness.spool.stats().segments, 2, "there was no space for a third");
    harness.promises.check(&harness.recovered()).unwrap();
    harness.close();
}

/// A start creates a segment before it starts maintenance, and failed although the log was full of
/// dead mail.
#[test]
fn a_full_disk_on_which_all_is_dead_is_opened_and_takes_mail() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let ids: Vec<_> = (0..12).map(|_| harness.accept(6000, 1).unwrap()).collect();
    // Segments are not freed while their bodies are read.
    let leases: Vec<_> = ids.iter().map(|id| harness.spool.message(*id).unwrap().body).collect();
    for id in ids {
        harness.settle(id, &DELIVERED).unwrap();
    }
    let image = disk.crash(0);
    drop(leases);
    let (promises, given) = harness.close();
    image.set_bytes_free(100);
    let mut harness = SpoolHarness::reopen(&image, config(32 << 10), promises, given).unwrap();
    harness.accept(6000, 1).unwrap();
    harness.close();
}

/// The writer is busy when maintenance finds an unreadable live message. Until the writer had
/// recorded that it left the queue, maintenance found it again and again, and saved and reported it
/// each time.
#[test]
fn a_survivor_that_cannot_be_read_is_set_aside_once_however_busy_the_writer_is() {
    let disk = sim::Disk::new(SEED);
    let events = RecordedEvents::default();
    let gate = CommitGate::default();
    let mut harness = SpoolHarness::open(&disk, gate.attach_to(events.record_from(config(256 << 10)))).unwrap();
    let survivor = harness.accept(300, 1).unwrap();
    let doomed: Vec<_> = (0..4).map(|_| harness.accept(30_000, 1).unwrap()).collect();
    let mut lease = None;
    for n in 0..30 {
        let id = harness.accept(30_000, 1).unwrap();
        // One in the second segment.
        lease = lease.or_else(|| (n == 5).then(|| harness.spool.message(id).unwrap().body));
        harness.settle(id, &DELIVERED).unwrap();
    }
    spoil_body(&disk, &harness, survivor);

    let release = gate.shut();
    let last = harness.begin();
    let bytes = harness.bytes(100);
    let message = harness.message(last, bytes, 1);
    let outcome = |id: &QueueId| SpoolEntry::Outcome { id: *id, recipients: DELIVERED.to_vec(), bounce: None };
    let ticket = harness.submit(doomed.iter().map(outcome).chain([message]).collect());
    harness.wait(ticket).unwrap();
    // The writer waits at the gate, so the maintenance thread's submission has to wait.
    harness.wait_until("the message is not set aside", |_| !events.set_aside().is_empty());
    let segments = |harness: &SpoolHarness| (harness.spool.stats().segments, harness.spool.stats().segments_free);
    let before = segments(&harness);
    drop(lease);
    harness.wait_until("maintenance does nothing", |harness| segments(harness) != before);
    drop(release);
    harness.wait_until("the message stays in the queue", |harness| harness.spool.ids() == [last]);
    harness.wait_until("its segment is not freed", |harness| harness.spool.stats().segments <= 4);
    let kept = disk.names().into_iter().filter(|name| name.starts_with("aside-")).count();
    assert_eq!((kept, harness.spool.stats().set_aside), (1, 1));
    assert_eq!(events.set_aside().len(), 1, "{:?}", events.set_aside());
    harness.close();
}

/// The copy was not synced yet when its source was freed, and that was synced: a power failure lost
/// both.
#[test]
fn relaxed_durability_loses_nothing_that_was_synced_when_it_is_copied_forward() {
    let mut config = Config { spare_segments: 0, ..config(256 << 10) };
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config.clone()).unwrap();
    let survivor = harness.accept(300, 1).unwrap();
    let ids: Vec<_> = (0..48).map(|_| harness.accept(30_000, 1).unwrap()).collect();
    let (promises, given) = harness.close();
    config.durability = Durability::Relaxed { sync_every: Duration::from_secs(3600) };
    let mut harness = SpoolHarness::reopen(&disk, config.clone(), promises, given).unwrap();
    for id in &ids[..10] {
        harness.settle(*id, &DELIVERED).unwrap();
    }
    harness.wait_until("its first segment is not freed", |_| disk.content("segment-000000").is_none());
    assert!(harness.spool.stats().messages_copied >= 1);
    for seed in 0..20 {
        let after = disk.crash(seed);
        let (spool, found, _) = open_damaged(&after, config.clone()).unwrap();
        assert!(found.contains_key(&survivor), "seed {seed}; before:\n{}", disk.log());
        close(spool, &after);
    }
    harness.close();
}

/// The segment was never written again, so freeing it was pointless; it stayed until the next
/// start.
#[test]
fn a_segment_whose_sync_failed_goes_when_nothing_in_it_lives() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let kept = harness.accept(100, 1).unwrap();
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    disk.fail(OperationKind::Sync, 0..1, EIO);
    assert!(harness.accept(100, 1).is_err());
    harness.accept(100, 1).unwrap();
    assert!(disk.content("segment-000000").is_some(), "the segment holds live mail");
    harness.settle(kept, &DELIVERED).unwrap();
    harness.wait_until("the segment is not removed", |_| disk.content("segment-000000").is_none());
    harness.promises.check(&harness.recovered()).unwrap();
    let (promises, _) = harness.close();
    for seed in 0..10 {
        let after = disk.crash_harshly(seed);
        let (spool, found) = open(&after, config(64 << 10)).unwrap();
        promises.check(&found).unwrap();
        close(spool, &after);
    }
}

/// One submission of copies must not keep the writer from mail for long.
#[test]
fn copies_are_written_a_mebibyte_at_a_time() {
    const SURVIVOR_BYTES: usize = 600_000;
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(8 << 20)).unwrap();
    let sizes = [SURVIVOR_BYTES; 3].into_iter().chain([1_000_000; 40]);
    let ids: Vec<_> = sizes.map(|size| harness.accept(size, 1).unwrap()).collect();
    let before = harness.spool.stats();
    assert_eq!((before.messages_copied, before.batch_records.count()), (0, 43));
    let outcome = |id: &QueueId| SpoolEntry::Outcome { id: *id, recipients: DELIVERED.to_vec(), bounce: None };
    let ticket = harness.submit(ids[3..].iter().map(outcome).collect());
    harness.wait(ticket).unwrap();
    harness.wait_until("the survivors are not copied", |harness| harness.spool.stats().messages_copied >= 3);
    // Two, and the third one.
    assert_eq!(harness.spool.stats().batch_records.count(), 43 + 1 + 2);
    harness.close();
}

/// Maintenance also looks for work once a second. The space of a dead message must not wait for that.
#[test]
fn the_body_of_a_dead_message_is_removed_at_once() {
    const ROUNDS: u32 = 8;
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let id = harness.accept_spilled(1000, 1).unwrap();
        harness.settle(id, &DELIVERED).unwrap();
        harness.wait_until("its body stays", |_| disk.names().iter().all(|name| !name.starts_with("body-")));
    }
    assert!(start.elapsed() < Duration::from_secs(1) * ROUNDS / 2, "{:?}", start.elapsed());
    harness.close();
}

/// Flips a bit of a message's body in the first segment.
fn spoil_body(disk: &sim::Disk, harness: &SpoolHarness, id: QueueId) {
    let bytes = &harness.promises.message(id).bytes;
    let log = disk.content("segment-000000").expect("the first segment exists");
    let place = log.windows(bytes.len()).position(|window| window == bytes).expect("the body is in it");
    disk.flip_bit("segment-000000", place as u64 * 8 + 1);
}

/// Blocks the writer after a commit.
#[derive(Clone, Default)]
struct CommitGate(Arc<Mutex<()>>);

impl CommitGate {
    fn attach_to(&self, config: Config) -> Config {
        let (gate, next) = (self.0.clone(), config.events.clone());
        let pass = move |event| {
            if matches!(event, SpoolEvent::Committed(_)) {
                drop(gate.lock().expect("the lock is not poisoned"));
            }
            next(event);
        };
        Config { events: Arc::new(pass), ..config }
    }

    /// Closed until the returned guard is dropped.
    fn shut(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.lock().expect("the lock is not poisoned")
    }
}
