//! Other settings, and other ways, while mail waits.
//!
//! | what changes | what becomes of the mail |
//! |---|---|
//! | the settings of a queue | the next turn, the next verdict goes by the new ones |
//! | a queue more | it takes what is admitted to it |
//! | a queue less: it is *retired* | what is in flight ends; all else leaves it to be sorted anew ([`Purpose::Sort`]) |
//! | the caller's rules | whoever the caller means leaves for it, too ([`Queues::pick_to_sort`]) |
//! | the ways | nobody leaves by one that was found before; each is asked for again, and where another next hop is found its mail is due; not while none can be found |
//!
//! A queue keeps its number as long as there are queues: numbers are in attempts, destinations and the caller's rules.
//! So a retired one keeps its place in the settings, and one that comes back under its name has the number that it had.

use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::attempt::{Attempt, NextHop, Purpose};
use crate::config::{Config, QueueNumber};
use crate::errors::ErrorNumber;
use crate::recipient::{Recipient, Stage};
use crate::{Adopt, Destination, Entry, Lane, Progress, Queues};

/// Answers about ways that have changed are gathered for so long: to look for those who wait is one pass over all.
const MOVES_GATHER: Duration = Duration::from_secs(1);

impl Config {
    /// The queue that adopts, if one does.
    pub(crate) fn adopter(&self) -> Option<(QueueNumber, Adopt)> {
        let numbered = (0..).map(QueueNumber).zip(&self.queues).filter(|(_, queue)| !queue.retired);
        numbered.into_iter().find_map(|(number, queue)| Some((number, queue.adopts.clone()?)))
    }
}

impl<R: Clone> Queues<R> {
    /// Goes by other settings from now on. They have all queues that there are, each in its place; those that are gone
    /// are [`retired`](crate::QueueConfig::retired), and new ones come last.
    ///
    /// # Panics
    /// If a queue is missing, or has another place.
    pub fn change(&mut self, now: Timestamp, config: Config) {
        let mut places = self.config.queues.iter().zip(&config.queues);
        let is_kept = config.queues.len() >= self.lanes.len() && places.all(|(old, new)| old.name == new.name);
        assert!(is_kept, "queues keep their places");
        let adopter = config.adopter();
        if self.adopter.as_ref().map(|(queue, _)| *queue) != adopter.as_ref().map(|(queue, _)| *queue) {
            self.release_all();
        }
        self.adopter = adopter;
        self.lanes.resize_with(config.queues.len(), Lane::default);
        self.destinations.resize(config.queues.len());
        self.turns.change(config.queues.len(), config.mailing_above, config.letters_share);
        // Where it comes back it is a new one, and its mail is to go.
        let lanes = self.lanes.iter_mut().zip(&config.queues).filter(|(_, queue)| queue.retired);
        lanes.for_each(|(lane, _)| lane.is_paused = false);
        self.config = config;
        self.settle_all(now);
    }

    /// All ways may be others: nobody leaves by one that was answered before, and each that has recipients is asked for
    /// at once. Questions that are open stay open: whoever answers one now is to say what holds now. Recipients whose
    /// next hop is another one by the first answer that is not [`Routed::transient`](crate::Routed::transient) are due a
    /// second later; their last error is forgotten with the old one.
    pub fn reroute(&mut self, now: Timestamp) {
        self.edition = self.edition.wrapping_add(1);
        for destination in self.destinations.outdate(|hop| Arc::clone(&self.hops[hop].name)) {
            self.look_up(now, destination);
        }
    }

    /// A destination was answered; if it has moved, those who wait are looked for soon.
    pub(crate) fn note_move(&mut self, now: Timestamp, destination: Destination) {
        if self.destinations.place(destination).has_moved {
            self.moved_at.get_or_insert(now + MOVES_GATHER);
        }
    }

    /// Whether an attempt ended at a next hop that its destination has left for another since it began.
    pub(crate) fn is_left_behind(&self, attempt: &Attempt<R>) -> bool {
        let place = self.destinations.place(attempt.destination);
        let is_elsewhere = attempt.next_hop.is_some_and(|NextHop(old)| old != place.hop);
        attempt.edition != self.edition && is_elsewhere && !place.is_transient
    }

    /// Those who wait for destinations that have moved are due now, and have no error yet.
    pub(crate) fn hasten_moved(&mut self, now: Timestamp) {
        if self.moved_at.is_none_or(|at| at > now) {
            return;
        }
        self.moved_at = None;
        let has_moved = |recipient: &Recipient| self.destinations.place(recipient.destination).has_moved;
        let moved = self.recipients.entries().filter(|(_, recipient)| has_moved(recipient));
        let moved: Vec<u32> = moved.map(|(index, _)| index).collect();
        self.waiting.hasten(now, |index| has_moved(&self.recipients[index]));
        for index in moved {
            self.errors.leave(std::mem::replace(&mut self.recipients[index].error, ErrorNumber::NONE));
        }
        self.destinations.settle_moves();
    }

    /// Whether somebody waits in a queue that is retired and can be sorted anew.
    pub fn has_retired(&self) -> bool {
        let has_some =
            |lane: &Lane| [Stage::Waiting, Stage::Ready, Stage::Held].iter().any(|s| lane.census[*s as usize] > 0);
        self.config.queues.iter().zip(&self.lanes).any(|(queue, lane)| queue.retired && has_some(lane))
    }

    /// Chooses all who wait in retired queues, in one pass over everybody: they come out of `next` as attempts of
    /// [`Purpose::Sort`]. Returns how many.
    pub fn pick_retired(&mut self) -> usize {
        let is_retired = |index: u32| self.queue(self.destination_queue(self.recipients[index].destination)).retired;
        let chosen = self.everyone().filter(|&(index, progress)| progress != Progress::InFlight && is_retired(index));
        let chosen = chosen.map(|(index, _)| index).collect();
        self.take_out(Purpose::Sort, chosen)
    }

    /// Chooses those among all who wait of whom `is_meant` says so, in one pass over everybody: they come out of `next`
    /// as attempts of [`Purpose::Sort`]. It is told the name of the destination, and asked of those in flight as well,
    /// who stay where they are. Returns how many were chosen.
    pub fn pick_to_sort(&mut self, is_meant: &mut dyn FnMut(&Entry, &str) -> bool) -> usize {
        let mut chosen = Vec::new();
        for (index, progress) in self.everyone() {
            let entry = self.entry(index, progress);
            if is_meant(&entry, self.destination_name(entry.destination)) && progress != Progress::InFlight {
                chosen.push(index);
            }
        }
        self.take_out(Purpose::Sort, chosen)
    }

    /// Nobody is adopted any more.
    fn release_all(&mut self) {
        let adopted: Vec<u32> = self.hops.iter().filter(|(_, hop)| hop.adopted).map(|(hop, _)| hop).collect();
        for hop in adopted {
            self.hops[hop].adopted = false;
            self.move_slots(hop, true);
        }
    }

    fn settle_all(&mut self, now: Timestamp) {
        let all: Vec<u32> = self.hops.iter().map(|(hop, _)| hop).collect();
        for hop in all {
            self.release_if_due(now, hop);
            self.settle(now, hop);
        }
    }
}
