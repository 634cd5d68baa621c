//! Device errors, one at each place where one can happen, and a full device. What was acknowledged
//! stays, what was not can be retried, and everything works again when the errors end.

use std::ops::Range;

use sim::{EIO, ENOSPC, OperationKind};
use spool::{CommitError, Config, RecipientState};

use crate::harness::{SEED, SpoolHarness, close, config, open};

/// How many tries a client makes before the test counts it as an outage.
const TRIES: usize = 4;

/// A short workload in which everything is retried until it is accepted, as clients and the queue
/// do.
fn run_with_retries(harness: &mut SpoolHarness) -> Result<(), String> {
    for round in 0..5 {
        let id = with_retries(harness, |harness| harness.accept(2000 + round, 2))?;
        with_retries(harness, |harness| harness.settle(id, &[(0, RecipientState::Delivered)]))?;
        let large = with_retries(harness, |harness| harness.accept_spilled(1500, 1))?;
        with_retries(harness, |harness| harness.bounce(id, 1, 400))?;
        with_retries(harness, |harness| harness.settle(large, &[(0, RecipientState::Delivered)]))?;
    }
    Ok(())
}

fn with_retries<T>(
    harness: &mut SpoolHarness,
    mut attempt: impl FnMut(&mut SpoolHarness) -> Result<T, CommitError>,
) -> Result<T, String> {
    let mut last = None;
    for _ in 0..TRIES {
        match attempt(harness) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(format!("failed {TRIES} times: {last:?}"))
}

/// Fails the `n`-th operation of `kind`, for every n; then the same for three in a row. Several
/// runs are parallel, because maintenance pauses after a failure.
fn fail_everywhere(kind: OperationKind, errno: i32) {
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
fn fail_at(kind: OperationKind, ordinals: Range<u64>, errno: i32) -> bool {
    let config = config(32 << 10);
    let disk = sim::Disk::new(SEED + ordinals.start);
    let story = |when: &str| format!("{when}, {kind:?} {ordinals:?} failed with errno {errno}:\n{}", disk.log());
    let mut harness = SpoolHarness::open(&disk, config.clone()).expect("no operation fails yet");
    let last = disk.count(kind) + ordinals.start;
    disk.fail(kind, ordinals.clone(), errno);
    run_with_retries(&mut harness).unwrap_or_else(|what| panic!("{what}: {}", story("an outage")));
    harness.promises.check(&harness.recovered()).unwrap_or_else(|what| panic!("{what}: {}", story("while it runs")));
    let (promises, _) = harness.close();
    for seed in 0..6 {
        let after = disk.crash_harshly(seed);
        let (spool, found) =
            open(&after, config.clone()).unwrap_or_else(|error| panic!("{error}: {}", story("opening")));
        promises.check(&found).unwrap_or_else(|what| panic!("{what}: {}", story(&format!("crash {seed}"))));
        close(spool, &after);
    }
    disk.count(kind) > last
}

#[test]
fn a_failed_sync_acknowledges_nothing_and_loses_nothing() {
    fail_everywhere(OperationKind::Sync, EIO);
}

#[test]
fn a_failed_write_acknowledges_nothing_and_loses_nothing() {
    fail_everywhere(OperationKind::Write, EIO);
    fail_everywhere(OperationKind::Write, ENOSPC);
}

#[test]
fn failed_changes_of_names_lose_nothing() {
    for kind in [OperationKind::Create, OperationKind::Remove, OperationKind::SyncFolder] {
        fail_everywhere(kind, EIO);
    }
}

#[test]
fn after_a_failed_sync_the_segment_is_never_written_again_in_that_use() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    let kept = harness.accept(100, 1).unwrap();
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    let broken = last_written(&disk);
    disk.fail(OperationKind::Sync, 0..1, EIO);
    assert!(matches!(harness.accept(100, 1), Err(CommitError::Failed(_))));
    for _ in 0..3 {
        harness.accept(100, 1).unwrap();
        assert_ne!(last_written(&disk), broken, "\n{}", disk.log());
    }
    harness.settle(kept, &[(0, RecipientState::Delivered)]).unwrap();
    harness.close();
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
    let mut harness = SpoolHarness::open(&disk, config(64 << 10)).unwrap();
    harness.accept(100, 1).unwrap();
    // Maintenance also syncs, until the next segment is ready.
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    let hold = disk.hold(OperationKind::Sync);
    disk.fail(OperationKind::Sync, 0..1, EIO);
    let (_, first) = harness.start_accept(100, 1);
    hold.wait_for(1);
    let (_, second) = harness.start_accept(100, 1);
    assert!(first.try_result().is_none() && second.try_result().is_none());
    drop(hold);
    assert!(harness.wait(first).is_err(), "its sync failed");
    harness.wait(second).expect("the next batch goes to a new segment");
    harness.close();
}

#[test]
fn a_full_disk_refuses_and_accepts_again_when_there_is_space() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    let first = harness.accept(1000, 1).unwrap();
    // Maintenance creates the next segment on its own; only then is the disk full.
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    disk.set_bytes_free(0);
    let refused = (0..20).find_map(|_| harness.accept(3000, 1).err());
    assert_eq!(refused, Some(CommitError::Full));
    assert!(harness.accept_spilled(3000, 1).is_err());
    assert_eq!(harness.accept(3000, 1).err(), Some(CommitError::Full));
    disk.set_bytes_free(1 << 20);
    harness.accept(3000, 1).expect("there is free space again");
    harness.settle(first, &[(0, RecipientState::Delivered)]).unwrap();
    harness.promises.check(&harness.recovered()).unwrap();
    harness.close();
}

/// A client retries after 452; if every refused try left its body, the disk would stay full.
#[test]
fn a_refused_message_leaves_no_body_behind() {
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    harness.accept(3000, 1).unwrap();
    harness.wait_until("no spare segment is created", |harness| harness.spool.stats().segments == 2);
    disk.set_bytes_free(2000);
    while harness.accept(3000, 1).is_ok() {}
    assert_eq!(harness.accept_spilled(1000, 1).err(), Some(CommitError::Full));
    let bodies = disk.names().iter().filter(|name| name.starts_with("body-")).count();
    assert_eq!(bodies, 0, "{:?}", disk.names());
    harness.close();
}

#[test]
fn short_writes_are_nothing_special() {
    let disk = sim::Disk::new(SEED);
    disk.set_short_writes();
    let mut harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    run_with_retries(&mut harness).unwrap();
    harness.accept(9000, 1).unwrap();
    harness.promises.check(&harness.recovered()).unwrap();
    let (promises, _) = harness.close();
    for seed in 0..20 {
        let after = disk.crash(seed);
        let (spool, found) = open(&after, config(32 << 10)).unwrap();
        promises.check(&found).unwrap();
        close(spool, &after);
    }
}

/// A read error while the spool is opened may prevent the start, but must not lose mail.
#[test]
fn a_failed_read_at_start_loses_nothing() {
    let (config, disk, promises) = some_mail();
    for n in 0.. {
        let after = disk.crash(0);
        after.fail(OperationKind::Read, n..n + 1, EIO);
        if let Ok((spool, found, unreadable)) = crate::harness::open_damaged(&after, config.clone()) {
            let reported = unreadable.len();
            close(spool, &after);
            if reported == 0 {
                promises.check(&found).unwrap_or_else(|what| panic!("read {n} fails: {what}\n{}", after.log()));
            }
        }
        let reached = after.count(OperationKind::Read) > n;
        let (spool, found) = open(&after, config.clone()).unwrap_or_else(|error| panic!("read {n}: {error}"));
        promises.check(&found).unwrap_or_else(|what| panic!("after read {n} failed: {what}\n{}", after.log()));
        close(spool, &after);
        if !reached {
            return;
        }
    }
}

/// Two sealed segments and an open one, all with live mail.
fn some_mail() -> (Config, sim::Disk, crate::promises::PromiseLog) {
    let config = config(32 << 10);
    let disk = sim::Disk::new(SEED);
    let mut harness = SpoolHarness::open(&disk, config.clone()).expect("the disk has no faults");
    for size in [3000, 5000, 100, 7000, 2000, 300] {
        let id = harness.accept(size, 2).expect("the disk has no faults");
        harness.settle(id, &[(0, RecipientState::Delivered)]).expect("the disk has no faults");
    }
    let image = disk.crash(0);
    let (promises, _) = harness.close();
    (config, image, promises)
}

#[test]
fn the_lock_keeps_a_second_process_out() {
    let disk = sim::Disk::new(SEED);
    let harness = SpoolHarness::open(&disk, config(32 << 10)).unwrap();
    assert!(matches!(SpoolHarness::open(&disk, config(32 << 10)), Err(spool::OpenError::Locked)));
    harness.close();
    assert!(SpoolHarness::open(&disk, config(32 << 10)).is_ok());
}
