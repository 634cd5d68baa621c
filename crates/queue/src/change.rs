//! Other settings, and other ways, while mail waits.
//!
//! | what changes | what becomes of the mail |
//! |---|---|
//! | the settings of a queue | the next turn, the next verdict goes by the new ones |
//! | a queue more | it takes what is admitted to it |
//! | a queue less: it is *retired* | what is in flight ends; all else leaves it to be sorted anew ([`Purpose::Sort`]) |
//! | the ways | nobody leaves by one that was found before; each is asked for again when somebody is ready |
//!
//! A queue keeps its number as long as there are queues: numbers are in attempts, destinations and the caller's rules.
//! So a retired one keeps its place in the settings, and one that comes back under its name has the number that it had.

use mail::Timestamp;

use crate::attempt::Purpose;
use crate::config::{Config, QueueNumber};
use crate::recipient::Stage;
use crate::{Adopt, Lane, Queues};

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
        self.config = config;
        self.settle_all(now);
    }

    /// All ways may be others: nobody leaves by one that was answered before, and where somebody is ready it is asked
    /// for at once. Questions that are open stay open: whoever answers one now is to say what holds now.
    pub fn reroute(&mut self, now: Timestamp) {
        for destination in self.destinations.outdate() {
            if self.turns.has_ready(destination) {
                self.look_up(now, destination);
            }
        }
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
        let chosen =
            self.everyone().filter(|&(index, progress)| progress != crate::Progress::InFlight && is_retired(index));
        let chosen = chosen.map(|(index, _)| index).collect();
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
