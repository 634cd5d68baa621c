//! Routes: requests them, applies them, and forgets those that are idle.
//!
//! | a destination | its sender queues | a route request is open |
//! |---|---|---|
//! | has no route | gather in its domain queues, outside the hop queues | from the first recipient that becomes ready, until the route arrives |
//! | has a valid route | are in the hop queues of its next hop | no |
//! | has an expired route | stay in those hop queues | from the next attempt, until the route arrives |
//! | the same, and a recipient becomes ready, or [`LINE_TIME_MAX`] has passed | as without a route | until the route arrives |
//!
//! So an expired route is never used for new recipients, and recipients that were ready before it
//! expired do not pause for the new one.

use std::time::Duration;

use mail::Timestamp;

use crate::attempt::{NextHop, Routed};
use crate::chain::NONE;
use crate::hop::Home;
use crate::senders::Class;
use crate::{Destination, QueueNumber, Queues};

/// Idle entries examined at each report. A report makes one destination idle at most, so two keep
/// up.
const SWEEPS: usize = 2;
/// A route is used for at least this long. Without it, a route that has expired when it arrives
/// would be requested forever.
const ANSWER_TIME_MIN: Duration = Duration::from_secs(1);
/// How long after its expiry a route is still used by recipients that were ready before. Short
/// enough that an old route does no harm, long enough for a turn at a busy next hop: recipients
/// would miss their turns if they had to wait for a new route each time.
const LINE_TIME_MAX: Duration = Duration::from_secs(300);
/// Destinations that one choice of the next attempt may detach, so that it stays short.
const SUSPENSIONS_MAX: usize = 1024;

impl<R: Clone> Queues<R> {
    /// Interns a recipient domain (or `host!domain`, in lower case) of a queue. Admit recipients to
    /// it before the next `report`.
    ///
    /// # Panics
    /// If the queue does not exist.
    pub fn destination(&mut self, queue: QueueNumber, name: &str) -> Destination {
        self.destinations.intern(queue, name)
    }

    /// The name of a destination.
    ///
    /// # Panics
    /// If the destination is not in use any more.
    pub fn destination_name(&self, destination: Destination) -> &str {
        self.destinations.name(destination)
    }

    /// The home queue of a destination.
    ///
    /// # Panics
    /// If the destination is not in use any more.
    pub fn destination_queue(&self, destination: Destination) -> QueueNumber {
        self.destinations.place(destination).queue
    }

    /// The next hop with this name, if it is known.
    pub fn next_hop(&self, name: &str) -> Option<NextHop> {
        self.hops.number(name).map(NextHop)
    }

    /// The name of a next hop.
    ///
    /// # Panics
    /// If no attempt names it and no destination is routed there.
    pub fn next_hop_name(&self, next_hop: NextHop) -> &str {
        &self.hops[next_hop.0].name
    }

    /// A destination that needs a route: it has none, or an expired one. Recipients that become
    /// ready there wait for the route. Each destination is returned once, and must be answered with
    /// [`Queues::routed`], however late. `admit`, `next` and `report` add destinations.
    pub fn next_question(&mut self) -> Option<Destination> {
        self.destinations.next_question()
    }

    /// Sets the route of a destination. Attempts in flight keep their next hop.
    pub fn routed(&mut self, now: Timestamp, destination: Destination, routed: Routed<R>) {
        let hop = self.hops.intern(&routed.next_hop, routed.limits.clone());
        let until = routed.until.max(now + ANSWER_TIME_MIN);
        let old = self.destinations.answer(destination, hop, Routed { until, ..routed });
        self.note_move(now, destination);
        let berths = self.berths(hop, self.destination_queue(destination));
        self.turns.assign(destination, berths);
        if old != hop {
            self.hops[hop].destinations += 1;
            self.abandon(now, old);
        }
        self.settle(now, hop);
    }

    /// Called when a recipient becomes ready: requests a route if there is no valid one, and stops
    /// attempts until it arrives.
    pub(crate) fn look_up(&mut self, now: Timestamp, destination: Destination) {
        self.destinations.ask(destination, now);
        if self.destinations.place(destination).until <= now {
            self.suspend(now, destination);
        }
    }

    /// The hop queue that `first` finds, after detaching destinations whose route expired too long
    /// ago. One that loses its last destination is no longer scheduled, and the next one comes up.
    pub(crate) fn first_in_time<Q>(
        &mut self,
        now: Timestamp,
        first: impl Fn(&Self) -> Option<(Q, u32)>,
    ) -> Option<(Q, u32)> {
        for _ in 0..SUSPENSIONS_MAX {
            let (queue, berth) = first(self)?;
            let destination = self.recipients[self.turns.front(berth)].destination;
            if now < self.destinations.place(destination).until + LINE_TIME_MAX {
                return Some((queue, berth));
            }
            self.destinations.ask(destination, now);
            self.suspend(now, destination);
        }
        None
    }

    /// Forgets destinations and next hops that were idle for too long.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        for _ in 0..SWEEPS {
            if let Some(destination) = self.destinations.sweep(now) {
                self.turns.assign(destination, [NONE; 2]);
                let hop = self.destinations.forget(destination);
                self.abandon(now, hop);
            }
            for home in self.hops.sweep(now).into_iter().flatten() {
                home.berths.into_iter().for_each(|berth| self.turns.berths.close(berth));
            }
        }
    }

    /// Detaches a destination from the hop queues of its next hop until its route arrives.
    fn suspend(&mut self, now: Timestamp, destination: Destination) {
        if let Some(hop) = self.destinations.suspend(destination) {
            self.turns.assign(destination, [NONE; 2]);
            self.settle(now, hop);
        }
    }

    /// Counts one destination fewer at a next hop; does nothing for [`NONE`].
    fn abandon(&mut self, now: Timestamp, hop: u32) {
        if hop != NONE {
            self.hops[hop].destinations -= 1;
            self.hops.rest(hop, now);
            self.settle(now, hop);
        }
    }

    /// The hop queues of a queue at a next hop: single messages, bulk mail.
    fn berths(&mut self, hop: u32, queue: QueueNumber) -> [u32; 2] {
        if let Some(home) = self.hops[hop].homes.iter().find(|home| home.queue == queue) {
            return home.berths;
        }
        let berths = [Class::Letter, Class::Mailing].map(|class| self.turns.berths.open(hop, queue, class));
        self.hops[hop].homes.push(Home { queue, slots: 0, berths });
        berths
    }
}
