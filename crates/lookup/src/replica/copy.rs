//! The copy on the thread that follows the server: collects changes, commits them together, and
//! limits removals.
//!
//! | state     | NotFound from the copy | removals                                                        |
//! |-----------|------------------------|-----------------------------------------------------------------|
//! | loading   | no                     | all, at the end of the load                                     |
//! | complete  | yes                    | as [`Removals`] allows; further ones are held back              |
//!
//! While removals are held back no new cookie is stored, so the next refresh, even after a restart,
//! reports them again and decides anew. Additions and changes are stored meanwhile. Held removals
//! are carried out when the operator accepts them, and cancelled when the server reports the entry
//! again. Those that became harmless, because another entry has the same keys now, are carried out
//! by the next [`review`](Copy::review).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::batch::{Batch, Uuid};
use super::marks::Marks;
use super::removals::Removals;
use super::store::{Applied, Mark, Store};

/// The size of a batch in a first load, in octets; batches are written in the order of the file.
const LOAD_OCTETS: usize = 48 << 20;
/// The maximum size of other batches, in octets.
const BATCH_OCTETS: usize = 1 << 20;

/// The copy.
pub(super) struct Copy {
    store: Arc<Store>,
    stop: Arc<AtomicBool>,
    batch: Batch,
    mark: Mark,
    removals: Removals,
    held: BTreeSet<Uuid>,
    /// Entries, held back or about to go, that still exist but have lost all keys.
    emptied: BTreeSet<Uuid>,
    /// The number of held removals at the last commit.
    held_told: u64,
    /// The newest cookie, while removals are held back.
    cookie: Option<Vec<u8>>,
    refresh: Option<Refreshing>,
    refreshes: u64,
    /// Whether the last refresh has ended and changes arrive as they happen.
    follows: bool,
}

/// A moment by the monotonic clock and by the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
}

/// A refresh in progress.
struct Refreshing {
    mentioned: Marks,
    gone: BTreeSet<Uuid>,
    unmentioned: bool,
    applied: Applied,
    began: Instant,
}

/// The result of a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refreshed {
    pub(super) applied: Applied,
    pub(super) took: Duration,
    /// Removals held back.
    pub(super) held: u64,
}

impl Copy {
    /// The copy in `store`. Once `stop` is set, long work ends between two commits and stores no
    /// state.
    pub(super) fn new(store: Arc<Store>, removals: Removals, stop: Arc<AtomicBool>) -> heed::Result<Self> {
        let mark = store.mark()?;
        Ok(Copy {
            store,
            stop,
            batch: Batch::default(),
            mark,
            removals,
            held: BTreeSet::new(),
            emptied: BTreeSet::new(),
            held_told: 0,
            cookie: None,
            refresh: None,
            refreshes: 0,
            follows: false,
        })
    }

    /// The cookie for the next request.
    pub(super) fn cookie(&self) -> Option<&[u8]> {
        self.mark.cookie.as_deref()
    }

    /// The number of removals held back.
    pub(super) fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// Whether there is something to commit: changes, a newer cookie, or another number of held
    /// removals.
    pub(super) fn has_changes(&self) -> bool {
        !self.batch.is_empty() || self.held_told != self.held() || (self.cookie.is_some() && self.held.is_empty())
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
    pub(super) fn into_removals(self) -> Removals {
        self.removals
    }

    /// Forgets the cookie, which is invalid; the next refresh starts without one.
    pub(super) fn forget_cookie(&mut self) -> heed::Result<()> {
        self.mark.cookie = None;
        self.cookie = None;
        self.store.apply(&Batch::default(), Some(&self.mark), &mut Marks::default(), &self.stop).map(drop)
    }

    /// The connection is lost: from now on commits do not mean that the copy matches the server.
    pub(super) fn lost(&mut self) {
        self.follows = false;
    }

    /// Begins a refresh. If the previous one did not finish, its additions and changes remain.
    pub(super) fn begin(&mut self, now: Now) -> heed::Result<()> {
        self.batch.clear();
        self.cookie = None;
        self.follows = false;
        self.emptied.retain(|uuid| self.held.contains(uuid));
        if !self.mark.complete {
            self.store.clear()?;
            self.mark = Mark::default();
        }
        self.refresh = Some(Refreshing {
            mentioned: Marks::default(),
            gone: BTreeSet::new(),
            unmentioned: false,
            applied: Applied::default(),
            began: now.at,
        });
        Ok(())
    }

    /// Adds or changes an entry. An entry that has lost all keys is treated as a removal, which it
    /// is for lookups.
    pub(super) fn put(&mut self, uuid: Uuid, keys: &[String], values: Option<&[String]>, now: Now) -> heed::Result<()> {
        self.held.remove(&uuid);
        self.emptied.remove(&uuid);
        if let Some(refresh) = &mut self.refresh {
            refresh.gone.remove(&uuid);
        }
        if keys.is_empty() && self.mark.complete && self.store.has_keys(uuid)? {
            self.emptied.insert(uuid);
            match &mut self.refresh {
                Some(refresh) => drop(refresh.gone.insert(uuid)),
                None => drop(self.lose(uuid, now)?),
            }
            return Ok(());
        }
        self.batch.put(uuid, keys, values);
        let octets_max = if self.mark.complete { BATCH_OCTETS } else { LOAD_OCTETS };
        if self.batch.octets() >= octets_max {
            self.write(None)?;
        }
        Ok(())
    }

    /// Confirms an unchanged entry. Returns false if the copy does not have it.
    pub(super) fn keep(&mut self, uuid: Uuid) -> heed::Result<bool> {
        let mut number = self.store.number(uuid)?;
        if number.is_none() && !self.batch.is_empty() {
            self.write(None)?;
            number = self.store.number(uuid)?;
        }
        let (Some(number), Some(refresh)) = (number, &mut self.refresh) else { return Ok(false) };
        refresh.mentioned.set(number);
        // Unless this refresh has already reported it without keys.
        if !(self.emptied.contains(&uuid) && refresh.gone.contains(&uuid)) {
            refresh.gone.remove(&uuid);
            self.held.remove(&uuid);
            self.emptied.remove(&uuid);
        }
        Ok(true)
    }

    /// Marks an entry for removal at the end of the refresh.
    pub(super) fn gone(&mut self, uuid: Uuid) {
        self.emptied.remove(&uuid);
        if let Some(refresh) = &mut self.refresh {
            refresh.gone.insert(uuid);
        }
    }

    /// Marks all entries not mentioned by the refresh for removal at its end.
    pub(super) fn gone_unmentioned(&mut self) {
        if let Some(refresh) = &mut self.refresh {
            refresh.unmentioned = true;
        }
    }

    /// Ends the refresh and carries out its removals, unless they are too many.
    pub(super) fn agreed(&mut self, cookie: Option<Vec<u8>>, now: Now) -> heed::Result<Option<Refreshed>> {
        self.write(None)?;
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(mut refresh) = self.refresh.take() else { return Ok(None) };
        let mut going = std::mem::take(&mut refresh.gone);
        if refresh.unmentioned && self.mark.complete {
            going.extend(self.store.unmarked(&refresh.mentioned)?);
        }
        let going: Vec<Uuid> = going.into_iter().collect();
        let lost = match self.mark.complete {
            true => self.store.irreplaceable(&going)?,
            false => Vec::new(),
        };
        let (entries, _) = self.store.counts()?;
        self.held.clear();
        if !lost.is_empty() && !self.removals.allow(lost.len() as u64, entries, now.at) {
            self.held = lost.into_iter().collect();
        }
        for uuid in going {
            if !self.held.contains(&uuid) {
                self.let_go(uuid);
            }
        }
        self.emptied.retain(|uuid| self.held.contains(uuid));
        self.cookie = cookie;
        self.mark.complete = true;
        self.refreshes += 1;
        self.follows = true;
        refresh.applied.removed += self.commit(now)?.removed;
        let took = now.at.saturating_duration_since(refresh.began);
        Ok(Some(Refreshed { applied: refresh.applied, took, held: self.held() }))
    }

    /// Removes an entry that the server has just removed. Returns false if the removal is held
    /// back.
    pub(super) fn remove(&mut self, uuid: Uuid, now: Now) -> heed::Result<bool> {
        self.emptied.remove(&uuid);
        self.held.remove(&uuid);
        self.lose(uuid, now)
    }

    /// Removes an entry, or holds the removal back if there are too many.
    fn lose(&mut self, uuid: Uuid, now: Now) -> heed::Result<bool> {
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
            true => self.let_go(uuid),
            false => drop(self.held.insert(uuid)),
        }
        Ok(allowed)
    }

    /// Removes an entry, or only its keys if it still exists.
    fn let_go(&mut self, uuid: Uuid) {
        match self.emptied.remove(&uuid) {
            true => self.batch.put(uuid, &[], Some(&[])),
            false => self.batch.remove(uuid),
        }
    }

    /// Sets the cookie that covers all changes so far.
    pub(super) fn covered(&mut self, cookie: Vec<u8>) {
        self.cookie = Some(cookie);
    }

    /// Commits all changes, with the cookie that covers them.
    pub(super) fn commit(&mut self, now: Now) -> heed::Result<Applied> {
        self.held_told = self.held();
        if self.refresh.is_some() {
            return self.write(None);
        }
        if self.held.is_empty() {
            if let Some(cookie) = self.cookie.take() {
                self.mark.cookie = Some(cookie);
            }
            if self.follows {
                self.mark.agreed = Some(now.wall);
            }
        }
        let mark = self.mark.clone();
        self.write(Some(&mark))
    }

    /// Carries out held removals that have become harmless.
    pub(super) fn review(&mut self, now: Now) -> heed::Result<()> {
        if self.held.is_empty() || self.refresh.is_some() {
            return Ok(());
        }
        self.write(None)?;
        let going: Vec<Uuid> = self.held.iter().copied().collect();
        let lost: BTreeSet<Uuid> = self.store.irreplaceable(&going)?.into_iter().collect();
        if lost.len() < going.len() {
            going.into_iter().filter(|uuid| !lost.contains(uuid)).for_each(|uuid| self.let_go(uuid));
            self.held = lost;
            self.commit(now)?;
        }
        Ok(())
    }

    /// Carries out all held removals, if they are no more than the operator saw. Returns their
    /// number.
    pub(super) fn accept(&mut self, seen: u64, now: Now) -> heed::Result<u64> {
        if self.held() > seen {
            return Ok(0);
        }
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return Ok(0);
        }
        let count = held.len() as u64;
        held.into_iter().for_each(|uuid| self.let_go(uuid));
        self.commit(now).map(|_| count)
    }

    fn write(&mut self, mark: Option<&Mark>) -> heed::Result<Applied> {
        let mut put = Marks::default();
        let applied = match self.mark.complete || mark.is_some() {
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
