//! Routes: which destination goes where, asked for and answered, and forgotten with what nobody uses.
//!
//! | a destination | its lines | a question is open |
//! |---|---|---|
//! | has no route | gather at its desks, in no berth | from the first recipient that becomes ready, until the answer |
//! | has one | in the berths of its next hop | no |
//! | has one whose time is over | stay in those berths | from the next attempt, until the answer |
//! | the same, and somebody becomes ready, or [`LINE_TIME_MAX`] is over | as without a route | until the answer |
//!
//! So nobody is lined up by a route whose time is over, and whoever was lined up in time does not pause for it.

use std::time::Duration;

use mail::Timestamp;

use crate::attempt::{NextHop, Routed};
use crate::chain::NONE;
use crate::hop::Home;
use crate::senders::Class;
use crate::{Destination, QueueNumber, Queues};

/// Steps of the hands at each report. Each makes one destination idle at most, so two keep up.
const SWEEPS: usize = 2;
/// An answer serves for so long, whatever it says itself: it may be over when it comes, and would be asked for for ever.
const ANSWER_TIME_MIN: Duration = Duration::from_secs(1);
/// Those who were lined up by a route leave by it for so long after its time. It is short against the age that does
/// harm, and long enough for a turn at a next hop with little room: who had to ask at each turn might miss them all.
const LINE_TIME_MAX: Duration = Duration::from_secs(300);
/// One choice of who is next takes no more destinations out of their berths, so that it stays short.
const SUSPENSIONS_MAX: usize = 1024;

impl<R: Clone> Queues<R> {
    /// The number of a recipient domain (or `host!domain`, in lower case) in a queue. It is to be admitted before the
    /// next `report`.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn destination(&mut self, queue: QueueNumber, name: &str) -> Destination {
        self.destinations.intern(queue, name)
    }

    /// The name behind a number.
    ///
    /// # Panics
    /// If nobody waits for the destination any more.
    pub fn destination_name(&self, destination: Destination) -> &str {
        self.destinations.name(destination)
    }

    /// The queue that the destination is at home in.
    ///
    /// # Panics
    /// If nobody waits for the destination any more.
    pub fn destination_queue(&self, destination: Destination) -> QueueNumber {
        self.destinations.place(destination).queue
    }

    /// The next hop of this identity, if it is known.
    pub fn next_hop(&self, name: &str) -> Option<NextHop> {
        self.hops.number(name).map(NextHop)
    }

    /// The identity of a next hop.
    ///
    /// # Panics
    /// If no attempt names it any more and no mail is routed there.
    pub fn next_hop_name(&self, next_hop: NextHop) -> &str {
        &self.hops[next_hop.0].name
    }

    /// A destination that needs a route: none is known, or its time is over. Who becomes ready there waits for the
    /// answer. Each is asked once, and every question must be answered by [`Queues::routed`], however late. New
    /// questions come up in `admit`, `next` and `report`.
    pub fn next_question(&mut self) -> Option<Destination> {
        self.destinations.next_question()
    }

    /// Answers a question. Attempts in flight keep the next hop that they left with.
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

    /// Somebody becomes ready: asks where there is no route in time, and lets nobody leave until that is answered.
    pub(crate) fn look_up(&mut self, now: Timestamp, destination: Destination) {
        self.destinations.ask(destination, now);
        if self.destinations.place(destination).until <= now {
            self.suspend(now, destination);
        }
    }

    /// The berth that `first` finds, once the destinations whose time in line is over have left it. A berth that has
    /// lost its last one stands nowhere, and the next one comes up.
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

    /// Forgets what was idle for long.
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

    /// A destination leaves the berths of its next hop until it is answered, if it has not yet.
    fn suspend(&mut self, now: Timestamp, destination: Destination) {
        if let Some(hop) = self.destinations.suspend(destination) {
            self.turns.assign(destination, [NONE; 2]);
            self.settle(now, hop);
        }
    }

    /// A destination no longer goes there; [`NONE`] is nowhere.
    fn abandon(&mut self, now: Timestamp, hop: u32) {
        if hop != NONE {
            self.hops[hop].destinations -= 1;
            self.hops.rest(hop, now);
            self.settle(now, hop);
        }
    }

    /// The berths of a queue at a next hop: letters, mailings.
    fn berths(&mut self, hop: u32, queue: QueueNumber) -> [u32; 2] {
        if let Some(home) = self.hops[hop].homes.iter().find(|home| home.queue == queue) {
            return home.berths;
        }
        let berths = [Class::Letter, Class::Mailing].map(|class| self.turns.berths.open(hop, queue, class));
        self.hops[hop].homes.push(Home { queue, slots: 0, berths });
        berths
    }
}
