//! Contacts with next hops: records their results, adopts and releases next hops, and schedules
//! their mail.
//!
//! After every change of a next hop (an attempt leaves or ends, a route arrives, an alarm is due)
//! it is updated: the queue that serves it now schedules its hop queues, if they may leave. This
//! costs O(number of queues).

use mail::Timestamp;

use crate::attempt::{Attempt, Contact, NextHop};
use crate::berth::{Row, Stand};
use crate::hop::{Access, Hop};
use crate::interrupted::Blamed;
use crate::{Adopt, QueueNumber, Queues};

/// Next hops with a due alarm that one call of [`Queues::next`] handles at most.
const ALARMS_MAX: usize = 1024;

impl<R: Clone> Queues<R> {
    /// Ends the network part of an attempt: frees its slot, and updates the next hop with the
    /// result. Call it once at most; [`Queues::report`] calls it with [`Contact::None`] if the
    /// caller did not. Does nothing for attempts without a slot.
    pub fn ended(&mut self, now: Timestamp, attempt: &mut Attempt<R>, contact: Contact) {
        let (Some(NextHop(hop)), true) = (attempt.next_hop, attempt.under_way) else { return };
        attempt.under_way = false;
        self.unrecorded += 1;
        let home = self.destinations.place(attempt.destination).queue;
        let serving = self.serving(hop, home);
        self.lanes[usize::from(serving.0)].slots -= 1;
        self.hops[hop].land(attempt.epoch);
        self.hops[hop].home_mut(home).slots -= 1;
        if self.is_lame_after(now, hop, attempt, contact) {
            self.adopt(hop);
        }
        self.release_if_due(now, hop);
        self.settle(now, hop);
    }

    /// Reports that an attempt in flight has waited longer than [`Adopt::slower_than`]: the next
    /// hop is adopted.
    pub fn slow(&mut self, now: Timestamp, next_hop: NextHop) {
        let NextHop(hop) = next_hop;
        if self.hops.known(hop).is_some() && self.hops[hop].trouble(now) {
            self.adopt(hop);
            self.settle(now, hop);
        }
    }

    /// Handles the next hops with a due alarm: a rate, a probe, a release.
    pub(crate) fn ring(&mut self, now: Timestamp) {
        for _ in 0..ALARMS_MAX {
            let Some(hop) = self.hops.pop_alarm(now) else { break };
            self.release_if_due(now, hop);
            self.settle(now, hop);
        }
    }

    /// The queue that serves a next hop now, for mail whose home queue is `home`.
    pub(crate) fn serving(&self, hop: u32, home: QueueNumber) -> QueueNumber {
        match &self.adopter {
            Some((adopter, _)) if self.hops[hop].adopted => *adopter,
            Some(_) | None => home,
        }
    }

    /// How many attempts a queue makes to one next hop at a time, in addition to the next hop's own
    /// limit.
    pub(crate) fn cap_inside(&self, queue: QueueNumber) -> usize {
        match &self.adopter {
            Some((adopter, adopt)) if *adopter == queue => adopt.per_next_hop.max(1),
            Some(_) | None => usize::MAX,
        }
    }

    /// Schedules the hop queues of a next hop where they belong now, and sets its alarm.
    pub(crate) fn settle(&mut self, now: Timestamp, hop: u32) {
        let mut alarm = None;
        for place in 0..self.hops[hop].homes.len() {
            let (home, berths) = (self.hops[hop].homes[place].queue, self.hops[hop].homes[place].berths);
            let queue = self.serving(hop, home);
            let access = self.hops[hop].access(now, self.cap_inside(queue));
            for berth in berths {
                let is_empty = self.turns.berths.berth(berth).desks.is_empty();
                let row = match access {
                    Access::Open => Some(self.turns.berths.row(berth)),
                    Access::Dead(_) => Some(Row::Refused),
                    Access::Full | Access::Paced(_) => None,
                };
                self.turns.berths.stand(berth, row.filter(|_| !is_empty).map(|row| Stand { queue, row }));
                if let (false, Access::Paced(at) | Access::Dead(at)) = (is_empty, access) {
                    alarm = alarm.into_iter().chain(Some(at)).min();
                }
            }
        }
        // A due probe without a free slot waits for an attempt to end, not for the clock.
        let alarm = alarm.filter(|&at| at > now);
        let release = self.adopter.as_ref().and_then(|(_, adopt)| self.hops[hop].release_at(adopt));
        self.hops.set_alarm(hop, alarm.into_iter().chain(release).min());
    }

    fn is_lame_after(&mut self, now: Timestamp, hop: u32, attempt: &Attempt<R>, contact: Contact) -> bool {
        let &Attempt { id: message, destination, epoch, .. } = attempt;
        let sender = self.messages[self.recipients[attempt.first].message].sender;
        let adopt: Option<&Adopt> = self.adopter.as_ref().map(|(_, adopt)| adopt);
        let hop: &mut Hop = &mut self.hops[hop];
        match contact {
            Contact::Answered { slowest } => hop.answered(now, slowest, epoch, adopt),
            Contact::Failed(reply) => hop.failed(now, reply, epoch, adopt),
            Contact::Interrupted(reply) => {
                hop.interrupted(now, Blamed { message, destination, sender }, reply, epoch, adopt)
            }
            // RFC 5321 section 3.8: a server that replies 421 shuts down or wants less load. This
            // is not caused by the message. If the server cannot be reached afterwards, that is a
            // failure of its own.
            Contact::Busy => {
                hop.refused(epoch);
                false
            }
            Contact::None => false,
        }
    }

    /// Moves a next hop and its slots in flight to the adopting queue. Not while that queue is
    /// closed, because no attempt would find out that the next hop has recovered.
    fn adopt(&mut self, hop: u32) {
        let may_adopt = self.adopter.as_ref().is_some_and(|&(adopter, _)| self.is_open(adopter));
        if may_adopt && !std::mem::replace(&mut self.hops[hop].adopted, true) {
            self.move_slots(hop, false);
        }
    }

    /// Moves a next hop back when it has been well for long enough.
    pub(crate) fn release_if_due(&mut self, now: Timestamp, hop: u32) {
        let release_at = self.adopter.as_ref().and_then(|(_, adopt)| self.hops[hop].release_at(adopt));
        if release_at.is_some_and(|at| at <= now) {
            self.hops[hop].adopted = false;
            self.move_slots(hop, true);
        }
    }

    pub(crate) fn move_slots(&mut self, hop: u32, homewards: bool) {
        let Some((adopter, _)) = self.adopter else { return };
        for home in &self.hops[hop].homes {
            let (from, to) = if homewards { (adopter, home.queue) } else { (home.queue, adopter) };
            self.lanes[usize::from(from.0)].slots -= home.slots;
            self.lanes[usize::from(to.0)].slots += home.slots;
        }
    }
}
