//! Segment maintenance: a thread beside the writer that prepares segments, frees dead ones, and
//! copies the last live messages of mostly dead segments forward, so that delivered mail does not
//! make the log grow.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::disk::{read_lossy, write_aside_file};
use crate::entries::{MessageHead, OutcomeHead};
use crate::lane::{IndexUpdate, Lane, LocatedMessage, PendingRecord, SegmentTable, Submission};
use crate::message_index::{MessageIndex, Segment, SegmentSlot, SegmentStage};
use crate::recipient_states::RecipientState;
use crate::record::{FRAME_BYTES, SegmentUse};
use crate::segment::{self, FileLease, SegmentHeader, look_for_record};
use crate::{CommitCallback, CommitError, Durability, SpoolEvent, spill};

/// How long the thread sleeps if it is not woken: the end of a lease does not wake it.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Bytes copied forward in one submission.
const COPY_BYTES_MAX: u64 = 1 << 20;

enum MaintenanceTask {
    MakeReady,
    Free(SegmentSlot),
    CopyForward(SegmentSlot),
    Remove(SegmentSlot),
    RemoveDeadBodies,
    Withdraw,
}

/// Mostly dead segments, with their number of live messages and since when it is unchanged.
/// Messages that are being delivered need not be copied; otherwise a draining queue would rewrite a
/// quarter of its mail.
#[derive(Default)]
struct IdleTracker(HashMap<SegmentSlot, (u32, Instant)>);

impl IdleTracker {
    /// Tracks these segments and no others; returns the first one in which no message died for
    /// `span`.
    fn first_idle(&mut self, candidates: &[SegmentSlot], index: &MessageIndex, span: Duration) -> Option<SegmentSlot> {
        let before = std::mem::take(&mut self.0);
        let seen = candidates.iter().filter_map(|slot| Some((*slot, index.segments.get(slot)?.live)));
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
struct Backoff {
    making_failed_at: Option<Instant>,
    tidying_failed_at: Option<Instant>,
}

impl Backoff {
    fn is_over(failed_at: Option<Instant>) -> bool {
        failed_at.is_none_or(|at| at.elapsed() >= RETRY_DELAY)
    }
}

impl Lane {
    /// Performs tasks until the lane is closing.
    pub(crate) fn run_maintenance(self: &Arc<Self>) {
        let (mut backoff, mut idle_tracker) = (Backoff::default(), IdleTracker::default());
        while let Some(task) = self.await_task(&mut backoff, &mut idle_tracker) {
            let failed_at = match task {
                MaintenanceTask::MakeReady => &mut backoff.making_failed_at,
                _ => &mut backoff.tidying_failed_at,
            };
            *failed_at = self.perform(task).is_err().then(Instant::now);
        }
    }

    fn await_task(&self, backoff: &mut Backoff, idle_tracker: &mut IdleTracker) -> Option<MaintenanceTask> {
        let mut table = self.segment_table.lock();
        while !table.closing {
            if self.tidying_failed.swap(false, Relaxed) {
                backoff.tidying_failed_at = Some(Instant::now());
            }
            if let Some(task) = self.next_task(&table, backoff, idle_tracker) {
                return Some(task);
            }
            self.maintenance_wanted.wait_for(&mut table, RETRY_DELAY);
        }
        None
    }

    fn next_task(
        &self,
        table: &SegmentTable,
        backoff: &Backoff,
        idle_tracker: &mut IdleTracker,
    ) -> Option<MaintenanceTask> {
        let may_tidy = Backoff::is_over(backoff.tidying_failed_at);
        if let Some(slot) = table.index.next_freeable().filter(|_| may_tidy) {
            return Some(MaintenanceTask::Free(slot));
        }
        let none_ready = table.index.count(SegmentStage::Ready) == 0;
        if none_ready && (table.segment_wanted || Backoff::is_over(backoff.making_failed_at)) {
            return Some(MaintenanceTask::MakeReady);
        }
        if !may_tidy {
            return None;
        }
        if !table.index.dead_bodies.is_empty() {
            return Some(MaintenanceTask::RemoveDeadBodies);
        }
        if !table.unwithdrawn.is_empty() {
            return Some(MaintenanceTask::Withdraw);
        }
        let free = || table.index.segments.iter().filter(|(_, segment)| segment.stage == SegmentStage::Free);
        let other_size = free().find(|(_, segment)| self.has_other_size(segment));
        if let Some((slot, _)) = other_size.or_else(|| free().nth(self.config.spare_segments)) {
            return Some(MaintenanceTask::Remove(*slot));
        }
        if self.copying.load(Relaxed) {
            return None;
        }
        let candidates: Vec<SegmentSlot> =
            table.index.mostly_dead().into_iter().chain(table.index.oldest_blocking()).collect();
        // A writer that waits for a segment waits for free space.
        let is_urgent = table.segment_wanted || table.segment_error.is_some();
        let span = if is_urgent { Duration::ZERO } else { self.config.copy_after };
        idle_tracker.first_idle(&candidates, &table.index, span).map(MaintenanceTask::CopyForward)
    }

    /// Whether its size differs from the configuration, or its creation was interrupted: it is not
    /// reused.
    fn has_other_size(&self, segment: &Segment) -> bool {
        segment.size != self.config.segment_bytes
    }

    fn perform(self: &Arc<Self>, task: MaintenanceTask) -> Result<(), ()> {
        match task {
            MaintenanceTask::MakeReady => self.make_ready().map_err(|error| {
                let mut table = self.segment_table.lock();
                if std::mem::take(&mut table.segment_wanted) {
                    table.segment_error = Some(CommitError::from(&error));
                    drop(table);
                    self.segment_ready.notify_all();
                }
                self.report_event(SpoolEvent::NoSegment { lane: self.lane_id, error: error.to_string() });
            }),
            MaintenanceTask::Free(slot) => self.sync_open_segment().and_then(|()| self.free(slot)).map_err(drop),
            MaintenanceTask::CopyForward(slot) => {
                self.copy_forward(slot);
                Ok(())
            }
            MaintenanceTask::Remove(slot) => self.remove(slot).map_err(drop),
            MaintenanceTask::RemoveDeadBodies => {
                self.sync_open_segment().map(|()| self.remove_dead_bodies()).map_err(drop)
            }
            MaintenanceTask::Withdraw => {
                let unwithdrawn = std::mem::take(&mut self.segment_table.lock().unwithdrawn);
                unwithdrawn.into_iter().for_each(|outcomes| self.withdraw(outcomes));
                Ok(())
            }
        }
    }

    /// With relaxed durability, outcomes and copies may not be on the disk yet; the old records
    /// must not be removed before. Segments that are not open were synced when they were sealed.
    fn sync_open_segment(&self) -> io::Result<()> {
        if self.config.durability == Durability::Commit {
            return Ok(());
        }
        let open = {
            let table = self.segment_table.lock();
            let open = table.index.segments.values().find(|segment| segment.stage == SegmentStage::Open);
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
    pub(crate) fn free_dead_segments(&self) {
        loop {
            let dead = self.segment_table.lock().index.next_freeable();
            if dead.is_none_or(|slot| self.free(slot).is_err()) {
                return;
            }
        }
    }

    /// Prepares a segment for the writer: reuses a free one, or creates one.
    pub(crate) fn make_ready(&self) -> io::Result<()> {
        let (slot, number) = {
            let mut table = self.segment_table.lock();
            let number = table.next_number;
            table.next_number += 1;
            let free = |(_, segment): &(&SegmentSlot, &Segment)| {
                segment.stage == SegmentStage::Free && !self.has_other_size(segment)
            };
            (table.index.segments.iter().find(free).map(|(slot, _)| *slot), number)
        };
        match slot {
            Some(slot) => self.reuse(slot, number)?,
            None => self.create(number)?,
        }
        let mut table = self.segment_table.lock();
        table.segment_wanted = false;
        drop(table);
        self.segment_ready.notify_all();
        Ok(())
    }

    fn header(&self, generation: u64, segment: Option<SegmentUse>, last_number: u64) -> SegmentHeader {
        SegmentHeader { generation, segment, last_number, epoch: self.epoch, lane: self.lane_id }
    }

    /// The next use of a segment, with a secret salt.
    fn new_use(&self, number: u64) -> SegmentUse {
        let mut hasher = DefaultHasher::new();
        (self.random, self.epoch, number).hash(&mut hasher);
        SegmentUse { number, salt: hasher.finish() }
    }

    /// Gives a free segment a new number. If this fails, the file is not used until the next start.
    fn reuse(&self, slot: SegmentSlot, number: u64) -> io::Result<()> {
        let (file, generation) = {
            let mut table = self.segment_table.lock();
            let segment = table.index.segment(slot);
            segment.stage = SegmentStage::Broken;
            segment.pinned = true;
            (segment.file().clone(), segment.generation + 1)
        };
        let new = self.new_use(number);
        self.header(generation, Some(new), number).store(&*file)?;
        let mut table = self.segment_table.lock();
        let segment = table.index.segment(slot);
        (segment.stage, segment.pinned) = (SegmentStage::Ready, false);
        (segment.number, segment.last_number, segment.generation) = (number, number, generation);
        segment.salt = new.salt;
        Ok(())
    }

    /// Creates a segment file. Its header and its name are synced before anything in it is
    /// acknowledged.
    fn create(&self, number: u64) -> io::Result<()> {
        let slot = self.segment_table.lock().index.new_slot();
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
            stage: SegmentStage::Ready,
            number,
            salt: new.salt,
            last_number: number,
            generation: 1,
            size: self.config.segment_bytes,
            lease: Arc::new(FileLease(file)),
            live: 0,
            live_bytes: 0,
            references: Default::default(),
            pinned: false,
        };
        self.segment_table.lock().index.segments.insert(slot, segment);
        Ok(())
    }

    /// Frees a dead segment. If this fails, it keeps its number, and all segments that refer to it
    /// stay. The file of a broken segment is removed instead.
    pub(crate) fn free(&self, slot: SegmentSlot) -> io::Result<()> {
        if self.segment_table.lock().index.segment(slot).stage == SegmentStage::Broken {
            return self.remove(slot);
        }
        let (file, generation, last) = {
            let mut table = self.segment_table.lock();
            let segment = table.index.segment(slot);
            segment.pinned = true;
            (segment.file().clone(), segment.generation + 1, segment.last_number)
        };
        self.header(generation, None, last).store(&*file)?;
        let mut table = self.segment_table.lock();
        let segment = table.index.segment(slot);
        (segment.stage, segment.pinned, segment.number, segment.generation) =
            (SegmentStage::Free, false, 0, generation);
        segment.references.clear();
        Ok(())
    }

    /// Removes a segment's file. If this fails half-way, the segment is ignored until the next
    /// start.
    fn remove(&self, slot: SegmentSlot) -> io::Result<()> {
        {
            let mut table = self.segment_table.lock();
            let segment = table.index.segment(slot);
            (segment.stage, segment.pinned) = (SegmentStage::Broken, true);
        }
        self.disk.remove(&segment::file_name(slot))?;
        self.disk.sync_folder()?;
        self.segment_table.lock().index.segments.remove(&slot);
        Ok(())
    }

    /// Submits copies of some live messages of a segment. Does not wait for them, because the
    /// writer may need a segment first. The rest is submitted when these are committed, and the
    /// segment is freed later.
    fn copy_forward(&self, slot: SegmentSlot) {
        let live_messages = self.segment_table.lock().index.live_in_segment(slot);
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (sequence, place) in live_messages {
            match self.copy_of(sequence) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => continue,
                Err(what) => {
                    return self.set_aside(sequence, &what, self.start_copying());
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
        self.submit(Submission { records: items, permit: None, done: self.start_copying() });
    }

    /// Marks copies as submitted; the returned callback clears the mark and records a failure.
    fn start_copying(&self) -> CommitCallback {
        self.copying.store(true, Relaxed);
        let (copying, failed) = (self.copying.clone(), self.tidying_failed.clone());
        Box::new(move |result| {
            if result.is_err() {
                failed.store(true, Relaxed);
            }
            copying.store(false, Relaxed);
        })
    }

    /// A copy of a live message's record; None if the message is dead now.
    fn copy_of(&self, sequence: u64) -> Result<Option<PendingRecord>, String> {
        let Some(LocatedMessage { place, lease, size, states, .. }) = self.locate(sequence) else { return Ok(None) };
        let record = look_for_record(&*lease.0, place.offset, size);
        let (frame, record) = record.ok_or("the record cannot be read")?;
        let mut head = MessageHead::read(&record[FRAME_BYTES..]).ok_or("the record is not a message")?;
        head.merge(states);
        let mut body = vec![0; frame.body_len as usize];
        let missing = read_lossy(&*lease.0, &mut body, place.offset + frame.body_offset());
        if missing || crc32c::crc32c(&body) != frame.body_crc {
            return Err("the body cannot be read".into());
        }
        let draft = head.draft().with_body(body);
        Ok(Some(PendingRecord { draft, index_update: IndexUpdate::Relocate(head), spilled: None, is_restored: false }))
    }

    /// Removes the body files of dead messages. A file that stays is removed at the next start.
    fn remove_dead_bodies(&self) {
        let dead_bodies = std::mem::take(&mut self.segment_table.lock().index.dead_bodies);
        for sequence in dead_bodies {
            let _ = self.disk.remove(&spill::file_name(sequence));
        }
    }

    /// Copies what can be read of a damaged message to a file beside the log, and removes the
    /// message from the queue.
    pub(crate) fn set_aside(&self, sequence: u64, what: &str, done: CommitCallback) {
        let Some(LocatedMessage { place, lease, number, .. }) = self.locate(sequence) else {
            return done(Err(CommitError::Closed));
        };
        let mut bytes = vec![0; place.span as usize];
        read_lossy(&*lease.0, &mut bytes, place.offset);
        let name = format!("aside-{number:06}-{:09}", place.offset);
        let spilled = spill::file_name(sequence);
        if let Err(error) = write_aside_file(&*self.disk, &name, &bytes) {
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
        self.report_event(SpoolEvent::SetAside {
            id: Some(self.id(sequence)),
            what: format!("{what}; kept as {name}"),
        });
        let head = OutcomeHead { sequence, bounce: 0, states: vec![(0, RecipientState::SetAside)] };
        self.submit(Submission { records: vec![PendingRecord::outcome(head)], permit: None, done });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_index::tests::sealed;

    #[test]
    fn a_failure_is_followed_by_a_pause() {
        let before = |span| Instant::now().checked_sub(span).expect("the machine runs for longer than that");
        assert!(Backoff::is_over(None) && Backoff::is_over(Some(before(RETRY_DELAY))));
        assert!(!Backoff::is_over(Some(before(RETRY_DELAY / 2))));
    }

    #[test]
    fn a_segment_is_idle_from_the_last_death_in_it() {
        let (mut tracker, mut index) = (IdleTracker::default(), sealed(2));
        let hour = Duration::from_secs(3600);
        let mut first_idle = |live: u32, span| {
            index.segment(1).live = live;
            let found = tracker.first_idle(&[1, 2], &index, span);
            (found, tracker.0[&1].1)
        };
        let (found, since) = first_idle(5, hour);
        assert_eq!(found, None);
        assert_eq!(first_idle(5, Duration::ZERO), (Some(1), since));
        while Instant::now() == since {}
        assert!(first_idle(4, hour).1 > since);
        assert_eq!(tracker.first_idle(&[2], &index, hour), None);
        assert!(!tracker.0.contains_key(&1), "it is mostly dead no longer");
    }
}
