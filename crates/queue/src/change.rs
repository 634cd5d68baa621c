//! New settings and new routes while mail is queued.
//!
//! | what changes | what happens to the mail |
//! |---|---|
//! | the settings of a queue | the next turn and the next verdict use the new ones |
//! | a new queue | it takes what is admitted to it |
//! | a removed queue: it is *retired* | attempts in flight end; all other recipients leave it to be classified again ([`Purpose::Sort`]) |
//! | the caller's rules | the recipients the caller selects leave to be classified again ([`Queues::pick_to_sort`]) |
//! | the routes | no recipient leaves by an old route; each route is requested again, and recipients whose next hop changed are due; not while the new route is transient |
//!
//! Queue numbers never change, because attempts, destinations and the caller's rules contain them.
//! A retired queue keeps its place in the settings, and one that returns under its old name gets
//! its old number.

use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::attempt::{Attempt, NextHop, Purpose};
use crate::config::{Config, QueueNumber};
use crate::errors::ErrorNumber;
use crate::recipient::{Recipient, Stage};
use crate::{Adopt, Destination, Entry, Lane, Progress, Queues};

/// How long changed routes are collected before looking for affected recipients, which is one pass
/// over all.
const MOVES_GATHER: Duration = Duration::from_secs(1);

impl Config {
    /// The queue that adopts, if any.
    pub(crate) fn adopter(&self) -> Option<(QueueNumber, Adopt)> {
        let numbered = (0..).map(QueueNumber).zip(&self.queues).filter(|(_, queue)| !queue.retired);
        numbered.into_iter().find_map(|(number, queue)| Some((number, queue.adopts.clone()?)))
    }
}

impl<R: Clone> Queues<R> {
    /// Applies new settings. They contain all existing queues in their places; removed ones are
    /// marked [`retired`](crate::QueueConfig::retired), new ones come last.
    ///
    /// # Panics
    /// If a queue is missing or has moved to another place.
    pub fn change(&mut self, now: Timestamp, config: Config) {
        let mut places = self.config.queues.iter().zip(&config.queues);
        let is_kept = config.queues.len() >= self.lanes.len() && places.all(|(old, new)| old.name == new.name);
        assert!(is_kept, "a queue is missing or has moved in the new settings");
        let adopter = config.adopter();
        if self.adopter.as_ref().map(|(queue, _)| *queue) != adopter.as_ref().map(|(queue, _)| *queue) {
            self.release_all();
        }
        self.adopter = adopter;
        self.lanes.resize_with(config.queues.len(), Lane::default);
        self.destinations.resize(config.queues.len());
        self.turns.change(config.queues.len(), config.mailing_above, config.letters_share);
        // A queue that returns under a retired name is not paused, and its mail may leave.
        let lanes = self.lanes.iter_mut().zip(&config.queues).filter(|(_, queue)| queue.retired);
        lanes.for_each(|(lane, _)| lane.is_paused = false);
        self.config = config;
        self.settle_all(now);
    }

    /// Invalidates all routes: no recipient leaves by an old one, and routes are requested again
    /// for all destinations with recipients. Requests that are open stay open; answer them with
    /// what holds now. When the first route that is not
    /// [`Routed::transient`](crate::Routed::transient) names another next hop, the recipients are
    /// due a second later and their last error is cleared.
    pub fn reroute(&mut self, now: Timestamp) {
        self.edition = self.edition.wrapping_add(1);
        for destination in self.destinations.outdate(|hop| Arc::clone(&self.hops[hop].name)) {
            self.look_up(now, destination);
        }
    }

    /// Called when a destination was routed: if it has moved, its waiting recipients are looked for
    /// soon.
    pub(crate) fn note_move(&mut self, now: Timestamp, destination: Destination) {
        if self.destinations.place(destination).has_moved {
            self.moved_at.get_or_insert(now + MOVES_GATHER);
        }
    }

    /// Whether an attempt ended at a next hop that its destination has left since the attempt
    /// began.
    pub(crate) fn is_left_behind(&self, attempt: &Attempt<R>) -> bool {
        let place = self.destinations.place(attempt.destination);
        let is_elsewhere = attempt.next_hop.is_some_and(|NextHop(old)| old != place.hop);
        attempt.edition != self.edition && is_elsewhere && !place.is_transient
    }

    /// Makes waiting recipients of moved destinations due now and clears their errors.
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

    /// Whether a retired queue has recipients that can be classified again.
    pub fn has_retired(&self) -> bool {
        let has_some =
            |lane: &Lane| [Stage::Waiting, Stage::Ready, Stage::Held].iter().any(|s| lane.census[*s as usize] > 0);
        self.config.queues.iter().zip(&self.lanes).any(|(queue, lane)| queue.retired && has_some(lane))
    }

    /// Picks all recipients in retired queues that are not in flight, in one pass over all. They
    /// come out of `next` as attempts of [`Purpose::Sort`]. Returns their number.
    pub fn pick_retired(&mut self) -> usize {
        let is_retired = |index: u32| self.queue(self.destination_queue(self.recipients[index].destination)).retired;
        let chosen = self.everyone().filter(|&(index, progress)| progress != Progress::InFlight && is_retired(index));
        let chosen = chosen.map(|(index, _)| index).collect();
        self.take_out(Purpose::Sort, chosen)
    }

    /// Picks the recipients for which `is_meant` returns true, in one pass over all. They come out
    /// of `next` as attempts of [`Purpose::Sort`]. `is_meant` also gets the name of the
    /// destination, and is called for recipients in flight too, which are not picked. Returns the
    /// number picked.
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

    /// Releases all adopted next hops.
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
