//! The file: entries can be found until they are removed, and damaged or foreign files are set
//! aside.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;
use crate::replica::answer_index::{CopyAnswer, KEY_OCTETS_MAX};

static GO_ON: AtomicBool = AtomicBool::new(false);

fn open(path: &Path) -> CopyStore {
    let (store, aside) = CopyStore::open(path, "of", &Arc::default()).unwrap();
    assert_eq!(aside, None);
    store
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tables/people");
    (folder, path)
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn complete() -> SyncState {
    SyncState { cookie: Some(b"cookie".to_vec()), complete: true, agreed: Some(UNIX_EPOCH + Duration::from_secs(7)) }
}

/// Writes entries of (UUID, keys, values), and the mark.
fn put(store: &CopyStore, entries: &[(u8, &[&str], &[&str])]) -> AppliedCounts {
    let mut batch = ChangeBatch::default();
    for (uuid, keys, values) in entries {
        batch.put([*uuid; 16], &texts(keys), Some(&texts(values)));
    }
    store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &GO_ON).unwrap()
}

fn remove(store: &CopyStore, uuids: &[u8]) -> AppliedCounts {
    let mut batch = ChangeBatch::default();
    uuids.iter().for_each(|&uuid| batch.remove([uuid; 16]));
    store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &GO_ON).unwrap()
}

fn said(store: &CopyStore, key: &str) -> CopyAnswer {
    store.answers.find(key, 1000)
}

fn found(values: &[&str]) -> CopyAnswer {
    CopyAnswer::Found(texts(values))
}

#[test]
fn an_entry_is_found_under_each_of_its_keys_until_it_goes() {
    let (_folder, path) = folder();
    let store = open(&path);
    assert_eq!(
        put(&store, &[(1, &["a", "b"], &["x", "y"]), (2, &["c"], &[])]),
        AppliedCounts { changed: 2, removed: 0 }
    );
    assert_eq!(said(&store, "a"), found(&["x", "y"]));
    assert_eq!(said(&store, "b"), found(&["x", "y"]));
    assert_eq!(said(&store, "c"), found(&[]));
    assert_eq!(said(&store, "ab"), CopyAnswer::NotFound);
    assert_eq!(store.counts().unwrap(), (2, 3));
    assert_eq!(put(&store, &[(1, &["b", "d"], &["z"]), (2, &["c"], &[])]), AppliedCounts { changed: 1, removed: 0 });
    assert_eq!(said(&store, "a"), CopyAnswer::NotFound);
    assert_eq!(said(&store, "b"), found(&["z"]));
    assert_eq!(said(&store, "d"), found(&["z"]));
    assert_eq!(remove(&store, &[1, 3]), AppliedCounts { changed: 0, removed: 1 });
    assert_eq!(said(&store, "b"), CopyAnswer::NotFound);
    assert_eq!(said(&store, "c"), found(&[]));
    assert_eq!(store.counts().unwrap(), (1, 1));
}

#[test]
fn a_key_of_several_entries_has_the_values_of_all_in_their_order_each_once() {
    let (_folder, path) = folder();
    let store = open(&path);
    put(&store, &[(9, &["k"], &["x", "y"])]);
    put(&store, &[(1, &["k"], &["y", "z"]), (2, &["kk"], &["w"])]);
    assert_eq!(said(&store, "k"), found(&["x", "y", "z"]));
    assert_eq!(store.answers.find("k", 2), CopyAnswer::TooMany);
    remove(&store, &[9]);
    assert_eq!(said(&store, "k"), found(&["y", "z"]));
}

#[test]
fn keys_a_copy_cannot_hold_are_asked_of_the_server() {
    let (_folder, path) = folder();
    let store = open(&path);
    for key in [String::new(), "ü@example.org".into(), "a\0b".into(), "k".repeat(KEY_OCTETS_MAX + 1)] {
        assert_eq!(said(&store, &key), CopyAnswer::AskServer);
    }
    let longest = "k".repeat(KEY_OCTETS_MAX);
    put(&store, &[(1, &[&longest], &["v"])]);
    assert_eq!(said(&store, &longest), found(&["v"]));
    let mut batch = ChangeBatch::default();
    batch.put([2; 16], &texts(&["binary"]), None);
    store.apply(&batch, None, &mut EntrySet::default(), &GO_ON).unwrap();
    assert_eq!(said(&store, "binary"), CopyAnswer::AskServer);
}

#[test]
fn a_complete_copy_is_there_again_after_a_restart_and_is_ours_alone() {
    let (_folder, path) = folder();
    let store = open(&path);
    put(&store, &[(1, &["a"], &["x"])]);
    assert!(matches!(CopyStore::open(&path, "of", &Arc::default()), Err(StoreError::InUse { .. })));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    drop(store);
    let store = open(&path);
    assert_eq!(said(&store, "a"), found(&["x"]));
    assert_eq!(store.sync_state().unwrap(), complete());
}

#[test]
fn half_a_load_and_a_copy_of_something_else_are_forgotten() {
    let (_folder, path) = folder();
    let store = open(&path);
    let mut batch = ChangeBatch::default();
    batch.put([1; 16], &texts(&["a"]), Some(&[]));
    store.load(&batch, &GO_ON).unwrap();
    assert_eq!(said(&store, "a"), found(&[]));
    drop(store);
    let store = open(&path);
    assert_eq!(said(&store, "a"), CopyAnswer::NotFound);
    put(&store, &[(1, &["a"], &["x"])]);
    drop(store);
    let (store, aside) = CopyStore::open(&path, "of another", &Arc::default()).unwrap();
    assert_eq!(
        (said(&store, "a"), store.sync_state().unwrap(), aside),
        (CopyAnswer::NotFound, SyncState::default(), None)
    );
}

#[test]
fn a_file_that_is_no_copy_or_not_all_of_one_is_set_aside_as_it_was() {
    let (folder, path) = folder();
    put(&open(&path), &[(1, &["a"], &["x"])]);
    let whole = std::fs::read(&path).unwrap();
    let page = page_size();
    let mut head = whole.clone();
    head[..2 * page].fill(0x5a);
    let mut holes = Vec::new();
    for number in 2..whole.len() / page {
        let mut hole = whole.clone();
        hole[number * page..(number + 1) * page].fill(0);
        holes.push(hole);
    }
    let cut = [whole[..2 * page].to_vec(), whole[..whole.len() - page].to_vec()];
    let foreign = [b"dn: cn=somebody\n".repeat(1000), vec![0; 100_000], b"x".to_vec(), head];
    for damaged in foreign.into_iter().chain(cut) {
        std::fs::write(&path, &damaged).unwrap();
        let (store, aside) = CopyStore::open(&path, "of", &Arc::default()).unwrap();
        let aside = aside.expect("it was set aside");
        assert_eq!(said(&store, "a"), CopyAnswer::NotFound);
        assert_eq!(std::fs::read(&aside.moved_to).unwrap(), damaged);
        assert!(!store.sync_state().unwrap().complete);
    }
    assert_eq!(std::fs::read_dir(folder.path().join("tables")).unwrap().count(), 2 + 6);
    let mut in_use = 0;
    for hole in &holes {
        std::fs::write(&path, hole).unwrap();
        let (store, aside) = CopyStore::open(&path, "of", &Arc::default()).unwrap();
        // An unused page may contain anything.
        assert_eq!(said(&store, "a"), if aside.is_some() { CopyAnswer::NotFound } else { found(&["x"]) });
        in_use += usize::from(aside.is_some());
    }
    assert!(in_use >= 4, "{in_use} of {}", holes.len());
}

#[test]
fn a_file_of_another_format_and_one_with_an_entry_that_is_none_are_set_aside() {
    let (_folder, path) = folder();
    type Change = fn(&CopyStore, &mut RwTxn) -> heed::Result<()>;
    let changes: [(Change, &str); 2] = [
        (|store, txn| store.state.put(txn, b"format", b"mailrace replica 1"), "unknown format"),
        (|store, txn| store.entries.put(txn, &[1; 16], &[0, 0, 0, 0, 9]), "MDB_CORRUPTED"),
    ];
    for (change, what) in changes {
        let store = open(&path);
        put(&store, &[(1, &["a"], &["x"])]);
        store.environment.write(|txn| change(&store, txn)).unwrap();
        drop(store);
        let (store, aside) = CopyStore::open(&path, "of", &Arc::default()).unwrap();
        let aside = aside.expect("it was set aside");
        assert!(aside.what.contains(what), "{aside}");
        assert!(aside.moved_to.exists());
        assert_eq!((said(&store, "a"), store.sync_state().unwrap()), (CopyAnswer::NotFound, SyncState::default()));
    }
}

#[test]
fn a_key_that_goes_from_one_entry_to_another_is_there_all_the_time() {
    let (_folder, path) = folder();
    let store = open(&path);
    put(&store, &[(1, &["moves", "stays"], &["old"]), (2, &["other"], &["new"])]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for key in ["moves", "stays"] {
                            let said = said(&store, key);
                            assert!(said == found(&["old"]) || said == found(&["new"]), "{key}: {said:?}");
                        }
                    }
                })
            })
            .collect();
        for round in 0..200 {
            // Both directions, so that the new owner of the keys is written first as well as last.
            let (loses, gains) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
            let value = if round % 2 == 0 { "new" } else { "old" };
            put(&store, &[(loses, &["other"], &[]), (gains, &["moves", "stays"], &[value])]);
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(store.counts().unwrap(), (2, 3));
}

#[test]
fn what_was_committed_before_it_failed_or_stopped_is_answered_as_it_is_in_the_file() {
    let (_folder, path) = folder();
    let store = open(&path);
    put(&store, &[(1, &["a"], &["x"])]);
    store.environment.write(|txn| store.entries.put(txn, &[3; 16], &[0, 0, 0, 0, 9])).unwrap();
    let mut batch = ChangeBatch::default();
    // More than one transaction; the last one meets the invalid entry.
    for entry in 0..CHANGES_PER_COMMIT as u32 {
        let mut uuid = [2; 16];
        uuid[..4].copy_from_slice(&entry.to_be_bytes());
        batch.put(uuid, &texts(&[&format!("k{entry}")]), Some(&[]));
    }
    batch.put([1; 16], &texts(&["b"]), Some(&texts(&["y"])));
    batch.put([3; 16], &texts(&["c"]), Some(&[]));
    assert!(store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &GO_ON).is_err());
    assert_eq!((said(&store, "k0"), said(&store, "k9999")), (found(&[]), found(&[])));
    assert_eq!(
        (said(&store, "a"), said(&store, "b"), said(&store, "c")),
        (found(&["x"]), CopyAnswer::NotFound, CopyAnswer::NotFound)
    );
}

#[test]
fn an_open_file_is_not_set_aside() {
    let (_folder, path) = folder();
    let store = open(&path);
    assert!(matches!(CopyStore::set_aside(&path, "x"), Err(StoreError::InUse { .. })));
    drop(store);
    let aside = CopyStore::set_aside(&path, "x").unwrap();
    assert!(aside.to_string().contains(": x; set aside as ") && !path.exists());
}

fn page_size() -> usize {
    4096
}

#[test]
fn the_map_grows_while_others_read() {
    let (_folder, path) = folder();
    let (store, _) = CopyStore::open_with_map(&path, "of", &Arc::default(), 1 << 20).unwrap();
    put(&store, &[(1, &["a"], &["x"])]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, stop) = (&store, &stop);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(said(store, "a"), found(&["x"]));
                    }
                })
            })
            .collect();
        let value = "v".repeat(300);
        for round in 2..42 {
            let mut batch = ChangeBatch::default();
            for entry in 0..200u8 {
                let mut uuid = [entry; 16];
                uuid[0] = round;
                batch.put(uuid, &texts(&[&format!("k{round}.{entry}")]), Some(&texts(&[&value])));
            }
            store.apply(&batch, None, &mut EntrySet::default(), &GO_ON).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(store.octets() > 2 << 20);
    assert_eq!(store.counts().unwrap(), (8001, 8001));
}

#[test]
fn nothing_is_marked_once_it_is_to_stop() {
    let (_folder, path) = folder();
    let store = open(&path);
    let stop = AtomicBool::new(true);
    let mut batch = ChangeBatch::default();
    store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &stop).unwrap();
    batch.put([1; 16], &texts(&["a"]), Some(&[]));
    store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &stop).unwrap();
    assert_eq!(store.sync_state().unwrap(), SyncState::default());
}

#[test]
fn only_entries_without_which_a_key_is_lost_are_irreplaceable() {
    let (_folder, path) = folder();
    let store = open(&path);
    put(&store, &[(1, &["a"], &[]), (2, &["a", "b"], &[]), (3, &["c"], &[]), (4, &[], &[]), (5, &["c"], &[])]);
    let irreplaceable = |uuids: &[u8]| -> Vec<u8> {
        let going: Vec<EntryUuid> = uuids.iter().map(|&uuid| [uuid; 16]).collect();
        store.irreplaceable(&going).unwrap().iter().map(|uuid| uuid[0]).collect()
    };
    assert_eq!(irreplaceable(&[1]), [0u8; 0]);
    assert_eq!(irreplaceable(&[2]), [2]);
    assert_eq!(irreplaceable(&[1, 2]), [1, 2]);
    assert_eq!(irreplaceable(&[3, 4, 6]), [0u8; 0]);
    assert_eq!(irreplaceable(&[3, 4, 5]), [3, 5]);
}

/// A step for the file and for the model.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, Vec<String>, Option<Vec<String>>),
    Remove(u8),
    Commit,
    Load,
    Restart,
    RemoveUnmentioned,
}

fn step() -> impl Strategy<Value = Step> {
    let keys = prop::collection::btree_set("[ab]{1,3}", 0..3).prop_map(|keys| keys.into_iter().collect::<Vec<_>>());
    let values = prop::option::weighted(0.9, prop::collection::vec("[xyz]{0,2}", 0..3));
    prop_oneof![
        6 => (0..6u8, keys, values).prop_map(|(uuid, keys, values)| Step::Put(uuid, keys, values)),
        2 => (0..6u8).prop_map(Step::Remove),
        2 => Just(Step::Commit),
        1 => Just(Step::Load),
        1 => Just(Step::Restart),
        1 => Just(Step::RemoveUnmentioned),
    ]
}

/// An entry of the model: time of arrival, keys, values.
type ModelEntry = (usize, Vec<String>, Option<Vec<String>>);

fn said_by(model: &BTreeMap<u8, ModelEntry>, key: &str) -> CopyAnswer {
    let mut entries: Vec<&ModelEntry> =
        model.values().filter(|entry| entry.1.iter().any(|other| other == key)).collect();
    entries.sort();
    if entries.is_empty() {
        return CopyAnswer::NotFound;
    }
    let mut values: Vec<String> = Vec::new();
    for entry in entries {
        let Some(of_entry) = &entry.2 else { return CopyAnswer::AskServer };
        for value in of_entry {
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
    }
    CopyAnswer::Found(values)
}

fn sort(said: CopyAnswer) -> CopyAnswer {
    match said {
        CopyAnswer::Found(mut values) => {
            values.sort();
            CopyAnswer::Found(values)
        }
        said => said,
    }
}

#[test]
fn a_large_file_is_whole_and_not_so_with_any_of_its_pages_spoilt() {
    let (_folder, path) = folder();
    let store = open(&path);
    let value = "v".repeat(200);
    let mut batch = ChangeBatch::default();
    for entry in 0..4000u32 {
        let mut uuid = [0; 16];
        uuid[..4].copy_from_slice(&entry.wrapping_mul(0x9e37_79b1).to_be_bytes());
        let long = value.repeat(if entry % 100 == 0 { 60 } else { 1 });
        batch.put(uuid, &texts(&[&format!("k{entry}")]), Some(&[long]));
    }
    store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &GO_ON).unwrap();
    remove(&store, &[0]);
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let spoilt = path.with_extension("spoilt");
    let is_whole = |octets: &[u8]| {
        std::fs::write(&spoilt, octets).unwrap();
        crate::replica::file_check::check_file(&std::fs::File::open(&spoilt).unwrap()).is_ok()
    };
    assert!(is_whole(&whole));
    let pages = whole.len() / page_size();
    assert!(pages > 200);
    let spoils = (2..pages).step_by(7).filter(|number| {
        let mut octets = whole.clone();
        octets[number * page_size()..(number + 1) * page_size()].fill(0xa5);
        !is_whole(&octets)
    });
    assert!(spoils.count() > pages / 7 / 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_sequence_of_steps_leaves_the_file_equal_to_a_model(steps in prop::collection::vec(step(), 1..40)) {
        let (_folder, path) = folder();
        let mut store = Some(open(&path));
        let mut model: BTreeMap<u8, ModelEntry> = BTreeMap::new();
        let mut marks = EntrySet::default();
        let mut mentioned = Vec::new();
        let mut batch = ChangeBatch::default();
        store.as_ref().unwrap().apply(&batch, Some(&complete()), &mut marks, &GO_ON).unwrap();
        for (time, step) in steps.into_iter().chain([Step::Commit]).enumerate() {
            let open_store = store.as_ref().unwrap();
            match step {
                Step::Put(uuid, keys, values) => {
                    batch.put([uuid; 16], &keys, values.as_deref());
                    model.insert(uuid, (time, keys, values));
                    mentioned.push(uuid);
                }
                Step::Remove(uuid) => {
                    batch.remove([uuid; 16]);
                    model.remove(&uuid);
                }
                Step::Commit => {
                    open_store.apply(&batch, Some(&complete()), &mut marks, &GO_ON).unwrap();
                    batch.clear();
                }
                // A load has no removals and adds nothing to the set.
                Step::Load if (0..batch.len()).all(|at| matches!(batch.change(at), EntryChange::Put { .. })) => {
                    open_store.load(&batch, &GO_ON).unwrap();
                    for at in 0..batch.len() {
                        marks.insert(open_store.number(batch.change(at).uuid()).unwrap().unwrap());
                    }
                    batch.clear();
                }
                Step::Load => {}
                Step::Restart => {
                    open_store.apply(&batch, Some(&complete()), &mut marks, &GO_ON).unwrap();
                    batch.clear();
                    drop(store.take());
                    store = Some(open(&path));
                }
                Step::RemoveUnmentioned => {
                    open_store.apply(&batch, Some(&complete()), &mut marks, &GO_ON).unwrap();
                    batch.clear();
                    open_store.entries_not_in(&marks).unwrap().into_iter().for_each(|uuid| batch.remove(uuid));
                    model.retain(|uuid, _| mentioned.contains(uuid));
                    marks = EntrySet::default();
                    mentioned.clear();
                    // Remaining entries have not been mentioned since.
                    open_store.apply(&batch, Some(&complete()), &mut EntrySet::default(), &GO_ON).unwrap();
                    batch.clear();
                }
            }
        }
        let store = store.unwrap();
        let keys: Vec<String> = model.values().flat_map(|entry| entry.1.clone()).chain(["a".into(), "bb".into()]).collect();
        for key in keys {
            prop_assert_eq!(sort(said(&store, &key)), sort(said_by(&model, &key)), "{}", key);
        }
        let answers = model.values().map(|entry| entry.1.len() as u64).sum::<u64>();
        prop_assert_eq!(store.counts().unwrap(), (model.len() as u64, answers));
    }
}
