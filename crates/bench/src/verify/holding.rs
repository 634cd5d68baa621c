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

use super::held::{Example, Held};
use crate::{Acknowledged, RunId, Seen};

/// Examples of each kind in the report.
const EXAMPLES_MAX: usize = 20;
/// Recipients that one example names.
const NAMES_MAX: usize = 5;

/// What copies are stored by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// By recipient, as sent.
    Recipients,
    /// By mailbox, whose owner may be unknown.
    Mailboxes,
}

/// Where a copy was found, as a digest. The lowest bit is always 0; the value is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(u64);

/// A copy of a message with a stamp.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) run: RunId,
    pub(crate) sequence: u64,
    pub(crate) sound: bool,
    pub(crate) place: Place,
}

/// Compares copies with a ledger; without one, each copy is expected once.
#[derive(Debug)]
pub(crate) struct Holding<'a> {
    expected: Expected<'a>,
    /// For each message the index of its first slot, followed by the total.
    slots_at: Vec<usize>,
    slots: Vec<Slot>,
    filled: usize,
    unacknowledged: HashSet<(RunId, u64, Place)>,
    held: Held,
}

/// The expected copies and their places.
#[derive(Clone, Debug)]
struct Expected<'a> {
    acknowledged: &'a Acknowledged,
    places: Places,
    /// The recipients of all messages; only used with mailboxes.
    recipients: HashSet<Place>,
}

/// A place; the lowest bit is set when a copy was found there. 0 is a mailbox that is not known
/// yet.
#[derive(Clone, Copy, Debug)]
struct Slot(u64);

impl Place {
    /// The place of a recipient; case is ignored.
    pub(crate) fn recipient(address: &str) -> Place {
        let mut hasher = DefaultHasher::new();
        address.bytes().for_each(|byte| hasher.write_u8(byte.to_ascii_lowercase()));
        Place::of(hasher)
    }

    /// The place of a mailbox with an unknown owner.
    fn mailbox(folder: &Path) -> Place {
        let mut hasher = DefaultHasher::new();
        hasher.write(folder.as_os_str().as_bytes());
        Place::of(hasher)
    }

    fn of(hasher: DefaultHasher) -> Place {
        Place((hasher.finish() | 2) & !1)
    }
}

impl Found {
    /// An examined copy at a place.
    pub(crate) fn new(seen: Seen, place: Place) -> Found {
        Found { run: seen.stamp.run, sequence: seen.stamp.sequence, sound: seen.sound, place }
    }
}

impl Slot {
    const FREE: Slot = Slot(0);

    fn of(place: Place) -> Slot {
        Slot(place.0)
    }

    fn is_of(self, place: Place) -> bool {
        self.0 & !1 == place.0
    }

    fn is_free(self) -> bool {
        self.0 == 0
    }

    fn is_filled(self) -> bool {
        self.0 & 1 == 1
    }

    fn fill(&mut self, place: Place) {
        self.0 = place.0 | 1;
    }
}

impl<'a> Holding<'a> {
    /// Starts without copies.
    pub(crate) fn new(acknowledged: &'a Acknowledged, places: Places) -> Holding<'a> {
        let messages = acknowledged.len();
        let mut slots_at = Vec::with_capacity(messages + 1);
        let mut slots = Vec::with_capacity(messages);
        for number in 0..messages {
            slots_at.push(slots.len());
            push_slots(acknowledged.recipients(number), &mut slots);
        }
        slots_at.push(slots.len());
        let mut recipients = HashSet::new();
        if places == Places::Mailboxes {
            recipients.extend(slots.iter().map(|slot| Place(slot.0)));
            slots.fill(Slot::FREE);
        }
        let held = Held { messages: messages as u64, recipients: slots.len() as u64, ..Held::default() };
        let expected = Expected { acknowledged, places, recipients };
        Holding { expected, slots_at, slots, filled: 0, unacknowledged: HashSet::new(), held }
    }

    /// The place of a mailbox: that of the recipient with one of these addresses, else its own.
    pub(crate) fn mailbox(&self, mailbox: &Path, addresses: &[impl AsRef<str>]) -> Place {
        let mut places = addresses.iter().map(|address| Place::recipient(address.as_ref()));
        let told = places.find(|place| self.expected.recipients.contains(place));
        told.unwrap_or_else(|| Place::mailbox(mailbox))
    }

    /// Adds a copy; `at` is its location for the report, and may be empty.
    pub(crate) fn find(&mut self, found: Found, at: &str) {
        match self.expected.acknowledged.find(found.run, found.sequence) {
            Some(number) => self.find_acknowledged(number, found, at),
            None if self.expected.is_awaited(found.run) => self.find_unacknowledged(found, at),
            None => return self.held.other_runs += 1,
        }
        self.held.copies += 1;
        if !found.sound {
            self.held.damaged += 1;
            note(&mut self.held.examples.damaged, || self.expected.example(found, at));
        }
    }

    /// Adds a message without a stamp.
    pub(crate) fn find_foreign(&mut self) {
        self.held.foreign += 1;
    }

    /// The number of copies so far.
    pub(crate) fn copies(&self) -> u64 {
        self.held.copies
    }

    /// Whether nothing is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.filled == self.slots.len()
    }

    /// Returns the result after the last copy.
    pub(crate) fn finish(mut self) -> Held {
        self.held.found = self.filled as u64;
        self.held.lost = (self.slots.len() - self.filled) as u64;
        let messages = 0..self.expected.acknowledged.len();
        let lost = messages.flat_map(|number| self.lost_of(number)).take(EXAMPLES_MAX).collect();
        self.held.examples.lost = lost;
        self.held
    }

    fn find_acknowledged(&mut self, number: usize, found: Found, at: &str) {
        let slots = &mut self.slots[self.slots_at[number]..self.slots_at[number + 1]];
        let its_own = slots.iter().position(|slot| slot.is_of(found.place));
        let is_misplaced = its_own.is_none() && self.expected.is_anothers(number, found.place);
        let next_free = || slots.iter().position(|slot| slot.is_free()).filter(|_| !is_misplaced);
        let place = its_own.or_else(next_free);
        match place {
            Some(place) if slots[place].is_filled() => self.find_doubled(found, at),
            Some(place) => {
                slots[place].fill(found.place);
                self.filled += 1;
            }
            None => self.find_unacknowledged(found, at),
        }
    }

    fn find_unacknowledged(&mut self, found: Found, at: &str) {
        if !self.unacknowledged.insert((found.run, found.sequence, found.place)) {
            return self.find_doubled(found, at);
        }
        self.held.unacknowledged += 1;
        note(&mut self.held.examples.unacknowledged, || self.expected.example(found, at));
    }

    fn find_doubled(&mut self, found: Found, at: &str) {
        self.held.doubled += 1;
        note(&mut self.held.examples.doubled, || self.expected.example(found, at));
    }

    fn lost_of(&self, number: usize) -> impl Iterator<Item = Example> {
        let slots = &self.slots[self.slots_at[number]..self.slots_at[number + 1]];
        let empty = slots.iter().filter(|slot| !slot.is_filled());
        empty.map(move |slot| self.expected.example_of(number, Place(slot.0)))
    }
}

impl Expected<'_> {
    /// Whether the place belongs to a recipient of other messages only.
    fn is_anothers(&self, number: usize, place: Place) -> bool {
        let mut its_own = self.acknowledged.recipients(number).map(Place::recipient);
        self.recipients.contains(&place) && !its_own.any(|own| own == place)
    }

    /// Without a ledger, every run is expected.
    fn is_awaited(&self, run: RunId) -> bool {
        self.acknowledged.has_run(run) || !self.acknowledged.has_runs()
    }

    fn example(&self, found: Found, at: &str) -> Example {
        let number = self.acknowledged.find(found.run, found.sequence);
        let recipient = number.map(|number| self.names(number, found.place)).unwrap_or_default();
        Example { run: found.run, sequence: found.sequence, recipient, at: at.to_owned() }
    }

    fn example_of(&self, number: usize, place: Place) -> Example {
        let (run, sequence) = self.acknowledged.message(number);
        Example { run, sequence, recipient: self.names(number, place), at: String::new() }
    }

    /// The recipient of a place; all recipients of the message if it could be any.
    fn names(&self, number: usize, place: Place) -> String {
        let recipients = || self.acknowledged.recipients(number);
        let only = recipients().find(|recipient| Place::recipient(recipient) == place);
        if let (Places::Recipients, Some(only)) = (self.places, only) {
            return only.to_owned();
        }
        let named: Vec<&str> = recipients().take(NAMES_MAX).collect();
        let more = if recipients().nth(NAMES_MAX).is_some() { ", ..." } else { "" };
        named.join(", ") + more
    }
}

/// Adds a slot for each recipient. A recipient that is listed twice has one.
fn push_slots<'a>(recipients: impl Iterator<Item = &'a str>, slots: &mut Vec<Slot>) {
    let first = slots.len();
    for place in recipients.map(Place::recipient) {
        if !slots[first..].iter().any(|slot| slot.is_of(place)) {
            slots.push(Slot::of(place));
        }
    }
}

fn note(examples: &mut Vec<Example>, example: impl FnOnce() -> Example) {
    if examples.len() < EXAMPLES_MAX {
        examples.push(example());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::held::Examples;

    const RUN: RunId = RunId(1);

    fn ledger(lines: &[&str]) -> Acknowledged {
        Acknowledged::of(format!("run {RUN}\n{}\n", lines.join("\n"))).unwrap()
    }

    fn found(sequence: u64, place: &str) -> Found {
        Found { run: RUN, sequence, sound: true, place: Place::recipient(place) }
    }

    fn held(acknowledged: &Acknowledged, places: Places, copies: &[Found]) -> Held {
        let mut holding = Holding::new(acknowledged, places);
        copies.iter().for_each(|&copy| holding.find(copy, ""));
        holding.finish()
    }

    /// Found, lost, doubled, damaged, unacknowledged.
    fn counts(held: &Held) -> [u64; 5] {
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
        let acknowledged = Acknowledged::of(format!("run {RUN}\n{lines}")).unwrap();
        for places in [Places::Recipients, Places::Mailboxes] {
            let mut holding = Holding::new(&acknowledged, places);
            for number in (0..MESSAGES).rev().filter(|&number| number != LOST) {
                let mut copy = found(number, &format!("user{}@virt.test", number % 5000));
                copy.sound = number != DAMAGED;
                holding.find(copy, "");
                if number == DOUBLED {
                    holding.find(copy, "the second");
                }
            }
            let held = holding.finish();
            assert_eq!(counts(&held), [MESSAGES - 1, 1, 1, 1, 0]);
            let Examples { lost, doubled, damaged, unacknowledged } = held.examples;
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
        let acknowledged = ledger(&["0\ta@x.test\tb@x.test"]);
        for places in [Places::Recipients, Places::Mailboxes] {
            let held = held(&acknowledged, places, &[found(0, "a@x.test"), found(0, "A@X.test")]);
            assert_eq!(counts(&held), [1, 1, 1, 0, 0]);
        }
        let held = held(&acknowledged, Places::Recipients, &[found(0, "b@x.test"), found(0, "b@x.test")]);
        assert_eq!((&*held.examples.lost[0].recipient, &*held.examples.doubled[0].recipient), ("a@x.test", "b@x.test"));
    }

    #[test]
    fn mailboxes_may_have_any_name_and_recipients_may_not() {
        let acknowledged = ledger(&["0\ta@x.test\tb@x.test"]);
        let copies = [found(0, "/mail/1"), found(0, "/mail/2")];
        assert_eq!(counts(&held(&acknowledged, Places::Mailboxes, &copies)), [2, 0, 0, 0, 0]);
        assert_eq!(counts(&held(&acknowledged, Places::Recipients, &copies)), [0, 2, 0, 0, 2]);
        let third = [copies[0], copies[1], found(0, "/mail/3")];
        assert_eq!(counts(&held(&acknowledged, Places::Mailboxes, &third)), [2, 0, 0, 0, 1]);
    }

    #[test]
    fn a_mailbox_that_is_another_recipients_is_the_wrong_one() {
        let acknowledged = ledger(&["0\ta@x.test\tb@x.test", "1\tc@x.test"]);
        let copies = [found(0, "C@x.test"), found(0, "b@x.test"), found(1, "/mail/c")];
        assert_eq!(counts(&held(&acknowledged, Places::Mailboxes, &copies)), [2, 1, 0, 0, 1]);
        let holding = Holding::new(&acknowledged, Places::Mailboxes);
        let place = |addresses: &[&str]| holding.mailbox(Path::new("/mail/1"), addresses);
        assert_eq!(place(&["nobody", "B@x.test"]), Place::recipient("b@x.test"));
        assert_eq!(place(&["nobody"]), Place::mailbox(Path::new("/mail/1")));
    }

    #[test]
    fn what_was_never_acknowledged_may_arrive_once_and_sound() {
        let acknowledged = ledger(&["0\ta@x.test"]);
        let cut = Found { sound: false, ..found(8, "a@x.test") };
        let copies = [found(0, "a@x.test"), found(7, "a@x.test"), found(7, "a@x.test"), cut];
        let held = held(&acknowledged, Places::Recipients, &copies);
        assert_eq!(counts(&held), [1, 0, 1, 1, 2]);
        assert_eq!(held.verdict(), crate::Verdict::Bad);
    }

    #[test]
    fn a_recipient_named_twice_is_one_and_case_does_not_matter() {
        let acknowledged = ledger(&["0\ta@x.test\tA@x.test\tb@x.test"]);
        let copies = [found(0, "a@X.TEST"), found(0, "b@x.test")];
        assert_eq!(counts(&held(&acknowledged, Places::Recipients, &copies)), [2, 0, 0, 0, 0]);
    }

    #[test]
    fn other_runs_are_counted_and_else_let_be() {
        let acknowledged = ledger(&["0\ta@x.test"]);
        let other = Found { run: RunId(9), ..found(0, "a@x.test") };
        let mut holding = Holding::new(&acknowledged, Places::Recipients);
        holding.find(other, "");
        holding.find_foreign();
        assert!(!holding.is_complete());
        holding.find(found(0, "a@x.test"), "");
        assert!(holding.is_complete());
        let held = holding.finish();
        assert_eq!((held.copies, held.other_runs, held.foreign), (1, 1, 1));
        assert_eq!(held.verdict(), crate::Verdict::Good);
    }

    #[test]
    fn without_a_ledger_each_copy_is_expected_once() {
        let none = Acknowledged::default();
        let copies = [found(0, "a@x.test"), found(0, "b@x.test"), found(0, "a@x.test")];
        assert_eq!(counts(&held(&none, Places::Recipients, &copies)), [0, 0, 1, 0, 2]);
    }

    /// Random ledgers and copies, compared with a count of each copy in each place.
    #[test]
    fn any_copies_are_judged_as_a_plain_count_of_them_is() {
        let recipient = |number: u64| format!("u{number}@x.test");
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let sent: Vec<Vec<u64>> = (0..6).map(|_| (0..4).filter(|_| random.bool()).collect()).collect();
            let line = |(sequence, to): (usize, &Vec<u64>)| {
                let names = to.iter().map(|&number| format!("\t{}", recipient(number)));
                (!to.is_empty()).then(|| format!("{sequence}{}", names.collect::<String>()))
            };
            let lines: Vec<String> = sent.iter().enumerate().filter_map(line).collect();
            let acknowledged = ledger(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let copies: Vec<(u64, u64)> =
                (0..random.usize(0..20)).map(|_| (random.u64(0..8), random.u64(0..5))).collect();
            let found: Vec<Found> = copies.iter().map(|&(sequence, to)| found(sequence, &recipient(to))).collect();
            let held = held(&acknowledged, Places::Recipients, &found);

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
    fn examples_are_few_however_much_is_wrong() {
        let lines: Vec<String> = (0..100).map(|number| format!("{number}\ta@x.test")).collect();
        let acknowledged = ledger(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let held = held(&acknowledged, Places::Recipients, &[]);
        assert_eq!((held.lost, held.examples.lost.len()), (100, EXAMPLES_MAX));
    }
}
