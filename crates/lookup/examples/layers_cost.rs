//! Measures lookups: cache hits beside hits in a cdb in memory, and misses of a hundred concurrent
//! callers on two runtimes, with a backend that answers immediately. Use `--release`; a hit should
//! take less than a microsecond. On a busy machine the elapsed time exceeds the CPU time.

use std::fs;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use lookup::backend::{Backend, BackendFuture, ProbeFuture};
use lookup::cdb::{self, Cdb};
use lookup::layers::{BackendSettings, BackendTable};
use lookup::{LookupAnswer, LookupFuture, Table};

const PEOPLE: usize = 100_000;
const ROUNDS: usize = 2_000_000;
const ASKERS: usize = 50;
const QUESTIONS: usize = 2000;

/// A backend that has every key.
struct Everyone;

impl Backend for Everyone {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> BackendFuture<'a> {
        let answers = keys.iter().map(|_| LookupAnswer::Found(vec!["mailbox@example.org".to_owned()])).collect();
        Box::pin(std::future::ready(Ok(answers)))
    }

    fn probe(&self) -> ProbeFuture<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let people: Arc<[String]> = (0..PEOPLE).map(|number| format!("person{number}@example.org")).collect();
    let cdb = database(&people)?;
    let layered = BackendTable::start("people", Everyone, BackendSettings::default(), Arc::new(|_| {}))?;
    warm(&layered, &people)?;
    for (what, table) in [("cdb hit", &cdb as &dyn Table), ("cache hit", &layered)].repeat(3) {
        let (clock, processor) = hits(table, &people);
        print_times(what, clock, processor);
    }
    thread::scope(|scope| {
        scope.spawn(|| hits(&layered, &people));
        let (clock, processor) = hits(&layered, &people);
        print_times("cache hit while another thread reads", clock, processor);
    });
    let stats = layered.stats().unwrap_or_default();
    println!("    {} of {} keys were hits", stats.hits, stats.found);
    misses(&people)
}

/// Nanoseconds per lookup that does not wait, elapsed and of CPU time.
fn hits(table: &dyn Table, people: &[String]) -> (f64, f64) {
    let (clock, processor) = (Instant::now(), thread_ns());
    for number in 0..ROUNDS {
        // The stride is coprime to the number of keys, so that consecutive lookups are not
        // neighbors in memory.
        let key = [people[number * 7919 % PEOPLE].as_str()];
        black_box(ready(table.lookup(&key)));
    }
    let each = |ns: u64| ns as f64 / ROUNDS as f64;
    (each(elapsed_ns(clock)), each(thread_ns() - processor))
}

fn ready(answers: LookupFuture<'_>) -> Option<Vec<LookupAnswer>> {
    match pin!(answers).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => Some(answers),
        Poll::Pending => None,
    }
}

/// A hundred callers on two runtimes, each with one lookup after another, none cached.
fn misses(people: &Arc<[String]>) -> Result<(), Box<dyn std::error::Error>> {
    let uncached = BackendSettings { cache: None, ..BackendSettings::default() };
    let table = Arc::new(BackendTable::start("people", Everyone, uncached, Arc::new(|_| {}))?);
    let (clock, processor) = (Instant::now(), process_ns());
    let threads = [0, 1].map(|half| {
        let (table, people) = (table.clone(), people.clone());
        thread::spawn(move || ask_all(&table, &people, half))
    });
    for thread in threads {
        thread.join().map_err(|_| "a caller panicked")??;
    }
    let questions = (2 * ASKERS * QUESTIONS) as f64;
    let each = |ns: u64| ns as f64 / questions;
    let keys = questions / table.stats().unwrap_or_default().requests as f64;
    print_times(
        "cache miss, a hundred callers on two runtimes",
        each(elapsed_ns(clock)),
        each(process_ns() - processor),
    );
    println!("    {keys:.1} keys per request");
    Ok(())
}

fn ask_all(table: &Arc<BackendTable>, people: &Arc<[String]>, half: usize) -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut askers = tokio::task::JoinSet::new();
        for asker in 0..ASKERS {
            let (table, people) = (table.clone(), people.clone());
            askers.spawn(async move {
                let first = (half * ASKERS + asker) * QUESTIONS;
                for number in first..first + QUESTIONS {
                    black_box(table.lookup(&[people[number % PEOPLE].as_str()]).await);
                }
            });
        }
        askers.join_all().await;
    });
    Ok(())
}

/// A cdb of all keys, from a temporary file.
fn database(people: &[String]) -> Result<Cdb, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (text, made) = (folder.path().join("people"), folder.path().join("people.cdb"));
    fs::write(&text, people.iter().map(|person| format!("{person} mailbox@example.org\n")).collect::<String>())?;
    cdb::build(&text, &made)?;
    Ok(Cdb::open("people", &made)?)
}

/// Fills the cache with all keys.
fn warm(table: &BackendTable, people: &[String]) -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        for some in people.chunks(1000) {
            let keys: Vec<&str> = some.iter().map(String::as_str).collect();
            table.lookup(&keys).await;
        }
    });
    Ok(())
}

fn print_times(what: &str, clock: f64, processor: f64) {
    println!("{what:<48} {clock:>7.1} ns elapsed, {processor:>7.1} ns CPU time");
}

fn elapsed_ns(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this thread in nanoseconds: the first number of `schedstat`, updated at scheduler
/// ticks; 0 if there is none.
fn thread_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// CPU time of the process in nanoseconds: user and system time from `stat`, in hundredths of a
/// second.
fn process_ns() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10_000_000
}
