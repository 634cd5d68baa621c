//! The ready recipients, in fair order.
//!
//! Four levels. The first three take turns in [`Rounds`], the last one is a chain:
//!
//! | level | holds | a turn costs |
//! |---|---|---|
//! | rounds of a queue | hop queues | as many rounds as recipients leave |
//! | hop queue | domain queues: destinations | as many rounds as recipients leave |
//! | domain queue | sender queues | one round |
//! | sender queue | recipients | first in, first out |
//!
//! Above them, single messages go before bulk mail by their share ([`Berths::first`]). A domain
//! queue whose destination has no valid route is in no hop queue: mail gathers there until it has
//! one. Empty queues are in no rounds.

use std::collections::BTreeMap;

use crate::QueueNumber;
use crate::berth::Berths;
use crate::chain::{Chain, NONE};
use crate::destinations::{Destination, tree_bytes};
use crate::pages::{Pages, Slab};
use crate::recipient::{Recipient, split_group};
use crate::rounds::{Rounds, Seat, Seated};
use crate::senders::{Class, Senders};

/// All ready recipients.
pub(crate) struct Turns {
    pub(crate) berths: Berths,
    /// Two per destination, by its number: single messages and bulk mail.
    desks: Pages<Desk>,
    lines: Slab<Line>,
    /// Finds the sender queue. Ordered, not hashed: no rehashing pause, and no choice of
    /// senders makes it slow.
    names: BTreeMap<(Destination, Class, u64), u32>,
    senders: Senders,
}

/// The senders of one class at a destination.
struct Desk {
    lines: Rounds,
    seat: Seat,
    /// [`NONE`] while there is no route.
    berth: u32,
}

/// The recipients of one sender at one destination in one class. It exists while it is not empty.
struct Line {
    recipients: Chain,
    sender: u64,
    seat: Seat,
    destination: Destination,
    class: Class,
}

/// The sender and home queue of a recipient that becomes ready.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) queue: QueueNumber,
    pub(crate) sender: u64,
    /// Whether the message is bulk mail by its own size.
    pub(crate) is_mailing: bool,
}

impl Seated for Desk {
    fn seat(&mut self) -> &mut Seat {
        &mut self.seat
    }
}

impl Seated for Line {
    fn seat(&mut self) -> &mut Seat {
        &mut self.seat
    }
}

impl Turns {
    pub(crate) fn new(queues: usize, mailing_above: usize, letters_share: u32) -> Self {
        Turns {
            berths: Berths::new(queues, letters_share),
            desks: Pages::new(),
            lines: Slab::new(),
            names: BTreeMap::new(),
            senders: Senders::new(mailing_above),
        }
    }

    /// Applies new settings. The number of queues never shrinks.
    pub(crate) fn change(&mut self, queues: usize, mailing_above: usize, letters_share: u32) {
        self.berths.change(queues, letters_share);
        self.senders.change(mailing_above);
    }

    /// Adds a recipient to the back of its sender queue. Returns the next hop if its hop queue in
    /// this class was empty before.
    pub(crate) fn push(&mut self, recipients: &mut Slab<Recipient>, index: u32, origin: Origin) -> Option<u32> {
        let destination = recipients[index].destination;
        let class = self.classify(origin);
        let line = match self.names.get(&(destination, class, origin.sender)) {
            Some(&line) => line,
            None => return self.open(recipients, index, origin, class),
        };
        self.lines[line].recipients.push_back(recipients, index);
        None
    }

    /// The first recipient in a hop queue, which must be scheduled.
    pub(crate) fn front(&self, berth: u32) -> u32 {
        let (_, line) = self.front_line(berth);
        self.lines[line].recipients.front().expect("a sender queue is removed when it is empty")
    }

    /// Takes the next group from a hop queue, `limit` recipients at most, of one message at one
    /// destination. The hop queue is not scheduled afterwards.
    pub(crate) fn take(&mut self, recipients: &mut Slab<Recipient>, berth: u32, limit: usize) -> (Chain, usize) {
        let (desk, line) = self.front_line(berth);
        let (group, count) = split_group(&mut self.lines[line].recipients, recipients, limit);
        self.desks[desk].lines.take(&mut self.lines, line, 1);
        self.berths.berth_mut(berth).desks.take(&mut self.desks, desk, count);
        self.berths.take(berth, count);
        if self.lines[line].recipients.is_empty() {
            self.close(line);
        } else {
            self.desks[desk].lines.resume(&mut self.lines, line);
        }
        if !self.desks[desk].lines.is_empty() {
            self.berths.berth_mut(berth).desks.resume(&mut self.desks, desk);
        }
        (group, count)
    }

    /// Moves the first sender queue of a hop queue to the back of its domain queue, and that to the
    /// back of the hop queue.
    pub(crate) fn pass(&mut self, berth: u32) {
        let (desk, line) = self.front_line(berth);
        self.desks[desk].lines.take(&mut self.lines, line, 1);
        self.desks[desk].lines.resume(&mut self.lines, line);
        let desks = &mut self.berths.berth_mut(berth).desks;
        desks.take(&mut self.desks, desk, 1);
        desks.resume(&mut self.desks, desk);
    }

    /// Moves the first message of a hop queue to the back of its sender queue. Returns false if
    /// that holds no other message.
    pub(crate) fn pass_in_line(&mut self, recipients: &mut Slab<Recipient>, berth: u32) -> bool {
        let (_, line) = self.front_line(berth);
        let message = recipients[self.front(berth)].message;
        let chain = &mut self.lines[line].recipients;
        let mut passed = Chain::EMPTY;
        while let Some(front) = chain.front().filter(|&front| recipients[front].message == message) {
            chain.pop_front(recipients);
            passed.push_back(recipients, front);
        }
        let has_others = !chain.is_empty();
        chain.append(recipients, passed);
        has_others
    }

    /// Whether the first sender queue of a hop queue is its only one.
    pub(crate) fn is_alone(&self, berth: u32) -> bool {
        let desks = &self.berths.berth(berth).desks;
        let is_alone = |desk: u32| self.desks[desk].lines.is_single(|line| self.lines[line].seat);
        desks.is_single(|desk| self.desks[desk].seat) && desks.first().is_some_and(is_alone)
    }

    /// Counts `count` ready recipients fewer for the sender.
    pub(crate) fn leave(&mut self, origin: Origin, count: usize) {
        if !origin.is_mailing {
            self.senders.leave(origin.queue, origin.sender, count);
        }
    }

    /// Sets the hop queues of a destination; [`NONE`] detaches it.
    pub(crate) fn assign(&mut self, destination: Destination, berths: [u32; 2]) {
        for (class, new) in [Class::Letter, Class::Mailing].into_iter().zip(berths) {
            let desk = self.desk(destination, class);
            let old = std::mem::replace(&mut self.desks[desk].berth, new);
            if self.desks[desk].lines.is_empty() || old == new {
                continue;
            }
            self.vacate(desk, old);
            if new != NONE {
                self.berths.berth_mut(new).desks.join(&mut self.desks, desk);
            }
        }
    }

    /// Keeps the recipients for which `keep` returns true, in one pass over all sender queues.
    pub(crate) fn retain(&mut self, recipients: &mut Slab<Recipient>, keep: impl Fn(&Recipient) -> bool) {
        let all: Vec<u32> = self.lines.entries().map(|(line, _)| line).collect();
        for line in all {
            let mut chain = std::mem::replace(&mut self.lines[line].recipients, Chain::EMPTY);
            while let Some(index) = chain.pop_front(recipients) {
                if keep(&recipients[index]) {
                    self.lines[line].recipients.push_back(recipients, index);
                }
            }
            if self.lines[line].recipients.is_empty() {
                self.dissolve(line);
            }
        }
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let names = tree_bytes::<(Destination, Class, u64), u32>(self.names.len());
        self.berths.bytes() + self.desks.bytes() + self.lines.bytes() + names + self.senders.bytes()
    }

    fn front_line(&self, berth: u32) -> (u32, u32) {
        let desk = self.berths.berth(berth).desks.first().expect("a hop queue in the schedule is not empty");
        let line = self.desks[desk].lines.first().expect("a domain queue in a hop queue is not empty");
        (desk, line)
    }

    fn classify(&mut self, origin: Origin) -> Class {
        if origin.is_mailing { Class::Mailing } else { self.senders.join(origin.queue, origin.sender) }
    }

    /// Creates a sender queue. When a sender becomes bulk, its ready single messages at the
    /// destination move to the new queue, so that their order is kept.
    fn open(&mut self, recipients: &mut Slab<Recipient>, index: u32, origin: Origin, class: Class) -> Option<u32> {
        let destination = recipients[index].destination;
        let Origin { sender, is_mailing, .. } = origin;
        let mut chain = Chain::EMPTY;
        if class == Class::Mailing
            && !is_mailing
            && let Some(&letters) = self.names.get(&(destination, Class::Letter, sender))
        {
            chain = self.lines[letters].recipients;
            self.dissolve(letters);
        }
        chain.push_back(recipients, index);
        let line = self.lines.insert(Line { recipients: chain, sender, seat: Seat::NEW, destination, class });
        self.names.insert((destination, class, sender), line);
        self.seat(line)
    }

    /// Adds a sender queue to its domain queue, and that to its hop queue if it was empty. Returns
    /// the next hop if the hop queue was empty too.
    fn seat(&mut self, line: u32) -> Option<u32> {
        let &Line { destination, class, .. } = &self.lines[line];
        let desk = self.desk(destination, class);
        let Desk { lines, berth, .. } = &mut self.desks[desk];
        let (was_empty, berth) = (lines.is_empty(), *berth);
        lines.join(&mut self.lines, line);
        if !was_empty || berth == NONE {
            return None;
        }
        let was_empty = self.berths.berth(berth).desks.is_empty();
        self.berths.berth_mut(berth).desks.join(&mut self.desks, desk);
        was_empty.then(|| self.berths.berth(berth).hop)
    }

    /// Removes an empty sender queue, and its domain queue from the hop queue if that is empty now.
    fn dissolve(&mut self, line: u32) {
        let &Line { destination, class, .. } = &self.lines[line];
        let desk = self.desk(destination, class);
        self.desks[desk].lines.leave(&mut self.lines, line);
        self.close(line);
        if self.desks[desk].lines.is_empty() {
            self.vacate(desk, self.desks[desk].berth);
        }
    }

    /// Removes a domain queue from its hop queue, if it has one.
    fn vacate(&mut self, desk: u32, berth: u32) {
        if berth == NONE {
            return;
        }
        self.berths.berth_mut(berth).desks.leave(&mut self.desks, desk);
        if self.berths.berth(berth).desks.is_empty() {
            self.berths.stand(berth, None);
        }
    }

    fn close(&mut self, line: u32) {
        let line = self.lines.remove(line);
        self.names.remove(&(line.destination, line.class, line.sender));
    }

    fn desk(&mut self, destination: Destination, class: Class) -> u32 {
        let desk = destination.0 * 2 + class as u32;
        while self.desks.len() <= desk {
            self.desks.push(Desk { lines: Rounds::EMPTY, seat: Seat::NEW, berth: NONE });
        }
        desk
    }
}
