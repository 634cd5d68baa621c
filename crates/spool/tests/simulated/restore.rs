//! Lanes that are written anew from a copy of their messages and outcomes, and then adopted.

use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, SpoolId};
use sim::OperationKind;
use spool::{LaneId, LaneRestorer, RecipientState, RestoreError, RestoredMessage, SubmittedBody, survey_lane};

use crate::harness::{SEED, close, config, envelope, flags_of, open, prefix_len_of, read_message};
use crate::promises::{RecoveredMessages, TestMessage};

const EPOCH: u32 = 5;

fn lane() -> LaneId {
    LaneId { spool: SpoolId::new(77), number: 3 }
}

fn restorer(disk: &sim::Disk) -> Result<LaneRestorer, RestoreError> {
    LaneRestorer::create(Arc::new(disk.clone()), lane(), EPOCH, config(32 << 10), SEED)
}

fn id(number: u64) -> QueueId {
    QueueId::new(lane().spool, lane().number, (u64::from(EPOCH) << 40) + number)
}

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + size) as u8).collect()
}

fn message(number: u64, size: usize, states: &[(u32, RecipientState)]) -> RestoredMessage {
    let bytes = bytes(size);
    let (prefix, body) = bytes.split_at(prefix_len_of(&bytes));
    let content = SubmittedBody::Memory { prefix: prefix.to_vec(), body: body.to_vec() };
    RestoredMessage { id: id(number), envelope: envelope(2), states: states.to_vec(), content, flags: flags_of(&bytes) }
}

fn spilled(restorer: &LaneRestorer, number: u64, size: usize) -> RestoredMessage {
    let bytes = bytes(size);
    let (prefix, body) = bytes.split_at(prefix_len_of(&bytes));
    let mut spill = restorer.create_spill_file(id(number)).expect("the disk has no faults");
    spill.append(body).expect("the disk has no faults");
    let content = SubmittedBody::Spilled(spill.finish(prefix).expect("the disk has no faults"));
    RestoredMessage { content, ..message(number, size, &[]) }
}

fn expected(size: usize, states: [RecipientState; 2]) -> TestMessage {
    let bytes = bytes(size);
    let (flags, prefix_len) = (flags_of(&bytes), prefix_len_of(&bytes));
    TestMessage { envelope: envelope(2), states: states.to_vec(), flags, bytes, prefix_len }
}

#[test]
fn a_restored_lane_is_adopted_with_its_messages_states_and_ids() {
    const DONE: RecipientState = RecipientState::Delivered;
    const HELD: RecipientState = RecipientState::Held { attempts: 2 };
    let disk = sim::Disk::new(SEED);
    let restorer = restorer(&disk).expect("the disk has no faults");
    let mut expected_messages = RecoveredMessages::new();
    // Many segments of mail that is finished, which are freed meanwhile.
    for number in 0..300 {
        restorer.append_message(message(number, 1000, &[])).expect("the disk has no faults");
        restorer.append_outcome(id(number), vec![(0, DONE), (1, DONE)]).expect("the disk has no faults");
    }
    for (number, size) in [(400, 700), (401, 5000), (402, 0), (403, 901)] {
        restorer.append_message(message(number, size, &[(1, HELD)])).expect("the disk has no faults");
        expected_messages.insert(id(number), expected(size, [RecipientState::NEW, HELD]));
    }
    restorer.append_message(spilled(&restorer, 404, 50_000)).expect("the disk has no faults");
    restorer.append_outcome(id(404), vec![(0, DONE)]).expect("the disk has no faults");
    expected_messages.insert(id(404), expected(50_000, [DONE, RecipientState::NEW]));
    restorer.finish().expect("the disk has no faults");

    // What is finished was synced.
    let disk = disk.crash(SEED);
    let identity = survey_lane(Arc::new(disk.clone())).expect("the disk has no faults");
    assert_eq!((identity.lane, identity.epoch), (Some(lane()), EPOCH + 1));
    let own = sim::Disk::new(SEED + 1);
    let (spool, _) = open(&own, config(64 << 10)).expect("the disk has no faults");
    let mut found = RecoveredMessages::new();
    let mut take = |live: spool::LiveMessage| {
        found.insert(live.id, read_message(&spool, live.id).expect("it is readable"));
    };
    assert_eq!(spool.adopt(Arc::new(disk.clone()), &mut take).expect("the disk has no faults"), lane());
    assert_eq!(found, expected_messages);
    let bounce = spool.new_id_in_lane_of(id(400));
    assert!(bounce.sequence() >> 40 > u64::from(EPOCH) + 1, "{bounce} may have been given before");
    close(spool, &own);
}

#[test]
fn a_copy_of_a_live_message_only_brings_its_states() {
    let disk = sim::Disk::new(SEED);
    let restorer = restorer(&disk).expect("the disk has no faults");
    restorer.append_message(message(1, 800, &[])).expect("the disk has no faults");
    while !restorer.is_live(id(1)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    restorer.append_message(message(1, 800, &[(0, RecipientState::Failed)])).expect("the disk has no faults");
    restorer.append_message(message(1, 800, &[(1, RecipientState::Failed)])).expect("the disk has no faults");
    restorer.finish().expect("the disk has no faults");
    let own = sim::Disk::new(SEED + 1);
    let (spool, _) = open(&own, config(64 << 10)).expect("the disk has no faults");
    spool.adopt(Arc::new(disk.clone()), &mut |live| panic!("{} is finished", live.id)).expect("it opens");
    close(spool, &own);
}

#[test]
fn a_lane_that_cannot_be_written_or_synced_is_not_restored() {
    for kind in [OperationKind::Write, OperationKind::Sync] {
        let disk = sim::Disk::new(SEED);
        let restorer = restorer(&disk).expect("the disk has no faults");
        disk.fail(kind, 0..u64::MAX, 5);
        let appended = restorer.append_message(message(1, 800, &[]));
        let finished = restorer.finish();
        assert!(appended.and(finished).is_err(), "{kind:?}");
    }
}

#[test]
fn a_folder_with_files_and_a_message_of_another_lane_are_refused() {
    let disk = sim::Disk::new(SEED);
    let restorer = restorer(&disk).expect("the disk has no faults");
    let strange = QueueId::new(SpoolId::new(78), lane().number, 1);
    let refused = restorer.append_message(RestoredMessage { id: strange, ..message(1, 10, &[]) });
    assert!(matches!(refused, Err(RestoreError::OtherLane(id)) if id == strange));
    restorer.finish().expect("the disk has no faults");
    assert!(self::restorer(&disk).is_err());
}
