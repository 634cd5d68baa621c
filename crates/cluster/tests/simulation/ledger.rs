//! What really happened, and what every reader of the stream must find.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;
use cluster::lane::replay::{BatchReader, ReplayEvent};
use cluster::lane::retention::{LaneRetention, RetainedEntry};
use mail::QueueId;
use spool::RecipientState;

use crate::stream::Stream;

/// Everything about one message.
#[derive(Clone, Debug, Default)]
pub(crate) struct LedgerEntry {
    pub(crate) content: Vec<u8>,
    /// Its client was told that it is accepted, since it is stored at this sequence.
    pub(crate) acknowledged_at: Option<u64>,
    /// Its client was told so, since it is on the disk of a local lane.
    pub(crate) is_accepted_locally: bool,
    /// Its end was recorded there.
    pub(crate) has_ended_locally: bool,
    /// The disk that alone had it was thrown away, or the servers and the owner have lost it.
    pub(crate) is_given_up: bool,
    /// Somebody has given it a final state, with these bounces (None: without one).
    pub(crate) endings: Vec<Option<QueueId>>,
    /// The sequence of its confirmed final state.
    pub(crate) ended_at: Option<u64>,
    /// Numbers of attempts that are confirmed, by their sequences.
    pub(crate) attempts: BTreeMap<u64, u16>,
}

#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) messages: BTreeMap<QueueId, LedgerEntry>,
    /// What a disk had that came back older or damaged: it may be delivered twice.
    pub(crate) may_come_back: BTreeSet<QueueId>,
    /// The servers have lost all records up to this one.
    pub(crate) lost_up_to: u64,
    /// What they have lost so, until its owner has published it again, or the next one has begun without it.
    exposed: BTreeSet<QueueId>,
    /// How many messages were published again.
    pub(crate) mended: u64,
    /// How many acknowledged ones were lost with their owner before.
    pub(crate) lost_twice: u64,
}

/// A message that a reader of the stream finds live.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundMessage {
    pub(crate) content: Vec<u8>,
    pub(crate) attempts: u16,
}

/// What a stream has up to a sequence.
pub(crate) struct Found {
    pub(crate) live: BTreeMap<QueueId, FoundMessage>,
    pub(crate) retention: LaneRetention,
    /// Where the newest batch with a message begins.
    places: BTreeMap<QueueId, u64>,
}

impl Ledger {
    pub(crate) fn entry(&mut self, id: QueueId) -> &mut LedgerEntry {
        self.messages.get_mut(&id).unwrap()
    }

    /// It has a final state for good: it must not be delivered any more.
    pub(crate) fn has_ended(&self, id: QueueId) -> bool {
        let entry = &self.messages[&id];
        (entry.ended_at.is_some() || entry.has_ended_locally) && !self.may_come_back.contains(&id)
    }

    /// Its client gets a 250.
    pub(crate) fn acknowledge(&mut self, id: QueueId, sequence: u64) {
        let entry = self.entry(id);
        assert!(!entry.is_given_up, "{id} is acknowledged, and was lost before");
        entry.acknowledged_at = Some(sequence);
    }

    /// A state of a message is decided. Only what has no 250, or has ended already, may be withdrawn.
    pub(crate) fn note_outcome(&mut self, id: QueueId, state: RecipientState, bounce: Option<QueueId>) {
        let entry = self.entry(id);
        if state == RecipientState::Withdrawn {
            let is_acknowledged = entry.acknowledged_at.is_some() || entry.is_accepted_locally;
            let may_be_withdrawn = !is_acknowledged || !entry.endings.is_empty();
            assert!(may_be_withdrawn, "{id} was acknowledged, and is withdrawn");
        }
        if state.is_final() {
            entry.endings.push(bounce);
        }
    }

    /// Of what was confirmed up to `last`: nothing that was acknowledged is lost, and nothing that has
    /// ended is back. A node that was stopped may learn that it has claimed the lane when another one
    /// owns it already, hence `last`; `whole` is what all of the stream has by then: a bounce that nobody has confirmed
    /// may have been copied behind `last`.
    pub(crate) fn check(&self, found: &Found, last: u64, whole: &Found) {
        let is_known = |sequence: Option<u64>| sequence.is_some_and(|sequence| sequence <= last);
        for (id, entry) in &self.messages {
            match found.live.get(id) {
                Some(live) => {
                    assert!(live.content == entry.content, "{id} has other content");
                    let may_come_back = self.may_come_back.contains(id);
                    assert!(may_come_back || !is_known(entry.ended_at), "{id} has ended, and is back");
                    let attempts = entry.attempts.range(..=last).next_back().map_or(0, |(_, attempts)| *attempts);
                    assert!(may_come_back || live.attempts >= attempts, "{id} has lost attempts");
                }
                // Its owner will publish it again.
                None if self.exposed.contains(id) => {}
                None if is_known(entry.acknowledged_at) => self.check_ending(*id, entry, last, [found, whole]),
                None => {}
            }
        }
        assert!(found.live.keys().all(|id| self.messages.contains_key(id)));
    }

    /// The servers have lost records: what they had before, and have now. What they still have is found.
    pub(crate) fn note_lost(&mut self, lost_up_to: u64, before: &Found, after: &Found) {
        self.lost_up_to = lost_up_to;
        for id in before.live.keys().filter(|id| !after.live.contains_key(id)) {
            assert!(before.places[id] <= lost_up_to, "{id} is in the stream, and is not found");
            self.exposed.insert(*id);
        }
    }

    /// A message is confirmed that begins in a record which is lost already.
    pub(crate) fn note_exposed(&mut self, id: QueueId) {
        self.exposed.insert(id);
    }

    /// A lost message is stored again.
    pub(crate) fn note_copied(&mut self, id: QueueId) {
        self.mended += u64::from(self.exposed.remove(&id));
    }

    /// At the end: what the servers have lost was published again, or has ended.
    pub(crate) fn check_exposed(&self, found: &Found, last: u64) {
        for (id, entry) in self.exposed.iter().map(|id| (*id, &self.messages[id])) {
            if entry.acknowledged_at.is_some() && !found.live.contains_key(&id) {
                self.check_ending(id, entry, last, [found, found]);
            }
        }
    }

    /// The lane has another owner, which knows only what it has found.
    pub(crate) fn give_up_exposed(&mut self, found: &Found) {
        for id in std::mem::take(&mut self.exposed) {
            if !found.live.contains_key(&id) {
                let entry = self.entry(id);
                entry.is_given_up = true;
                let is_needed = entry.acknowledged_at.take().is_some() && entry.endings.is_empty();
                self.lost_twice += u64::from(is_needed);
            }
        }
    }

    /// A disk is thrown away: what only it had, beside what is in the stream. Returns the number.
    pub(crate) fn give_up(&mut self, found: Option<&Found>) -> u64 {
        let mut count = 0;
        for (id, entry) in &mut self.messages {
            let is_live = found.is_some_and(|found| found.live.contains_key(id));
            if entry.is_accepted_locally && entry.endings.is_empty() && !is_live && !entry.is_given_up {
                entry.is_given_up = true;
                count += 1;
            }
        }
        count
    }

    /// At the end: what was accepted without a second copy has one, or has ended.
    pub(crate) fn check_local(&self, found: &Found) {
        for (id, entry) in self.messages.iter().filter(|(_, entry)| entry.is_accepted_locally && !entry.is_given_up) {
            assert!(found.live.contains_key(id) || !entry.endings.is_empty(), "{id} was accepted locally, and is lost");
        }
    }

    fn check_ending(&self, id: QueueId, entry: &LedgerEntry, last: u64, places: [&Found; 2]) {
        assert!(!entry.endings.is_empty(), "{id} is lost");
        let is_there = |bounce: &QueueId| {
            let LedgerEntry { acknowledged_at, endings, is_given_up, .. } = &self.messages[bounce];
            // The stream has a copy of it behind what was read.
            let is_later = acknowledged_at.is_some_and(|sequence| sequence > last);
            let is_live = places.iter().any(|found| found.live.contains_key(bounce));
            is_live || !endings.is_empty() || is_later || *is_given_up
        };
        let has_bounce = |ending: &Option<QueueId>| ending.as_ref().is_none_or(is_there);
        assert!(entry.endings.iter().any(has_bounce), "the bounce of {id} is lost");
    }
}

impl Found {
    pub(crate) fn nothing(stream_bytes_max: Option<u64>) -> Self {
        let retention = LaneRetention::new(crate::SLACK_BYTES, stream_bytes_max);
        Found { live: BTreeMap::new(), retention, places: BTreeMap::new() }
    }
}

/// Reads a stream up to `last`.
pub(crate) fn read(stream: &Stream, last: u64) -> Found {
    let mut reader = BatchReader::new(stream.first_sequence());
    let mut reading = Reading { found: Found::nothing(stream.bytes_max), batch: Vec::new(), contents: Vec::new() };
    for sequence in stream.first_sequence()..=last {
        reader.handle_record(sequence, stream.record(sequence).unwrap()).unwrap();
        while let Some(event) = reader.poll_event() {
            reading.take(event);
        }
    }
    reader.finish();
    reading.found
}

struct Reading {
    found: Found,
    batch: Vec<RetainedEntry>,
    contents: Vec<BytesMut>,
}

impl Reading {
    fn take(&mut self, event: ReplayEvent) {
        match event {
            ReplayEvent::Epoch { sequence, .. } => self.found.retention.handle_epoch(sequence),
            ReplayEvent::Message(message) => {
                let recipients = message.envelope.recipients.len() as u32;
                self.batch.push(RetainedEntry::Message { id: message.id, recipients, states: message.states });
                self.contents.push(BytesMut::new());
            }
            ReplayEvent::Content(bytes) => self.contents.last_mut().unwrap().extend_from_slice(&bytes),
            ReplayEvent::Outcome { id, recipients, .. } => self.batch.push(RetainedEntry::Outcome { id, recipients }),
            ReplayEvent::BatchComplete(range) => {
                let batch = std::mem::take(&mut self.batch);
                self.found.retention.handle_stored(range, batch.clone());
                let mut contents = std::mem::take(&mut self.contents).into_iter();
                batch.into_iter().for_each(|entry| self.apply(entry, range.first, &mut contents));
            }
            ReplayEvent::BatchDropped => {
                self.batch.clear();
                self.contents.clear();
            }
            ReplayEvent::Released => {}
        }
    }

    fn apply(&mut self, entry: RetainedEntry, first: u64, contents: &mut impl Iterator<Item = BytesMut>) {
        let (id, states) = match entry {
            RetainedEntry::Message { id, states, .. } => {
                let content = contents.next().unwrap().to_vec();
                self.found.live.entry(id).or_insert(FoundMessage { content, attempts: 0 });
                self.found.places.insert(id, first);
                (id, states)
            }
            RetainedEntry::Outcome { id, recipients } => (id, recipients),
        };
        for (_, state) in states {
            match state {
                RecipientState::Waiting { attempts, .. } => {
                    if let Some(live) = self.found.live.get_mut(&id) {
                        live.attempts = attempts;
                    }
                }
                _ => drop(self.found.live.remove(&id)),
            }
        }
    }
}
