//! The scheduler of Mailrace: it decides which recipient is attempted when, and how many at a time.
//!
//! [`Queues`] is a pure state machine: the caller passes the time, and no call blocks. Nothing here
//! is durable. The spool is, and after a restart its pending recipients are admitted again
//! ([`Queues::admit`]).
//!
//! | the caller | the queues |
//! |---|---|
//! | [`admit`](Queues::admit)s a committed message | keep it until it is due, then schedule it fairly |
//! | gets the [`next_question`](Queues::next_question) and answers it ([`routed`](Queues::routed)) | learn the next hop of a destination |
//! | takes the [`next`](Queues::next) attempt and makes it | reserve a slot of the queue and of the next hop |
//! | calls [`ended`](Queues::ended) with the result of the contact | free the slots; adapt concurrency; mark the next hop suspect, lame or dead |
//! | [`judge`](Queues::judge)s the outcomes and records them durably | compute the verdicts, and change nothing |
//! | [`report`](Queues::report)s the verdicts | remove, delay or hold the recipients |
//! | passes new settings ([`change`](Queues::change)) or invalidates the routes ([`reroute`](Queues::reroute)) | apply them to everything that follows |
//!
//! The next recipient is chosen by queue, then single messages before bulk mail, then next hop,
//! destination and sender, and last in order of arrival. A next hop that must not be tried now
//! (concurrency, rate limit, dead) takes no turns and no slots.
//!
//! Memory: a recipient takes 24 bytes, 16 more while it waits, and a message 48. A sender with
//! ready recipients at a destination takes up to 130, a destination about 300 with its name, a next
//! hop about 700. Admitting, waking, taking and reporting a recipient each cost O(log n), and
//! growing never copies all recipients or messages. Listings and the operator's actions are one
//! pass over all.

mod acts;
mod attempt;
mod berth;
mod chain;
mod change;
mod clock;
mod config;
mod contact;
mod destinations;
mod errors;
mod explain;
mod hop;
mod hops;
mod idle;
mod interrupted;
mod pace;
mod pages;
mod recipient;
mod retry;
mod rounds;
mod routes;
mod senders;
mod turns;
mod views;
mod waiting;

use mail::{Outcome, Timestamp};

use acts::Acts;
pub use attempt::{Act, Admission, Attempt, Contact, NextHop, Pending, Purpose, Routed};
use chain::{Chain, NONE};
pub use config::{Adapt, Adopt, Concurrency, Config, Limits, Probe, QueueConfig, QueueNumber, Rate};
pub use destinations::Destination;
use destinations::Destinations;
use errors::{ErrorNumber, Errors};
use hops::Hops;
use interrupted::Blamed;
use pages::Slab;
use recipient::{Census, Message, Recipient, Stage};
use retry::Made;
pub use retry::{Retry, Verdict};
use turns::{Origin, Turns};
pub use views::{Entry, NextHopView, Obstacle, Progress, QueueView};
use waiting::Waiting;

/// Waiting recipients that one call of [`Queues::next`] makes ready at most. The limit keeps the
/// call short when a million are due; it is larger than any attempt, so that recipients that are
/// due together can leave together.
const WAKES_MAX: usize = 1024;

/// Destinations of an interrupted message that one call of [`Queues::next`] moves behind others.
const PASSES_MAX: usize = 64;

/// The named queues and the next hops they share. `R` is the caller's route type and should be
/// cheap to clone.
pub struct Queues<R: Clone> {
    config: Config,
    seed: u64,
    /// The queue that adopts slow and failing next hops, if any.
    adopter: Option<(QueueNumber, Adopt)>,
    lanes: Vec<Lane>,
    /// The queue that is served next.
    turn: usize,
    is_stopped: bool,
    /// The time passed to the last call of `next`.
    clock: Timestamp,
    messages: Slab<Message>,
    recipients: Slab<Recipient>,
    destinations: Destinations<R>,
    hops: Hops,
    turns: Turns,
    waiting: Waiting,
    acts: Acts,
    /// Actions that were returned by `next` and are not reported yet.
    acts_unrecorded: usize,
    errors: Errors,
    unrecorded: usize,
    /// Incremented whenever all routes are invalidated.
    edition: u32,
    /// When to look for recipients whose destination has moved.
    moved_at: Option<Timestamp>,
}

/// The state of one queue.
#[derive(Default)]
struct Lane {
    /// Attempts that hold a slot, including those at adopted next hops.
    slots: usize,
    is_paused: bool,
    /// Counts the recipients whose home queue this is.
    census: Census,
}

impl<R: Clone> Queues<R> {
    /// Creates empty queues. The seed only sets the jitter of retries.
    pub fn new(config: Config, seed: u64) -> Self {
        let queues = config.queues.len();
        Queues {
            seed,
            adopter: config.adopter(),
            lanes: (0..queues).map(|_| Lane::default()).collect(),
            turn: 0,
            is_stopped: false,
            clock: Timestamp::default(),
            messages: Slab::new(),
            recipients: Slab::new(),
            destinations: Destinations::new(queues),
            hops: Hops::new(),
            turns: Turns::new(queues, config.mailing_above, config.letters_share),
            waiting: Waiting::new(),
            acts: Acts::new(),
            acts_unrecorded: 0,
            errors: Errors::new(),
            unrecorded: 0,
            edition: 0,
            moved_at: None,
            config,
        }
    }

    /// Admits a message: recipients that are due become ready, the others wait.
    ///
    /// # Panics
    /// If a destination was not interned by these queues, or was forgotten since (see
    /// [`Destination`]).
    pub fn admit(&mut self, now: Timestamp, admission: &Admission) {
        let &Admission { id, sender, accepted_at, recovered, alone, ref recipients } = admission;
        if recipients.is_empty() {
            return;
        }
        let count = u32::try_from(recipients.len()).expect("ordinals are 32 bits, so there are fewer recipients");
        let is_mailing = recipients.len() > self.config.mailing_above;
        let message = Message { id, sender, accepted_at, recipients: count, recovered, alone, is_mailing };
        let message = self.messages.insert(message);
        for &Pending { ordinal, destination, attempts, due, held } in recipients {
            self.destinations.join(destination);
            let (error, stage) = (ErrorNumber::NONE, Stage::Held);
            let recipient = Recipient { message, ordinal, destination, next: NONE, attempts, error, stage };
            let index = self.recipients.insert(recipient);
            self.census(destination)[stage as usize] += 1;
            if !held {
                self.schedule(now, index, due);
            }
        }
    }

    /// The next thing to do, or None if nothing is due or nothing has capacity. The operator's
    /// actions come first (limited to half of [`Config::unrecorded_max`]), then attempts (limited
    /// by slots), then refusals, so that none blocks the others.
    pub fn next(&mut self, now: Timestamp) -> Option<Attempt<R>> {
        self.tick(now);
        self.ring(now);
        self.hasten_moved(now);
        self.wake(now);
        if self.unrecorded >= self.config.unrecorded_max {
            return None;
        }
        self.next_act().or_else(|| self.next_delivery(now)).or_else(|| self.next_refusal(now))
    }

    /// Computes the verdict for an outcome. Changes nothing, so that the verdict can be recorded
    /// durably before [`Queues::report`]; the same arguments give the same verdict. For an
    /// operator's action only the reply of the outcome is used: `Hold` gives [`Verdict::Held`],
    /// `Remove` gives `Removed`, `Bounce` gives `Failed`, and `Release` and `Retry` give `Deferred`
    /// until now.
    pub fn judge(&self, now: Timestamp, attempt: &Attempt<R>, outcome: Outcome) -> Verdict {
        let &Attempt { id, number, accepted_at, ref recipients, .. } = attempt;
        if let Purpose::Act(act) = attempt.purpose {
            return act.verdict(now, outcome);
        }
        let ordinal = recipients.first().copied().unwrap_or_default();
        let retry = &self.queue(self.destination_queue(attempt.destination)).retry;
        retry.judge(now, self.seed, &Made { id, ordinal, number, accepted_at }, outcome)
    }

    /// Ends an attempt. `verdicts` has one entry for each recipient, in the order of
    /// `attempt.recipients`.
    ///
    /// # Panics
    /// If the number of verdicts differs from the number of recipients.
    pub fn report(&mut self, now: Timestamp, mut attempt: Attempt<R>, verdicts: &[Verdict]) {
        assert_eq!(verdicts.len(), attempt.count, "one verdict for each recipient");
        self.ended(now, &mut attempt, Contact::None);
        self.unrecorded -= 1;
        let is_act = matches!(attempt.purpose, Purpose::Act(_) | Purpose::Sort);
        let is_left_behind = self.is_left_behind(&attempt);
        self.acts_unrecorded -= usize::from(is_act);
        let mut index = attempt.first;
        for verdict in verdicts {
            let next = self.recipients[index].next;
            self.recipients[index].attempts = attempt.number;
            match verdict {
                // The delay and the error belong to the old next hop.
                Verdict::Deferred { .. } if is_left_behind => {
                    self.errors.leave(std::mem::replace(&mut self.recipients[index].error, ErrorNumber::NONE));
                    self.schedule(now, index, now);
                }
                Verdict::Deferred { reason, until } => {
                    if !is_act {
                        let error = self.errors.join(reason);
                        self.errors.leave(std::mem::replace(&mut self.recipients[index].error, error));
                    }
                    self.schedule(now, index, *until);
                }
                Verdict::Held => self.enter(index, Stage::Held),
                Verdict::Delivered | Verdict::Relayed { .. } | Verdict::Failed { .. } | Verdict::Removed => {
                    self.remove(index, now);
                }
            }
            index = next;
        }
        if let Some(NextHop(hop)) = attempt.next_hop {
            self.hops[hop].attempts -= 1;
            self.hops.rest(hop, now);
        }
        self.sweep(now);
    }

    /// When to call `next` again at the latest. None if only other calls can change anything; a
    /// time in the past means now.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.unrecorded >= self.config.unrecorded_max {
            return None;
        }
        if self.has_next() {
            return Some(Timestamp::default());
        }
        self.waiting.soonest().into_iter().chain(self.hops.next_alarm()).chain(self.moved_at).min()
    }

    /// Pauses or resumes a queue. Nothing leaves a paused queue, by any next hop, but the
    /// operator's actions still apply, and attempts in flight continue. A retired queue cannot be
    /// paused, because it may return to the settings.
    pub fn pause(&mut self, queue: QueueNumber, paused: bool) {
        self.lanes[usize::from(queue.0)].is_paused = paused && !self.queue(queue).retired;
    }

    /// While stopped, no attempt starts; refusals and actions continue.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.is_stopped = stopped;
    }

    /// The current settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of recipients, including those in flight.
    pub fn len(&self) -> usize {
        self.recipients.len()
    }

    /// Whether there are no recipients.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of messages.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// The number of destinations with recipients.
    pub fn destinations(&self) -> usize {
        self.destinations.inhabited()
    }

    /// The number of recipients in flight, that is in attempts that are not reported yet.
    pub fn in_flight(&self) -> usize {
        self.lanes.iter().map(|lane| lane.census[Stage::InFlight as usize]).sum()
    }

    /// The number of attempts that no longer hold a slot, or never did, and are not reported yet.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded
    }

    /// Bytes of memory allocated. Trees are estimated from above; the caller's routes are not
    /// counted.
    pub fn bytes(&self) -> usize {
        let records = self.messages.bytes() + self.recipients.bytes() + self.waiting.bytes() + self.errors.bytes();
        records + self.destinations.bytes() + self.hops.bytes() + self.turns.bytes()
    }

    fn queue(&self, queue: QueueNumber) -> &QueueConfig {
        &self.config.queues[usize::from(queue.0)]
    }

    /// Whether a queue is neither paused, retired nor without concurrency.
    fn is_open(&self, queue: QueueNumber) -> bool {
        let config = self.queue(queue);
        !self.lanes[usize::from(queue.0)].is_paused && config.concurrency > 0 && !config.retired
    }

    /// Whether the queue has a slot for another attempt.
    fn has_slot(&self, queue: QueueNumber) -> bool {
        self.is_open(queue) && self.lanes[usize::from(queue.0)].slots < self.queue(queue).concurrency
    }

    /// The queues, starting with the one that is served next.
    fn in_turn(&self) -> impl Iterator<Item = QueueNumber> + use<R> {
        let (turn, count) = (self.turn, self.lanes.len());
        (turn..count).chain(0..turn).map(|queue| QueueNumber(queue as u16))
    }

    fn has_next(&self) -> bool {
        let berths = &self.turns.berths;
        let is_next = |queue| {
            let delivers = !self.is_stopped && self.has_slot(queue) && berths.first(queue).is_some();
            delivers || (self.is_open(queue) && berths.first_refused(queue).is_some())
        };
        self.has_act() || self.in_turn().any(is_next)
    }

    fn next_delivery(&mut self, now: Timestamp) -> Option<Attempt<R>> {
        if self.is_stopped {
            return None;
        }
        let (mut queue, mut berth) = self.first_delivery(now)?;
        if self.let_others_pass(berth) {
            (queue, berth) = self.first_delivery(now)?;
        }
        self.turn = (usize::from(queue.0) + 1) % self.lanes.len();
        self.turns.berths.count(berth);
        let mut attempt = self.leave(now, berth, Purpose::Deliver);
        let (NextHop(hop), home) = (attempt.next_hop?, self.destination_queue(attempt.destination));
        (attempt.under_way, attempt.epoch) = (true, self.hops[hop].depart(now));
        self.hops[hop].home_mut(home).slots += 1;
        self.lanes[usize::from(queue.0)].slots += 1;
        self.settle(now, hop);
        Some(attempt)
    }

    /// The next queue that has an attempt to make, with the hop queue whose turn it is.
    fn first_delivery(&mut self, now: Timestamp) -> Option<(QueueNumber, u32)> {
        self.first_in_time(now, |queues| {
            let mut open = queues.in_turn().filter(|&queue| queues.has_slot(queue));
            open.find_map(|queue| Some((queue, queues.turns.berths.first(queue)?)))
        })
    }

    /// If a message was interrupted at the hop queue's next hop and nothing was answered since,
    /// moves that sender at that destination behind other senders and destinations, and that
    /// message behind other messages. Does nothing where others are in front already. Returns
    /// whether the order may have changed.
    fn let_others_pass(&mut self, berth: u32) -> bool {
        let hop = self.turns.berths.berth(berth).hop;
        let Some(Blamed { message, destination, sender }) = self.hops[hop].interrupted_last() else { return false };
        let front = |queues: &Self| {
            let &Recipient { message, destination, .. } = &queues.recipients[queues.turns.front(berth)];
            let &Message { id, sender, .. } = &queues.messages[message];
            (id, (destination, sender))
        };
        if front(self).1 == (destination, sender) {
            self.turns.pass(berth);
        }
        // Sender queues that hold only this message: they return to the front before ones that skip
        // rounds, and are not searched again.
        let mut searched = Vec::new();
        while front(self).0 == message && searched.len() < PASSES_MAX {
            let first = self.turns.front(berth);
            if !searched.contains(&first) && self.turns.pass_in_line(&mut self.recipients, berth) {
                break;
            }
            if self.turns.is_alone(berth) {
                break;
            }
            searched.push(first);
            self.turns.pass(berth);
        }
        true
    }

    fn next_refusal(&mut self, now: Timestamp) -> Option<Attempt<R>> {
        let (_, berth) = self.first_in_time(now, |queues| {
            let mut open = queues.in_turn().filter(|&queue| queues.is_open(queue));
            open.find_map(|queue| Some((queue, queues.turns.berths.first_refused(queue)?)))
        })?;
        let error = self.hops[self.turns.berths.berth(berth).hop].error.clone();
        let attempt = self.leave(now, berth, Purpose::Refuse(error.expect("a dead next hop has an error")));
        self.unrecorded += 1;
        self.settle(now, attempt.next_hop?.0);
        Some(attempt)
    }

    /// Takes the next recipients out of a hop queue, which is not scheduled again until its next
    /// hop is updated.
    fn leave(&mut self, now: Timestamp, berth: u32, purpose: Purpose) -> Attempt<R> {
        let hop = self.turns.berths.berth(berth).hop;
        let front = self.turns.front(berth);
        let (limit, origin) = (self.recipients_max(hop, front), self.origin(front));
        let (group, count) = self.turns.take(&mut self.recipients, berth, limit);
        self.turns.leave(origin, count);
        self.hops[hop].attempts += 1;
        let attempt = self.depart(group, count, purpose, Some(NextHop(hop)));
        self.destinations.ask(attempt.destination, now);
        attempt
    }

    /// The maximum number of recipients for an attempt that begins with `front`.
    fn recipients_max(&self, hop: u32, front: u32) -> usize {
        let &Recipient { message, destination, .. } = &self.recipients[front];
        if self.messages[message].alone {
            return 1;
        }
        let own = self.queue(self.destination_queue(destination)).recipients_per_attempt_max;
        own.min(self.hops[hop].limits.recipients_per_attempt_max.unwrap_or(usize::MAX)).max(1)
    }

    /// Builds an attempt for a group of recipients. It holds no slot yet.
    fn depart(&mut self, group: Chain, count: usize, purpose: Purpose, next_hop: Option<NextHop>) -> Attempt<R> {
        let first = group.front().expect("the group is not empty");
        let &Recipient { message, destination, attempts, .. } = &self.recipients[first];
        let &Message { id, accepted_at, recovered, .. } = &self.messages[message];
        let mut recipients = Vec::with_capacity(count);
        let mut index = first;
        while index != NONE {
            self.enter(index, Stage::InFlight);
            recipients.push(self.recipients[index].ordinal);
            index = self.recipients[index].next;
        }
        let route = next_hop.and_then(|_| self.destinations.place(destination).route.clone());
        let number = if next_hop.is_some() { attempts.saturating_add(1) } else { attempts };
        let (under_way, edition, epoch) = (false, self.edition, 0);
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
            first,
            count,
            under_way,
            edition,
            epoch,
        }
    }

    /// Makes a recipient ready, or puts it into the heap until it is due.
    fn schedule(&mut self, now: Timestamp, index: u32, due: Timestamp) {
        if due > now {
            self.enter(index, Stage::Waiting);
            self.waiting.push(due, index);
        } else {
            self.line_up(now, index);
        }
    }

    fn line_up(&mut self, now: Timestamp, index: u32) {
        self.enter(index, Stage::Ready);
        let (origin, destination) = (self.origin(index), self.recipients[index].destination);
        self.look_up(now, destination);
        if let Some(hop) = self.turns.push(&mut self.recipients, index, origin) {
            self.settle(now, hop);
        }
    }

    fn wake(&mut self, now: Timestamp) {
        for _ in 0..WAKES_MAX {
            let Some(index) = self.waiting.pop_due(now) else { break };
            self.line_up(now, index);
        }
    }

    /// The properties that decide a recipient's place in the order.
    fn origin(&self, index: u32) -> Origin {
        let &Recipient { message, destination, .. } = &self.recipients[index];
        let &Message { sender, is_mailing, .. } = &self.messages[message];
        Origin { queue: self.destination_queue(destination), sender, is_mailing }
    }

    fn census(&mut self, destination: Destination) -> &mut Census {
        let queue = self.destinations.place(destination).queue;
        &mut self.lanes[usize::from(queue.0)].census
    }

    fn enter(&mut self, index: u32, stage: Stage) {
        let recipient = &mut self.recipients[index];
        let (destination, old) = (recipient.destination, std::mem::replace(&mut recipient.stage, stage));
        let census = self.census(destination);
        census[old as usize] -= 1;
        census[stage as usize] += 1;
    }

    fn remove(&mut self, index: u32, now: Timestamp) {
        let recipient = self.recipients.remove(index);
        self.census(recipient.destination)[recipient.stage as usize] -= 1;
        self.errors.leave(recipient.error);
        self.destinations.leave(recipient.destination, now);
        let message = &mut self.messages[recipient.message];
        message.recipients -= 1;
        if message.recipients == 0 {
            self.messages.remove(recipient.message);
        }
    }
}
