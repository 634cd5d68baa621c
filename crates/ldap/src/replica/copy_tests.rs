//! Refreshes and removals with a file, without a server.

use std::time::UNIX_EPOCH;

use super::*;
use crate::replica::answer_index::{AnswerIndex, CopyAnswer};

struct Fixture {
    copy: ReplicaCopy,
    store: Arc<CopyStore>,
    answers: Arc<AnswerIndex>,
    now: ClockReading,
    _folder: tempfile::TempDir,
}

fn uuid(entry: u8) -> EntryUuid {
    [entry; 16]
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let answers = Arc::default();
        let (store, _) = CopyStore::open(&folder.path().join("copy"), "of", &answers).unwrap();
        let store = Arc::new(store);
        let now = ClockReading { at: Instant::now(), wall: UNIX_EPOCH + Duration::from_secs(1000) };
        let copy = ReplicaCopy::new(store.clone(), RemovalLimit::new(0.1, now.at), Arc::default()).unwrap();
        Fixture { copy, store, answers, now, _folder: folder }
    }

    /// A copy of entries 0 to `count`, each with its own key.
    fn loaded(count: u8) -> Self {
        let mut fixture = Fixture::new();
        fixture.copy.begin_refresh(fixture.now).unwrap();
        (0..count).for_each(|entry| fixture.put(entry, &format!("k{entry}")));
        let refreshed = fixture.agreed("c1").unwrap();
        assert_eq!((refreshed.applied, refreshed.held_back), (AppliedCounts { changed: count.into(), removed: 0 }, 0));
        fixture
    }

    fn put(&mut self, entry: u8, key: &str) {
        self.copy.put(uuid(entry), &[key.to_owned()], Some(&[]), self.now).unwrap();
    }

    /// Puts an entry that exists but has lost its keys.
    fn put_emptied(&mut self, entry: u8) {
        self.copy.put(uuid(entry), &[], Some(&[]), self.now).unwrap();
    }

    fn keep(&mut self, entries: std::ops::Range<u8>) {
        entries.for_each(|entry| assert!(self.copy.confirm(uuid(entry)).unwrap()));
    }

    fn remove(&mut self, entry: u8) -> bool {
        self.copy.remove(uuid(entry), self.now).unwrap()
    }

    fn agreed(&mut self, cookie: &str) -> Option<RefreshSummary> {
        self.copy.finish_refresh(Some(cookie.as_bytes().to_vec()), self.now).unwrap()
    }

    /// The first `count` entries that have answers.
    fn known(&self, count: u8) -> Vec<u8> {
        (0..count).filter(|entry| self.answers.find(&format!("k{entry}"), 9) == CopyAnswer::Found(vec![])).collect()
    }

    fn kept_cookie(&self) -> Option<String> {
        self.store.sync_state().unwrap().cookie.map(|cookie| String::from_utf8(cookie).unwrap())
    }
}

#[test]
fn a_load_is_complete_only_when_it_has_ended() {
    let mut fixture = Fixture::new();
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.put(1, "k1");
    fixture.copy.commit(fixture.now).unwrap();
    assert!(!fixture.store.sync_state().unwrap().complete);
    // After a lost connection the loaded entries are forgotten, because they may be gone by now.
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.put(2, "k2");
    fixture.agreed("c1");
    assert_eq!(fixture.known(4), [2]);
    let mark = fixture.store.sync_state().unwrap();
    assert_eq!((mark.complete, mark.agreed), (true, Some(fixture.now.wall)));
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c1"));
}

#[test]
fn what_a_refresh_did_not_mention_goes_at_its_end_and_not_before() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.keep(0..24);
    fixture.put(24, "k24");
    fixture.copy.mark_unmentioned_gone();
    fixture.copy.commit(fixture.now).unwrap();
    assert_eq!(fixture.known(30).len(), 30);
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c1"));
    let refreshed = fixture.agreed("c2").unwrap();
    assert_eq!((refreshed.applied, refreshed.held_back), (AppliedCounts { changed: 0, removed: 5 }, 0));
    assert_eq!(fixture.known(30).len(), 25);
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c2"));
}

#[test]
fn a_refresh_that_is_cut_short_removes_nothing_and_keeps_the_cookie() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.copy.mark_gone(uuid(1));
    fixture.copy.mark_unmentioned_gone();
    fixture.put(40, "k40");
    fixture.copy.commit(fixture.now).unwrap();
    fixture.copy.begin_refresh(fixture.now).unwrap();
    assert_eq!((fixture.known(50).len(), fixture.kept_cookie().as_deref()), (31, Some("c1")));
    fixture.copy.mark_gone(uuid(2));
    fixture.agreed("c2");
    assert_eq!(fixture.known(3), [0, 1]);
}

#[test]
fn an_entry_that_the_copy_has_not_cannot_be_kept() {
    let mut fixture = Fixture::loaded(3);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    assert!(!fixture.copy.confirm(uuid(9)).unwrap());
    fixture.put(9, "k9");
    assert!(fixture.copy.confirm(uuid(9)).unwrap());
}

#[test]
fn a_refresh_that_would_remove_too_much_adds_and_changes_but_removes_nothing() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.keep(0..10);
    fixture.put(40, "k40");
    fixture.copy.mark_unmentioned_gone();
    let refreshed = fixture.agreed("c2").unwrap();
    assert_eq!((refreshed.applied, refreshed.held_back), (AppliedCounts { changed: 1, removed: 0 }, 20));
    assert_eq!(fixture.known(50).len(), 31);
    // No cookie is stored from now on, so that after a restart the server reports the removals
    // again.
    fixture.put(41, "k41");
    fixture.copy.set_cookie(b"c3".to_vec());
    fixture.copy.commit(fixture.now).unwrap();
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c1"));
    // A later refresh that removes less goes through.
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.keep(0..22);
    fixture.keep(40..42);
    fixture.copy.mark_unmentioned_gone();
    let refreshed = fixture.agreed("c4").unwrap();
    assert_eq!((refreshed.applied.removed, refreshed.held_back), (8, 0));
    assert_eq!(fixture.known(50).len(), 24);
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c4"));
}

#[test]
fn the_operator_can_let_it_go() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.copy.mark_unmentioned_gone();
    assert_eq!(fixture.agreed("c2").unwrap().held_back, 30);
    fixture.put(5, "k5");
    assert_eq!(fixture.copy.accept_removals(28, fixture.now).unwrap(), 0);
    assert_eq!((fixture.copy.held_back(), fixture.known(30).len()), (29, 30));
    assert_eq!(fixture.copy.accept_removals(30, fixture.now).unwrap(), 29);
    assert_eq!((fixture.copy.held_back(), fixture.known(30)), (0, vec![5]));
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c2"));
    assert_eq!(fixture.copy.accept_removals(30, fixture.now).unwrap(), 0);
}

#[test]
fn what_a_refresh_has_confirmed_is_not_let_go() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.copy.mark_unmentioned_gone();
    assert_eq!(fixture.agreed("c2").unwrap().held_back, 30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.keep(0..12);
    assert_eq!(fixture.copy.accept_removals(30, fixture.now).unwrap(), 18);
    assert_eq!(fixture.known(30), (0..12).collect::<Vec<u8>>());
}

#[test]
fn accepted_removals_without_a_connection_do_not_renew_the_agreement() {
    let mut fixture = Fixture::loaded(30);
    let agreed = fixture.now.wall;
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.copy.mark_unmentioned_gone();
    fixture.agreed("c2");
    fixture.now.wall += Duration::from_secs(60);
    fixture.copy.disconnected();
    assert_eq!(fixture.copy.accept_removals(30, fixture.now).unwrap(), 30);
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c2"));
    assert_eq!(fixture.store.sync_state().unwrap().agreed, Some(agreed));
}

#[test]
fn removals_one_by_one_are_held_back_when_they_become_too_many() {
    let mut fixture = Fixture::loaded(30);
    assert!((0..10).all(|entry| fixture.remove(entry)));
    assert!(!fixture.remove(10) && !fixture.remove(11));
    assert!(fixture.copy.has_changes());
    fixture.copy.set_cookie(b"c2".to_vec());
    fixture.copy.commit(fixture.now).unwrap();
    assert!(!fixture.copy.has_changes());
    assert_eq!((fixture.copy.held_back(), fixture.known(30).len()), (2, 20));
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c1"));
    // One of them returns, and a new entry has the key of the other.
    fixture.put(10, "k10");
    fixture.put(50, "k11");
    fixture.copy.release_harmless(fixture.now).unwrap();
    assert_eq!((fixture.copy.held_back(), fixture.known(30).len()), (0, 20));
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c2"));
    assert_eq!(fixture.store.number(uuid(11)).unwrap(), None);
}

#[test]
fn entries_that_are_made_anew_with_the_same_keys_are_no_removals() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    (0..30).for_each(|entry| fixture.put(100 + entry, &format!("k{entry}")));
    fixture.copy.mark_unmentioned_gone();
    let refreshed = fixture.agreed("c2").unwrap();
    assert_eq!((refreshed.applied, refreshed.held_back), (AppliedCounts { changed: 30, removed: 30 }, 0));
    assert_eq!(fixture.known(30).len(), 30);
}

#[test]
fn the_last_of_those_that_share_a_key_is_a_removal_also_if_they_go_together() {
    let mut fixture = Fixture::loaded(30);
    assert!((0..10).all(|entry| fixture.remove(entry)));
    fixture.put(40, "k20");
    fixture.copy.commit(fixture.now).unwrap();
    assert!(fixture.remove(20));
    assert!(!fixture.remove(40));
    fixture.copy.commit(fixture.now).unwrap();
    assert_eq!((fixture.copy.held_back(), fixture.known(30).len()), (1, 20));
}

#[test]
fn entries_that_lose_all_their_keys_in_a_refresh_are_removals() {
    let mut fixture = Fixture::loaded(30);
    fixture.copy.begin_refresh(fixture.now).unwrap();
    (0..25).for_each(|entry| fixture.put_emptied(entry));
    fixture.keep(24..30);
    fixture.copy.mark_unmentioned_gone();
    assert_eq!(fixture.agreed("c2").unwrap().held_back, 25);
    assert_eq!((fixture.known(30).len(), fixture.kept_cookie().as_deref()), (30, Some("c1")));
    // The next refresh has keys again for some of them, and confirms others without keys.
    fixture.copy.begin_refresh(fixture.now).unwrap();
    (0..5).for_each(|entry| fixture.put(entry, &format!("k{entry}")));
    (5..25).for_each(|entry| fixture.put_emptied(entry));
    fixture.keep(25..30);
    fixture.copy.mark_gone(uuid(24));
    fixture.copy.mark_unmentioned_gone();
    assert_eq!(fixture.agreed("c3").unwrap().held_back, 20);
    assert_eq!(fixture.copy.accept_removals(20, fixture.now).unwrap(), 20);
    assert_eq!(fixture.known(30), [0, 1, 2, 3, 4, 25, 26, 27, 28, 29]);
    // All still exist except the removed one.
    assert!(fixture.store.number(uuid(5)).unwrap().is_some());
    assert_eq!(fixture.store.number(uuid(24)).unwrap(), None);
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c3"));
}

#[test]
fn entries_that_lose_all_their_keys_one_by_one_are_removals() {
    let mut fixture = Fixture::loaded(30);
    (0..12).for_each(|entry| fixture.put_emptied(entry));
    fixture.copy.set_cookie(b"c2".to_vec());
    fixture.copy.commit(fixture.now).unwrap();
    assert_eq!((fixture.copy.held_back(), fixture.known(30).len()), (2, 20));
    // A held entry without keys may be removed entirely.
    assert!(!fixture.remove(10));
    fixture.put(11, "k11");
    assert_eq!(fixture.copy.accept_removals(1, fixture.now).unwrap(), 1);
    assert_eq!((fixture.copy.held_back(), fixture.known(30).len()), (0, 19));
    assert_eq!(fixture.store.number(uuid(10)).unwrap(), None);
    assert!(fixture.store.number(uuid(0)).unwrap().is_some());
    assert_eq!(fixture.kept_cookie().as_deref(), Some("c2"));
}

#[test]
fn a_refresh_that_ends_during_shutdown_is_not_recorded() {
    let mut fixture = Fixture::new();
    fixture.copy.begin_refresh(fixture.now).unwrap();
    fixture.put(1, "k1");
    fixture.copy.stop.store(true, Ordering::Relaxed);
    assert_eq!(fixture.agreed("c1"), None);
    fixture.copy.commit(fixture.now).unwrap();
    assert_eq!(fixture.store.sync_state().unwrap(), SyncState::default());
}
