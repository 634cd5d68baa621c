//! Routes: requests them, applies them, and forgets those that are idle.
//!
//! | a destination | its sender queues | a route request is open |
//! |---|---|---|
//! | has no route | gather in its domain queues, outside the hop queues | from the first recipient that becomes ready, until the route arrives |
//! | has a valid route | are in the hop queues of its next hop | no |
//! | has an expired route | stay in those hop queues | from the next attempt, until the route arrives |
//! | is paused | as without a route | when it has expired, until it arrives |
//! | the same, and a recipient becomes ready, or [`EXPIRED_ROUTE_GRACE`] has passed | as without a route | until the route arrives |
//!
//! So an expired route is never used for new recipients, and recipients that were ready before it
//! expired do not pause for the new one.

use std::time::Duration;

use mail::Timestamp;

use crate::attempt::{NextHopId, NextHopRoute};
use crate::intrusive_list::NONE;
use crate::next_hop_state::HomeQueue;
use crate::senders::MessageClass;
use crate::{DestinationId, QueueNumber, Queues};

/// Idle entries examined at each report. A report makes one destination idle at most, so two keep
/// up.
const SWEEPS_PER_REPORT: usize = 2;
/// A route is used for at least this long. Without it, a route that has expired when it arrives
/// would be requested forever.
const ROUTE_LIFETIME_MIN: Duration = Duration::from_secs(1);
/// How long after its expiry a route is still used by recipients that were ready before. Short
/// enough that an old route does no harm, long enough for a turn at a busy next hop: recipients
/// would miss their turns if they had to wait for a new route each time.
const EXPIRED_ROUTE_GRACE: Duration = Duration::from_secs(300);
/// Destinations that one choice of the next attempt may detach, so that it stays short.
const DETACHES_PER_CALL_MAX: usize = 1024;

impl<R: Clone> Queues<R> {
    /// Interns a recipient domain (or `host!domain`, in lower case) of a queue. Admit recipients to
    /// it before the next `report_verdicts`.
    ///
    /// # Panics
    /// If the queue does not exist.
    pub fn intern_destination(&mut self, queue: QueueNumber, name: &str) -> DestinationId {
        self.destinations.intern(queue, name)
    }

    /// The name of a destination.
    ///
    /// # Panics
    /// If the destination is not in use any more.
    pub fn destination_name(&self, destination: DestinationId) -> &str {
        self.destinations.name(destination)
    }

    /// The home queue of a destination.
    ///
    /// # Panics
    /// If the destination is not in use any more.
    pub fn destination_queue(&self, destination: DestinationId) -> QueueNumber {
        self.destinations.state(destination).queue
    }

    /// The next hop with this name, if it is known.
    pub fn find_next_hop(&self, name: &str) -> Option<NextHopId> {
        self.hops.number(name).map(NextHopId)
    }

    /// Whether a destination with this name is known, in any queue.
    pub fn has_destination(&self, name: &str) -> bool {
        self.destinations.named(name).next().is_some()
    }

    /// The name of a next hop.
    ///
    /// # Panics
    /// If no attempt names it and no destination is routed there.
    pub fn next_hop_name(&self, next_hop: NextHopId) -> &str {
        &self.hops[next_hop.0].name
    }

    /// A destination that needs a route: it has none, or an expired one. Recipients that become
    /// ready there wait for the route. Each destination is returned once, and must be answered with
    /// [`Queues::set_route`], however late. `admit`, `next` and `report_verdicts` add destinations.
    pub fn next_unrouted(&mut self) -> Option<DestinationId> {
        self.destinations.next_unrouted()
    }

    /// Sets the route of a destination. Attempts in flight keep their next hop.
    pub fn set_route(&mut self, now: Timestamp, destination: DestinationId, routed: NextHopRoute<R>) {
        let hop = self.hops.intern(&routed.next_hop, routed.limits.clone());
        self.hops[hop].is_paused = self.pauses.next_hop(&routed.next_hop).is_some();
        let until = routed.until.max(now + ROUTE_LIFETIME_MIN);
        let old = self.destinations.set_route(destination, hop, NextHopRoute { until, ..routed });
        self.note_moved_destination(now, destination);
        let hop_queues = self.hop_queues(hop, self.destination_queue(destination));
        self.ready.set_hop_queues(destination, hop_queues);
        if old != hop {
            self.hops[hop].destinations += 1;
            self.release_next_hop(now, old);
        }
        self.update_next_hop(now, hop);
        if self.pauses.destination(self.destinations.name(destination)).is_some() {
            self.detach_destination(now, destination);
        }
    }

    /// Called when a recipient becomes ready: requests a route if there is no valid one, and stops
    /// attempts until it arrives.
    pub(crate) fn require_route(&mut self, now: Timestamp, destination: DestinationId) {
        self.destinations.request_route(destination, now);
        if self.destinations.state(destination).until <= now {
            self.detach_destination(now, destination);
        }
    }

    /// The hop queue that `first` finds, after detaching destinations whose route expired too long
    /// ago. One that loses its last destination is no longer scheduled, and the next one comes up.
    pub(crate) fn first_with_route<Q>(
        &mut self,
        now: Timestamp,
        first: impl Fn(&Self) -> Option<(Q, u32)>,
    ) -> Option<(Q, u32)> {
        for _ in 0..DETACHES_PER_CALL_MAX {
            let (queue, hop_queue) = first(self)?;
            let destination = self.recipients[self.ready.front(hop_queue)].destination;
            if now < self.destinations.state(destination).until + EXPIRED_ROUTE_GRACE {
                return Some((queue, hop_queue));
            }
            self.destinations.request_route(destination, now);
            self.detach_destination(now, destination);
        }
        None
    }

    /// Forgets destinations and next hops that were idle for too long.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) {
        for _ in 0..SWEEPS_PER_REPORT {
            if let Some(destination) = self.destinations.sweep(now) {
                self.ready.set_hop_queues(destination, [NONE; 2]);
                let hop = self.destinations.forget(destination);
                self.release_next_hop(now, hop);
            }
            for home in self.hops.forget_next_if_idle(now).into_iter().flatten() {
                home.hop_queues.into_iter().for_each(|hop_queue| self.ready.hop_queues.remove(hop_queue));
            }
        }
    }

    /// Detaches a destination from the hop queues of its next hop until its route arrives.
    pub(crate) fn detach_destination(&mut self, now: Timestamp, destination: DestinationId) {
        if let Some(hop) = self.destinations.detach(destination) {
            self.ready.set_hop_queues(destination, [NONE; 2]);
            self.update_next_hop(now, hop);
        }
    }

    /// Counts one destination fewer at a next hop; does nothing for [`NONE`].
    fn release_next_hop(&mut self, now: Timestamp, hop: u32) {
        if hop != NONE {
            self.hops[hop].destinations -= 1;
            self.hops.note_idle(hop, now);
            self.update_next_hop(now, hop);
        }
    }

    /// The hop queues of a queue at a next hop: single messages, bulk mail.
    pub(crate) fn hop_queues(&mut self, hop: u32, queue: QueueNumber) -> [u32; 2] {
        if let Some(home) = self.hops[hop].home_queues.iter().find(|home| home.queue == queue) {
            return home.hop_queues;
        }
        let hop_queues =
            [MessageClass::Single, MessageClass::Bulk].map(|class| self.ready.hop_queues.create(hop, queue, class));
        self.hops[hop].home_queues.push(HomeQueue { queue, slots: 0, hop_queues });
        hop_queues
    }
}
