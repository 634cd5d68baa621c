//! The message index and the segment table without a disk: what is live, which segment may be
//! freed, and in what order. `tests/simulated` tests them on a disk.

use std::io::{self, IoSlice};

use mail::{Address, BodyFlags, BodyType, ByteSource, Client, Envelope, Notify, Recipient, Timestamp};

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

fn segment(stage: Stage, number: u64) -> Segment {
    Segment {
        stage,
        number,
        salt: 0,
        last_number: 0,
        generation: 0,
        size: SIZE,
        lease: Arc::new(Lease(Arc::new(NoFile))),
        live: 0,
        live_bytes: 0,
        refers: BTreeSet::new(),
        pinned: false,
    }
}

/// Sealed segments with the numbers 11, 12, ... in the slots 1, 2, ...
fn sealed(count: u32) -> Ledger {
    let mut ledger = Ledger::default();
    for slot in 1..=count {
        ledger.segments.insert(slot, segment(Stage::Sealed, 10 + u64::from(slot)));
    }
    ledger
}

fn place(slot: Slot, unit: u64) -> Place {
    Place { slot, offset: unit * RECORD_ALIGN, span: SPAN }
}

fn recipient(address: &Address) -> Recipient {
    Recipient { address: address.clone(), original: None, notify: Notify::UNSET, orcpt: None }
}

fn message(sequence: u64, recipients: usize) -> MessageHead {
    let address: Address = "a@example.org".parse().unwrap();
    let envelope = Envelope {
        recipients: vec![recipient(&address); recipients],
        sender: Some(address),
        accepted_at: Timestamp(0),
        client: Client { address: None, helo: "client".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
    };
    MessageHead { sequence, flags: BodyFlags::default(), spilled: None, states: Vec::new(), envelope }
}

fn delivered(ordinal: u32) -> Vec<(u32, State)> {
    vec![(ordinal, State::Delivered)]
}

#[test]
fn messages_are_counted_while_a_recipient_waits() {
    let mut ledger = sealed(2);
    ledger.insert(&message(5, 2), place(1, 0));
    ledger.insert(&message(6, 1), place(1, 1));
    assert_eq!(ledger.messages(), 2);
    assert!(!ledger.settle(5, &delivered(0), 2), "the other recipient is pending");
    assert_eq!((ledger.messages(), ledger.states(5)), (2, delivered(0)));
    assert!(ledger.settle(5, &delivered(1), 2));
    assert_eq!((ledger.messages(), ledger.sequences()), (1, vec![6]));
    assert_eq!((ledger.place(5), ledger.states(5)), (None, Vec::new()));
    assert!(!ledger.settle(5, &delivered(0), 2), "it died before");
    assert_eq!(ledger.messages(), 1);
}

#[test]
fn a_message_that_is_entered_again_is_the_same_message_elsewhere() {
    let mut ledger = sealed(2);
    ledger.insert(&message(5, 1), place(1, 0));
    ledger.insert(&message(5, 1), place(2, 3));
    assert_eq!((ledger.messages(), ledger.place(5)), (1, Some(place(2, 3))));
    let live = |slot| (ledger.segments[&slot].live, ledger.segments[&slot].live_bytes);
    assert_eq!((live(1), live(2)), ((0, 0), (1, SPAN)));
}

#[test]
fn a_message_of_which_nothing_is_left_to_do_is_not_entered() {
    let mut ledger = sealed(1);
    let mut done = message(5, 2);
    done.states = vec![(0, State::Delivered), (1, State::Failed)];
    ledger.insert(&done, place(1, 0));
    let mut damaged = message(6, 2);
    damaged.states = vec![(0, State::SetAside)];
    ledger.insert(&damaged, place(1, 1));
    assert_eq!((ledger.messages(), ledger.segments[&1].live), (0, 0));
}

#[test]
fn a_message_that_is_set_aside_is_dead_whoever_waits() {
    let mut ledger = sealed(1);
    ledger.insert(&message(5, 3), place(1, 0));
    assert!(ledger.settle(5, &[(0, State::SetAside)], 1));
    assert_eq!((ledger.messages(), ledger.segments[&1].live_bytes), (0, 0));
}

#[test]
fn the_file_of_a_dead_body_is_litter_and_that_of_a_live_one_is_not() {
    let mut ledger = sealed(1);
    for sequence in [5, 6] {
        let head = MessageHead { spilled: Some(SpilledRange { len: 1, digest: 1 }), ..message(sequence, 1) };
        ledger.insert(&head, place(1, sequence));
    }
    ledger.insert(&message(7, 1), place(1, 7));
    for sequence in [6, 7] {
        ledger.settle(sequence, &delivered(0), 1);
    }
    assert_eq!(ledger.litter, [6]);
}

#[test]
fn a_slot_is_above_all_others_and_never_given_twice() {
    assert_eq!(Ledger::default().new_slot(), 0);
    let mut ledger = sealed(3);
    assert_eq!((ledger.new_slot(), ledger.new_slot()), (4, 5));
    ledger.segments.insert(9, segment(Stage::Free, 0));
    assert_eq!(ledger.new_slot(), 10);
    ledger.segments.remove(&9);
    assert_eq!(ledger.new_slot(), 11, "the file of slot 9 may still be on the disk");
}

#[test]
fn a_segment_goes_after_those_that_it_refers_to() {
    let mut ledger = sealed(3);
    ledger.insert(&message(5, 1), place(1, 0));
    ledger.insert(&message(6, 1), place(3, 0));
    ledger.settle(5, &delivered(0), 2);
    // The outcome in segment 2 keeps the message in segment 1 dead, so 1 goes first.
    assert_eq!(ledger.segments[&2].refers, BTreeSet::from([11]));
    assert_eq!(ledger.retirable(), Some(1));
    ledger.segments.insert(1, segment(Stage::Free, 0));
    assert_eq!(ledger.retirable(), Some(2));
    ledger.segments.insert(2, segment(Stage::Free, 0));
    assert_eq!(ledger.retirable(), None, "a message lives in segment 3");
}

#[test]
fn a_segment_that_refers_to_one_in_use_does_not_go() {
    let mut ledger = sealed(2);
    ledger.insert(&message(5, 2), place(1, 0));
    ledger.settle(5, &delivered(0), 2);
    assert_eq!(ledger.retirable(), None);
    ledger.segments.get_mut(&1).unwrap().stage = Stage::Open;
    assert!(ledger.settle(5, &delivered(1), 2));
    assert_eq!(ledger.retirable(), None, "an open segment is not freed, and the other refers to it");
}

#[test]
fn a_segment_stays_while_it_is_pinned_or_leased() {
    let mut ledger = sealed(1);
    assert_eq!(ledger.retirable(), Some(1));
    let lease = ledger.segment(1).lease.clone();
    assert_eq!(ledger.retirable(), None, "one of its bodies is leased");
    drop(lease);
    ledger.segment(1).pinned = true;
    assert_eq!(ledger.retirable(), None);
}

#[test]
fn an_outcome_in_the_segment_of_its_message_refers_to_no_other() {
    let mut ledger = sealed(1);
    ledger.insert(&message(5, 1), place(1, 0));
    ledger.settle(5, &delivered(0), 1);
    assert_eq!((ledger.segments[&1].refers.len(), ledger.retirable()), (0, Some(1)));
}

#[test]
fn a_copy_keeps_the_segment_that_it_left_from_going_last() {
    let mut ledger = sealed(3);
    ledger.insert(&message(5, 1), place(1, 0));
    ledger.relocate(5, place(2, 0));
    assert_eq!(ledger.segments[&2].refers, BTreeSet::from([11]));
    ledger.relocate(7, place(2, 1));
    assert_eq!(ledger.messages(), 1, "a copy does not revive a dead message");
}

#[test]
fn an_outcome_speaks_of_the_copy_in_a_batch_that_failed_too() {
    // Recovery may find that copy, so neither an outcome nor a later copy may be freed before it.
    let mut ledger = sealed(4);
    ledger.segments.get_mut(&2).unwrap().stage = Stage::Broken;
    ledger.insert(&message(5, 2), place(1, 0));
    ledger.haunt(5, 12);
    ledger.relocate(5, place(3, 0));
    assert_eq!(ledger.segments[&3].refers, BTreeSet::from([11, 12]));
    ledger.settle(5, &delivered(0), 4);
    assert_eq!(ledger.segments[&4].refers, BTreeSet::from([12, 13]));
    assert!(ledger.settle(5, &delivered(1), 4));
    ledger.insert(&message(5, 1), place(3, 1));
    ledger.settle(5, &delivered(0), 1);
    assert_eq!(ledger.segments[&1].refers, BTreeSet::from([13]), "a dead message adds no references");
}

#[test]
fn a_segment_of_which_little_lives_is_copied_forward_the_emptiest_first() {
    let mut ledger = sealed(9);
    let fill = |ledger: &mut Ledger, slot: Slot, share: u64| {
        let place = Place { slot, offset: 0, span: SIZE / 100 * share };
        ledger.insert(&message(u64::from(slot), 1), place);
    };
    for (slot, share) in [(1, 25), (2, 5), (3, 26), (4, 1), (5, 10), (6, 1)] {
        fill(&mut ledger, slot, share);
    }
    ledger.segments.get_mut(&4).unwrap().pinned = true;
    // Slot 3 is too full, 4 is pinned, 6 is among the newest, and 7 to 9 are empty.
    assert_eq!(ledger.mostly_dead(), [2, 5, 1]);
    assert!(ledger.is_waning(1) && ledger.is_waning(9) && !ledger.is_waning(3) && !ledger.is_waning(77));
    ledger.segments.get_mut(&2).unwrap().stage = Stage::Open;
    assert_eq!(ledger.mostly_dead(), [5, 1]);
    assert!(!ledger.is_waning(2));
    ledger.segments.get_mut(&5).unwrap().stage = Stage::Broken;
    assert!(!ledger.is_waning(5), "it holds a live message");
    ledger.settle(5, &delivered(0), 5);
    assert!(ledger.is_waning(5));
}

#[test]
fn survivors_are_in_the_way_when_many_dead_segments_wait_behind_them() {
    let mut ledger = sealed(9);
    ledger.insert(&message(20, 1), place(1, 0));
    ledger.insert(&message(40, 1), place(9, 0));
    assert_eq!(ledger.in_the_way(), None, "seven dead ones are too few");
    ledger.segments.insert(10, segment(Stage::Broken, 20));
    assert_eq!(ledger.in_the_way(), Some(1));
    ledger.segment(1).pinned = true;
    assert_eq!(ledger.in_the_way(), Some(9));
    ledger.segment(10).pinned = true;
    assert_eq!(ledger.in_the_way(), None, "pinned segments stay and are not blocked");
}

#[test]
fn survivors_are_those_of_one_segment_in_the_order_of_the_disk() {
    let mut ledger = sealed(2);
    for (sequence, slot, unit) in [(100, 1, 7), (3, 1, 9), (17, 1, 2), (18, 2, 1), (19, 1, 5)] {
        ledger.insert(&message(sequence, 1), place(slot, unit));
    }
    ledger.settle(19, &delivered(0), 1);
    assert_eq!(ledger.survivors(1), [(17, place(1, 2)), (100, place(1, 7)), (3, place(1, 9))]);
    let mut all = ledger.sequences();
    all.sort_unstable();
    assert_eq!(all, [3, 17, 18, 100]);
}

#[test]
fn segments_are_counted_by_their_stage() {
    let mut ledger = sealed(3);
    ledger.segments.insert(4, segment(Stage::Free, 0));
    let counts = [Stage::Sealed, Stage::Free, Stage::Ready].map(|stage| ledger.count(stage));
    assert_eq!(counts, [3, 1, 0]);
}

#[test]
fn an_empty_page_of_the_index_is_given_back() {
    let mut ledger = sealed(1);
    ledger.insert(&message(5, 1), place(1, 0));
    ledger.insert(&message(6, 1), place(1, 1));
    ledger.settle(5, &delivered(0), 1);
    assert_eq!(ledger.pages.len(), 1);
    ledger.settle(6, &delivered(0), 1);
    assert_eq!(ledger.pages.len(), 0);
}
