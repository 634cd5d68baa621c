//! What a question costs that the cache answers, beside one to a cdb in memory; and what questions cost that all miss
//! it, from a hundred askers on two runtimes, over a backend that answers at once. Run it with `--release`; a hit may cost
//! a microsecond. The time on the clock is more than that of the processor where others want the processor too.

use std::fs;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use lookup::backend::{Asked, Backend, Probed};
use lookup::cdb::{self, Cdb};
use lookup::layers::{Layered, Settings};
use lookup::{Answer, Answers, Table};

const PEOPLE: usize = 100_000;
const ROUNDS: usize = 2_000_000;
const ASKERS: usize = 50;
const QUESTIONS: usize = 2000;

/// A directory in which everyone is.
struct Everyone;

impl Backend for Everyone {
    fn ask<'a>(&'a self, keys: &'a [Box<str>]) -> Asked<'a> {
        let answers = keys.iter().map(|_| Answer::Found(vec!["mailbox@example.org".to_owned()])).collect();
        Box::pin(std::future::ready(Ok(answers)))
    }

    fn probe(&self) -> Probed<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let people: Arc<[String]> = (0..PEOPLE).map(|number| format!("person{number}@example.org")).collect();
    let cdb = database(&people)?;
    let layered = Layered::start("people", Everyone, Settings::default(), Arc::new(|_| {}))?;
    warm(&layered, &people)?;
    for (what, table) in [("a hit in a cdb", &cdb as &dyn Table), ("a hit in the cache", &layered)].repeat(3) {
        let (clock, processor) = hits(table, &people);
        tell(what, clock, processor);
    }
    thread::scope(|scope| {
        scope.spawn(|| hits(&layered, &people));
        let (clock, processor) = hits(&layered, &people);
        tell("a hit in the cache, while another thread asks", clock, processor);
    });
    let stats = layered.stats().unwrap_or_default();
    println!("    {} of {} keys were hits", stats.hits, stats.found);
    misses(&people)
}

/// Nanoseconds of a question that does not wait.
fn hits(table: &dyn Table, people: &[String]) -> (f64, f64) {
    let (clock, processor) = (Instant::now(), thread_ns());
    for number in 0..ROUNDS {
        // A stride that is prime to their number, so that neighbours in memory are not asked for in a row.
        let key = [people[number * 7919 % PEOPLE].as_str()];
        black_box(ready(table.lookup(&key)));
    }
    let each = |ns: u64| ns as f64 / ROUNDS as f64;
    (each(elapsed_ns(clock)), each(thread_ns() - processor))
}

fn ready(answers: Answers<'_>) -> Option<Vec<Answer>> {
    match pin!(answers).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => Some(answers),
        Poll::Pending => None,
    }
}

/// A hundred askers on two runtimes, each with one question after another, none of them in the cache.
fn misses(people: &Arc<[String]>) -> Result<(), Box<dyn std::error::Error>> {
    let uncached = Settings { cache: None, ..Settings::default() };
    let table = Arc::new(Layered::start("people", Everyone, uncached, Arc::new(|_| {}))?);
    let (clock, processor) = (Instant::now(), process_ns());
    let threads = [0, 1].map(|half| {
        let (table, people) = (table.clone(), people.clone());
        thread::spawn(move || ask_all(&table, &people, half))
    });
    for thread in threads {
        thread.join().map_err(|_| "an asker panicked")??;
    }
    let questions = (2 * ASKERS * QUESTIONS) as f64;
    let each = |ns: u64| ns as f64 / questions;
    let keys = questions / table.stats().unwrap_or_default().requests as f64;
    tell("a miss, a hundred askers on two runtimes", each(elapsed_ns(clock)), each(process_ns() - processor));
    println!("    {keys:.1} keys in a request");
    Ok(())
}

fn ask_all(table: &Arc<Layered>, people: &Arc<[String]>, half: usize) -> std::io::Result<()> {
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

/// All of them in a database of a file that is gone afterwards.
fn database(people: &[String]) -> Result<Cdb, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let (text, made) = (folder.path().join("people"), folder.path().join("people.cdb"));
    fs::write(&text, people.iter().map(|person| format!("{person} mailbox@example.org\n")).collect::<String>())?;
    cdb::build(&text, &made)?;
    Ok(Cdb::open("people", &made)?)
}

/// Brings all of them into the cache.
fn warm(table: &Layered, people: &[String]) -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        for some in people.chunks(1000) {
            let keys: Vec<&str> = some.iter().map(String::as_str).collect();
            table.lookup(&keys).await;
        }
    });
    Ok(())
}

fn tell(what: &str, clock: f64, processor: f64) {
    println!("{what:<48} {clock:>7.1} ns by the clock, {processor:>7.1} ns of the processor");
}

fn elapsed_ns(clock: Instant) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds that this thread has had a processor: the first of the numbers of `schedstat`, which moves with the ticks
/// of the scheduler; 0 where there is none.
fn thread_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The same for all threads there are and were: the times in user and in kernel mode of `stat`, in hundredths of a second.
fn process_ns() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10_000_000
}
