//! The pipe deliverer: a thread that passes messages to programs, by the launcher. Each attempt is a task
//! of its own; the queue limits how many programs of a transport run at a time.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use delivery::DeliveryResult;
use delivery::pipe::{LauncherSocket, PipeConfig, PipeDelivery, PipeTask};
use queue::ContactResult;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

use super::lane_fence::AttemptFence;
use super::message_cache::MessageCache;
use super::{Attempt, BLOCKING_THREADS_MAX, EndedAttempt, SchedulerHandle, SchedulerMsg};

/// An attempt, and how its message is passed to the program.
pub(super) struct PipeJob {
    pub(super) attempt: Attempt,
    pub(super) pipe: Arc<PipeConfig>,
}

/// A handle to the thread.
pub(super) struct PipeDeliverer(UnboundedSender<PipeJob>);

impl PipeDeliverer {
    /// Starts the thread. It ends when the handle is dropped, and with it all programs that still run.
    pub(super) fn start(
        launcher: Option<LauncherSocket>,
        (messages, fence): (MessageCache, AttemptFence),
        scheduler: SchedulerHandle,
        alive: Sender<()>,
    ) -> io::Result<Self> {
        let (sender, jobs) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .build()?;
        thread::Builder::new().name("pipe".into()).spawn(move || {
            LocalSet::new().block_on(&runtime, run(launcher, (messages, fence), scheduler, jobs));
            // This does not wait: a thread that is blocked on a disk is abandoned.
            runtime.shutdown_background();
            drop(alive);
        })?;
        Ok(PipeDeliverer(sender))
    }

    /// Sends an attempt, or returns it if the thread has ended.
    pub(super) fn send(&self, job: PipeJob) -> Option<PipeJob> {
        self.0.send(job).err().map(|unsent| unsent.0)
    }
}

struct PipeWorker {
    delivery: PipeDelivery,
    messages: MessageCache,
    fence: AttemptFence,
    scheduler: SchedulerHandle,
}

async fn run(
    launcher: Option<LauncherSocket>,
    (messages, fence): (MessageCache, AttemptFence),
    scheduler: SchedulerHandle,
    mut jobs: UnboundedReceiver<PipeJob>,
) {
    // Without the socket all mail of these transports waits, as without a launcher.
    let delivery = PipeDelivery::new(launcher).unwrap_or_default();
    let worker = Rc::new(PipeWorker { delivery, messages, fence, scheduler });
    while let Some(job) = jobs.recv().await {
        drop(spawn_local(worker.clone().deliver(job)));
    }
}

impl PipeWorker {
    async fn deliver(self: Rc<Self>, job: PipeJob) {
        let PipeJob { attempt, pipe } = job;
        let (messages, id) = (self.messages.clone(), attempt.id);
        let message = match spawn_blocking(move || messages.message(id)).await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => return self.scheduler.send(SchedulerMsg::read_failed(attempt, error)),
            // The thread was not started because we are stopping; the next start finds the message.
            Err(_) => return self.scheduler.send(SchedulerMsg::ReadFailed(attempt, "stopping".into())),
        };
        if !self.fence.may_attempt(id) {
            let (ending, contact) = (DeliveryResult::Withheld, ContactResult::Unknown);
            let ended = EndedAttempt { attempt, message: Some(message), ending, contact, peer: None, proof: None };
            return self.scheduler.send(SchedulerMsg::Ended(vec![ended]));
        }
        let task = PipeTask {
            id,
            envelope: message.envelope.clone(),
            recipients: attempt.recipients.clone(),
            body: message.body.clone(),
            config: pipe,
        };
        let ended = self.delivery.deliver(task).await;
        // A program may take long, which says nothing about the next one.
        let contact = match ended.unavailable {
            Some(reply) => ContactResult::Failed(reply),
            None => ContactResult::Answered { slowest: Duration::ZERO },
        };
        let ended =
            EndedAttempt { attempt, message: Some(message), ending: ended.result, contact, peer: None, proof: None };
        self.scheduler.send(SchedulerMsg::Ended(vec![ended]));
    }
}
