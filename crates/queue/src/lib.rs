//! The scheduler of Mailrace: it decides which recipient is attempted when, and how many at a time.
//!
//! [`Queues`] is a pure state machine: the caller passes the time, and no call blocks. Nothing here
//! is durable. The spool is, and after a restart its pending recipients are admitted again
//! ([`Queues::admit`]).
//!
//! | the caller | the queues |
//! |---|---|
//! | [`admit`](Queues::admit)s a committed message | keep it until it is due, then schedule it fairly |
//! | gets the [`next_unrouted`](Queues::next_unrouted) and answers it ([`set_route`](Queues::set_route)) | learn the next hop of a destination |
//! | takes the [`next_attempt`](Queues::next_attempt) and makes it | reserve a slot of the queue and of the next hop |
//! | calls [`finish_contact`](Queues::finish_contact) with the result of the contact | free the slots; adapt concurrency; mark the next hop suspect, lame or dead |
//! | calls [`compute_verdict`](Queues::compute_verdict) for each outcome, and records it durably | compute the verdicts, and change nothing |
//! | passes the verdicts to [`report_verdicts`](Queues::report_verdicts) | remove, delay or hold the recipients |
//! | passes on what it shares with others ([`next_departure_request`](Queues::next_departure_request), [`next_slot_report`](Queues::next_slot_report), [`next_newly_lame`](Queues::next_newly_lame)) | wait for departures of a shared rate and slots of a shared concurrency; learn which next hops are lame |
//! | passes new settings ([`reconfigure`](Queues::reconfigure)) or invalidates the routes ([`invalidate_routes`](Queues::invalidate_routes)) | apply them to everything that follows |
//!
//! The next recipient is chosen by queue, then single messages before bulk mail, then next hop,
//! destination and sender, and last in order of arrival. A next hop that must not be tried now
//! (concurrency, rate limit, dead) takes no turns and no slots.
//!
//! Memory: a recipient takes 24 bytes, up to 32 in the index by queue id, 16 more while it waits, and a
//! message 48. A sender with
//! ready recipients at a destination takes up to 130, a destination about 300 with its name, a next
//! hop about 700. Admitting, waking, taking and reporting a recipient each cost O(log n), and
//! growing never copies all recipients or messages. Listings and the operator's actions are one
//! pass over all.

mod act_progress;
mod actions;
mod attempt;
mod clock_step;
mod config;
mod contact;
mod departures;
mod destinations;
mod error_table;
mod explain;
mod hop_queue;
mod idle_ring;
mod interruptions;
mod intrusive_list;
mod message_index;
mod next_hop_state;
mod next_hops;
mod pace;
mod pages;
mod pauses;
mod rate_limiter;
mod ready;
mod recipient;
mod reconfigure;
mod retry;
mod round_robin;
mod routes;
mod senders;
mod sharing;
mod slots;
mod views;
mod wait_heap;

use std::collections::VecDeque;
use std::sync::Arc;

use mail::{Outcome, QueueId, Timestamp};

pub use act_progress::{ActCounts, ActProgress, TrackedAction};
use actions::PendingActions;
pub use actions::PickCount;
pub use attempt::{
    AdmittedMessage, Attempt, AttemptPurpose, ContactResult, NextHopId, NextHopRoute, OperatorAction, PendingRecipient,
};
pub use config::{
    ConcurrencyFeedback, ConcurrencyPolicy, HopAdoptionPolicy, NextHopLimits, ProbePolicy, QueueConfig, QueueNumber,
    SchedulerConfig, SchedulerPolicy, SharedConcurrency,
};
pub use departures::{DepartureRequest, GrantedDepartures};
pub use destinations::DestinationId;
use destinations::Destinations;
use error_table::{ErrorNumber, ErrorTable};
use interruptions::InterruptedMessage;
use intrusive_list::{IntrusiveList, NONE};
use message_index::MessageIndex;
use next_hops::NextHops;
use pages::Slab;
use pauses::Pauses;
pub use pauses::{PauseTarget, TooManyPauses};
use ready::{ReadyOrigin, ReadyQueues};
use recipient::{QueuedMessage, QueuedRecipient, RecipientStage, StageCounts};
use retry::AttemptInfo;
pub use retry::{RecipientVerdict, RetryPolicy};
pub use slots::{SlotReport, SlotUsage};
pub use views::{
    BlockReason, ConcurrencyReason, DestinationView, NextHopView, PauseEnd, QueueView, RecipientProgress, RecipientView,
};
use wait_heap::WaitHeap;

/// Waiting recipients that one call of [`Queues::next_attempt`] makes ready at most. The limit
/// keeps the call short when a million are due; it is larger than any attempt, so that recipients
/// that are due together can leave together.
const WAKEUPS_PER_CALL_MAX: usize = 1024;

/// Destinations of an interrupted message that one call of [`Queues::next_attempt`] moves behind
/// others.
const DEPRIORITIZED_PER_CALL_MAX: usize = 64;

/// The named queues and the next hops they share. `R` is the caller's route type and should be
/// cheap to clone.
pub struct Queues<R: Clone> {
    config: SchedulerConfig,
    seed: u64,
    /// The queue that adopts slow and failing next hops, if any.
    adopter: Option<(QueueNumber, HopAdoptionPolicy)>,
    statuses: Vec<QueueStatus>,
    /// The queue that is served next.
    next_queue: usize,
    is_stopped: bool,
    /// The time passed to the last call of `next`.
    last_now: Timestamp,
    messages: Slab<QueuedMessage>,
    message_index: MessageIndex,
    recipients: Slab<QueuedRecipient>,
    destinations: Destinations<R>,
    hops: NextHops,
    ready: ReadyQueues,
    waiting: WaitHeap,
    pauses: Pauses,
    pending_actions: PendingActions,
    /// Actions that were returned by `next` and are not reported yet.
    actions_unrecorded: usize,
    /// See [`Queues::take_unclassified`].
    unclassified: Vec<(QueueId, u32)>,
    errors: ErrorTable,
    /// Departures that are wanted, slots that have changed, and next hops that were adopted, until the caller takes them.
    departure_requests: Vec<DepartureRequest>,
    slot_reports: VecDeque<SlotReport>,
    newly_lame: Vec<Arc<str>>,
    unrecorded: usize,
    /// Incremented whenever all routes are invalidated.
    routing_version: u32,
    /// When to look for recipients whose destination has moved.
    moved_check_at: Option<Timestamp>,
}

/// The state of one queue.
#[derive(Default)]
struct QueueStatus {
    /// Attempts that hold a slot, including those at adopted next hops.
    slots: usize,
    is_paused: bool,
    /// Counts the recipients whose home queue this is.
    stage_counts: StageCounts,
}

impl<R: Clone> Queues<R> {
    /// Creates empty queues. The seed only sets the jitter of retries.
    pub fn new(config: SchedulerConfig, seed: u64) -> Self {
        let queues = config.queues.len();
        Queues {
            seed,
            adopter: config.adopter(),
            statuses: (0..queues).map(|_| QueueStatus::default()).collect(),
            next_queue: 0,
            is_stopped: false,
            last_now: Timestamp::default(),
            messages: Slab::new(),
            message_index: MessageIndex::new(),
            recipients: Slab::new(),
            destinations: Destinations::new(queues),
            hops: NextHops::new(),
            ready: ReadyQueues::new(queues, config.policy.bulk_above, config.policy.single_share),
            waiting: WaitHeap::new(),
            pauses: Pauses::default(),
            pending_actions: PendingActions::new(),
            actions_unrecorded: 0,
            unclassified: Vec::new(),
            errors: ErrorTable::new(),
            departure_requests: Vec::new(),
            slot_reports: VecDeque::new(),
            newly_lame: Vec::new(),
            unrecorded: 0,
            routing_version: 0,
            moved_check_at: None,
            config,
        }
    }

    /// Admits a message: recipients that are due become ready, the others wait.
    ///
    /// # Panics
    /// If a destination was not interned by these queues, or was forgotten since (see
    /// [`DestinationId`]).
    pub fn admit(&mut self, now: Timestamp, admission: &AdmittedMessage) {
        let &AdmittedMessage { id, sender, accepted_at, recovered, separate_attempts: alone, ref recipients } =
            admission;
        if recipients.is_empty() {
            return;
        }
        let count = u32::try_from(recipients.len()).expect("ordinals are 32 bits, so there are fewer recipients");
        let is_bulk = recipients.len() > self.config.policy.bulk_above;
        let message =
            QueuedMessage { id, sender, accepted_at, recipients: count, recovered, separate_attempts: alone, is_bulk };
        let message = self.messages.insert(message);
        for &PendingRecipient { ordinal, destination, attempts, due, held } in recipients {
            self.destinations.add_recipient(destination);
            let (error, stage) = (ErrorNumber::NONE, RecipientStage::Held);
            let recipient = QueuedRecipient { message, ordinal, destination, next: NONE, attempts, error, stage };
            let index = self.recipients.insert(recipient);
            self.message_index.insert(id, index);
            self.stage_counts(destination)[stage as usize] += 1;
            if !held {
                self.schedule(now, index, due);
            }
        }
    }

    /// The next thing to do, or None if nothing is due or nothing has capacity. The operator's
    /// actions come first (limited to half of [`SchedulerPolicy::unrecorded_max`]), then attempts
    /// (limited by slots), then refusals, so that none blocks the others.
    pub fn next_attempt(&mut self, now: Timestamp) -> Option<Attempt<R>> {
        self.handle_clock_step(now);
        self.end_pauses(now);
        self.handle_due_alarms(now);
        self.retry_moved(now);
        self.wake_due(now);
        if self.unrecorded >= self.config.policy.unrecorded_max {
            return None;
        }
        self.next_action().or_else(|| self.next_delivery(now)).or_else(|| self.next_refusal(now))
    }

    /// Computes the verdict for an outcome. Changes nothing, so that the verdict can be recorded
    /// durably before [`Queues::report_verdicts`]; the same arguments give the same verdict. For an
    /// operator's action only the reply of the outcome is used: `Hold` gives
    /// [`RecipientVerdict::Held`], `Remove` gives `Removed`, `Bounce` gives `Failed`, and `Release`
    /// and `Retry` give `Deferred` until now.
    pub fn compute_verdict(&self, now: Timestamp, attempt: &Attempt<R>, outcome: Outcome) -> RecipientVerdict {
        let &Attempt { id, number, accepted_at, ref recipients, .. } = attempt;
        if let AttemptPurpose::Action(act) = attempt.purpose {
            return act.verdict(now, outcome);
        }
        let ordinal = recipients.first().copied().unwrap_or_default();
        let retry = &self.queue(self.destination_queue(attempt.destination)).retry;
        retry.judge(now, self.seed, &AttemptInfo { id, ordinal, number, accepted_at }, outcome)
    }

    /// Ends an attempt. `verdicts` has one entry for each recipient, in the order of
    /// `attempt.recipients`.
    ///
    /// # Panics
    /// If the number of verdicts differs from the number of recipients.
    pub fn report_verdicts(&mut self, now: Timestamp, mut attempt: Attempt<R>, verdicts: &[RecipientVerdict]) {
        assert_eq!(verdicts.len(), attempt.count, "one verdict for each recipient");
        self.finish_contact(now, &mut attempt, ContactResult::Unknown);
        self.unrecorded -= 1;
        if let Some(act) = attempt.act.take() {
            act.note_dropped(attempt.count);
        }
        let is_act = matches!(attempt.purpose, AttemptPurpose::Action(_) | AttemptPurpose::Reclassify);
        let is_left_behind = self.has_moved_since(&attempt);
        self.actions_unrecorded -= usize::from(is_act);
        let mut index = attempt.first_recipient;
        for verdict in verdicts {
            let next = self.recipients[index].next;
            self.recipients[index].attempts = attempt.number;
            match verdict {
                // The delay and the error belong to the old next hop.
                RecipientVerdict::Deferred { .. } if is_left_behind => {
                    self.errors.release(std::mem::replace(&mut self.recipients[index].error, ErrorNumber::NONE));
                    self.schedule(now, index, now);
                }
                RecipientVerdict::Deferred { reason, until } => {
                    if !is_act {
                        let error = self.errors.add(reason);
                        self.errors.release(std::mem::replace(&mut self.recipients[index].error, error));
                    }
                    self.schedule(now, index, *until);
                }
                RecipientVerdict::Held => self.set_stage(index, RecipientStage::Held),
                RecipientVerdict::Delivered
                | RecipientVerdict::Relayed { .. }
                | RecipientVerdict::Failed { .. }
                | RecipientVerdict::Removed => {
                    self.remove(index, now);
                }
            }
            index = next;
        }
        if let Some(NextHopId(hop)) = attempt.next_hop {
            self.hops[hop].attempts -= 1;
            self.hops.note_idle(hop, now);
        }
        self.forget_idle(now);
    }

    /// When to call `next` again at the latest. None if only other calls can change anything; a
    /// time in the past means now.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.unrecorded >= self.config.policy.unrecorded_max {
            return None;
        }
        if self.has_next() {
            return Some(Timestamp::default());
        }
        let alarms = self.hops.next_alarm().into_iter().chain(self.moved_check_at).chain(self.pauses.next_end());
        self.waiting.soonest().into_iter().chain(alarms).min()
    }

    /// While stopped, no attempt starts; refusals and actions continue.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.is_stopped = stopped;
    }

    /// The current settings.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// The number of recipients, including those in flight.
    pub fn recipient_count(&self) -> usize {
        self.recipients.len()
    }

    /// Whether there are no recipients.
    pub fn is_empty(&self) -> bool {
        self.recipient_count() == 0
    }

    /// The number of messages.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// The number of destinations with recipients.
    pub fn destination_count(&self) -> usize {
        self.destinations.with_recipients()
    }

    /// The number of recipients in flight, that is in attempts that are not reported yet.
    pub fn recipients_in_flight(&self) -> usize {
        self.statuses.iter().map(|lane| lane.stage_counts[RecipientStage::InFlight as usize]).sum()
    }

    /// The number of recipients that are held.
    pub fn recipients_held(&self) -> usize {
        self.statuses.iter().map(|lane| lane.stage_counts[RecipientStage::Held as usize]).sum()
    }

    /// The number of attempts that no longer hold a slot, or never did, and are not reported yet.
    pub fn unrecorded_attempts(&self) -> usize {
        self.unrecorded
    }

    fn queue(&self, queue: QueueNumber) -> &QueueConfig {
        &self.config.queues[usize::from(queue.0)]
    }

    /// Whether a queue is neither paused, retired nor without concurrency.
    fn is_open(&self, queue: QueueNumber) -> bool {
        let config = self.queue(queue);
        !self.statuses[usize::from(queue.0)].is_paused && config.concurrency > 0 && !config.retired
    }

    /// Whether the queue has a slot for another attempt.
    fn has_slot(&self, queue: QueueNumber) -> bool {
        self.is_open(queue) && self.statuses[usize::from(queue.0)].slots < self.queue(queue).concurrency
    }

    /// The queues, starting with the one that is served next.
    fn queues_in_turn(&self) -> impl Iterator<Item = QueueNumber> + use<R> {
        let (turn, count) = (self.next_queue, self.statuses.len());
        (turn..count).chain(0..turn).map(|queue| QueueNumber(queue as u16))
    }

    fn has_next(&self) -> bool {
        let hop_queues = &self.ready.hop_queues;
        let is_next = |queue| {
            let delivers = !self.is_stopped && self.has_slot(queue) && hop_queues.next_hop_queue(queue).is_some();
            delivers || (self.is_open(queue) && hop_queues.next_refused(queue).is_some())
        };
        self.has_action() || self.queues_in_turn().any(is_next)
    }

    fn next_delivery(&mut self, now: Timestamp) -> Option<Attempt<R>> {
        if self.is_stopped {
            return None;
        }
        let (mut queue, mut hop_queue) = self.next_deliverable(now)?;
        if self.deprioritize_interrupted(hop_queue) {
            (queue, hop_queue) = self.next_deliverable(now)?;
        }
        self.next_queue = (usize::from(queue.0) + 1) % self.statuses.len();
        self.ready.hop_queues.count_turn(hop_queue);
        let mut attempt = self.take_attempt(now, hop_queue, AttemptPurpose::Deliver);
        let (NextHopId(hop), home) = (attempt.next_hop?, self.destination_queue(attempt.destination));
        (attempt.holds_slot, attempt.epoch) = (true, self.hops[hop].start_attempt(now));
        self.hops[hop].home_queue_mut(home).slots += 1;
        self.statuses[usize::from(queue.0)].slots += 1;
        self.update_next_hop(now, hop);
        Some(attempt)
    }

    /// The next queue that has an attempt to make, with the hop queue whose turn it is.
    fn next_deliverable(&mut self, now: Timestamp) -> Option<(QueueNumber, u32)> {
        self.first_with_route(now, |queues| {
            let mut open = queues.queues_in_turn().filter(|&queue| queues.has_slot(queue));
            open.find_map(|queue| Some((queue, queues.ready.hop_queues.next_hop_queue(queue)?)))
        })
    }

    /// If a message was interrupted at the hop queue's next hop and nothing was answered since,
    /// moves that sender at that destination behind other senders and destinations, and that
    /// message behind other messages. Does nothing where others are in front already. Returns
    /// whether the order may have changed.
    fn deprioritize_interrupted(&mut self, hop_queue: u32) -> bool {
        let hop = self.ready.hop_queues.get(hop_queue).hop;
        let Some(InterruptedMessage { message, destination, sender }) = self.hops[hop].interrupted_last() else {
            return false;
        };
        let front = |queues: &Self| {
            let &QueuedRecipient { message, destination, .. } = &queues.recipients[queues.ready.front(hop_queue)];
            let &QueuedMessage { id, sender, .. } = &queues.messages[message];
            (id, (destination, sender))
        };
        if front(self).1 == (destination, sender) {
            self.ready.move_to_back(hop_queue);
        }
        // Sender queues that hold only this message: they return to the front before ones that skip
        // rounds, and are not searched again.
        let mut searched = Vec::new();
        while front(self).0 == message && searched.len() < DEPRIORITIZED_PER_CALL_MAX {
            let first = self.ready.front(hop_queue);
            if !searched.contains(&first) && self.ready.move_message_to_back(&mut self.recipients, hop_queue) {
                break;
            }
            if self.ready.is_only_sender_queue(hop_queue) {
                break;
            }
            searched.push(first);
            self.ready.move_to_back(hop_queue);
        }
        true
    }

    fn next_refusal(&mut self, now: Timestamp) -> Option<Attempt<R>> {
        let (_, hop_queue) = self.first_with_route(now, |queues| {
            let mut open = queues.queues_in_turn().filter(|&queue| queues.is_open(queue));
            open.find_map(|queue| Some((queue, queues.ready.hop_queues.next_refused(queue)?)))
        })?;
        let error = self.hops[self.ready.hop_queues.get(hop_queue).hop].error.clone();
        let attempt =
            self.take_attempt(now, hop_queue, AttemptPurpose::Refuse(error.expect("a dead next hop has an error")));
        self.unrecorded += 1;
        self.update_next_hop(now, attempt.next_hop?.0);
        Some(attempt)
    }

    /// Takes the next recipients out of a hop queue, which is not scheduled again until its next
    /// hop is updated.
    fn take_attempt(&mut self, now: Timestamp, hop_queue: u32, purpose: AttemptPurpose) -> Attempt<R> {
        let hop = self.ready.hop_queues.get(hop_queue).hop;
        let front = self.ready.front(hop_queue);
        let (limit, origin) = (self.recipients_max(hop, front), self.origin(front));
        let (group, count) = self.ready.take_group(&mut self.recipients, hop_queue, limit);
        self.ready.remove(origin, count);
        self.hops[hop].attempts += 1;
        let attempt = self.build_attempt(group, count, purpose, Some(NextHopId(hop)));
        self.destinations.request_route(attempt.destination, now);
        attempt
    }

    /// The maximum number of recipients for an attempt that begins with `front`.
    fn recipients_max(&self, hop: u32, front: u32) -> usize {
        let &QueuedRecipient { message, destination, .. } = &self.recipients[front];
        if self.messages[message].separate_attempts {
            return 1;
        }
        let own = self.queue(self.destination_queue(destination)).recipients_per_attempt_max;
        own.min(self.hops[hop].limits.recipients_per_attempt_max.unwrap_or(usize::MAX)).max(1)
    }

    /// Builds an attempt for a group of recipients. It holds no slot yet.
    fn build_attempt(
        &mut self,
        group: IntrusiveList,
        count: usize,
        purpose: AttemptPurpose,
        next_hop: Option<NextHopId>,
    ) -> Attempt<R> {
        let first = group.front().expect("the group is not empty");
        let &QueuedRecipient { message, destination, attempts, .. } = &self.recipients[first];
        let &QueuedMessage { id, accepted_at, recovered, .. } = &self.messages[message];
        let mut recipients = Vec::with_capacity(count);
        let mut index = first;
        while index != NONE {
            self.set_stage(index, RecipientStage::InFlight);
            recipients.push(self.recipients[index].ordinal);
            index = self.recipients[index].next;
        }
        let route = next_hop.and_then(|_| self.destinations.state(destination).route.clone());
        let number = if next_hop.is_some() { attempts.saturating_add(1) } else { attempts };
        let (under_way, edition, epoch) = (false, self.routing_version, 0);
        Attempt {
            id,
            destination,
            next_hop,
            route,
            recipients,
            number,
            accepted_at,
            recovered,
            purpose,
            first_recipient: first,
            count,
            holds_slot: under_way,
            routing_version: edition,
            epoch,
            act: None,
        }
    }

    /// Makes a recipient ready, or puts it into the heap until it is due.
    fn schedule(&mut self, now: Timestamp, index: u32, due: Timestamp) {
        if due > now {
            self.set_stage(index, RecipientStage::Waiting);
            self.waiting.push(due, index);
        } else {
            self.make_ready(now, index);
        }
    }

    fn make_ready(&mut self, now: Timestamp, index: u32) {
        self.set_stage(index, RecipientStage::Ready);
        let (origin, destination) = (self.origin(index), self.recipients[index].destination);
        self.require_route(now, destination);
        if let Some(hop) = self.ready.push(&mut self.recipients, index, origin) {
            self.update_next_hop(now, hop);
        }
    }

    fn wake_due(&mut self, now: Timestamp) {
        for _ in 0..WAKEUPS_PER_CALL_MAX {
            let Some(index) = self.waiting.pop_due(now) else { break };
            self.make_ready(now, index);
        }
    }

    /// The properties that decide a recipient's place in the order.
    fn origin(&self, index: u32) -> ReadyOrigin {
        let &QueuedRecipient { message, destination, .. } = &self.recipients[index];
        let &QueuedMessage { sender, is_bulk, .. } = &self.messages[message];
        ReadyOrigin { queue: self.destination_queue(destination), sender, is_bulk }
    }

    fn stage_counts(&mut self, destination: DestinationId) -> &mut StageCounts {
        let queue = self.destinations.state(destination).queue;
        &mut self.statuses[usize::from(queue.0)].stage_counts
    }

    fn set_stage(&mut self, index: u32, stage: RecipientStage) {
        let recipient = &mut self.recipients[index];
        let (destination, old) = (recipient.destination, std::mem::replace(&mut recipient.stage, stage));
        let counts = self.stage_counts(destination);
        counts[old as usize] -= 1;
        counts[stage as usize] += 1;
    }

    fn remove(&mut self, index: u32, now: Timestamp) {
        let recipient = self.recipients.remove(index);
        self.stage_counts(recipient.destination)[recipient.stage as usize] -= 1;
        self.errors.release(recipient.error);
        self.destinations.remove_recipient(recipient.destination, now);
        let message = &mut self.messages[recipient.message];
        self.message_index.remove(message.id, index);
        message.recipients -= 1;
        if message.recipients == 0 {
            self.messages.remove(recipient.message);
        }
    }
}
