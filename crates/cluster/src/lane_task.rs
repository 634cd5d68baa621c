//! The task of a lane that this node owns, or claims: it moves what [`LaneOwner`] decides to the
//! lane's stream and back, and keeps the stream small by what [`LaneRetention`] says.
//!
//! | the lane | batches | deliveries |
//! |---|---|---|
//! | is being claimed | wait | none |
//! | is claimed | are confirmed when their records are stored | while the lease lasts |
//! | has ended (see [`LaneEnd`]) | fail | none, for ever |
//!
//! Batches are encoded here, and bodies in files are read on blocking threads, so the spool's writer
//! waits for nothing. What waits is bounded by the spool's permits
//! ([`spool::CommitStepConfig::waiting_bytes_max`]); about 16 MiB of it is encoded.

mod handle;
mod queueing;
mod room;
mod stream_maintenance;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use mail::QueueId;
use spool::{OutcomesStored, RecipientStates, SpooledMessage, StepAnswer};
use tokio::sync::mpsc;

use self::handle::{LaneCommand, LaneShared};
use self::queueing::{EncodedPart, Encoding, WaitingBatch};
use self::stream_maintenance::{StreamMaintenance, StreamMaintenanceEvent};
use crate::LaneStream;
use crate::clock::boot_time;
use crate::codec::BatchEncoder;
use crate::lane::owner::{BatchId, LaneOwner, OwnerAction, PublishId};
use crate::lane::retention::RetentionAction;
use crate::lane::{BootTime, PublishFailure, ReadFailure, RecordSubject, Slot};

pub use self::handle::{ClaimedLane, LaneEnd, LaneHandle, LaneStatus};
pub(crate) use self::room::has_new_mail;
pub use self::stream_maintenance::ReadMessage;

/// How often the servers are asked whether they still have what they are to keep.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long nothing is done if the owner waits for nothing.
const IDLE: Duration = Duration::from_secs(60);

/// See the module.
pub struct LaneTask {
    stream: LaneStream,
    owner: LaneOwner,
    shared: Arc<LaneShared>,
    commands: mpsc::UnboundedReceiver<LaneCommand>,
    maintenance: StreamMaintenance,
    waiting: VecDeque<WaitingBatch>,
    encoding: Encoding,
    /// What waits for batches that are queued.
    answers: HashMap<BatchId, BatchAnswer>,
    /// The outcomes of messages that the stream lacks, until the disk was compared with it: their copies
    /// follow, and were maybe read before.
    early_outcomes: Option<HashMap<QueueId, RecipientStates>>,
    /// What waits for an Epoch record with another lease.
    announcing: Vec<StepAnswer>,
    requests: FuturesUnordered<BoxFuture<'static, Event>>,
    is_purging: bool,
    is_releasing: bool,
    /// When the servers are asked next what they have; None while they are.
    check_due: Option<BootTime>,
}

/// What waits for a batch.
enum BatchAnswer {
    Batch(StepAnswer),
    /// Its new mail is refused already.
    Outcomes(OutcomesStored),
}

/// Something that has ended.
enum Event {
    Published(PublishId, Result<u64, PublishFailure>),
    Slot(u64, Result<Slot, ReadFailure>),
    Purged,
    /// The first record of the stream.
    Checked(Option<u64>),
    Copied(QueueId, Option<SpooledMessage>),
    Part(io::Result<(Box<BatchEncoder>, EncodedPart)>),
}

impl LaneTask {
    /// Starts the task of a lane that `owner` has begun to claim.
    pub fn start(runtime: &tokio::runtime::Handle, stream: LaneStream, owner: LaneOwner) -> LaneHandle {
        let (handle, commands, shared) = LaneHandle::new(stream.lane());
        let task = LaneTask {
            stream,
            owner,
            shared,
            commands,
            maintenance: StreamMaintenance::Early(Vec::new()),
            waiting: VecDeque::new(),
            encoding: Encoding::Nothing,
            answers: HashMap::new(),
            early_outcomes: Some(HashMap::new()),
            announcing: Vec::new(),
            requests: FuturesUnordered::new(),
            is_purging: false,
            is_releasing: false,
            check_due: Some(boot_time().after(CHECK_INTERVAL)),
        };
        runtime.spawn(task.run());
        handle
    }

    /// Drives the lane until it ends, or until no handle is left.
    async fn run(mut self) {
        while self.perform_actions().await.is_continue() {
            self.maintain_stream();
            self.check_stream();
            self.update_status();
            if self.queue_next() {
                continue;
            }
            let timeout = [self.owner.poll_timeout(), self.refusal_due()].into_iter().flatten().min();
            tokio::select! {
                biased;
                Some(event) = self.requests.next() => self.handle_event(event),
                () = sleep_until(timeout) => {
                    self.owner.handle_timeout(boot_time());
                    self.refuse_overdue(boot_time());
                }
                command = self.commands.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => return,
                },
            }
        }
        self.fail_all();
    }
}

impl LaneTask {
    /// Does what the owner decides, until it waits for something. Breaks after its last action.
    async fn perform_actions(&mut self) -> ControlFlow<()> {
        while let Some(action) = self.owner.poll_action(boot_time()) {
            match action {
                OwnerAction::Publish { id, subject, expected_last, record } => {
                    self.publish(id, subject, expected_last, record).await;
                }
                OwnerAction::Read { sequence } => self.read_slot(sequence),
                OwnerAction::Confirmed { batch, range } => {
                    self.maintenance.handle(StreamMaintenanceEvent::Confirmed(batch, range));
                    self.confirm(batch);
                }
                OwnerAction::Failed { batch, reason } => self.refuse_mail(batch, reason),
                OwnerAction::Claimed { epoch, base } => {
                    self.maintenance.handle(StreamMaintenanceEvent::Epoch(base));
                    // Who waits for the claim may accept and deliver at once.
                    self.update_status();
                    self.shared.set_claimed(ClaimedLane { epoch, base });
                }
                OwnerAction::EpochRepeated { sequence, is_announcement } => {
                    self.maintenance.handle(StreamMaintenanceEvent::Epoch(sequence));
                    let announced = if is_announcement { self.announcing.len() } else { 0 };
                    self.announcing.drain(..announced).for_each(|answer| answer.send(Ok(())));
                }
                OwnerAction::Fenced { by } => self.shared.set_ended(LaneEnd::Fenced { by }),
                OwnerAction::Lost { reason } => self.shared.set_ended(LaneEnd::Lost(reason)),
                OwnerAction::Released => self.shared.set_ended(LaneEnd::Released),
            }
        }
        if self.shared.has_ended() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    async fn publish(&mut self, id: PublishId, subject: RecordSubject, expected_last: u64, record: Bytes) {
        match self.stream.publish(subject, expected_last, record).await {
            Ok(answer) => self.requests.push(async move { Event::Published(id, answer.await) }.boxed()),
            Err(failure) => self.handle_event(Event::Published(id, Err(failure))),
        }
    }

    fn read_slot(&self, sequence: u64) {
        let stream = self.stream.clone();
        self.requests.push(async move { Event::Slot(sequence, stream.slot(sequence).await) }.boxed());
    }

    fn confirm(&mut self, batch: BatchId) {
        match self.answers.remove(&batch) {
            Some(BatchAnswer::Batch(answer)) => {
                self.shared.counters.batches_confirmed.fetch_add(1, Relaxed);
                answer.send(Ok(()));
            }
            Some(BatchAnswer::Outcomes(outcomes)) => outcomes.send(),
            None => {}
        }
    }

    /// The batch may still be stored, and then its outcomes count.
    fn refuse_mail(&mut self, batch: BatchId, reason: String) {
        if let Some(BatchAnswer::Batch(answer)) = self.answers.remove(&batch) {
            self.shared.counters.batches_failed.fetch_add(1, Relaxed);
            self.await_outcomes(batch, answer.refuse_mail(reason));
        }
    }

    fn await_outcomes(&mut self, batch: BatchId, outcomes: Option<OutcomesStored>) {
        self.answers.extend(outcomes.map(|outcomes| (batch, BatchAnswer::Outcomes(outcomes))));
    }

    /// Purges what nothing needs any more, and copies what keeps the rest.
    fn maintain_stream(&mut self) {
        while !self.is_purging
            && let Some(action) = self.maintenance.poll_action()
        {
            match action {
                RetentionAction::PurgeUpTo(sequence) => self.purge(sequence),
                RetentionAction::RepeatEpoch => self.owner.repeat_epoch(),
                RetentionAction::Copy(id) => self.read_copy(id),
            }
        }
    }

    fn purge(&mut self, sequence: u64) {
        self.is_purging = true;
        let stream = self.stream.clone();
        let purge = async move {
            // If it fails, the next one removes these records too.
            drop(stream.purge_up_to(sequence).await);
            Event::Purged
        };
        self.requests.push(purge.boxed());
    }

    /// Asks for the first record of the stream, when it is time.
    fn check_stream(&mut self) {
        if !self.maintenance.is_known() || self.is_purging || self.check_due.is_none_or(|due| boot_time() < due) {
            return;
        }
        self.check_due = None;
        let stream = self.stream.clone();
        self.requests.push(async move { Event::Checked(stream.first_sequence().await.ok()) }.boxed());
    }

    fn read_copy(&self, id: QueueId) {
        let Some(read) = self.maintenance.reader() else { return };
        let message = tokio::task::spawn_blocking(move || read(id));
        self.requests.push(async move { Event::Copied(id, message.await.ok().flatten()) }.boxed());
    }

    fn handle_command(&mut self, command: LaneCommand) {
        match command {
            LaneCommand::Batch(batch, answer) => {
                self.waiting.push_back(WaitingBatch::Draft(batch, answer, boot_time()))
            }
            LaneCommand::Changes(id, changes, answer) => {
                self.waiting.push_back(WaitingBatch::Changes(id, changes, answer));
            }
            LaneCommand::Missing(id, message, answer) => {
                self.waiting.push_back(WaitingBatch::Missing(id, message, answer));
            }
            LaneCommand::Seed(retention, read) => self.maintenance.seed(retention, read),
            LaneCommand::Compared => self.early_outcomes = None,
            LaneCommand::AnnounceLease(lease, answer) => {
                self.owner.announce_lease(lease);
                self.announcing.push(answer);
            }
            LaneCommand::ConfirmFinished(answer) => {
                // If nobody waits for it, it is of no use.
                let _ = answer.send(self.is_finished());
            }
            LaneCommand::Release => self.is_releasing = true,
        }
    }

    fn handle_event(&mut self, event: Event) {
        let now = boot_time();
        match event {
            Event::Published(id, Ok(sequence)) => self.owner.handle_published(id, sequence, now),
            Event::Published(id, Err(failure)) => {
                self.shared.counters.publishes_failed.fetch_add(1, Relaxed);
                self.owner.handle_publish_failed(id, failure, now);
            }
            Event::Slot(sequence, slot) => self.owner.handle_slot(sequence, slot, now),
            Event::Purged => self.is_purging = false,
            Event::Checked(first) => {
                self.check_due = Some(now.after(CHECK_INTERVAL));
                first.into_iter().for_each(|first| self.maintenance.handle(StreamMaintenanceEvent::FirstRecord(first)));
            }
            Event::Copied(id, Some(message)) => self.waiting.push_back(WaitingBatch::Copy(id, message)),
            Event::Copied(id, None) => self.maintenance.handle_copy_failed(id),
            Event::Part(read) => self.handle_read_part(read),
        }
    }
}

impl LaneTask {
    fn update_status(&self) {
        self.shared.set_lease(self.owner.lease_until());
        self.shared.is_copying.store(self.owner.announces_longer_lease(), Relaxed);
        let counters = &self.shared.counters;
        let (stored_bytes, live_messages) = self.maintenance.stored();
        counters.confirmed_sequence.store(self.owner.confirmed_sequence(), Relaxed);
        counters.waiting_bytes.store(self.owner.waiting_bytes(), Relaxed);
        counters.stored_bytes.store(stored_bytes, Relaxed);
        counters.live_messages.store(live_messages, Relaxed);
        self.shared.is_finished.store(self.is_finished(), Relaxed);
    }

    fn is_finished(&self) -> bool {
        let is_idle = self.waiting.is_empty() && matches!(self.encoding, Encoding::Nothing);
        is_idle && self.maintenance.is_finished()
    }

    /// The lane has ended: what was or is submitted to it fails.
    fn fail_all(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.handle_command(command);
        }
        let waiting = self.waiting.drain(..).filter_map(|batch| match batch {
            WaitingBatch::Draft(_, answer, _)
            | WaitingBatch::Changes(_, _, answer)
            | WaitingBatch::Missing(_, _, answer) => Some(answer),
            WaitingBatch::Copy(..) | WaitingBatch::Outcomes(..) => None,
        });
        let queued = self.answers.drain().filter_map(|(_, answer)| match answer {
            BatchAnswer::Batch(answer) => Some(answer),
            BatchAnswer::Outcomes(_) => None,
        });
        for answer in waiting.chain(queued).chain(self.announcing.drain(..)) {
            self.shared.counters.batches_failed.fetch_add(1, Relaxed);
            answer.send(Err("the lane is not this node's any more".into()));
        }
    }
}

impl Drop for LaneTask {
    /// Nobody waits for ever for a task that was stopped.
    fn drop(&mut self) {
        self.shared.set_ended(LaneEnd::Lost("the lane's task was stopped".into()));
    }
}

async fn sleep_until(time: Option<BootTime>) {
    let wait = time.map_or(IDLE, |time| time.since(boot_time()));
    tokio::time::sleep(wait).await;
}
