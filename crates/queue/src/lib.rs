//! The scheduler of Mailrace: which recipient, when, how many at once, until when.
//!
//! [`Queues`] is a pure state machine: it is told the time, it never asks, and it never waits. Nothing here is
//! durable; the spool is, and after a restart it says again what is pending ([`Queues::admit`]).

mod attempt;
mod config;
mod retry;
mod views;

use mail::{Outcome, Timestamp};

pub use attempt::{Act, Admission, Attempt, Contact, NextHop, Pending, Purpose, Routed};
pub use config::{Adapt, Adopt, Concurrency, Config, Limits, Probe, QueueConfig, QueueNumber, Rate};
pub use retry::{Retry, Verdict};
pub use views::{Entry, NextHopView, Obstacle, Progress, QueueView};

/// A recipient domain of one queue, interned by [`Queues::destination`].
///
/// It means something while recipients wait for it or are in flight, while a question about it is open, and until the
/// next report after it was interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(pub(crate) u32);

/// The named queues, and the next hops that they share. `R` is the caller's route, cheap to clone.
pub struct Queues<R: Clone> {
    config: Config,
    route: Option<R>,
}

impl<R: Clone> Queues<R> {
    /// Empty queues. The seed sets the jitter of retries, and nothing else.
    pub fn new(config: Config, _seed: u64) -> Self {
        Queues { config, route: None }
    }

    /// The number of a recipient domain (or `host!domain`, in lower case) in a queue. It is to be admitted before the
    /// next `report`.
    pub fn destination(&mut self, _queue: QueueNumber, _name: &str) -> Destination {
        Destination(0)
    }

    /// The name behind a number.
    ///
    /// # Panics
    /// If nobody waits for the destination any more.
    pub fn destination_name(&self, _destination: Destination) -> &str {
        ""
    }

    /// The queue that the destination is at home in.
    ///
    /// # Panics
    /// If nobody waits for the destination any more.
    pub fn destination_queue(&self, _destination: Destination) -> QueueNumber {
        QueueNumber(0)
    }

    /// The identity of a next hop.
    ///
    /// # Panics
    /// If no attempt names it any more and no mail is routed there.
    pub fn next_hop_name(&self, _next_hop: NextHop) -> &str {
        ""
    }

    /// Takes a message in: recipients that are due are ready at once, the others wait.
    ///
    /// # Panics
    /// If a destination was not interned by these queues, or was forgotten since (see [`Destination`]).
    pub fn admit(&mut self, _now: Timestamp, _admission: &Admission) {}

    /// A destination that needs a route: none is known, or its time is over (the old one serves meanwhile). Each is
    /// asked once, and every question must be answered by [`Queues::routed`], however late. New questions come up in
    /// `admit` and in `next`.
    pub fn next_question(&mut self) -> Option<Destination> {
        None
    }

    /// Answers a question. Attempts in flight keep the next hop that they left with.
    pub fn routed(&mut self, _now: Timestamp, _destination: Destination, routed: Routed<R>) {
        self.route = Some(routed.route);
    }

    /// What is to be done next; None when nothing is due or has room.
    pub fn next(&mut self, _now: Timestamp) -> Option<Attempt<R>> {
        None
    }

    /// The network part of an attempt is over: its slot is free, and the next hop is judged by the contact. At most once;
    /// [`Queues::report`] does it with [`Contact::None`] where it was not. Nothing happens for attempts without a slot.
    pub fn ended(&mut self, _now: Timestamp, _attempt: &mut Attempt<R>, _contact: Contact) {}

    /// An attempt under way there has waited longer than [`Adopt::slower_than`]: the next hop is adopted.
    pub fn slow(&mut self, _now: Timestamp, _next_hop: NextHop) {}

    /// What an outcome means. Changes nothing, so that it can be recorded durably before [`Queues::report`]; the same
    /// question has the same answer. For an act the outcome only lends its reply: `Hold` is [`Verdict::Held`], `Remove`
    /// is `Removed`, `Bounce` is `Failed`, `Release` and `Retry` are `Deferred` until now.
    pub fn judge(&self, _now: Timestamp, _attempt: &Attempt<R>, _outcome: Outcome) -> Verdict {
        Verdict::Delivered
    }

    /// Ends an attempt: `verdicts` has one for each recipient, in the order of `attempt.recipients`.
    ///
    /// # Panics
    /// If there are more or fewer verdicts than recipients.
    pub fn report(&mut self, _now: Timestamp, attempt: Attempt<R>, verdicts: &[Verdict]) {
        assert_eq!(verdicts.len(), attempt.count, "a verdict for each recipient of the attempt");
    }

    /// The moment from which `next` has something to do that it has not before, if only to wake those who waited. None
    /// when time alone brings nothing. A moment in the past means now.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Nothing leaves a paused queue, by whatever next hop. What is in flight is left alone.
    pub fn pause(&mut self, _queue: QueueNumber, _paused: bool) {}

    /// While stopped no attempt is made at all; refusals and acts go on.
    pub fn set_stopped(&mut self, _stopped: bool) {}

    /// Chooses recipients for an act of the operator in one pass over all (see [`Act`] for who can be chosen; never those
    /// in flight). They leave their lines, and come out of `next` as attempts of that purpose. Returns how many.
    pub fn pick(&mut self, _act: Act, _now: Timestamp, _filter: &mut dyn FnMut(&Entry) -> bool) -> usize {
        0
    }

    /// Everyone here, in no order worth relying on.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        std::iter::empty()
    }

    /// All next hops that are known.
    pub fn next_hops(&self) -> impl Iterator<Item = NextHopView<'_>> {
        std::iter::empty()
    }

    /// All queues, in the order of the settings.
    pub fn queues(&self) -> impl Iterator<Item = QueueView<'_>> {
        std::iter::empty()
    }

    /// All that holds a destination now, whether or not somebody waits for it, strongest first. Empty when it is only a
    /// matter of turns, or of recipients whose time has not come or who are held.
    pub fn explain(&self, _now: Timestamp, _destination: Destination) -> Vec<Obstacle> {
        Vec::new()
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How many recipients are here, those in flight included.
    pub fn len(&self) -> usize {
        0
    }

    /// Whether nobody is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages are here.
    pub fn messages(&self) -> usize {
        0
    }

    /// How many destinations have recipients here.
    pub fn destinations(&self) -> usize {
        0
    }

    /// How many recipients are in flight: in attempts that are not reported.
    pub fn in_flight(&self) -> usize {
        0
    }

    /// How many attempts have ended, or never held a slot, and are not reported.
    pub fn unrecorded(&self) -> usize {
        0
    }

    /// Bytes of memory held, slack included; what the trees of names hold is an upper bound.
    pub fn bytes(&self) -> usize {
        0
    }
}
