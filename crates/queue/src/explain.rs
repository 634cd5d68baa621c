//! Listings, and the reasons why a destination waits. Read-only views.

use std::collections::HashMap;
use std::ops::Range;

use mail::{QueueId, Timestamp};

use crate::attempt::NextHopId;
use crate::next_hop_state::NextHopState;
use crate::recipient::{QueuedMessage, QueuedRecipient, RecipientStage};
use crate::{
    BlockReason, ConcurrencyReason, DestinationId, DestinationView, NextHopView, PauseTarget, QueueNumber, QueueView,
    Queues, RecipientProgress, RecipientView,
};

impl<R: Clone> Queues<R> {
    /// All recipients, in no particular order.
    pub fn recipient_views(&self) -> impl Iterator<Item = RecipientView> + '_ {
        self.all_recipients().map(|(index, progress)| self.recipient_view(index, progress))
    }

    /// The recipients in these slots, with the slot of each, in their order. A recipient keeps its slot
    /// as long as it is queued, so whoever reads all slots part by part sees each recipient once that is
    /// there all the time. What this costs depends on the number of slots; and if any recipient in
    /// them waits, on the number of all that wait, with a comparison for each.
    pub fn recipients_in_slots(&self, slots: Range<u32>) -> Vec<(u32, RecipientView)> {
        self.views_of(self.recipients.used_slots(slots).collect())
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> u32 {
        self.recipients.slot_count()
    }

    /// The queued recipients of a message. What this costs depends on their number; and if any of them
    /// waits, on the number of all that wait, with a comparison for each.
    pub fn message_recipients(&self, id: QueueId) -> Vec<RecipientView> {
        self.recipients_of_messages(&[id])
    }

    /// The queued recipients of these messages, each once. However many messages these are, this looks at all
    /// that wait once at the most.
    pub fn recipients_of_messages(&self, ids: &[QueueId]) -> Vec<RecipientView> {
        let views = self.views_of(self.message_index.slots_of_all(ids));
        views.into_iter().map(|(_, view)| view).collect()
    }

    /// All known next hops, including recently used ones.
    pub fn next_hop_views(&self) -> impl Iterator<Item = NextHopView<'_>> {
        self.hops.iter().map(|(number, hop)| self.next_hop_view(number, hop))
    }

    /// At most `limit` next hops with the most recipients, queued or in flight, and how many each has;
    /// by number and then by name. One pass over the destinations.
    pub fn largest_next_hops(&self, limit: usize) -> Vec<(NextHopView<'_>, usize)> {
        if limit == 0 {
            return Vec::new();
        }
        let mut recipients: HashMap<u32, usize> = HashMap::new();
        for (destination, _, _, count) in self.destinations.occupied() {
            let state = self.destinations.state(destination);
            if state.is_routed {
                *recipients.entry(state.hop).or_default() += count;
            }
        }
        let mut largest: Vec<_> = recipients
            .into_iter()
            .filter_map(|(number, count)| Some((number, self.hops.known(number)?, count)))
            .collect();
        let order = |one: &(u32, &NextHopState, usize), other: &(u32, &NextHopState, usize)| {
            other.2.cmp(&one.2).then_with(|| one.1.name.cmp(&other.1.name))
        };
        if largest.len() > limit {
            largest.select_nth_unstable_by(limit, order);
            largest.truncate(limit);
        }
        largest.sort_unstable_by(order);
        largest.into_iter().map(|(number, hop, count)| (self.next_hop_view(number, hop), count)).collect()
    }

    fn next_hop_view<'a>(&'a self, number: u32, hop: &'a NextHopState) -> NextHopView<'a> {
        NextHopView {
            number: NextHopId(number),
            name: &hop.name,
            destinations: hop.destinations as usize,
            attempts: hop.slots,
            concurrency: self.concurrency(hop),
            concurrency_reason: self.concurrency_reason(hop),
            policy: &hop.limits.concurrency,
            adopted_by: self.adopter_of(hop),
            pause: self.pauses.next_hop(&hop.name),
            failures: hop.failures,
            probe_at: hop.probe_at(),
            rate_free_at: hop.rate_free_at(self.last_now),
            error: hop.error.as_ref(),
        }
    }

    /// All destinations with recipients, in no order.
    pub fn destination_views(&self) -> impl Iterator<Item = DestinationView<'_>> {
        self.destinations.occupied().map(|(number, name, queue, recipients)| DestinationView {
            number,
            name,
            queue,
            recipients,
            next_hop: self.destination_next_hop_name(number),
            pause: self.pauses.destination(name),
        })
    }

    /// All queues, in the order of their numbers.
    pub fn queue_views(&self) -> impl Iterator<Item = QueueView<'_>> {
        (0..).map(QueueNumber).zip(&self.statuses).map(|(number, lane)| {
            let config = self.queue(number);
            QueueView {
                number,
                name: &config.name,
                attempts: lane.slots,
                concurrency: config.concurrency,
                pause: self.pauses.find(&PauseTarget::Queue(number)),
                retired: config.retired,
                waiting: lane.stage_counts[RecipientStage::Waiting as usize],
                ready: lane.stage_counts[RecipientStage::Ready as usize],
                in_flight: [RecipientStage::InFlight, RecipientStage::Picked, RecipientStage::PickedToGoOn]
                    .map(|stage| lane.stage_counts[stage as usize])
                    .iter()
                    .sum(),
                held: lane.stage_counts[RecipientStage::Held as usize],
            }
        })
    }

    /// The name of the next hop of a destination, or None while it has no valid route.
    pub fn destination_next_hop_name(&self, destination: DestinationId) -> Option<&str> {
        let place = self.destinations.state(destination);
        self.hops.known(place.hop).filter(|_| place.is_routed).map(|hop| &*hop.name)
    }

    /// Everything that blocks a destination now, whether or not recipients wait for it, strongest
    /// first. Empty if recipients only wait for their turn, for their due time, or for the
    /// operator.
    pub fn block_reasons(&self, now: Timestamp, destination: DestinationId) -> Vec<BlockReason> {
        let mut obstacles = Vec::new();
        if self.is_stopped {
            obstacles.push(BlockReason::Stopped);
        }
        let (attempts, most) = (self.unrecorded, self.config.policy.unrecorded_max);
        if attempts >= most {
            obstacles.push(BlockReason::Unrecorded { attempts, max: most });
        }
        let place = self.destinations.state(destination);
        let hop = self.hops.known(place.hop).filter(|_| place.is_routed);
        let queue = if hop.is_some() { self.serving_queue(place.hop, place.queue) } else { place.queue };
        if !self.is_open(queue) {
            obstacles.push(BlockReason::Paused(queue));
        }
        match (hop, self.pauses.destination(self.destination_name(destination))) {
            (Some(hop), _) => self.explain_hop(now, hop, queue, &mut obstacles),
            (None, Some(until)) => obstacles.push(BlockReason::DestinationPaused { until }),
            (None, None) => obstacles.push(BlockReason::NoRoute),
        }
        let (attempts, most) = (self.statuses[usize::from(queue.0)].slots, self.queue(queue).concurrency);
        if self.is_open(queue) && attempts >= most {
            obstacles.push(BlockReason::QueueFull { queue, attempts, max: most });
        }
        if let (Some(hop), Some((queue, adopt))) = (hop.filter(|hop| hop.adopted), &self.adopter) {
            let (release_after, since) = (adopt.release_after, hop.trouble_at);
            obstacles.push(BlockReason::Adopted { queue: *queue, release_after, since });
        }
        obstacles
    }

    /// What holds a next hop now, for mail of this queue, whether or not it has any: strongest first.
    pub fn next_hop_block_reasons(&self, now: Timestamp, next_hop: NextHopId, queue: QueueNumber) -> Vec<BlockReason> {
        let mut obstacles = Vec::new();
        if let Some(hop) = self.hops.known(next_hop.0) {
            self.explain_hop(now, hop, self.serving_queue(next_hop.0, queue), &mut obstacles);
        }
        obstacles
    }

    /// All recipients with their progress. Due times come from the heap.
    pub(crate) fn all_recipients(&self) -> impl Iterator<Item = (u32, RecipientProgress)> + '_ {
        let others = self.recipients.entries().filter_map(|(index, recipient)| match recipient.stage {
            RecipientStage::Waiting => None,
            RecipientStage::Ready => Some((index, RecipientProgress::Ready)),
            RecipientStage::InFlight | RecipientStage::Picked | RecipientStage::PickedToGoOn => {
                Some((index, RecipientProgress::InFlight))
            }
            RecipientStage::Held => Some((index, RecipientProgress::Held)),
        });
        others.chain(self.waiting.iter().map(|wake| (wake.recipient, RecipientProgress::Waiting(wake.due))))
    }

    /// The views of these recipients, whose indexes ascend. The heap is only searched if one of them
    /// waits.
    pub(crate) fn views_of(&self, indexes: Vec<u32>) -> Vec<(u32, RecipientView)> {
        let mut due = vec![Timestamp::default(); indexes.len()];
        let waits = |index: &&u32| self.recipients[**index].stage == RecipientStage::Waiting;
        if let (Some(_), Some(first), Some(last)) = (indexes.iter().find(waits), indexes.first(), indexes.last()) {
            let near = self.waiting.iter().filter(|wake| (*first..=*last).contains(&wake.recipient));
            for wake in near {
                if let Ok(place) = indexes.binary_search(&wake.recipient) {
                    due[place] = wake.due;
                }
            }
        }
        let progress = |index: u32, due: Timestamp| match self.recipients[index].stage {
            RecipientStage::Waiting => RecipientProgress::Waiting(due),
            RecipientStage::Ready => RecipientProgress::Ready,
            RecipientStage::InFlight | RecipientStage::Picked | RecipientStage::PickedToGoOn => {
                RecipientProgress::InFlight
            }
            RecipientStage::Held => RecipientProgress::Held,
        };
        let view = |(index, due): (u32, Timestamp)| (index, self.recipient_view(index, progress(index, due)));
        indexes.into_iter().zip(due).map(view).collect()
    }

    pub(crate) fn recipient_view(&self, index: u32, progress: RecipientProgress) -> RecipientView {
        let &QueuedRecipient { message, ordinal, destination, attempts, error, .. } = &self.recipients[index];
        let &QueuedMessage { id, accepted_at, .. } = &self.messages[message];
        RecipientView { id, ordinal, destination, attempts, accepted_at, progress, error: self.errors.text(error) }
    }

    fn explain_hop(&self, now: Timestamp, hop: &NextHopState, queue: QueueNumber, obstacles: &mut Vec<BlockReason>) {
        if let Some(until) = self.pauses.next_hop(&hop.name) {
            obstacles.push(BlockReason::NextHopPaused { until });
        }
        if let (Some(probe_at), Some(error)) = (hop.probe_at(), &hop.error) {
            obstacles.push(BlockReason::Dead { probe_at, error: error.clone() });
        }
        if let (Some(interrupted), Some(error)) = (hop.interruption(now), &hop.error) {
            let (messages, resume_at) = (interrupted.count(), interrupted.resume_at());
            obstacles.push(BlockReason::Suspect { messages, resume_at, error: error.clone() });
        }
        if let Some(until) = hop.rate_free_at(now).filter(|&at| at > now) {
            obstacles.push(BlockReason::Rate { until });
        }
        let (attempts, most) = (hop.slots, hop.concurrency().min(self.per_next_hop_cap(queue)));
        if attempts >= most {
            obstacles.push(BlockReason::NextHopFull { attempts, max: most });
        } else if let Some(granted) = hop.used_up_slots() {
            let max = hop.limits.concurrency.max.max(1);
            obstacles.push(BlockReason::SlotsElsewhere { attempts, granted, max });
        }
    }

    /// The concurrency of a next hop, including the limit of the queue that has adopted it.
    fn concurrency(&self, hop: &NextHopState) -> usize {
        hop.concurrency().min(self.adopter_of(hop).map_or(usize::MAX, |queue| self.per_next_hop_cap(queue)))
    }

    fn concurrency_reason(&self, hop: &NextHopState) -> ConcurrencyReason {
        let adopter = self.adopter_of(hop).filter(|queue| self.per_next_hop_cap(*queue) <= hop.concurrency());
        adopter.map_or_else(|| hop.concurrency_reason(), ConcurrencyReason::Adopted)
    }

    /// The queue that has adopted it.
    fn adopter_of(&self, hop: &NextHopState) -> Option<QueueNumber> {
        self.adopter.as_ref().map(|&(queue, _)| queue).filter(|_| hop.adopted)
    }
}
