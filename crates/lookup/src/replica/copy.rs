//! The copy as the thread that follows the directory sees it: changes are gathered and committed together, and removals
//! go no further than they may.
//!
//! | state     | the copy says NotFound | removals                                                        |
//! |-----------|------------------------|-----------------------------------------------------------------|
//! | loading   | no                     | all, when the load ends                                         |
//! | complete  | yes                    | as [`Removals`] allows, the others wait: they are held back     |
//!
//! While removals are held back no cookie is kept: the mark in the file stays at the last agreement, so that the next
//! refresh, be it after a restart, is told of them again, and decides anew. Additions and changes are kept meanwhile. What
//! waits is let go when the operator accepts it, and dropped when the directory names the entry again. What turned out to be
//! harmless, since another entry has its keys now, goes at the next [`review`](Copy::review).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::batch::{Batch, Uuid};
use super::marks::Marks;
use super::removals::Removals;
use super::store::{Applied, Mark, Store};

/// Octets of changes that a first load gathers: those are written in the order of the file.
const LOAD_OCTETS: usize = 48 << 20;
/// Octets that are gathered otherwise, at most.
const BATCH_OCTETS: usize = 1 << 20;

/// The copy.
pub(super) struct Copy {
    store: Arc<Store>,
    stop: Arc<AtomicBool>,
    batch: Batch,
    mark: Mark,
    removals: Removals,
    held: BTreeSet<Uuid>,
    /// Those that are there, of what waits or is to go, but have no keys any more.
    emptied: BTreeSet<Uuid>,
    /// How many they were at the last commit.
    held_told: u64,
    /// The newest cookie, while removals are held back.
    cookie: Option<Vec<u8>>,
    refresh: Option<Refreshing>,
    refreshes: u64,
    /// Whether the last refresh ended and changes come since.
    follows: bool,
}

/// A moment, by the clock that goes evenly and by the one on the wall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) at: Instant,
    pub(super) wall: SystemTime,
}

/// A refresh that is under way.
struct Refreshing {
    mentioned: Marks,
    gone: BTreeSet<Uuid>,
    unmentioned: bool,
    applied: Applied,
    began: Instant,
}

/// How a refresh ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refreshed {
    pub(super) applied: Applied,
    pub(super) took: Duration,
    /// Entries that would have gone, and did not.
    pub(super) held: u64,
}

impl Copy {
    /// The copy in `store`. Long work is given up between two commits once `stop` is set, and nothing is marked then.
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

    /// The cookie to ask with.
    pub(super) fn cookie(&self) -> Option<&[u8]> {
        self.mark.cookie.as_deref()
    }

    /// Removals that wait.
    pub(super) fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// Whether changes wait to be committed, or a cookie that covers more than the one that is kept, or others are held back
    /// than at the last commit.
    pub(super) fn has_changes(&self) -> bool {
        !self.batch.is_empty() || self.held_told != self.held() || (self.cookie.is_some() && self.held.is_empty())
    }

    /// Entries, and keys that they have.
    pub(super) fn counts(&self) -> heed::Result<(u64, u64)> {
        self.store.counts()
    }

    /// Refreshes that ended.
    pub(super) fn refreshes(&self) -> u64 {
        self.refreshes
    }

    /// What is known of removals, for the next copy.
    pub(super) fn into_removals(self) -> Removals {
        self.removals
    }

    /// The cookie is worth nothing; the next refresh is to be asked for without one.
    pub(super) fn forget_cookie(&mut self) -> heed::Result<()> {
        self.mark.cookie = None;
        self.cookie = None;
        self.store.apply(&Batch::default(), Some(&self.mark), &mut Marks::default(), &self.stop).map(drop)
    }

    /// Changes do not come any more; what is committed now is not what the master has.
    pub(super) fn lost(&mut self) {
        self.follows = false;
    }

    /// A refresh begins. Of one that did not end only what it put remains.
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

    /// The entry is there, and like this. Where it has no keys any more it goes as others do that are gone, for whoever
    /// asks it is.
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

    /// The entry is there as it was; false if the copy does not have it.
    pub(super) fn keep(&mut self, uuid: Uuid) -> heed::Result<bool> {
        let mut number = self.store.number(uuid)?;
        if number.is_none() && !self.batch.is_empty() {
            self.write(None)?;
            number = self.store.number(uuid)?;
        }
        let (Some(number), Some(refresh)) = (number, &mut self.refresh) else { return Ok(false) };
        refresh.mentioned.set(number);
        // Unless this refresh has said already that it is there without its keys.
        if !(self.emptied.contains(&uuid) && refresh.gone.contains(&uuid)) {
            refresh.gone.remove(&uuid);
            self.held.remove(&uuid);
            self.emptied.remove(&uuid);
        }
        Ok(true)
    }

    /// The entry is gone; it is removed when the refresh ends.
    pub(super) fn gone(&mut self, uuid: Uuid) {
        self.emptied.remove(&uuid);
        if let Some(refresh) = &mut self.refresh {
            refresh.gone.insert(uuid);
        }
    }

    /// Whatever this refresh did not mention until it ends is gone.
    pub(super) fn gone_unmentioned(&mut self) {
        if let Some(refresh) = &mut self.refresh {
            refresh.unmentioned = true;
        }
    }

    /// The refresh is over. What it found gone goes, if it is not too much.
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

    /// The entry was removed at the master just now. False if it is held back, as one too many.
    pub(super) fn remove(&mut self, uuid: Uuid, now: Now) -> heed::Result<bool> {
        self.emptied.remove(&uuid);
        self.held.remove(&uuid);
        self.lose(uuid, now)
    }

    /// Lets an entry go, or holds it back as one too many.
    fn lose(&mut self, uuid: Uuid, now: Now) -> heed::Result<bool> {
        // An entry that came just now must be known as one.
        if self.store.number(uuid)?.is_none() {
            self.batch.remove(uuid);
            return Ok(true);
        }
        let mut lost = self.store.irreplaceable(&[uuid])?.len() as u64;
        // Others that have its keys may be about to go.
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

    /// The entry goes, or what it answers.
    fn let_go(&mut self, uuid: Uuid) {
        match self.emptied.remove(&uuid) {
            true => self.batch.put(uuid, &[], Some(&[])),
            false => self.batch.remove(uuid),
        }
    }

    /// All changes so far are in this cookie.
    pub(super) fn covered(&mut self, cookie: Vec<u8>) {
        self.cookie = Some(cookie);
    }

    /// Commits what waits, with the cookie that covers it.
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

    /// Lets go what waits and does no harm any more.
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

    /// The operator lets all removals go that wait, if they are no more than he saw; returns how many went.
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
