//! The message index and the segment table without a disk: what is live, which segment may be
//! freed, and in what order. `tests/simulated` tests them on a disk.

use std::io::{self, IoSlice};

use mail::{Address, BodyFlags, BodyType, ByteSource, ClientInfo, DsnNotify, Envelope, Recipient, Timestamp};

use super::*;
use crate::spill::SpilledRange;

const SIZE: u64 = 1000 * RECORD_ALIGN;
const SPAN: u64 = RECORD_ALIGN;

/// A file that is never read or written.
struct NoFile;

impl ByteSource for NoFile {
    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn file(&self) -> Option<&std::fs::File> {
        None
    }
}

impl DiskFile for NoFile {
    fn write_at(&self, _parts: &[IoSlice<'_>], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(0)
    }
}

fn segment(stage: SegmentStage, number: u64) -> Segment {
    Segment {
        stage,
        number,
        salt: 0,
        last_number: 0,
        generation: 0,
        size: SIZE,
        lease: Arc::new(FileLease(Arc::new(NoFile))),
        live: 0,
        live_bytes: 0,
        references: BTreeSet::new(),
        pinned: false,
    }
}

/// Sealed segments with the numbers 11, 12, ... in the slots 1, 2, ...
pub(crate) fn sealed(count: u32) -> MessageIndex {
    let mut index = MessageIndex::default();
    for slot in 1..=count {
        index.segments.insert(slot, segment(SegmentStage::Sealed, 10 + u64::from(slot)));
    }
    index
}

fn place(slot: SegmentSlot, unit: u64) -> RecordPlace {
    RecordPlace { slot, offset: unit * RECORD_ALIGN, span: SPAN }
}

fn recipient(address: &Address) -> Recipient {
    Recipient { address: address.clone(), original: None, notify: DsnNotify::UNSET, orcpt: None, is_forwarded: false }
}

fn message(sequence: u64, recipients: usize) -> MessageHead {
    let address: Address = "a@example.org".parse().unwrap();
    let envelope = Envelope {
        recipients: vec![recipient(&address); recipients],
        sender: Some(address),
        accepted_at: Timestamp(0),
        client: ClientInfo { address: None, helo: "client".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    };
    MessageHead { sequence, flags: BodyFlags::default(), prefix_len: 0, spilled: None, states: Vec::new(), envelope }
}

fn delivered(ordinal: u32) -> Vec<(u32, RecipientState)> {
    vec![(ordinal, RecipientState::Delivered)]
}

#[test]
fn messages_are_counted_while_a_recipient_waits() {
    let mut index = sealed(2);
    index.insert(&message(5, 2), place(1, 0));
    index.insert(&message(6, 1), place(1, 1));
    assert_eq!(index.messages(), 2);
    assert!(!index.apply_outcome(5, &delivered(0), 2), "the other recipient is pending");
    assert_eq!((index.messages(), index.states(5)), (2, delivered(0)));
    assert!(index.apply_outcome(5, &delivered(1), 2));
    assert_eq!((index.messages(), index.sequences()), (1, vec![6]));
    assert_eq!((index.place(5), index.states(5)), (None, Vec::new()));
    assert!(!index.apply_outcome(5, &delivered(0), 2), "it died before");
    assert_eq!(index.messages(), 1);
}

#[test]
fn a_message_that_is_entered_again_is_the_same_message_elsewhere() {
    let mut index = sealed(2);
    index.insert(&message(5, 1), place(1, 0));
    index.insert(&message(5, 1), place(2, 3));
    assert_eq!((index.messages(), index.place(5)), (1, Some(place(2, 3))));
    let live = |slot| (index.segments[&slot].live, index.segments[&slot].live_bytes);
    assert_eq!((live(1), live(2)), ((0, 0), (1, SPAN)));
}

#[test]
fn a_finished_message_is_not_indexed() {
    let mut index = sealed(1);
    let mut done = message(5, 2);
    done.states = vec![(0, RecipientState::Delivered), (1, RecipientState::Failed)];
    index.insert(&done, place(1, 0));
    let mut damaged = message(6, 2);
    damaged.states = vec![(0, RecipientState::SetAside)];
    index.insert(&damaged, place(1, 1));
    assert_eq!((index.messages(), index.segments[&1].live), (0, 0));
}

#[test]
fn a_message_that_is_set_aside_is_dead_even_if_recipients_wait() {
    let mut index = sealed(1);
    index.insert(&message(5, 3), place(1, 0));
    assert!(index.apply_outcome(5, &[(0, RecipientState::SetAside)], 1));
    assert_eq!((index.messages(), index.segments[&1].live_bytes), (0, 0));
}

#[test]
fn the_body_file_of_a_dead_message_is_removed_and_that_of_a_live_one_is_kept() {
    let mut index = sealed(1);
    for sequence in [5, 6] {
        let head = MessageHead { spilled: Some(SpilledRange { start: 0, len: 1, digest: 1 }), ..message(sequence, 1) };
        index.insert(&head, place(1, sequence));
    }
    index.insert(&message(7, 1), place(1, 7));
    for sequence in [6, 7] {
        index.apply_outcome(sequence, &delivered(0), 1);
    }
    assert_eq!(index.dead_bodies, [6]);
}

#[test]
fn a_slot_is_above_all_others_and_never_given_twice() {
    assert_eq!(MessageIndex::default().new_slot(), 0);
    let mut index = sealed(3);
    assert_eq!((index.new_slot(), index.new_slot()), (4, 5));
    index.segments.insert(9, segment(SegmentStage::Free, 0));
    assert_eq!(index.new_slot(), 10);
    index.segments.remove(&9);
    assert_eq!(index.new_slot(), 11, "the file of slot 9 may still be on the disk");
}

#[test]
fn a_segment_goes_after_those_that_it_refers_to() {
    let mut index = sealed(3);
    index.insert(&message(5, 1), place(1, 0));
    index.insert(&message(6, 1), place(3, 0));
    index.apply_outcome(5, &delivered(0), 2);
    // The outcome in segment 2 keeps the message in segment 1 dead, so 1 goes first.
    assert_eq!(index.segments[&2].references, BTreeSet::from([11]));
    assert_eq!(index.next_freeable(), Some(1));
    index.segments.insert(1, segment(SegmentStage::Free, 0));
    assert_eq!(index.next_freeable(), Some(2));
    index.segments.insert(2, segment(SegmentStage::Free, 0));
    assert_eq!(index.next_freeable(), None, "a message lives in segment 3");
}

#[test]
fn a_segment_that_refers_to_one_in_use_does_not_go() {
    let mut index = sealed(2);
    index.insert(&message(5, 2), place(1, 0));
    index.apply_outcome(5, &delivered(0), 2);
    assert_eq!(index.next_freeable(), None);
    index.segments.get_mut(&1).unwrap().stage = SegmentStage::Open;
    assert!(index.apply_outcome(5, &delivered(1), 2));
    assert_eq!(index.next_freeable(), None, "an open segment is not freed, and the other refers to it");
}

#[test]
fn a_segment_stays_while_it_is_pinned_or_leased() {
    let mut index = sealed(1);
    assert_eq!(index.next_freeable(), Some(1));
    let lease = index.segment(1).lease.clone();
    assert_eq!(index.next_freeable(), None, "one of its bodies is leased");
    drop(lease);
    index.segment(1).pinned = true;
    assert_eq!(index.next_freeable(), None);
}

#[test]
fn an_outcome_in_the_segment_of_its_message_refers_to_no_other() {
    let mut index = sealed(1);
    index.insert(&message(5, 1), place(1, 0));
    index.apply_outcome(5, &delivered(0), 1);
    assert_eq!((index.segments[&1].references.len(), index.next_freeable()), (0, Some(1)));
}

#[test]
fn a_copy_keeps_the_segment_that_it_left_from_going_last() {
    let mut index = sealed(3);
    index.insert(&message(5, 1), place(1, 0));
    index.relocate(5, place(2, 0));
    assert_eq!(index.segments[&2].references, BTreeSet::from([11]));
    index.relocate(7, place(2, 1));
    assert_eq!(index.messages(), 1, "a copy does not revive a dead message");
}

#[test]
fn an_outcome_speaks_of_the_copy_in_a_batch_that_failed_too() {
    // Recovery may find that copy, so neither an outcome nor a later copy may be freed before it.
    let mut index = sealed(4);
    index.segments.get_mut(&2).unwrap().stage = SegmentStage::Broken;
    index.insert(&message(5, 2), place(1, 0));
    index.note_failed_copy(5, 12);
    index.relocate(5, place(3, 0));
    assert_eq!(index.segments[&3].references, BTreeSet::from([11, 12]));
    index.apply_outcome(5, &delivered(0), 4);
    assert_eq!(index.segments[&4].references, BTreeSet::from([12, 13]));
    assert!(index.apply_outcome(5, &delivered(1), 4));
    index.insert(&message(5, 1), place(3, 1));
    index.apply_outcome(5, &delivered(0), 1);
    assert_eq!(index.segments[&1].references, BTreeSet::from([13]), "a dead message adds no references");
}

#[test]
fn a_segment_of_which_little_lives_is_copied_forward_the_emptiest_first() {
    let mut index = sealed(9);
    let fill = |index: &mut MessageIndex, slot: SegmentSlot, share: u64| {
        let place = RecordPlace { slot, offset: 0, span: SIZE / 100 * share };
        index.insert(&message(u64::from(slot), 1), place);
    };
    for (slot, share) in [(1, 25), (2, 5), (3, 26), (4, 1), (5, 10), (6, 1)] {
        fill(&mut index, slot, share);
    }
    index.segments.get_mut(&4).unwrap().pinned = true;
    // Slot 3 is too full, 4 is pinned, 6 is among the newest, and 7 to 9 are empty.
    assert_eq!(index.mostly_dead(), [2, 5, 1]);
    assert!(
        index.may_need_maintenance(1)
            && index.may_need_maintenance(9)
            && !index.may_need_maintenance(3)
            && !index.may_need_maintenance(77)
    );
    index.segments.get_mut(&2).unwrap().stage = SegmentStage::Open;
    assert_eq!(index.mostly_dead(), [5, 1]);
    assert!(!index.may_need_maintenance(2));
    index.segments.get_mut(&5).unwrap().stage = SegmentStage::Broken;
    assert!(!index.may_need_maintenance(5), "it holds a live message");
    index.apply_outcome(5, &delivered(0), 5);
    assert!(index.may_need_maintenance(5));
}

#[test]
fn survivors_are_in_the_way_when_many_dead_segments_wait_behind_them() {
    let mut index = sealed(9);
    index.insert(&message(20, 1), place(1, 0));
    index.insert(&message(40, 1), place(9, 0));
    assert_eq!(index.oldest_blocking(), None, "seven dead ones are too few");
    index.segments.insert(10, segment(SegmentStage::Broken, 20));
    assert_eq!(index.oldest_blocking(), Some(1));
    index.segment(1).pinned = true;
    assert_eq!(index.oldest_blocking(), Some(9));
    index.segment(10).pinned = true;
    assert_eq!(index.oldest_blocking(), None, "pinned segments stay and are not blocked");
}

#[test]
fn survivors_are_those_of_one_segment_in_the_order_of_the_disk() {
    let mut index = sealed(2);
    for (sequence, slot, unit) in [(100, 1, 7), (3, 1, 9), (17, 1, 2), (18, 2, 1), (19, 1, 5)] {
        index.insert(&message(sequence, 1), place(slot, unit));
    }
    index.apply_outcome(19, &delivered(0), 1);
    assert_eq!(index.live_in_segment(1), [(17, place(1, 2)), (100, place(1, 7)), (3, place(1, 9))]);
    let mut all = index.sequences();
    all.sort_unstable();
    assert_eq!(all, [3, 17, 18, 100]);
}

#[test]
fn segments_are_counted_by_their_stage() {
    let mut index = sealed(3);
    index.segments.insert(4, segment(SegmentStage::Free, 0));
    let counts = [SegmentStage::Sealed, SegmentStage::Free, SegmentStage::Ready].map(|stage| index.count(stage));
    assert_eq!(counts, [3, 1, 0]);
}

#[test]
fn an_empty_page_of_the_index_is_given_back() {
    let mut index = sealed(1);
    index.insert(&message(5, 1), place(1, 0));
    index.insert(&message(6, 1), place(1, 1));
    index.apply_outcome(5, &delivered(0), 1);
    assert_eq!(index.pages.len(), 1);
    index.apply_outcome(6, &delivered(0), 1);
    assert_eq!(index.pages.len(), 0);
}
