//! Device errors, one at each place where one can happen, and a full device. What was acknowledged
//! stays, what was not can be retried, and everything works again when the errors end.

use std::ops::Range;

use sim::{EIO, ENOSPC, Kind};
use spool::{CommitError, Config, State};

use crate::rig::{Rig, SEED, close, config, open};

/// How many tries a client makes before the test counts it as an outage.
const TRIES: usize = 4;

/// A short workload in which everything is retried until it is accepted, as clients and the queue
/// do.
fn stubborn_life(rig: &mut Rig) -> Result<(), String> {
    for round in 0..5 {
        let id = stubborn(rig, |rig| rig.accept(2000 + round, 2))?;
        stubborn(rig, |rig| rig.settle(id, &[(0, State::Delivered)]))?;
        let large = stubborn(rig, |rig| rig.accept_spilled(1500, 1))?;
        stubborn(rig, |rig| rig.bounce(id, 1, 400))?;
        stubborn(rig, |rig| rig.settle(large, &[(0, State::Delivered)]))?;
    }
    Ok(())
}

fn stubborn<T>(rig: &mut Rig, mut attempt: impl FnMut(&mut Rig) -> Result<T, CommitError>) -> Result<T, String> {
    let mut last = None;
    for _ in 0..TRIES {
        match attempt(rig) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(format!("failed {TRIES} times: {last:?}"))
}

/// Fails the `n`-th operation of `kind`, for every n; then the same for three in a row. Several
/// runs are parallel, because maintenance pauses after a failure.
fn fail_everywhere(kind: Kind, errno: i32) {
    const LIVES: u64 = 16;
    for span in [1, 3] {
        let fails_from = |n| fail_at(kind, n..n + span, errno);
        let mut first = 0;
        while std::thread::scope(|scope| {
            let lives: Vec<_> = (first..first + LIVES).map(|n| scope.spawn(move || fails_from(n))).collect();
            lives.into_iter().all(|life| life.join().expect("the run above broke no promise"))
        }) {
            first += LIVES;
        }
    }
}

/// Runs with planned failures. Returns false if it ended before the first one.
fn fail_at(kind: Kind, ordinals: Range<u64>, errno: i32) -> bool {
    let config = config(32 << 10);
    let disk = sim::Disk::new(SEED + ordinals.start);
    let story = |when: &str| format!("{when}, {kind:?} {ordinals:?} failed with errno {errno}:\n{}", disk.log());
    let mut rig = Rig::open(&disk, config.clone()).expect("no operation fails yet");
    let last = disk.count(kind) + ordinals.start;
    disk.fail(kind, ordinals.clone(), errno);
    stubborn_life(&mut rig).unwrap_or_else(|what| panic!("{what}: {}", story("an outage")));
    rig.book.check(&rig.found()).unwrap_or_else(|what| panic!("{what}: {}", story("while it runs")));
    let (book, _) = rig.close();
    for seed in 0..6 {
        let after = disk.crash_harshly(seed);
        let (spool, found) =
            open(&after, config.clone()).unwrap_or_else(|error| panic!("{error}: {}", story("opening")));
        book.check(&found).unwrap_or_else(|what| panic!("{what}: {}", story(&format!("crash {seed}"))));
        close(spool, &after);
    }
    disk.count(kind) > last
}

#[test]
fn a_failed_sync_acknowledges_nothing_and_loses_nothing() {
    fail_everywhere(Kind::Sync, EIO);
}

#[test]
fn a_failed_write_acknowledges_nothing_and_loses_nothing() {
    fail_everywhere(Kind::Write, EIO);
    fail_everywhere(Kind::Write, ENOSPC);
}

#[test]
fn failed_changes_of_names_lose_nothing() {
    for kind in [Kind::Create, Kind::Remove, Kind::SyncFolder] {
        fail_everywhere(kind, EIO);
    }
}

#[test]
fn after_a_failed_sync_the_segment_is_never_written_again_in_that_use() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(64 << 10)).unwrap();
    let kept = rig.accept(100, 1).unwrap();
    rig.wait_until("no spare segment is created", |rig| rig.spool.stats().segments == 2);
    let broken = last_written(&disk);
    disk.fail(Kind::Sync, 0..1, EIO);
    assert!(matches!(rig.accept(100, 1), Err(CommitError::Failed(_))));
    for _ in 0..3 {
        rig.accept(100, 1).unwrap();
        assert_ne!(last_written(&disk), broken, "\n{}", disk.log());
    }
    rig.settle(kept, &[(0, State::Delivered)]).unwrap();
    rig.close();
}

/// The file of the last batch.
fn last_written(disk: &sim::Disk) -> String {
    let log = disk.log();
    // Headers are written at 0 and 4096; batches come after them.
    let batch = |line: &&str| line.contains("Write") && !line.contains(" at 0,") && !line.contains(" at 4096,");
    log.lines().rfind(batch).and_then(|line| line.split_whitespace().nth(2)).expect("a batch was written").to_owned()
}

#[test]
fn nothing_is_acknowledged_while_a_sync_is_out_or_after_it_failed() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(64 << 10)).unwrap();
    rig.accept(100, 1).unwrap();
    // Maintenance also syncs, until the next segment is ready.
    rig.wait_until("no spare segment is created", |rig| rig.spool.stats().segments == 2);
    let hold = disk.hold(Kind::Sync);
    disk.fail(Kind::Sync, 0..1, EIO);
    let (_, first) = rig.offer(100, 1);
    hold.wait_for(1);
    let (_, second) = rig.offer(100, 1);
    assert!(first.answer_now().is_none() && second.answer_now().is_none());
    drop(hold);
    assert!(rig.wait(first).is_err(), "its sync failed");
    rig.wait(second).expect("the next batch goes to a new segment");
    rig.close();
}

#[test]
fn a_full_disk_refuses_and_accepts_again_when_there_is_room() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(32 << 10)).unwrap();
    let first = rig.accept(1000, 1).unwrap();
    // Maintenance creates the next segment on its own; only then is the disk full.
    rig.wait_until("no spare segment is created", |rig| rig.spool.stats().segments == 2);
    disk.set_bytes_free(0);
    let refused = (0..20).find_map(|_| rig.accept(3000, 1).err());
    assert_eq!(refused, Some(CommitError::Full));
    assert!(rig.accept_spilled(3000, 1).is_err());
    assert_eq!(rig.accept(3000, 1).err(), Some(CommitError::Full));
    disk.set_bytes_free(1 << 20);
    rig.accept(3000, 1).expect("there is free space again");
    rig.settle(first, &[(0, State::Delivered)]).unwrap();
    rig.book.check(&rig.found()).unwrap();
    rig.close();
}

/// A client retries after 452; if every refused try left its body, the disk would stay full.
#[test]
fn a_refused_message_leaves_no_body_behind() {
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config(32 << 10)).unwrap();
    rig.accept(3000, 1).unwrap();
    rig.wait_until("no spare segment is created", |rig| rig.spool.stats().segments == 2);
    disk.set_bytes_free(2000);
    while rig.accept(3000, 1).is_ok() {}
    assert_eq!(rig.accept_spilled(1000, 1).err(), Some(CommitError::Full));
    let bodies = disk.names().iter().filter(|name| name.starts_with("body-")).count();
    assert_eq!(bodies, 0, "{:?}", disk.names());
    rig.close();
}

#[test]
fn short_writes_are_nothing_special() {
    let disk = sim::Disk::new(SEED);
    disk.set_short_writes();
    let mut rig = Rig::open(&disk, config(32 << 10)).unwrap();
    stubborn_life(&mut rig).unwrap();
    rig.accept(9000, 1).unwrap();
    rig.book.check(&rig.found()).unwrap();
    let (book, _) = rig.close();
    for seed in 0..20 {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config(32 << 10)).unwrap();
        book.check(&found).unwrap();
        close(spool, &after);
    }
}

/// A read error while the spool is opened may prevent the start, but must not lose mail.
#[test]
fn a_failed_read_at_start_loses_nothing() {
    let (config, disk, book) = some_mail();
    for n in 0.. {
        let after = disk.crash(0);
        after.fail(Kind::Read, n..n + 1, EIO);
        if let Ok((spool, found, unreadable)) = crate::rig::open_damaged(&after, config.clone()) {
            let reported = unreadable.len();
            close(spool, &after);
            if reported == 0 {
                book.check(&found).unwrap_or_else(|what| panic!("read {n} fails: {what}\n{}", after.log()));
            }
        }
        let reached = after.count(Kind::Read) > n;
        let (spool, found) = open(&after, config.clone()).unwrap_or_else(|error| panic!("read {n}: {error}"));
        book.check(&found).unwrap_or_else(|what| panic!("after read {n} failed: {what}\n{}", after.log()));
        close(spool, &after);
        if !reached {
            return;
        }
    }
}

/// Two sealed segments and an open one, all with live mail.
fn some_mail() -> (Config, sim::Disk, crate::book::Book) {
    let config = config(32 << 10);
    let disk = sim::Disk::new(SEED);
    let mut rig = Rig::open(&disk, config.clone()).expect("the disk has no faults");
    for size in [3000, 5000, 100, 7000, 2000, 300] {
        let id = rig.accept(size, 2).expect("the disk has no faults");
        rig.settle(id, &[(0, State::Delivered)]).expect("the disk has no faults");
    }
    let image = disk.crash(0);
    let (book, _) = rig.close();
    (config, image, book)
}

#[test]
fn the_lock_keeps_a_second_process_out() {
    let disk = sim::Disk::new(SEED);
    let rig = Rig::open(&disk, config(32 << 10)).unwrap();
    assert!(matches!(Rig::open(&disk, config(32 << 10)), Err(spool::OpenError::Locked)));
    rig.close();
    assert!(Rig::open(&disk, config(32 << 10)).is_ok());
}
