//! Destinations: the recipient domains of each queue, interned as small numbers, with their routes.
//!
//! | a destination has | it is kept |
//! |---|---|
//! | recipients, queued or in flight, or an open route request | yes |
//! | none any more | for ten minutes with its route, while there are fewer than 10,000 such; then its number may be reused |
//! | none yet | until the next `report`, so that recipients can be admitted |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::chain::NONE;
use crate::idle::{Idle, Rest};
use crate::pages::Slab;
use crate::{QueueNumber, Routed};

/// Destinations that are kept without recipients.
const IDLE_NUMBER_MAX: usize = 10_000;
/// And how long each is kept.
const IDLE_TIME_MAX: Duration = Duration::from_secs(600);

/// A recipient domain of one queue, interned by
/// [`Queues::destination`](crate::Queues::destination).
///
/// It is valid while it has recipients, queued or in flight, while a route request for it is open,
/// and until the next report after it was interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(pub(crate) u32);

/// The domains in use. The tree is ordered, not hashed: no rehashing pause, and no input makes it
/// slow.
pub(crate) struct Destinations<R> {
    places: Slab<Place<R>>,
    /// The names of each queue.
    numbers: Vec<BTreeMap<Arc<str>, Destination>>,
    questions: VecDeque<Destination>,
    idle: Idle,
    /// How many destinations have recipients.
    inhabited: usize,
}

pub(crate) struct Place<R> {
    name: Arc<str>,
    pub(crate) queue: QueueNumber,
    recipients: u32,
    /// The next hop, or [`NONE`] if there is no route. It is kept after the route expires.
    pub(crate) hop: u32,
    pub(crate) route: Option<R>,
    pub(crate) until: Timestamp,
    /// Its domain queues are in the hop queues of the next hop.
    pub(crate) serves: bool,
    asked: bool,
    /// Whether its last route was [transient](crate::Routed::transient).
    pub(crate) is_transient: bool,
    /// The name of the next hop before all routes were invalidated, until a lasting route arrives.
    /// A name, because numbers are reused.
    outdated: Option<Arc<str>>,
    /// That route named another next hop, and waiting recipients have not been updated.
    pub(crate) has_moved: bool,
    rest: Rest,
}

impl<R> Destinations<R> {
    pub(crate) fn new(queues: usize) -> Self {
        Destinations {
            places: Slab::new(),
            numbers: (0..queues).map(|_| BTreeMap::new()).collect(),
            questions: VecDeque::new(),
            idle: Idle::new(IDLE_NUMBER_MAX, IDLE_TIME_MAX),
            inhabited: 0,
        }
    }

    /// Sets the number of queues, which never shrinks.
    pub(crate) fn resize(&mut self, queues: usize) {
        self.numbers.resize_with(queues, BTreeMap::new);
    }

    /// Expires all routes and returns the destinations that have recipients. `name` returns the
    /// name of a next hop.
    pub(crate) fn outdate(&mut self, name: impl Fn(u32) -> Arc<str>) -> Vec<Destination> {
        let all: Vec<u32> = self.places.entries().map(|(index, _)| index).collect();
        for &index in &all {
            let place = &mut self.places[index];
            place.until = Timestamp::default();
            if place.hop != NONE {
                // If no lasting route has arrived since the previous reroute, keep the older name.
                place.outdated.get_or_insert_with(|| name(place.hop));
            }
        }
        all.into_iter().filter(|&index| self.places[index].recipients > 0).map(Destination).collect()
    }

    /// Clears the moved marks after the waiting recipients were updated.
    pub(crate) fn settle_moves(&mut self) {
        let moved: Vec<u32> =
            self.places.entries().filter(|(_, place)| place.has_moved).map(|(index, _)| index).collect();
        moved.into_iter().for_each(|index| self.places[index].has_moved = false);
    }

    /// The number of destinations with recipients.
    pub(crate) fn inhabited(&self) -> usize {
        self.inhabited
    }

    pub(crate) fn intern(&mut self, queue: QueueNumber, name: &str) -> Destination {
        let numbers = &mut self.numbers[usize::from(queue.0)];
        if let Some(&known) = numbers.get(name) {
            return known;
        }
        let index = self.places.insert(Place {
            name: name.into(),
            queue,
            recipients: 0,
            hop: NONE,
            route: None,
            until: Timestamp::default(),
            serves: false,
            asked: false,
            is_transient: false,
            outdated: None,
            has_moved: false,
            rest: Rest::default(),
        });
        numbers.insert(Arc::clone(&self.places[index].name), Destination(index));
        // Idle since the beginning of time: the first sweep that finds it unused forgets it.
        self.idle.enter(index, &mut self.places[index].rest, Timestamp::default());
        Destination(index)
    }

    pub(crate) fn place(&self, destination: Destination) -> &Place<R> {
        &self.places[destination.0]
    }

    pub(crate) fn name(&self, destination: Destination) -> &str {
        &self.places[destination.0].name
    }

    /// Counts one more recipient.
    pub(crate) fn join(&mut self, destination: Destination) {
        let place = &mut self.places[destination.0];
        place.recipients += 1;
        self.inhabited += usize::from(place.recipients == 1);
    }

    /// Counts one recipient fewer.
    pub(crate) fn leave(&mut self, destination: Destination, now: Timestamp) {
        let place = &mut self.places[destination.0];
        place.recipients -= 1;
        if place.recipients == 0 {
            self.inhabited -= 1;
            self.idle.enter(destination.0, &mut place.rest, now);
        }
    }

    /// Requests a route, unless a valid one is known or one is already requested.
    pub(crate) fn ask(&mut self, destination: Destination, now: Timestamp) {
        let place = &mut self.places[destination.0];
        if !place.asked && (place.hop == NONE || place.until <= now) {
            place.asked = true;
            self.questions.push_back(destination);
        }
    }

    /// Stops using the route until the next one arrives; returns the next hop if the route was in
    /// use.
    pub(crate) fn suspend(&mut self, destination: Destination) -> Option<u32> {
        let place = &mut self.places[destination.0];
        std::mem::replace(&mut place.serves, false).then_some(place.hop)
    }

    pub(crate) fn next_question(&mut self) -> Option<Destination> {
        self.questions.pop_front()
    }

    /// Stores a route with the number of its next hop; returns the number before, or [`NONE`].
    pub(crate) fn answer(&mut self, destination: Destination, hop: u32, routed: Routed<R>) -> u32 {
        let Routed { next_hop, route, until, transient, .. } = routed;
        let place = &mut self.places[destination.0];
        (place.asked, place.serves, place.until, place.route) = (false, true, until, Some(route));
        place.is_transient = transient;
        if !transient {
            place.has_moved |= place.outdated.take().is_some_and(|old| *old != *next_hop);
        }
        if place.recipients == 0 {
            // It may have been kept only for the open request, outside the ring.
            self.idle.enter(destination.0, &mut place.rest, Timestamp::default());
        }
        std::mem::replace(&mut place.hop, hop)
    }

    /// Examines one idle destination; returns it if it should be forgotten.
    pub(crate) fn sweep(&mut self, now: Timestamp) -> Option<Destination> {
        let index = self.idle.next()?;
        let place = &mut self.places[index];
        let in_use = place.recipients > 0 || place.asked;
        self.idle.decide(index, &mut place.rest, in_use, now).then_some(Destination(index))
    }

    /// Returns the next hop of the destination, or [`NONE`].
    pub(crate) fn forget(&mut self, destination: Destination) -> u32 {
        let place = self.places.remove(destination.0);
        self.numbers[usize::from(place.queue.0)].remove(&place.name);
        place.hop
    }

    /// Bytes allocated: the tree as [`tree_bytes`] estimates it, names with their two reference
    /// counts.
    pub(crate) fn bytes(&self) -> usize {
        let names: usize = self.places.iter().map(|place| place.name.len() + 2 * size_of::<usize>()).sum();
        let tree = tree_bytes::<Arc<str>, Destination>(self.places.len());
        self.places.bytes() + tree + names + self.idle.bytes() + self.questions.capacity() * size_of::<Destination>()
    }
}

/// An upper bound of the bytes in a `BTreeMap` of `len` entries: nodes have room for 11 entries and
/// hold at least 5, and at most one node in eleven is an inner one with twelve more pointers.
pub(crate) fn tree_bytes<K, V>(len: usize) -> usize {
    let leaf = 11 * size_of::<(K, V)>() + 2 * size_of::<usize>();
    (leaf + 12 * size_of::<usize>() / 5) * len.div_ceil(5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    const QUEUE: QueueNumber = QueueNumber(0);
    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn sweep(destinations: &mut Destinations<()>, now: Timestamp) {
        if let Some(forgotten) = destinations.sweep(now) {
            destinations.forget(forgotten);
        }
    }

    #[test]
    fn a_domain_has_one_number_in_each_queue_and_keeps_it_for_a_while() {
        let mut destinations = Destinations::new(2);
        let a = destinations.intern(QUEUE, "a.example");
        let b = destinations.intern(QueueNumber(1), "a.example");
        assert_eq!((destinations.intern(QUEUE, "a.example"), a == b), (a, false));
        [a, a, b].into_iter().for_each(|destination| destinations.join(destination));
        [a, a].into_iter().for_each(|destination| destinations.leave(destination, NOW));
        assert_eq!((destinations.inhabited(), destinations.name(a)), (1, "a.example"));
        (0..4).for_each(|_| sweep(&mut destinations, NOW));
        assert_eq!(destinations.places.len(), 2);
        (0..4).for_each(|_| sweep(&mut destinations, NOW + IDLE_TIME_MAX));
        assert_eq!(
            (destinations.places.len(), destinations.numbers[0].len(), destinations.name(b)),
            (1, 0, "a.example")
        );
    }

    #[test]
    fn a_domain_that_nobody_claimed_is_swept_unless_a_question_is_open() {
        let mut destinations = Destinations::new(2);
        let (idle, asked) = (destinations.intern(QUEUE, "idle.example"), destinations.intern(QUEUE, "asked.example"));
        destinations.ask(asked, NOW);
        destinations.ask(asked, NOW);
        (0..4).for_each(|_| sweep(&mut destinations, NOW));
        assert!(destinations.places.get(idle.0).is_none());
        assert_eq!((destinations.next_question(), destinations.next_question()), (Some(asked), None));
        let (next_hop, limits) = ("mx".into(), Limits::default());
        let routed = Routed { next_hop, route: (), limits, until: NOW, transient: false };
        assert_eq!(destinations.answer(asked, 7, routed), NONE);
        (0..4).for_each(|_| sweep(&mut destinations, NOW));
        assert_eq!(destinations.places.len(), 0);
    }
}
