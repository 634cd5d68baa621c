//! What comes in and what goes out: admissions, routes, attempts, contacts.

use std::time::Duration;

use mail::{QueueId, Reply, Timestamp};

use crate::{Destination, Limits};

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
    /// Each recipient is an attempt of its own: the envelope differs (VERP).
    pub alone: bool,
    /// Those who still wait for it.
    pub recipients: Vec<Pending>,
}

/// A recipient that waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Its place in the envelope.
    pub ordinal: u32,
    /// Where it is.
    pub destination: Destination,
    /// How many attempts were made.
    pub attempts: u16,
    /// When the next one is due. A moment that has passed is now.
    pub due: Timestamp,
    /// The operator holds it: nothing is due until it is released.
    pub held: bool,
}

/// Where mail for a destination goes, until when.
#[derive(Clone, Debug)]
pub struct Routed<R> {
    /// The identity of the next hop: destinations that name the same one share its limits and its fate. A way that leads
    /// nowhere is one, too: attempts that end with [`Contact::Answered`] prove it, so that all of its mail leaves at once.
    pub next_hop: Box<str>,
    /// For the caller; each attempt gets a clone.
    pub route: R,
    /// What the next hop is given. The last answer counts for all its destinations.
    pub limits: Limits,
    /// From then on the question is asked again, by whoever leaves or becomes ready next. Who becomes ready waits for
    /// the new answer. A moment that has passed is a second from now.
    pub until: Timestamp,
    /// It is not known where the mail goes: this is the way until that is known, and no other next hop. After
    /// [`Queues::reroute`](crate::Queues::reroute) it makes nobody due; the first lasting answer may.
    pub transient: bool,
}

/// The number of a next hop. It means something while an attempt names it or mail is routed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop(pub u32);

/// Recipients of one message at one destination, to be tried together now. It must come back by
/// [`Queues::report`](crate::Queues::report); until then its recipients count as in flight.
#[derive(Debug)]
#[must_use = "an attempt that is not reported stays in flight for ever"]
pub struct Attempt<R> {
    /// The message.
    pub id: QueueId,
    /// Where all recipients are; its name can be asked for until the report.
    pub destination: Destination,
    /// Where it goes, with the route of the moment it left. None where it goes nowhere: an act of the operator.
    pub next_hop: Option<NextHop>,
    /// What [`Routed::route`] said; Some exactly where `next_hop` is.
    pub route: Option<R>,
    /// Their ordinals in the envelope.
    pub recipients: Vec<u32>,
    /// 1 is the first. Only recipients with the same number of attempts leave together. An act is no attempt: here this
    /// is how many were made.
    pub number: u16,
    /// When the message was accepted.
    pub accepted_at: Timestamp,
    /// The message was there before a restart.
    pub recovered: bool,
    /// What is to be done.
    pub purpose: Purpose,
    /// The front of the chain of recipients, in the order of `recipients`.
    pub(crate) first: u32,
    pub(crate) count: usize,
    /// It holds a slot.
    pub(crate) under_way: bool,
    /// Counts how often the ways had changed when it left.
    pub(crate) edition: u32,
    /// The next hop's epoch when it left: attempts of one epoch shrink its concurrency once.
    pub(crate) epoch: u32,
}

/// What an attempt is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To bring the message. It holds a slot until [`Queues::ended`](crate::Queues::ended).
    Deliver,
    /// The next hop is dead and is not tried now: judge with this, the last thing that went wrong there. It holds no
    /// slot, and nothing of it needs to be durable unless it fails.
    Refuse(Reply),
    /// The operator's will: record it and report. It holds no slot.
    Act(Act),
    /// Its queue is retired: report that all are removed, and admit them where they belong now. It holds no slot, and
    /// nothing of it is to be recorded.
    Sort,
}

/// What the operator does to recipients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Keep them until they are released. Chooses among those that are not held.
    Hold,
    /// Undo that: due now. Chooses among those that are held.
    Release,
    /// Due now. Chooses among those that wait for a later moment.
    Retry,
    /// Take them away; nobody is told. Chooses among all.
    Remove,
    /// Let them fail; the sender is told. Chooses among all.
    Bounce,
}

/// How the network part of an attempt went, which is about the next hop and not about recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// There was a conversation, whatever was said in it.
    Answered {
        /// What the slowest reply took; where concurrency adapts by latency, what the whole attempt took.
        slowest: Duration,
    },
    /// It refused the session, or one connection more: fewer attempts at once, but it is not lame.
    Busy,
    /// It was not there: no connection, or the session failed before a message could be sent.
    Failed(Reply),
    /// The session was ready and broke off in the middle of this message: closed, timed out, garbage. The message is
    /// blamed first, the next hop only when different messages break off.
    Interrupted(Reply),
    /// Nothing is known of the next hop from this.
    None,
}
