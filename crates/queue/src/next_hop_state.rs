//! The state of one next hop: its concurrency, and whether it is dead or lame. Pure: takes
//! contacts, returns access.
//!
//! | state | caused by | attempts |
//! |---|---|---|
//! | unproven | it is new, or was dead until now | one at a time |
//! | proven | an answer | as many as its concurrency, which grows on good answers and shrinks on bad ones |
//! | suspect | interruptions of several messages, see [`InterruptionTracker`] | one at a time, at growing intervals |
//! | dead | [`ProbePolicy::failures`](crate::ProbePolicy::failures) in a row, or three times as many interrupted messages | none until the probe is due, then one at a time |
//!
//! In addition it is lame and may be adopted after failures in a row or a slow answer. It is
//! released when that was long ago and its last answer was quick. Failures of attempts that left
//! before the last shrink or death are ignored, which epochs detect. A message that is interrupted
//! after EHLO was answered is blamed itself, until others are interrupted as well.

use std::sync::Arc;
use std::time::Duration;

use mail::{Reply, Timestamp};

use crate::departures::GrantedDepartures;
use crate::idle_ring::IdleMark;
use crate::interruptions::{InterruptedMessage, InterruptionTracker, MESSAGES_PER_FAILURE};
use crate::pace::Pace;
use crate::slots::{SharedSlots, SlotState, SlotUsage};
use crate::{ConcurrencyFeedback, ConcurrencyReason, HopAdoptionPolicy, NextHopLimits, QueueNumber};

/// The minimum delay of a probe, whatever the settings are.
const PROBE_DELAY_MIN: Duration = Duration::from_millis(1);

/// A next hop, while it is in use and for some time after.
pub(crate) struct NextHopState {
    pub(crate) name: Arc<str>,
    pub(crate) limits: NextHopLimits,
    /// The queues with destinations routed here.
    pub(crate) home_queues: Vec<HomeQueue>,
    /// The number of destinations routed here.
    pub(crate) destinations: u32,
    /// Attempts that name it and are not reported.
    pub(crate) attempts: u32,
    /// Attempts that hold a slot.
    pub(crate) slots: usize,
    /// Counts shrinks and deaths.
    pub(crate) epoch: u32,
    pub(crate) failures: u32,
    pub(crate) error: Option<Reply>,
    pub(crate) adopted: bool,
    /// By the operator: nothing leaves for it.
    pub(crate) is_paused: bool,
    pub(crate) alarm: Option<Timestamp>,
    pub(crate) idle_mark: IdleMark,
    pace: Option<Pace>,
    /// Set while others share its concurrency, and until they know that it is not shared any more.
    shared_slots: Option<SharedSlots>,
    /// The adapted concurrency; used while the next hop is proven.
    window: f64,
    /// The most slots held since the current round of answers began.
    slots_peak: usize,
    /// Good answers in the current round.
    answers: usize,
    is_proven: bool,
    was_shrunk: bool,
    dead: Option<DeadState>,
    /// Interruptions since the last answer. If it is dead, the cause.
    interrupted: Option<Box<InterruptionTracker>>,
    /// The time of the last failure or slow answer.
    pub(crate) trouble_at: Timestamp,
    /// Whether the last contact was a quick answer.
    is_quick: bool,
}

/// The part of one queue in a next hop.
pub(crate) struct HomeQueue {
    pub(crate) queue: QueueNumber,
    /// Attempts of its mail that hold a slot.
    pub(crate) slots: usize,
    /// Single messages, bulk mail.
    pub(crate) hop_queues: [u32; 2],
}

struct DeadState {
    probe_at: Timestamp,
    delay: Duration,
    is_probed: bool,
}

/// Whether an attempt may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHopAccess {
    Open,
    /// Not until an attempt ends, or the operator resumes it.
    Full,
    /// Not until others leave it a slot.
    WaitsForSlot,
    /// Not before that time.
    RateLimited(Timestamp),
    /// It is dead: a probe may leave from that time on, if a slot is free.
    Dead(Timestamp),
}

impl NextHopState {
    pub(crate) fn new(name: Arc<str>, limits: NextHopLimits) -> Self {
        NextHopState {
            name,
            pace: Pace::new(&limits),
            shared_slots: limits.shared_concurrency.map(|_| SharedSlots::default()),
            limits,
            home_queues: Vec::new(),
            destinations: 0,
            attempts: 0,
            slots: 0,
            epoch: 0,
            failures: 0,
            error: None,
            adopted: false,
            is_paused: false,
            alarm: None,
            idle_mark: IdleMark::default(),
            window: 1.0,
            slots_peak: 0,
            answers: 0,
            is_proven: false,
            was_shrunk: false,
            dead: None,
            interrupted: None,
            trouble_at: Timestamp::default(),
            is_quick: false,
        }
    }

    /// Sets other limits and keeps what was learned.
    pub(crate) fn set_limits(&mut self, limits: NextHopLimits) {
        if self.limits == limits {
            return;
        }
        self.pace = match &self.pace {
            Some(pace) => pace.with_limits(&limits),
            None => Pace::new(&limits),
        };
        if limits.shared_concurrency.is_some() {
            self.shared_slots.get_or_insert_default();
        }
        self.limits = limits;
        self.window = self.window.min(self.max_concurrency());
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.destinations > 0 || self.attempts > 0 || self.shared_slots.as_ref().is_some_and(SharedSlots::is_reported)
    }

    /// The part of a queue. It exists because destinations create it, and attempts need
    /// destinations.
    pub(crate) fn home_queue_mut(&mut self, queue: QueueNumber) -> &mut HomeQueue {
        self.home_queues
            .iter_mut()
            .find(|home| home.queue == queue)
            .expect("the queue has mail routed to this next hop")
    }

    /// How many attempts may be made at a time, without the limit of an adopting queue.
    pub(crate) fn concurrency(&self) -> usize {
        if !self.is_proven || self.is_suspect() {
            return 1;
        }
        (self.window as usize).clamp(1, self.limits.concurrency.max.max(1))
    }

    /// Why the concurrency is what it is, without the limit of an adopting queue.
    pub(crate) fn concurrency_reason(&self) -> ConcurrencyReason {
        let start = self.limits.concurrency.start.max(1) as f64;
        match () {
            () if self.dead.is_some() => ConcurrencyReason::Dead,
            () if self.is_suspect() => ConcurrencyReason::Suspect,
            () if !self.is_proven => ConcurrencyReason::Unproven,
            () if self.was_shrunk => ConcurrencyReason::Reduced,
            () if self.window > start => ConcurrencyReason::Raised,
            () => ConcurrencyReason::Start,
        }
    }

    /// When the next probe is due, if it is dead.
    pub(crate) fn probe_at(&self) -> Option<Timestamp> {
        self.dead.as_ref().map(|dead| dead.probe_at)
    }

    /// The interruptions, if they hold up other mail and the next hop is not dead.
    pub(crate) fn interruption(&self, now: Timestamp) -> Option<&InterruptionTracker> {
        let interrupted = self.interrupted.as_deref().filter(|_| self.dead.is_none());
        interrupted.filter(|interrupted| self.is_suspect() || interrupted.resume_at() > now)
    }

    /// The last interrupted message, if none was answered since: other mail goes first.
    pub(crate) fn interrupted_last(&self) -> Option<InterruptedMessage> {
        self.interrupted.as_deref().map(InterruptionTracker::last)
    }

    /// When the rate lets the next attempt leave, if it has a rate.
    pub(crate) fn rate_free_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.pace.as_ref().map(|pace| pace.free_at(now))
    }

    /// See [`Departures::request`](crate::departures::Departures::request).
    pub(crate) fn request_departures(&mut self, now: Timestamp) -> Option<(Duration, u32)> {
        self.pace.as_mut()?.request(now)
    }

    /// Takes departures.
    pub(crate) fn grant_departures(&mut self, granted: GrantedDepartures) {
        self.pace.iter_mut().for_each(|pace| pace.grant(granted));
    }

    /// Takes the slots that others leave it.
    pub(crate) fn grant_slots(&mut self, slots: usize) {
        self.shared_slots.iter_mut().for_each(|shared| shared.grant(slots));
    }

    /// How many attempts others allow at a time; None if they do not share it.
    pub(crate) fn granted_slots(&self) -> Option<usize> {
        let shared = self.shared_slots.as_ref().filter(|_| self.limits.shared_concurrency.is_some());
        shared.map(SharedSlots::granted)
    }

    /// How many attempts others allow at a time, if that holds up mail: all of these are made.
    pub(crate) fn used_up_slots(&self) -> Option<usize> {
        let is_wanted = self.shared_slots.as_ref().is_some_and(SharedSlots::is_wanted);
        self.granted_slots().filter(|granted| is_wanted && self.slots >= *granted)
    }

    /// What to report of its slots, and when to look again. `is_waiting`: an attempt waits for nothing but
    /// a slot.
    pub(crate) fn poll_slots(&mut self, now: Timestamp, is_waiting: bool) -> (Option<SlotUsage>, Option<Timestamp>) {
        let (slots, concurrency, limit) = (self.slots, self.concurrency(), self.limits.concurrency.max.max(1));
        match (&mut self.shared_slots, self.limits.shared_concurrency) {
            (Some(shared), Some(policy)) => {
                shared.poll(now, SlotState { limit, idle: policy.idle, slots, concurrency, is_waiting })
            }
            (Some(shared), None) => {
                let is_reported = shared.is_reported();
                self.shared_slots = None;
                (is_reported.then_some(SlotUsage { limit, ..SlotUsage::default() }), None)
            }
            (None, _) => (None, None),
        }
    }

    /// Whether an attempt may leave now. `cap` is the limit of the adopting queue.
    pub(crate) fn access(&self, now: Timestamp, cap: usize) -> NextHopAccess {
        if self.is_paused {
            return NextHopAccess::Full;
        }
        let has_room = self.slots < self.concurrency().min(cap);
        match &self.dead {
            // Others wait for the result of the probe.
            Some(dead) if dead.is_probed => return NextHopAccess::Full,
            Some(dead) if now < dead.probe_at || !has_room => return NextHopAccess::Dead(dead.probe_at),
            None if !has_room => return NextHopAccess::Full,
            Some(_) | None => {}
        }
        let resume_at = self.interrupted.as_deref().map(InterruptionTracker::resume_at);
        let free_at = self.rate_free_at(now).max(resume_at);
        match free_at.filter(|&at| at > now) {
            Some(at) => NextHopAccess::RateLimited(at),
            None if self.granted_slots().is_some_and(|granted| self.slots >= granted) => NextHopAccess::WaitsForSlot,
            None => NextHopAccess::Open,
        }
    }

    /// Corrects the state after the clock was set back.
    pub(crate) fn clamp_to_clock(&mut self, now: Timestamp) {
        self.trouble_at = self.trouble_at.min(now);
        if let Some(pace) = &mut self.pace {
            pace.clamp_to_clock(now);
        }
        if let Some(shared) = &mut self.shared_slots {
            shared.clamp_to_clock(now);
        }
        if let Some(interrupted) = &mut self.interrupted {
            interrupted.set_back(now);
        }
        if let Some(dead) = &mut self.dead {
            dead.probe_at = dead.probe_at.min(now + dead.delay);
        }
    }

    /// Starts an attempt; returns its epoch.
    pub(crate) fn start_attempt(&mut self, now: Timestamp) -> u32 {
        if self.answers >= self.concurrency() {
            (self.answers, self.slots_peak) = (0, 0);
        }
        self.slots += 1;
        self.slots_peak = self.slots_peak.max(self.slots);
        if let Some(pace) = &mut self.pace {
            pace.consume(now);
        }
        if let Some(dead) = &mut self.dead {
            dead.is_probed = true;
        }
        self.epoch
    }

    /// Ends an attempt of that epoch: it no longer holds a slot. Call it before recording the
    /// contact.
    pub(crate) fn end_attempt(&mut self, epoch: u32) {
        self.slots -= 1;
        if let Some(dead) = self.dead.as_mut().filter(|_| epoch == self.epoch) {
            dead.is_probed = false;
        }
    }

    /// The next hop answered; `slowest` is the time of the slowest reply. Returns true if it is
    /// lame.
    pub(crate) fn answered(
        &mut self,
        now: Timestamp,
        slowest: Duration,
        epoch: u32,
        adopt: Option<&HopAdoptionPolicy>,
    ) -> bool {
        self.mark_alive();
        match self.limits.concurrency.adapt {
            ConcurrencyFeedback::ByLatency { target } if slowest > target && self.is_proven => self.shrink(epoch),
            ConcurrencyFeedback::ByLatency { .. } | ConcurrencyFeedback::ByAnswers => self.grow(),
        }
        self.is_quick = adopt.is_none_or(|adopt| slowest <= adopt.slower_than);
        !self.is_quick && self.record_trouble(now)
    }

    /// The next hop answered and wants less load.
    pub(crate) fn refused(&mut self, epoch: u32) {
        self.mark_alive();
        self.is_proven = true;
        self.shrink(epoch);
    }

    /// The next hop could not be reached. Returns true if it is lame.
    pub(crate) fn failed(
        &mut self,
        now: Timestamp,
        reply: Reply,
        epoch: u32,
        adopt: Option<&HopAdoptionPolicy>,
    ) -> bool {
        self.failures = self.failures.saturating_add(1);
        self.error = Some(reply);
        if self.dead.is_some() {
            self.interrupted = None;
            self.delay_probe(now, epoch);
        } else if self.failures >= self.limits.probe.failures.max(1) {
            self.interrupted = None;
            self.mark_dead(now);
        } else {
            self.shrink(epoch);
        }
        (self.trouble_at, self.is_quick) = (now, false);
        adopt.is_some_and(|adopt| self.failures >= adopt.failures.max(1)) && self.record_trouble(now)
    }

    /// The next hop answered EHLO, and the session was interrupted during this message. Returns
    /// true if it is lame.
    pub(crate) fn interrupted(
        &mut self,
        now: Timestamp,
        blamed: InterruptedMessage,
        reply: Reply,
        epoch: u32,
        adopt: Option<&HopAdoptionPolicy>,
    ) -> bool {
        if epoch != self.epoch {
            return false;
        }
        self.error = Some(reply);
        let Some(interrupted) = &mut self.interrupted else {
            // The next hop is reachable again, and perhaps only the message is at fault.
            if self.dead.take().is_some() {
                self.failures = 0;
            }
            self.interrupted = Some(Box::new(InterruptionTracker::new(blamed)));
            return false;
        };
        interrupted.add(now, blamed, &self.limits.probe);
        let (count, is_fatal) = (interrupted.count(), interrupted.is_fatal(&self.limits.probe));
        if is_fatal {
            self.mark_dead(now)
        } else {
            self.shrink(epoch)
        }
        let lame_from = |adopt: &HopAdoptionPolicy| adopt.failures.max(1).saturating_mul(MESSAGES_PER_FAILURE);
        adopt.is_some_and(|adopt| count >= lame_from(adopt)) && self.record_trouble(now)
    }

    /// Records trouble. Returns true if it is lame, which it never is if it adapts to latency.
    pub(crate) fn record_trouble(&mut self, now: Timestamp) -> bool {
        (self.trouble_at, self.is_quick) = (now, false);
        matches!(self.limits.concurrency.adapt, ConcurrencyFeedback::ByAnswers)
    }

    /// When it will be released, if its last answer was quick.
    pub(crate) fn release_at(&self, adopt: &HopAdoptionPolicy) -> Option<Timestamp> {
        (self.adopted && self.is_quick).then(|| self.trouble_at + adopt.release_after)
    }

    fn is_suspect(&self) -> bool {
        self.interrupted.as_deref().is_some_and(|interrupted| interrupted.is_suspect(&self.limits.probe))
    }

    fn max_concurrency(&self) -> f64 {
        self.limits.concurrency.max.max(1) as f64
    }

    fn grow(&mut self) {
        let concurrency = &self.limits.concurrency;
        let is_used = self.slots_peak as f64 * 2.0 >= self.window;
        self.answers += 1;
        self.window = match (self.is_proven, self.was_shrunk) {
            (false, _) => concurrency.start.max(1) as f64,
            (true, _) if !is_used => self.window,
            (true, false) => self.window + 1.0,
            (true, true) => self.window + concurrency.grow.max(0.0) / self.window,
        };
        self.window = self.window.min(self.max_concurrency());
        self.is_proven = true;
    }

    fn shrink(&mut self, epoch: u32) {
        if epoch == self.epoch && self.is_proven {
            self.epoch = self.epoch.wrapping_add(1);
            self.window = (self.window * self.limits.concurrency.shrink.clamp(0.0, 1.0)).max(1.0);
            self.was_shrunk = true;
        }
    }

    /// It answered.
    fn mark_alive(&mut self) {
        (self.failures, self.dead, self.interrupted) = (0, None, None);
    }

    fn mark_dead(&mut self, now: Timestamp) {
        self.epoch = self.epoch.wrapping_add(1);
        self.is_proven = false;
        let delay = self.limits.probe.first.max(PROBE_DELAY_MIN);
        self.dead = Some(DeadState { probe_at: now + delay, delay, is_probed: false });
    }

    /// A probe has failed.
    fn delay_probe(&mut self, now: Timestamp, epoch: u32) {
        let (probe, current) = (&self.limits.probe, self.epoch);
        if let Some(dead) = self.dead.as_mut().filter(|_| epoch == current) {
            let longer = Duration::try_from_secs_f64(dead.delay.as_secs_f64() * probe.factor);
            dead.delay = longer.unwrap_or(probe.longest).min(probe.longest).max(PROBE_DELAY_MIN);
            dead.probe_at = now + dead.delay;
        }
    }
}

#[cfg(test)]
mod tests {
    use mail::{Rate, SpoolId};

    use super::*;
    use crate::{ConcurrencyPolicy, DestinationId, ProbePolicy};

    const NOW: Timestamp = Timestamp(1_700_000_000_000);
    const QUICK: Duration = Duration::from_millis(5);

    fn limits(start: usize, most: usize) -> NextHopLimits {
        NextHopLimits {
            concurrency: ConcurrencyPolicy { start, max: most, ..ConcurrencyPolicy::default() },
            ..NextHopLimits::default()
        }
    }

    fn hop(limits: NextHopLimits) -> NextHopState {
        NextHopState::new("mx".into(), limits)
    }

    fn lost() -> Reply {
        Reply::without_enhanced_code(451, "lost")
    }

    /// Attempts that leave together and are all answered well.
    fn round(hop: &mut NextHopState, attempts: usize) {
        let epochs: Vec<u32> = (0..attempts).map(|_| hop.start_attempt(NOW)).collect();
        for epoch in epochs {
            hop.end_attempt(epoch);
            hop.answered(NOW, QUICK, epoch, None);
        }
    }

    fn blamed(number: u64) -> InterruptedMessage {
        let message = mail::QueueId::new(SpoolId::new(1), 0, number);
        InterruptedMessage { message, destination: DestinationId(0), sender: 1 }
    }

    fn interrupt(hop: &mut NextHopState, message: u64, adopt: Option<&HopAdoptionPolicy>) -> bool {
        let epoch = hop.start_attempt(NOW);
        hop.end_attempt(epoch);
        hop.interrupted(NOW, blamed(message), lost(), epoch, adopt)
    }

    #[test]
    fn new_limits_apply_immediately_and_a_reduced_window_does_not_grow_back_without_answers() {
        let mut hop = hop(limits(8, 20));
        round(&mut hop, 1);
        assert_eq!(hop.concurrency(), 8);
        hop.set_limits(limits(8, 3));
        assert_eq!(hop.concurrency(), 3);
        hop.set_limits(limits(8, 20));
        assert_eq!(hop.concurrency(), 3);
    }

    #[test]
    fn a_rate_that_comes_later_counts_from_then_on_and_one_that_changes_keeps_what_was_used() {
        let slow = |count| NextHopLimits { rate: Some(Rate { count, per: Duration::from_secs(60) }), ..limits(8, 20) };
        let mut hop = hop(limits(8, 20));
        hop.start_attempt(NOW);
        assert_eq!(hop.rate_free_at(NOW), None);
        hop.set_limits(slow(6));
        assert!(hop.rate_free_at(NOW).unwrap() <= NOW);
        hop.start_attempt(NOW);
        let free_at = NOW + Duration::from_secs(10);
        assert_eq!(hop.rate_free_at(NOW), Some(free_at));
        hop.set_limits(slow(6));
        assert_eq!(hop.rate_free_at(NOW), Some(free_at), "the limits did not change");
        hop.set_limits(slow(1));
        assert_eq!(hop.rate_free_at(NOW), Some(free_at), "the bucket is kept");
        hop.set_limits(limits(8, 20));
        assert_eq!(hop.rate_free_at(NOW), None);
    }

    #[test]
    fn the_concurrency_has_a_reason_in_every_state() {
        let mut hop = hop(limits(2, 20));
        assert_eq!(hop.concurrency_reason(), ConcurrencyReason::Unproven);
        round(&mut hop, 1);
        assert_eq!((hop.concurrency_reason(), hop.concurrency()), (ConcurrencyReason::Start, 2));
        round(&mut hop, 2);
        assert_eq!((hop.concurrency_reason(), hop.concurrency()), (ConcurrencyReason::Raised, 4));
        let epoch = hop.start_attempt(NOW);
        hop.end_attempt(epoch);
        hop.refused(epoch);
        assert_eq!((hop.concurrency_reason(), hop.concurrency()), (ConcurrencyReason::Reduced, 2));
        (0..ProbePolicy::default().failures).for_each(|message| _ = interrupt(&mut hop, message.into(), None));
        assert_eq!((hop.concurrency_reason(), hop.concurrency()), (ConcurrencyReason::Suspect, 1));
        for _ in 0..ProbePolicy::default().failures {
            let epoch = hop.start_attempt(NOW);
            hop.end_attempt(epoch);
            hop.failed(NOW, lost(), epoch, None);
        }
        assert_eq!((hop.concurrency_reason(), hop.concurrency()), (ConcurrencyReason::Dead, 1));
    }

    #[test]
    fn destinations_and_attempts_each_keep_a_next_hop_in_use() {
        let mut hop = hop(NextHopLimits::default());
        assert!(!hop.is_in_use());
        (hop.destinations, hop.attempts) = (1, 0);
        assert!(hop.is_in_use());
        (hop.destinations, hop.attempts) = (0, 1);
        assert!(hop.is_in_use());
    }

    #[test]
    fn it_grows_while_half_of_what_it_may_was_in_use() {
        let mut hop = hop(limits(4, 20));
        round(&mut hop, 1);
        // One of 4 is less than half: it never grows.
        (0..9).for_each(|_| round(&mut hop, 1));
        assert_eq!(hop.concurrency(), 4);
        // Two of 4 are half, but less than half of 5.
        round(&mut hop, 2);
        assert_eq!(hop.concurrency(), 5);
        (0..9).for_each(|_| round(&mut hop, 2));
        assert_eq!(hop.concurrency(), 5);
        round(&mut hop, 3);
        assert_eq!(hop.concurrency(), 7);
    }

    #[test]
    fn a_round_ends_with_as_many_answers_as_there_are_places() {
        let mut hop = hop(limits(4, 5));
        round(&mut hop, 1);
        round(&mut hop, 4);
        assert_eq!((hop.concurrency(), hop.answers, hop.slots_peak), (5, 5, 4));
        hop.start_attempt(NOW);
        assert_eq!((hop.answers, hop.slots_peak), (0, 1));
        hop.start_attempt(NOW);
        assert_eq!((hop.answers, hop.slots_peak, hop.slots), (0, 2, 2));
    }

    #[test]
    fn after_a_shrink_a_round_of_answers_adds_what_the_settings_say() {
        for (grow, expected) in [(1.0, 9.0), (4.0, 12.0), (0.0, 8.0), (-3.0, 8.0)] {
            let mut hop = hop(limits(16, 100));
            hop.limits.concurrency.grow = grow;
            round(&mut hop, 1);
            hop.start_attempt(NOW);
            hop.end_attempt(hop.epoch);
            hop.refused(hop.epoch);
            assert!((hop.window - 8.0).abs() < 1e-9);
            round(&mut hop, 8);
            assert!(
                (hop.window - expected).abs() < 0.7 && (grow > 0.0) == (hop.window > 8.0),
                "{grow}: {}",
                hop.window
            );
        }
    }

    #[test]
    fn an_answer_as_slow_as_the_limit_is_still_quick_and_one_as_slow_as_the_target_is_still_good() {
        let adopt = HopAdoptionPolicy { slower_than: Duration::from_secs(10), ..HopAdoptionPolicy::default() };
        let mut hop = hop(limits(4, 20));
        assert!(!hop.answered(NOW, adopt.slower_than, 0, Some(&adopt)) && hop.is_quick);
        assert!(hop.answered(NOW, adopt.slower_than + Duration::from_millis(1), 0, Some(&adopt)) && !hop.is_quick);
        let target = Duration::from_secs(1);
        hop.limits.concurrency.adapt = ConcurrencyFeedback::ByLatency { target };
        let before = hop.window;
        hop.start_attempt(NOW);
        hop.end_attempt(hop.epoch);
        hop.slots_peak = 4;
        hop.answered(NOW, target, hop.epoch, None);
        assert!(hop.window > before, "{} after {before}", hop.window);
        hop.answered(NOW, target * 2, hop.epoch, None);
        assert!(hop.window < before);
    }

    #[test]
    fn the_first_answer_of_a_disk_proves_it_however_slow() {
        let mut hop = hop(limits(4, 20));
        hop.limits.concurrency.adapt = ConcurrencyFeedback::ByLatency { target: Duration::from_secs(1) };
        hop.answered(NOW, Duration::from_secs(30), 0, None);
        assert_eq!(hop.concurrency(), 4);
    }

    #[test]
    fn interrupted_messages_shrink_then_serialize_then_mark_dead() {
        let (adopt, mut hop) = (HopAdoptionPolicy::default(), hop(limits(8, 20)));
        round(&mut hop, 1);
        let mut seen = Vec::new();
        for message in 1..=9 {
            let is_lame = interrupt(&mut hop, message, Some(&adopt));
            seen.push((hop.concurrency(), is_lame, hop.probe_at().is_some()));
        }
        let at_first = [(8, false, false), (4, false, false)];
        assert_eq!(seen[..2], at_first);
        assert!(seen[2..8].iter().all(|&seen| seen == (1, false, false)), "{seen:?}");
        assert_eq!(seen[8], (1, true, true));
        assert_eq!((hop.probe_at(), hop.failures), (Some(NOW + Duration::from_secs(60)), 0));
        // A further one delays the probe by the same time.
        interrupt(&mut hop, 10, Some(&adopt));
        assert_eq!(hop.probe_at(), Some(NOW + Duration::from_secs(60)));
        round(&mut hop, 1);
        assert_eq!((hop.concurrency(), hop.probe_at(), hop.interrupted_last()), (8, None, None));
    }

    #[test]
    fn interruptions_of_attempts_from_before_a_shrink_are_ignored() {
        let mut hop = hop(limits(20, 20));
        round(&mut hop, 1);
        let epochs: Vec<u32> = (0..20).map(|_| hop.start_attempt(NOW)).collect();
        for (message, epoch) in (1..).zip(epochs) {
            hop.end_attempt(epoch);
            hop.interrupted(NOW, blamed(message), lost(), epoch, None);
        }
        assert_eq!((hop.concurrency(), hop.probe_at()), (10, None));
    }

    #[test]
    fn an_interrupted_probe_revives_an_unreachable_next_hop_and_a_failed_one_makes_it_unreachable() {
        let mut hop =
            hop(NextHopLimits { probe: ProbePolicy { failures: 1, ..ProbePolicy::default() }, ..limits(8, 20) });
        let fail = |hop: &mut NextHopState| {
            let epoch = hop.start_attempt(NOW);
            hop.end_attempt(epoch);
            hop.failed(NOW, lost(), epoch, None);
        };
        fail(&mut hop);
        assert!(hop.probe_at().is_some());
        interrupt(&mut hop, 1, None);
        assert_eq!((hop.probe_at(), hop.failures, hop.concurrency()), (None, 0, 1));
        (2..=3).for_each(|message| _ = interrupt(&mut hop, message, None));
        assert_eq!(hop.probe_at(), Some(NOW + Duration::from_secs(60)));
        fail(&mut hop);
        assert_eq!((hop.probe_at(), hop.interrupted_last()), (Some(NOW + Duration::from_secs(120)), None));
    }

    #[test]
    fn failures_between_interrupted_messages_still_count() {
        let mut hop = hop(limits(8, 20));
        for message in 1..=2 {
            let epoch = hop.start_attempt(NOW);
            hop.end_attempt(epoch);
            hop.failed(NOW, lost(), epoch, None);
            interrupt(&mut hop, message, None);
        }
        assert_eq!((hop.failures, hop.probe_at()), (2, None));
        let epoch = hop.start_attempt(NOW);
        hop.end_attempt(epoch);
        hop.failed(NOW, lost(), epoch, None);
        assert!(hop.probe_at().is_some() && hop.interrupted_last().is_none());
    }
}
