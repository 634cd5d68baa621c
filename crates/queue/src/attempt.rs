//! The inputs and outputs of the queues: admissions, routes, attempts, contacts.

use std::sync::Arc;
use std::time::Duration;

use mail::{QueueId, Reply, Timestamp};

use crate::{ActProgress, DestinationId, NextHopLimits};

/// A message to deliver, just accepted or recovered from the spool after a restart. Each is
/// admitted once.
#[derive(Clone, Debug)]
pub struct AdmittedMessage {
    /// The message's queue id.
    pub id: QueueId,
    /// A hash of the sender's address, used for fair scheduling; 0 is the null sender.
    pub sender: u64,
    /// The lifetime counts from here.
    pub accepted_at: Timestamp,
    /// The message was there before a restart: an attempt may have succeeded without being
    /// recorded.
    pub recovered: bool,
    /// Each recipient needs an attempt of its own, because the envelopes differ (VERP).
    pub separate_attempts: bool,
    /// The recipients that have no final state.
    pub recipients: Vec<PendingRecipient>,
}

/// A recipient of an admitted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRecipient {
    /// Its index in the envelope.
    pub ordinal: u32,
    /// Its destination.
    pub destination: DestinationId,
    /// The number of attempts made so far.
    pub attempts: u16,
    /// When the next attempt is due. A time in the past means now.
    pub due: Timestamp,
    /// The operator holds it: no attempt is made until it is released.
    pub held: bool,
}

/// The route of a destination, and how long it is valid.
#[derive(Clone, Debug)]
pub struct NextHopRoute<R> {
    /// The name of the next hop: destinations with the same one share its limits and its state. A
    /// failing route has a next hop too: attempts that end with [`ContactResult::Answered`] raise
    /// its concurrency, so that all of its mail is processed quickly.
    pub next_hop: Box<str>,
    /// The caller's route; each attempt gets a clone.
    pub route: R,
    /// The limits of the next hop. The latest route sets them for all destinations of that next
    /// hop.
    pub limits: NextHopLimits,
    /// The route expires at this time. It is then requested again by the next attempt that leaves
    /// or recipient that becomes ready; recipients that become ready wait for the new route. A time
    /// in the past is replaced by one second from now.
    pub until: Timestamp,
    /// The real route is unknown for now; this one is used until it is found. After
    /// [`Queues::invalidate_routes`](crate::Queues::invalidate_routes) a transient route makes no recipient
    /// due; the first lasting one may.
    pub transient: bool,
}

/// The number of a next hop. It is valid while an attempt names it or a destination is routed
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHopId(pub u32);

/// Recipients of one message at one destination, to attempt together. Return it with
/// [`Queues::report_verdicts`](crate::Queues::report_verdicts); until then its recipients count as in
/// flight.
#[derive(Debug)]
#[must_use = "an attempt stays in flight until it is reported"]
pub struct Attempt<R> {
    /// The message.
    pub id: QueueId,
    /// The destination of all recipients; its name is available until the report.
    pub destination: DestinationId,
    /// The next hop. None for an operator's action, which goes nowhere.
    pub next_hop: Option<NextHopId>,
    /// The [`NextHopRoute::route`] at the time the attempt left; Some exactly if `next_hop` is.
    pub route: Option<R>,
    /// The indexes of the recipients in the envelope.
    pub recipients: Vec<u32>,
    /// The number of this attempt, from 1. Only recipients with the same number share an attempt.
    /// For an action, the number of attempts made so far.
    pub number: u16,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// The message was there before a restart.
    pub recovered: bool,
    /// What to do with the recipients.
    pub purpose: AttemptPurpose,
    /// The first index of the chain of recipients, in the order of `recipients`.
    pub(crate) first_recipient: u32,
    pub(crate) count: usize,
    /// Whether it still holds a slot.
    pub(crate) holds_slot: bool,
    /// The value of `Queues::routing_version` when it left.
    pub(crate) routing_version: u32,
    /// The next hop's epoch when it left: attempts of one epoch shrink its concurrency only once.
    pub(crate) epoch: u32,
    /// The counts of the operator's action, until the attempt is counted there.
    pub(crate) act: Option<Arc<ActProgress>>,
}

impl<R> Attempt<R> {
    /// The outcome of an operator's action is durable, or needs no record. Call it before
    /// [`Queues::report_verdicts`](crate::Queues::report_verdicts), which otherwise counts the action as not done.
    pub fn note_recorded(&mut self) {
        if let Some(act) = self.act.take() {
            act.note_recorded(self.count);
        }
    }
}

/// The purpose of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptPurpose {
    /// Deliver the message. The attempt holds a slot until
    /// [`Queues::finish_contact`](crate::Queues::finish_contact).
    Deliver,
    /// The next hop is dead and no probe is due: judge with this reply, the last error. Holds no
    /// slot. The outcome needs no durable record unless the recipient fails.
    Refuse(Reply),
    /// An operator's action: record it and report. Holds no slot.
    Action(OperatorAction),
    /// The queue is retired or the rules changed: report all recipients as removed and admit them
    /// to the queue they belong to now. Holds no slot and needs no record.
    Reclassify,
}

/// An operator's action on recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorAction {
    /// Hold recipients until they are released. Applies to those not held.
    Hold,
    /// Release held recipients: they are due now. Applies to those held.
    Release,
    /// Retry now. Applies to recipients that wait for a later time.
    Retry,
    /// Remove recipients without notifying the sender. Applies to all.
    Remove,
    /// Fail recipients and notify the sender. Applies to all.
    Bounce,
}

/// The result of the network part of an attempt. It concerns the next hop, not the recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContactResult {
    /// The next hop answered, whatever the answer was.
    Answered {
        /// The time of the slowest reply, or of the whole attempt if concurrency adapts to latency.
        slowest: Duration,
    },
    /// The next hop refused the session or one more connection: reduce concurrency, but it is not
    /// lame.
    Busy,
    /// No connection, or the session failed before a message could be sent.
    Failed(Reply),
    /// The session was ready and was interrupted during this message: closed, timed out, or
    /// garbage. The message is blamed first; the next hop only if several messages are interrupted.
    Interrupted(Reply),
    /// Nothing was learned about the next hop.
    Unknown,
}
