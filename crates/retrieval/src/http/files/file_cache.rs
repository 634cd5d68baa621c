//! A cache of small files by the path of the request, shared by all threads. It is bounded in
//! entries and octets; what was not used since the last look is evicted first (the clock
//! algorithm). It keeps no file open.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use mail::Timestamp;
use parking_lot::Mutex;
use protocol::http::server::Resource;

use super::FileCacheSettings;
use crate::http::file_version::FileVersion;

/// Threads rarely meet in one of so many parts.
const SHARDS: usize = 16;
/// What an entry needs beside its content and path, roughly.
const ENTRY_OCTETS: usize = 512;

/// A file in memory.
#[derive(Debug)]
pub(super) struct SmallFile {
    pub(super) resource: Arc<Resource>,
    pub(super) version: FileVersion,
    /// A later change shows in the version.
    pub(super) is_settled: bool,
}

/// The cache.
pub(super) struct FileCache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    time: Duration,
    entries_max: usize,
    octets_max: usize,
}

/// A file in the cache.
pub(super) struct CachedFile {
    pub(super) file: Arc<SmallFile>,
    /// It was checked a moment ago.
    pub(super) is_fresh: bool,
}

#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    places: HashMap<Arc<[u8]>, usize>,
    octets: usize,
    /// Where the next search for an unused slot begins.
    hand: usize,
}

struct Slot {
    path: Arc<[u8]>,
    file: Arc<SmallFile>,
    checked_at: Timestamp,
    was_used: bool,
}

impl FileCache {
    pub(super) fn new(settings: &FileCacheSettings) -> FileCache {
        FileCache {
            shards: Default::default(),
            hasher: RandomState::new(),
            time: settings.time,
            entries_max: settings.entries_max / SHARDS,
            octets_max: settings.octets_max / SHARDS,
        }
    }

    /// The file that this path led to.
    pub(super) fn get(&self, path: &[u8], now: Timestamp) -> Option<CachedFile> {
        let mut shard = self.shard(path).lock();
        let place = *shard.places.get(path)?;
        let slot = shard.slots.get_mut(place)?;
        slot.was_used = true;
        Some(CachedFile { file: slot.file.clone(), is_fresh: now < slot.checked_at + self.time })
    }

    /// The path leads to this file now.
    pub(super) fn insert(&self, path: &[u8], file: &Arc<SmallFile>, now: Timestamp) {
        let mut shard = self.shard(path).lock();
        shard.remove(path);
        let slot = Slot { path: path.into(), file: file.clone(), checked_at: now, was_used: true };
        if slot.octets() > self.octets_max || self.entries_max == 0 {
            return;
        }
        while shard.slots.len() >= self.entries_max || shard.octets + slot.octets() > self.octets_max {
            shard.evict();
        }
        shard.octets += slot.octets();
        let place = shard.slots.len();
        shard.places.insert(slot.path.clone(), place);
        shard.slots.push(slot);
    }

    /// The path does not lead to a small file any more.
    pub(super) fn remove(&self, path: &[u8]) {
        self.shard(path).lock().remove(path);
    }

    /// The number of entries, and their octets.
    #[cfg(test)]
    pub(super) fn usage(&self) -> (usize, usize) {
        let usage = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            (shard.slots.len(), shard.octets)
        };
        self.shards.iter().map(usage).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn shard(&self, path: &[u8]) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(path) as usize % SHARDS]
    }
}

impl Shard {
    fn remove(&mut self, path: &[u8]) {
        if let Some(place) = self.places.get(path) {
            self.remove_at(*place);
        }
    }

    /// Evicts a slot; there is one.
    fn evict(&mut self) {
        loop {
            self.hand %= self.slots.len();
            if !std::mem::take(&mut self.slots[self.hand].was_used) {
                return self.remove_at(self.hand);
            }
            self.hand += 1;
        }
    }

    /// The last slot takes the place of the removed one.
    fn remove_at(&mut self, place: usize) {
        let slot = self.slots.swap_remove(place);
        self.octets -= slot.octets();
        self.places.remove(&slot.path);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.path.clone(), place);
        }
    }
}

impl Slot {
    fn octets(&self) -> usize {
        self.file.resource.octets() as usize + self.path.len() + ENTRY_OCTETS
    }
}
