//! Receives message bodies: in memory, up to a share of a common budget, then in a file of the
//! spool.
//!
//! Every message reserves the *floor* before its first byte, so that a message that starts can
//! always finish. Beyond the floor a body grows in memory while the budget allows it; otherwise, or
//! if it is large, all of it moves to a file, and the floor is enough for the rest.
//!
//! A quarter of the budget is reserved for the relay networks and used when the rest is exhausted,
//! so that slow external clients do not block our own users. Among external clients the minimum
//! data rate, enforced by the protocol, has this effect.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mail::{LoggedHeader, QueueId, find_logged_header};
use protocol::smtp::server::BodySink;
use spool::{SpillWriter, Spool, SubmittedBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::missing_fields::MissingFields;

/// The memory that every message may use.
const FLOOR_BYTES: usize = 64 * 1024;
/// The unit in which the budget is counted.
const UNIT_BYTES: usize = 1024;
/// The floor in units.
const FLOOR_UNITS: usize = FLOOR_BYTES / UNIT_BYTES;
/// The bytes that are read back from a file at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Space for the first bytes of a body of unknown size: most messages fit.
const FIRST_BYTES: usize = 8 * 1024;
/// A body beyond [`FIRST_BYTES`] grows in steps of this size, so that little memory is unused.
const STEP_BYTES: usize = FLOOR_BYTES;

/// The memory for all bodies being received.
#[derive(Clone, Debug)]
pub struct BodyMemoryBudget {
    /// For all clients.
    shared: Arc<Semaphore>,
    /// For the relay networks only.
    reserved: Arc<Semaphore>,
    units: usize,
    spill_above: usize,
}

impl BodyMemoryBudget {
    /// A budget of `bytes`, at least two floors. A body larger than `spill_above` bytes always
    /// moves to a file.
    pub fn new(bytes: u64, spill_above: u64) -> Self {
        let units = units(bytes);
        let kept = (units / 4).max(FLOOR_UNITS);
        let (common, kept) = (Arc::new(Semaphore::new(units - kept)), Arc::new(Semaphore::new(kept)));
        BodyMemoryBudget { shared: common, reserved: kept, units, spill_above: spill_threshold(spill_above) }
    }

    /// Keeps the budget if its size is unchanged. Otherwise starts a new one; until the messages
    /// that use the old one end, both may be in use.
    pub fn resized(&self, bytes: u64, spill_above: u64) -> Self {
        match units(bytes) == self.units {
            true => BodyMemoryBudget { spill_above: spill_threshold(spill_above), ..self.clone() },
            false => BodyMemoryBudget::new(bytes, spill_above),
        }
    }

    /// Reserves the floor; None if none is free within `wait`.
    pub(crate) async fn reserve(&self, trusted: bool, wait: Duration) -> Option<IncomingBody> {
        let permit = match (try_acquire_floor(&self.shared), trusted) {
            (Some(permit), _) => Some(permit),
            (None, false) => tokio::time::timeout(wait, acquire_floor(&self.shared)).await.ok()?,
            (None, true) => match try_acquire_floor(&self.reserved) {
                Some(permit) => Some(permit),
                None => tokio::time::timeout(wait, self.acquire_any_floor()).await.ok()?,
            },
        };
        Some(IncomingBody {
            spill_above: self.spill_above,
            permit: permit?,
            bytes: Vec::new(),
            finds_missing_fields: false,
            start: None,
            spill: None,
            chunk: Vec::new(),
        })
    }

    async fn acquire_any_floor(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            permit = acquire_floor(&self.shared) => permit,
            permit = acquire_floor(&self.reserved) => permit,
        }
    }
}

fn units(bytes: u64) -> usize {
    let units = usize::try_from(bytes).unwrap_or(usize::MAX) / UNIT_BYTES;
    units.clamp(2 * FLOOR_UNITS, Semaphore::MAX_PERMITS)
}

fn spill_threshold(above: u64) -> usize {
    usize::try_from(above).unwrap_or(usize::MAX).max(FLOOR_BYTES)
}

fn try_acquire_floor(units: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    units.clone().try_acquire_many_owned((FLOOR_BYTES / UNIT_BYTES) as u32).ok()
}

/// None only if the semaphore is closed, which never happens.
async fn acquire_floor(units: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    units.clone().acquire_many_owned((FLOOR_BYTES / UNIT_BYTES) as u32).await.ok()
}

/// A body being received.
pub(crate) struct IncomingBody {
    spill_above: usize,
    permit: OwnedSemaphorePermit,
    bytes: Vec<u8>,
    /// Whether the fields that the message lacks are to be found.
    finds_missing_fields: bool,
    /// What was found in the first bytes, if they have moved to the file.
    start: Option<Box<BodyStart>>,
    spill: Option<Box<SpillWriter>>,
    /// Bytes read back from the file.
    chunk: Vec<u8>,
}

/// What is found in the first bytes of a body.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyStart {
    /// The header fields for the log.
    pub(crate) logged: LoggedHeader,
    /// The fields to be added.
    pub(crate) missing: MissingFields,
}

/// A finished body, for the spool.
pub(crate) struct FinishedBody {
    pub(crate) content: SubmittedBody,
    /// For the memory that it still uses. The spool frees that memory, so the permit must be held
    /// until the spool answers.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

impl BodySink for IncomingBody {
    fn append(&mut self, bytes: &[u8]) {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let room = if needed <= FIRST_BYTES { FIRST_BYTES } else { needed.next_multiple_of(STEP_BYTES) };
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }
}

impl IncomingBody {
    /// The bytes received so far.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64 + self.spill.as_ref().map_or(0, |spill| spill.len())
    }

    /// Whether [`IncomingBody::spill_to_file`] should be called. Checked after every read, so that
    /// the limit is exceeded by one read at most.
    pub(crate) fn needs_spill(&mut self) -> bool {
        let limit = if self.spill.is_some() { FLOOR_BYTES } else { self.spill_above };
        if self.bytes.len() > limit {
            return true;
        }
        let held = self.permit.num_permits() * UNIT_BYTES;
        if self.bytes.capacity() <= held {
            return false;
        }
        let missing = (self.bytes.capacity() - held).div_ceil(UNIT_BYTES) as u32;
        match self.permit.semaphore().clone().try_acquire_many_owned(missing) {
            Ok(more) => {
                self.permit.merge(more);
                false
            }
            Err(_) => true,
        }
    }

    /// Reserves memory beside that of the body, until the message ends or moves to a file. False: the budget
    /// has too little left.
    pub(crate) fn reserve_more(&mut self, octets: usize) -> bool {
        let Ok(units) = u32::try_from(octets.div_ceil(UNIT_BYTES)) else { return false };
        let more = self.permit.semaphore().clone().try_acquire_many_owned(units);
        more.map(|more| self.permit.merge(more)).is_ok()
    }

    /// Also finds the fields that the message lacks.
    pub(crate) fn find_missing_fields(&mut self) {
        self.finds_missing_fields = true;
    }

    /// What is found in the first bytes of the complete body.
    pub(crate) fn take_start(&mut self, with_subject: bool) -> BodyStart {
        match self.start.take() {
            Some(start) => *start,
            None => self.find_start(with_subject, true),
        }
    }

    /// Searches the bytes in memory. `is_whole`: there are no others.
    fn find_start(&self, with_subject: bool, is_whole: bool) -> BodyStart {
        let missing = self.finds_missing_fields.then(|| MissingFields::find(&self.bytes, is_whole));
        let logged = find_logged_header(&self.bytes, with_subject);
        BodyStart { logged, missing: missing.unwrap_or_default() }
    }

    /// The next bytes from `position` on, in memory or read from the file on a blocking thread;
    /// empty at the end.
    pub(crate) async fn read(&mut self, position: u64) -> io::Result<&[u8]> {
        let spilled = self.spill.as_ref().map_or(0, |spill| spill.len());
        if position >= spilled {
            let from = usize::try_from(position - spilled).unwrap_or(usize::MAX).min(self.bytes.len());
            return Ok(&self.bytes[from..]);
        }
        let Some(spill) = self.spill.take() else { return Ok(&[]) };
        let mut chunk = std::mem::take(&mut self.chunk);
        let read = tokio::task::spawn_blocking(move || {
            chunk.resize(CHUNK_BYTES, 0);
            let result = spill.read_at(&mut chunk, position);
            (spill, chunk, result)
        });
        let (spill, chunk, result) = read.await.map_err(io::Error::other)?;
        (self.spill, self.chunk) = (Some(spill), chunk);
        Ok(&self.chunk[..result?])
    }

    /// Replaces the first `count` bytes by `start`, in memory or in a new file.
    pub(crate) async fn replace_start(&mut self, count: u64, start: Vec<u8>) -> io::Result<()> {
        let Some(spill) = self.spill.take() else {
            self.bytes.splice(..count as usize, start);
            return Ok(());
        };
        let in_file = count.min(spill.len());
        self.bytes.drain(..(count - in_file) as usize);
        let replaced = run_blocking(move || Ok(Box::new(spill.replace_start(in_file, &start)?)));
        self.spill = Some(replaced.await?);
        Ok(())
    }

    /// Moves the bytes in memory to the file, and releases all memory but the floor. The first
    /// bytes to move are searched for what is logged or missing: they are more than the floor, which
    /// is more than is searched.
    pub(crate) async fn spill_to_file(
        &mut self,
        spool: &Arc<Spool>,
        id: QueueId,
        with_subject: bool,
    ) -> io::Result<()> {
        if self.spill.is_none() {
            self.start = Some(Box::new(self.find_start(with_subject, false)));
        }
        let bytes = std::mem::take(&mut self.bytes);
        let (spill, spool) = (self.spill.take(), spool.clone());
        let written = run_blocking(move || {
            let mut spill = match spill {
                Some(spill) => spill,
                None => Box::new(spool.create_spill_file(id)?),
            };
            spill.append(&bytes)?;
            Ok(spill)
        });
        self.spill = Some(written.await?);
        let extra = self.permit.num_permits().saturating_sub(FLOOR_BYTES / UNIT_BYTES);
        drop(self.permit.split(extra));
        Ok(())
    }

    /// The whole body with a prefix, durable if it is in a file.
    pub(crate) async fn finish(mut self, prefix: Vec<u8>) -> io::Result<FinishedBody> {
        let bytes = std::mem::take(&mut self.bytes);
        let Some(mut spill) = self.spill.take() else {
            let used = bytes.capacity().div_ceil(UNIT_BYTES).min(self.permit.num_permits());
            let content = SubmittedBody::Memory { prefix, body: bytes };
            return Ok(FinishedBody { content, permit: self.permit.split(used) });
        };
        let finished = run_blocking(move || {
            spill.append(&bytes)?;
            Ok(spill.finish(&prefix)?)
        });
        Ok(FinishedBody { content: SubmittedBody::Spilled(finished.await?), permit: None })
    }
}

impl Drop for IncomingBody {
    /// Removes an unfinished file, but not on the session's thread.
    fn drop(&mut self) {
        let Some(spill) = self.spill.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(spill))),
            Err(_) => drop(spill),
        }
    }
}

/// Runs `work` on tokio's pool of blocking threads, so that a slow disk blocks only the sessions
/// that use it.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_has_little_more_than_it_uses_and_holds_what_it_has() {
        let memory = BodyMemoryBudget::new(1 << 20, 512 * 1024);
        let mut body = memory.reserve(false, Duration::ZERO).await.unwrap();
        let piece = [b'x'; 10_000];
        while body.len() <= 512 * 1024 {
            assert!(!body.needs_spill(), "at {}", body.len());
            assert!(body.bytes.capacity() <= body.permit.num_permits() * UNIT_BYTES);
            assert!(body.bytes.capacity() < body.bytes.len() + FIRST_BYTES + STEP_BYTES);
            body.append(&piece);
        }
        assert!(body.needs_spill());
    }

    #[tokio::test]
    async fn the_memory_of_a_finished_body_is_held_until_it_is_given_away() {
        let memory = BodyMemoryBudget::new(192 * 1024, 512 * 1024);
        let mut body = memory.reserve(false, Duration::ZERO).await.unwrap();
        body.append(&[b'x'; 20_000]);
        let FinishedBody { content, permit: held } = body.finish(Vec::new()).await.unwrap();
        assert!(matches!(content, SubmittedBody::Memory { .. }));
        assert_eq!(held.as_ref().map(|permit| permit.num_permits()), Some(64));
        assert!(memory.reserve(false, Duration::ZERO).await.is_some());
        let mut small = memory.reserve(false, Duration::ZERO).await.unwrap();
        assert!(memory.reserve(false, Duration::ZERO).await.is_none());
        small.append(&[b'x'; 2000]);
        let small = small.finish(Vec::new()).await.unwrap().permit;
        assert_eq!(small.map(|permit| permit.num_permits()), Some(8));
        drop(held);
        assert!(memory.reserve(false, Duration::ZERO).await.is_some());
    }

    #[tokio::test]
    async fn what_a_thousand_messages_reserve_beside_their_bodies_stays_in_the_budget() {
        let memory = BodyMemoryBudget::new(128 << 20, 512 * 1024);
        let (mut bodies, mut reserved) = (Vec::new(), 0);
        for _ in 0..1000 {
            bodies.push(memory.reserve(false, Duration::ZERO).await.unwrap());
        }
        for body in &mut bodies {
            while body.reserve_more(100_000) {
                reserved += 100_000;
            }
        }
        let left = (128 << 20) * 3 / 4 - 1000 * FLOOR_BYTES;
        assert!(reserved <= left && reserved + 100_000 + UNIT_BYTES > left / 2, "{reserved} of {left}");
        bodies.truncate(1);
        assert!(bodies[0].reserve_more(20 << 20), "what ended messages had is free again");
    }

    #[tokio::test]
    async fn a_share_is_kept_for_the_relay_networks() {
        let memory = BodyMemoryBudget::new(256 * 1024, 512 * 1024);
        let mut strangers = Vec::new();
        while let Some(body) = memory.reserve(false, Duration::ZERO).await {
            strangers.push(body);
        }
        assert_eq!(strangers.len(), 3);
        let friend = memory.reserve(true, Duration::ZERO).await;
        assert!(friend.is_some());
        assert!(memory.reserve(true, Duration::ZERO).await.is_none());
        strangers.pop();
        assert!(memory.reserve(true, Duration::ZERO).await.is_some());
    }
}
