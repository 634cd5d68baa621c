//! What a stream still needs, batch by batch.

use cluster::lane::owner::{BatchId, StoredRange};
use cluster::lane::retention::{LaneRetention, RetainedEntry, RetentionAction, StateChange};
use mail::{QueueId, SpoolId};
use spool::RecipientState;

fn id(sequence: u64) -> QueueId {
    QueueId::new(SpoolId::new(1), 0, sequence)
}

fn message(sequence: u64) -> RetainedEntry {
    RetainedEntry::Message { id: id(sequence), recipients: 2, states: Vec::new() }
}

fn outcome(sequence: u64, ordinals: &[u32]) -> RetainedEntry {
    let recipients = ordinals.iter().map(|ordinal| (*ordinal, RecipientState::Delivered)).collect();
    RetainedEntry::Outcome { id: id(sequence), recipients }
}

/// Batches of 100 records and 10,000 bytes each.
struct Stream {
    retention: LaneRetention,
    batches: u64,
}

impl Stream {
    fn new(slack_bytes: u64) -> Self {
        Stream::with_limit(slack_bytes, None)
    }

    fn with_limit(slack_bytes: u64, stream_bytes_max: Option<u64>) -> Self {
        let mut retention = LaneRetention::new(slack_bytes, stream_bytes_max);
        retention.handle_epoch(1);
        Stream { retention, batches: 0 }
    }

    fn queue(&mut self, entries: Vec<RetainedEntry>) -> BatchId {
        self.batches += 1;
        self.retention.handle_queued(BatchId(self.batches), entries);
        BatchId(self.batches)
    }

    fn confirm(&mut self, batch: BatchId) {
        let first = batch.0 * 100;
        self.retention.handle_confirmed(batch, StoredRange { first, last: first + 99, bytes: 10_000 });
    }

    fn store(&mut self, entries: Vec<RetainedEntry>) {
        let batch = self.queue(entries);
        self.confirm(batch);
    }

    fn actions(&mut self) -> Vec<RetentionAction> {
        std::iter::from_fn(|| self.retention.poll_action()).collect()
    }
}

#[test]
fn a_stream_is_purged_up_to_its_first_live_message_and_its_newest_epoch_record() {
    let mut stream = Stream::new(u64::MAX);
    (1..4).for_each(|sequence| stream.store(vec![message(sequence)]));
    stream.retention.handle_epoch(1000);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(99)]);
    stream.store(vec![outcome(1, &[0])]);
    assert_eq!(stream.actions(), []);
    stream.store(vec![outcome(1, &[1]), outcome(3, &[0, 1])]);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(199)]);
    stream.store(vec![outcome(2, &[0, 1])]);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(999)]);
    assert_eq!(stream.retention.live_messages(), 0);
}

/// Servers of version 2.9.10 do that when they are killed after a purge.
#[test]
fn what_the_servers_have_lost_is_published_again() {
    let mut stream = Stream::new(u64::MAX);
    (1..4).for_each(|sequence| stream.store(vec![message(sequence)]));
    stream.retention.handle_epoch(150);
    stream.store(vec![outcome(1, &[0, 1])]);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(149)]);
    stream.retention.handle_first_record(150);
    assert_eq!(stream.actions(), [], "nothing is lost");
    stream.retention.handle_first_record(220);
    assert_eq!(stream.actions(), [RetentionAction::RepeatEpoch, RetentionAction::Copy(id(2))]);
    stream.store(vec![message(2)]);
    stream.retention.handle_epoch(600);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(299)]);
}

#[test]
fn an_unreadable_message_does_not_keep_others_that_are_lost_from_being_published_again() {
    let mut stream = Stream::new(0);
    (1..=18).for_each(|sequence| stream.store(vec![message(sequence)]));
    stream.retention.handle_epoch(5000);
    stream.retention.handle_first_record(1800);
    assert_eq!(stream.actions().last(), Some(&RetentionAction::Copy(id(16))));
    stream.retention.handle_copy_failed(id(1));
    assert_eq!(stream.actions(), [RetentionAction::Copy(id(17))]);
    (2..=17).for_each(|sequence| stream.store(vec![message(sequence)]));
    assert_eq!(stream.actions(), [], "a copy of what is not lost gains nothing");
}

/// For lack of file handles, for example: it would have no second copy until the next start.
#[test]
fn a_lost_message_that_could_not_be_read_is_tried_again_with_the_next_check() {
    let mut stream = Stream::new(u64::MAX);
    (1..4).for_each(|sequence| stream.store(vec![message(sequence)]));
    stream.retention.handle_epoch(5000);
    stream.retention.handle_first_record(150);
    assert_eq!(stream.actions().last(), Some(&RetentionAction::Copy(id(1))));
    for _ in 0..2 {
        stream.retention.handle_copy_failed(id(1));
        assert_eq!(stream.actions(), []);
        stream.retention.handle_first_record(150);
        assert_eq!(stream.actions(), [RetentionAction::Copy(id(1))]);
        assert_eq!(stream.actions(), []);
    }
    stream.store(vec![message(1)]);
    stream.retention.handle_first_record(150);
    assert!(!stream.actions().contains(&RetentionAction::Copy(id(1))), "it is copied");
}

#[test]
fn a_message_is_needed_until_the_batch_that_settles_it_is_stored() {
    let mut stream = Stream::new(u64::MAX);
    stream.store(vec![message(1)]);
    stream.store(vec![message(2)]);
    stream.retention.handle_epoch(1000);
    stream.actions();
    let partly = stream.queue(vec![outcome(1, &[0])]);
    let settles = stream.queue(vec![outcome(1, &[1]), message(3)]);
    assert_eq!(stream.retention.states(id(1)), None, "it is not copied any more");
    stream.confirm(partly);
    assert_eq!(stream.actions(), []);
    stream.confirm(settles);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(199)]);
}

#[test]
fn a_batch_of_which_only_a_part_is_stored_is_not_purged() {
    let mut stream = Stream::new(u64::MAX);
    stream.store(vec![message(1)]);
    stream.store(vec![outcome(1, &[0, 1])]);
    let begun = stream.queue(vec![message(2)]);
    // The Epoch record is between its parts.
    stream.retention.handle_epoch(350);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(299)]);
    stream.confirm(begun);
    assert_eq!(stream.actions(), []);
}

#[test]
fn messages_at_the_start_are_copied_when_the_stream_is_mostly_dead() {
    let mut stream = Stream::new(50_000);
    stream.store(vec![message(1)]);
    for sequence in 2..10 {
        stream.store(vec![message(sequence)]);
        stream.store(vec![outcome(sequence, &[0, 1])]);
    }
    stream.retention.handle_epoch(10_000);
    stream.store(vec![outcome(1, &[1])]);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(99), RetentionAction::Copy(id(1))]);
    let states = stream.retention.states(id(1)).unwrap();
    assert_eq!(states, [(1, RecipientState::Delivered)]);
    let copy = stream.queue(vec![RetainedEntry::Message { id: id(1), recipients: 2, states }]);
    assert_eq!(stream.actions(), []);
    stream.confirm(copy);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(copy.0 * 100 - 1)]);
    assert_eq!(stream.retention.live_messages(), 1);
    assert!(stream.retention.stored_bytes() < 30_000);
}

#[test]
fn a_message_that_cannot_be_copied_keeps_its_record() {
    let mut stream = Stream::new(0);
    (1..4).for_each(|sequence| stream.store(vec![message(sequence)]));
    stream.retention.handle_epoch(10_000);
    stream.store(vec![outcome(2, &[0, 1]), outcome(3, &[0, 1])]);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(99), RetentionAction::Copy(id(1))]);
    stream.retention.handle_copy_failed(id(1));
    assert_eq!(stream.actions(), []);
    stream.store(vec![outcome(1, &[0, 1])]);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(9_999)]);
}

/// 64 Renew records would be too late for a stream that grows fast.
#[test]
fn the_epoch_record_is_repeated_when_it_is_all_that_keeps_a_large_stream() {
    let mut stream = Stream::new(50_000);
    for sequence in 1..6 {
        stream.store(vec![message(sequence)]);
        stream.store(vec![outcome(sequence, &[0, 1])]);
    }
    assert_eq!(stream.actions(), [RetentionAction::RepeatEpoch]);
    assert_eq!(stream.actions(), [], "it was asked for");
    stream.retention.handle_epoch(1_100);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(1_099)]);
}

#[test]
fn a_stream_with_a_limit_has_room_for_outcomes_when_it_has_none_for_mail() {
    let mut stream = Stream::with_limit(u64::MAX, Some(400_000));
    assert!(stream.retention.has_room_for(299_000) && !stream.retention.has_room_for(301_000));
    (1..14).for_each(|sequence| stream.store(vec![message(sequence)]));
    assert!(!stream.retention.has_room_for(20_000), "{}", stream.retention.stored_bytes());
    assert_eq!(stream.actions(), [], "all of it is live: copies gain nothing");
    stream.store((2..14).map(|sequence| outcome(sequence, &[0, 1])).collect());
    stream.retention.handle_epoch(2_000);
    assert_eq!(stream.actions(), [RetentionAction::PurgeUpTo(99), RetentionAction::Copy(id(1))]);
}

#[test]
fn states_that_the_stream_lacks_are_found_and_not_those_that_changed_meanwhile() {
    let mut stream = Stream::new(u64::MAX);
    stream.store(vec![message(1), outcome(1, &[1])]);
    let held = RecipientState::Held { attempts: 1 };
    let on_disk = vec![(0, held), (1, RecipientState::Failed)];
    let found = stream.retention.states(id(1)).unwrap();
    let changes = StateChange::between(&found.into(), &on_disk.into());
    assert_eq!(changes, [StateChange { ordinal: 0, from: RecipientState::NEW, to: held }]);
    assert_eq!(stream.retention.unchanged(id(1), changes.clone()), [(0, held)]);
    let waits = RecipientState::Waiting { attempts: 2, until: mail::Timestamp(7) };
    stream.store(vec![RetainedEntry::Outcome { id: id(1), recipients: vec![(0, waits)] }]);
    assert_eq!(stream.retention.unchanged(id(1), changes), []);
}
