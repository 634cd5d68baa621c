//! The thread that owns the queues: it admits committed messages, dispatches what is due, and
//! reports outcomes to the queues once the spool has them. It opens no file and waits only for its
//! messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use delivery::DeliveryResult;
use load::policy::AllowedDeliveries;
use mail::{EnhancedCode, Outcome, QueueId, Reply, Timestamp};
use queue::{AttemptPurpose, ContactResult, DepartureRequest, DestinationId, OperatorAction, RecipientVerdict};
use spool::{CommitError, LaneId, LiveMessage};

use super::classifier::{ClassifiedMessage, Classifier, ClassifierRules};
use super::classifier_worker::ClassifyJob;
use super::delivery_route::DeliveryRoute;
use super::drain_watch::DrainWatch;
use super::dsn_sender::{DelayNotices, DsnConfig};
use super::lane_fence::{AttemptFence, RefusedLanes};
use super::next_hop_sharing::NextHopSharing;
use super::outcome_handler::OutcomeHandler;
use super::pipe_deliverer::{PipeDeliverer, PipeJob};
use super::reclassification::Reclassification;
use super::route_resolver::{RouteQuery, RouteRequest, RouteResolverHandle, Routing};
use super::smtp_deliverer::{SmtpDeliverers, SmtpJob};
use super::{
    Attempt, AttemptOutcome, EndedAttempt, NoticeProgress, Queues, RecipientDirectory, STOP_TIME_MAX, SchedulerMsg,
};

/// After a failed record, the next try follows this much later.
const RECORD_RETRY_DELAY: Duration = Duration::from_secs(1);
/// A message that could not be read is retried this much later.
const READ_RETRY_DELAY: Duration = Duration::from_secs(60);
/// While the load allows queueing only, new mail waits this long for its first attempt.
const QUEUE_ONLY_WAIT: Duration = Duration::from_secs(60);
/// The longest sleep, so that a clock change is noticed.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// The interval for reclassifying mail that returned from attempts to retired queues or outdated
/// destinations. Each pass looks at every recipient.
const RECLASSIFY_INTERVAL: Duration = Duration::from_secs(5);
/// While recipients that an operator's action has picked are not recorded, stopping takes this long at the most:
/// less than [`Dispatcher::stop`](super::Dispatcher::stop) waits.
const RECORD_ACTIONS_TIME_MAX: Duration = Duration::from_secs(50);
/// Attempts dispatched before the next messages are read.
const DISPATCHES_MAX: usize = 1000;

/// The workers that carry out what the scheduler decides.
pub(super) struct SchedulerWorkers {
    /// The local deliverers, by name of the transport.
    pub(super) local_deliverers: HashMap<Box<str>, Sender<Attempt>>,
    /// Deliver to other hosts.
    pub(super) smtp_deliverers: SmtpDeliverers,
    /// Delivers to programs.
    pub(super) pipe_deliverer: PipeDeliverer,
    /// Resolves routes.
    pub(super) route_resolver: RouteResolverHandle,
    /// Classifies messages whose envelope is not enough to do so.
    pub(super) classifier_worker: Sender<ClassifyJob>,
    /// Writes outcomes to the spool.
    pub(super) outcome_handler: OutcomeHandler,
    /// When to send delay notices.
    pub(super) delay_notices: DelayNotices,
    /// Says whose mail may be delivered; None: all of it.
    pub(super) fence: AttemptFence,
    /// Other servers that deliver to the same next hops; None: there are none.
    pub(super) next_hop_sharing: Option<Arc<dyn NextHopSharing>>,
}

/// A new configuration. Everything in it is ready, so that applying it cannot fail.
pub(super) struct SchedulerChange {
    pub(super) queues: queue::SchedulerConfig,
    pub(super) rules: Arc<ClassifierRules>,
    pub(super) directory: Arc<RecipientDirectory>,
    pub(super) local_deliverers: HashMap<Box<str>, Sender<Attempt>>,
    /// None if the routing is unchanged.
    pub(super) routing: Option<Routing>,
    pub(super) delay_notices: DelayNotices,
    pub(super) dsn_config: DsnConfig,
}

pub(super) struct Scheduler {
    queues: Queues,
    classifier: Classifier,
    workers: SchedulerWorkers,
    delivery: AllowedDeliveries,
    refused_lanes: RefusedLanes,
    /// Outcomes that are not yet submitted.
    newly_ended: Vec<AttemptOutcome>,
    /// Outcomes that the spool could not take, and when to submit them again.
    unrecorded: Vec<AttemptOutcome>,
    record_retry_at: Option<Instant>,
    /// The edition of the routing in force.
    edition: u32,
    /// When to look for retired recipients again.
    reclassify_at: Option<Instant>,
    /// Recipients whose attempts may return them to outdated destinations.
    reclassification: Reclassification,
    /// Set if somebody waits for the queues to be drained.
    drain_watch: Option<DrainWatch>,
    /// Since when we are stopping.
    stopping: Option<Timestamp>,
}

impl Scheduler {
    pub(super) fn new(queues: Queues, classifier: Classifier, workers: SchedulerWorkers) -> Self {
        Scheduler {
            queues,
            classifier,
            workers,
            delivery: AllowedDeliveries::All,
            refused_lanes: RefusedLanes::default(),
            newly_ended: Vec::new(),
            unrecorded: Vec::new(),
            record_retry_at: None,
            edition: 0,
            reclassify_at: None,
            reclassification: Reclassification::default(),
            drain_watch: None,
            stopping: None,
        }
    }

    /// Runs until it is told to stop and nothing is in progress.
    pub(super) fn run(mut self, receiver: &Receiver<SchedulerMsg>) {
        while !self.is_over() {
            let is_drained = self.dispatch();
            // Before sleeping: dispatch may have found destinations without a route, and ended
            // attempts that contact no host. No message reports either.
            self.request_routes();
            self.tell_others();
            self.record();
            self.pick_for_reclassification();
            let patience = if is_drained { self.sleep_time() } else { Duration::ZERO };
            match receiver.recv_timeout(patience) {
                Ok(msg) => self.handle(msg),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(msg) = receiver.try_recv() {
                self.handle(msg);
            }
            self.drain_watch = self.drain_watch.take().and_then(|watch| watch.check(&self.queues));
        }
    }

    /// We are stopping, and nothing is in progress or the time is up.
    fn is_over(&self) -> bool {
        let is_idle = self.queues.recipients_in_flight() == 0
            && self.queues.unrecorded_attempts() == 0
            && !self.queues.has_unreported_actions();
        self.stopping.is_some_and(|since| is_idle || now().since(since) >= self.stop_time_max())
    }

    /// Attempts that are cut off are made again after the next start. Actions are not, so they get more time.
    fn stop_time_max(&self) -> Duration {
        if self.queues.has_unreported_actions() { RECORD_ACTIONS_TIME_MAX } else { STOP_TIME_MAX }
    }

    fn sleep_time(&self) -> Duration {
        let due = match self.stopping {
            Some(since) => Some(since + self.stop_time_max()),
            None => self.queues.next_deadline(),
        };
        // One millisecond more, since the queue's clock counts whole ones.
        let until_due = due.map_or(SLEEP_MAX, |at| at.since(now()) + Duration::from_millis(1));
        let until_again = self.record_retry_at.map_or(SLEEP_MAX, |at| at.saturating_duration_since(Instant::now()));
        let until_retired = match self.has_recipients_to_reclassify() {
            true => self.reclassify_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now())),
            false => SLEEP_MAX,
        };
        until_due.min(until_again).min(until_retired).min(SLEEP_MAX)
    }

    fn handle(&mut self, msg: SchedulerMsg) {
        match msg {
            SchedulerMsg::Committed(messages) => messages.into_iter().for_each(|message| self.admit(message)),
            // If the rules have changed meanwhile, classify it again.
            SchedulerMsg::Classified(rules, sorted) => match self.uses_rules(&rules) {
                true => self.enqueue(&sorted),
                false => self.admit(sorted.live),
            },
            SchedulerMsg::Reclassified(rules, attempt, sorted) => match self.uses_rules(&rules) {
                true => {
                    self.forget(attempt);
                    self.enqueue(&sorted);
                }
                false => self.classify(ClassifyJob::Moved(attempt)),
            },
            SchedulerMsg::Routed(edition, destination, routed) if edition == self.edition => {
                self.queues.set_route(now(), destination, routed);
            }
            // Resolved before the routing changed.
            SchedulerMsg::Routed(_, destination, _) => self.request_route(destination),
            SchedulerMsg::Ended(ended) => ended.into_iter().for_each(|ended| self.handle_ended(ended)),
            SchedulerMsg::NextHopSlow(hop) => {
                if let Some(next_hop) = self.queues.find_next_hop(&hop.name) {
                    self.queues.report_slow(now(), next_hop);
                }
            }
            SchedulerMsg::Recorded(attempt_outcomes, Ok(())) => self.handle_recorded(attempt_outcomes),
            SchedulerMsg::Recorded(attempt_outcomes, Err(CommitError::TooLarge | CommitError::Closed)) => {
                self.abandon(attempt_outcomes)
            }
            SchedulerMsg::Recorded(attempt_outcomes, Err(error)) => {
                self.keep_unrecorded(attempt_outcomes, &error.to_string())
            }
            SchedulerMsg::Unrecorded(attempt_outcomes, why) => self.keep_unrecorded(attempt_outcomes, why),
            SchedulerMsg::MessageGone(attempt) => self.forget(attempt),
            SchedulerMsg::ReadFailed(attempt, why) => self.postpone(attempt, why),
            SchedulerMsg::SetDelivery(delivery) => self.set_delivery(delivery),
            SchedulerMsg::WithQueues(question) => question(&mut self.queues),
            SchedulerMsg::Granted(next_hop, granted) => self.queues.grant_departures(now(), &next_hop, granted),
            SchedulerMsg::GrantedSlots(next_hop, slots) => self.queues.grant_slots(now(), &next_hop, slots),
            SchedulerMsg::LameElsewhere(next_hop) => self.queues.report_lame_elsewhere(now(), &next_hop),
            SchedulerMsg::WatchDrain(watch) => self.drain_watch = Some(watch),
            SchedulerMsg::Reconfigure(change) => self.reconfigure(*change),
            SchedulerMsg::Stop(at) => self.stopping = Some(at),
        }
    }

    /// Admits a message from the spool; directly if its envelope is enough.
    fn admit(&mut self, message: LiveMessage) {
        if self.classifier.needs_only_envelope(&message) {
            self.enqueue(&ClassifiedMessage::by_envelope(message));
        } else {
            self.classify(ClassifyJob::New(message));
        }
    }

    fn classify(&self, job: ClassifyJob) {
        // Only fails at shutdown; the next start finds the message again.
        drop(self.workers.classifier_worker.send(job));
    }

    fn uses_rules(&self, rules: &Arc<ClassifierRules>) -> bool {
        Arc::ptr_eq(self.classifier.rules(), rules)
    }

    fn enqueue(&mut self, sorted: &ClassifiedMessage) {
        let now = now();
        let not_before = if self.delivery == AllowedDeliveries::QueueOnly { now + QUEUE_ONLY_WAIT } else { now };
        self.classifier.enqueue(&mut self.queues, sorted, now, not_before);
    }

    fn set_delivery(&mut self, delivery: AllowedDeliveries) {
        self.delivery = delivery;
        self.queues.set_stopped(delivery == AllowedDeliveries::None);
    }

    fn request_routes(&mut self) {
        while let Some(destination) = self.queues.next_unrouted() {
            self.request_route(destination);
        }
    }

    /// Tells other servers what concerns them.
    fn tell_others(&mut self) {
        while let Some(request) = self.queues.next_departure_request() {
            let DepartureRequest { next_hop, interval, count } = request;
            let others = self.workers.next_hop_sharing.iter();
            others.for_each(|others| others.request_departures(&next_hop, interval, count));
        }
        while let Some(report) = self.queues.next_slot_report() {
            self.workers.next_hop_sharing.iter().for_each(|others| others.report_slots(report.clone()));
        }
        while let Some(next_hop) = self.queues.next_newly_lame() {
            self.workers.next_hop_sharing.iter().for_each(|others| others.announce_lame(&next_hop));
        }
    }

    fn request_route(&self, destination: DestinationId) {
        let name = self.queues.destination_name(destination).into();
        self.workers.route_resolver.send(RouteRequest::Resolve(RouteQuery { destination, name }));
    }

    /// Attempts in progress finish with the deliverer, the hosts and the connection that they began
    /// with.
    fn reconfigure(&mut self, change: SchedulerChange) {
        let SchedulerChange { queues, rules, directory, local_deliverers, routing, delay_notices, dsn_config } = change;
        let now = now();
        self.queues.reconfigure(now, queues);
        (self.workers.local_deliverers, self.workers.delay_notices) = (local_deliverers, delay_notices);
        self.workers.outcome_handler.reconfigure(dsn_config);
        self.classify(ClassifyJob::Reconfigure(rules.clone(), directory));
        self.reclassification.pick_outdated(&mut self.queues, self.classifier.rules(), &rules);
        self.classifier = Classifier::new(rules);
        if let Some(routing) = routing {
            self.edition += 1;
            self.workers.route_resolver.send(RouteRequest::Reconfigure(routing, self.edition));
            self.queues.invalidate_routes(now);
        }
        self.reclassify_at = None;
    }

    /// Reclassifies recipients in retired queues, and those whose attempts return them to an
    /// outdated destination.
    fn pick_for_reclassification(&mut self) {
        self.reclassification.add_returning(self.queues.take_unclassified());
        let is_too_early = self.reclassify_at.is_some_and(|at| Instant::now() < at);
        if !is_too_early && self.has_recipients_to_reclassify() {
            if self.queues.has_retired_recipients() {
                self.queues.pick_retired_recipients();
            }
            self.reclassification.pick_returned(&mut self.queues);
            self.reclassify_at = Some(Instant::now() + RECLASSIFY_INTERVAL);
        }
    }

    fn has_recipients_to_reclassify(&self) -> bool {
        self.stopping.is_none() && (self.queues.has_retired_recipients() || self.reclassification.is_pending())
    }

    /// Dispatches what is due and within limits; false if there may be more.
    fn dispatch(&mut self) -> bool {
        let now = now();
        for _ in 0..DISPATCHES_MAX {
            let next = match self.stopping {
                Some(_) => self.queues.next_action(),
                None => self.queues.next_attempt(now),
            };
            let Some(attempt) = next else { return true };
            match (self.stopping, &attempt.purpose) {
                // The next start classifies all mail.
                (Some(_), AttemptPurpose::Reclassify) => self.forget(attempt),
                _ => self.send(attempt),
            }
        }
        false
    }

    fn send(&mut self, attempt: Attempt) {
        match &attempt.purpose {
            AttemptPurpose::Deliver if !self.may_attempt(attempt.id) => self.put_back(attempt),
            AttemptPurpose::Deliver => self.deliver(attempt),
            AttemptPurpose::Refuse(reply) => {
                let outcome = Outcome::Deferred(reply.clone());
                self.end_without_contact(attempt, &outcome);
            }
            AttemptPurpose::Action(act) => {
                let outcome = operator_outcome(*act);
                self.end_without_contact(attempt, &outcome);
            }
            AttemptPurpose::Reclassify => self.classify(ClassifyJob::Moved(attempt)),
        }
    }

    fn deliver(&mut self, attempt: Attempt) {
        let route = attempt.route.clone().expect("an attempt to deliver has a route");
        let unsent = match &*route {
            DeliveryRoute::Mailboxes { transport } => match self.workers.local_deliverers.get(transport) {
                Some(deliverer) => deliverer.send(attempt).err().map(|unsent| unsent.0),
                None => Some(attempt),
            },
            DeliveryRoute::Remote { hop, .. } => {
                let job = SmtpJob { attempt, hop: hop.clone(), rules: self.classifier.rules().clone() };
                self.workers.smtp_deliverers.send(job).map(|unsent| unsent.attempt)
            }
            DeliveryRoute::Program { pipe } => {
                self.workers.pipe_deliverer.send(PipeJob { attempt, pipe: pipe.clone() }).map(|unsent| unsent.attempt)
            }
            DeliveryRoute::Discard { .. } => return self.end_without_contact(attempt, &Outcome::Delivered),
            DeliveryRoute::HostUnknown => return self.classify(ClassifyJob::HostUnknown(attempt)),
            DeliveryRoute::NoRoute { outcome, .. } => return self.end_without_contact(attempt, outcome),
        };
        if let Some(attempt) = unsent {
            self.end_without_contact(
                attempt,
                &Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 0), "the transport has stopped")),
            );
        }
    }

    /// Ends an attempt that contacts no host, with the same outcome for all recipients. A mere
    /// deferral is not recorded: after a restart it is simply retried.
    fn end_without_contact(&mut self, mut attempt: Attempt, outcome: &Outcome) {
        let now = now();
        // These are always reachable; for others this says nothing about the next hop.
        let contact = match attempt.route.as_deref() {
            Some(DeliveryRoute::NoRoute { .. } | DeliveryRoute::Discard { .. }) => {
                ContactResult::Answered { slowest: Duration::ZERO }
            }
            _ => ContactResult::Unknown,
        };
        self.queues.finish_contact(now, &mut attempt, contact);
        let verdicts: Vec<_> =
            attempt.recipients.iter().map(|_| self.queues.compute_verdict(now, &attempt, outcome.clone())).collect();
        let attempt_outcome = self.attempt_outcome(now, attempt, verdicts);
        let only_waits =
            attempt_outcome.verdicts.iter().all(|verdict| matches!(verdict, RecipientVerdict::Deferred { .. }));
        let is_plain = match attempt_outcome.attempt.purpose {
            AttemptPurpose::Deliver | AttemptPurpose::Reclassify => false,
            AttemptPurpose::Refuse(_) => only_waits && attempt_outcome.will_retry_until.is_none(),
            AttemptPurpose::Action(act) => act == OperatorAction::Retry,
        };
        match is_plain {
            true => self.report_recorded(now, attempt_outcome),
            false => self.newly_ended.push(attempt_outcome),
        }
    }

    fn attempt_outcome(&self, now: Timestamp, attempt: Attempt, verdicts: Vec<RecipientVerdict>) -> AttemptOutcome {
        let queue = self.queues.destination_queue(attempt.destination);
        let late_until = self.workers.delay_notices.will_retry_until(queue, &attempt, now);
        AttemptOutcome {
            attempt,
            message: None,
            verdicts,
            will_retry_until: late_until,
            peer: None,
            proof: None,
            submitted_notice: None,
            notice_progress: NoticeProgress::default(),
        }
    }

    fn may_attempt(&mut self, id: QueueId) -> bool {
        let may_attempt = self.workers.fence.may_attempt(id);
        if may_attempt {
            self.refused_lanes.allow(LaneId::of(id));
        }
        may_attempt
    }

    /// No attempt was made: it does not count, and nothing is recorded.
    fn put_back(&mut self, mut attempt: Attempt) {
        attempt.number = attempt.number.saturating_sub(1);
        let reason = Reply::new(451, EnhancedCode(4, 3, 0), "the lease of the message's lane has to be renewed first");
        let now = now();
        let verdict =
            RecipientVerdict::Deferred { reason, until: self.refused_lanes.refuse(LaneId::of(attempt.id), now) };
        let verdicts = vec![verdict; attempt.recipients.len()];
        self.queues.report_verdicts(now, attempt, &verdicts);
    }

    /// The message is unchanged, and nothing is recorded.
    fn postpone(&mut self, attempt: Attempt, why: String) {
        self.workers.outcome_handler.log_unreadable_message(attempt.id, &why);
        let (now, reason) = (now(), Reply::new(451, EnhancedCode(4, 3, 0), why));
        let verdict = RecipientVerdict::Deferred { reason, until: now + READ_RETRY_DELAY };
        let verdicts = vec![verdict; attempt.recipients.len()];
        self.queues.report_verdicts(now, attempt, &verdicts);
    }

    fn handle_ended(&mut self, ended: EndedAttempt) {
        let EndedAttempt { mut attempt, message, ending, contact, peer, proof } = ended;
        let now = now();
        self.queues.finish_contact(now, &mut attempt, contact);
        match ending {
            DeliveryResult::Damaged(what) => self.workers.outcome_handler.set_aside(attempt, what),
            DeliveryResult::Withheld => self.put_back(attempt),
            DeliveryResult::Outcomes(outcomes) => {
                let verdicts =
                    outcomes.into_iter().map(|outcome| self.queues.compute_verdict(now, &attempt, outcome)).collect();
                let outcome = self.attempt_outcome(now, attempt, verdicts);
                self.newly_ended.push(AttemptOutcome { message, peer, proof, ..outcome });
            }
        }
    }

    /// Submits all new outcomes to the spool.
    fn record(&mut self) {
        if self.record_retry_at.is_some_and(|at| at <= Instant::now()) {
            self.record_retry_at = None;
            self.newly_ended.append(&mut self.unrecorded);
        }
        if !self.newly_ended.is_empty() {
            self.workers.outcome_handler.record(std::mem::take(&mut self.newly_ended));
        }
    }

    /// The spool has the outcomes: report them to the queue and log them.
    fn handle_recorded(&mut self, attempt_outcomes: Vec<AttemptOutcome>) {
        let now = now();
        for attempt_outcome in attempt_outcomes {
            self.workers.outcome_handler.log_recorded(&attempt_outcome, now);
            self.report_recorded(now, attempt_outcome);
        }
    }

    /// Reports what is durable, or needs no record.
    fn report_recorded(&mut self, now: Timestamp, attempt_outcome: AttemptOutcome) {
        let AttemptOutcome { mut attempt, verdicts, .. } = attempt_outcome;
        attempt.note_recorded();
        self.queues.report_verdicts(now, attempt, &verdicts);
    }

    /// Keeps outcomes that the spool cannot take now; the recipients stay in flight.
    fn keep_unrecorded(&mut self, attempt_outcomes: Vec<AttemptOutcome>, why: &str) {
        if self.stopping.is_some() {
            return self.abandon(attempt_outcomes);
        }
        self.workers.outcome_handler.log_not_recorded(attempt_outcomes.len(), why);
        self.unrecorded.extend(attempt_outcomes);
        // Later failures do not postpone the retry.
        self.record_retry_at.get_or_insert_with(|| Instant::now() + RECORD_RETRY_DELAY);
    }

    /// The next start finds the recipients in the spool as they were before this attempt.
    fn abandon(&mut self, attempt_outcomes: Vec<AttemptOutcome>) {
        self.workers.outcome_handler.log_not_recorded(attempt_outcomes.len(), "they are retried after the next start");
        attempt_outcomes.into_iter().for_each(|attempt_outcome| self.forget(attempt_outcome.attempt));
    }

    /// Drops recipients that the spool no longer has.
    fn forget(&mut self, attempt: Attempt) {
        let verdicts = vec![RecipientVerdict::Removed; attempt.recipients.len()];
        self.queues.report_verdicts(now(), attempt, &verdicts);
    }
}

/// The outcome of an operator's action. Only that of a bounce reaches a sender.
fn operator_outcome(act: OperatorAction) -> Outcome {
    match act {
        OperatorAction::Bounce => Outcome::Failed(Reply::new(
            554,
            EnhancedCode(5, 0, 0),
            "the postmaster returned this message as undeliverable",
        )),
        OperatorAction::Hold | OperatorAction::Release | OperatorAction::Retry | OperatorAction::Remove => {
            Outcome::Delivered
        }
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
