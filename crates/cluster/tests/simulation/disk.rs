//! The disk of the node that had the lane first: a log whose writes are durable some time after they were
//! made, in order. A crash keeps any first part of those that were not synced. It may come back as it was
//! earlier, or with a part that cannot be read.
//!
//! | a message is live | what a start does |
//! |---|---|
//! | on the disk only | it is copied to the stream |
//! | in the stream only, and the disk has its end | the stream gets a final outcome |
//! | in the stream only | it was lost, or never acknowledged: it is restored |

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cluster::codec::CopiedEntry;
use mail::QueueId;
use sim::Random;
use spool::{DraftBody, RecipientState};

use crate::ledger::FoundMessage;

/// What is durable.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) epoch: u32,
    /// The stream had all that was acknowledged until its epoch.
    pub(crate) is_copied: bool,
    pub(crate) live: BTreeMap<QueueId, FoundMessage>,
    /// Messages that have ended, as long as the stream may not have that.
    pub(crate) ended: BTreeSet<QueueId>,
}

/// An entry of the log.
#[derive(Clone, Debug)]
pub(crate) enum DiskWrite {
    Message(QueueId, FoundMessage),
    Attempts(QueueId, u16),
    End(QueueId),
    /// The stream has its end.
    Forget(QueueId),
}

/// Writes that are not synced, each with the number of its sync.
#[derive(Default)]
pub(crate) struct DiskWrites {
    next: u64,
    unsynced: VecDeque<(u64, DiskWrite)>,
}

impl Disk {
    fn apply(&mut self, write: DiskWrite) {
        match write {
            DiskWrite::Message(id, message) => drop(self.live.insert(id, message)),
            DiskWrite::Attempts(id, attempts) => {
                if let Some(message) = self.live.get_mut(&id) {
                    // One that failed is written again after later ones.
                    message.attempts = message.attempts.max(attempts);
                }
            }
            DiskWrite::End(id) => {
                self.live.remove(&id);
                self.ended.insert(id);
            }
            DiskWrite::Forget(id) => drop(self.ended.remove(&id)),
        }
    }

    /// Some of it cannot be read any more. Returns the messages whose end was lost.
    pub(crate) fn damage(&mut self, random: &mut Random) -> Vec<QueueId> {
        let kept = |random: &mut Random| random.chance(80);
        self.live.retain(|_, _| kept(random));
        let (ended, lost) = std::mem::take(&mut self.ended).into_iter().partition(|_| kept(random));
        self.ended = ended;
        BTreeSet::into_iter(lost).collect()
    }
}

impl DiskWrites {
    /// Writes something; returns the number of its sync.
    pub(crate) fn write(&mut self, writes: Vec<DiskWrite>) -> u64 {
        self.next += 1;
        self.unsynced.extend(writes.into_iter().map(|write| (self.next, write)));
        self.next
    }

    /// All writes up to this number are durable.
    pub(crate) fn sync(&mut self, number: u64, disk: &mut Disk) {
        self.take(number).into_iter().for_each(|write| disk.apply(write));
    }

    /// All writes up to this number have failed, and are not on the disk.
    pub(crate) fn take(&mut self, number: u64) -> Vec<DiskWrite> {
        let count = self.unsynced.partition_point(|(sync, _)| *sync <= number);
        self.unsynced.drain(..count).map(|(_, write)| write).collect()
    }

    /// The node is killed: some of what it wrote last is on the disk.
    pub(crate) fn crash(&mut self, random: &mut Random, disk: &mut Disk) {
        let kept = random.below(self.unsynced.len() as u64 + 1) as usize;
        self.unsynced.drain(..kept).for_each(|(_, write)| disk.apply(write));
    }
}

/// What a new entry is on the disk.
pub(crate) fn write_of(entry: &CopiedEntry) -> DiskWrite {
    match entry {
        CopiedEntry::Message { id, content, .. } => {
            let DraftBody::Memory { body, .. } = content else { unreachable!("bodies are in memory") };
            DiskWrite::Message(*id, FoundMessage { content: body.to_vec(), attempts: 0 })
        }
        CopiedEntry::Outcome { id, recipients, .. } => match recipients[0].1 {
            RecipientState::Waiting { attempts, .. } => DiskWrite::Attempts(*id, attempts),
            _ => DiskWrite::End(*id),
        },
    }
}
