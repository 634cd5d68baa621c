//! The scheduler of Mailrace: which recipient, when, how many at once, until when.
//!
//! A [`Queue`] is a pure state machine: it is told the time, it never asks, and it never waits. Nothing here is
//! durable; the spool is, and after a restart it says again what is pending ([`Queue::admit`]).
//!
//! | state of a recipient | kept in | leaves it by |
//! |---|---|---|
//! | waiting | the heap, by due time | `next`, when it is due: ready, at the back of its sender's line |
//! | ready | its sender's line at its destination | `next`, when it is its turn: in flight |
//! | in flight | an [`Attempt`], counted against the concurrency | `report`: deferred is waiting again, else it is gone |
//!
//! An outcome is handled in two steps, because it must be durable before it has any effect: [`Queue::judge`] says what
//! it means and changes nothing, the caller records that, then [`Queue::report`] acts on it.
//!
//! Memory: a recipient takes 20 bytes, 16 more while it waits, and a message 48; a sender with something ready at a
//! destination up to 90. Each recipient that is admitted, woken, taken or reported costs O(log n), and no store of
//! recipients or messages is ever copied as a whole to grow.

mod chain;
mod destinations;
mod pages;
mod retry;
mod turns;
mod waiting;

use mail::{Outcome, QueueId, Timestamp};

use chain::{Chain, Linked, NONE};
pub use destinations::Destination;
use destinations::Destinations;
use pages::Slab;
use retry::Made;
pub use retry::{Retry, Verdict};
use turns::Turns;
use waiting::Waiting;

/// One call of [`Queue::next`] makes no more waiting recipients ready than this, so that it stays short when a million
/// are due at once. It is more than an attempt takes, so that those who are due do not wait for room among the ready.
const WAKES_MAX: usize = 1024;

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// For the operator.
    pub name: Box<str>,
    /// How many recipients are in flight at most; 0 holds the queue.
    pub concurrency: usize,
    /// When to try again, and when to stop.
    pub retry: Retry,
    /// How many recipients one attempt takes at most; 0 is taken for 1.
    pub recipients_per_attempt_max: usize,
}

/// A message to be delivered: just accepted, or found in the spool after a restart. Each is admitted once.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Its name.
    pub id: QueueId,
    /// A hash of the sender's address, for fair turns; 0 is the null sender.
    pub sender: u64,
    /// From here the lifetime counts.
    pub accepted_at: Timestamp,
    /// It was there before a restart: an attempt may have succeeded without our knowing.
    pub recovered: bool,
    /// Those who still wait for it.
    pub recipients: Vec<Pending>,
}

/// A recipient that waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its place in the envelope.
    pub ordinal: u32,
    /// Its domain.
    pub destination: Destination,
    /// How many attempts were made.
    pub attempts: u16,
    /// When the next one is due. A moment that has passed is now.
    pub due: Timestamp,
}

/// Recipients of one message at one destination, to be tried together now. It must come back by [`Queue::report`]; until
/// then its recipients count as in flight.
#[derive(Debug)]
#[must_use = "an attempt that is not reported stays in flight for ever"]
pub struct Attempt {
    /// The message.
    pub id: QueueId,
    /// The domain of all recipients; its name can be asked for until the report.
    pub destination: Destination,
    /// Their ordinals in the envelope.
    pub recipients: Vec<u32>,
    /// 1 is the first. Only recipients with the same number of attempts leave together.
    pub number: u16,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// The message was there before a restart.
    pub recovered: bool,
    /// The front of the chain of recipients, in the order of `recipients`.
    first: u32,
    count: usize,
}

/// One recipient of the queue, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The message.
    pub id: QueueId,
    /// The recipient's place in the envelope.
    pub ordinal: u32,
    /// Its domain.
    pub destination: Destination,
    /// How many attempts were made.
    pub attempts: u16,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// What it waits for.
    pub progress: Progress,
}

/// What a recipient waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A later moment.
    Waiting(Timestamp),
    /// Its turn.
    Ready,
    /// The end of its attempt.
    InFlight,
}

/// One named queue.
pub struct Queue {
    config: Config,
    seed: u64,
    messages: Slab<Message>,
    recipients: Slab<Recipient>,
    destinations: Destinations,
    turns: Turns,
    waiting: Waiting,
    in_flight: usize,
}

/// What its recipients share. Gone with the last of them.
struct Message {
    id: QueueId,
    sender: u64,
    accepted_at: Timestamp,
    recipients: u32,
    recovered: bool,
}

/// 20 bytes, of which a million fit in 20 MB.
struct Recipient {
    message: u32,
    ordinal: u32,
    destination: Destination,
    /// The one behind it in its line or attempt.
    next: u32,
    attempts: u16,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Ready,
    InFlight,
}

impl Linked for Recipient {
    fn link(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl Recipient {
    /// Neighbours in a line have the destination in common already.
    fn leaves_with(&self, other: &Recipient) -> bool {
        self.message == other.message && self.attempts == other.attempts
    }
}

impl Queue {
    /// An empty queue. The seed sets the jitter of retries, and nothing else.
    pub fn new(config: Config, seed: u64) -> Self {
        let turns = Turns::new(config.recipients_per_attempt_max.max(1));
        Queue {
            config,
            seed,
            messages: Slab::new(),
            recipients: Slab::new(),
            destinations: Destinations::new(),
            turns,
            waiting: Waiting::new(),
            in_flight: 0,
        }
    }

    /// The number of a recipient domain, which is in lower case. It is to be admitted before the next `report`.
    pub fn destination(&mut self, domain: &str) -> Destination {
        self.destinations.intern(domain)
    }

    /// The domain behind a number.
    ///
    /// # Panics
    /// If nobody waits for the destination any more.
    pub fn domain(&self, destination: Destination) -> &str {
        self.destinations.name(destination)
    }

    /// Takes a message in: recipients that are due are ready at once, the others wait.
    ///
    /// # Panics
    /// If a destination was not interned by this queue, or was forgotten since (see [`Destination`]).
    pub fn admit(&mut self, now: Timestamp, admission: &Admission) {
        let &Admission { id, sender, accepted_at, recovered, ref recipients } = admission;
        if recipients.is_empty() {
            return;
        }
        let count = u32::try_from(recipients.len()).expect("ordinals are 32 bits, so there are fewer recipients");
        let message = self.messages.insert(Message { id, sender, accepted_at, recipients: count, recovered });
        for &Pending { ordinal, destination, attempts, due } in recipients {
            self.destinations.join(destination);
            let stage = Stage::Ready;
            let index =
                self.recipients.insert(Recipient { message, ordinal, destination, next: NONE, attempts, stage });
            self.schedule(now, index, due);
        }
    }

    /// The next attempt to be made; None when nothing is due or the cap is reached.
    pub fn next(&mut self, now: Timestamp) -> Option<Attempt> {
        let room = self.room();
        if room == 0 {
            return None;
        }
        self.wake(now);
        let (group, count) = self.turns.take(&mut self.recipients, room)?;
        self.in_flight += count;
        self.depart(group, count)
    }

    /// What an outcome means under the retry rules. Changes nothing, so that it can be recorded durably before
    /// [`Queue::report`]; the same question has the same answer.
    pub fn judge(&self, now: Timestamp, attempt: &Attempt, outcome: Outcome) -> Verdict {
        let &Attempt { id, number, accepted_at, ref recipients, .. } = attempt;
        let ordinal = recipients.first().copied().unwrap_or_default();
        self.config.retry.judge(now, self.seed, &Made { id, ordinal, number, accepted_at }, outcome)
    }

    /// Ends an attempt: `verdicts` has one for each recipient, in the order of `attempt.recipients`.
    ///
    /// # Panics
    /// If there are more or fewer verdicts than recipients.
    pub fn report(&mut self, now: Timestamp, attempt: Attempt, verdicts: &[Verdict]) {
        assert_eq!(verdicts.len(), attempt.count, "a verdict for each recipient of the attempt");
        self.in_flight -= attempt.count;
        let mut index = attempt.first;
        for verdict in verdicts {
            let next = self.recipients[index].next;
            match verdict {
                Verdict::Deferred { until, .. } => {
                    self.recipients[index].attempts = attempt.number;
                    self.schedule(now, index, *until);
                }
                Verdict::Delivered | Verdict::Failed { .. } => self.remove(index),
            }
            index = next;
        }
        self.destinations.sweep();
    }

    /// The moment from which `next` has something that it has not before. None when time alone brings nothing:
    /// the queue is empty, held, or has its cap in flight. A moment in the past means now.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.room() == 0 {
            return None;
        }
        if self.turns.is_empty() { self.waiting.soonest() } else { Some(Timestamp::default()) }
    }

    /// Changes how many recipients may be in flight; 0 holds the queue. What is in flight is left alone.
    pub fn set_concurrency(&mut self, concurrency: usize) {
        self.config.concurrency = concurrency;
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many recipients are here, those in flight included.
    pub fn len(&self) -> usize {
        self.recipients.len()
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages are here.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// How many destinations are known.
    pub fn destinations(&self) -> usize {
        self.destinations.len()
    }

    /// How many recipients are in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Everyone here, in no order worth relying on.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let waiting = self.waiting.iter().map(|wake| {
            let recipient = &self.recipients[wake.recipient];
            self.entry(recipient, Progress::Waiting(wake.due))
        });
        let others = self.recipients.iter().filter_map(|recipient| match recipient.stage {
            Stage::Waiting => None,
            Stage::Ready => Some(self.entry(recipient, Progress::Ready)),
            Stage::InFlight => Some(self.entry(recipient, Progress::InFlight)),
        });
        others.chain(waiting)
    }

    /// Bytes of memory held, slack included; what the trees of names hold is an upper bound.
    pub fn bytes(&self) -> usize {
        let records = self.messages.bytes() + self.recipients.bytes();
        records + self.destinations.bytes() + self.turns.bytes() + self.waiting.bytes()
    }

    fn room(&self) -> usize {
        self.config.concurrency.saturating_sub(self.in_flight)
    }

    /// Makes a recipient ready, or lets it wait.
    fn schedule(&mut self, now: Timestamp, index: u32, due: Timestamp) {
        if due > now {
            self.recipients[index].stage = Stage::Waiting;
            self.waiting.push(due, index);
        } else {
            self.line_up(index);
        }
    }

    fn line_up(&mut self, index: u32) {
        let recipient = &mut self.recipients[index];
        recipient.stage = Stage::Ready;
        let sender = self.messages[recipient.message].sender;
        self.turns.push(&mut self.recipients, index, sender);
    }

    fn wake(&mut self, now: Timestamp) {
        for _ in 0..WAKES_MAX {
            let Some(index) = self.waiting.pop_due(now) else { break };
            self.line_up(index);
        }
    }

    fn depart(&mut self, group: Chain, count: usize) -> Option<Attempt> {
        let first = group.front()?;
        let &Recipient { message, destination, attempts, .. } = &self.recipients[first];
        let &Message { id, accepted_at, recovered, .. } = &self.messages[message];
        let mut recipients = Vec::with_capacity(count);
        let mut index = first;
        while index != NONE {
            let recipient = &mut self.recipients[index];
            recipient.stage = Stage::InFlight;
            recipients.push(recipient.ordinal);
            index = recipient.next;
        }
        let number = attempts.saturating_add(1);
        Some(Attempt { id, destination, recipients, number, accepted_at, recovered, first, count })
    }

    fn remove(&mut self, index: u32) {
        let recipient = self.recipients.remove(index);
        self.destinations.leave(recipient.destination);
        let message = &mut self.messages[recipient.message];
        message.recipients -= 1;
        if message.recipients == 0 {
            self.messages.remove(recipient.message);
        }
    }

    fn entry(&self, recipient: &Recipient, progress: Progress) -> Entry {
        let &Recipient { ordinal, destination, attempts, .. } = recipient;
        let &Message { id, accepted_at, .. } = &self.messages[recipient.message];
        Entry { id, ordinal, destination, attempts, accepted_at, progress }
    }
}
