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
use std::time::Duration;

use mail::QueueId;
use sim::{EIO, Kind};
use spool::{Config, Durability, Entry, Event, State};

use crate::rig::{Events, Rig, SEED, close, config, open, open_damaged};

const DELIVERED: [(u32, State); 1] = [(0, State::Delivered)];

/// The segment has too much live mail to count as mostly dead. Every later segment has an outcome
/// for the one before, so none could be freed before it, and the log grew forever.
#[test]
fn a_half_alive_segment_does_not_keep_all_that_died_behind_it() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(128 << 10)).unwrap();
    let ids: Vec<_> = (0..28).map(|_| rig.accept(3500, 1).unwrap()).collect();
    for id in ids.iter().step_by(3) {
        rig.settle(*id, &DELIVERED).unwrap();
    }
    let mut before = rig.accept(4000, 1).unwrap();
    for _ in 0..200 {
        let id = rig.accept(4000, 1).unwrap();
        rig.settle(before, &DELIVERED).unwrap();
        before = id;
    }
    // Twenty without copies. With them: two with the live mail, up to seven dead ones, one open,
    // one ready.
    rig.wait_until("dead segments are not freed", |rig| rig.spool.stats().segments <= 11);
    assert!(rig.spool.stats().messages_copied >= 18, "{:?}", rig.spool.stats());
    rig.book.check(&rig.found()).unwrap();
    let (book, _) = rig.close();
    let after = disk.crash_harshly(1);
    let (spool, found) = open(&after, config(128 << 10)).unwrap();
    book.check(&found).unwrap();
    close(spool, &after);
}

/// Maintenance tried to create a segment, failed, paused and tried again, and never freed what was
/// dead in the meantime, although that was the space it needed.
#[test]
fn a_full_disk_frees_what_is_dead_and_takes_mail_again_by_itself() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(32 << 10)).unwrap();
    let old = [rig.accept(6000, 1).unwrap(), rig.accept(6000, 1).unwrap()];
    rig.wait_until("no spare segment is created", |rig| rig.spool.stats().segments == 2);
    disk.set_bytes_free(100);
    let created = disk.count(Kind::Create);
    // This begins the spare segment, and there is no space for another.
    rig.accept(6000, 1).unwrap();
    rig.wait_until("no segment is tried", |_| disk.count(Kind::Create) > created);
    for id in old {
        rig.settle(id, &DELIVERED).unwrap();
    }
    rig.wait_until("no mail is accepted again", |rig| rig.accept(6000, 1).is_ok());
    assert_eq!(rig.spool.stats().segments, 2, "there was no space for a third");
    rig.book.check(&rig.found()).unwrap();
    rig.close();
}

/// A start creates a segment before it starts maintenance, and failed although the log was full of
/// dead mail.
#[test]
fn a_full_disk_on_which_all_is_dead_is_opened_and_takes_mail() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(32 << 10)).unwrap();
    let ids: Vec<_> = (0..12).map(|_| rig.accept(6000, 1).unwrap()).collect();
    // Segments are not freed while their bodies are read.
    let leases: Vec<_> = ids.iter().map(|id| rig.spool.message(*id).unwrap().body).collect();
    for id in ids {
        rig.settle(id, &DELIVERED).unwrap();
    }
    let image = disk.crash(0);
    drop(leases);
    let (book, given) = rig.close();
    image.set_bytes_free(100);
    let mut rig = Rig::reopen(&image, config(32 << 10), book, given).unwrap();
    rig.accept(6000, 1).unwrap();
    rig.close();
}

/// The writer is busy when maintenance finds an unreadable live message. Until the writer had
/// recorded that it left the queue, maintenance found it again and again, and saved and reported it
/// each time.
#[test]
fn a_survivor_that_cannot_be_read_is_set_aside_once_however_busy_the_writer_is() {
    let disk = sim::Disk::new(SEED);
    let events = Events::default();
    let gate = Gate::default();
    let mut rig = Rig::open(&disk, gate.stands_before(events.heard_by(config(256 << 10)))).unwrap();
    let survivor = rig.accept(300, 1).unwrap();
    let doomed: Vec<_> = (0..4).map(|_| rig.accept(30_000, 1).unwrap()).collect();
    let mut lease = None;
    for n in 0..30 {
        let id = rig.accept(30_000, 1).unwrap();
        // One in the second segment.
        lease = lease.or_else(|| (n == 5).then(|| rig.spool.message(id).unwrap().body));
        rig.settle(id, &DELIVERED).unwrap();
    }
    spoil_body(&disk, &rig, survivor);

    let release = gate.shut();
    let last = rig.begin();
    let bytes = rig.bytes(100);
    let message = rig.message(last, bytes, 1);
    let outcome = |id: &QueueId| Entry::Outcome { id: *id, recipients: DELIVERED.to_vec(), bounce: None };
    let ticket = rig.submit(doomed.iter().map(outcome).chain([message]).collect());
    rig.wait(ticket).unwrap();
    // The writer waits at the gate, so the maintenance thread's submission has to wait.
    rig.wait_until("the message is not set aside", |_| !events.set_aside().is_empty());
    let segments = |rig: &Rig| (rig.spool.stats().segments, rig.spool.stats().segments_free);
    let before = segments(&rig);
    drop(lease);
    rig.wait_until("maintenance does nothing", |rig| segments(rig) != before);
    drop(release);
    rig.wait_until("the message stays in the queue", |rig| rig.spool.ids() == [last]);
    rig.wait_until("its segment is not freed", |rig| rig.spool.stats().segments <= 4);
    let kept = disk.names().into_iter().filter(|name| name.starts_with("aside-")).count();
    assert_eq!((kept, rig.spool.stats().set_aside), (1, 1));
    assert_eq!(events.set_aside().len(), 1, "{:?}", events.set_aside());
    rig.close();
}

/// The copy was not synced yet when its source was freed, and that was synced: a power failure lost
/// both.
#[test]
fn relaxed_durability_loses_nothing_that_was_synced_when_it_is_copied_forward() {
    let mut config = Config { spare_segments: 0, ..config(256 << 10) };
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config.clone()).unwrap();
    let survivor = rig.accept(300, 1).unwrap();
    let ids: Vec<_> = (0..48).map(|_| rig.accept(30_000, 1).unwrap()).collect();
    let (book, given) = rig.close();
    config.durability = Durability::Relaxed { sync_every: Duration::from_secs(3600) };
    let mut rig = Rig::reopen(&disk, config.clone(), book, given).unwrap();
    for id in &ids[..10] {
        rig.settle(*id, &DELIVERED).unwrap();
    }
    rig.wait_until("its first segment is not freed", |_| disk.content("segment-000000").is_none());
    assert!(rig.spool.stats().messages_copied >= 1);
    for seed in 0..20 {
        let after = disk.crash(seed);
        let (spool, found, _) = open_damaged(&after, config.clone()).unwrap();
        assert!(found.contains_key(&survivor), "seed {seed}; before:\n{}", disk.log());
        close(spool, &after);
    }
    rig.close();
}

/// The segment was never written again, so freeing it was pointless; it stayed until the next
/// start.
#[test]
fn a_segment_whose_sync_failed_goes_when_nothing_in_it_lives() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(64 << 10)).unwrap();
    let kept = rig.accept(100, 1).unwrap();
    rig.wait_until("no spare segment is created", |rig| rig.spool.stats().segments == 2);
    disk.fail(Kind::Sync, 0..1, EIO);
    assert!(rig.accept(100, 1).is_err());
    rig.accept(100, 1).unwrap();
    assert!(disk.content("segment-000000").is_some(), "the segment holds live mail");
    rig.settle(kept, &DELIVERED).unwrap();
    rig.wait_until("the segment is not removed", |_| disk.content("segment-000000").is_none());
    rig.book.check(&rig.found()).unwrap();
    let (book, _) = rig.close();
    for seed in 0..10 {
        let after = disk.crash_harshly(seed);
        let (spool, found) = open(&after, config(64 << 10)).unwrap();
        book.check(&found).unwrap();
        close(spool, &after);
    }
}

/// Flips a bit of a message's body in the first segment.
fn spoil_body(disk: &sim::Disk, rig: &Rig, id: QueueId) {
    let bytes = &rig.book.letter(id).bytes;
    let log = disk.content("segment-000000").expect("the first segment exists");
    let place = log.windows(bytes.len()).position(|window| window == bytes).expect("the body is in it");
    disk.flip_bit("segment-000000", place as u64 * 8 + 1);
}

/// Blocks the writer after a commit.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<()>>);

impl Gate {
    fn stands_before(&self, config: Config) -> Config {
        let (gate, next) = (self.0.clone(), config.events.clone());
        let pass = move |event| {
            if matches!(event, Event::Committed(_)) {
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
