//! Segment maintenance: a thread beside the writer that prepares segments, frees dead ones, and
//! copies the last live messages of mostly dead segments forward, so that delivered mail does not
//! make the log grow.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::disk::{keep_aside, read_lossy};
use crate::entry::{MessageHead, OutcomeHead};
use crate::lane::{Effect, Item, Lane, Located, Submission, Yard};
use crate::ledger::{Ledger, Segment, Slot, Stage};
use crate::record::{FRAME_BYTES, Use};
use crate::segment::{self, Header, Lease, look_for_record};
use crate::states::State;
use crate::{CommitError, Done, Durability, Event, spill};

/// How long the thread sleeps if it is not woken: the end of a lease does not wake it.
const REST: Duration = Duration::from_secs(1);
/// Bytes copied forward in one submission.
const COPY_BYTES_MAX: u64 = 1 << 20;

enum Task {
    Ready,
    Free(Slot),
    CopyForward(Slot),
    Remove(Slot),
    Sweep,
}

/// Mostly dead segments, with their number of live messages and since when it is unchanged.
/// Messages that are being delivered need not be copied; otherwise a draining queue would rewrite a
/// quarter of its mail.
#[derive(Default)]
struct Vigil(HashMap<Slot, (u32, Instant)>);

impl Vigil {
    /// Tracks these segments and no others; returns the first one in which no message died for
    /// `span`.
    fn still(&mut self, candidates: &[Slot], ledger: &Ledger, span: Duration) -> Option<Slot> {
        let before = std::mem::take(&mut self.0);
        let seen = candidates.iter().filter_map(|slot| Some((*slot, ledger.segments.get(slot)?.live)));
        self.0 = seen
            .map(|(slot, live)| {
                let since = before.get(&slot).filter(|(known, _)| *known == live).map(|(_, since)| *since);
                (slot, (live, since.unwrap_or_else(Instant::now)))
            })
            .collect();
        candidates.iter().copied().find(|slot| self.0.get(slot).is_some_and(|(_, since)| since.elapsed() >= span))
    }
}

/// Delays retries after failures, separately for each kind of task: a full disk must not keep dead
/// segments from being freed.
#[derive(Default)]
struct Weariness {
    of_making: Option<Instant>,
    of_tidying: Option<Instant>,
}

impl Weariness {
    fn is_over(failed_at: Option<Instant>) -> bool {
        failed_at.is_none_or(|at| at.elapsed() >= REST)
    }
}

impl Lane {
    /// Performs tasks until the lane is closing.
    pub(crate) fn keep(&self) {
        let (mut weariness, mut vigil) = (Weariness::default(), Vigil::default());
        while let Some(task) = self.await_task(&mut weariness, &mut vigil) {
            let failed_at = match task {
                Task::Ready => &mut weariness.of_making,
                _ => &mut weariness.of_tidying,
            };
            *failed_at = self.perform(task).is_err().then(Instant::now);
        }
    }

    fn await_task(&self, weariness: &mut Weariness, vigil: &mut Vigil) -> Option<Task> {
        let mut yard = self.yard();
        while !yard.closing {
            if self.copy_failed.swap(false, Relaxed) {
                weariness.of_tidying = Some(Instant::now());
            }
            if let Some(task) = self.next_task(&yard, weariness, vigil) {
                return Some(task);
            }
            yard = self.work.wait_timeout(yard, REST).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    fn next_task(&self, yard: &Yard, weariness: &Weariness, vigil: &mut Vigil) -> Option<Task> {
        let may_tidy = Weariness::is_over(weariness.of_tidying);
        if let Some(slot) = yard.ledger.retirable().filter(|_| may_tidy) {
            return Some(Task::Free(slot));
        }
        let none_ready = yard.ledger.count(Stage::Ready) == 0;
        if none_ready && (yard.wanted || Weariness::is_over(weariness.of_making)) {
            return Some(Task::Ready);
        }
        if !may_tidy {
            return None;
        }
        if !yard.ledger.litter.is_empty() {
            return Some(Task::Sweep);
        }
        let free = || yard.ledger.segments.iter().filter(|(_, segment)| segment.stage == Stage::Free);
        let odd = free().find(|(_, segment)| self.is_odd(segment));
        if let Some((slot, _)) = odd.or_else(|| free().nth(self.config.spare_segments)) {
            return Some(Task::Remove(*slot));
        }
        if self.copying.load(Relaxed) {
            return None;
        }
        let candidates: Vec<Slot> = yard.ledger.mostly_dead().into_iter().chain(yard.ledger.in_the_way()).collect();
        // A writer that waits for a segment waits for free space.
        let is_urgent = yard.wanted || yard.shortage.is_some();
        let span = if is_urgent { Duration::ZERO } else { self.config.copy_after };
        vigil.still(&candidates, &yard.ledger, span).map(Task::CopyForward)
    }

    /// Whether its size differs from the configuration, or its creation was interrupted: it is not
    /// reused.
    fn is_odd(&self, segment: &Segment) -> bool {
        segment.size != self.config.segment_bytes
    }

    fn perform(&self, task: Task) -> Result<(), ()> {
        match task {
            Task::Ready => self.make_ready().map_err(|error| {
                let mut yard = self.yard();
                if std::mem::take(&mut yard.wanted) {
                    yard.shortage = Some(CommitError::from(&error));
                    drop(yard);
                    self.supply.notify_all();
                }
                self.tell(Event::NoSegment { lane: self.number, error: error.to_string() });
            }),
            Task::Free(slot) => self.sync_deaths().and_then(|()| self.free(slot)).map_err(drop),
            Task::CopyForward(slot) => {
                self.copy_forward(slot);
                Ok(())
            }
            Task::Remove(slot) => self.remove(slot).map_err(drop),
            Task::Sweep => self.sync_deaths().map(|()| self.sweep()).map_err(drop),
        }
    }

    /// With relaxed durability, outcomes and copies may not be on the disk yet; the old records
    /// must not be removed before. Segments that are not open were synced when they were sealed.
    fn sync_deaths(&self) -> io::Result<()> {
        if self.config.durability == Durability::Commit {
            return Ok(());
        }
        let open = {
            let yard = self.yard();
            let open = yard.ledger.segments.values().find(|segment| segment.stage == Stage::Open);
            open.map(|segment| segment.file().clone())
        };
        let synced = open.map_or(Ok(()), |file| file.sync());
        if synced.is_err() {
            // The writer's own sync would not report this error again.
            self.sync_failed.store(true, Relaxed);
        }
        synced
    }

    /// Frees segments that are dead at start, so that a full disk has space again. Failures are
    /// retried later.
    pub(crate) fn free_the_dead(&self) {
        loop {
            let dead = self.yard().ledger.retirable();
            if dead.is_none_or(|slot| self.free(slot).is_err()) {
                return;
            }
        }
    }

    /// Prepares a segment for the writer: reuses a free one, or creates one.
    pub(crate) fn make_ready(&self) -> io::Result<()> {
        let (slot, number) = {
            let mut yard = self.yard();
            let number = yard.next_number;
            yard.next_number += 1;
            let free = |(_, segment): &(&Slot, &Segment)| segment.stage == Stage::Free && !self.is_odd(segment);
            (yard.ledger.segments.iter().find(free).map(|(slot, _)| *slot), number)
        };
        match slot {
            Some(slot) => self.reuse(slot, number)?,
            None => self.create(number)?,
        }
        let mut yard = self.yard();
        yard.wanted = false;
        drop(yard);
        self.supply.notify_all();
        Ok(())
    }

    fn header(&self, generation: u64, segment: Option<Use>, last_number: u64) -> Header {
        Header { generation, segment, last_number, epoch: self.epoch, spool: self.spool, lane: self.number }
    }

    /// The next use of a segment, with a secret salt.
    fn new_use(&self, number: u64) -> Use {
        let mut hasher = DefaultHasher::new();
        (self.random, self.epoch, number).hash(&mut hasher);
        Use { number, salt: hasher.finish() }
    }

    /// Gives a free segment a new number. If this fails, the file is not used until the next start.
    fn reuse(&self, slot: Slot, number: u64) -> io::Result<()> {
        let (file, generation) = {
            let mut yard = self.yard();
            let segment = yard.ledger.segment(slot);
            segment.stage = Stage::Broken;
            segment.pinned = true;
            (segment.file().clone(), segment.generation + 1)
        };
        let new = self.new_use(number);
        self.header(generation, Some(new), number).store(&*file)?;
        let mut yard = self.yard();
        let segment = yard.ledger.segment(slot);
        (segment.stage, segment.pinned) = (Stage::Ready, false);
        (segment.number, segment.last_number, segment.generation) = (number, number, generation);
        segment.salt = new.salt;
        Ok(())
    }

    /// Creates a segment file. Its header and its name are synced before anything in it is
    /// acknowledged.
    fn create(&self, number: u64) -> io::Result<()> {
        let slot = self.yard().ledger.new_slot();
        let name = segment::file_name(slot);
        let file = self.disk.create(&name, self.config.segment_bytes)?;
        let new = self.new_use(number);
        let stored = self.header(1, Some(new), number).store(&*file).and_then(|()| self.disk.sync_folder());
        if let Err(error) = stored {
            // A file that stays is removed at the next start.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        let segment = Segment {
            stage: Stage::Ready,
            number,
            salt: new.salt,
            last_number: number,
            generation: 1,
            size: self.config.segment_bytes,
            lease: Arc::new(Lease(file)),
            live: 0,
            live_bytes: 0,
            refers: Default::default(),
            pinned: false,
        };
        self.yard().ledger.segments.insert(slot, segment);
        Ok(())
    }

    /// Frees a dead segment. If this fails, it keeps its number, and all segments that refer to it
    /// stay. The file of a broken segment is removed instead.
    pub(crate) fn free(&self, slot: Slot) -> io::Result<()> {
        if self.yard().ledger.segment(slot).stage == Stage::Broken {
            return self.remove(slot);
        }
        let (file, generation, last) = {
            let mut yard = self.yard();
            let segment = yard.ledger.segment(slot);
            segment.pinned = true;
            (segment.file().clone(), segment.generation + 1, segment.last_number)
        };
        self.header(generation, None, last).store(&*file)?;
        let mut yard = self.yard();
        let segment = yard.ledger.segment(slot);
        (segment.stage, segment.pinned, segment.number, segment.generation) = (Stage::Free, false, 0, generation);
        segment.refers.clear();
        Ok(())
    }

    /// Removes a segment's file. If this fails half-way, the segment is ignored until the next
    /// start.
    fn remove(&self, slot: Slot) -> io::Result<()> {
        {
            let mut yard = self.yard();
            let segment = yard.ledger.segment(slot);
            (segment.stage, segment.pinned) = (Stage::Broken, true);
        }
        self.disk.remove(&segment::file_name(slot))?;
        self.disk.sync_folder()?;
        self.yard().ledger.segments.remove(&slot);
        Ok(())
    }

    /// Submits copies of some live messages of a segment. Does not wait for them, because the
    /// writer may need a segment first. The rest is submitted when these are committed, and the
    /// segment is freed later.
    fn copy_forward(&self, slot: Slot) {
        let survivors = self.yard().ledger.survivors(slot);
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (sequence, place) in survivors {
            match self.copy_of(sequence) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => continue,
                Err(what) => {
                    return self.set_aside(sequence, &what, self.copies_sent());
                }
            }
            bytes += place.span;
            if bytes >= COPY_BYTES_MAX {
                break;
            }
        }
        if items.is_empty() {
            return;
        }
        self.submit(Submission { items, done: self.copies_sent() });
    }

    /// Marks copies as submitted; the returned callback clears the mark and records a failure.
    fn copies_sent(&self) -> Done {
        self.copying.store(true, Relaxed);
        let (copying, failed) = (self.copying.clone(), self.copy_failed.clone());
        Box::new(move |result| {
            failed.store(result.is_err(), Relaxed);
            copying.store(false, Relaxed);
        })
    }

    /// A copy of a live message's record; None if the message is dead now.
    fn copy_of(&self, sequence: u64) -> Result<Option<Item>, String> {
        let Some(Located { place, lease, size, states, .. }) = self.locate(sequence) else { return Ok(None) };
        let record = look_for_record(&*lease.0, place.offset, size);
        let (frame, record) = record.ok_or("the record cannot be read")?;
        let mut head = MessageHead::read(&record[FRAME_BYTES..]).ok_or("the record is not a message")?;
        head.merge(states);
        let mut body = vec![0; frame.body_len as usize];
        let missing = read_lossy(&*lease.0, &mut body, place.offset + frame.body_offset());
        if missing || crc32c::crc32c(&body) != frame.body_crc {
            return Err("the body cannot be read".into());
        }
        Ok(Some(Item { draft: head.draft().with_body(body), effect: Effect::Relocate(head) }))
    }

    /// Removes the body files of dead messages. A file that stays is removed at the next start.
    fn sweep(&self) {
        let litter = std::mem::take(&mut self.yard().ledger.litter);
        for sequence in litter {
            let _ = self.disk.remove(&spill::file_name(sequence));
        }
    }

    /// Copies what can be read of a damaged message to a file beside the log, and removes the
    /// message from the queue.
    pub(crate) fn set_aside(&self, sequence: u64, what: &str, done: Done) {
        let Some(Located { place, lease, number, .. }) = self.locate(sequence) else {
            return done(Err(CommitError::Closed));
        };
        let mut bytes = vec![0; place.span as usize];
        read_lossy(&*lease.0, &mut bytes, place.offset);
        let name = format!("aside-{number:06}-{:09}", place.offset);
        let spilled = spill::file_name(sequence);
        if let Err(error) = keep_aside(&*self.disk, &name, &bytes) {
            return done(Err(CommitError::from(&error)));
        }
        let renamed = match self.disk.rename(&spilled, &format!("aside-{spilled}")) {
            // Only large messages have such a file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed.and_then(|()| self.disk.sync_folder()),
        };
        if let Err(error) = renamed {
            return done(Err(CommitError::from(&error)));
        }
        self.counters.set_aside.fetch_add(1, Relaxed);
        self.tell(Event::SetAside { id: Some(self.id(sequence)), what: format!("{what}; kept as {name}") });
        let head = OutcomeHead { sequence, bounce: 0, states: vec![(0, State::SetAside)] };
        self.submit(Submission { items: vec![Item { draft: head.draft(), effect: Effect::Settle(head) }], done });
    }
}
