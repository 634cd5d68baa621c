//! What a reader makes of the records of a stream.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use bytes::Bytes;
use cluster::codec::{BatchEncoder, CopiedEntry};
use cluster::lane::owner::StoredRange;
use cluster::lane::replay::{BatchReader, ReplayError, ReplayEvent};
use cluster::record::{EpochRecord, RecordError, RecordHeader, RecordKind};
use mail::{QueueId, SpoolId};
use spool::RecipientState;

fn record(kind: RecordKind, token: u64, payload: &[u8]) -> Bytes {
    RecordHeader { kind, epoch: token, token, batch: 0, part: 0, last: false }.encode(payload)
}

fn epoch(token: u64) -> Bytes {
    record(
        RecordKind::Epoch,
        token,
        &EpochRecord { node: "mx-1".parse().unwrap(), spool_epoch: 4, lease: Duration::from_secs(3) }.encode(),
    )
}

/// An outcome of this message, in two parts.
fn parts(token: u64, batch: u64, message: u64) -> [Bytes; 2] {
    let id = QueueId::new(SpoolId::new(1), 0, message);
    let entry = CopiedEntry::Outcome { id, recipients: vec![(0, RecipientState::Delivered)], bounce: None };
    let mut encoder = BatchEncoder::new(vec![entry], 20);
    let mut part = |part| {
        let (payload, last) = encoder.next_part().unwrap().unwrap();
        RecordHeader { kind: RecordKind::Part, epoch: token, token, batch, part, last }.encode(&payload)
    };
    [part(0), part(1)]
}

/// The messages with outcomes that count, and where their batches are.
type Counted = (Vec<u64>, Vec<(u64, u64)>);

fn read(records: &[Bytes]) -> Result<Counted, ReplayError> {
    let (mut reader, mut counted, mut open, mut ranges) = (BatchReader::new(1), Vec::new(), Vec::new(), Vec::new());
    for (place, record) in records.iter().enumerate() {
        reader.handle_record(place as u64 + 1, record)?;
        while let Some(event) = reader.poll_event() {
            match event {
                ReplayEvent::Outcome { id, .. } => open.push(id.sequence()),
                ReplayEvent::BatchComplete(StoredRange { first, last, .. }) => {
                    counted.append(&mut open);
                    ranges.push((first, last));
                }
                ReplayEvent::BatchDropped => open.clear(),
                _ => {}
            }
        }
    }
    Ok((counted, ranges))
}

#[test]
fn renewals_may_be_between_the_parts_of_a_batch() {
    let [first, last] = parts(1, 1, 7);
    let records = [epoch(1), first, record(RecordKind::Renew, 1, b""), epoch(1), last];
    assert_eq!(read(&records), Ok((vec![7], vec![(2, 5)])));
}

#[test]
fn a_batch_without_its_last_part_does_not_count() {
    let [begun, _] = parts(1, 1, 7);
    let [first, last] = parts(1, 2, 8);
    assert_eq!(read(&[epoch(1), begun, first, last]), Ok((vec![8], vec![(3, 4)])));
}

#[test]
fn records_of_an_earlier_owner_do_not_count_after_the_epoch_record_of_another() {
    let [begun, late] = parts(1, 1, 7);
    let [late_first, late_last] = parts(1, 2, 8);
    let [first, last] = parts(2, 1, 9);
    let records = [epoch(1), begun, epoch(2), late, late_first, late_last, first, last];
    assert_eq!(read(&records), Ok((vec![9], vec![(7, 8)])));
}

#[test]
fn a_stream_may_begin_after_its_first_records() {
    let [_, rest] = parts(1, 1, 7);
    let [first, last] = parts(1, 2, 8);
    assert_eq!(read(&[rest, first, last]), Ok((vec![8], vec![(2, 3)])));
}

/// Servers of version 2.9.10 do that. The records that were on their way when the owner before lost the lane come first
/// then; one of them may lack its predecessor, in whose place the next owner's record is.
#[test]
fn the_owner_whose_epoch_record_is_lost_counts_and_not_the_one_before() {
    let [late, _] = parts(1, 1, 7);
    let [_, rest] = parts(1, 2, 8);
    let [first, last] = parts(2, 1, 9);
    let renew = record(RecordKind::Renew, 2, b"");
    let records = [late, renew, rest, first, last];
    assert_eq!(read(&records), Ok((vec![9], vec![(4, 5)])));
    let known = [vec![epoch(1)], records.to_vec()].concat();
    assert_eq!(read(&known), Err(ReplayError::Batch { sequence: 4, what: "a part of a batch is missing" }));
}

#[test]
fn missing_and_foreign_records_are_errors() {
    let mut reader = BatchReader::new(5);
    assert_eq!(reader.handle_record(8, &epoch(1)), Err(ReplayError::Gap { first: 5, last: 7 }));
    let foreign = Bytes::from_static(b"hello");
    assert_eq!(read(&[foreign]), Err(ReplayError::Record { sequence: 1, error: RecordError::Foreign }));
    let [first, last] = parts(1, 1, 7);
    let [_, other] = parts(1, 2, 8);
    assert!(matches!(read(&[epoch(1), first, other, last]), Err(ReplayError::Batch { sequence: 3, .. })));
}
