//! Compares each copy with the acknowledged messages.
//!
//! An acknowledged message has a slot for each of its recipients. A copy takes the slot of its
//! place:
//!
//! | the copy's place                     | its slot                    | a copy there already |
//! |--------------------------------------|-----------------------------|----------------------|
//! | a recipient of the message           | that recipient's            | doubled              |
//! | a mailbox of unknown owner           | its own, else the next free | doubled              |
//! | a mailbox named after a recipient    | as above, if the recipient  | doubled              |
//! |                                      | is one of the message       |                      |
//! | any other, or an unknown message     | none: it is unacknowledged  | doubled              |
//!
//! A slot that stays empty is a loss, so a lost and a doubled copy in different places never cancel
//! out. A damaged copy takes its slot like a sound one. Memory: 8 bytes a message and 8 a recipient
//! besides the ledger, about 30 for each unacknowledged copy, and about 20 for each address with
//! mailboxes.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::comparison::{Comparison, CopyExample};
use crate::{AcknowledgedMessages, RunId, StampCheckResult};

/// Examples of each kind in the report.
const EXAMPLES_MAX: usize = 20;
/// Recipients that one example names.
const NAMES_MAX: usize = 5;

/// What copies are stored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceKind {
    /// By recipient, as sent.
    Recipients,
    /// By mailbox, whose owner may be unknown.
    Mailboxes,
}

/// Where a copy was found, as a digest. The lowest bit is always 0; the value is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CopyPlace(u64);

/// A copy of a message with a stamp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundCopy {
    pub(crate) run: RunId,
    pub(crate) sequence: u64,
    pub(crate) sound: bool,
    pub(crate) place: CopyPlace,
}

/// Compares copies with a ledger; without one, each copy is expected once.
#[derive(Debug)]
pub(crate) struct Comparer<'a> {
    expected: ExpectedCopies<'a>,
    /// For each message the index of its first slot, followed by the total.
    first_slots: Vec<usize>,
    slots: Vec<CopySlot>,
    filled: usize,
    unacknowledged: HashSet<(RunId, u64, CopyPlace)>,
    comparison: Comparison,
}

/// The expected copies and their places.
#[derive(Clone, Debug)]
struct ExpectedCopies<'a> {
    acknowledged: &'a AcknowledgedMessages,
    place_kind: PlaceKind,
    /// The recipients of all messages; only used with mailboxes.
    recipients: HashSet<CopyPlace>,
}

/// A place; the lowest bit is set when a copy was found there. 0 is a mailbox that is not known
/// yet.
#[derive(Clone, Copy, Debug)]
struct CopySlot(u64);

impl CopyPlace {
    /// The place of a recipient; case is ignored.
    pub(crate) fn recipient(address: &str) -> CopyPlace {
        let mut hasher = DefaultHasher::new();
        address.bytes().for_each(|byte| hasher.write_u8(byte.to_ascii_lowercase()));
        CopyPlace::of(hasher)
    }

    /// The place of a mailbox with an unknown owner.
    fn mailbox(folder: &Path) -> CopyPlace {
        let mut hasher = DefaultHasher::new();
        hasher.write(folder.as_os_str().as_bytes());
        CopyPlace::of(hasher)
    }

    fn of(hasher: DefaultHasher) -> CopyPlace {
        CopyPlace((hasher.finish() | 2) & !1)
    }
}

impl FoundCopy {
    /// An examined copy at a place.
    pub(crate) fn new(seen: StampCheckResult, place: CopyPlace) -> FoundCopy {
        FoundCopy { run: seen.stamp.run, sequence: seen.stamp.sequence, sound: seen.sound, place }
    }
}

impl CopySlot {
    const FREE: CopySlot = CopySlot(0);

    fn of(place: CopyPlace) -> CopySlot {
        CopySlot(place.0)
    }

    fn is_of(self, place: CopyPlace) -> bool {
        self.0 & !1 == place.0
    }

    fn is_free(self) -> bool {
        self.0 == 0
    }

    fn is_filled(self) -> bool {
        self.0 & 1 == 1
    }

    fn fill(&mut self, place: CopyPlace) {
        self.0 = place.0 | 1;
    }
}

impl<'a> Comparer<'a> {
    /// Starts without copies.
    pub(crate) fn new(acknowledged: &'a AcknowledgedMessages, places: PlaceKind) -> Comparer<'a> {
        let messages = acknowledged.len();
        let mut slots_at = Vec::with_capacity(messages + 1);
        let mut slots = Vec::with_capacity(messages);
        for number in 0..messages {
            slots_at.push(slots.len());
            push_slots(acknowledged.recipients(number), &mut slots);
        }
        slots_at.push(slots.len());
        let mut recipients = HashSet::new();
        if places == PlaceKind::Mailboxes {
            recipients.extend(slots.iter().map(|slot| CopyPlace(slot.0)));
            slots.fill(CopySlot::FREE);
        }
        let held = Comparison { messages: messages as u64, recipients: slots.len() as u64, ..Comparison::default() };
        let expected = ExpectedCopies { acknowledged, place_kind: places, recipients };
        Comparer { expected, first_slots: slots_at, slots, filled: 0, unacknowledged: HashSet::new(), comparison: held }
    }

    /// The place of a mailbox: that of the recipient with one of these addresses, else its own.
    pub(crate) fn place_of_mailbox(&self, mailbox: &Path, addresses: &[impl AsRef<str>]) -> CopyPlace {
        let mut places = addresses.iter().map(|address| CopyPlace::recipient(address.as_ref()));
        let known = places.find(|place| self.expected.recipients.contains(place));
        known.unwrap_or_else(|| CopyPlace::mailbox(mailbox))
    }

    /// Adds a copy; `at` is its location for the report, and may be empty.
    pub(crate) fn add(&mut self, found: FoundCopy, at: &str) {
        match self.expected.acknowledged.index_of(found.run, found.sequence) {
            Some(number) => self.add_acknowledged(number, found, at),
            None if self.expected.is_expected(found.run) => self.add_unacknowledged(found, at),
            None => return self.comparison.other_runs += 1,
        }
        self.comparison.copies += 1;
        if !found.sound {
            self.comparison.damaged += 1;
            push_example(&mut self.comparison.examples.damaged, || self.expected.example(found, at));
        }
    }

    /// Adds a message without a stamp.
    pub(crate) fn add_foreign(&mut self) {
        self.comparison.foreign += 1;
    }

    /// The number of copies so far.
    pub(crate) fn copies(&self) -> u64 {
        self.comparison.copies
    }

    /// Whether nothing is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.filled == self.slots.len()
    }

    /// Returns the result after the last copy.
    pub(crate) fn finish(mut self) -> Comparison {
        self.comparison.found = self.filled as u64;
        self.comparison.lost = (self.slots.len() - self.filled) as u64;
        let messages = 0..self.expected.acknowledged.len();
        let lost = messages.flat_map(|number| self.lost_examples(number)).take(EXAMPLES_MAX).collect();
        self.comparison.examples.lost = lost;
        self.comparison
    }

    fn add_acknowledged(&mut self, number: usize, found: FoundCopy, at: &str) {
        let slots = &mut self.slots[self.first_slots[number]..self.first_slots[number + 1]];
        let its_own = slots.iter().position(|slot| slot.is_of(found.place));
        let is_misplaced = its_own.is_none() && self.expected.is_other_recipient(number, found.place);
        let next_free = || slots.iter().position(|slot| slot.is_free()).filter(|_| !is_misplaced);
        let place = its_own.or_else(next_free);
        match place {
            Some(place) if slots[place].is_filled() => self.add_doubled(found, at),
            Some(place) => {
                slots[place].fill(found.place);
                self.filled += 1;
            }
            None => self.add_unacknowledged(found, at),
        }
    }

    fn add_unacknowledged(&mut self, found: FoundCopy, at: &str) {
        if !self.unacknowledged.insert((found.run, found.sequence, found.place)) {
            return self.add_doubled(found, at);
        }
        self.comparison.unacknowledged += 1;
        push_example(&mut self.comparison.examples.unacknowledged, || self.expected.example(found, at));
    }

    fn add_doubled(&mut self, found: FoundCopy, at: &str) {
        self.comparison.doubled += 1;
        push_example(&mut self.comparison.examples.doubled, || self.expected.example(found, at));
    }

    fn lost_examples(&self, number: usize) -> impl Iterator<Item = CopyExample> {
        let slots = &self.slots[self.first_slots[number]..self.first_slots[number + 1]];
        let empty = slots.iter().filter(|slot| !slot.is_filled());
        empty.map(move |slot| self.expected.example_of(number, CopyPlace(slot.0)))
    }
}

impl ExpectedCopies<'_> {
    /// Whether the place belongs to a recipient of other messages only.
    fn is_other_recipient(&self, number: usize, place: CopyPlace) -> bool {
        let mut its_own = self.acknowledged.recipients(number).map(CopyPlace::recipient);
        self.recipients.contains(&place) && !its_own.any(|own| own == place)
    }

    /// Without a ledger, every run is expected.
    fn is_expected(&self, run: RunId) -> bool {
        self.acknowledged.contains_run(run) || !self.acknowledged.has_runs()
    }

    fn example(&self, found: FoundCopy, at: &str) -> CopyExample {
        let number = self.acknowledged.index_of(found.run, found.sequence);
        let recipient = number.map(|number| self.recipient_names(number, found.place)).unwrap_or_default();
        CopyExample { run: found.run, sequence: found.sequence, recipient, at: at.to_owned() }
    }

    fn example_of(&self, number: usize, place: CopyPlace) -> CopyExample {
        let (run, sequence) = self.acknowledged.run_and_sequence(number);
        CopyExample { run, sequence, recipient: self.recipient_names(number, place), at: String::new() }
    }

    /// The recipient of a place; all recipients of the message if it could be any.
    fn recipient_names(&self, number: usize, place: CopyPlace) -> String {
        let recipients = || self.acknowledged.recipients(number);
        let only = recipients().find(|recipient| CopyPlace::recipient(recipient) == place);
        if let (PlaceKind::Recipients, Some(only)) = (self.place_kind, only) {
            return only.to_owned();
        }
        let named: Vec<&str> = recipients().take(NAMES_MAX).collect();
        let more = if recipients().nth(NAMES_MAX).is_some() { ", ..." } else { "" };
        named.join(", ") + more
    }
}

/// Adds a slot for each recipient. A recipient that is listed twice has one.
fn push_slots<'a>(recipients: impl Iterator<Item = &'a str>, slots: &mut Vec<CopySlot>) {
    let first = slots.len();
    for place in recipients.map(CopyPlace::recipient) {
        if !slots[first..].iter().any(|slot| slot.is_of(place)) {
            slots.push(CopySlot::of(place));
        }
    }
}

fn push_example(examples: &mut Vec<CopyExample>, example: impl FnOnce() -> CopyExample) {
    if examples.len() < EXAMPLES_MAX {
        examples.push(example());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::comparison::CopyExamples;

    const RUN: RunId = RunId(1);

    fn ledger_of(lines: &[&str]) -> AcknowledgedMessages {
        AcknowledgedMessages::parse(format!("run {RUN}\n{}\n", lines.join("\n"))).unwrap()
    }

    fn copy_at(sequence: u64, place: &str) -> FoundCopy {
        FoundCopy { run: RUN, sequence, sound: true, place: CopyPlace::recipient(place) }
    }

    fn compare(acknowledged: &AcknowledgedMessages, places: PlaceKind, copies: &[FoundCopy]) -> Comparison {
        let mut comparer = Comparer::new(acknowledged, places);
        copies.iter().for_each(|&copy| comparer.add(copy, ""));
        comparer.finish()
    }

    /// Found, lost, doubled, damaged, unacknowledged.
    fn counts(held: &Comparison) -> [u64; 5] {
        [held.found, held.lost, held.doubled, held.damaged, held.unacknowledged]
    }

    #[test]
    fn one_lost_one_doubled_and_one_damaged_are_found_among_a_million() {
        const MESSAGES: u64 = 1_000_000;
        const LOST: u64 = 123_456;
        const DOUBLED: u64 = 777_777;
        const DAMAGED: u64 = 999_999;
        let lines: String =
            (0..MESSAGES).map(|number| format!("{number}\tuser{}@virt.test\n", number % 5000)).collect();
        let acknowledged = AcknowledgedMessages::parse(format!("run {RUN}\n{lines}")).unwrap();
        for places in [PlaceKind::Recipients, PlaceKind::Mailboxes] {
            let mut comparer = Comparer::new(&acknowledged, places);
            for number in (0..MESSAGES).rev().filter(|&number| number != LOST) {
                let mut copy = copy_at(number, &format!("user{}@virt.test", number % 5000));
                copy.sound = number != DAMAGED;
                comparer.add(copy, "");
                if number == DOUBLED {
                    comparer.add(copy, "the second");
                }
            }
            let held = comparer.finish();
            assert_eq!(counts(&held), [MESSAGES - 1, 1, 1, 1, 0]);
            let CopyExamples { lost, doubled, damaged, unacknowledged } = held.examples;
            assert!(unacknowledged.is_empty());
            let sequences = [lost, doubled, damaged].map(|examples| {
                assert_eq!(examples.len(), 1);
                assert_eq!(examples[0].recipient, format!("user{}@virt.test", examples[0].sequence % 5000));
                examples[0].sequence
            });
            assert_eq!(sequences, [LOST, DOUBLED, DAMAGED]);
        }
    }

    #[test]
    fn a_lost_and_a_doubled_copy_of_one_message_do_not_cancel_out() {
        let acknowledged = ledger_of(&["0\ta@x.test\tb@x.test"]);
        for places in [PlaceKind::Recipients, PlaceKind::Mailboxes] {
            let held = compare(&acknowledged, places, &[copy_at(0, "a@x.test"), copy_at(0, "A@X.test")]);
            assert_eq!(counts(&held), [1, 1, 1, 0, 0]);
        }
        let held = compare(&acknowledged, PlaceKind::Recipients, &[copy_at(0, "b@x.test"), copy_at(0, "b@x.test")]);
        assert_eq!((&*held.examples.lost[0].recipient, &*held.examples.doubled[0].recipient), ("a@x.test", "b@x.test"));
    }

    #[test]
    fn mailboxes_may_have_any_name_but_recipients_must_match() {
        let acknowledged = ledger_of(&["0\ta@x.test\tb@x.test"]);
        let copies = [copy_at(0, "/mail/1"), copy_at(0, "/mail/2")];
        assert_eq!(counts(&compare(&acknowledged, PlaceKind::Mailboxes, &copies)), [2, 0, 0, 0, 0]);
        assert_eq!(counts(&compare(&acknowledged, PlaceKind::Recipients, &copies)), [0, 2, 0, 0, 2]);
        let third = [copies[0], copies[1], copy_at(0, "/mail/3")];
        assert_eq!(counts(&compare(&acknowledged, PlaceKind::Mailboxes, &third)), [2, 0, 0, 0, 1]);
    }

    #[test]
    fn a_copy_in_the_mailbox_of_another_recipient_is_misplaced() {
        let acknowledged = ledger_of(&["0\ta@x.test\tb@x.test", "1\tc@x.test"]);
        let copies = [copy_at(0, "C@x.test"), copy_at(0, "b@x.test"), copy_at(1, "/mail/c")];
        assert_eq!(counts(&compare(&acknowledged, PlaceKind::Mailboxes, &copies)), [2, 1, 0, 0, 1]);
        let comparer = Comparer::new(&acknowledged, PlaceKind::Mailboxes);
        let place = |addresses: &[&str]| comparer.place_of_mailbox(Path::new("/mail/1"), addresses);
        assert_eq!(place(&["nobody", "B@x.test"]), CopyPlace::recipient("b@x.test"));
        assert_eq!(place(&["nobody"]), CopyPlace::mailbox(Path::new("/mail/1")));
    }

    #[test]
    fn an_unacknowledged_message_may_arrive_once() {
        let acknowledged = ledger_of(&["0\ta@x.test"]);
        let cut = FoundCopy { sound: false, ..copy_at(8, "a@x.test") };
        let copies = [copy_at(0, "a@x.test"), copy_at(7, "a@x.test"), copy_at(7, "a@x.test"), cut];
        let held = compare(&acknowledged, PlaceKind::Recipients, &copies);
        assert_eq!(counts(&held), [1, 0, 1, 1, 2]);
        assert_eq!(held.verdict(), crate::RunVerdict::Bad);
    }

    #[test]
    fn a_recipient_named_twice_is_one_and_case_does_not_matter() {
        let acknowledged = ledger_of(&["0\ta@x.test\tA@x.test\tb@x.test"]);
        let copies = [copy_at(0, "a@X.TEST"), copy_at(0, "b@x.test")];
        assert_eq!(counts(&compare(&acknowledged, PlaceKind::Recipients, &copies)), [2, 0, 0, 0, 0]);
    }

    #[test]
    fn other_runs_are_counted_and_ignored() {
        let acknowledged = ledger_of(&["0\ta@x.test"]);
        let other = FoundCopy { run: RunId(9), ..copy_at(0, "a@x.test") };
        let mut comparer = Comparer::new(&acknowledged, PlaceKind::Recipients);
        comparer.add(other, "");
        comparer.add_foreign();
        assert!(!comparer.is_complete());
        comparer.add(copy_at(0, "a@x.test"), "");
        assert!(comparer.is_complete());
        let held = comparer.finish();
        assert_eq!((held.copies, held.other_runs, held.foreign), (1, 1, 1));
        assert_eq!(held.verdict(), crate::RunVerdict::Good);
    }

    #[test]
    fn without_a_ledger_each_copy_is_expected_once() {
        let none = AcknowledgedMessages::default();
        let copies = [copy_at(0, "a@x.test"), copy_at(0, "b@x.test"), copy_at(0, "a@x.test")];
        assert_eq!(counts(&compare(&none, PlaceKind::Recipients, &copies)), [0, 0, 1, 0, 2]);
    }

    /// Random ledgers and copies, compared with a count of each copy in each place.
    #[test]
    fn random_copies_give_the_same_result_as_a_plain_count() {
        let recipient = |number: u64| format!("u{number}@x.test");
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let sent: Vec<Vec<u64>> = (0..6).map(|_| (0..4).filter(|_| random.bool()).collect()).collect();
            let line = |(sequence, to): (usize, &Vec<u64>)| {
                let names = to.iter().map(|&number| format!("\t{}", recipient(number)));
                (!to.is_empty()).then(|| format!("{sequence}{}", names.collect::<String>()))
            };
            let lines: Vec<String> = sent.iter().enumerate().filter_map(line).collect();
            let acknowledged = ledger_of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let copies: Vec<(u64, u64)> =
                (0..random.usize(0..20)).map(|_| (random.u64(0..8), random.u64(0..5))).collect();
            let found: Vec<FoundCopy> =
                copies.iter().map(|&(sequence, to)| copy_at(sequence, &recipient(to))).collect();
            let held = compare(&acknowledged, PlaceKind::Recipients, &found);

            let was_sent = |sequence: u64, to: u64| sent.get(sequence as usize).is_some_and(|sent| sent.contains(&to));
            let count = |sequence, to| copies.iter().filter(|&&copy| copy == (sequence, to)).count() as u64;
            let mut expected = [0; 5];
            for (sequence, to) in (0..8).flat_map(|sequence| (0..5).map(move |to| (sequence, to))) {
                let (came, once) = (count(sequence, to), u64::from(count(sequence, to) > 0));
                match was_sent(sequence, to) {
                    true => (expected[0], expected[1]) = (expected[0] + once, expected[1] + 1 - once),
                    false => expected[4] += once,
                }
                expected[2] += came.saturating_sub(1);
            }
            assert_eq!(counts(&held), expected, "seed {seed}: {sent:?} {copies:?}");
        }
    }

    #[test]
    fn the_number_of_examples_is_limited() {
        let lines: Vec<String> = (0..100).map(|number| format!("{number}\ta@x.test")).collect();
        let acknowledged = ledger_of(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let held = compare(&acknowledged, PlaceKind::Recipients, &[]);
        assert_eq!((held.lost, held.examples.lost.len()), (100, EXAMPLES_MAX));
    }
}
