//! Destinations: the recipient domains of each queue, interned as small numbers, with their routes.
//!
//! | a destination has | it is kept |
//! |---|---|
//! | recipients, queued or in flight, or an open route request | yes |
//! | none any more | for ten minutes with its route, while there are fewer than 10,000 such; then its number may be reused |
//! | none yet | until the next `report_verdicts`, so that recipients can be admitted |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::idle_ring::{IdleMark, IdleRing};
use crate::intrusive_list::NONE;
use crate::pages::Slab;
use crate::{NextHopRoute, QueueNumber};

/// Destinations that are kept without recipients.
const IDLE_NUMBER_MAX: usize = 10_000;
/// And how long each is kept.
const IDLE_TIME_MAX: Duration = Duration::from_secs(600);

/// A recipient domain of one queue, interned by
/// [`Queues::destination`](crate::Queues::intern_destination).
///
/// It is valid while it has recipients, queued or in flight, while a route request for it is open,
/// and until the next report after it was interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationId(pub(crate) u32);

/// The domains in use. The tree is ordered, not hashed: no rehashing pause, and no input makes it
/// slow.
pub(crate) struct Destinations<R> {
    states: Slab<DestinationState<R>>,
    /// The names of each queue.
    numbers: Vec<BTreeMap<Arc<str>, DestinationId>>,
    unrouted: VecDeque<DestinationId>,
    idle: IdleRing,
    /// How many destinations have recipients.
    with_recipients: usize,
}

pub(crate) struct DestinationState<R> {
    name: Arc<str>,
    pub(crate) queue: QueueNumber,
    recipients: u32,
    /// The next hop, or [`NONE`] if there is no route. It is kept after the route expires.
    pub(crate) hop: u32,
    pub(crate) route: Option<R>,
    pub(crate) until: Timestamp,
    /// Its domain queues are in the hop queues of the next hop.
    pub(crate) is_routed: bool,
    is_requested: bool,
    /// Whether its last route was [transient](crate::NextHopRoute::transient).
    pub(crate) is_transient: bool,
    /// The name of the next hop before all routes were invalidated, until a lasting route arrives.
    /// A name, because numbers are reused.
    next_hop_before_reroute: Option<Arc<str>>,
    /// That route named another next hop, and waiting recipients have not been updated.
    pub(crate) has_moved: bool,
    idle_mark: IdleMark,
}

impl<R> Destinations<R> {
    pub(crate) fn new(queues: usize) -> Self {
        Destinations {
            states: Slab::new(),
            numbers: (0..queues).map(|_| BTreeMap::new()).collect(),
            unrouted: VecDeque::new(),
            idle: IdleRing::new(IDLE_NUMBER_MAX, IDLE_TIME_MAX),
            with_recipients: 0,
        }
    }

    /// Sets the number of queues, which never shrinks.
    pub(crate) fn resize(&mut self, queues: usize) {
        self.numbers.resize_with(queues, BTreeMap::new);
    }

    /// Expires all routes and returns the destinations that have recipients. `name` returns the
    /// name of a next hop.
    pub(crate) fn expire_routes(&mut self, name: impl Fn(u32) -> Arc<str>) -> Vec<DestinationId> {
        let all: Vec<u32> = self.states.entries().map(|(index, _)| index).collect();
        for &index in &all {
            let place = &mut self.states[index];
            place.until = Timestamp::default();
            if place.hop != NONE {
                // If no lasting route has arrived since the previous reroute, keep the older name.
                place.next_hop_before_reroute.get_or_insert_with(|| name(place.hop));
            }
        }
        all.into_iter().filter(|&index| self.states[index].recipients > 0).map(DestinationId).collect()
    }

    /// Clears the moved marks after the waiting recipients were updated.
    pub(crate) fn clear_moved(&mut self) {
        let moved: Vec<u32> =
            self.states.entries().filter(|(_, place)| place.has_moved).map(|(index, _)| index).collect();
        moved.into_iter().for_each(|index| self.states[index].has_moved = false);
    }

    /// The number of destinations with recipients.
    pub(crate) fn with_recipients(&self) -> usize {
        self.with_recipients
    }

    /// The destinations with recipients: the number, the name, the queue, and how many recipients.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = (DestinationId, &str, QueueNumber, usize)> {
        let occupied = self.states.entries().filter(|(_, state)| state.recipients > 0);
        occupied.map(|(index, state)| (DestinationId(index), &*state.name, state.queue, state.recipients as usize))
    }

    pub(crate) fn intern(&mut self, queue: QueueNumber, name: &str) -> DestinationId {
        let numbers = &mut self.numbers[usize::from(queue.0)];
        if let Some(&known) = numbers.get(name) {
            return known;
        }
        let index = self.states.insert(DestinationState {
            name: name.into(),
            queue,
            recipients: 0,
            hop: NONE,
            route: None,
            until: Timestamp::default(),
            is_routed: false,
            is_requested: false,
            is_transient: false,
            next_hop_before_reroute: None,
            has_moved: false,
            idle_mark: IdleMark::default(),
        });
        numbers.insert(Arc::clone(&self.states[index].name), DestinationId(index));
        // Idle since the beginning of time: the first sweep that finds it unused forgets it.
        self.idle.add(index, &mut self.states[index].idle_mark, Timestamp::default());
        DestinationId(index)
    }

    /// The destinations with this name, at most one for each queue.
    pub(crate) fn named(&self, name: &str) -> impl Iterator<Item = DestinationId> {
        self.numbers.iter().filter_map(move |numbers| numbers.get(name).copied())
    }

    pub(crate) fn state(&self, destination: DestinationId) -> &DestinationState<R> {
        &self.states[destination.0]
    }

    pub(crate) fn name(&self, destination: DestinationId) -> &str {
        &self.states[destination.0].name
    }

    /// Counts one more recipient.
    pub(crate) fn add_recipient(&mut self, destination: DestinationId) {
        let place = &mut self.states[destination.0];
        place.recipients += 1;
        self.with_recipients += usize::from(place.recipients == 1);
    }

    /// Counts one recipient fewer.
    pub(crate) fn remove_recipient(&mut self, destination: DestinationId, now: Timestamp) {
        let place = &mut self.states[destination.0];
        place.recipients -= 1;
        if place.recipients == 0 {
            self.with_recipients -= 1;
            self.idle.add(destination.0, &mut place.idle_mark, now);
        }
    }

    /// Requests a route, unless a valid one is known or one is already requested.
    pub(crate) fn request_route(&mut self, destination: DestinationId, now: Timestamp) {
        let place = &mut self.states[destination.0];
        if !place.is_requested && (place.hop == NONE || place.until <= now) {
            place.is_requested = true;
            self.unrouted.push_back(destination);
        }
    }

    /// Stops using the route until the next one arrives; returns the next hop if the route was in
    /// use.
    pub(crate) fn detach(&mut self, destination: DestinationId) -> Option<u32> {
        let place = &mut self.states[destination.0];
        std::mem::replace(&mut place.is_routed, false).then_some(place.hop)
    }

    /// Uses the route again; returns whether it is valid.
    pub(crate) fn attach(&mut self, destination: DestinationId, now: Timestamp) -> bool {
        let place = &mut self.states[destination.0];
        place.is_routed = place.until > now && !place.is_requested;
        place.is_routed
    }

    pub(crate) fn next_unrouted(&mut self) -> Option<DestinationId> {
        self.unrouted.pop_front()
    }

    /// Stores a route with the number of its next hop; returns the number before, or [`NONE`].
    pub(crate) fn set_route(&mut self, destination: DestinationId, hop: u32, routed: NextHopRoute<R>) -> u32 {
        let NextHopRoute { next_hop, route, until, transient, .. } = routed;
        let place = &mut self.states[destination.0];
        (place.is_requested, place.is_routed, place.until, place.route) = (false, true, until, Some(route));
        place.is_transient = transient;
        if !transient {
            place.has_moved |= place.next_hop_before_reroute.take().is_some_and(|old| *old != *next_hop);
        }
        if place.recipients == 0 {
            // It may have been kept only for the open request, outside the ring.
            self.idle.add(destination.0, &mut place.idle_mark, Timestamp::default());
        }
        std::mem::replace(&mut place.hop, hop)
    }

    /// Examines one idle destination; returns it if it should be forgotten.
    pub(crate) fn sweep(&mut self, now: Timestamp) -> Option<DestinationId> {
        let index = self.idle.next()?;
        let place = &mut self.states[index];
        let in_use = place.recipients > 0 || place.is_requested;
        self.idle.should_forget(index, &mut place.idle_mark, in_use, now).then_some(DestinationId(index))
    }

    /// Returns the next hop of the destination, or [`NONE`].
    pub(crate) fn forget(&mut self, destination: DestinationId) -> u32 {
        let place = self.states.remove(destination.0);
        self.numbers[usize::from(place.queue.0)].remove(&place.name);
        place.hop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NextHopLimits;

    const QUEUE: QueueNumber = QueueNumber(0);
    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn sweep(destinations: &mut Destinations<()>, now: Timestamp) {
        if let Some(forgotten) = destinations.sweep(now) {
            destinations.forget(forgotten);
        }
    }

    #[test]
    fn a_domain_has_one_number_per_queue_and_keeps_it_while_idle() {
        let mut destinations = Destinations::new(2);
        let a = destinations.intern(QUEUE, "a.example");
        let b = destinations.intern(QueueNumber(1), "a.example");
        assert_eq!((destinations.intern(QUEUE, "a.example"), a == b), (a, false));
        [a, a, b].into_iter().for_each(|destination| destinations.add_recipient(destination));
        [a, a].into_iter().for_each(|destination| destinations.remove_recipient(destination, NOW));
        assert_eq!((destinations.with_recipients(), destinations.name(a)), (1, "a.example"));
        (0..4).for_each(|_| sweep(&mut destinations, NOW));
        assert_eq!(destinations.states.len(), 2);
        (0..4).for_each(|_| sweep(&mut destinations, NOW + IDLE_TIME_MAX));
        assert_eq!(
            (destinations.states.len(), destinations.numbers[0].len(), destinations.name(b)),
            (1, 0, "a.example")
        );
    }

    #[test]
    fn a_domain_without_recipients_is_forgotten_unless_a_route_is_requested() {
        let mut destinations = Destinations::new(2);
        let (idle, asked) = (destinations.intern(QUEUE, "idle.example"), destinations.intern(QUEUE, "asked.example"));
        destinations.request_route(asked, NOW);
        destinations.request_route(asked, NOW);
        (0..4).for_each(|_| sweep(&mut destinations, NOW));
        assert!(destinations.states.get(idle.0).is_none());
        assert_eq!((destinations.next_unrouted(), destinations.next_unrouted()), (Some(asked), None));
        let (next_hop, limits) = ("mx".into(), NextHopLimits::default());
        let routed = NextHopRoute { next_hop, route: (), limits, until: NOW, transient: false };
        assert_eq!(destinations.set_route(asked, 7, routed), NONE);
        (0..4).for_each(|_| sweep(&mut destinations, NOW));
        assert_eq!(destinations.states.len(), 0);
    }
}
