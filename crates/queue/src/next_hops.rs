//! The known next hops, by name and by number, and their alarms.
//!
//! A next hop is known while a destination is routed there or an attempt names it. After that its
//! state is kept for an hour, while there are fewer than 10,000 such.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;

use crate::NextHopLimits;
use crate::idle_ring::IdleRing;
use crate::next_hop_state::{HomeQueue, NextHopState};
use crate::pages::Slab;

/// Next hops that are kept while not in use.
const IDLE_NUMBER_MAX: usize = 10_000;
/// And how long each is kept.
const IDLE_TIME_MAX: Duration = Duration::from_secs(3600);

/// All next hops.
pub(crate) struct NextHops {
    hops: Slab<NextHopState>,
    /// Ordered, not hashed: no rehashing pause, and no input makes it slow.
    numbers: BTreeMap<Arc<str>, u32>,
    alarms: BTreeSet<(Timestamp, u32)>,
    idle: IdleRing,
}

impl NextHops {
    pub(crate) const fn new() -> Self {
        NextHops {
            hops: Slab::new(),
            numbers: BTreeMap::new(),
            alarms: BTreeSet::new(),
            idle: IdleRing::new(IDLE_NUMBER_MAX, IDLE_TIME_MAX),
        }
    }

    /// The number of a known next hop.
    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The number of a next hop; sets its limits.
    pub(crate) fn intern(&mut self, name: &str, limits: NextHopLimits) -> u32 {
        if let Some(known) = self.number(name) {
            self.hops[known].set_limits(limits);
            return known;
        }
        let name: Arc<str> = name.into();
        let hop = self.hops.insert(NextHopState::new(Arc::clone(&name), limits));
        self.numbers.insert(name, hop);
        hop
    }

    pub(crate) fn known(&self, hop: u32) -> Option<&NextHopState> {
        self.hops.get(hop)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &NextHopState)> {
        self.hops.entries()
    }

    /// Sets the alarm of a next hop, or removes it.
    pub(crate) fn set_alarm(&mut self, hop: u32, at: Option<Timestamp>) {
        let old = std::mem::replace(&mut self.hops[hop].alarm, at);
        if old == at {
            return;
        }
        old.map(|old| self.alarms.remove(&(old, hop)));
        at.map(|at| self.alarms.insert((at, hop)));
    }

    pub(crate) fn next_alarm(&self) -> Option<Timestamp> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// Removes a due alarm and returns its next hop.
    pub(crate) fn pop_alarm(&mut self, now: Timestamp) -> Option<u32> {
        let &(_, hop) = self.alarms.first().filter(|&&(at, _)| at <= now)?;
        self.set_alarm(hop, None);
        Some(hop)
    }

    /// Called when a destination or an attempt has left a next hop.
    pub(crate) fn note_idle(&mut self, hop: u32, now: Timestamp) {
        if !self.hops[hop].is_in_use() {
            self.idle.add(hop, &mut self.hops[hop].idle_mark, now);
        }
    }

    /// Examines one idle next hop: forgets it if it was idle for too long, and returns what the
    /// caller must close.
    pub(crate) fn forget_next_if_idle(&mut self, now: Timestamp) -> Option<Vec<HomeQueue>> {
        let index = self.idle.next()?;
        let hop = &mut self.hops[index];
        let in_use = hop.is_in_use();
        if !self.idle.should_forget(index, &mut hop.idle_mark, in_use, now) {
            return None;
        }
        self.set_alarm(index, None);
        let hop = self.hops.remove(index);
        self.numbers.remove(&hop.name);
        Some(hop.home_queues)
    }
}

impl Index<u32> for NextHops {
    type Output = NextHopState;

    fn index(&self, hop: u32) -> &NextHopState {
        &self.hops[hop]
    }
}

impl IndexMut<u32> for NextHops {
    fn index_mut(&mut self, hop: u32) -> &mut NextHopState {
        &mut self.hops[hop]
    }
}
