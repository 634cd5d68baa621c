//! Lanes of other spools, adopted while a spool runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;

use mail::{QueueId, SpoolId};
use spool::{Disk, LaneId, LiveMessage, OpenError, RecipientState, Spool, SpoolEntry};

use crate::harness::{
    RecordedEvents, SEED, SpoolHarness, close, config, envelope, flags_of, message_entry, open, prefix_len_of,
    read_message, submit,
};
use crate::promises::{PromiseLog, RecoveredMessages, SubmittedChanges, TestMessage};

/// The disk of another spool whose machine has failed, what must be on it, and the ids it has given.
fn orphaned_lane() -> (sim::Disk, PromiseLog, BTreeSet<QueueId>) {
    let disk = sim::Disk::new(SEED + 5);
    let mut harness = SpoolHarness::create_other(&disk, config(32 << 10)).expect("the disk has no faults");
    for size in [700, 5000, 900, 300, 2000, 1200] {
        let id = harness.accept(size, 2).expect("the disk has no faults");
        harness.settle(id, &[(1, RecipientState::Delivered)]).expect("the disk has no faults");
    }
    let done = harness.accept(400, 1).expect("the disk has no faults");
    harness.settle(done, &[(0, RecipientState::Delivered)]).expect("the disk has no faults");
    harness.accept_spilled(1500, 1).expect("the disk has no faults");
    let image = disk.crash(0);
    let (promises, given) = harness.close();
    (image, promises, given)
}

fn adopt(spool: &Spool, disk: &sim::Disk, sink: &mut dyn FnMut(LiveMessage)) -> Result<LaneId, OpenError> {
    spool.adopt(Arc::new(disk.clone()), sink)
}

#[test]
fn the_text_of_a_lane_begins_the_ids_of_its_messages() {
    let id = QueueId::new(SpoolId::new(77), 3, 12);
    assert_eq!(id.to_string(), format!("{}-{}", LaneId::of(id), id.to_string().rsplit_once('-').expect("an id").1));
}

/// Mail that several threads submit until they are stopped.
fn flood(spool: &Spool, stop: &AtomicBool, thread: usize) -> Vec<(QueueId, Vec<u8>)> {
    let mut accepted = Vec::new();
    // Also after the stop, so that mail comes in after the adoption in any case.
    for n in 0.. {
        let stopping = stop.load(Relaxed);
        let (id, bytes) = (spool.new_id(), vec![b'a' + thread as u8; 200 + 37 * (n % 50)]);
        submit(spool, vec![message_entry(id, envelope(1), &bytes)]).expect("an own lane accepts mail");
        if n % 3 == 0 {
            let outcome = SpoolEntry::Outcome { id, recipients: vec![(0, RecipientState::Delivered)], bounce: None };
            submit(spool, vec![outcome]).expect("an own lane accepts outcomes");
        } else {
            accepted.push((id, bytes));
        }
        if stopping {
            return accepted;
        }
    }
    unreachable!("the loop has no end")
}

/// Ends the flood, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_lane_is_adopted_while_mail_comes_in() {
    const THREADS: usize = 4;
    let (orphan, mut promises, given) = orphaned_lane();
    let (own, events) = (sim::Disk::new(SEED), RecordedEvents::default());
    let (spool, _) = open(&own, events.record_from(config(64 << 10))).unwrap();
    let stop = AtomicBool::new(false);
    let (accepted, found, lane) = std::thread::scope(|scope| {
        let (spool, stop) = (&spool, &stop);
        let stop_flood = StopOnDrop(stop);
        let floods: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || flood(spool, stop, thread))).collect();
        while spool.stats().messages_committed < 50 {
            std::thread::yield_now();
        }
        let mut found = RecoveredMessages::new();
        let mut take = |live: LiveMessage| {
            assert!(live.recovered);
            let message = read_message(spool, live.id).expect("it can be read as soon as it is passed on");
            assert!(found.insert(live.id, message).is_none(), "{} was passed twice", live.id);
        };
        let lane = adopt(spool, &orphan, &mut take).unwrap();
        drop(stop_flood);
        let accepted: Vec<_> = floods.into_iter().flat_map(|flood| flood.join().expect("no thread fails")).collect();
        (accepted, found, lane)
    });
    promises.check(&found).unwrap();
    promises.accept_recovered(&found);
    assert!(found.keys().all(|id| LaneId::of(*id) == lane));
    assert!(events.committed().iter().all(|(id, _)| LaneId::of(*id) != lane), "adopted mail was reported as committed");
    let expected: BTreeSet<QueueId> = found.keys().copied().chain(accepted.iter().map(|(id, _)| *id)).collect();
    assert_eq!(spool.ids(), Vec::from_iter(expected));
    assert_eq!(spool.stats().messages_live as usize, found.len() + accepted.len());

    let ids: Vec<QueueId> = found.keys().copied().collect();
    record_outcomes(&spool, &mut promises, &given, &ids);
    assert!((0..5).all(|_| LaneId::of(spool.new_id()) != lane), "a new message would be in a foreign lane");
    close(spool, &own);
    // Their own spool opens the lane again, and this one its own.
    let (other, found) = open(&orphan, config(32 << 10)).unwrap();
    promises.check(&found).unwrap();
    assert!(!found.contains_key(&ids[0]) && !found.contains_key(&ids[1]));
    close(other, &orphan);
    let (spool, found) = open(&own, config(64 << 10)).unwrap();
    let expected: RecoveredMessages = accepted.iter().map(|(id, _)| (*id, found[id].clone())).collect();
    assert_eq!(found, expected);
    assert!(accepted.iter().all(|(id, bytes)| found[id].bytes == *bytes));
    close(spool, &own);
}

#[test]
fn new_mail_comes_into_the_lanes_that_are_named_and_a_flush_waits_for_it() {
    let ((orphan, ..), own) = (orphaned_lane(), sim::Disk::new(SEED));
    let (spool, _) = open(&own, config(64 << 10)).unwrap();
    let own_lane = LaneId::of(spool.new_id());
    let lane = adopt(&spool, &orphan, &mut |_| {}).unwrap();
    spool.accept_in(&[lane]);
    let id = spool.new_id();
    assert_eq!(LaneId::of(id), lane);
    let before = spool.ids().len();
    spool.submit(vec![message_entry(id, envelope(1), b"x")], Box::new(|_| {}));
    let (tell, told) = std::sync::mpsc::channel();
    spool.flush(lane, Box::new(move |result| tell.send(result).expect("the test waits")));
    told.recv().unwrap().unwrap();
    assert_eq!(spool.ids().len(), before + 1, "it was submitted before");
    spool.accept_in(&[LaneId { number: 9, ..lane }]);
    assert_eq!(LaneId::of(spool.new_id()), lane, "there is no such lane");
    spool.accept_in(&[lane, own_lane]);
    assert_ne!(LaneId::of(spool.new_id()), LaneId::of(spool.new_id()));
    close(spool, &own);
}

/// Records outcomes in an adopted lane: a delivery, and a failure with its bounce.
fn record_outcomes(spool: &Spool, promises: &mut PromiseLog, given: &BTreeSet<QueueId>, ids: &[QueueId]) {
    settle(spool, promises, ids[0], RecipientState::Delivered, None);
    let bounce = spool.new_id_in_lane_of(ids[1]);
    assert!(LaneId::of(bounce) == LaneId::of(ids[1]) && !given.contains(&bounce), "{bounce} was issued before");
    settle(spool, promises, ids[1], RecipientState::Failed, Some(bounce));
}

fn settle(spool: &Spool, promises: &mut PromiseLog, id: QueueId, state: RecipientState, bounce: Option<QueueId>) {
    let (mut entries, mut changes) = (Vec::new(), SubmittedChanges::default());
    if let Some(bounce) = bounce {
        let (bytes, envelope) = (vec![b'x'; 2500], envelope(1));
        entries.push(message_entry(bounce, envelope.clone(), &bytes));
        let (flags, prefix_len, states) = (flags_of(&bytes), prefix_len_of(&bytes), vec![RecipientState::NEW]);
        promises.propose(bounce, TestMessage { envelope, states, flags, bytes, prefix_len });
        changes.messages.push(bounce);
    }
    promises.propose_outcome(id, 0, state, bounce);
    changes.outcomes.push((id, 0, state));
    entries.push(SpoolEntry::Outcome { id, recipients: vec![(0, state)], bounce });
    submit(spool, entries).expect("the disk has no faults");
    promises.promise(&changes);
}

#[test]
fn an_adopted_lane_can_be_adopted_again_with_what_was_recorded_in_it() {
    let (orphan, mut promises, mut given) = orphaned_lane();
    for life in 0..3 {
        let own = sim::Disk::new(SEED + life);
        let (spool, _) = open(&own, config(64 << 10)).unwrap();
        let mut found = RecoveredMessages::new();
        let mut take = |live: LiveMessage| {
            found.insert(live.id, read_message(&spool, live.id).expect("it is readable"));
        };
        adopt(&spool, &orphan, &mut take).unwrap();
        promises.check(&found).unwrap();
        promises.accept_recovered(&found);
        let ids: Vec<QueueId> = found.keys().copied().collect();
        record_outcomes(&spool, &mut promises, &given, &ids);
        assert!(given.insert(spool.new_id_in_lane_of(ids[2])), "an id was issued twice");
        spool.create_spill_file(spool.new_id_in_lane_of(ids[2])).expect("it takes large messages");
        let (tell, told) = channel();
        spool.set_aside_damaged(ids[2], "a test", Box::new(move |result| drop(tell.send(result))));
        told.recv().unwrap().unwrap();
        for ordinal in 0..found[&ids[2]].states.len() as u32 {
            promises.propose_outcome(ids[2], ordinal, RecipientState::SetAside, None);
        }
        assert!(!spool.ids().contains(&ids[2]));
        close(spool, &own);
    }
}

/// A log may have a message twice, and outcomes before a copy of their message.
#[test]
fn an_adopted_lane_passes_on_what_a_start_passes_on_in_the_same_order() {
    let disk = sim::Disk::new(SEED + 6);
    let mut harness = SpoolHarness::create_other(&disk, config(512 << 10)).unwrap();
    for round in 0..3 {
        let survivor = harness.accept(300 + round, 3).unwrap();
        harness.settle(survivor, &[(0, RecipientState::Delivered), (2, RecipientState::Failed)]).unwrap();
        harness.accept_spilled(900, 1).unwrap();
    }
    for _ in 0..24 {
        let id = harness.accept(100_000, 1).unwrap();
        harness.settle(id, &[(0, RecipientState::Delivered)]).unwrap();
    }
    harness.wait_until("nothing is copied forward", |harness| harness.spool.stats().messages_copied >= 3);
    harness.close();
    let (mut started, mut adopted) = (Vec::new(), Vec::new());
    let (other, own) = (disk.crash(0), sim::Disk::new(SEED));
    let (other_disk, config_of_start): (Vec<Arc<dyn Disk>>, _) = (vec![Arc::new(other.clone())], config(512 << 10));
    close(spool::open(other_disk, config_of_start, SEED, &mut |live| started.push(live)).unwrap(), &other);
    let (spool, _) = open(&own, config(512 << 10)).unwrap();
    adopt(&spool, &disk.crash(0), &mut |live| adopted.push(live)).unwrap();
    assert_eq!(adopted.len(), 6);
    let shown = |found: &[LiveMessage]| format!("{found:#?}");
    assert_eq!(shown(&adopted), shown(&started));
    close(spool, &own);
}

/// The power of the adopted disk fails at each step of the adoption; nothing of the own lane suffers.
#[test]
fn a_crash_during_adoption_loses_nothing() {
    let (orphan, promises, given) = orphaned_lane();
    for step in 1.. {
        let (after, own) = (orphan.crash(step), sim::Disk::new(SEED));
        let mut harness = SpoolHarness::open(&own, config(64 << 10)).unwrap();
        after.crash_at(step);
        let mut passed = BTreeSet::new();
        let adopted = adopt(&harness.spool, &after, &mut |live| assert!(passed.insert(live.id)));
        assert!(adopted.is_ok() || after.is_off() && passed.is_empty(), "step {step}: {adopted:?}\n{}", after.log());
        harness.accept(500, 1).expect("the own lane works");
        let survived = !after.is_off();
        harness.close();
        for seed in 0..6 {
            let again = if seed % 2 == 0 { after.crash(seed) } else { after.crash_harshly(seed) };
            let (spool, found) = open(&again, config(32 << 10)).unwrap();
            promises.check(&found).unwrap_or_else(|what| panic!("step {step}, seed {seed}: {what}\n{}", after.log()));
            assert!(adopted.is_err() || found.keys().copied().eq(passed.iter().copied()));
            assert!(!given.contains(&spool.new_id()), "an id was reused");
            close(spool, &again);
        }
        if survived {
            return;
        }
    }
}

#[test]
fn what_cannot_be_adopted_is_refused_with_the_reason() {
    let (own, nobody) = (sim::Disk::new(SEED), sim::Disk::new(SEED));
    let mut harness = SpoolHarness::open(&own, config(64 << 10)).unwrap();
    harness.accept(500, 1).unwrap();
    let mut sink = |_: LiveMessage| panic!("a message was passed");
    let mut refused = |disk: &sim::Disk| adopt(&harness.spool, disk, &mut sink).err().unwrap().to_string();
    assert_eq!(refused(&own), "the lane is in use by another process, or already open in this one");
    let copy = own.crash(0);
    let lane = LaneId::of(harness.spool.ids()[0]);
    assert_eq!(refused(&copy), format!("lane {lane} is already open, from another folder"));
    assert_eq!(refused(&nobody), "no segment with a readable header in the folder: there is no lane to adopt");
    assert!(nobody.names().is_empty());
    let (orphan, ..) = orphaned_lane();
    let holder = orphan.clone();
    holder.lock().unwrap();
    assert_eq!(refused(&orphan), "the lane is in use by another process, or already open in this one");
    drop(holder);
    for disk in [&copy, &nobody, &orphan] {
        disk.clone().lock().expect("a refused lane is not locked");
    }
    adopt(&harness.spool, &orphan, &mut |_| {}).unwrap();
    let mut refused = |disk: &sim::Disk| adopt(&harness.spool, disk, &mut sink).err().unwrap().to_string();
    assert_eq!(refused(&orphan), "the lane is in use by another process, or already open in this one");
    assert!(refused(&orphan.crash(0)).ends_with("is already open, from another folder"));
    harness.close();
    // At the next start it is not among the own lanes.
    let both: Vec<Arc<dyn Disk>> = vec![Arc::new(own.clone()), Arc::new(orphan.clone())];
    assert!(matches!(spool::open(both, config(64 << 10), SEED, &mut |_| {}), Err(OpenError::ForeignLane)));
}
