//! The copy on the thread that follows the server: collects changes, commits them together, and
//! limits removals.
//!
//! | state     | NotFound from the copy | removals                                                        |
//! |-----------|------------------------|-----------------------------------------------------------------|
//! | loading   | no                     | all, at the end of the load                                     |
//! | complete  | yes                    | as [`RemovalLimit`] allows; further ones are held back              |
//!
//! While removals are held back no new cookie is stored, so the next refresh, even after a restart,
//! reports them again and decides anew. Additions and changes are stored meanwhile. Held removals
//! are carried out when the operator accepts them, and cancelled when the server reports the entry
//! again. Those that became harmless, because another entry has the same keys now, are carried out
//! by the next [`release_harmless`](ReplicaCopy::release_harmless).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::batch::{ChangeBatch, EntryUuid};
use super::entry_set::EntrySet;
use super::removal_limit::RemovalLimit;
use super::store::{AppliedCounts, CopyStore, SyncState};

/// The size of a batch in a first load, in octets; batches are written in the order of the file.
const LOAD_OCTETS: usize = 48 << 20;
/// The maximum size of other batches, in octets.
const BATCH_OCTETS: usize = 1 << 20;

/// The copy.
pub(super) struct ReplicaCopy {
    store: Arc<CopyStore>,
    stop: Arc<AtomicBool>,
    batch: ChangeBatch,
    sync_state: SyncState,
    removals: RemovalLimit,
    held_back: BTreeSet<EntryUuid>,
    /// Entries, held back or about to go, that still exist but have lost all keys.
    keyless: BTreeSet<EntryUuid>,
    /// The number of held removals at the last commit.
    held_at_commit: u64,
    /// The newest cookie, while removals are held back.
    cookie: Option<Vec<u8>>,
    refresh: Option<RefreshProgress>,
    refreshes: u64,
    /// Whether the last refresh has ended and changes arrive as they happen.
    is_following: bool,
}

/// A moment by the monotonic clock and by the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
}

/// A refresh in progress.
struct RefreshProgress {
    mentioned: EntrySet,
    gone: BTreeSet<EntryUuid>,
    unmentioned: bool,
    applied: AppliedCounts,
    began: Instant,
}

/// The result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefreshSummary {
    pub(super) applied: AppliedCounts,
    pub(super) took: Duration,
    /// Removals held back.
    pub(super) held_back: u64,
}

impl ReplicaCopy {
    /// The copy in `store`. Once `stop` is set, long work ends between two commits and stores no
    /// state.
    pub(super) fn new(store: Arc<CopyStore>, removals: RemovalLimit, stop: Arc<AtomicBool>) -> heed::Result<Self> {
        let mark = store.sync_state()?;
        Ok(ReplicaCopy {
            store,
            stop,
            batch: ChangeBatch::default(),
            sync_state: mark,
            removals,
            held_back: BTreeSet::new(),
            keyless: BTreeSet::new(),
            held_at_commit: 0,
            cookie: None,
            refresh: None,
            refreshes: 0,
            is_following: false,
        })
    }

    /// The cookie for the next request.
    pub(super) fn cookie(&self) -> Option<&[u8]> {
        self.sync_state.cookie.as_deref()
    }

    /// The number of removals held back.
    pub(super) fn held_back(&self) -> u64 {
        self.held_back.len() as u64
    }

    /// Whether there is something to commit: changes, a newer cookie, or another number of held
    /// removals.
    pub(super) fn has_changes(&self) -> bool {
        !self.batch.is_empty()
            || self.held_at_commit != self.held_back()
            || (self.cookie.is_some() && self.held_back.is_empty())
    }

    /// The number of entries and of their keys.
    pub(super) fn counts(&self) -> heed::Result<(u64, u64)> {
        self.store.counts()
    }

    /// The number of finished refreshes.
    pub(super) fn refreshes(&self) -> u64 {
        self.refreshes
    }

    /// The state of the removal limit, for the next copy.
    pub(super) fn into_removals(self) -> RemovalLimit {
        self.removals
    }

    /// Forgets the cookie, which is invalid; the next refresh starts without one.
    pub(super) fn forget_cookie(&mut self) -> heed::Result<()> {
        self.sync_state.cookie = None;
        self.cookie = None;
        self.store
            .apply(&ChangeBatch::default(), Some(&self.sync_state), &mut EntrySet::default(), &self.stop)
            .map(drop)
    }

    /// The connection is lost: from now on commits do not mean that the copy matches the server.
    pub(super) fn disconnected(&mut self) {
        self.is_following = false;
    }

    /// Begins a refresh. If the previous one did not finish, its additions and changes remain.
    pub(super) fn begin_refresh(&mut self, now: ClockReading) -> heed::Result<()> {
        self.batch.clear();
        self.cookie = None;
        self.is_following = false;
        self.keyless.retain(|uuid| self.held_back.contains(uuid));
        if !self.sync_state.complete {
            self.store.clear()?;
            self.sync_state = SyncState::default();
        }
        self.refresh = Some(RefreshProgress {
            mentioned: EntrySet::default(),
            gone: BTreeSet::new(),
            unmentioned: false,
            applied: AppliedCounts::default(),
            began: now.at,
        });
        Ok(())
    }

    /// Adds or changes an entry. An entry that has lost all keys is treated as a removal, which it
    /// is for lookups.
    pub(super) fn put(
        &mut self,
        uuid: EntryUuid,
        keys: &[String],
        values: Option<&[String]>,
        now: ClockReading,
    ) -> heed::Result<()> {
        self.held_back.remove(&uuid);
        self.keyless.remove(&uuid);
        if let Some(refresh) = &mut self.refresh {
            refresh.gone.remove(&uuid);
        }
        if keys.is_empty() && self.sync_state.complete && self.store.has_keys(uuid)? {
            self.keyless.insert(uuid);
            match &mut self.refresh {
                Some(refresh) => drop(refresh.gone.insert(uuid)),
                None => drop(self.remove_or_hold(uuid, now)?),
            }
            return Ok(());
        }
        self.batch.put(uuid, keys, values);
        let octets_max = if self.sync_state.complete { BATCH_OCTETS } else { LOAD_OCTETS };
        if self.batch.octets() >= octets_max {
            self.write(None)?;
        }
        Ok(())
    }

    /// Confirms an unchanged entry. Returns false if the copy does not have it.
    pub(super) fn confirm(&mut self, uuid: EntryUuid) -> heed::Result<bool> {
        let mut number = self.store.number(uuid)?;
        if number.is_none() && !self.batch.is_empty() {
            self.write(None)?;
            number = self.store.number(uuid)?;
        }
        let (Some(number), Some(refresh)) = (number, &mut self.refresh) else { return Ok(false) };
        refresh.mentioned.insert(number);
        // Unless this refresh has already reported it without keys.
        if !(self.keyless.contains(&uuid) && refresh.gone.contains(&uuid)) {
            refresh.gone.remove(&uuid);
            self.held_back.remove(&uuid);
            self.keyless.remove(&uuid);
        }
        Ok(true)
    }

    /// Marks an entry for removal at the end of the refresh.
    pub(super) fn mark_gone(&mut self, uuid: EntryUuid) {
        self.keyless.remove(&uuid);
        if let Some(refresh) = &mut self.refresh {
            refresh.gone.insert(uuid);
        }
    }

    /// Marks all entries not mentioned by the refresh for removal at its end.
    pub(super) fn mark_unmentioned_gone(&mut self) {
        if let Some(refresh) = &mut self.refresh {
            refresh.unmentioned = true;
        }
    }

    /// Ends the refresh and carries out its removals, unless they are too many.
    pub(super) fn finish_refresh(
        &mut self,
        cookie: Option<Vec<u8>>,
        now: ClockReading,
    ) -> heed::Result<Option<RefreshSummary>> {
        self.write(None)?;
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(mut refresh) = self.refresh.take() else { return Ok(None) };
        let mut going = std::mem::take(&mut refresh.gone);
        if refresh.unmentioned && self.sync_state.complete {
            going.extend(self.store.entries_not_in(&refresh.mentioned)?);
        }
        let going: Vec<EntryUuid> = going.into_iter().collect();
        let lost = match self.sync_state.complete {
            true => self.store.irreplaceable(&going)?,
            false => Vec::new(),
        };
        let (entries, _) = self.store.counts()?;
        self.held_back.clear();
        if !lost.is_empty() && !self.removals.allow(lost.len() as u64, entries, now.at) {
            self.held_back = lost.into_iter().collect();
        }
        for uuid in going {
            if !self.held_back.contains(&uuid) {
                self.queue_removal(uuid);
            }
        }
        self.keyless.retain(|uuid| self.held_back.contains(uuid));
        self.cookie = cookie;
        self.sync_state.complete = true;
        self.refreshes += 1;
        self.is_following = true;
        refresh.applied.removed += self.commit(now)?.removed;
        let took = now.at.saturating_duration_since(refresh.began);
        Ok(Some(RefreshSummary { applied: refresh.applied, took, held_back: self.held_back() }))
    }

    /// Removes an entry that the server has just removed. Returns false if the removal is held
    /// back.
    pub(super) fn remove(&mut self, uuid: EntryUuid, now: ClockReading) -> heed::Result<bool> {
        self.keyless.remove(&uuid);
        self.held_back.remove(&uuid);
        self.remove_or_hold(uuid, now)
    }

    /// Removes an entry, or holds the removal back if there are too many.
    fn remove_or_hold(&mut self, uuid: EntryUuid, now: ClockReading) -> heed::Result<bool> {
        // An entry may still be in the batch.
        if self.store.number(uuid)?.is_none() {
            self.batch.remove(uuid);
            return Ok(true);
        }
        let mut lost = self.store.irreplaceable(&[uuid])?.len() as u64;
        // Other entries with its keys may be in the batch for removal.
        if lost == 0 && !self.batch.is_empty() && self.store.has_keys(uuid)? {
            self.write(None)?;
            lost = self.store.irreplaceable(&[uuid])?.len() as u64;
        }
        let allowed = lost == 0 || self.removals.allow(lost, self.store.counts()?.0, now.at);
        match allowed {
            true => self.queue_removal(uuid),
            false => drop(self.held_back.insert(uuid)),
        }
        Ok(allowed)
    }

    /// Removes an entry, or only its keys if it still exists.
    fn queue_removal(&mut self, uuid: EntryUuid) {
        match self.keyless.remove(&uuid) {
            true => self.batch.put(uuid, &[], Some(&[])),
            false => self.batch.remove(uuid),
        }
    }

    /// Sets the cookie that covers all changes so far.
    pub(super) fn set_cookie(&mut self, cookie: Vec<u8>) {
        self.cookie = Some(cookie);
    }

    /// Commits all changes, with the cookie that covers them.
    pub(super) fn commit(&mut self, now: ClockReading) -> heed::Result<AppliedCounts> {
        self.held_at_commit = self.held_back();
        if self.refresh.is_some() {
            return self.write(None);
        }
        if self.held_back.is_empty() {
            if let Some(cookie) = self.cookie.take() {
                self.sync_state.cookie = Some(cookie);
            }
            if self.is_following {
                self.sync_state.agreed = Some(now.wall);
            }
        }
        let mark = self.sync_state.clone();
        self.write(Some(&mark))
    }

    /// Carries out held removals that have become harmless.
    pub(super) fn release_harmless(&mut self, now: ClockReading) -> heed::Result<()> {
        if self.held_back.is_empty() || self.refresh.is_some() {
            return Ok(());
        }
        self.write(None)?;
        let going: Vec<EntryUuid> = self.held_back.iter().copied().collect();
        let lost: BTreeSet<EntryUuid> = self.store.irreplaceable(&going)?.into_iter().collect();
        if lost.len() < going.len() {
            going.into_iter().filter(|uuid| !lost.contains(uuid)).for_each(|uuid| self.queue_removal(uuid));
            self.held_back = lost;
            self.commit(now)?;
        }
        Ok(())
    }

    /// Carries out all held removals, if they are no more than the operator saw. Returns their
    /// number.
    pub(super) fn accept_removals(&mut self, seen: u64, now: ClockReading) -> heed::Result<u64> {
        if self.held_back() > seen {
            return Ok(0);
        }
        let held = std::mem::take(&mut self.held_back);
        if held.is_empty() {
            return Ok(0);
        }
        let count = held.len() as u64;
        held.into_iter().for_each(|uuid| self.queue_removal(uuid));
        self.commit(now).map(|_| count)
    }

    fn write(&mut self, mark: Option<&SyncState>) -> heed::Result<AppliedCounts> {
        let mut put = EntrySet::default();
        let applied = match self.sync_state.complete || mark.is_some() {
            true => {
                let put = self.refresh.as_mut().map_or(&mut put, |refresh| &mut refresh.mentioned);
                self.store.apply(&self.batch, mark, put, &self.stop)?
            }
            false => self.store.load(&self.batch, &self.stop)?,
        };
        self.batch.clear();
        if let Some(refresh) = &mut self.refresh {
            refresh.applied.changed += applied.changed;
            refresh.applied.removed += applied.removed;
        }
        Ok(applied)
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
