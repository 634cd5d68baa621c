//! The index against a model, its memory use, and concurrent reads.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::replica::batch::pack;

fn packed(texts: &[&str]) -> Vec<u8> {
    let mut octets = Vec::new();
    texts.iter().for_each(|text| pack(&mut octets, text));
    octets
}

fn found(values: &[&str]) -> CopyAnswer {
    CopyAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

fn remove(answers: &AnswerIndex, key: &str, number: u32) {
    answers.apply(&[IndexEdit::Remove { key: key.into(), number }]);
}

impl AnswerIndex {
    /// Allocated memory in octets.
    fn octets(&self) -> usize {
        let shards = self.shards.iter().map(|shard| shard.read());
        let octets = shards.map(|shard| shard.slots.octets() + shard.arena.capacity());
        octets.sum::<usize>() + size_of_val(&*self.shards)
    }

    fn garbage(&self) -> usize {
        let garbage = |arena: &Arena| arena.octet_count() - arena.in_use();
        self.shards.iter().map(|shard| garbage(&shard.read().arena)).sum()
    }
}

#[test]
fn entries_with_one_key_answer_in_the_order_of_their_numbers() {
    let answers = AnswerIndex::default();
    for (number, values) in [(3, &["c", "a"][..]), (1, &["a"]), (2, &[]), (4, &["d"])] {
        answers.add("k", number, &packed(values));
    }
    assert_eq!(answers.find("k", 9), found(&["a", "c", "d"]));
    assert_eq!(answers.find("k", 2), CopyAnswer::TooMany);
    assert_eq!(answers.find("kk", 2), CopyAnswer::NotFound);
    answers.add("k", 0, NOT_COPYABLE);
    assert_eq!(answers.find("k", 2), CopyAnswer::AskServer);
    // Removes records from the middle, end and beginning of a chain.
    for (number, left) in [(1, 4), (3, 3), (0, 2), (3, 2), (4, 1)] {
        remove(&answers, "k", number);
        assert_eq!(answers.len(), left);
    }
    assert_eq!(answers.find("k", 9), found(&[]));
    remove(&answers, "k", 2);
    assert_eq!(answers.find("k", 9), CopyAnswer::NotFound);
}

#[test]
fn all_entries_of_a_key_are_tested_and_there_must_be_one() {
    let answers = AnswerIndex::default();
    assert!(!answers.exists_and_all("k", |_| true));
    answers.add("k", 1, b"");
    answers.add("k", 2, b"");
    assert!(answers.exists_and_all("k", |number| number < 3));
    assert!(!answers.exists_and_all("k", |number| number < 2));
}

#[test]
fn values_too_long_for_a_record_are_asked_of_the_server() {
    let answers = AnswerIndex::default();
    let most = "v".repeat(VALUES_OCTETS_MAX - 4);
    answers.add("most", 1, &packed(&[&most]));
    answers.add("more", 1, &packed(&[&most, ""]));
    assert_eq!((answers.find("most", 9), answers.find("more", 9)), (found(&[&most]), CopyAnswer::AskServer));
    let longest = "k".repeat(KEY_OCTETS_MAX);
    answers.add(&longest, 1, &packed(&["v"]));
    answers.add(&longest, 2, &packed(&["w"]));
    assert_eq!(answers.find(&longest, 9), found(&["v", "w"]));
}

#[test]
fn a_user_takes_at_most_seventy_octets() {
    let answers = AnswerIndex::default();
    for number in 0..150_000 {
        answers.add(&format!("user{number:06}@example"), number, &packed(&[&format!("example/user{number:06}/")]));
        if number >= 50_000 && number % 10_000 == 0 {
            let each = answers.octets() as f64 / f64::from(number);
            assert!(each < 70.0, "{each} at {number}");
        }
    }
    assert_eq!(answers.find("user149999@example", 1), found(&["example/user149999/"]));
    // Repeated changes leave at most an eighth unused.
    for round in 0..5 {
        let values = packed(&[&format!("example/{round:012}")]);
        let keys: Vec<String> = (0..150_000).map(|number| format!("user{number:06}@example")).collect();
        let edits = keys.iter().zip(0..).map(|(key, number)| IndexEdit::Replace { key, number, values: &values });
        for run in edits.collect::<Vec<_>>().chunks(10_000) {
            answers.apply(run);
        }
    }
    let each = answers.octets() as f64 / 150_000.0;
    assert!(each < 78.0 && answers.garbage() * 8 <= answers.octets(), "{each}");
    let edits: Vec<IndexEdit> = (0..150_000)
        .map(|number| IndexEdit::Remove { key: format!("user{number:06}@example").into(), number })
        .collect();
    answers.apply(&edits);
    assert_eq!(answers.len(), 0);
    assert!(answers.octets() < 1 << 20, "{}", answers.octets());
}

#[test]
fn readers_find_unchanged_keys_during_changes() {
    let answers = AnswerIndex::default();
    for number in 0..500 {
        answers.add(&format!("stays{number}"), number, &packed(&["v"]));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for number in 0..500 {
                            assert_eq!(answers.find(&format!("stays{number}"), 1), found(&["v"]));
                        }
                    }
                })
            })
            .collect();
        for round in 0..20 {
            let keys: Vec<String> = (0..2000).map(|number| format!("goes{round}.{number}")).collect();
            answers
                .apply(&keys.iter().map(|key| IndexEdit::Add { key, number: 1000, values: b"" }).collect::<Vec<_>>());
            let stays: Vec<String> = (0..500).map(|number| format!("stays{number}")).collect();
            let values = packed(&["v"]);
            let replaced =
                stays.iter().zip(0..).map(|(key, number)| IndexEdit::Replace { key, number, values: &values });
            answers.apply(&replaced.collect::<Vec<_>>());
            keys.iter().for_each(|key| remove(&answers, key, 1000));
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert_eq!(answers.len(), 500);
}

#[derive(Clone, Debug)]
enum Step {
    Put(String, u32, Vec<String>),
    Remove(String, u32),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || "[abc]{1,2}";
    prop_oneof![
        100 => (key(), 0..4u32, prop::collection::vec("[xyz]{0,60}", 0..3)).prop_map(|(k, n, v)| Step::Put(k, n, v)),
        60 => (key(), 0..4u32).prop_map(|(key, number)| Step::Remove(key, number)),
        1 => Just(Step::Clear),
    ]
}

/// A single shard with colliding tags.
struct CollidingShard(Shard);

impl CollidingShard {
    fn tag(key: &str) -> Tag {
        Tag::of(u64::MAX - 2 * (key.len() as u64 % 2))
    }
}

proptest! {
    #[test]
    fn any_steps_leave_the_table_equal_to_a_model(steps in prop::collection::vec(step(), 1..300)) {
        let answers = AnswerIndex::default();
        let mut crowded = CollidingShard(Shard::default());
        let mut model: BTreeMap<(String, u32), Vec<String>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, number, values) => {
                    let octets = packed(&values.iter().map(String::as_str).collect::<Vec<_>>());
                    let edit = match model.insert((key.clone(), number), values) {
                        Some(_) => IndexEdit::Replace { key: &key, number, values: &octets },
                        None => IndexEdit::Add { key: &key, number, values: &octets },
                    };
                    crowded.0.apply(CollidingShard::tag(&key), &edit);
                    answers.apply(&[edit]);
                }
                Step::Remove(key, number) => {
                    model.remove(&(key.clone(), number));
                    let edit = IndexEdit::Remove { key: key.clone().into(), number };
                    crowded.0.apply(CollidingShard::tag(&key), &edit);
                    answers.apply(&[edit]);
                }
                Step::Clear => {
                    model.clear();
                    answers.clear();
                    crowded.0 = Shard::default();
                }
            }
            crowded.0.compact();
            prop_assert_eq!(answers.len(), model.len() as u64);
            prop_assert_eq!(crowded.0.records, model.len());
            let keys = model.keys().map(|(key, _)| key.as_str()).collect::<std::collections::BTreeSet<_>>();
            prop_assert_eq!(crowded.0.slots.key_count(), keys.len());
            for key in keys.into_iter().chain(["nobody"]) {
                let mut values: Option<Vec<String>> = None;
                for (_, more) in model.range((key.to_owned(), 0)..=(key.to_owned(), u32::MAX)) {
                    let values = values.get_or_insert_default();
                    for value in more {
                        if !values.contains(value) {
                            values.push(value.clone());
                        }
                    }
                }
                prop_assert_eq!(answers.find(key, 99), values.map_or(CopyAnswer::NotFound, CopyAnswer::Found));
                let numbers = |slot| crowded.0.records_of(slot).map(|(_, record)| record.number).collect::<std::collections::BTreeSet<_>>();
                let expected = model.keys().filter(|of| of.0 == key).map(|of| of.1).collect();
                prop_assert_eq!(crowded.0.find(CollidingShard::tag(key), key).map(numbers).unwrap_or_default(), expected);
            }
        }
    }
}
