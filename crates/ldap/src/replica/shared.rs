//! State shared by callers and the thread of a replica: the copy, its status, and requests to the
//! thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;
use tokio::sync::Notify;

use super::answer_index::AnswerIndex;
use super::store::CopyStore;
use lookup::{LookupAnswer, LookupStats, ReplicaStats};

/// The shared state.
pub(super) struct Shared {
    pub(super) name: Box<str>,
    /// None while the file is being reopened.
    store: RwLock<Option<Arc<CopyStore>>>,
    /// The index, used by each store in turn.
    pub(super) answers: Arc<AnswerIndex>,
    /// Odd while the copy is complete; incremented at each change.
    completions: AtomicU64,
    live: AtomicBool,
    /// Milliseconds since the epoch; 0 means never.
    agreed_millis: AtomicU64,
    held_back: AtomicU64,
    /// The number of held removals that the operator accepted; 0 if none are pending.
    accepted: AtomicU64,
    pub(super) stopped: Arc<AtomicBool>,
    /// Wakes the thread to stop it.
    pub(super) stopping: Notify,
    /// Wakes the thread when the operator has accepted removals.
    pub(super) accepting: Notify,
    found: AtomicU64,
    not_found: AtomicU64,
    unavailable: AtomicU64,
}

impl Shared {
    /// Creates the state for an open store and its index.
    pub(super) fn new(name: &str, store: CopyStore, answers: Arc<AnswerIndex>) -> Self {
        let shared = Shared {
            name: name.into(),
            store: RwLock::new(None),
            answers,
            completions: AtomicU64::new(0),
            live: AtomicBool::new(false),
            agreed_millis: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            stopped: Arc::new(AtomicBool::new(false)),
            stopping: Notify::new(),
            accepting: Notify::new(),
            found: AtomicU64::new(0),
            not_found: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
        };
        shared.set_store(Arc::new(store));
        shared
    }

    /// The store, for the thread only; None only while the file is being reopened.
    pub(super) fn store(&self) -> Option<Arc<CopyStore>> {
        self.store.read().clone()
    }

    /// Sets a newly opened store and takes the status from it.
    pub(super) fn set_store(&self, store: Arc<CopyStore>) {
        let mark = store.sync_state().unwrap_or_default();
        let agreed = mark.agreed.map_or(0, millis);
        *self.store.write() = Some(store);
        self.agreed_millis.store(agreed, Ordering::Relaxed);
        self.held_back.store(0, Ordering::Relaxed);
        self.set_completeness(mark.complete);
    }

    /// Drops the store, which closes the file before this returns.
    pub(super) fn drop_store(&self) {
        self.set_completeness(false);
        *self.store.write() = None;
    }

    /// Reads the index. Returns None if the copy is not complete.
    ///
    /// There is no lock that all readers would have to write to. A copy that is dropped is marked
    /// incomplete before its index is cleared shard by shard, so a reader of a cleared shard also
    /// sees the mark.
    pub(super) fn read_answers<T>(&self, ask: impl FnOnce(&AnswerIndex) -> T) -> Option<T> {
        let before = self.completions.load(Ordering::Acquire);
        if before.is_multiple_of(2) {
            return None;
        }
        let said = ask(&self.answers);
        (self.completions.load(Ordering::Acquire) == before).then_some(said)
    }

    /// The first load is complete.
    pub(super) fn set_complete(&self) {
        self.set_completeness(true);
    }

    fn is_complete(&self) -> bool {
        !self.completions.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// For the thread only.
    fn set_completeness(&self, whole: bool) {
        if self.is_complete() != whole {
            self.completions.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Changes now arrive as they happen.
    pub(super) fn set_live(&self, now: SystemTime) {
        if self.held_back.load(Ordering::Relaxed) == 0 {
            self.set_agreed(now);
        }
        self.live.store(true, Ordering::Relaxed);
    }

    /// Changes no longer arrive.
    pub(super) fn set_lost(&self, now: SystemTime) {
        if self.live.swap(false, Ordering::Relaxed) && self.held_back.load(Ordering::Relaxed) == 0 {
            self.set_agreed(now);
        }
    }

    /// The copy matches the server at this moment.
    pub(super) fn set_agreed(&self, now: SystemTime) {
        self.agreed_millis.store(millis(now), Ordering::Relaxed);
    }

    /// Sets the number of held removals. A live copy matches the server until the first and after
    /// the last of them.
    pub(super) fn set_held_back(&self, held: u64, now: SystemTime) {
        let before = self.held_back.swap(held, Ordering::Relaxed);
        if self.live.load(Ordering::Relaxed) && (before == 0) != (held == 0) {
            self.set_agreed(now);
        }
    }

    /// Time since the copy last matched the server; None if it never did.
    pub(super) fn age(&self) -> Option<Duration> {
        let is_same = self.live.load(Ordering::Relaxed) && self.held_back.load(Ordering::Relaxed) == 0;
        match (is_same, self.agreed_millis.load(Ordering::Relaxed)) {
            (true, _) => Some(Duration::ZERO),
            (false, 0) => None,
            (false, agreed) => Some(Duration::from_millis(millis(SystemTime::now()).saturating_sub(agreed))),
        }
    }

    /// Accepts the removals held back now. Returns false if there are none.
    pub(super) fn accept_removals(&self) -> bool {
        let held = self.held_back.load(Ordering::Relaxed);
        if held > 0 {
            self.accepted.store(held, Ordering::Relaxed);
            self.accepting.notify_one();
        }
        held > 0
    }

    /// Takes the number of removals that the operator accepted, if any.
    pub(super) fn take_accepted(&self) -> Option<u64> {
        Some(self.accepted.swap(0, Ordering::Relaxed)).filter(|&accepted| accepted > 0)
    }

    /// Stops the thread.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.stopping.notify_one();
    }

    /// Counts an answer from the copy.
    pub(super) fn count(&self, answer: &LookupAnswer) {
        let counter = match answer {
            LookupAnswer::Found(_) => &self.found,
            LookupAnswer::NotFound => &self.not_found,
            LookupAnswer::Unavailable(_) | LookupAnswer::Unconfirmed(_) => &self.unavailable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counters and status of the replica.
    pub(super) fn add_to(&self, stats: &mut LookupStats) {
        stats.found += self.found.load(Ordering::Relaxed);
        stats.not_found += self.not_found.load(Ordering::Relaxed);
        stats.unavailable += self.unavailable.load(Ordering::Relaxed);
        let store = self.store.read();
        let (entries, keys) = store.as_ref().and_then(|store| store.counts().ok()).unwrap_or_default();
        let held = self.held_back.load(Ordering::Relaxed);
        stats.replica = Some(ReplicaStats {
            entries,
            keys,
            complete: self.is_complete(),
            live: self.live.load(Ordering::Relaxed),
            age: self.age(),
            held_back: (held > 0).then_some(held),
            file_octets: store.as_ref().map_or(0, |store| store.octets()),
        });
    }
}

fn millis(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::answer_index::CopyAnswer;
    use crate::replica::batch::ChangeBatch;
    use crate::replica::entry_set::EntrySet;
    use crate::replica::store::SyncState;

    #[test]
    fn no_key_is_not_found_while_a_complete_copy_is_reopened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let answers = Arc::default();
        let (store, _) = CopyStore::open(&path, "of", &answers).unwrap();
        let mut batch = ChangeBatch::default();
        batch.put([1; 16], &["k".to_owned()], Some(&[]));
        let mark = SyncState { complete: true, ..SyncState::default() };
        store.apply(&batch, Some(&mark), &mut EntrySet::default(), &AtomicBool::default()).unwrap();
        let shared = Shared::new("t", store, answers.clone());
        assert_eq!(shared.read_answers(|copy| copy.find("k", 1)), Some(CopyAnswer::Found(vec![])));
        // A reader that starts before the copy is dropped and ends after it is back.
        let asked = shared.read_answers(|copy| {
            shared.drop_store();
            assert_eq!(shared.read_answers(|_| ()), None);
            copy.clear();
            let said = copy.find("k", 1);
            let (store, aside) = CopyStore::open(&path, "of", &answers).unwrap();
            shared.set_store(Arc::new(store));
            assert_eq!(aside, None);
            said
        });
        assert_eq!(asked, None);
        assert_eq!(shared.read_answers(|copy| copy.find("k", 1)), Some(CopyAnswer::Found(vec![])));
    }
}
