//! Destinations: recipient domains of a queue as small numbers, counted by their recipients, each with its route.
//!
//! | a destination has | it is kept |
//! |---|---|
//! | recipients, queued or in flight, or an open question | yes |
//! | none any more | for ten minutes with its route, unless there are 10,000 such; then its number may be given to another |
//! | none yet | until the next `report`, so that there is time to admit them |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::chain::NONE;
use crate::idle::{Idle, Rest};
use crate::pages::Slab;
use crate::{QueueNumber, Routed};

/// Destinations that are kept though nobody waits for them.
const IDLE_NUMBER_MAX: usize = 10_000;
/// For so long.
const IDLE_TIME_MAX: Duration = Duration::from_secs(600);

/// A recipient domain of one queue, interned by [`Queues::destination`](crate::Queues::destination).
///
/// It means something while recipients wait for it or are in flight, while a question about it is open, and until the
/// next report after it was interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(pub(crate) u32);

/// The domains in use. The tree is ordered, not hashed: no rehashing pause, and no input makes it slow.
pub(crate) struct Destinations<R> {
    places: Slab<Place<R>>,
    /// By queue.
    numbers: Vec<BTreeMap<Arc<str>, Destination>>,
    questions: VecDeque<Destination>,
    idle: Idle,
    /// Those with recipients.
    inhabited: usize,
}

pub(crate) struct Place<R> {
    name: Arc<str>,
    pub(crate) queue: QueueNumber,
    recipients: u32,
    /// The next hop, or [`NONE`] while there is no route. It stays named while its time is over.
    pub(crate) hop: u32,
    pub(crate) route: Option<R>,
    pub(crate) until: Timestamp,
    /// Its desks are in the berths of the next hop.
    pub(crate) serves: bool,
    asked: bool,
    /// Its last answer was a [transient](crate::Routed::transient) one.
    pub(crate) is_transient: bool,
    /// All ways may be others since it was answered: the next hop of that answer. A name, as numbers are given again.
    outdated: Option<Arc<str>>,
    /// The answer after that named another next hop, and those who wait do not know yet.
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

    /// There are so many queues now, and never less.
    pub(crate) fn resize(&mut self, queues: usize) {
        self.numbers.resize_with(queues, BTreeMap::new);
    }

    /// The time of all routes is over; gives the destinations that have recipients. `name` says the names of next hops.
    pub(crate) fn outdate(&mut self, name: impl Fn(u32) -> Arc<str>) -> Vec<Destination> {
        let all: Vec<u32> = self.places.entries().map(|(index, _)| index).collect();
        for &index in &all {
            let place = &mut self.places[index];
            place.until = Timestamp::default();
            if place.hop != NONE {
                // Where no lasting answer has come since the ways changed before, they were left then.
                place.outdated.get_or_insert_with(|| name(place.hop));
            }
        }
        all.into_iter().filter(|&index| self.places[index].recipients > 0).map(Destination).collect()
    }

    /// Those who wait know that their destination has moved.
    pub(crate) fn settle_moves(&mut self) {
        let moved: Vec<u32> =
            self.places.entries().filter(|(_, place)| place.has_moved).map(|(index, _)| index).collect();
        moved.into_iter().for_each(|index| self.places[index].has_moved = false);
    }

    /// How many have recipients.
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
        // Idle since ever: the first sweep that finds it unused forgets it.
        self.idle.enter(index, &mut self.places[index].rest, Timestamp::default());
        Destination(index)
    }

    pub(crate) fn place(&self, destination: Destination) -> &Place<R> {
        &self.places[destination.0]
    }

    pub(crate) fn name(&self, destination: Destination) -> &str {
        &self.places[destination.0].name
    }

    /// One more recipient.
    pub(crate) fn join(&mut self, destination: Destination) {
        let place = &mut self.places[destination.0];
        place.recipients += 1;
        self.inhabited += usize::from(place.recipients == 1);
    }

    /// One recipient less.
    pub(crate) fn leave(&mut self, destination: Destination, now: Timestamp) {
        let place = &mut self.places[destination.0];
        place.recipients -= 1;
        if place.recipients == 0 {
            self.inhabited -= 1;
            self.idle.enter(destination.0, &mut place.rest, now);
        }
    }

    /// Asks where it goes, unless that is known until later or asked already.
    pub(crate) fn ask(&mut self, destination: Destination, now: Timestamp) {
        let place = &mut self.places[destination.0];
        if !place.asked && (place.hop == NONE || place.until <= now) {
            place.asked = true;
            self.questions.push_back(destination);
        }
    }

    /// Its route serves nobody until the next answer; gives its next hop if it served until now.
    pub(crate) fn suspend(&mut self, destination: Destination) -> Option<u32> {
        let place = &mut self.places[destination.0];
        std::mem::replace(&mut place.serves, false).then_some(place.hop)
    }

    pub(crate) fn next_question(&mut self) -> Option<Destination> {
        self.questions.pop_front()
    }

    /// The question is answered with the next hop of this number; gives the one before it, or [`NONE`].
    pub(crate) fn answer(&mut self, destination: Destination, hop: u32, routed: Routed<R>) -> u32 {
        let Routed { next_hop, route, until, transient, .. } = routed;
        let place = &mut self.places[destination.0];
        (place.asked, place.serves, place.until, place.route) = (false, true, until, Some(route));
        place.is_transient = transient;
        if !transient {
            place.has_moved |= place.outdated.take().is_some_and(|old| *old != *next_hop);
        }
        if place.recipients == 0 {
            // It was kept for the question alone, outside the ring perhaps.
            self.idle.enter(destination.0, &mut place.rest, Timestamp::default());
        }
        std::mem::replace(&mut place.hop, hop)
    }

    /// One step of the hand: gives one that is to be forgotten.
    pub(crate) fn sweep(&mut self, now: Timestamp) -> Option<Destination> {
        let index = self.idle.next()?;
        let place = &mut self.places[index];
        let in_use = place.recipients > 0 || place.asked;
        self.idle.decide(index, &mut place.rest, in_use, now).then_some(Destination(index))
    }

    /// Gives its next hop, or [`NONE`].
    pub(crate) fn forget(&mut self, destination: Destination) -> u32 {
        let place = self.places.remove(destination.0);
        self.numbers[usize::from(place.queue.0)].remove(&place.name);
        place.hop
    }

    /// Bytes held: pages exactly, the tree as [`tree_bytes`] estimates it, names with their two counts.
    pub(crate) fn bytes(&self) -> usize {
        let names: usize = self.places.iter().map(|place| place.name.len() + 2 * size_of::<usize>()).sum();
        let tree = tree_bytes::<Arc<str>, Destination>(self.places.len());
        self.places.bytes() + tree + names + self.idle.bytes() + self.questions.capacity() * size_of::<Destination>()
    }
}

/// An upper bound of what a `BTreeMap` of `len` entries holds: nodes have room for 11 entries and are never less than
/// half full (5 of them), and a node in eleven or less is an inner one with twelve more pointers.
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
