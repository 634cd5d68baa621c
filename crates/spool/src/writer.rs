//! Group commit. The writer takes all waiting submissions, writes them as one batch with one
//! vectored write, syncs once, and then calls all their callbacks; meanwhile the next batch
//! gathers.
//!
//! A batch that could not be written or synced acknowledges nothing, and its segment is never
//! written again: after a failed sync the content of the disk is unknown. The next batch begins in
//! a new segment.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::batch_size::BatchSizer;
use crate::codec::{put_u32, put_u64};
use crate::commit_step::WaitingSubmission;
use crate::disk::write_all_at;
use crate::entries::{LiveMessage, OutcomeHead, live_message};
use crate::lane::{IndexUpdate, Lane, PendingRecord, Submission};
use crate::message_index::{RecordPlace, SegmentSlot, SegmentStage};
use crate::record::{BLOCK, CommitRecord, FRAME_BYTES, RECORD_ALIGN, RecordDraft, RecordKind, SegmentUse};
use crate::segment::{DATA_OFFSET, FileLease};
use crate::{CommitError, Durability, SpoolEvent};

const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
/// Frame and head of a [`CommitRecord`].
const COMMIT_BYTES: u64 = FRAME_BYTES as u64 + 8;

/// If a batch has at least this many submissions, the next one waits a moment for more.
const BUSY_SUBMISSIONS_MIN: usize = 4;

/// The segment that is being written.
struct OpenSegment {
    slot: SegmentSlot,
    lease: Arc<FileLease>,
    segment: SegmentUse,
    size: u64,
    /// Where the next batch begins; a multiple of [`BLOCK`].
    position: u64,
    batch: u32,
    /// The content of the index: position, frame and head of every record so far.
    index: Vec<u8>,
    /// When it was first written without a sync (relaxed durability only).
    unsynced_since: Option<Instant>,
}

impl OpenSegment {
    fn fits(&self, demand: RecordSize) -> bool {
        demand.fits(self.position, self.index.len() as u64, self.size)
    }
}

/// The space that records take in the log, and their frames and heads in the index.
#[derive(Clone, Copy, Default)]
struct RecordSize {
    spans: u64,
    heads: u64,
}

impl RecordSize {
    fn of(submission: &Submission) -> RecordSize {
        submission.records.iter().fold(RecordSize::default(), |sum, item| {
            let (span, head) = item.size_max();
            RecordSize { spans: sum.spans + span, heads: sum.heads + head }
        })
    }

    /// Whether it fits after `position`, with everything that sealing adds.
    fn fits(self, position: u64, index: u64, size: u64) -> bool {
        let end = (position + self.spans + COMMIT_BYTES).next_multiple_of(BLOCK);
        let index = FRAME_BYTES as u64 + index + self.heads;
        end + index.next_multiple_of(BLOCK) + BLOCK <= size
    }
}

pub(crate) struct Writer<'a> {
    lane: &'a Arc<Lane>,
    open: Option<OpenSegment>,
    batch_sizer: BatchSizer,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(lane: &'a Arc<Lane>) -> Self {
        let pace = BatchSizer::new(lane.config.batch_bytes_max, lane.config.batch_time_target);
        lane.counters.batch_bytes_max.store(pace.bytes(), Relaxed);
        Writer { lane, open: None, batch_sizer: pace }
    }

    /// Commits submissions until the lane is closed and none is waiting, then seals the log.
    pub(crate) fn run(mut self) {
        self.commit_until_closed();
        self.lane.end_steps();
        // The outcomes of messages that the commit step refused, also in the last moment.
        self.commit_until_closed();
        self.sync_relaxed();
        self.seal();
    }

    fn commit_until_closed(&mut self) {
        let mut gather_count = 0;
        while let Some(waiting) = self.lane.take_submissions(gather_count, || self.idle_time()) {
            gather_count = if waiting.len() >= BUSY_SUBMISSIONS_MIN { 2 * waiting.len() } else { 0 };
            self.lane.counters.gather_count.store(gather_count as u64, Relaxed);
            if waiting.is_empty() {
                self.sync_relaxed();
            }
            let mut rest = waiting;
            while !rest.is_empty() {
                rest = self.commit_some(rest);
            }
        }
    }

    /// How long to wait for submissions before a sync is due.
    fn idle_time(&self) -> Option<Duration> {
        let Durability::Relaxed { sync_every } = self.lane.config.durability else { return None };
        let since = self.open.as_ref()?.unsynced_since?;
        Some(sync_every.saturating_sub(since.elapsed()))
    }

    /// Commits the submissions at the front that fit into one batch, and returns the rest.
    fn commit_some(&mut self, mut waiting: Vec<Submission>) -> Vec<Submission> {
        let mut count = self.fitting(&waiting);
        let segment_bytes = self.lane.config.segment_bytes;
        let too_large = |submission: &Submission| !RecordSize::of(submission).fits(DATA_OFFSET, 0, segment_bytes);
        if count == 0 && waiting.first().is_some_and(too_large) {
            self.lane.refuse(waiting.remove(0), CommitError::TooLarge);
            return waiting;
        }
        if count == 0 && is_copy(&waiting[0]) && !self.lane.has_ready() {
            // It can wait; later submissions may still fit into the open segment.
            self.lane.refuse(waiting.remove(0), CommitError::Full);
            return waiting;
        }
        if count == 0 {
            self.seal();
            match self.open_next_segment() {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    waiting.into_iter().for_each(|submission| self.lane.refuse(submission, error.clone()));
                    return Vec::new();
                }
            }
            count = self.fitting(&waiting);
        }
        if count == 0 {
            // The segment is smaller, because it was created with another configuration.
            self.lane.refuse(waiting.remove(0), CommitError::TooLarge);
            return waiting;
        }
        let rest = waiting.split_off(count);
        self.commit(waiting);
        rest
    }

    /// How many submissions at the front fit into the open segment and one batch.
    fn fitting(&self, waiting: &[Submission]) -> usize {
        let Some(open) = &self.open else { return 0 };
        let mut sum = RecordSize::default();
        let fits = |submission: &&Submission| {
            let (first, more) = (sum.spans == 0, RecordSize::of(submission));
            sum = RecordSize { spans: sum.spans + more.spans, heads: sum.heads + more.heads };
            (first || sum.spans <= self.batch_sizer.bytes()) && open.fits(sum)
        };
        waiting.iter().take_while(fits).count()
    }

    /// Writes one batch into the open segment, which has space for it, and calls its callbacks.
    fn commit(&mut self, mut submissions: Vec<Submission>) {
        let Some(open) = &mut self.open else { return };
        if self.lane.sync_failed.swap(false, Relaxed) {
            return self.fail_batch(&io::Error::other("an earlier sync failed"), submissions);
        }
        refresh_copies(self.lane, &mut submissions);
        let batch = SealedBatch::seal(open, &mut submissions);
        let step = self.lane.start_step(&mut submissions, &open.lease);
        let start = Instant::now();
        let strict = matches!(self.lane.config.durability, Durability::Commit);
        let written = batch.write(open, &submissions).and_then(|()| if strict { open.lease.0.sync() } else { Ok(()) });
        if let Err(error) = written {
            if let Some(step) = step {
                self.lane.abandon_step(step, &submissions);
            }
            return self.fail_batch(&error, submissions);
        }
        self.lane.counters.batch(u64::from(batch.commit.count), start.elapsed());
        let (bytes, took) = (batch.end - open.position, start.elapsed());
        if self.batch_sizer.record_batch(bytes, took) {
            self.lane.counters.slow_batch(bytes, took);
        }
        self.lane.counters.batch_bytes_max.store(self.batch_sizer.bytes(), Relaxed);
        open.position = batch.end;
        open.batch += 1;
        if !strict {
            open.unsynced_since.get_or_insert(start);
        }
        batch.enter_index(open, &submissions);
        let waiting = self.finish(batch, submissions);
        if let Some(step) = step {
            self.lane.mark_step_synced(step, waiting);
        }
        if self.idle_time().is_some_and(|left| left.is_zero()) {
            self.sync_relaxed();
        }
    }

    /// The batch is durable: updates the index, then calls the callbacks, then reports the commit.
    /// Returns the submissions that wait for the commit step instead.
    fn finish(&self, batch: SealedBatch, submissions: Vec<Submission>) -> Vec<WaitingSubmission> {
        let slot = batch.slot;
        let mut places = batch.places.into_iter();
        let (mut committed, mut waiters) = (Vec::new(), Vec::with_capacity(submissions.len()));
        let mut waiting = Vec::new();
        let mut table = self.lane.segment_table.lock();
        let (mut needs_maintenance, mut copied) = (false, 0);
        for submission in submissions {
            let first = committed.len();
            for item in submission.records {
                let place = places.next().expect("a batch has a position for every record");
                match item.index_update {
                    IndexUpdate::Insert(head) => {
                        table.index.insert(&head, place);
                        committed.push(live_message(self.lane.lane_id, head, item.is_restored));
                    }
                    IndexUpdate::ApplyOutcome(head) => {
                        apply_own_outcome(&mut committed[first..], &head);
                        let holder = table.index.place(head.sequence).map(|place| place.slot);
                        if table.index.apply_outcome(head.sequence, &head.states, slot) {
                            table.finished.iter_mut().for_each(|finished| finished.add(head.sequence));
                            needs_maintenance |= holder.is_some_and(|slot| table.index.may_need_maintenance(slot));
                        }
                    }
                    IndexUpdate::Relocate(head) => {
                        table.index.relocate(head.sequence, place);
                        copied += 1;
                    }
                }
            }
            match submission.permit {
                None => waiters.push(submission.done),
                Some(permit) => {
                    let (messages, done) = (committed.split_off(first), submission.done);
                    waiting.push(WaitingSubmission { messages, done, permit });
                }
            }
        }
        let has_dead_bodies = !table.index.dead_bodies.is_empty();
        drop(table);
        waiters.into_iter().for_each(|done| done(Ok(())));
        if needs_maintenance || has_dead_bodies || copied > 0 {
            self.lane.maintenance_wanted.notify_one();
        }
        self.lane.counters.messages_copied.fetch_add(copied, Relaxed);
        self.lane.report_committed(committed);
        waiting
    }

    /// Acknowledges nothing of the batch; the segment is not written again.
    fn fail_batch(&mut self, error: &io::Error, submissions: Vec<Submission>) {
        let open = self.open.take().expect("a segment is open while a batch is written");
        let mut table = self.lane.segment_table.lock();
        table.index.segment(open.slot).stage = SegmentStage::Broken;
        for item in submissions.iter().flat_map(|submission| &submission.records) {
            if let IndexUpdate::Relocate(head) = &item.index_update {
                table.index.note_failed_copy(head.sequence, open.segment.number);
            }
        }
        drop(table);
        self.lane.counters.batches_failed.fetch_add(1, Relaxed);
        self.lane.report_event(SpoolEvent::BatchFailed {
            lane: self.lane.lane_id,
            segment: open.segment.number,
            error: error.to_string(),
        });
        let answer = CommitError::from(error);
        submissions.into_iter().for_each(|submission| (submission.done)(Err(answer.clone())));
    }

    fn sync_relaxed(&mut self) {
        let Some(open) = &mut self.open else { return };
        if open.unsynced_since.take().is_none() {
            return;
        }
        let synced = open.lease.0.sync();
        let failed_before = self.lane.sync_failed.swap(false, Relaxed);
        match synced {
            Err(error) => self.fail_batch(&error, Vec::new()),
            Ok(()) if failed_before => self.fail_batch(&io::Error::other("an earlier sync failed"), Vec::new()),
            Ok(()) => {}
        }
    }

    /// The next ready segment; waits until maintenance has prepared one.
    fn open_next_segment(&self) -> Result<OpenSegment, CommitError> {
        let mut table = self.lane.segment_table.lock();
        loop {
            let ready = table.index.segments.iter_mut().filter(|(_, segment)| segment.stage == SegmentStage::Ready);
            if let Some((&slot, segment)) = ready.min_by_key(|(_, segment)| segment.number) {
                segment.stage = SegmentStage::Open;
                let open = OpenSegment {
                    slot,
                    lease: segment.lease.clone(),
                    segment: SegmentUse { number: segment.number, salt: segment.salt },
                    size: segment.size,
                    position: DATA_OFFSET,
                    batch: 1,
                    index: Vec::new(),
                    unsynced_since: None,
                };
                self.lane.maintenance_wanted.notify_one();
                return Ok(open);
            }
            if let Some(shortage) = table.segment_error.take() {
                table.segment_wanted = false;
                return Err(shortage);
            }
            table.segment_wanted = true;
            self.lane.maintenance_wanted.notify_one();
            self.lane.segment_ready.wait(&mut table);
        }
    }

    /// Writes the index and footer after the last batch. They only make the next start faster, so a
    /// failure is ignored, and no sync waits for them.
    fn seal(&mut self) {
        self.sync_relaxed();
        let Some(mut open) = self.open.take() else { return };
        let mut index = RecordDraft::new(RecordKind::Index, |_| {}).with_body(std::mem::take(&mut open.index));
        let mut footer = RecordDraft::new(RecordKind::Footer, |head| put_u64(head, open.position));
        index.seal(open.segment, open.batch, open.position);
        footer.seal(open.segment, open.batch + 1, open.size - BLOCK);
        let write = |draft: &RecordDraft, offset| {
            let mut parts = vec![IoSlice::new(&draft.record)];
            if !draft.body.is_empty() {
                parts.push(IoSlice::new(&draft.body));
            }
            write_all_at(&*open.lease.0, &mut parts, offset)
        };
        // A segment without them is read record by record.
        let _ = write(&index, open.position).and_then(|()| write(&footer, open.size - BLOCK));
        self.lane.segment_table.lock().index.segment(open.slot).stage = SegmentStage::Sealed;
        self.lane.maintenance_wanted.notify_one();
    }
}

/// If the outcome of a new message is in the same submission (a message held from the start), the
/// report of the message includes it.
fn apply_own_outcome(committed: &mut [LiveMessage], outcome: &OutcomeHead) {
    for live in committed.iter_mut().filter(|live| live.id.sequence() == outcome.sequence) {
        for &(ordinal, state) in &outcome.states {
            if let Some(place) = live.states.get_mut(ordinal as usize) {
                *place = state;
            }
        }
    }
}

fn is_copy(submission: &Submission) -> bool {
    submission.records.iter().any(|item| matches!(item.index_update, IndexUpdate::Relocate(_)))
}

/// Updates the states in every copy. A copy of a message that is dead now must not revive it, and
/// one that outgrew its space must wait: both are replaced by an empty outcome.
fn refresh_copies(lane: &Lane, submissions: &mut [Submission]) {
    for item in submissions.iter_mut().flat_map(|submission| &mut submission.records) {
        let span_max = item.size_max().0;
        let IndexUpdate::Relocate(head) = &mut item.index_update else { continue };
        let table = lane.segment_table.lock();
        let mut is_current = table.index.place(head.sequence).is_some();
        if is_current {
            head.merge(table.index.states(head.sequence));
            item.draft.set_head(|out| head.write(out));
            is_current = item.draft.span().is_some_and(|span| span <= span_max);
        }
        if !is_current {
            *item = PendingRecord::outcome(OutcomeHead { sequence: head.sequence, bounce: 0, states: Vec::new() });
        }
    }
}

/// A batch being written: the position of each record, and the commit record.
struct SealedBatch {
    slot: SegmentSlot,
    places: Vec<RecordPlace>,
    commit: CommitRecord,
    closing: RecordDraft,
    end: u64,
}

impl SealedBatch {
    /// Completes all frames and the commit record.
    fn seal(open: &OpenSegment, submissions: &mut [Submission]) -> SealedBatch {
        let mut commit = CommitRecord::default();
        let mut offset = open.position;
        let mut places = Vec::with_capacity(submissions.len());
        for item in submissions.iter_mut().flat_map(|submission| &mut submission.records) {
            let crc = item.draft.seal(open.segment, open.batch, offset);
            commit.add(crc, item.draft.body_crc);
            let span = item.draft.span().expect("the span was computed when the record joined the batch");
            places.push(RecordPlace { slot: open.slot, offset, span });
            offset += span;
        }
        let mut closing = RecordDraft::new(RecordKind::Commit, |head| commit.write(head));
        closing.seal(open.segment, open.batch, offset);
        let end = (offset + closing.record.len() as u64).next_multiple_of(BLOCK);
        SealedBatch { slot: open.slot, places, commit, closing, end }
    }

    fn write(&self, open: &OpenSegment, submissions: &[Submission]) -> io::Result<()> {
        let mut parts = Vec::with_capacity(self.places.len() * 4 + 2);
        for item in submissions.iter().flat_map(|submission| &submission.records) {
            let draft = &item.draft;
            let padding = (draft.record.len() + draft.body_len()).wrapping_neg() % RECORD_ALIGN as usize;
            let pieces = [&draft.record[..], &draft.prefix, &draft.body, &ZEROS[..padding]];
            parts.extend(pieces.into_iter().filter(|piece| !piece.is_empty()).map(IoSlice::new));
        }
        parts.push(IoSlice::new(&self.closing.record));
        let used: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let filling = self.end - open.position - used;
        parts.push(IoSlice::new(&ZEROS[..filling as usize]));
        write_all_at(&*open.lease.0, &mut parts, open.position)
    }

    fn enter_index(&self, open: &mut OpenSegment, submissions: &[Submission]) {
        let items = submissions.iter().flat_map(|submission| &submission.records);
        for (place, item) in self.places.iter().zip(items) {
            put_u32(&mut open.index, (place.offset / RECORD_ALIGN) as u32);
            open.index.extend_from_slice(&item.draft.record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment from its data to its end: one block of records, one with their index, and the footer.
    #[test]
    fn a_segment_is_used_to_the_last_byte_and_not_beyond_it() {
        const BEFORE: u64 = 3 * BLOCK;
        const INDEX: u64 = 100;
        let full = RecordSize { spans: BLOCK - COMMIT_BYTES, heads: BLOCK - FRAME_BYTES as u64 - INDEX };
        assert_eq!(full.spans, 4096 - 48 - 8);
        let fits = |size: RecordSize, end| size.fits(BEFORE, INDEX, end);
        assert!(fits(full, BEFORE + 3 * BLOCK) && !fits(full, BEFORE + 3 * BLOCK - 1));
        let (longer, more) = (full.spans + RECORD_ALIGN, full.heads + 1);
        for one_block_more in [RecordSize { spans: longer, ..full }, RecordSize { heads: more, ..full }] {
            assert!(fits(one_block_more, BEFORE + 4 * BLOCK) && !fits(one_block_more, BEFORE + 4 * BLOCK - 1));
        }
    }
}
