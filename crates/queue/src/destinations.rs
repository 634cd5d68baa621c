//! Destinations: recipient domains as small numbers, each counted by its recipients, forgotten when nobody waits for it.
//!
//! | a destination has | it is kept |
//! |---|---|
//! | recipients, queued or in flight | yes |
//! | none, and had some | no: its number may be given to another domain |
//! | none yet | until the next `report`, so that there is time to admit them |

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pages::Slab;

/// A recipient domain, interned by [`Queue::destination`](crate::Queue::destination).
///
/// It means something while recipients wait for it or are in flight, and until the next report after it was interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(pub(crate) u32);

/// The domains in use. The tree is ordered, not hashed: no rehashing pause, and no input makes it slow.
pub(crate) struct Destinations {
    places: Slab<Place>,
    numbers: BTreeMap<Arc<str>, Destination>,
    /// Interned since the last report; most of them have recipients by now.
    fresh: Vec<Destination>,
}

struct Place {
    name: Arc<str>,
    recipients: u32,
}

impl Destinations {
    pub(crate) const fn new() -> Self {
        Destinations { places: Slab::new(), numbers: BTreeMap::new(), fresh: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn intern(&mut self, domain: &str) -> Destination {
        if let Some(&known) = self.numbers.get(domain) {
            return known;
        }
        let name: Arc<str> = domain.into();
        let destination = Destination(self.places.insert(Place { name: Arc::clone(&name), recipients: 0 }));
        self.numbers.insert(name, destination);
        self.fresh.push(destination);
        destination
    }

    pub(crate) fn name(&self, destination: Destination) -> &str {
        &self.places[destination.0].name
    }

    /// One more recipient.
    pub(crate) fn join(&mut self, destination: Destination) {
        self.places[destination.0].recipients += 1;
    }

    /// One recipient less; the last one takes the destination along.
    pub(crate) fn leave(&mut self, destination: Destination) {
        let place = &mut self.places[destination.0];
        place.recipients -= 1;
        if place.recipients == 0 {
            self.forget(destination);
        }
    }

    /// Forgets those that were interned and never used.
    pub(crate) fn sweep(&mut self) {
        for destination in std::mem::take(&mut self.fresh) {
            if self.places.get(destination.0).is_some_and(|place| place.recipients == 0) {
                self.forget(destination);
            }
        }
    }

    fn forget(&mut self, destination: Destination) {
        let place = self.places.remove(destination.0);
        self.numbers.remove(&place.name);
    }

    /// Bytes held: pages exactly, the tree as [`tree_bytes`] estimates it, names with their two counts.
    pub(crate) fn bytes(&self) -> usize {
        let names: usize = self.places.iter().map(|place| place.name.len() + 2 * size_of::<usize>()).sum();
        let fresh = self.fresh.capacity() * size_of::<Destination>();
        self.places.bytes() + tree_bytes::<Arc<str>, Destination>(self.numbers.len()) + names + fresh
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

    #[test]
    fn a_domain_has_one_number_while_somebody_waits_for_it() {
        let mut destinations = Destinations::new();
        let a = destinations.intern("a.example");
        let b = destinations.intern("b.example");
        assert_eq!(destinations.intern("a.example"), a);
        assert_eq!(destinations.name(b), "b.example");
        destinations.join(a);
        destinations.join(a);
        destinations.leave(a);
        assert_eq!((destinations.len(), destinations.name(a)), (2, "a.example"));
        destinations.leave(a);
        assert_eq!((destinations.len(), destinations.numbers.len()), (1, 1));
    }

    #[test]
    fn a_domain_that_nobody_claimed_is_swept_and_a_claimed_one_is_not() {
        let mut destinations = Destinations::new();
        let claimed = destinations.intern("claimed.example");
        destinations.intern("idle.example");
        destinations.join(claimed);
        destinations.sweep();
        assert_eq!((destinations.len(), destinations.name(claimed)), (1, "claimed.example"));
    }
}
