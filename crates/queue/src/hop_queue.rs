//! Hop queues: the mail of one queue for one next hop in one class, and the rounds in which a queue
//! schedules them.
//!
//! | the hop queue has | its next hop | it is scheduled |
//! |---|---|---|
//! | no ready recipients | | nowhere: it costs nothing |
//! | ready recipients | has no capacity | nowhere: its queue does not see it |
//! | ready recipients | has capacity | in its class, by the queue that serves the next hop now |
//! | ready recipients | is dead, no probe due | for refusal, by that queue |

use crate::QueueNumber;
use crate::pages::Slab;
use crate::round_robin::{HasRoundNode, RoundNode, RoundRobin};
use crate::senders::MessageClass;

/// The destinations of one queue and class that share a next hop.
pub(crate) struct HopQueue {
    pub(crate) domain_queues: RoundRobin,
    pub(crate) hop: u32,
    class: MessageClass,
    round_node: RoundNode,
    /// Where it is scheduled, or was last.
    position: SchedulePosition,
    is_scheduled: bool,
}

/// The rounds of one class in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SchedulePosition {
    pub(crate) queue: QueueNumber,
    pub(crate) service_class: ServiceClass,
}

/// What happens to recipients when it is their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceClass {
    Single,
    Bulk,
    Refused,
}

impl HasRoundNode for HopQueue {
    fn round_node(&mut self) -> &mut RoundNode {
        &mut self.round_node
    }
}

impl From<MessageClass> for ServiceClass {
    fn from(class: MessageClass) -> Self {
        match class {
            MessageClass::Single => ServiceClass::Single,
            MessageClass::Bulk => ServiceClass::Bulk,
        }
    }
}

/// All hop queues, and the rounds of all queues.
pub(crate) struct HopQueues {
    hop_queues: Slab<HopQueue>,
    schedules: Vec<QueueSchedule>,
    single_share: u32,
}

/// The rounds of one queue.
struct QueueSchedule {
    rounds: [RoundRobin; 3],
    /// Turns of single messages since the last turn of bulk mail, while bulk mail was ready.
    singles_in_a_row: u32,
}

impl HopQueues {
    pub(crate) fn new(queues: usize, single_share: u32) -> Self {
        let mut hop_queues = HopQueues { hop_queues: Slab::new(), schedules: Vec::new(), single_share: 1 };
        hop_queues.reconfigure(queues, single_share);
        hop_queues
    }

    /// Sets the number of queues, which never shrinks, and the share of single messages.
    pub(crate) fn reconfigure(&mut self, queues: usize, single_share: u32) {
        self.schedules.resize_with(queues, || QueueSchedule { rounds: [RoundRobin::EMPTY; 3], singles_in_a_row: 0 });
        self.single_share = single_share.max(1);
    }

    pub(crate) fn create(&mut self, hop: u32, home: QueueNumber, class: MessageClass) -> u32 {
        let position = SchedulePosition { queue: home, service_class: class.into() };
        self.hop_queues.insert(HopQueue {
            domain_queues: RoundRobin::EMPTY,
            hop,
            class,
            round_node: RoundNode::NEW,
            position,
            is_scheduled: false,
        })
    }

    /// Removes a hop queue, which must be empty.
    pub(crate) fn remove(&mut self, hop_queue: u32) {
        self.set_position(hop_queue, None);
        self.hop_queues.remove(hop_queue);
    }

    pub(crate) fn get(&self, hop_queue: u32) -> &HopQueue {
        &self.hop_queues[hop_queue]
    }

    pub(crate) fn get_mut(&mut self, hop_queue: u32) -> &mut HopQueue {
        &mut self.hop_queues[hop_queue]
    }

    /// The class of a hop queue whose next hop has capacity.
    pub(crate) fn service_class(&self, hop_queue: u32) -> ServiceClass {
        self.hop_queues[hop_queue].class.into()
    }

    /// Schedules a hop queue, or removes it from all rounds. It keeps the rounds to skip only if
    /// it returns to the same place.
    pub(crate) fn set_position(&mut self, index: u32, position: Option<SchedulePosition>) {
        let hop_queue = &self.hop_queues[index];
        let (last, is_standing) = (hop_queue.position, hop_queue.is_scheduled);
        if is_standing && position != Some(last) {
            let (rounds, hop_queues) = self.rounds_mut(last);
            rounds.remove(hop_queues, index);
        }
        if let Some(position) = position {
            let (rounds, hop_queues) = self.rounds_mut(position);
            if position != last {
                rounds.insert(hop_queues, index);
            } else if !is_standing {
                rounds.reinsert(hop_queues, index);
            }
        }
        let hop_queue = &mut self.hop_queues[index];
        hop_queue.is_scheduled = position.is_some();
        hop_queue.position = position.unwrap_or(last);
    }

    /// Ends the turn of a hop queue that took `cost` recipients; it is not scheduled now.
    pub(crate) fn finish_turn(&mut self, index: u32, cost: usize) {
        let position = self.hop_queues[index].position;
        self.hop_queues[index].is_scheduled = false;
        let (rounds, hop_queues) = self.rounds_mut(position);
        rounds.take(hop_queues, index, cost);
    }

    /// The hop queue whose recipients are refused next.
    pub(crate) fn next_refused(&self, queue: QueueNumber) -> Option<u32> {
        self.schedule(queue).rounds[ServiceClass::Refused as usize].first()
    }

    /// The hop queue whose turn is next: single messages before bulk mail, by their share.
    pub(crate) fn next_hop_queue(&self, queue: QueueNumber) -> Option<u32> {
        let lane = self.schedule(queue);
        let (single, bulk) =
            (lane.rounds[ServiceClass::Single as usize].first(), lane.rounds[ServiceClass::Bulk as usize].first());
        if lane.singles_in_a_row < self.single_share { single.or(bulk) } else { bulk.or(single) }
    }

    /// Counts a turn for the shares.
    pub(crate) fn count_turn(&mut self, hop_queue: u32) {
        let SchedulePosition { queue, service_class } = self.hop_queues[hop_queue].position;
        let lane = &mut self.schedules[usize::from(queue.0)];
        let bulk_waits = !lane.rounds[ServiceClass::Bulk as usize].is_empty();
        let is_single = service_class == ServiceClass::Single;
        lane.singles_in_a_row = if is_single && bulk_waits { lane.singles_in_a_row + 1 } else { 0 };
    }

    fn schedule(&self, queue: QueueNumber) -> &QueueSchedule {
        &self.schedules[usize::from(queue.0)]
    }

    /// The rounds at a position, and the hop queues.
    fn rounds_mut(&mut self, position: SchedulePosition) -> (&mut RoundRobin, &mut Slab<HopQueue>) {
        (
            &mut self.schedules[usize::from(position.queue.0)].rounds[position.service_class as usize],
            &mut self.hop_queues,
        )
    }
}
