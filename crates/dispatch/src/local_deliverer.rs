//! A local deliverer: the thread of one Maildir transport. It reads the waiting messages from the
//! spool, finds the mailboxes, checks their quotas, and delivers a batch together: the larger the
//! batch, the fewer syncs for each message.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Instant, SystemTime};

use delivery::DeliveryResult;
use delivery::local::{LocalRecipient, LocalTask, MaildirDelivery};
use mail::{Address, EnhancedCode, Outcome, Reply};
use mailbox::{LineEnds, MaildirWriterConfig};
use queue::ContactResult;
use tokio::runtime::{Builder, Runtime};

use mailbox::quota::{QUOTA_TIME_MAX, QuotaRequest, TransportQuota};

use super::lane_fence::AttemptFence;
use super::message_cache::{CachedMessage, MessageCache};
use super::{Attempt, EndedAttempt, MAILDIR_BATCH_MAX, OutcomeCounters, SchedulerHandle, SchedulerMsg};
use mailbox::{MailboxPathResolver, split_by_size};

/// A Maildir transport.
pub struct LocalTransport {
    /// The transport's name in the configuration.
    pub name: Box<str>,
    /// Where the mailboxes are.
    pub mailbox_paths: MailboxPathResolver,
    /// The line endings in mailboxes.
    pub line_ends: LineEnds,
    /// The quota of the mailboxes; None: no quota.
    pub quota: Option<Arc<TransportQuota>>,
}

pub(super) struct LocalDeliverer {
    local: MaildirDelivery<LocalTaskContext>,
    mailbox_paths: MailboxPathResolver,
    quota: Option<Arc<TransportQuota>>,
    /// For table lookups; None if the transport uses no tables.
    runtime: Option<Runtime>,
    messages: MessageCache,
    fence: AttemptFence,
    scheduler: SchedulerHandle,
    counters: Arc<OutcomeCounters>,
}

/// The mailbox folder of a recipient and its quota, or why the folder is unknown.
type MailboxTarget = Result<(PathBuf, mailbox::QuotaState), String>;

/// What a delivery task carries.
struct LocalTaskContext {
    attempt: Attempt,
    message: Arc<CachedMessage>,
    started_at: Instant,
    /// In the order of the attempt's recipients: the outcome of each whose mailbox is unknown.
    unresolved: Vec<Option<Outcome>>,
}

impl LocalDeliverer {
    /// Starts the thread; returns the transport's name and the sender for its attempts. The thread
    /// ends when that sender is dropped and everything is delivered.
    pub(super) fn start(
        transport: LocalTransport,
        hostname: &str,
        (messages, fence): (MessageCache, AttemptFence),
        scheduler: SchedulerHandle,
        (alive, counters): (Sender<()>, Arc<OutcomeCounters>),
    ) -> io::Result<(Box<str>, Sender<Attempt>)> {
        let LocalTransport { name, mailbox_paths, line_ends, quota } = transport;
        let when_full = quota.as_ref().map(|quota| quota.when_full).unwrap_or_default();
        let local = MaildirDelivery::new(MaildirWriterConfig { host: hostname.into(), line_ends }, when_full);
        let (sender, attempts) = mpsc::channel();
        let needs_runtime = mailbox_paths.table.is_some() || quota.as_ref().is_some_and(|quota| quota.table.is_some());
        let runtime = needs_runtime.then(|| Builder::new_current_thread().enable_all().build()).transpose()?;
        let deliverer = LocalDeliverer { local, mailbox_paths, quota, runtime, messages, fence, scheduler, counters };
        thread::Builder::new().name(format!("local-{name}")).spawn(move || {
            deliverer.run(&attempts);
            drop(alive);
        })?;
        Ok((name, sender))
    }

    fn run(mut self, attempts: &Receiver<Attempt>) {
        loop {
            let mut waiting = Vec::new();
            if self.local.is_idle() {
                match attempts.recv() {
                    Ok(attempt) => waiting.push(attempt),
                    Err(_) => return,
                }
            }
            let mut letters: usize = waiting.iter().map(|attempt| attempt.recipients.len()).sum();
            while letters < MAILDIR_BATCH_MAX
                && let Ok(attempt) = attempts.try_recv()
            {
                letters += attempt.recipients.len();
                waiting.push(attempt);
            }
            if letters > 0 {
                self.counters.count_maildir_batch(letters);
            }
            let contexts = waiting.into_iter().filter_map(|attempt| self.read_message(attempt)).collect();
            let (tasks, unresolved) = self.resolve_mailboxes(contexts);
            // Reading messages and finding mailboxes can take long.
            let (tasks, withheld): (Vec<_>, Vec<_>) =
                tasks.into_iter().partition(|task| self.fence.may_attempt(task.id));
            let withheld = withheld.into_iter().map(|task| task.ticket.ended_attempt(DeliveryResult::Withheld));
            let ended = self.local.run_batch(tasks).into_iter().map(ended_attempt);
            let ended: Vec<_> = ended.chain(unresolved).chain(withheld).collect();
            if !ended.is_empty() {
                self.scheduler.send(SchedulerMsg::Ended(ended));
            }
        }
    }

    fn read_message(&self, attempt: Attempt) -> Option<LocalTaskContext> {
        match self.messages.message(attempt.id) {
            Ok(message) => {
                Some(LocalTaskContext { attempt, message, started_at: Instant::now(), unresolved: Vec::new() })
            }
            Err(error) => {
                self.scheduler.send(SchedulerMsg::read_failed(attempt, error));
                None
            }
        }
    }

    /// Tasks to deliver, and attempts that ended because none of their mailboxes is known.
    fn resolve_mailboxes(
        &self,
        contexts: Vec<LocalTaskContext>,
    ) -> (Vec<LocalTask<LocalTaskContext>>, Vec<EndedAttempt>) {
        let mailboxes: Vec<&Address> = contexts.iter().flat_map(LocalTaskContext::mailboxes).collect();
        let sizes = contexts.iter().map(|context| context.attempt.recipients.len());
        let targets = match &self.runtime {
            Some(runtime) => runtime.block_on(self.mailbox_paths.resolve(&mailboxes)),
            None => self.mailbox_paths.by_pattern(&mailboxes),
        };
        let targets = split_by_size(self.check_quotas(&contexts, &mailboxes, targets), sizes);
        let (mut tasks, mut unresolved) = (Vec::with_capacity(contexts.len()), Vec::new());
        for (context, targets) in contexts.into_iter().zip(targets) {
            let task = context.task(targets);
            match task.recipients.is_empty() {
                true => unresolved.push(task.ticket.ended_attempt(DeliveryResult::Outcomes(Vec::new()))),
                false => tasks.push(task),
            }
        }
        (tasks, unresolved)
    }

    /// Adds to each mailbox what its quota means for the message, in the same order.
    fn check_quotas(
        &self,
        contexts: &[LocalTaskContext],
        mailboxes: &[&Address],
        targets: Vec<Result<PathBuf, String>>,
    ) -> Vec<MailboxTarget> {
        let Some(quota) = &self.quota else {
            return targets.into_iter().map(|place| place.map(|folder| (folder, mailbox::QuotaState::None))).collect();
        };
        let deadline = Instant::now() + QUOTA_TIME_MAX;
        let limits = match &self.runtime {
            Some(runtime) => runtime.block_on(quota.lookup_limits(mailboxes, deadline)),
            None => quota.default_limits(mailboxes.len()),
        };
        let octets = contexts.iter().flat_map(LocalTaskContext::stored_sizes);
        let recipient_count = targets.iter().zip(&limits).zip(octets).map(|((place, limits), octets)| QuotaRequest {
            folder: place.as_deref().ok(),
            limits: limits.as_ref().ok().copied(),
            octets,
        });
        let quotas = quota.check(&recipient_count.collect::<Vec<_>>(), SystemTime::now(), deadline);
        targets.into_iter().zip(quotas).map(|(place, quota)| place.map(|folder| (folder, quota))).collect()
    }
}

impl LocalTaskContext {
    /// The message size in each mailbox.
    fn stored_sizes(&self) -> impl Iterator<Item = u64> {
        let CachedMessage { envelope, body } = &*self.message;
        self.attempt.recipients.iter().map(|ordinal| delivery::local::stored_size(envelope, *ordinal, body))
    }

    fn mailboxes(&self) -> impl Iterator<Item = &Address> {
        self.attempt.recipients.iter().map(|ordinal| &self.message.envelope.recipients[*ordinal as usize].address)
    }

    /// Delivers to the recipients whose mailbox is known.
    fn task(self, targets: Vec<MailboxTarget>) -> LocalTask<LocalTaskContext> {
        let attempt = &self.attempt;
        let (recipients, unresolved) = split_resolved(&attempt.recipients, targets);
        LocalTask {
            id: attempt.id,
            recipients,
            // A retry may follow a delivery that succeeded although its sync failed.
            recovered: attempt.recovered || attempt.number > 1,
            envelope: self.message.envelope.clone(),
            body: self.message.body.clone(),
            ticket: LocalTaskContext { unresolved, ..self },
        }
    }

    /// The end of a task, or of an attempt none of whose mailboxes is known.
    fn ended_attempt(self, ending: DeliveryResult) -> EndedAttempt {
        let contact = ContactResult::Answered { slowest: self.started_at.elapsed() };
        let ending = match ending {
            DeliveryResult::Outcomes(outcomes) => DeliveryResult::Outcomes(merge_outcomes(self.unresolved, outcomes)),
            other @ (DeliveryResult::Damaged(_) | DeliveryResult::Withheld) => other,
        };
        EndedAttempt { attempt: self.attempt, message: Some(self.message), ending, contact, peer: None, proof: None }
    }
}

/// Splits the recipients: those with a known mailbox, and in the order of the ordinals an outcome
/// for each of the others.
fn split_resolved(ordinals: &[u32], targets: Vec<MailboxTarget>) -> (Vec<LocalRecipient>, Vec<Option<Outcome>>) {
    let (mut resolved, mut unresolved) = (Vec::with_capacity(targets.len()), Vec::with_capacity(targets.len()));
    for (ordinal, place) in ordinals.iter().zip(targets) {
        match place {
            Ok((folder, quota)) => {
                resolved.push(LocalRecipient { ordinal: *ordinal, folder, quota });
                unresolved.push(None);
            }
            Err(why) => unresolved.push(Some(location_unknown(&why))),
        }
    }
    (resolved, unresolved)
}

fn location_unknown(why: &str) -> Outcome {
    let text = format!("mailbox location unknown: {why}");
    Outcome::Deferred(Reply::new(451, EnhancedCode(4, 3, 5), text))
}

/// The reverse of [`split_resolved`], for outcomes.
fn merge_outcomes(unresolved: Vec<Option<Outcome>>, resolved: Vec<Outcome>) -> Vec<Outcome> {
    let mut resolved = resolved.into_iter();
    unresolved.into_iter().filter_map(|outcome| outcome.or_else(|| resolved.next())).collect()
}

fn ended_attempt(ended: delivery::local::LocalTaskResult<LocalTaskContext>) -> EndedAttempt {
    ended.ticket.ended_attempt(ended.result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one recipient without a known mailbox deferred all others of its attempt.
    #[test]
    fn an_unknown_location_defers_only_its_recipient() {
        let (full, none) = (mailbox::QuotaState::Full, mailbox::QuotaState::None);
        let down = || Err("it is down".to_owned());
        let targets = vec![down(), Ok(("b".into(), full)), Err("odd".to_owned()), Ok(("d".into(), none))];
        let (resolved, unresolved) = split_resolved(&[3, 5, 6, 9], targets);
        let addressee = |ordinal, folder: &str, quota| LocalRecipient { ordinal, folder: folder.into(), quota };
        assert_eq!(resolved, [addressee(5, "b", full), addressee(9, "d", none)]);
        let failed = Outcome::Failed(Reply::new(550, EnhancedCode(5, 2, 0), "no"));
        let outcomes = merge_outcomes(unresolved, vec![Outcome::Delivered, failed.clone()]);
        assert_eq!(outcomes, [location_unknown("it is down"), Outcome::Delivered, location_unknown("odd"), failed]);
    }

    #[test]
    fn without_any_location_no_recipient_is_delivered() {
        let (resolved, unresolved) = split_resolved(&[0], vec![Err("it is down".to_owned())]);
        assert!(resolved.is_empty());
        assert_eq!(merge_outcomes(unresolved, Vec::new()), [location_unknown("it is down")]);
    }
}
