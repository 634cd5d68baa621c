//! The thread that sends delivery status notices. It reads the message if that has not been done,
//! asks the directory where the sender's mail goes, composes the notice, and submits it together
//! with the outcome that causes it: never one without the other.
//!
//! A notice goes to the mailboxes that the sender's address resolves to, or to that address at
//! another host. Notices that cannot be sent are logged. Nothing here is fatal; while the directory
//! does not answer, attempts go back to be recorded later.
//!
//! | the message came from | and its sender | notices |
//! |---|---|---|
//! | a user, a relay network, a local program | any | all are sent |
//! | anyone else | is in `bounce.verp` | all are sent |
//! | anyone else | any other | limited by `bounce.per_sender`; the rest is logged and counted |

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use delivery::bounce::{
    DsnAction, DsnComposeInput, DsnReport, NoticeLimiter, NoticeSigner, ORIGINAL_OCTETS_MAX, RecipientResult,
};
use delivery::verp;
use lookup::directory::{AddressResolution, RecipientDirectory};
use mail::{Address, DsnNotify, QueueId, Recipient, Timestamp};
use queue::{AttemptPurpose, QueueNumber, RecipientVerdict};
use spool::{CommitError, ReadError, SpoolEntry, SubmittedBody};
use tokio::runtime::Runtime;

use super::classifier::ClassifierRules;
use super::message_cache::{CachedMessage, MessageCache};
use super::outcome_writer::OutcomeWriter;
use super::{Attempt, AttemptOutcome, NoticeProgress, SchedulerMsg, SubmittedNotice};
use crate::OutcomeCounters;
use mail::LogLevel;
use mail::ServerLog;

/// A delay notice is not sent before this share of its time has passed, whatever the number of
/// attempts.
const DELAY_SHARE_MIN: f64 = 0.75;

/// How long the sender's address is looked up while the directory fails. After that the outcome is
/// recorded without a notice, and logged.
const SENDER_LOOKUP_TIME_MAX: Duration = Duration::from_secs(300);

/// When senders get notices.
pub struct NoticeConfig {
    /// After this time, one delay notice is sent; None: never.
    pub delay_after: Option<Duration>,
    /// The recipient of bounces that themselves fail; None: they are dropped.
    pub double_bounces_to: Option<Address>,
    /// Limits the notices for mail with a possibly forged sender; None: no limit.
    pub limit: Option<NoticeLimiter>,
    /// Signs notices; None: they are not signed.
    pub signer: Option<Arc<dyn NoticeSigner>>,
}

/// When to send a delay notice: at the attempt that the retry schedule makes after this time.
/// Counting attempts needs no record of sent notices, and survives a restart.
pub(super) struct DelayNotices {
    delay_after: Option<Duration>,
    /// By queue number: the attempt whose deferral triggers the notice, and the queue's lifetime.
    attempt_and_lifetime: Vec<(u16, Duration)>,
}

impl NoticeConfig {
    pub(super) fn delay_notices(&self, queues: &queue::SchedulerConfig) -> DelayNotices {
        let after = self.delay_after.unwrap_or_default();
        let of = |queue: &queue::QueueConfig| (attempt_after(after, &queue.retry), queue.retry.lifetime);
        DelayNotices { delay_after: self.delay_after, attempt_and_lifetime: queues.queues.iter().map(of).collect() }
    }

    /// Whether this notice is sent. Only notices to a possibly forged sender count towards the
    /// limit.
    fn allow(&mut self, now: Timestamp, report: &DsnReport<'_>, is_verp: bool) -> bool {
        let is_limited = !report.is_from_trusted_client() && !is_verp;
        !is_limited || self.limit.as_mut().is_none_or(|cap| cap.allows(now, report.notified_address()))
    }
}

impl DelayNotices {
    /// If a delay notice is due for this deferral: when we stop retrying.
    pub(super) fn will_retry_until(&self, queue: QueueNumber, attempt: &Attempt, now: Timestamp) -> Option<Timestamp> {
        let (after, (number, lifetime)) = (self.delay_after?, self.attempt_and_lifetime.get(usize::from(queue.0))?);
        let is_late = attempt.number == *number
            && !matches!(attempt.purpose, AttemptPurpose::Action(_))
            && now.since(attempt.accepted_at) >= after.mul_f64(DELAY_SHARE_MIN);
        is_late.then(|| attempt.accepted_at + *lifetime)
    }
}

/// The first attempt that the schedule, without jitter, makes after `span`.
fn attempt_after(span: Duration, retry: &queue::RetryPolicy) -> u16 {
    let mut wait = retry.first.min(retry.longest);
    let (mut elapsed, mut number) = (Duration::ZERO, 1);
    while elapsed < span && number < u16::MAX {
        elapsed += wait.max(Duration::from_millis(1));
        let longer = wait.as_secs_f64() * retry.factor.max(1.0);
        wait = Duration::try_from_secs_f64(longer).unwrap_or(retry.longest).min(retry.longest);
        number += 1;
    }
    number
}

/// A request to the thread.
pub(super) enum DsnRequest {
    /// Records outcomes that may need a notice.
    Record(Vec<AttemptOutcome>),
    /// Sets aside the damaged message of this attempt; the text says what is wrong.
    SetAside(Attempt, String),
    /// Switches to this configuration.
    Reconfigure(Box<DsnConfig>),
}

/// The part of the configuration that can change.
pub(super) struct DsnConfig {
    pub(super) notices: NoticeConfig,
    /// The limit is unchanged: notices already sent still count.
    pub(super) keeps_limiter: bool,
    pub(super) rules: Arc<ClassifierRules>,
    pub(super) directory: Arc<RecipientDirectory>,
    pub(super) hostname: Box<str>,
}

/// What the thread works with.
pub(super) struct DsnSenderParts {
    pub(super) outcome_writer: OutcomeWriter,
    pub(super) messages: MessageCache,
    pub(super) directory: Arc<RecipientDirectory>,
    /// Names the senders whose messages use VERP.
    pub(super) rules: Arc<ClassifierRules>,
    /// Counts the notices that are not sent.
    pub(super) outcome_counters: Arc<OutcomeCounters>,
}

struct DsnSender {
    parts: DsnSenderParts,
    notices: NoticeConfig,
    /// Runs lookups; the thread waits for them.
    runtime: Runtime,
    hostname: Box<str>,
    log: Arc<dyn ServerLog>,
}

/// The directory cannot say now where the sender's mail goes.
struct SenderUnresolved;

impl DsnSenderParts {
    /// Starts the thread; it ends when the sender is dropped.
    pub(super) fn start(
        self,
        notices: NoticeConfig,
        hostname: Box<str>,
        log: Arc<dyn ServerLog>,
        alive: Sender<()>,
    ) -> io::Result<Sender<DsnRequest>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut dsn_sender = DsnSender { parts: self, notices, runtime, hostname, log };
        let (sender, requests) = mpsc::channel();
        thread::Builder::new().name("dsn-sender".into()).spawn(move || {
            dsn_sender.run(&requests);
            // The spool reference goes first: the spool is closed when `alive` ends.
            drop((dsn_sender, alive));
        })?;
        Ok(sender)
    }
}

impl DsnSender {
    fn run(&mut self, requests: &Receiver<DsnRequest>) {
        while let Ok(request) = requests.recv() {
            match request {
                DsnRequest::Record(attempts) => self.record(attempts),
                DsnRequest::SetAside(attempt, what) => self.set_aside(attempt, &what),
                DsnRequest::Reconfigure(terms) => self.reconfigure(*terms),
            }
        }
    }

    fn reconfigure(&mut self, config: DsnConfig) {
        let DsnConfig { mut notices, keeps_limiter: keeps_cap, rules, directory, hostname } = config;
        if keeps_cap {
            notices.limit = self.notices.limit.take();
        }
        (self.notices, self.parts.directory, self.hostname) = (notices, directory, hostname);
        self.parts.rules = rules;
    }

    fn record(&mut self, attempts: Vec<AttemptOutcome>) {
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for attempt_outcome in attempts {
            let Some((mut attempt_outcome, message)) = self.with_message(attempt_outcome) else { continue };
            let mut progress = std::mem::take(&mut attempt_outcome.notice_progress);
            let made = self.notice(&attempt_outcome, &message, &mut progress);
            attempt_outcome.notice_progress = progress;
            match made {
                Ok(None) => done.push((AttemptOutcome { submitted_notice: None, ..attempt_outcome }, None)),
                Ok(Some((told, entry))) => {
                    done.push((AttemptOutcome { submitted_notice: Some(told), ..attempt_outcome }, Some(entry)))
                }
                Err(SenderUnresolved) => rest.push(attempt_outcome),
            }
        }
        self.parts.outcome_writer.submit(done.into_iter());
        if !rest.is_empty() {
            self.return_outcomes(rest, "cannot look up the recipient of the notice");
        }
    }

    fn return_outcomes(&self, attempt_outcomes: Vec<AttemptOutcome>, why: &'static str) {
        self.parts.outcome_writer.scheduler.send(SchedulerMsg::Unrecorded(attempt_outcomes, why));
    }

    /// The message of an attempt, read if necessary. If it cannot be read now, the attempt goes
    /// back.
    fn with_message(&self, attempt_outcome: AttemptOutcome) -> Option<(AttemptOutcome, Arc<CachedMessage>)> {
        if let Some(message) = attempt_outcome.message.clone() {
            return Some((attempt_outcome, message));
        }
        match self.parts.messages.message(attempt_outcome.attempt.id) {
            Ok(message) => Some((AttemptOutcome { message: Some(message.clone()), ..attempt_outcome }, message)),
            Err(ReadError::Unavailable(_)) => {
                self.return_outcomes(vec![attempt_outcome], "cannot read the message now");
                None
            }
            Err(error) => {
                self.parts.outcome_writer.scheduler.send(SchedulerMsg::read_failed(attempt_outcome.attempt, error));
                None
            }
        }
    }

    /// Sets a damaged message aside. If that fails, the queue drops it anyway, and the next start
    /// finds it again.
    fn set_aside(&self, attempt: Attempt, what: &str) {
        let OutcomeWriter { spool, scheduler } = self.parts.outcome_writer.clone();
        let (log, id) = (self.log.clone(), attempt.id);
        let done = move |result: Result<(), CommitError>| {
            if let Err(error) = result {
                log.event(LogLevel::Error, "cannot set aside a damaged message", &[("id", &id), ("error", &error)]);
            }
            scheduler.send(SchedulerMsg::MessageGone(attempt));
        };
        spool.set_aside_damaged(id, what, Box::new(done));
    }

    /// The notice for those recipients that need one, if it can be sent.
    fn notice(
        &mut self,
        attempt_outcome: &AttemptOutcome,
        message: &CachedMessage,
        progress: &mut NoticeProgress,
    ) -> Result<Option<(SubmittedNotice, SpoolEntry)>, SenderUnresolved> {
        let postmaster = self.notices.double_bounces_to.clone();
        let Some(report) = DsnReport::build(&message.envelope, postmaster.as_ref(), recipient_results(attempt_outcome))
        else {
            return Ok(None);
        };
        let is_verp = self.parts.rules.is_verp(message.envelope.sender.as_ref());
        let verp_sender = report
            .sole_failed_recipient()
            .filter(|_| is_verp)
            .and_then(|to| verp::sender_address(report.notified_address(), to));
        let (report, recipients) = self.report_with_recipients(report, verp_sender.as_ref(), progress)?;
        let now = SystemTime::now().into();
        if recipients.is_empty() || !self.may_send(now, attempt_outcome.attempt.id, &report, is_verp, progress) {
            return Ok(None);
        }
        let id = self.parts.outcome_writer.spool.new_id_in_lane_of(attempt_outcome.attempt.id);
        let dsn = report.compose(&DsnComposeInput {
            hostname: &self.hostname,
            id,
            now,
            original_id: attempt_outcome.attempt.id,
            attempted_at: Some(now),
            octets: message.body.len(),
            original: &original(message),
        });
        let ordinals = attempt_outcome
            .attempt
            .recipients
            .iter()
            .copied()
            .filter(|ordinal| report.includes_recipient(*ordinal))
            .collect();
        let envelope = dsn.envelope(&self.hostname, now, recipients);
        let mut submitted = SubmittedNotice::new(&dsn, id, ordinals, &envelope);
        let signature = self.notices.signer.as_ref().map(|signer| self.runtime.block_on(signer.sign(&dsn.content)));
        let prefix = signature.unwrap_or_default();
        submitted.size += prefix.len() as u64;
        let content = SubmittedBody::Memory { prefix, body: dsn.content };
        let flags = dsn.flags;
        Ok(Some((submitted, SpoolEntry::Message { id, envelope, content, flags })))
    }

    /// The report and its recipients: the sender's VERP address for the recipient if that resolves,
    /// else the sender's address.
    fn report_with_recipients<'a>(
        &self,
        report: DsnReport<'a>,
        verp_sender: Option<&'a Address>,
        progress: &mut NoticeProgress,
    ) -> Result<(DsnReport<'a>, Vec<Recipient>), SenderUnresolved> {
        let mut unavailable = None;
        if let Some(verp_sender) = verp_sender {
            let recipients = self.notice_recipients(verp_sender, progress, &mut unavailable)?;
            if !recipients.is_empty() {
                return Ok((report.with_notified_address(verp_sender), recipients));
            }
        }
        let recipients = self.notice_recipients(report.notified_address(), progress, &mut unavailable)?;
        if let Some(why) = unavailable.filter(|_| recipients.is_empty()) {
            let text = "no notice sent: cannot look up the sender's address";
            self.log.event(LogLevel::Warning, text, &[("sender", report.notified_address()), ("error", &why)]);
        }
        Ok((report, recipients))
    }

    /// Whether a notice is sent. The decision holds when the same attempt is recorded again.
    fn may_send(
        &mut self,
        now: Timestamp,
        id: QueueId,
        report: &DsnReport<'_>,
        is_verp: bool,
        progress: &mut NoticeProgress,
    ) -> bool {
        *progress.is_allowed.get_or_insert_with(|| {
            let is_sent = self.notices.allow(now, report, is_verp);
            if !is_sent {
                self.parts.outcome_counters.count_dropped_notice();
                let text = "no notice sent: too many to this sender for mail from untrusted clients";
                let facts: [(&str, &dyn Display); 3] =
                    [("id", &id), ("sender", report.notified_address()), ("recipients", &report.recipient_count())];
                self.log.event(LogLevel::Warning, text, &facts);
            }
            is_sent
        })
    }

    /// The recipients of a notice, as RCPT would resolve the sender. None if there is no such user,
    /// or after the directory has failed for too long; `unavailable` then says why.
    fn notice_recipients(
        &self,
        sender: &Address,
        progress: &mut NoticeProgress,
        unavailable: &mut Option<String>,
    ) -> Result<Vec<Recipient>, SenderUnresolved> {
        let recipient = |address, original| Recipient {
            address,
            original,
            notify: DsnNotify::NEVER,
            orcpt: None,
            is_forwarded: false,
        };
        match self.runtime.block_on(self.parts.directory.resolve(sender)) {
            AddressResolution::Local(finals) | AddressResolution::Returned(finals) => {
                Ok(finals.into_iter().map(|found| recipient(found.address, found.original)).collect())
            }
            AddressResolution::Remote(address) => Ok(vec![recipient(address, None)]),
            AddressResolution::Unavailable(why) => {
                let since = *progress.sender_unresolved_since.get_or_insert_with(Instant::now);
                if since.elapsed() < SENDER_LOOKUP_TIME_MAX {
                    return Err(SenderUnresolved);
                }
                *unavailable = Some(why);
                Ok(Vec::new())
            }
            AddressResolution::Unknown
            | AddressResolution::NotReturned(_)
            | AddressResolution::TooDeep
            | AddressResolution::TooMany => Ok(Vec::new()),
        }
    }
}

/// The results of an attempt to report.
fn recipient_results(attempt_outcome: &AttemptOutcome) -> impl Iterator<Item = RecipientResult<'_>> {
    let peer = attempt_outcome.peer.as_deref();
    attempt_outcome.attempt.recipients.iter().zip(&attempt_outcome.verdicts).filter_map(move |(ordinal, verdict)| {
        let action = match verdict {
            RecipientVerdict::Delivered => DsnAction::Delivered,
            RecipientVerdict::Relayed { reply, dsn } => DsnAction::Relayed { reply, dsn: *dsn },
            RecipientVerdict::Deferred { reason, .. } => {
                DsnAction::Delayed { reply: reason, until: attempt_outcome.will_retry_until? }
            }
            RecipientVerdict::Failed { reason } => DsnAction::Failed(reason),
            RecipientVerdict::Held | RecipientVerdict::Removed => return None,
        };
        Some(RecipientResult { ordinal: *ordinal, action, peer })
    })
}

/// The part of the message that a notice returns. A message that cannot be read is left out; the
/// notice is sent anyway.
fn original(message: &CachedMessage) -> Vec<u8> {
    let mut bytes = vec![0; message.body.len().min(ORIGINAL_OCTETS_MAX) as usize];
    let read = message.body.read_at(&mut bytes, 0).unwrap_or(0);
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use delivery::bounce::NoticeLimits;
    use mail::{BodyType, ClientInfo, EnhancedCode, Envelope, Reply};

    use super::*;

    /// Regression: of 1,022 refused recipients of one sender, 922 were never reported.
    #[test]
    fn only_notices_to_a_sender_who_may_be_forged_are_limited() {
        for (trusted, is_verp, sent) in
            [(true, false, 1022), (false, true, 1022), (true, true, 1022), (false, false, 100)]
        {
            let recipient = |address: &str| Recipient {
                address: address.parse().expect("an address"),
                original: None,
                notify: DsnNotify::UNSET,
                orcpt: None,
                is_forwarded: false,
            };
            let envelope = Envelope {
                sender: Some("alice@example.org".parse().expect("an address")),
                recipients: vec![recipient("bob@example.net")],
                accepted_at: Timestamp::default(),
                client: ClientInfo { address: None, helo: "client.example".into(), trusted },
                body_type: BodyType::default(),
                smtputf8: false,
                ret: None,
                envid: None,
                content_filter: false,
            };
            let reason = Reply::new(550, EnhancedCode(5, 1, 1), "who is that");
            let finding = RecipientResult { ordinal: 0, action: DsnAction::Failed(&reason), peer: None };
            let report = DsnReport::build(&envelope, None, [finding]).expect("a failed recipient is reported");
            let cap = Some(NoticeLimiter::new(NoticeLimits::default(), 7));
            let mut notices = NoticeConfig { delay_after: None, double_bounces_to: None, limit: cap, signer: None };
            let allowed = (0..1022).filter(|_| notices.allow(Timestamp(1_700_000_000_000), &report, is_verp)).count();
            assert_eq!(allowed, sent, "trusted {trusted}, VERP {is_verp}");
        }
    }
}
