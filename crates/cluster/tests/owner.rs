//! The owner of a lane against a stream in memory, one answer at a time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use bytes::Bytes;
use cluster::lane::owner::{BatchId, Claim, LaneOwner, OwnerAction, PublishId, StoredRange};
use cluster::lane::{BootTime, COPYING_LEASE, LaneTimes, PUBLISHES_IN_FLIGHT_MAX, PublishFailure, ReadFailure, Slot};
use cluster::record::{EpochRecord, RecordHeader, RecordKind};

const IN_FLIGHT_BYTES_MAX: u64 = 10_000;

struct Sent {
    id: PublishId,
    expected_last: u64,
    record: Bytes,
}

/// A stream, and an owner of it.
struct Lane {
    owner: LaneOwner,
    now: BootTime,
    stored: Vec<Bytes>,
}

fn claim(token: u64, last_sequence: u64) -> Claim {
    Claim {
        epoch: token,
        token,
        node: "mx-1".parse().unwrap(),
        spool_epoch: 1,
        last_sequence,
        announced_lease: LaneTimes::default().lease,
    }
}

/// A record of another owner.
fn foreign(kind: RecordKind) -> Bytes {
    let header = RecordHeader { kind, epoch: 9, token: 999, batch: 0, part: 0, last: false };
    let epoch = EpochRecord { node: "mx-2".parse().unwrap(), spool_epoch: 2, lease: Duration::from_secs(3) };
    header.encode(&if kind == RecordKind::Epoch { epoch.encode() } else { Vec::new() })
}

fn kind(record: &[u8]) -> RecordKind {
    RecordHeader::read(record).unwrap().kind
}

impl Lane {
    fn claiming() -> Self {
        let now = BootTime(Duration::from_secs(100));
        let owner = LaneOwner::claim(LaneTimes::default(), IN_FLIGHT_BYTES_MAX, claim(1, 0), now);
        Lane { owner, now, stored: Vec::new() }
    }

    fn owned() -> Self {
        let mut lane = Lane::claiming();
        let actions = lane.serve();
        assert_eq!(actions, [OwnerAction::Claimed { epoch: 1, base: 1 }]);
        lane
    }

    fn wait(&mut self, ms: u64) {
        self.now = self.now.after(Duration::from_millis(ms));
        self.owner.handle_timeout(self.now);
    }

    /// All actions until there is none; publishes apart.
    fn poll(&mut self) -> (Vec<Sent>, Vec<OwnerAction>) {
        let (mut sent, mut others) = (Vec::new(), Vec::new());
        while let Some(action) = self.owner.poll_action(self.now) {
            match action {
                OwnerAction::Publish { id, expected_last, record, .. } => sent.push(Sent { id, expected_last, record }),
                other => others.push(other),
            }
        }
        (sent, others)
    }

    fn sent(&mut self) -> Vec<Sent> {
        let (sent, others) = self.poll();
        assert_eq!(others, []);
        sent
    }

    fn others(&mut self) -> Vec<OwnerAction> {
        let (sent, others) = self.poll();
        assert!(sent.is_empty(), "{} records sent", sent.len());
        others
    }

    /// Stores a record if its condition holds.
    fn store(&mut self, sent: &Sent) -> Result<u64, PublishFailure> {
        if sent.expected_last != self.stored.len() as u64 {
            return Err(PublishFailure::WrongLastSequence);
        }
        self.stored.push(sent.record.clone());
        Ok(self.stored.len() as u64)
    }

    /// Stores what is sent and answers it, until nothing is sent. Returns the other actions.
    fn serve(&mut self) -> Vec<OwnerAction> {
        let mut actions = Vec::new();
        loop {
            let (sent, others) = self.poll();
            actions.extend(others);
            if sent.is_empty() {
                return actions;
            }
            for sent in sent {
                let sequence = self.store(&sent).unwrap();
                self.owner.handle_published(sent.id, sequence, self.now);
            }
        }
    }

    /// Answers a reading from what is stored.
    fn answer_read(&mut self, action: &OwnerAction) {
        let OwnerAction::Read { sequence } = *action else { panic!("{action:?}") };
        let absent = Slot::Absent { last_sequence: self.stored.len() as u64 };
        let slot = self.stored.get(sequence as usize - 1).map_or(absent, |record| Slot::Stored(record.clone()));
        self.owner.handle_slot(sequence, Ok(slot), self.now);
    }

    fn batch(&mut self, parts: &[&[u8]]) -> BatchId {
        let batch = self.owner.start_batch(self.now);
        for (place, part) in parts.iter().enumerate() {
            self.owner.handle_part(batch, *part, place + 1 == parts.len());
        }
        batch
    }
}

#[test]
fn a_lane_is_claimed_when_no_late_record_of_an_earlier_owner_can_be_stored() {
    let mut lane = Lane::claiming();
    let batch = lane.batch(&[b"early"]);
    for number in 0..PUBLISHES_IN_FLIGHT_MAX {
        let sent = lane.sent();
        assert_eq!(sent.len(), 1, "one at a time");
        let expected = if number == 0 { RecordKind::Epoch } else { RecordKind::Renew };
        assert_eq!(kind(&sent[0].record), expected);
        assert!(!lane.owner.may_deliver(lane.now));
        let sequence = lane.store(&sent[0]).unwrap();
        lane.owner.handle_published(sent[0].id, sequence, lane.now);
    }
    assert!(lane.owner.may_deliver(lane.now));
    let actions = lane.serve();
    assert_eq!(actions[0], OwnerAction::Claimed { epoch: 1, base: 1 });
    assert!(matches!(actions[1], OwnerAction::Confirmed { batch: confirmed, .. } if confirmed == batch));
}

#[test]
fn a_late_record_of_an_earlier_owner_is_skipped_while_the_lane_settles() {
    let mut lane = Lane::claiming();
    let epoch = lane.sent().remove(0);
    lane.store(&epoch).unwrap();
    lane.owner.handle_published(epoch.id, 1, lane.now);
    let beaten = lane.sent().remove(0);
    lane.stored.push(foreign(RecordKind::Part));
    lane.owner.handle_publish_failed(beaten.id, PublishFailure::WrongLastSequence, lane.now);
    let read = lane.others().remove(0);
    lane.answer_read(&read);
    let again = lane.sent().remove(0);
    assert_eq!((again.expected_last, &again.record), (2, &beaten.record));
    lane.store(&again).unwrap();
    lane.owner.handle_published(again.id, 3, lane.now);
    assert_eq!(lane.serve(), [OwnerAction::Claimed { epoch: 1, base: 1 }]);
    assert_eq!(lane.stored.len() as u64, PUBLISHES_IN_FLIGHT_MAX);
}

#[test]
fn a_claim_that_comes_too_late_is_fenced() {
    let mut lane = Lane::claiming();
    let epoch = lane.sent().remove(0);
    lane.stored.push(foreign(RecordKind::Renew));
    lane.owner.handle_publish_failed(epoch.id, PublishFailure::WrongLastSequence, lane.now);
    let read = lane.others().remove(0);
    lane.answer_read(&read);
    assert_eq!(lane.others(), [OwnerAction::Fenced { by: None }]);
}

#[test]
fn records_and_bytes_in_flight_are_limited() {
    let mut lane = Lane::owned();
    let parts: Vec<&[u8]> = vec![b"x"; 100];
    lane.batch(&parts);
    assert_eq!(lane.sent().len() as u64, PUBLISHES_IN_FLIGHT_MAX);

    let mut lane = Lane::owned();
    let large = vec![0; IN_FLIGHT_BYTES_MAX as usize / 2];
    lane.batch(&[&large, &large, &large]);
    assert_eq!(lane.sent().len(), 1);
}

/// An adopter's Epoch record takes the place of the first of two records in flight. The second one
/// names the sequence of that Epoch record, so it is stored.
#[test]
fn a_record_behind_one_that_was_beaten_is_not_confirmed_though_it_is_stored() {
    let mut lane = Lane::owned();
    let batches = [lane.batch(&[b"first"]), lane.batch(&[b"second"])];
    let sent = lane.sent();
    lane.stored.push(foreign(RecordKind::Epoch));
    assert_eq!(lane.store(&sent[0]), Err(PublishFailure::WrongLastSequence));
    let sequence = lane.store(&sent[1]).unwrap();
    lane.owner.handle_published(sent[1].id, sequence, lane.now);
    assert_eq!(lane.others(), []);
    lane.owner.handle_publish_failed(sent[0].id, PublishFailure::WrongLastSequence, lane.now);
    let read = lane.others().remove(0);
    lane.answer_read(&read);
    let actions = lane.others();
    for (action, expected) in actions.iter().zip(batches) {
        assert!(matches!(action, OwnerAction::Failed { batch, .. } if *batch == expected), "{action:?}");
    }
    assert_eq!(actions[2..], [OwnerAction::Fenced { by: Some("mx-2".parse().unwrap()) }]);
    assert!(!lane.owner.may_deliver(lane.now));
}

#[test]
fn what_was_stored_without_an_answer_is_found_and_the_rest_is_sent_again() {
    let mut lane = Lane::owned();
    let batch = lane.batch(&[b"1", b"2", b"3"]);
    let sent = lane.sent();
    let first = lane.store(&sent[0]).unwrap();
    lane.store(&sent[1]).unwrap();
    lane.wait(2000);
    for _ in 0..3 {
        let read = lane.others().remove(0);
        lane.answer_read(&read);
    }
    let again = lane.sent();
    // A Renew record has become due. It must not take the place of a record that was sent before.
    assert_eq!(again[0].record, sent[2].record);
    lane.owner.handle_published(sent[2].id, first + 2, lane.now);
    assert_eq!(lane.others(), [], "the answer to a try that was given up");
    lane.store(&again[0]).unwrap();
    lane.owner.handle_published(again[0].id, first + 2, lane.now);
    let bytes = sent.iter().map(|sent| sent.record.len() as u64).sum();
    let range = StoredRange { first, last: first + 2, bytes };
    assert_eq!(lane.others(), [OwnerAction::Confirmed { batch, range }]);
}

#[test]
fn the_lease_lasts_from_when_the_last_confirmed_record_was_sent() {
    let mut lane = Lane::owned();
    lane.wait(1000);
    let renew = lane.sent().remove(0);
    assert_eq!(kind(&renew.record), RecordKind::Renew);
    let sent_at = lane.now;
    lane.wait(500);
    let sequence = lane.store(&renew).unwrap();
    lane.owner.handle_published(renew.id, sequence, lane.now);
    assert_eq!(lane.owner.lease_until(), Some(sent_at.after(Duration::from_secs(3))));
    lane.wait(2499);
    assert!(lane.owner.may_deliver(lane.now));
    lane.wait(1);
    assert!(!lane.owner.may_deliver(lane.now));
}

#[test]
fn a_batch_that_waits_too_long_fails_and_is_stored_later() {
    let mut lane = Lane::owned();
    let batch = lane.batch(&[b"1"]);
    let sent = lane.sent();
    let mut actions = Vec::new();
    while actions.is_empty() {
        let wait = lane.owner.poll_timeout().unwrap().since(lane.now).max(Duration::from_millis(1));
        lane.wait(wait.as_millis() as u64);
        let (_, others) = lane.poll();
        for other in others {
            match other {
                OwnerAction::Read { sequence } => {
                    lane.owner.handle_slot(sequence, Err(ReadFailure::Unavailable), lane.now);
                }
                other => actions.push((lane.now.since(BootTime(Duration::from_secs(100))), other)),
            }
        }
    }
    assert_eq!(actions[0].0, Duration::from_secs(10));
    assert!(matches!(&actions[0].1, OwnerAction::Failed { batch: failed, .. } if *failed == batch));
    lane.store(&sent[0]).unwrap();
    lane.wait(2000);
    // A Renew record was sent behind it, and is not stored.
    for _ in 0..2 {
        let read = lane.others().remove(0);
        lane.answer_read(&read);
    }
    let actions = lane.serve();
    assert!(matches!(actions[..], [OwnerAction::Confirmed { batch: stored, .. }] if stored == batch), "{actions:?}");
}

/// A node was suspended before it read that a message is stored. Another one took the lane over, the servers lost
/// the record around a purge, and that node failed before it had published the message again. The next owner did not
/// find it. Then the first node woke up, and gave its client a 250.
#[test]
fn a_batch_whose_answer_is_read_when_others_may_have_the_lane_does_not_count() {
    let mut lane = Lane::owned();
    let batch = lane.batch(&[b"1"]);
    let part = lane.sent().remove(0);
    let sequence = lane.store(&part).unwrap();
    lane.stored.push(foreign(RecordKind::Epoch));
    lane.now = lane.now.after(Duration::from_secs(30));
    lane.owner.handle_published(part.id, sequence, lane.now);
    let renew = lane.sent().remove(0);
    assert_eq!(kind(&renew.record), RecordKind::Renew);
    lane.owner.handle_publish_failed(renew.id, PublishFailure::WrongLastSequence, lane.now);
    let read = lane.others().remove(0);
    lane.answer_read(&read);
    let actions = lane.others();
    assert!(matches!(&actions[0], OwnerAction::Failed { batch: failed, .. } if *failed == batch), "{actions:?}");
    assert_eq!(actions[1..], [OwnerAction::Fenced { by: Some("mx-2".parse().unwrap()) }]);
}

#[test]
fn a_batch_whose_answer_is_read_late_counts_when_a_further_record_is_stored_also_before_a_release() {
    for is_releasing in [false, true] {
        let mut lane = Lane::owned();
        let batch = lane.batch(&[b"1"]);
        let part = lane.sent().remove(0);
        let sequence = lane.store(&part).unwrap();
        if is_releasing {
            lane.owner.release();
        }
        lane.now = lane.now.after(Duration::from_secs(3));
        lane.owner.handle_published(part.id, sequence, lane.now);
        let range = StoredRange { first: sequence, last: sequence, bytes: part.record.len() as u64 };
        let mut expected = vec![OwnerAction::Confirmed { batch, range }];
        expected.extend(is_releasing.then_some(OwnerAction::Released));
        assert_eq!(lane.serve(), expected);
    }
}

/// Its client gets an answer, though no further record is stored.
#[test]
fn a_stored_batch_that_waits_too_long_for_the_lease_fails() {
    let mut lane = Lane::owned();
    let batch = lane.batch(&[b"1"]);
    let part = lane.sent().remove(0);
    let sequence = lane.store(&part).unwrap();
    lane.now = lane.now.after(Duration::from_secs(3));
    lane.owner.handle_published(part.id, sequence, lane.now);
    lane.sent();
    lane.wait(7_000);
    let (_, actions) = lane.poll();
    let has_failed =
        |action: &OwnerAction| matches!(action, OwnerAction::Failed { batch: failed, .. } if *failed == batch);
    assert!(actions.iter().any(has_failed), "{actions:?}");
}

#[test]
fn a_stream_that_is_gone_is_lost_after_a_while() {
    let mut lane = Lane::owned();
    lane.batch(&[b"1"]);
    lane.sent();
    let begin = lane.now;
    lane.wait(2000);
    loop {
        let action = lane.others().into_iter().next_back();
        match action {
            Some(OwnerAction::Read { sequence }) => {
                lane.owner.handle_slot(sequence, Err(ReadFailure::NoStream), lane.now);
            }
            Some(OwnerAction::Lost { .. }) => break,
            _ => {}
        }
        lane.wait(250);
    }
    assert!((12_000..=12_250).contains(&lane.now.since(begin).as_millis()));
}

#[test]
fn a_lane_is_released_after_its_batches() {
    let mut lane = Lane::owned();
    let batch = lane.owner.start_batch(lane.now);
    lane.owner.release();
    lane.owner.handle_part(batch, &b"1"[..], false);
    assert_eq!(lane.serve(), []);
    lane.owner.handle_part(batch, &b"2"[..], true);
    assert_eq!(lane.sent().len(), 1);
    let mut lane = Lane::owned();
    lane.batch(&[b"1"]);
    lane.owner.release();
    let actions = lane.serve();
    assert_eq!(actions.last(), Some(&OwnerAction::Released));
    assert_eq!(kind(lane.stored.last().unwrap()), RecordKind::Release);
    assert_eq!(lane.owner.poll_timeout(), None);
}

/// Otherwise others would take the lane over before all of it is copied, or wait for too long after that.
#[test]
fn another_lease_is_announced_behind_all_that_is_queued_and_nothing_takes_it_back() {
    let now = BootTime(Duration::from_secs(100));
    let long = Claim { announced_lease: COPYING_LEASE, ..claim(1, 0) };
    let owner = LaneOwner::claim(LaneTimes::default(), IN_FLIGHT_BYTES_MAX, long, now);
    let mut lane = Lane { owner, now, stored: Vec::new() };
    lane.serve();
    assert!(lane.owner.announces_longer_lease());
    assert!(
        lane.owner.lease_until().unwrap() <= now.after(LaneTimes::default().lease),
        "its own lease is the usual one"
    );
    // Renew and Epoch records are due all the time, and those in flight are not stored yet.
    lane.batch(&[b"1", b"2"]);
    lane.owner.announce_lease(LaneTimes::default().lease);
    let first = lane.sent();
    lane.owner.repeat_epoch();
    lane.wait(1_100);
    assert_eq!(lane.sent().len(), 0);
    for sent in first {
        let sequence = lane.store(&sent).unwrap();
        lane.owner.handle_published(sent.id, sequence, lane.now);
    }
    let actions = lane.serve();
    assert!(matches!(actions[0], OwnerAction::Confirmed { .. }), "{actions:?}");
    assert!(matches!(actions[1], OwnerAction::EpochRepeated { is_announcement: true, .. }), "{actions:?}");
    assert!(!lane.owner.announces_longer_lease());
    let leases = lane.stored.iter().filter_map(|record| EpochRecord::read_record(record).ok()).map(|(_, it)| it.lease);
    assert_eq!(leases.skip(1).collect::<Vec<_>>(), [LaneTimes::default().lease; 2]);
}

#[test]
fn the_epoch_record_is_repeated_about_once_a_minute() {
    let mut lane = Lane::owned();
    let mut repeated = Vec::new();
    for _ in 0..130 {
        lane.wait(1000);
        repeated.extend(lane.serve());
    }
    assert_eq!(repeated.len(), 2);
    assert!(matches!(repeated[0], OwnerAction::EpochRepeated { sequence: 96, .. }), "{repeated:?}");
}
