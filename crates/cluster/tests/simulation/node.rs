//! A node that watches the lane, claims it when it may, and works with it: takes messages, delivers
//! them, records outcomes, copies and purges.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::codec::{BatchEncoder, CopiedEntry};
use cluster::lane::owner::{BatchId, Claim, LaneOwner, OwnerAction, PublishId};
use cluster::lane::retention::{LaneRetention, RetainedEntry, RetentionAction};
use cluster::lane::watcher::{LaneWatcher, WatcherAction};
use cluster::lane::{BootTime, LaneTimes, PublishFailure, ReadFailure, RecordSubject, Slot, StreamTail, TailFailure};
use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, QueueId, Recipient, SpoolId, Timestamp};
use sim::Random;
use spool::{DraftBody, RecipientState};

use crate::ledger::{FoundMessage, Ledger, LedgerEntry, read};
use crate::stream::Stream;

const PART_BYTES: usize = 150;
const IN_FLIGHT_BYTES_MAX: u64 = 8_000;
/// No more work is begun while so many bytes wait.
const WAITING_BYTES_MAX: u64 = 20_000;

/// What a node sends to the servers.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Publish { id: PublishId, subject: RecordSubject, expected_last: u64, record: Bytes },
    Read { sequence: u64 },
    ReadTail,
    Purge(u64),
}

/// What a node gets.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Published(PublishId, Result<u64, PublishFailure>),
    Slot(u64, Result<Slot, ReadFailure>),
    Tail(Result<StreamTail, TailFailure>),
    Renewed,
    Timeout,
    Work,
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
    /// The number of its roles so far: answers to an earlier one are not for this one.
    pub(crate) roles: u64,
}

enum Role {
    Watcher(LaneWatcher),
    Owner(Box<OwnerNode>),
}

struct OwnerNode {
    owner: LaneOwner,
    retention: LaneRetention,
    is_claimed: bool,
    next_id: u64,
    live: BTreeMap<QueueId, FoundMessage>,
    batches: HashMap<BatchId, Vec<Submitted>>,
}

/// What waits for a batch.
#[derive(Clone, Debug)]
enum Submitted {
    Message(QueueId),
    Outcome(QueueId, RecipientState),
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
    /// How often the lane was claimed.
    pub(crate) claims: u64,
}

impl Node {
    pub(crate) fn new(number: usize, clock: Clock, now: u64) -> Self {
        let role = Role::Watcher(LaneWatcher::new(LaneTimes::default(), clock.local(now)));
        Node { clock, number, role, roles: 0 }
    }

    pub(crate) fn may_deliver(&self, now: u64) -> bool {
        matches!(&self.role, Role::Owner(node) if node.is_claimed && node.owner.may_deliver(self.clock.local(now)))
    }

    pub(crate) fn timeout(&self) -> Option<u64> {
        let due = match &self.role {
            Role::Watcher(watcher) => watcher.poll_timeout(),
            Role::Owner(node) => node.owner.poll_timeout(),
        };
        due.map(|due| self.clock.global(due))
    }

    pub(crate) fn handle(&mut self, answer: Answer, context: &mut Context<'_>) {
        match &mut self.role {
            Role::Watcher(watcher) => handle_as_watcher(watcher, answer, context.now),
            Role::Owner(node) => node.handle(answer, context),
        }
        self.perform(context);
    }

    fn perform(&mut self, context: &mut Context<'_>) {
        loop {
            match &mut self.role {
                Role::Watcher(watcher) => match watcher.poll_action() {
                    None => return,
                    Some(WatcherAction::ReadTail) => context.requests.push(Request::ReadTail),
                    Some(WatcherAction::MayAdopt(tail)) => {
                        self.role = Role::Owner(Box::new(OwnerNode::claim(self.number, tail, context)));
                        self.roles += 1;
                    }
                },
                Role::Owner(node) => {
                    let Some(action) = node.next_action(context) else { return };
                    if node.perform(action, context).is_break() {
                        self.role = Role::Watcher(LaneWatcher::new(LaneTimes::default(), context.now));
                    }
                }
            }
        }
    }
}

fn handle_as_watcher(watcher: &mut LaneWatcher, answer: Answer, now: BootTime) {
    match answer {
        Answer::Tail(tail) => watcher.handle_tail(tail, now),
        Answer::Renewed => watcher.handle_hint(now),
        Answer::Timeout => watcher.handle_timeout(now),
        Answer::Published(..) | Answer::Slot(..) | Answer::Work => {}
    }
}

impl OwnerNode {
    fn claim(number: usize, tail: StreamTail, context: &mut Context<'_>) -> Self {
        let claim = Claim {
            epoch: tail.record.map_or(0, |record| record.epoch) + 1,
            token: context.random.bits(),
            node: format!("node-{number}").parse().unwrap(),
            spool_epoch: 1,
            last_sequence: tail.last_sequence,
        };
        // Ids are unique over all claims, as epochs of spools make them.
        let next_id = context.random.bits() >> 16 << 16;
        OwnerNode {
            owner: LaneOwner::claim(LaneTimes::default(), IN_FLIGHT_BYTES_MAX, claim, context.now),
            retention: LaneRetention::new(crate::SLACK_BYTES),
            is_claimed: false,
            next_id,
            live: BTreeMap::new(),
            batches: HashMap::new(),
        }
    }

    fn handle(&mut self, answer: Answer, context: &mut Context<'_>) {
        let now = context.now;
        match answer {
            Answer::Published(id, Ok(sequence)) => self.owner.handle_published(id, sequence, now),
            Answer::Published(id, Err(failure)) => self.owner.handle_publish_failed(id, failure, now),
            Answer::Slot(sequence, slot) => self.owner.handle_slot(sequence, slot, now),
            Answer::Timeout => self.owner.handle_timeout(now),
            Answer::Work if self.is_claimed => self.work(context),
            Answer::Work | Answer::Tail(_) | Answer::Renewed => {}
        }
    }

    fn next_action(&mut self, context: &mut Context<'_>) -> Option<OwnerAction> {
        while self.is_claimed
            && let Some(action) = self.retention.poll_action()
        {
            match action {
                RetentionAction::PurgeUpTo(sequence) => context.requests.push(Request::Purge(sequence)),
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
            OwnerAction::EpochRepeated { sequence } => self.retention.handle_epoch(sequence),
            OwnerAction::Confirmed { batch, range } => {
                self.retention.handle_confirmed(batch, range);
                self.confirm(batch, range.last, context.ledger);
            }
            OwnerAction::Failed { batch, .. } => self.withdraw(batch, context),
            OwnerAction::Fenced { .. } | OwnerAction::Lost { .. } | OwnerAction::Released => {
                return std::ops::ControlFlow::Break(());
            }
        }
        std::ops::ControlFlow::Continue(())
    }

    /// Reads what earlier owners have said.
    fn adopt(&mut self, base: u64, context: &mut Context<'_>) {
        let found = read(context.stream, base);
        context.ledger.check(&found, base);
        self.live = found.live;
        self.retention = found.retention;
        self.is_claimed = true;
        context.claims += 1;
    }

    fn confirm(&mut self, batch: BatchId, sequence: u64, ledger: &mut Ledger) {
        for submitted in self.batches.remove(&batch).unwrap_or_default() {
            match submitted {
                Submitted::Message(id) => ledger.entry(id).acknowledged_at = Some(sequence),
                Submitted::Outcome(id, RecipientState::Waiting { attempts, .. }) => {
                    ledger.entry(id).attempts.insert(sequence, attempts);
                }
                Submitted::Outcome(id, _) => ledger.entry(id).ended_at = Some(sequence),
            }
        }
    }

    /// The messages of a batch were refused; its outcomes count.
    fn withdraw(&mut self, batch: BatchId, context: &mut Context<'_>) {
        let Some(submitted) = self.batches.get_mut(&batch) else { return };
        let messages: Vec<QueueId> = submitted
            .iter()
            .filter_map(|submitted| match submitted {
                Submitted::Message(id) => Some(*id),
                Submitted::Outcome(..) => None,
            })
            .collect();
        submitted.retain(|submitted| matches!(submitted, Submitted::Outcome(..)));
        let outcomes = messages.into_iter().filter(|id| self.live.remove(id).is_some());
        let outcomes: Vec<_> = outcomes.map(|id| outcome(id, RecipientState::Withdrawn, None)).collect();
        if !outcomes.is_empty() {
            self.submit(outcomes, context);
        }
    }

    /// Something that a mail server does.
    fn work(&mut self, context: &mut Context<'_>) {
        if self.owner.waiting_bytes() > WAITING_BYTES_MAX {
            return;
        }
        if context.may_release && context.random.chance(1) {
            self.owner.release();
            return;
        }
        let mut entries = Vec::new();
        for _ in 0..context.random.below(3) {
            entries.push(self.new_message(context).1);
        }
        if self.owner.may_deliver(context.now) {
            for _ in 0..context.random.below(4) {
                self.deliver(context, &mut entries);
            }
        }
        if !entries.is_empty() {
            self.submit(entries, context);
        }
    }

    fn deliver(&mut self, context: &mut Context<'_>, entries: &mut Vec<CopiedEntry>) {
        let Some(id) = self.random_accepted(context) else { return };
        assert!(context.ledger.entry(id).ended_at.is_none(), "{id} is delivered again");
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
        ids.find(|id| context.ledger.messages[id].acknowledged_at.is_some())
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
        let id = QueueId::new(SpoolId::new(7), 0, self.next_id);
        let mut content = vec![0; context.random.below(400) as usize];
        context.random.fill(&mut content);
        let entry = LedgerEntry {
            content: content.clone(),
            acknowledged_at: None,
            endings: Vec::new(),
            ended_at: None,
            attempts: BTreeMap::new(),
        };
        context.ledger.messages.insert(id, entry);
        self.live.insert(id, FoundMessage { content: content.clone(), attempts: 0 });
        (id, message(id, content, Vec::new()))
    }

    fn copy(&mut self, id: QueueId, context: &mut Context<'_>) {
        let content = self.live.get(&id).map(|message| message.content.clone());
        match (content, self.retention.states(id)) {
            (Some(content), Some(states)) => self.submit(vec![message(id, content, states)], context),
            _ => self.retention.handle_copy_failed(id),
        }
    }

    fn submit(&mut self, entries: Vec<CopiedEntry>, context: &mut Context<'_>) {
        let batch = self.owner.start_batch(context.now);
        let retained = entries.iter().map(retained).collect();
        self.retention.handle_queued(batch, retained);
        let submitted = entries.iter().map(|entry| note_entry(entry, context.ledger)).collect();
        self.batches.insert(batch, submitted);
        let mut encoder = BatchEncoder::new(entries, PART_BYTES);
        while let Some((part, is_last)) = encoder.next_part().unwrap() {
            self.owner.handle_part(batch, &part, is_last);
        }
    }
}

fn note_entry(entry: &CopiedEntry, ledger: &mut Ledger) -> Submitted {
    match entry {
        CopiedEntry::Message { id, .. } => Submitted::Message(*id),
        CopiedEntry::Outcome { id, recipients, bounce } => {
            if recipients[0].1.is_final() {
                ledger.entry(*id).endings.push(*bounce);
            }
            Submitted::Outcome(*id, recipients[0].1)
        }
    }
}

fn retained(entry: &CopiedEntry) -> RetainedEntry {
    match entry {
        CopiedEntry::Message { id, states, .. } => {
            RetainedEntry::Message { id: *id, recipients: 1, states: states.clone() }
        }
        CopiedEntry::Outcome { id, recipients, .. } => {
            RetainedEntry::Outcome { id: *id, recipients: recipients.clone() }
        }
    }
}

fn outcome(id: QueueId, state: RecipientState, bounce: Option<QueueId>) -> CopiedEntry {
    CopiedEntry::Outcome { id, recipients: vec![(0, state)], bounce }
}

fn message(id: QueueId, content: Vec<u8>, states: Vec<(u32, RecipientState)>) -> CopiedEntry {
    let recipient = Recipient {
        address: "b@example.org".parse().unwrap(),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    CopiedEntry::Message {
        id,
        envelope: Envelope {
            sender: None,
            recipients: vec![recipient],
            accepted_at: Timestamp(0),
            client: ClientInfo { address: None, helo: "client".into(), trusted: false },
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        },
        states,
        digest: crc32c::crc32c(&content),
        content: DraftBody::Memory { prefix: Arc::new(Vec::new()), body: Arc::new(content) },
        flags: BodyFlags::default(),
    }
}
