//! What servers that deliver to the same next hops share: their rates, their concurrency, and which next
//! hops are lame. The caller passes on what is asked here, and brings what others answer.

use std::sync::Arc;

use mail::Timestamp;

use crate::departures::{DepartureRequest, GrantedDepartures};
use crate::slots::SlotReport;
use crate::{NextHopId, Queues};

/// Lame next hops that nobody has asked for. Beyond that, others are not told.
const NEWLY_LAME_MAX: usize = 1024;

impl<R: Clone> Queues<R> {
    /// The next request for departures, of a next hop that has mail and a shared rate
    /// ([`NextHopLimits::is_rate_shared`](crate::NextHopLimits::is_rate_shared)). It is repeated if it is
    /// not answered for some seconds.
    pub fn next_departure_request(&mut self) -> Option<DepartureRequest> {
        self.departure_requests.pop()
    }

    /// Answers such a request. A next hop that is not known any more needs no answer.
    pub fn grant_departures(&mut self, now: Timestamp, next_hop: &str, granted: GrantedDepartures) {
        if let Some(hop) = self.hops.number(next_hop) {
            self.hops[hop].grant_departures(granted);
            self.update_next_hop(now, hop);
        }
    }

    /// The next report of the slots of a next hop whose concurrency is shared
    /// ([`NextHopLimits::shared_concurrency`](crate::NextHopLimits::shared_concurrency)).
    pub fn next_slot_report(&mut self) -> Option<SlotReport> {
        self.slot_reports.pop_front()
    }

    /// Sets how many attempts may be made to a next hop at a time. Those above it end in their time, and
    /// the next report says that no further one leaves. A next hop that is not known any more needs no slots.
    pub fn grant_slots(&mut self, now: Timestamp, next_hop: &str, slots: usize) {
        if let Some(hop) = self.hops.number(next_hop) {
            self.hops[hop].grant_slots(slots);
            self.update_next_hop(now, hop);
        }
    }

    /// The next one of the next hops that were adopted since this was called, because of what was seen
    /// here.
    pub fn next_newly_lame(&mut self) -> Option<Arc<str>> {
        self.newly_lame.pop()
    }

    /// Another server has found this next hop to be lame: it is adopted, if it is known here.
    pub fn report_lame_elsewhere(&mut self, now: Timestamp, next_hop: &str) {
        let Some(hop) = self.hops.number(next_hop) else { return };
        let told = self.newly_lame.len();
        self.report_slow(now, NextHopId(hop));
        self.newly_lame.truncate(told);
    }

    /// Remembers that a next hop was adopted.
    pub(crate) fn note_lame(&mut self, hop: u32) {
        if self.newly_lame.len() < NEWLY_LAME_MAX {
            self.newly_lame.push(Arc::clone(&self.hops[hop].name));
        }
    }

    /// Reports the slots of a next hop, if they have changed; returns when to look again.
    pub(crate) fn report_slots(&mut self, now: Timestamp, hop: u32, is_waiting: bool) -> Option<Timestamp> {
        let (usage, look_at) = self.hops[hop].poll_slots(now, is_waiting);
        if let Some(usage) = usage {
            let next_hop = (*self.hops[hop].name).into();
            self.slot_reports.push_back(SlotReport { next_hop, usage });
            self.hops.note_idle(hop, now);
        }
        look_at
    }

    /// Requests departures, if mail waits for them and there are none.
    pub(crate) fn request_departures(&mut self, now: Timestamp, hop: u32) {
        if let Some((interval, count)) = self.hops[hop].request_departures(now) {
            let next_hop = (*self.hops[hop].name).into();
            self.departure_requests.push(DepartureRequest { next_hop, interval, count });
        }
    }
}
