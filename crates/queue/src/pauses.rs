//! What the operator has paused: queues, next hops and destinations, each until a time or until it is
//! resumed. Attempts in flight continue, and the operator's actions still apply.
//!
//! | paused | kept back |
//! |---|---|
//! | a queue | its mail at all next hops, and what it serves for others |
//! | a next hop | all mail routed there, whatever its queue; none is refused either |
//! | a destination | its mail in all queues: it gathers as if there were no route yet |
//!
//! What is paused by its name need not be known yet.

use std::collections::BTreeMap;

use mail::Timestamp;

use crate::intrusive_list::NONE;
use crate::{DestinationId, PauseEnd, QueueNumber, Queues};

/// Pauses at a time.
const PAUSES_MAX: usize = 1000;

/// What is paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseTarget {
    /// A queue.
    Queue(QueueNumber),
    /// The next hop with this name.
    NextHop(Box<str>),
    /// The destination with this name, in all queues.
    Destination(Box<str>),
}

/// So many pauses are in force that there is no room for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{PAUSES_MAX} pauses are in force: resume some of them first")]
pub struct TooManyPauses;

/// The pauses in force.
#[derive(Default)]
pub(crate) struct Pauses(BTreeMap<PauseTarget, PauseEnd>);

impl Pauses {
    /// The end of a pause; None: there is no such pause.
    pub(crate) fn find(&self, target: &PauseTarget) -> Option<PauseEnd> {
        self.0.get(target).copied()
    }

    pub(crate) fn next_hop(&self, name: &str) -> Option<PauseEnd> {
        if self.0.is_empty() { None } else { self.find(&PauseTarget::NextHop(name.into())) }
    }

    pub(crate) fn destination(&self, name: &str) -> Option<PauseEnd> {
        if self.0.is_empty() { None } else { self.find(&PauseTarget::Destination(name.into())) }
    }

    pub(crate) fn next_end(&self) -> Option<Timestamp> {
        self.0.values().copied().flatten().min()
    }

    pub(crate) fn remove(&mut self, target: &PauseTarget) -> bool {
        self.0.remove(target).is_some()
    }

    fn over(&self, now: Timestamp) -> Option<PauseTarget> {
        self.0.iter().find(|(_, end)| end.is_some_and(|end| end <= now)).map(|(target, _)| target.clone())
    }
}

impl<R: Clone> Queues<R> {
    /// Pauses deliveries until this time, or until they are resumed; a pause that is in force gets this
    /// end. A retired queue is not paused, because it may return to the settings.
    ///
    /// # Errors
    ///
    /// Too many pauses are in force.
    pub fn pause(&mut self, now: Timestamp, target: PauseTarget, until: PauseEnd) -> Result<(), TooManyPauses> {
        if matches!(&target, PauseTarget::Queue(queue) if self.queue(*queue).retired) {
            return Ok(());
        }
        if self.pauses.find(&target).is_none() && self.pauses.0.len() >= PAUSES_MAX {
            return Err(TooManyPauses);
        }
        self.set_paused(now, &target, true);
        self.pauses.0.insert(target, until);
        Ok(())
    }

    /// Ends a pause; returns whether there was one.
    pub fn resume(&mut self, now: Timestamp, target: &PauseTarget) -> bool {
        let was_paused = self.pauses.remove(target);
        if was_paused {
            self.set_paused(now, target, false);
        }
        was_paused
    }

    /// The pauses in force.
    pub fn pause_views(&self) -> impl Iterator<Item = (&PauseTarget, PauseEnd)> {
        self.pauses.0.iter().map(|(target, end)| (target, *end))
    }

    /// Ends the pauses whose time is over.
    pub(crate) fn end_pauses(&mut self, now: Timestamp) {
        while let Some(target) = self.pauses.over(now) {
            self.resume(now, &target);
        }
    }

    fn set_paused(&mut self, now: Timestamp, target: &PauseTarget, is_paused: bool) {
        match target {
            PauseTarget::Queue(queue) => self.statuses[usize::from(queue.0)].is_paused = is_paused,
            PauseTarget::NextHop(name) => {
                if let Some(hop) = self.hops.number(name) {
                    self.hops[hop].is_paused = is_paused;
                    self.update_next_hop(now, hop);
                }
            }
            PauseTarget::Destination(name) => {
                let named: Vec<DestinationId> = self.destinations.named(name).collect();
                for destination in named {
                    match is_paused {
                        true => self.detach_destination(now, destination),
                        false => self.attach_destination(now, destination),
                    }
                }
            }
        }
    }

    /// Uses the route of a destination again, or requests one if it is not valid any more.
    fn attach_destination(&mut self, now: Timestamp, destination: DestinationId) {
        let hop = self.destinations.state(destination).hop;
        if hop == NONE || !self.destinations.attach(destination, now) {
            return self.destinations.request_route(destination, now);
        }
        let hop_queues = self.hop_queues(hop, self.destination_queue(destination));
        self.ready.set_hop_queues(destination, hop_queues);
        self.update_next_hop(now, hop);
    }
}
