//! New settings and new routes while mail is queued.
//!
//! | what changes | what happens to the mail |
//! |---|---|
//! | the settings of a queue | the next turn and the next verdict use the new ones |
//! | a new queue | it takes what is admitted to it |
//! | a removed queue: it is *retired* | attempts in flight end; all other recipients leave it to be classified again ([`AttemptPurpose::Reclassify`]) |
//! | the caller's rules | the recipients the caller selects leave to be classified again ([`Queues::pick_recipients_to_reclassify`]) |
//! | the routes | no recipient leaves by an old route; each route is requested again, and recipients whose next hop changed are due; not while the new route is transient |
//!
//! Queue numbers never change, because attempts, destinations and the caller's rules contain them.
//! A retired queue keeps its place in the settings, and one that returns under its old name gets
//! its old number.

use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::attempt::{Attempt, AttemptPurpose, NextHopId};
use crate::config::{QueueNumber, SchedulerConfig};
use crate::error_table::ErrorNumber;
use crate::recipient::{QueuedRecipient, RecipientStage};
use crate::{DestinationId, HopAdoptionPolicy, PauseTarget, QueueStatus, Queues, RecipientProgress, RecipientView};

/// How long changed routes are collected before looking for affected recipients, which is one pass
/// over all.
const MOVED_CHECK_DELAY: Duration = Duration::from_secs(1);

impl SchedulerConfig {
    /// The queue that adopts, if any.
    pub(crate) fn adopter(&self) -> Option<(QueueNumber, HopAdoptionPolicy)> {
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
    pub fn reconfigure(&mut self, now: Timestamp, config: SchedulerConfig) {
        let mut places = self.config.queues.iter().zip(&config.queues);
        let is_kept = config.queues.len() >= self.statuses.len() && places.all(|(old, new)| old.name == new.name);
        assert!(is_kept, "a queue is missing or has moved in the new settings");
        let adopter = config.adopter();
        if self.adopter.as_ref().map(|(queue, _)| *queue) != adopter.as_ref().map(|(queue, _)| *queue) {
            self.release_all_adopted();
        }
        self.adopter = adopter;
        self.statuses.resize_with(config.queues.len(), QueueStatus::default);
        self.destinations.resize(config.queues.len());
        self.ready.reconfigure(config.queues.len(), config.policy.bulk_above, config.policy.single_share);
        // A queue that returns under a retired name is not paused, and its mail may leave.
        for (number, queue) in (0..).map(QueueNumber).zip(&config.queues) {
            if queue.retired && self.pauses.remove(&PauseTarget::Queue(number)) {
                self.statuses[usize::from(number.0)].is_paused = false;
            }
        }
        self.config = config;
        self.update_all_next_hops(now);
    }

    /// Invalidates all routes: no recipient leaves by an old one, and routes are requested again
    /// for all destinations with recipients. Requests that are open stay open; answer them with
    /// what holds now. When the first route that is not
    /// [`NextHopRoute::transient`](crate::NextHopRoute::transient) names another next hop, the
    /// recipients are due a second later and their last error is cleared.
    pub fn invalidate_routes(&mut self, now: Timestamp) {
        self.routing_version = self.routing_version.wrapping_add(1);
        for destination in self.destinations.expire_routes(|hop| Arc::clone(&self.hops[hop].name)) {
            self.require_route(now, destination);
        }
    }

    /// Called when a destination was routed: if it has moved, its waiting recipients are looked for
    /// soon.
    pub(crate) fn note_moved_destination(&mut self, now: Timestamp, destination: DestinationId) {
        if self.destinations.state(destination).has_moved {
            self.moved_check_at.get_or_insert(now + MOVED_CHECK_DELAY);
        }
    }

    /// Whether an attempt ended at a next hop that its destination has left since the attempt
    /// began.
    pub(crate) fn has_moved_since(&self, attempt: &Attempt<R>) -> bool {
        let place = self.destinations.state(attempt.destination);
        let is_elsewhere = attempt.next_hop.is_some_and(|NextHopId(old)| old != place.hop);
        attempt.routing_version != self.routing_version && is_elsewhere && !place.is_transient
    }

    /// Makes waiting recipients of moved destinations due now and clears their errors.
    pub(crate) fn retry_moved(&mut self, now: Timestamp) {
        if self.moved_check_at.is_none_or(|at| at > now) {
            return;
        }
        self.moved_check_at = None;
        let has_moved = |recipient: &QueuedRecipient| self.destinations.state(recipient.destination).has_moved;
        let moved = self.recipients.entries().filter(|(_, recipient)| has_moved(recipient));
        let moved: Vec<u32> = moved.map(|(index, _)| index).collect();
        self.waiting.make_due(now, |index| has_moved(&self.recipients[index]));
        for index in moved {
            self.errors.release(std::mem::replace(&mut self.recipients[index].error, ErrorNumber::NONE));
        }
        self.destinations.clear_moved();
    }

    /// Whether a retired queue has recipients that can be classified again.
    pub fn has_retired_recipients(&self) -> bool {
        let has_some = |lane: &QueueStatus| {
            [RecipientStage::Waiting, RecipientStage::Ready, RecipientStage::Held]
                .iter()
                .any(|s| lane.stage_counts[*s as usize] > 0)
        };
        self.config.queues.iter().zip(&self.statuses).any(|(queue, lane)| queue.retired && has_some(lane))
    }

    /// Picks all recipients in retired queues that are not in flight, in one pass over all. They
    /// come out of `next` as attempts of [`AttemptPurpose::Reclassify`]. Returns their number.
    pub fn pick_retired_recipients(&mut self) -> usize {
        let is_retired = |index: u32| self.queue(self.destination_queue(self.recipients[index].destination)).retired;
        let chosen = self
            .all_recipients()
            .filter(|&(index, progress)| progress != RecipientProgress::InFlight && is_retired(index));
        let chosen = chosen.map(|(index, _)| index).collect();
        self.pick_recipients(AttemptPurpose::Reclassify, None, chosen)
    }

    /// Picks the recipients for which `should_reclassify` returns true, in one pass over all. They
    /// come out of `next` as attempts of [`AttemptPurpose::Reclassify`]. `should_reclassify` also
    /// gets the name of the destination, and is called for recipients in flight too, which are not
    /// picked. Returns the number picked.
    pub fn pick_recipients_to_reclassify(
        &mut self,
        should_reclassify: &mut dyn FnMut(&RecipientView, &str) -> bool,
    ) -> usize {
        let mut chosen = Vec::new();
        for (index, progress) in self.all_recipients() {
            let entry = self.recipient_view(index, progress);
            if should_reclassify(&entry, self.destination_name(entry.destination))
                && progress != RecipientProgress::InFlight
            {
                chosen.push(index);
            }
        }
        self.pick_recipients(AttemptPurpose::Reclassify, None, chosen)
    }

    /// Releases all adopted next hops.
    fn release_all_adopted(&mut self) {
        let adopted: Vec<u32> = self.hops.iter().filter(|(_, hop)| hop.adopted).map(|(hop, _)| hop).collect();
        for hop in adopted {
            self.hops[hop].adopted = false;
            self.move_slots(hop, true);
        }
    }

    fn update_all_next_hops(&mut self, now: Timestamp) {
        let all: Vec<u32> = self.hops.iter().map(|(hop, _)| hop).collect();
        for hop in all {
            self.release_if_due(now, hop);
            self.update_next_hop(now, hop);
        }
    }
}
