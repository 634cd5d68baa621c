//! Many callers on several runtimes, some of which cancel, and a backend that is slow, fails and
//! has outages at random. Every lookup gets the right answers, or Unavailable if something failed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lookup::backend::{Backend, BackendFailure, BackendFuture, ProbeFuture};
use lookup::layers::{BackendSettings, BackendTable, CacheSettings};
use lookup::{LookupAnswer, Table, TableEvent};
use proptest::prelude::*;
use tokio::task::JoinSet;

const CALLERS: u64 = 4;
const KEYS: u64 = 40;

/// A small random number generator (splitmix64), so that runs depend only on the seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// One in three keys does not exist.
fn truth(key: &str) -> LookupAnswer {
    match key[1..].parse::<u64>().unwrap() {
        number if number % 3 == 0 => LookupAnswer::NotFound,
        number => LookupAnswer::Found(vec![key.to_owned(), number.to_string()]),
    }
}

/// A backend that checks the rules for requests.
struct CheckedBackend {
    batch_max: usize,
    concurrency: usize,
    failures_percent: u64,
    chance: Mutex<Rng>,
    under_way: Mutex<HashSet<Box<str>>>,
    requests: AtomicUsize,
    broken: Arc<Mutex<Vec<String>>>,
}

impl CheckedBackend {
    fn begin(&self, keys: &[Box<str>]) {
        let mut broken = self.broken.lock().unwrap();
        if self.requests.fetch_add(1, Relaxed) >= self.concurrency {
            broken.push("too many requests at once".to_owned());
        }
        if keys.is_empty() || keys.len() > self.batch_max {
            broken.push(format!("{} keys in a request", keys.len()));
        }
        let mut under_way = self.under_way.lock().unwrap();
        for key in keys {
            if !under_way.insert(key.clone()) {
                broken.push(format!("{key} is under way twice"));
            }
        }
    }

    fn end(&self, keys: &[Box<str>]) {
        self.requests.fetch_sub(1, Relaxed);
        let mut under_way = self.under_way.lock().unwrap();
        under_way.retain(|key| !keys.contains(key));
    }

    fn below(&self, bound: u64) -> u64 {
        self.chance.lock().unwrap().below(bound)
    }

    fn fails(&self) -> bool {
        self.below(100) < self.failures_percent
    }

    fn answer(&self, key: &str) -> LookupAnswer {
        if self.failures_percent > 0 && self.below(50) == 0 {
            return LookupAnswer::Unavailable("too many values".to_owned());
        }
        truth(key)
    }

    async fn random_delay(&self) {
        match self.below(4) {
            0 => {}
            1 => tokio::time::sleep(Duration::from_micros(self.below(2000))).await,
            _ => tokio::task::yield_now().await,
        }
    }
}

impl Backend for CheckedBackend {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        Box::pin(async move {
            self.begin(keys);
            self.random_delay().await;
            self.end(keys);
            match self.fails() {
                true => Err(BackendFailure::new("backend", "random failure")),
                false => Ok(keys.iter().map(|key| self.answer(key)).collect()),
            }
        })
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(
            async move { if self.fails() { Err(BackendFailure::new("backend", "random failure")) } else { Ok(()) } },
        )
    }
}

/// Counts of answers over all callers.
#[derive(Default)]
struct AnswerCounts {
    answers: AtomicU64,
    unavailable: AtomicU64,
}

/// Looks up a few keys, possibly duplicates; one lookup in ten is cancelled.
async fn ask(table: &BackendTable, seed: u64, score: &AnswerCounts) {
    let mut chance = Rng(seed);
    let keys: Vec<String> = (0..1 + chance.below(4)).map(|_| format!("k{}", chance.below(KEYS))).collect();
    let shouted: Vec<String> = keys.iter().map(|key| key.to_uppercase()).collect();
    let asked: Vec<&str> = shouted.iter().map(String::as_str).collect();
    let question = table.lookup(&asked);
    if chance.below(10) == 0 {
        let patience = Duration::from_micros(chance.below(1000));
        // Cancelled lookups are not counted.
        if let Ok(answers) = tokio::time::timeout(patience, question).await {
            check_answers(&keys, &answers, score);
        }
    } else {
        check_answers(&keys, &question.await, score);
    }
}

fn check_answers(keys: &[String], answers: &[LookupAnswer], score: &AnswerCounts) {
    assert_eq!(keys.len(), answers.len());
    for (key, answer) in keys.iter().zip(answers) {
        score.answers.fetch_add(1, Relaxed);
        match answer {
            LookupAnswer::Unavailable(_) => _ = score.unavailable.fetch_add(1, Relaxed),
            LookupAnswer::Unconfirmed(_) => {
                assert_eq!(truth(key), LookupAnswer::NotFound, "{key}");
                score.unavailable.fetch_add(1, Relaxed);
            }
            answer => assert_eq!(*answer, truth(key), "{key}"),
        }
    }
}

/// A caller with its own runtime and many concurrent lookups.
fn run_caller(table: &Arc<BackendTable>, seed: u64, questions: u64, score: &Arc<AnswerCounts>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        let mut chance = Rng(seed);
        for _ in 0..questions {
            let (table, score, seed) = (table.clone(), score.clone(), chance.below(u64::MAX));
            tasks.spawn(async move { ask(&table, seed, &score).await });
            if tasks.len() >= 20 {
                tasks.join_next().await.unwrap().unwrap();
            }
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
}

#[derive(Clone, Debug)]
struct Scenario {
    seed: u64,
    settings: BackendSettings,
    failures_percent: u64,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let cache = prop_oneof![
        Just(None),
        (0u64..3, 0u64..3).prop_map(|(ttl, negative)| {
            let millis = |step| Duration::from_millis([0, 2, 10_000][step as usize]);
            let stale_if_error = Duration::from_millis(20);
            Some(CacheSettings { ttl: millis(ttl), negative_ttl: millis(negative), stale_if_error, entries: 30 })
        })
    ];
    let failures = prop_oneof![Just(0), Just(5), Just(50)];
    (any::<u64>(), cache, 1usize..9, 1usize..4, 1usize..4, failures).prop_map(
        |(seed, cache, batch_max, concurrency, failures_max, failures_percent)| {
            let probe_every = Duration::from_millis(1);
            let settings = BackendSettings {
                cache,
                batch_max,
                concurrency,
                failures_max,
                probe_interval: probe_every,
                ..BackendSettings::default()
            };
            Scenario { seed, settings, failures_percent }
        },
    )
}

fn run_scenario(Scenario { seed, settings, failures_percent }: Scenario) -> Result<(), TestCaseError> {
    let broken = Arc::new(Mutex::new(Vec::new()));
    let judge = CheckedBackend {
        batch_max: settings.batch_max,
        concurrency: settings.concurrency,
        failures_percent,
        chance: Mutex::new(Rng(seed)),
        under_way: Mutex::default(),
        requests: AtomicUsize::new(0),
        broken: broken.clone(),
    };
    let transitions = Arc::new(Mutex::new(Vec::new()));
    let told = transitions.clone();
    let tell = Arc::new(move |event| match event {
        TableEvent::Down { .. } => told.lock().unwrap().push("down"),
        TableEvent::Up { .. } => told.lock().unwrap().push("up"),
        _ => {}
    });
    let table = Arc::new(BackendTable::start("judged", judge, settings, tell).unwrap());
    let score = Arc::new(AnswerCounts::default());
    thread::scope(|scope| {
        let callers: Vec<_> = (1..=CALLERS)
            .map(|caller| (table.clone(), score.clone(), seed.wrapping_mul(caller)))
            .map(|(table, score, seed)| scope.spawn(move || run_caller(&table, seed, 200, &score)))
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
    // Requests without callers end on their own.
    while table.stats().unwrap().waiting > 0 {
        thread::yield_now();
    }
    let stats = table.stats().unwrap();
    drop(Arc::into_inner(table).unwrap());
    prop_assert_eq!(&*broken.lock().unwrap(), &Vec::<String>::new());
    prop_assert_eq!(stats.found + stats.not_found + stats.unavailable, score.answers.load(Relaxed));
    prop_assert_eq!(stats.unavailable, score.unavailable.load(Relaxed));
    prop_assert!(failures_percent > 0 || stats.unavailable == 0);
    prop_assert!(stats.requests >= stats.failures && stats.request_micros.count() == stats.requests);
    let transitions = transitions.lock().unwrap();
    prop_assert!(
        transitions.iter().enumerate().all(|(place, what)| *what == ["down", "up"][place % 2]),
        "{transitions:?}"
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn every_question_is_answered_and_no_answer_is_wrong(scene in scenarios()) {
        run_scenario(scene)?;
    }
}
