//! A node that watches the lane, claims it when it may, and works with it: takes messages, delivers
//! them, records outcomes, copies and purges.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use cluster::codec::{BatchEncoder, CopiedEntry};
use cluster::lane::owner::{BatchId, Claim, LaneOwner, OwnerAction, PublishId};
use cluster::lane::retention::{LaneRetention, RetentionAction};
use cluster::lane::watcher::{LaneWatcher, WatcherAction};
use cluster::lane::{
    BootTime, COPYING_LEASE, LaneTimes, PublishFailure, ReadFailure, RecordSubject, Slot, StreamTail, TailFailure,
};
use mail::{QueueId, SpoolId, Timestamp};
use sim::Random;
use spool::RecipientState;

use crate::disk::{Disk, DiskWrite, DiskWrites, write_of};
use crate::entries::{message, new_content, outcome, retained, states_after};
use crate::ledger::{Found, FoundMessage, Ledger, read};
use crate::local::LocalLane;
use crate::starting::{Decision, Fact, Question, Start};
use crate::stream::Stream;

const PART_BYTES: usize = 150;
const IN_FLIGHT_BYTES_MAX: u64 = 8_000;
/// The most that new mail takes at once.
const NEW_MAIL_BYTES_MAX: u64 = 20_000;
/// How often an owner asks what the servers still have.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// No more work is begun while so many bytes wait.
const WAITING_BYTES_MAX: u64 = 20_000;

/// What a node sends to the servers.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Publish {
        id: PublishId,
        subject: RecordSubject,
        expected_last: u64,
        record: Bytes,
    },
    Read {
        sequence: u64,
    },
    ReadTail,
    /// Which record is the first one of the stream.
    ReadFirst,
    Purge(u64),
    /// With a number, which the answer has too.
    Ask(u64, Question),
}

/// What a node gets.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Published(PublishId, Result<u64, PublishFailure>),
    Slot(u64, Result<Slot, ReadFailure>),
    /// With the lease of the newest owner.
    Tail(Result<StreamTail, TailFailure>, Option<Duration>),
    /// The first record of the stream.
    First(u64),
    Renewed,
    Timeout,
    Work,
    Told(u64, Fact),
    /// All writes to the disk up to this one are durable.
    Synced(u64),
    /// None of those up to this one are on the disk.
    WriteFailed(u64),
    /// The same of the writes of a local lane.
    LocalSynced(u64),
    LocalWriteFailed(u64),
}

impl Answer {
    /// It answers what the node has done in one role, and means nothing to a later one.
    pub(crate) fn is_of_role(&self) -> bool {
        match self {
            Answer::Published(..)
            | Answer::Slot(..)
            | Answer::First(_)
            | Answer::Told(..)
            | Answer::Synced(_)
            | Answer::WriteFailed(_) => true,
            Answer::Tail(..) | Answer::Renewed | Answer::Timeout | Answer::Work => false,
            Answer::LocalSynced(_) | Answer::LocalWriteFailed(_) => false,
        }
    }
}

/// The clock of a node: its rate, in millionths, and its start.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    rate: u64,
    start: u64,
}

pub(crate) struct Node {
    pub(crate) clock: Clock,
    number: usize,
    role: Role,
    /// The lane as it was before it had a stream.
    local: Option<LocalLane>,
    /// The number of its roles so far: answers to an earlier one are not for this one.
    pub(crate) roles: u64,
}

enum Role {
    Starting(Start),
    Watcher(Watching),
    Owner(Box<OwnerNode>),
}

struct Watching {
    watcher: LaneWatcher,
    /// The question whether the lane is closed, which comes before a claim.
    asked: (u64, Option<StreamTail>),
}

struct OwnerNode {
    owner: LaneOwner,
    retention: LaneRetention,
    is_claimed: bool,
    next_id: u64,
    live: BTreeMap<QueueId, FoundMessage>,
    batches: HashMap<BatchId, PendingBatch>,
    /// It has the lane from its own disk.
    is_own: bool,
    /// It has no stream before it is claimed; then its mail follows.
    awaits_local: bool,
    writes: DiskWrites,
    /// It has asked for a note that the lane is closed, and knows that there is one.
    is_closing: bool,
    is_noted: bool,
    /// When it asks next which record is the first one.
    check_due: BootTime,
}

/// A batch that waits for its two copies.
struct PendingBatch {
    submitted: Vec<Submitted>,
    /// The sequence at which the stream has it.
    stored_at: Option<u64>,
    /// The number of the sync that it waits for.
    sync: Option<u64>,
}

/// What waits for a batch.
#[derive(Clone, Debug)]
enum Submitted {
    Message(QueueId),
    /// A message that is not refused when its batch fails: the bounce of an outcome, or what only the disk had.
    Kept(QueueId),
    /// A further copy of a message that the stream has.
    Copy(QueueId),
    Outcome(QueueId, RecipientState),
}

impl PendingBatch {
    /// The stream has its records from `first` on, unless the servers have lost some of them already.
    fn note_stored(&self, first: u64, ledger: &mut Ledger) {
        for submitted in &self.submitted {
            match submitted {
                Submitted::Outcome(..) => {}
                Submitted::Message(id) | Submitted::Kept(id) | Submitted::Copy(id) if first <= ledger.lost_up_to => {
                    ledger.note_exposed(*id);
                }
                Submitted::Message(id) | Submitted::Kept(id) | Submitted::Copy(id) => ledger.note_copied(*id),
            }
        }
    }
}

impl Clock {
    pub(crate) fn random(random: &mut Random) -> Self {
        Clock { rate: 990_000 + random.below(20_001), start: random.below(1 << 40) }
    }

    pub(crate) fn local(self, now: u64) -> BootTime {
        BootTime(Duration::from_micros(self.start + now * self.rate / 1_000_000))
    }

    pub(crate) fn global(self, BootTime(local): BootTime) -> u64 {
        let passed = (local.as_micros() as u64).saturating_sub(self.start);
        passed * 1_000_000 / self.rate + 1
    }
}

/// What a node can use while it handles an event.
pub(crate) struct Context<'a> {
    pub(crate) now: BootTime,
    pub(crate) random: &'a mut Random,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) stream: &'a Stream,
    pub(crate) requests: Vec<Request>,
    pub(crate) may_release: bool,
    /// The lane begins without a stream. Nobody takes over an empty one.
    pub(crate) begins_local: bool,
    /// Those who take the lane over take no new mail, and close it at its end.
    pub(crate) closes_lanes: bool,
    /// The disk of the first owner.
    pub(crate) disk: &'a mut Option<Disk>,
    /// The syncs that begin.
    pub(crate) syncs: Vec<u64>,
    pub(crate) local_syncs: Vec<u64>,
    /// How often the lane was claimed.
    pub(crate) claims: u64,
}

impl Node {
    /// With a disk, the node had the lane before, or is the first to have it.
    pub(crate) fn new(number: usize, clock: Clock, now: u64, disk: Option<&Disk>) -> Self {
        let now = clock.local(now);
        let role = match disk {
            Some(disk) => Role::Starting(Start::new(name(number), disk.epoch, now)),
            None => Role::Watcher(Watching::new(now)),
        };
        Node { clock, number, role, local: None, roles: 0 }
    }

    /// A node whose lane has no stream, which it makes after `delay`.
    pub(crate) fn with_local_lane(number: usize, clock: Clock, now: u64, delay: Duration, local: LocalLane) -> Self {
        let role = Role::Starting(Start::new(name(number), 0, clock.local(now).after(delay)));
        Node { clock, number, role, local: Some(local), roles: 0 }
    }

    pub(crate) fn may_deliver(&self, now: u64) -> bool {
        self.is_local() || self.has_lease(now)
    }

    /// The lane has no stream, or is not claimed yet.
    fn is_local(&self) -> bool {
        self.local.is_some() && !matches!(&self.role, Role::Owner(node) if node.is_claimed)
    }

    fn has_lease(&self, now: u64) -> bool {
        matches!(&self.role, Role::Owner(node) if node.is_claimed && node.owner.may_deliver(self.clock.local(now)))
    }

    pub(crate) fn timeout(&self) -> Option<u64> {
        let due = match &self.role {
            Role::Starting(start) => Some(start.timeout()),
            Role::Watcher(watching) => watching.watcher.poll_timeout(),
            Role::Owner(node) => node.owner.poll_timeout(),
        };
        due.map(|due| self.clock.global(due))
    }

    pub(crate) fn handle(&mut self, answer: Answer, context: &mut Context<'_>) {
        if self.is_local() && matches!(answer, Answer::Work) {
            self.local.iter_mut().for_each(|local| local.work(context));
        }
        if let Some(local) = &mut self.local {
            match answer {
                Answer::LocalSynced(number) => {
                    local.sync(number, context.disk.get_or_insert_default(), context.ledger);
                }
                Answer::LocalWriteFailed(number) => local.fail(number, context),
                _ => {}
            }
        }
        match &mut self.role {
            Role::Starting(start) => {
                if let Answer::Told(number, fact) = answer {
                    let decision = start.handle(number, fact, context.now);
                    self.take_decision(decision, context);
                }
            }
            Role::Watcher(watching) => {
                if let Some(tail) = watching.handle(answer, context) {
                    self.claim(tail, None, context);
                }
            }
            Role::Owner(node) => node.handle(answer, context),
        }
        self.perform(context);
        self.end_local(context);
    }

    /// What was accepted before the claim is on the disk: it is copied.
    fn end_local(&mut self, context: &mut Context<'_>) {
        let Role::Owner(node) = &mut self.role else { return };
        if node.awaits_local
            && node.is_claimed
            && let Some(local) = self.local.take_if(|local| local.is_flushed())
        {
            node.awaits_local = false;
            node.live.extend(local.live);
            node.compare(BTreeMap::new(), context);
            self.perform(context);
        }
    }

    /// The node is killed: some of what it wrote last is on its disk.
    pub(crate) fn crash(&mut self, random: &mut Random, disk: &mut Option<Disk>) {
        let Some(disk) = disk else { return };
        self.local.iter_mut().for_each(|local| local.crash(random, disk));
        if let Role::Owner(node) = &mut self.role {
            node.writes.crash(random, disk);
        }
    }

    fn take_decision(&mut self, decision: Decision, context: &mut Context<'_>) {
        match decision {
            Decision::GoOn => {}
            Decision::Gone => {
                *context.disk = None;
                self.role = Role::Watcher(Watching::new(context.now));
            }
            Decision::Claim(tail) => {
                let disk = context.disk.get_or_insert_default();
                disk.epoch += 1;
                let mut disk = disk.clone();
                if self.local.is_some() {
                    // It follows when all of it is on the disk.
                    disk.live.clear();
                }
                self.claim(tail, Some(disk), context);
            }
        }
    }

    fn claim(&mut self, tail: StreamTail, disk: Option<Disk>, context: &mut Context<'_>) {
        let mut node = OwnerNode::claim(self.number, tail, disk, context);
        node.awaits_local = self.local.is_some();
        self.role = Role::Owner(Box::new(node));
        self.roles += 1;
    }

    /// The lane is not this node's: it looks again whose it is.
    fn end_role(&mut self, context: &mut Context<'_>) {
        let name = name(self.number);
        self.role = match &context.disk {
            Some(disk) if self.number == 0 => Role::Starting(Start::new(name, disk.epoch, context.now)),
            _ => Role::Watcher(Watching::new(context.now)),
        };
    }

    fn perform(&mut self, context: &mut Context<'_>) {
        loop {
            match &mut self.role {
                Role::Starting(start) => {
                    let Some((number, question)) = start.poll_question(context.now) else { return };
                    context.requests.push(Request::Ask(number, question));
                }
                Role::Watcher(watching) => match watching.watcher.poll_action() {
                    None => return,
                    Some(WatcherAction::ReadTail) => context.requests.push(Request::ReadTail),
                    Some(WatcherAction::MayAdopt(tail)) => {
                        watching.asked = (watching.asked.0 + 1, Some(tail));
                        context.requests.push(Request::Ask(watching.asked.0, Question::IsClosed));
                    }
                },
                Role::Owner(node) => {
                    let Some(action) = node.next_action(context) else { return };
                    if node.perform(action, context).is_break() {
                        self.end_role(context);
                    }
                }
            }
        }
    }
}

fn name(number: usize) -> String {
    format!("node-{number}")
}

impl Watching {
    fn new(now: BootTime) -> Self {
        Watching { watcher: LaneWatcher::new(LaneTimes::default(), now), asked: (0, None) }
    }

    /// Returns the end of the stream of a lane that may be claimed.
    fn handle(&mut self, answer: Answer, context: &mut Context<'_>) -> Option<StreamTail> {
        let now = context.now;
        match answer {
            Answer::Tail(tail, lease) => {
                lease.into_iter().for_each(|lease| self.watcher.set_owner_lease(lease));
                self.watcher.handle_tail(tail, now);
            }
            Answer::Renewed => self.watcher.handle_hint(now),
            Answer::Timeout => self.watcher.handle_timeout(now),
            Answer::Told(number, Fact::IsClosed(is_closed)) if number == self.asked.0 => {
                let tail = self.asked.1.take().filter(|tail| !context.begins_local || tail.last_sequence > 0);
                if is_closed {
                    context.requests.push(Request::Ask(number, Question::DeleteStream));
                    return None;
                }
                return tail;
            }
            Answer::Published(..) | Answer::Slot(..) | Answer::First(_) | Answer::Work | Answer::Told(..) => {}
            Answer::Synced(_) | Answer::WriteFailed(_) => {}
            Answer::LocalSynced(_) | Answer::LocalWriteFailed(_) => {}
        }
        None
    }
}

impl OwnerNode {
    fn claim(number: usize, tail: StreamTail, disk: Option<Disk>, context: &mut Context<'_>) -> Self {
        let claim = Claim {
            epoch: tail.record.map_or(0, |record| record.epoch).max(context.stream.epoch()) + 1,
            token: context.random.bits(),
            node: name(number).parse().unwrap(),
            spool_epoch: disk.as_ref().map_or(1, |disk| disk.epoch),
            last_sequence: tail.last_sequence,
            announced_lease: match &disk {
                Some(disk) if context.begins_local && !disk.is_copied => COPYING_LEASE,
                _ => LaneTimes::default().lease,
            },
        };
        // Ids are unique over all claims, as epochs of spools make them.
        let next_id = context.random.bits() >> 16 << 16;
        OwnerNode {
            owner: LaneOwner::claim(LaneTimes::default(), IN_FLIGHT_BYTES_MAX, claim, context.now),
            retention: Found::nothing(context.stream.bytes_max).retention,
            is_claimed: false,
            next_id,
            is_own: disk.is_some(),
            awaits_local: false,
            live: disk.unwrap_or_default().live,
            writes: DiskWrites::default(),
            batches: HashMap::new(),
            is_closing: false,
            is_noted: false,
            check_due: context.now.after(CHECK_INTERVAL),
        }
    }

    fn handle(&mut self, answer: Answer, context: &mut Context<'_>) {
        let now = context.now;
        match answer {
            Answer::Published(id, Ok(sequence)) => self.owner.handle_published(id, sequence, now),
            Answer::Published(id, Err(failure)) => self.owner.handle_publish_failed(id, failure, now),
            Answer::Slot(sequence, slot) => self.owner.handle_slot(sequence, slot, now),
            Answer::First(sequence) => self.retention.handle_first_record(sequence),
            Answer::Timeout => self.owner.handle_timeout(now),
            Answer::Work if self.is_claimed => self.work(context),
            Answer::Told(_, Fact::Done) if self.is_closing => {
                self.is_noted = true;
                self.owner.release();
            }
            Answer::Synced(number) => self.sync(number, context),
            Answer::WriteFailed(number) => self.rewrite(number, context),
            Answer::Work | Answer::Tail(..) | Answer::Renewed | Answer::Told(..) => {}
            Answer::LocalSynced(_) | Answer::LocalWriteFailed(_) => {}
        }
    }

    fn next_action(&mut self, context: &mut Context<'_>) -> Option<OwnerAction> {
        while self.is_claimed
            && let Some(action) = self.retention.poll_action()
        {
            match action {
                RetentionAction::PurgeUpTo(sequence) => context.requests.push(Request::Purge(sequence)),
                RetentionAction::RepeatEpoch => self.owner.repeat_epoch(),
                RetentionAction::Copy(id) => self.copy(id, context),
            }
        }
        self.owner.poll_action(context.now)
    }

    fn perform(&mut self, action: OwnerAction, context: &mut Context<'_>) -> std::ops::ControlFlow<()> {
        match action {
            OwnerAction::Publish { id, subject, expected_last, record } => {
                context.requests.push(Request::Publish { id, subject, expected_last, record });
            }
            OwnerAction::Read { sequence } => context.requests.push(Request::Read { sequence }),
            OwnerAction::Claimed { base, .. } => self.adopt(base, context),
            OwnerAction::EpochRepeated { sequence, is_announcement } => {
                self.retention.handle_epoch(sequence);
                if is_announcement && let Some(disk) = context.disk {
                    disk.is_copied = true;
                }
            }
            OwnerAction::Confirmed { batch, range } => {
                self.retention.handle_confirmed(batch, range);
                if let Some(pending) = self.batches.get_mut(&batch) {
                    pending.stored_at = Some(range.last);
                    pending.note_stored(range.first, context.ledger);
                }
                self.forget_ends(batch, context);
                self.confirm(batch, context.ledger);
            }
            OwnerAction::Failed { batch, .. } => self.withdraw(batch, context),
            OwnerAction::Fenced { .. } | OwnerAction::Lost { .. } => return std::ops::ControlFlow::Break(()),
            OwnerAction::Released => {
                if self.is_noted {
                    context.requests.push(Request::Ask(0, Question::DeleteStream));
                }
                return std::ops::ControlFlow::Break(());
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Reads what earlier owners have said, unless the stream is gone since.
    fn adopt(&mut self, base: u64, context: &mut Context<'_>) {
        if context.stream.last_sequence() < base {
            return;
        }
        let found = read(context.stream, base);
        if context.stream.is_last_claim(base) {
            context.ledger.give_up_exposed(&found);
        }
        let whole = read(context.stream, context.stream.last_sequence());
        context.ledger.check(&found, base, &whole);
        self.retention = found.retention;
        self.is_claimed = true;
        context.claims += 1;
        match self.is_own {
            true if self.awaits_local => {}
            true => self.compare(found.live, context),
            false => self.live = found.live,
        }
    }

    /// See the table in `disk`.
    fn compare(&mut self, mut found: BTreeMap<QueueId, FoundMessage>, context: &mut Context<'_>) {
        let is_queued = |id: &QueueId| self.retention.is_live(*id);
        let missing = self.live.iter().filter(|(id, _)| found.remove(id).is_none() && !is_queued(id));
        let copies: Vec<_> =
            missing.map(|(id, it)| message(*id, it.content.clone(), states_after(it.attempts))).collect();
        copies.into_iter().for_each(|copy| self.submit_copy(copy, Submitted::Kept, context));
        let disk = context.disk.get_or_insert_default();
        let (ended, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            found.into_iter().partition(|(id, _)| disk.ended.contains(id));
        for id in ended.into_keys() {
            self.submit_copy(outcome(id, RecipientState::Withdrawn, None), Submitted::Kept, context);
        }
        let restored = lost.iter().map(|(id, message)| DiskWrite::Message(*id, message.clone())).collect();
        self.live.extend(lost);
        self.write(restored, context);
        if context.begins_local {
            // Behind the copies: from then on others may take the lane over as usual.
            self.owner.announce_lease(LaneTimes::default().lease);
        }
    }

    /// Writes to the disk, if there is one.
    fn write(&mut self, writes: Vec<DiskWrite>, context: &mut Context<'_>) -> Option<u64> {
        let number = self.is_own.then(|| self.writes.write(writes))?;
        context.syncs.push(number);
        Some(number)
    }

    fn sync(&mut self, number: u64, context: &mut Context<'_>) {
        self.writes.sync(number, context.disk.get_or_insert_default());
        let synced = self.batches.iter_mut().filter(|(_, pending)| pending.sync.is_some_and(|sync| sync <= number));
        let synced: Vec<BatchId> = synced.map(|(batch, pending)| (pending.sync = None, *batch).1).collect();
        synced.into_iter().for_each(|batch| self.confirm(batch, context.ledger));
    }

    /// A write failed after the step had its batch: the new messages are refused, and withdrawn from the
    /// stream. Outcomes are written again.
    fn rewrite(&mut self, number: u64, context: &mut Context<'_>) {
        let failed = self.batches.iter_mut().filter(|(_, pending)| pending.sync.is_some_and(|sync| sync <= number));
        let failed: BTreeSet<BatchId> = failed.map(|(batch, _)| *batch).collect();
        let writes = self.writes.take(number);
        let is_failed = |batch: &BatchId| failed.contains(batch);
        let all = self.batches.iter().filter(|(batch, _)| is_failed(batch)).flat_map(|(_, pending)| &pending.submitted);
        let refused = all.filter_map(|submitted| match submitted {
            Submitted::Message(id) => Some(*id),
            Submitted::Kept(_) | Submitted::Copy(_) | Submitted::Outcome(..) => None,
        });
        let refused: BTreeSet<QueueId> = refused.collect();
        let is_kept = |write: &DiskWrite| !matches!(write, DiskWrite::Message(id, _) if refused.contains(id));
        let again = self.write(writes.into_iter().filter(is_kept).collect(), context);
        for batch in failed {
            if let Some(pending) = self.batches.get_mut(&batch) {
                pending.sync = again;
            }
            self.withdraw(batch, context);
        }
    }

    /// The stream has the outcomes of a batch, so the disk need not keep them.
    fn forget_ends(&mut self, batch: BatchId, context: &mut Context<'_>) {
        let Some(pending) = self.batches.get(&batch) else { return };
        let ends = pending.submitted.iter().filter_map(|submitted| match submitted {
            Submitted::Outcome(id, state) if state.is_final() => Some(DiskWrite::Forget(*id)),
            _ => None,
        });
        let ends: Vec<DiskWrite> = ends.collect();
        if !ends.is_empty() {
            self.write(ends, context);
        }
    }

    /// What is stored in both places counts.
    fn confirm(&mut self, batch: BatchId, ledger: &mut Ledger) {
        let Some(PendingBatch { stored_at: Some(sequence), sync: None, .. }) = self.batches.get(&batch) else { return };
        let sequence = *sequence;
        for submitted in self.batches.remove(&batch).into_iter().flat_map(|pending| pending.submitted) {
            match submitted {
                Submitted::Message(id) | Submitted::Kept(id) => ledger.acknowledge(id, sequence),
                Submitted::Copy(id) => {
                    let acknowledged_at = &mut ledger.entry(id).acknowledged_at;
                    *acknowledged_at = acknowledged_at.map(|_| sequence);
                }
                Submitted::Outcome(id, RecipientState::Waiting { attempts, .. }) => {
                    ledger.entry(id).attempts.insert(sequence, attempts);
                }
                Submitted::Outcome(id, _) => ledger.entry(id).ended_at = Some(sequence),
            }
        }
    }

    /// The messages of a batch were refused; its outcomes count, with their bounces.
    fn withdraw(&mut self, batch: BatchId, context: &mut Context<'_>) {
        let Some(pending) = self.batches.get_mut(&batch) else { return };
        let messages: Vec<QueueId> = pending
            .submitted
            .iter()
            .filter_map(|submitted| match submitted {
                Submitted::Message(id) => Some(*id),
                Submitted::Kept(_) | Submitted::Copy(_) | Submitted::Outcome(..) => None,
            })
            .collect();
        pending.submitted.retain(|submitted| !matches!(submitted, Submitted::Message(_)));
        let outcomes = messages.into_iter().filter(|id| self.live.remove(id).is_some());
        let outcomes: Vec<_> = outcomes.map(|id| outcome(id, RecipientState::Withdrawn, None)).collect();
        if !outcomes.is_empty() {
            self.submit_new(outcomes, context);
        }
    }

    /// Something that a mail server does.
    fn work(&mut self, context: &mut Context<'_>) {
        if context.now >= self.check_due {
            self.check_due = context.now.after(CHECK_INTERVAL);
            context.requests.push(Request::ReadFirst);
        }
        if self.owner.waiting_bytes() > WAITING_BYTES_MAX {
            return;
        }
        self.close_if_finished(context);
        if context.may_release && context.random.chance(1) {
            self.owner.release();
            return;
        }
        let mut entries = Vec::new();
        for _ in 0..self.new_messages(context) {
            entries.push(self.new_message(context).1);
        }
        if self.owner.may_deliver(context.now) {
            for _ in 0..context.random.below(4) {
                self.deliver(context, &mut entries);
            }
        }
        if !entries.is_empty() {
            self.submit_new(entries, context);
        }
    }

    /// How much new mail comes.
    fn new_messages(&self, context: &mut Context<'_>) -> u64 {
        let waiting = self.owner.waiting_bytes();
        let takes_mail = (self.is_own && context.may_release) || !context.closes_lanes;
        match takes_mail && self.retention.has_room_for(waiting + NEW_MAIL_BYTES_MAX) {
            true if context.stream.bytes_max.is_some() => context.random.below(12),
            true => context.random.below(3),
            false => 0,
        }
    }

    /// A note is for ever, so only a node that surely has the lane asks for one.
    fn close_if_finished(&mut self, context: &mut Context<'_>) {
        let is_finished = self.live.is_empty() && self.retention.is_finished() && self.batches.is_empty();
        let is_finished = is_finished && self.owner.may_deliver(context.now);
        if context.closes_lanes && !self.is_own && is_finished {
            self.is_closing = true;
            context.requests.push(Request::Ask(0, Question::Close));
        }
    }

    fn deliver(&mut self, context: &mut Context<'_>, entries: &mut Vec<CopiedEntry>) {
        let Some(id) = self.random_accepted(context) else { return };
        assert!(!context.ledger.has_ended(id), "{id} is delivered again");
        let (state, bounce) = match context.random.below(10) {
            0..4 => (RecipientState::Waiting { attempts: self.live[&id].attempts + 1, until: Timestamp(0) }, None),
            4..9 => (RecipientState::Delivered, None),
            _ => (RecipientState::Failed, Some(self.new_message(context))),
        };
        let bounce_id = bounce.as_ref().map(|(id, _)| *id);
        entries.push(outcome(id, state, bounce_id));
        entries.extend(bounce.map(|(_, bounce)| bounce));
        self.note_state(id, state);
    }

    /// An acknowledged message that has not ended.
    fn random_accepted(&self, context: &mut Context<'_>) -> Option<QueueId> {
        let start = QueueId::new(SpoolId::new(7), 0, context.random.bits());
        let mut ids = self.live.range(start..).chain(self.live.range(..start)).map(|(id, _)| *id);
        ids.find(|id| {
            let entry = &context.ledger.messages[id];
            entry.acknowledged_at.is_some() || entry.is_accepted_locally
        })
    }

    fn note_state(&mut self, id: QueueId, state: RecipientState) {
        match state {
            RecipientState::Waiting { attempts, .. } => {
                if let Some(message) = self.live.get_mut(&id) {
                    message.attempts = attempts;
                }
            }
            _ => drop(self.live.remove(&id)),
        }
    }

    fn new_message(&mut self, context: &mut Context<'_>) -> (QueueId, CopiedEntry) {
        self.next_id += 1;
        let (id, content) = new_content(self.next_id, context);
        self.live.insert(id, FoundMessage { content: content.clone(), attempts: 0 });
        (id, message(id, content, Vec::new()))
    }

    fn copy(&mut self, id: QueueId, context: &mut Context<'_>) {
        let content = self.live.get(&id).map(|message| message.content.clone());
        match (content, self.retention.states(id)) {
            (Some(content), Some(states)) => self.submit_copy(message(id, content, states), Submitted::Copy, context),
            _ => self.retention.handle_copy_failed(id),
        }
    }

    /// Gives a batch to the disk and to the stream.
    fn submit_new(&mut self, entries: Vec<CopiedEntry>, context: &mut Context<'_>) {
        let sync = self.write(entries.iter().map(write_of).collect(), context);
        let bounces = entries.iter().filter_map(|entry| match entry {
            CopiedEntry::Outcome { bounce, .. } => *bounce,
            CopiedEntry::Message { .. } => None,
        });
        let bounces: BTreeSet<QueueId> = bounces.collect();
        let message = |id| if bounces.contains(&id) { Submitted::Kept(id) } else { Submitted::Message(id) };
        let submitted = note_entries(&entries, message, context.ledger);
        self.submit(entries, PendingBatch { submitted, stored_at: None, sync }, context);
    }

    /// Gives to the stream what the disk has.
    fn submit_copy(&mut self, entry: CopiedEntry, message: fn(QueueId) -> Submitted, context: &mut Context<'_>) {
        let entries = vec![entry];
        let submitted = note_entries(&entries, message, context.ledger);
        self.submit(entries, PendingBatch { submitted, stored_at: None, sync: None }, context);
    }

    fn submit(&mut self, entries: Vec<CopiedEntry>, pending: PendingBatch, context: &mut Context<'_>) {
        let batch = self.owner.start_batch(context.now);
        let retained = entries.iter().map(retained).collect();
        self.retention.handle_queued(batch, retained);
        self.batches.insert(batch, pending);
        let mut encoder = BatchEncoder::new(entries, PART_BYTES);
        while let Some((part, is_last)) = encoder.next_part().unwrap() {
            self.owner.handle_part(batch, part, is_last);
        }
    }
}

fn note_entries(
    entries: &[CopiedEntry],
    message: impl Fn(QueueId) -> Submitted,
    ledger: &mut Ledger,
) -> Vec<Submitted> {
    let note = |entry: &CopiedEntry| match entry {
        CopiedEntry::Message { id, .. } => message(*id),
        CopiedEntry::Outcome { id, recipients, bounce } => {
            ledger.note_outcome(*id, recipients[0].1, *bounce);
            Submitted::Outcome(*id, recipients[0].1)
        }
    };
    entries.iter().map(note).collect()
}
