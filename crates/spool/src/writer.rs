//! Group commit. The writer takes all waiting submissions, writes them as one batch with one
//! vectored write, syncs once, and then calls all their callbacks; meanwhile the next batch
//! gathers.
//!
//! A batch that could not be written or synced acknowledges nothing, and its segment is never
//! written again: after a failed sync the content of the disk is unknown. The next batch begins in
//! a new segment.

use std::io::{self, IoSlice};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::codec::{put_u32, put_u64};
use crate::disk::write_all_at;
use crate::entry::{Live, OutcomeHead, live};
use crate::lane::{Effect, Item, Lane, Submission};
use crate::ledger::{Place, Slot, Stage};
use crate::pace::Pace;
use crate::record::{BLOCK, Commit, Draft, FRAME_BYTES, Kind, RECORD_ALIGN, Use};
use crate::segment::{DATA_OFFSET, Lease};
use crate::{CommitError, Durability, Event};

const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
/// Frame and head of a [`Commit`].
const COMMIT_BYTES: u64 = FRAME_BYTES as u64 + 8;

/// If a batch has at least this many submissions, the next one waits a moment for more.
const BUSY: usize = 4;

/// The segment that is being written.
struct Open {
    slot: Slot,
    lease: Arc<Lease>,
    segment: Use,
    size: u64,
    /// Where the next batch begins; a multiple of [`BLOCK`].
    position: u64,
    batch: u32,
    /// The content of the index: position, frame and head of every record so far.
    index: Vec<u8>,
    /// When it was first written without a sync (relaxed durability only).
    unsynced_since: Option<Instant>,
}

impl Open {
    fn fits(&self, demand: Demand) -> bool {
        demand.fits(self.position, self.index.len() as u64, self.size)
    }
}

/// The space that records take in the log, and their frames and heads in the index.
#[derive(Clone, Copy, Default)]
struct Demand {
    spans: u64,
    heads: u64,
}

impl Demand {
    fn of(submission: &Submission) -> Demand {
        submission.items.iter().fold(Demand::default(), |sum, item| {
            let (span, head) = item.demand();
            Demand { spans: sum.spans + span, heads: sum.heads + head }
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
    lane: &'a Lane,
    open: Option<Open>,
    pace: Pace,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(lane: &'a Lane) -> Self {
        let pace = Pace::new(lane.config.batch_bytes_max, lane.config.batch_time_target);
        Writer { lane, open: None, pace }
    }

    /// Commits submissions until the lane is closed and none is waiting.
    pub(crate) fn run(mut self) {
        let mut crowd = 0;
        while let Some(waiting) = self.lane.take(crowd, || self.idle_time()) {
            crowd = if waiting.len() >= BUSY { 2 * waiting.len() } else { 0 };
            if waiting.is_empty() {
                self.sync_relaxed();
            }
            let mut rest = waiting;
            while !rest.is_empty() {
                rest = self.commit_some(rest);
            }
        }
        self.sync_relaxed();
        self.seal();
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
        let hopeless = |submission: &Submission| !Demand::of(submission).fits(DATA_OFFSET, 0, segment_bytes);
        if count == 0 && waiting.first().is_some_and(hopeless) {
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
            match self.advance() {
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
        let mut sum = Demand::default();
        let fits = |submission: &&Submission| {
            let (first, more) = (sum.spans == 0, Demand::of(submission));
            sum = Demand { spans: sum.spans + more.spans, heads: sum.heads + more.heads };
            (first || sum.spans <= self.pace.bytes()) && open.fits(sum)
        };
        waiting.iter().take_while(fits).count()
    }

    /// Writes one batch into the open segment, which has space for it, and calls its callbacks.
    fn commit(&mut self, mut submissions: Vec<Submission>) {
        let Some(open) = &mut self.open else { return };
        if self.lane.sync_failed.swap(false, Relaxed) {
            return self.give_up(&io::Error::other("an earlier sync failed"), submissions);
        }
        refresh_copies(self.lane, &mut submissions);
        let batch = Batch::seal(open, &mut submissions);
        let start = Instant::now();
        let strict = matches!(self.lane.config.durability, Durability::Commit);
        let written = batch.write(open, &submissions).and_then(|()| if strict { open.lease.0.sync() } else { Ok(()) });
        if let Err(error) = written {
            return self.give_up(&error, submissions);
        }
        self.lane.counters.batch(u64::from(batch.commit.count), start.elapsed());
        self.pace.learn(batch.end - open.position, start.elapsed());
        open.position = batch.end;
        open.batch += 1;
        if !strict {
            open.unsynced_since.get_or_insert(start);
        }
        batch.enter_index(open, &submissions);
        self.finish(batch, submissions);
        if self.idle_time().is_some_and(|left| left.is_zero()) {
            self.sync_relaxed();
        }
    }

    /// The batch is durable: updates the index, then calls the callbacks, then reports the commit.
    fn finish(&self, batch: Batch, submissions: Vec<Submission>) {
        let slot = batch.slot;
        let mut places = batch.places.into_iter();
        let (mut kept, mut waiters) = (Vec::new(), Vec::with_capacity(submissions.len()));
        let mut yard = self.lane.yard();
        let (mut waning, mut copied) = (false, 0);
        for submission in submissions {
            let first = kept.len();
            for item in submission.items {
                let place = places.next().expect("a batch has a position for every record");
                match item.effect {
                    Effect::Insert(head) => {
                        yard.ledger.insert(&head, place);
                        kept.push(live(self.lane.spool, self.lane.number, head, false));
                    }
                    Effect::Settle(head) => {
                        foresee(&mut kept[first..], &head);
                        let holder = yard.ledger.place(head.sequence).map(|place| place.slot);
                        if yard.ledger.settle(head.sequence, &head.states, slot) {
                            waning |= holder.is_some_and(|slot| yard.ledger.is_waning(slot));
                        }
                    }
                    Effect::Relocate(head) => {
                        yard.ledger.relocate(head.sequence, place);
                        copied += 1;
                    }
                }
            }
            waiters.push(submission.done);
        }
        let littered = !yard.ledger.litter.is_empty();
        drop(yard);
        waiters.into_iter().for_each(|done| done(Ok(())));
        if waning || littered || copied > 0 {
            self.lane.work.notify_one();
        }
        self.lane.counters.messages_copied.fetch_add(copied, Relaxed);
        self.lane.counters.messages_committed.fetch_add(kept.len() as u64, Relaxed);
        if !kept.is_empty() {
            self.lane.tell(Event::Committed(kept));
        }
    }

    /// Acknowledges nothing of the batch; the segment is not written again.
    fn give_up(&mut self, error: &io::Error, submissions: Vec<Submission>) {
        let open = self.open.take().expect("a segment is open while a batch is written");
        let mut yard = self.lane.yard();
        yard.ledger.segment(open.slot).stage = Stage::Broken;
        for item in submissions.iter().flat_map(|submission| &submission.items) {
            if let Effect::Relocate(head) = &item.effect {
                yard.ledger.haunt(head.sequence, open.segment.number);
            }
        }
        drop(yard);
        self.lane.counters.batches_failed.fetch_add(1, Relaxed);
        self.lane.tell(Event::BatchFailed {
            lane: self.lane.number,
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
            Err(error) => self.give_up(&error, Vec::new()),
            Ok(()) if failed_before => self.give_up(&io::Error::other("an earlier sync failed"), Vec::new()),
            Ok(()) => {}
        }
    }

    /// The next ready segment; waits until maintenance has prepared one.
    fn advance(&self) -> Result<Open, CommitError> {
        let mut yard = self.lane.yard();
        loop {
            let ready = yard.ledger.segments.iter_mut().filter(|(_, segment)| segment.stage == Stage::Ready);
            if let Some((&slot, segment)) = ready.min_by_key(|(_, segment)| segment.number) {
                segment.stage = Stage::Open;
                let open = Open {
                    slot,
                    lease: segment.lease.clone(),
                    segment: Use { number: segment.number, salt: segment.salt },
                    size: segment.size,
                    position: DATA_OFFSET,
                    batch: 1,
                    index: Vec::new(),
                    unsynced_since: None,
                };
                self.lane.work.notify_one();
                return Ok(open);
            }
            if let Some(shortage) = yard.shortage.take() {
                yard.wanted = false;
                return Err(shortage);
            }
            yard.wanted = true;
            self.lane.work.notify_one();
            yard = self.lane.supply.wait(yard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes the index and footer after the last batch. They only make the next start faster, so a
    /// failure is ignored, and no sync waits for them.
    fn seal(&mut self) {
        self.sync_relaxed();
        let Some(mut open) = self.open.take() else { return };
        let mut index = Draft::new(Kind::Index, |_| {}).with_body(std::mem::take(&mut open.index));
        let mut footer = Draft::new(Kind::Footer, |head| put_u64(head, open.position));
        index.seal(open.segment, open.batch, open.position);
        footer.seal(open.segment, open.batch + 1, open.size - BLOCK);
        let write = |draft: &Draft, offset| {
            let mut parts = vec![IoSlice::new(&draft.record)];
            if !draft.body.is_empty() {
                parts.push(IoSlice::new(&draft.body));
            }
            write_all_at(&*open.lease.0, &mut parts, offset)
        };
        // A segment without them is read record by record.
        let _ = write(&index, open.position).and_then(|()| write(&footer, open.size - BLOCK));
        self.lane.yard().ledger.segment(open.slot).stage = Stage::Sealed;
        self.lane.work.notify_one();
    }
}

/// If the outcome of a new message is in the same submission (a message held from the start), the
/// report of the message includes it.
fn foresee(kept: &mut [Live], outcome: &OutcomeHead) {
    for live in kept.iter_mut().filter(|live| live.id.sequence() == outcome.sequence) {
        for &(ordinal, state) in &outcome.states {
            if let Some(place) = live.states.get_mut(ordinal as usize) {
                *place = state;
            }
        }
    }
}

fn is_copy(submission: &Submission) -> bool {
    submission.items.iter().any(|item| matches!(item.effect, Effect::Relocate(_)))
}

/// Updates the states in every copy. A copy of a message that is dead now must not revive it, and
/// one that outgrew its space must wait: both are replaced by an empty outcome.
fn refresh_copies(lane: &Lane, submissions: &mut [Submission]) {
    for item in submissions.iter_mut().flat_map(|submission| &mut submission.items) {
        let room = item.demand().0;
        let Effect::Relocate(head) = &mut item.effect else { continue };
        let yard = lane.yard();
        let mut is_current = yard.ledger.place(head.sequence).is_some();
        if is_current {
            head.merge(yard.ledger.states(head.sequence));
            let body = std::mem::take(&mut item.draft.body);
            item.draft = head.draft().with_body(body);
            is_current = item.draft.span().is_some_and(|span| span <= room);
        }
        if !is_current {
            let nothing = OutcomeHead { sequence: head.sequence, bounce: 0, states: Vec::new() };
            *item = Item { draft: nothing.draft(), effect: Effect::Settle(nothing) };
        }
    }
}

/// A batch being written: the position of each record, and the commit record.
struct Batch {
    slot: Slot,
    places: Vec<Place>,
    commit: Commit,
    closing: Draft,
    end: u64,
}

impl Batch {
    /// Completes all frames and the commit record.
    fn seal(open: &Open, submissions: &mut [Submission]) -> Batch {
        let mut commit = Commit::default();
        let mut offset = open.position;
        let mut places = Vec::with_capacity(submissions.len());
        for item in submissions.iter_mut().flat_map(|submission| &mut submission.items) {
            let crc = item.draft.seal(open.segment, open.batch, offset);
            commit.add(crc, item.draft.body_crc);
            let span = item.draft.span().expect("the span was computed when the record joined the batch");
            places.push(Place { slot: open.slot, offset, span });
            offset += span;
        }
        let mut closing = Draft::new(Kind::Commit, |head| commit.write(head));
        closing.seal(open.segment, open.batch, offset);
        let end = (offset + closing.record.len() as u64).next_multiple_of(BLOCK);
        Batch { slot: open.slot, places, commit, closing, end }
    }

    fn write(&self, open: &Open, submissions: &[Submission]) -> io::Result<()> {
        let mut parts = Vec::with_capacity(self.places.len() * 3 + 2);
        for item in submissions.iter().flat_map(|submission| &submission.items) {
            let draft = &item.draft;
            parts.push(IoSlice::new(&draft.record));
            if !draft.body.is_empty() {
                parts.push(IoSlice::new(&draft.body));
            }
            let padding = (draft.record.len() + draft.body.len()).wrapping_neg() % RECORD_ALIGN as usize;
            if padding > 0 {
                parts.push(IoSlice::new(&ZEROS[..padding]));
            }
        }
        parts.push(IoSlice::new(&self.closing.record));
        let used: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let filling = self.end - open.position - used;
        if filling > 0 {
            parts.push(IoSlice::new(&ZEROS[..filling as usize]));
        }
        write_all_at(&*open.lease.0, &mut parts, open.position)
    }

    fn enter_index(&self, open: &mut Open, submissions: &[Submission]) {
        let items = submissions.iter().flat_map(|submission| &submission.items);
        for (place, item) in self.places.iter().zip(items) {
            put_u32(&mut open.index, (place.offset / RECORD_ALIGN) as u32);
            open.index.extend_from_slice(&item.draft.record);
        }
    }
}
