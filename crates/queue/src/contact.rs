//! Contacts with next hops: records their results, adopts and releases next hops, and schedules
//! their mail.
//!
//! After every change of a next hop (an attempt leaves or ends, a route arrives, an alarm is due)
//! it is updated: the queue that serves it now schedules its hop queues, if they may leave. This
//! costs O(number of queues).

use mail::Timestamp;

use crate::attempt::{Attempt, ContactResult, NextHopId};
use crate::hop_queue::{SchedulePosition, ServiceClass};
use crate::interruptions::InterruptedMessage;
use crate::next_hop_state::{NextHopAccess, NextHopState};
use crate::{HopAdoptionPolicy, QueueNumber, Queues};

/// Next hops with a due alarm that one call of [`Queues::next_attempt`] handles at most.
const ALARMS_MAX: usize = 1024;

impl<R: Clone> Queues<R> {
    /// Ends the network part of an attempt: frees its slot, and updates the next hop with the
    /// result. Call it once at most; [`Queues::report_verdicts`] calls it with
    /// [`ContactResult::Unknown`] if the caller did not. Does nothing for attempts without a slot.
    pub fn finish_contact(&mut self, now: Timestamp, attempt: &mut Attempt<R>, contact: ContactResult) {
        let (Some(NextHopId(hop)), true) = (attempt.next_hop, attempt.holds_slot) else { return };
        attempt.holds_slot = false;
        self.unrecorded += 1;
        let home = self.destinations.state(attempt.destination).queue;
        let serving = self.serving_queue(hop, home);
        self.statuses[usize::from(serving.0)].slots -= 1;
        self.hops[hop].end_attempt(attempt.epoch);
        self.hops[hop].home_queue_mut(home).slots -= 1;
        if self.record_contact(now, hop, attempt, contact) {
            self.adopt(hop);
        }
        self.release_if_due(now, hop);
        self.update_next_hop(now, hop);
    }

    /// Reports that an attempt in flight has waited longer than [`HopAdoptionPolicy::slower_than`]:
    /// the next hop is adopted.
    pub fn report_slow(&mut self, now: Timestamp, next_hop: NextHopId) {
        let NextHopId(hop) = next_hop;
        if self.hops.known(hop).is_some() && self.hops[hop].record_trouble(now) {
            self.adopt(hop);
            self.update_next_hop(now, hop);
        }
    }

    /// Handles the next hops with a due alarm: a rate, a probe, a release.
    pub(crate) fn handle_due_alarms(&mut self, now: Timestamp) {
        for _ in 0..ALARMS_MAX {
            let Some(hop) = self.hops.pop_alarm(now) else { break };
            self.release_if_due(now, hop);
            self.update_next_hop(now, hop);
        }
    }

    /// The queue that serves a next hop now, for mail whose home queue is `home`.
    pub(crate) fn serving_queue(&self, hop: u32, home: QueueNumber) -> QueueNumber {
        match &self.adopter {
            Some((adopter, _)) if self.hops[hop].adopted => *adopter,
            Some(_) | None => home,
        }
    }

    /// How many attempts a queue makes to one next hop at a time, in addition to the next hop's own
    /// limit.
    pub(crate) fn per_next_hop_cap(&self, queue: QueueNumber) -> usize {
        match &self.adopter {
            Some((adopter, adopt)) if *adopter == queue => adopt.per_next_hop.max(1),
            Some(_) | None => usize::MAX,
        }
    }

    /// Schedules the hop queues of a next hop where they belong now, and sets its alarm.
    pub(crate) fn update_next_hop(&mut self, now: Timestamp, hop: u32) {
        let (mut alarm, mut is_rate_limited, mut is_waiting) = (None, false, false);
        for place in 0..self.hops[hop].home_queues.len() {
            let (home, hop_queues) =
                (self.hops[hop].home_queues[place].queue, self.hops[hop].home_queues[place].hop_queues);
            let queue = self.serving_queue(hop, home);
            let access = self.hops[hop].access(now, self.per_next_hop_cap(queue));
            for hop_queue in hop_queues {
                let is_empty = self.ready.hop_queues.get(hop_queue).domain_queues.is_empty();
                let service_class = match access {
                    NextHopAccess::Open => Some(self.ready.hop_queues.service_class(hop_queue)),
                    NextHopAccess::Dead(_) => Some(ServiceClass::Refused),
                    NextHopAccess::Full | NextHopAccess::WaitsForSlot | NextHopAccess::RateLimited(_) => None,
                };
                self.ready.hop_queues.set_position(
                    hop_queue,
                    service_class.filter(|_| !is_empty).map(|service_class| SchedulePosition { queue, service_class }),
                );
                is_rate_limited |= !is_empty && matches!(access, NextHopAccess::RateLimited(_));
                is_waiting |= !is_empty && access == NextHopAccess::WaitsForSlot;
                if let (false, NextHopAccess::RateLimited(at) | NextHopAccess::Dead(at)) = (is_empty, access) {
                    alarm = alarm.into_iter().chain(Some(at)).min();
                }
            }
        }
        if is_rate_limited {
            self.request_departures(now, hop);
        }
        let report_at = self.report_slots(now, hop, is_waiting);
        // A due probe without a free slot waits for an attempt to end, not for the clock.
        let alarm = alarm.filter(|&at| at > now);
        let release = self.adopter.as_ref().and_then(|(_, adopt)| self.hops[hop].release_at(adopt));
        self.hops.set_alarm(hop, alarm.into_iter().chain(release).chain(report_at).min());
    }

    fn record_contact(&mut self, now: Timestamp, hop: u32, attempt: &Attempt<R>, contact: ContactResult) -> bool {
        let &Attempt { id: message, destination, epoch, .. } = attempt;
        let sender = self.messages[self.recipients[attempt.first_recipient].message].sender;
        let adopt: Option<&HopAdoptionPolicy> = self.adopter.as_ref().map(|(_, adopt)| adopt);
        let hop: &mut NextHopState = &mut self.hops[hop];
        match contact {
            ContactResult::Answered { slowest } => hop.answered(now, slowest, epoch, adopt),
            ContactResult::Failed(reply) => hop.failed(now, reply, epoch, adopt),
            ContactResult::Interrupted(reply) => {
                hop.interrupted(now, InterruptedMessage { message, destination, sender }, reply, epoch, adopt)
            }
            // RFC 5321 section 3.8: a server that replies 421 shuts down or wants less load. This
            // is not caused by the message. If the server cannot be reached afterwards, that is a
            // failure of its own.
            ContactResult::Busy => {
                hop.refused(epoch);
                false
            }
            ContactResult::Unknown => false,
        }
    }

    /// Moves a next hop and its slots in flight to the adopting queue. Not while that queue is
    /// closed, because no attempt would find out that the next hop has recovered.
    fn adopt(&mut self, hop: u32) {
        let may_adopt = self.adopter.as_ref().is_some_and(|&(adopter, _)| self.is_open(adopter));
        if may_adopt && !std::mem::replace(&mut self.hops[hop].adopted, true) {
            self.move_slots(hop, false);
            self.note_lame(hop);
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

    pub(crate) fn move_slots(&mut self, hop: u32, to_home: bool) {
        let Some((adopter, _)) = self.adopter else { return };
        for home in &self.hops[hop].home_queues {
            let (from, to) = if to_home { (adopter, home.queue) } else { (home.queue, adopter) };
            self.statuses[usize::from(from.0)].slots -= home.slots;
            self.statuses[usize::from(to.0)].slots += home.slots;
        }
    }
}
