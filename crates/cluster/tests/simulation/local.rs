//! The lane before it has a stream: its first owner accepts mail on its disk alone, and delivers it, since nobody
//! else can have the lane. It does so until the lane is claimed; then what was accepted is copied.
//!
//! If the disk is thrown away before, what only the disk has is lost: it is counted.

use std::collections::BTreeMap;

use cluster::codec::CopiedEntry;
use mail::QueueId;
use sim::Random;
use spool::RecipientState;

use crate::disk::{Disk, DiskWrites, write_of};
use crate::entries::{message, new_content, outcome};
use crate::ledger::{FoundMessage, Ledger};
use crate::node::Context;

#[derive(Default)]
pub(crate) struct LocalLane {
    pub(crate) live: BTreeMap<QueueId, FoundMessage>,
    writes: DiskWrites,
    /// What waits for a sync, by its number.
    pending: BTreeMap<u64, Vec<LocalEntry>>,
    next_id: u64,
}

#[derive(Clone, Copy)]
enum LocalEntry {
    Message(QueueId),
    End(QueueId),
}

impl LocalLane {
    pub(crate) fn new(random: &mut Random) -> Self {
        LocalLane { next_id: random.bits() >> 16 << 16, ..LocalLane::default() }
    }

    /// All that was accepted is on the disk, or was refused.
    pub(crate) fn is_flushed(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes mail, and delivers.
    pub(crate) fn work(&mut self, context: &mut Context<'_>) {
        let (mut entries, mut noted) = (Vec::new(), Vec::new());
        for _ in 0..context.random.below(3) {
            self.next_id += 1;
            let (id, content) = new_content(self.next_id, context);
            self.live.insert(id, FoundMessage { content: content.clone(), attempts: 0 });
            entries.push(message(id, content, Vec::new()));
            noted.push(LocalEntry::Message(id));
        }
        let accepted = self.live.keys().copied().find(|id| context.ledger.messages[id].is_accepted_locally);
        if let Some(id) = accepted.filter(|_| context.random.chance(30)) {
            assert!(!context.ledger.has_ended(id), "{id} is delivered again");
            context.ledger.note_outcome(id, RecipientState::Delivered, None);
            self.live.remove(&id);
            entries.push(outcome(id, RecipientState::Delivered, None));
            noted.push(LocalEntry::End(id));
        }
        self.write(&entries, noted, context);
    }

    fn write(&mut self, entries: &[CopiedEntry], noted: Vec<LocalEntry>, context: &mut Context<'_>) {
        if !entries.is_empty() {
            let number = self.writes.write(entries.iter().map(write_of).collect());
            self.pending.insert(number, noted);
            context.local_syncs.push(number);
        }
    }

    /// Clients get their 250.
    pub(crate) fn sync(&mut self, number: u64, disk: &mut Disk, ledger: &mut Ledger) {
        self.writes.sync(number, disk);
        for entry in self.take_pending(number) {
            match entry {
                LocalEntry::Message(id) => ledger.entry(id).is_accepted_locally = true,
                LocalEntry::End(id) => ledger.entry(id).has_ended_locally = true,
            }
        }
    }

    /// What was new is refused; outcomes are written again.
    pub(crate) fn fail(&mut self, number: u64, context: &mut Context<'_>) {
        self.writes.take(number);
        let (mut entries, mut noted) = (Vec::new(), Vec::new());
        for entry in self.take_pending(number) {
            match entry {
                LocalEntry::Message(id) => drop(self.live.remove(&id)),
                LocalEntry::End(id) => {
                    entries.push(outcome(id, RecipientState::Delivered, None));
                    noted.push(entry);
                }
            }
        }
        self.write(&entries, noted, context);
    }

    pub(crate) fn crash(&mut self, random: &mut Random, disk: &mut Disk) {
        self.writes.crash(random, disk);
    }

    fn take_pending(&mut self, number: u64) -> Vec<LocalEntry> {
        let later = self.pending.split_off(&(number + 1));
        std::mem::replace(&mut self.pending, later).into_values().flatten().collect()
    }
}
