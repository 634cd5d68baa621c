//! An SMTP deliverer: a thread that delivers to other hosts. All connections to one next hop are on
//! one thread, so their number never exceeds the attempts that the queue allows. A message that is
//! in memory is used directly; otherwise a blocking thread reads it from the spool.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use delivery::remote::{self, NextHop, RemoteDelivery, RemoteEvent, RemoteTask};
use mail::{Address, Envelope, TlsSessionLog};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::timeout;

use super::classifier::ClassifierRules;
use super::lane_fence::AttemptFence;
use super::message_cache::{CachedMessage, MessageCache};
use super::{Attempt, EndedAttempt, SchedulerHandle, SchedulerMsg};

/// At shutdown, connected hosts may take this long to answer QUIT.
const QUIT_TIME_MAX: Duration = Duration::from_secs(2);

/// An attempt and the hosts to try.
pub(super) struct SmtpJob {
    pub(super) attempt: Attempt,
    pub(super) hop: Arc<NextHop>,
    /// Says which senders change: those of VERP, and of forwarded mail.
    pub(super) rules: Arc<ClassifierRules>,
}

/// Handles to all threads.
pub(super) struct SmtpDeliverers(Vec<UnboundedSender<SmtpJob>>);

/// Returned with the result. It keeps the message in memory while the attempt runs.
struct SmtpJobContext {
    attempt: Attempt,
    message: Arc<CachedMessage>,
}

type RemoteEvents = Rc<RefCell<Vec<RemoteEvent<SmtpJobContext>>>>;

impl SmtpDeliverers {
    /// Starts `count` threads. They end soon after this is dropped; attempts still running are cut
    /// off.
    pub(super) fn start(
        count: usize,
        (messages, fence): (&MessageCache, &AttemptFence),
        scheduler: &SchedulerHandle,
        alive: &Sender<()>,
        tls_sessions: Option<&Arc<dyn TlsSessionLog>>,
    ) -> io::Result<Self> {
        let start = |number| {
            let (sender, jobs) = mpsc::unbounded_channel();
            let (messages, fence, scheduler) = (messages.clone(), fence.clone(), scheduler.clone());
            let deliverer = SmtpDeliverer { messages, fence, scheduler, tls_sessions: tls_sessions.cloned() };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(super::BLOCKING_THREADS_MAX)
                .build()?;
            let alive = alive.clone();
            thread::Builder::new().name(format!("smtp-{number}")).spawn(move || {
                LocalSet::new().block_on(&runtime, deliverer.run(jobs));
                // This does not wait: a thread that is blocked on a disk is abandoned.
                runtime.shutdown_background();
                drop(alive);
            })?;
            Ok(sender)
        };
        Ok(SmtpDeliverers((0..count.max(1)).map(start).collect::<io::Result<_>>()?))
    }

    /// Sends an attempt to the thread of its next hop, or returns it if that thread has ended.
    pub(super) fn send(&self, job: SmtpJob) -> Option<SmtpJob> {
        let mut hasher = DefaultHasher::new();
        job.hop.name.hash(&mut hasher);
        let index = hasher.finish() % self.0.len() as u64;
        self.0[index as usize].send(job).err().map(|unsent| unsent.0)
    }
}

struct SmtpDeliverer {
    messages: MessageCache,
    fence: AttemptFence,
    scheduler: SchedulerHandle,
    tls_sessions: Option<Arc<dyn TlsSessionLog>>,
}

impl SmtpDeliverer {
    async fn run(self, mut jobs: UnboundedReceiver<SmtpJob>) {
        let (reports, wakeup) = (RemoteEvents::default(), Rc::new(Notify::new()));
        let remote = {
            let (reports, wakeup) = (reports.clone(), wakeup.clone());
            let tls_sessions = self.tls_sessions.clone();
            let fence = self.fence.clone();
            let on_event = move |report| {
                if let RemoteEvent::Tls(session) = report {
                    tls_sessions.iter().for_each(|log| log.record(session.clone()));
                    return;
                }
                reports.borrow_mut().push(report);
                wakeup.notify_one();
            };
            Rc::new(RemoteDelivery::with_fence(on_event, Box::new(move |id| fence.may_attempt(id))))
        };
        let forwarder = spawn_local(forward_events(reports.clone(), wakeup, self.scheduler.clone()));
        let deliverer = Rc::new(self);
        while let Some(job) = jobs.recv().await {
            match deliverer.messages.message_in_memory(job.attempt.id) {
                Ok(None) => drop(spawn_local(deliverer.clone().fetch(job, remote.clone()))),
                Ok(Some(message)) => remote.start_task(task(job, message)),
                Err(error) => deliverer.scheduler.send(SchedulerMsg::read_failed(job.attempt, error)),
            }
        }
        // The scheduler has stopped, and with it everything that is still running.
        drop(timeout(QUIT_TIME_MAX, remote.close()).await);
        forwarder.abort();
        send_events(&deliverer.scheduler, reports.take());
    }

    async fn fetch(self: Rc<Self>, job: SmtpJob, remote: Rc<RemoteDelivery<SmtpJobContext>>) {
        let (messages, id) = (self.messages.clone(), job.attempt.id);
        match spawn_blocking(move || messages.message(id)).await {
            Ok(Ok(message)) => remote.start_task(task(job, message)),
            Ok(Err(error)) => self.scheduler.send(SchedulerMsg::read_failed(job.attempt, error)),
            // The thread was not started because we are stopping; the next start finds the message.
            Err(_) => self.scheduler.send(SchedulerMsg::ReadFailed(job.attempt, "stopping".into())),
        }
    }
}

fn task(job: SmtpJob, message: Arc<CachedMessage>) -> RemoteTask<SmtpJobContext> {
    let SmtpJob { attempt, hop, rules } = job;
    RemoteTask {
        id: attempt.id,
        envelope: message.envelope.clone(),
        recipients: attempt.recipients.clone(),
        body: message.body.clone(),
        next_hop: hop,
        verp: rules.is_verp(message.envelope.sender.as_ref()),
        forwarded_sender: forwarded_sender(&rules, &message.envelope, &attempt.recipients),
        ticket: SmtpJobContext { attempt, message },
    }
}

/// The sender for forwarded recipients, if there are any and it changes.
fn forwarded_sender(rules: &ClassifierRules, envelope: &Envelope, recipients: &[u32]) -> Option<Address> {
    let is_forwarded = |ordinal: &u32| envelope.recipients[*ordinal as usize].is_forwarded;
    let rewriter = rules.sender_rewriter.as_ref().filter(|_| recipients.iter().any(is_forwarded))?;
    rewriter.forward(envelope.sender.as_ref()?)
}

/// Forwards the events gathered since the last time: many attempts need one message and one wake-up
/// of the scheduler.
async fn forward_events(reports: RemoteEvents, wakeup: Rc<Notify>, scheduler: SchedulerHandle) {
    loop {
        wakeup.notified().await;
        send_events(&scheduler, reports.take());
    }
}

fn send_events(scheduler: &SchedulerHandle, reports: Vec<RemoteEvent<SmtpJobContext>>) {
    let mut ended = Vec::with_capacity(reports.len());
    for report in reports {
        match report {
            // It was recorded when it came.
            RemoteEvent::Tls(_) => {}
            RemoteEvent::Slow { next_hop } => scheduler.send(SchedulerMsg::NextHopSlow(next_hop)),
            RemoteEvent::Finished(report) => ended.push(EndedAttempt {
                attempt: report.ticket.attempt,
                message: Some(report.ticket.message),
                ending: report.result,
                contact: next_hop_feedback(report.feedback),
                peer: report.peer.map(|peer| peer.to_string().into()),
                proof: report.proof,
            }),
        }
    }
    if !ended.is_empty() {
        scheduler.send(SchedulerMsg::Ended(ended));
    }
}

fn next_hop_feedback(contact: remote::NextHopFeedback) -> queue::ContactResult {
    match contact {
        remote::NextHopFeedback::Answered { slowest } => queue::ContactResult::Answered { slowest },
        remote::NextHopFeedback::Busy => queue::ContactResult::Busy,
        remote::NextHopFeedback::Failed(reply) => queue::ContactResult::Failed(reply),
        remote::NextHopFeedback::Interrupted(reply) => queue::ContactResult::Interrupted(reply),
        remote::NextHopFeedback::Unknown => queue::ContactResult::Unknown,
    }
}
