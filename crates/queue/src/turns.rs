//! Fair turns: who is next among those that are ready.
//!
//! Three levels, each a chain through the values of the level below:
//!
//! | level | holds | order |
//! |---|---|---|
//! | round | destinations | deficit round robin: one recipient a round; an attempt of n sits out the next n - 1 rounds |
//! | destination (desk) | senders with something for it | round robin, one attempt a turn |
//! | line | recipients of one sender at one destination | first in, first out |
//!
//! A destination that has something new joins the round after the present one, so every round ends: whoever waits in
//! it gets a turn after one attempt at most of each other destination. Lines and desks that are empty cost nothing but
//! the desk's 12 bytes.

use std::collections::BTreeMap;

use crate::Recipient;
use crate::chain::{Chain, Linked, NONE};
use crate::destinations::{Destination, tree_bytes};
use crate::pages::{Pages, Slab};

/// Everything that is ready.
pub(crate) struct Turns {
    /// A wheel with a place for each round that an attempt can cost, and one for the present round.
    rounds: Box<[Chain]>,
    present: usize,
    /// By the number of the destination.
    desks: Pages<Desk>,
    lines: Slab<Line>,
    /// Finds the line to join. Ordered, not hashed: no rehashing pause, and no choice of senders makes it slow.
    senders: BTreeMap<(Destination, u64), u32>,
    ready: usize,
}

/// A destination's senders; it stands in a round while it has some.
struct Desk {
    lines: Chain,
    next: u32,
}

/// What one sender has for one destination. It exists while it has something.
struct Line {
    recipients: Chain,
    next: u32,
    destination: Destination,
    sender: u64,
}

impl Linked for Desk {
    fn link(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Linked for Line {
    fn link(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Turns {
    /// No attempt takes more than `recipients_max`.
    pub(crate) fn new(recipients_max: usize) -> Self {
        Turns {
            rounds: vec![Chain::EMPTY; recipients_max + 1].into(),
            present: 0,
            desks: Pages::new(),
            lines: Slab::new(),
            senders: BTreeMap::new(),
            ready: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Puts a recipient at the back of its sender's line.
    pub(crate) fn push(&mut self, recipients: &mut Slab<Recipient>, index: u32, sender: u64) {
        let destination = recipients[index].destination;
        let line = match self.senders.get(&(destination, sender)) {
            Some(&line) => line,
            None => self.open(destination, sender),
        };
        self.lines[line].recipients.push_back(recipients, index);
        self.ready += 1;
    }

    /// Takes the recipients whose turn it is, `room` at most: one message at one destination. They are chained.
    pub(crate) fn take(&mut self, recipients: &mut Slab<Recipient>, room: usize) -> Option<(Chain, usize)> {
        if self.is_empty() || room == 0 {
            return None;
        }
        while self.rounds[self.present].is_empty() {
            self.present = self.round_after(1);
        }
        let desk = self.rounds[self.present].pop_front(&mut self.desks)?;
        let line = self.desks[desk].lines.pop_front(&mut self.lines)?;
        let (group, count) = self.lines[line].split_group(recipients, room.min(self.rounds.len() - 1));
        self.ready -= count;
        if self.lines[line].recipients.is_empty() {
            self.close(line);
        } else {
            self.desks[desk].lines.push_back(&mut self.lines, line);
        }
        if !self.desks[desk].lines.is_empty() {
            let round = self.round_after(count);
            self.rounds[round].push_back(&mut self.desks, desk);
        }
        Some((group, count))
    }

    /// Bytes held, slack included.
    pub(crate) fn bytes(&self) -> usize {
        let rounds = size_of_val(&*self.rounds);
        let senders = tree_bytes::<(Destination, u64), u32>(self.senders.len());
        rounds + self.desks.bytes() + self.lines.bytes() + senders
    }

    fn open(&mut self, destination: Destination, sender: u64) -> u32 {
        let line = self.lines.insert(Line { recipients: Chain::EMPTY, next: NONE, destination, sender });
        self.senders.insert((destination, sender), line);
        while self.desks.len() <= destination.0 {
            self.desks.push(Desk { lines: Chain::EMPTY, next: NONE });
        }
        if self.desks[destination.0].lines.is_empty() {
            let round = self.round_after(1);
            self.rounds[round].push_back(&mut self.desks, destination.0);
        }
        self.desks[destination.0].lines.push_back(&mut self.lines, line);
        line
    }

    fn close(&mut self, line: u32) {
        let line = self.lines.remove(line);
        self.senders.remove(&(line.destination, line.sender));
    }

    fn round_after(&self, count: usize) -> usize {
        (self.present + count) % self.rounds.len()
    }
}

impl Line {
    /// Parts from the front those that leave together with the first, `room` at most.
    fn split_group(&mut self, recipients: &mut Slab<Recipient>, room: usize) -> (Chain, usize) {
        let (mut group, mut count) = (Chain::EMPTY, 0);
        while let Some(front) = self.recipients.front() {
            let fits = group.front().is_none_or(|first| recipients[first].leaves_with(&recipients[front]));
            if count == room || !fits {
                break;
            }
            self.recipients.pop_front(recipients);
            group.push_back(recipients, front);
            count += 1;
        }
        (group, count)
    }
}
