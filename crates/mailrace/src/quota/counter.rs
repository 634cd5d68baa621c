//! Threads that wait for the disk so that sessions and deliveries need not. Some read the usage
//! files, others count Maildirs, so that a quick read does not wait behind a long count. A Maildir
//! is counted once at a time, for all callers; one that took long is not recounted soon (see
//! [`Slow`]). The threads end when nothing can request a count any more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime};

use mailbox::quota::{self, Limits, Standing, Usage};

use super::slow::Slow;

/// Threads of each kind. More would only compete for the disk.
const THREADS: usize = 2;
/// The most waiting checks, counts, and callers that wait for counts; beyond it, the answer is
/// "unknown".
const WAITING_MAX: usize = 10_000;

/// Called with the usage of a Maildir; None if unknown.
pub(super) type Done = Box<dyn FnOnce(Option<Usage>) + Send>;

/// A handle to the threads.
#[derive(Clone)]
pub struct Counter {
    looks: SyncSender<Look>,
    counts: Counts,
}

/// Asks whether a Maildir has room.
pub(super) struct Look {
    pub(super) folder: PathBuf,
    pub(super) limits: Limits,
    /// The additional usage.
    pub(super) more: Usage,
    /// Called with what is known; None if unknown.
    pub(super) done: Box<dyn FnOnce(Option<Standing>) + Send>,
}

/// Counts that are waiting or running.
#[derive(Clone)]
struct Counts {
    jobs: SyncSender<(PathBuf, Limits)>,
    desk: Arc<Mutex<Desk>>,
}

#[derive(Default)]
struct Desk {
    /// Counts that are waiting or running.
    asked: HashMap<PathBuf, Asked>,
    /// All callers that wait for them.
    waiting: usize,
    slow: Slow,
}

/// A count that is waiting or running.
struct Asked {
    since: Instant,
    waiting: Vec<Done>,
}

impl Counter {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub fn start() -> io::Result<Counter> {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let (looks, questions) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, desk: Arc::default() };
        let desk = counts.desk.clone();
        spawn("quota-count", folders, move |(folder, limits)| count(&desk, folder, limits))?;
        let counter = Counter { looks, counts: counts.clone() };
        spawn("quota-look", questions, move |question| look(&counts, question))?;
        Ok(counter)
    }

    /// Reads the usage file, and counts if that does not decide the question.
    pub(super) fn look(&self, question: Look) {
        if let Err(mpsc::TrySendError::Full(question) | mpsc::TrySendError::Disconnected(question)) =
            self.looks.try_send(question)
        {
            (question.done)(None);
        }
    }

    /// Counts the Maildir, joins a running count, or returns a recent slow count. Returns when the
    /// count was first requested.
    pub(super) fn recount(&self, folder: PathBuf, limits: Limits, done: Done) -> Instant {
        self.counts.ask(folder, limits, done, Instant::now())
    }

    /// Adds delivered messages to the usage of these Maildirs.
    pub(super) fn add<'a>(&self, added: impl Iterator<Item = (&'a Path, Usage)>) {
        let mut desk = lock(&self.counts.desk);
        added.for_each(|(folder, usage)| desk.slow.add(folder, usage));
    }

    /// For tests: counts never finish while the job queue is kept.
    #[cfg(test)]
    pub(super) fn stuck() -> (Counter, Receiver<(PathBuf, Limits)>) {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, desk: Arc::default() };
        (Counter { looks: mpsc::sync_channel(1).0, counts }, folders)
    }

    /// For tests: as if a slow count had just finished.
    #[cfg(test)]
    pub(super) fn recall(&self, folder: &Path, usage: Usage) {
        lock(&self.counts.desk).slow.learn(folder, usage, super::PATIENCE, Instant::now());
    }
}

impl Counts {
    fn ask(&self, folder: PathBuf, limits: Limits, done: Done, now: Instant) -> Instant {
        let known = lock(&self.desk).slow.find(&folder, now);
        let Some(known) = known else { return self.begin(folder, limits, Some(done), now) };
        if known.is_due {
            self.begin(folder, limits, None, now);
        }
        done(Some(known.usage));
        now
    }

    /// Starts a count unless one is pending. The callback is queued, unless too many are waiting.
    fn begin(&self, folder: PathBuf, limits: Limits, mut done: Option<Done>, now: Instant) -> Instant {
        let mut desk = lock(&self.desk);
        if desk.waiting >= WAITING_MAX
            && let Some(done) = done.take()
        {
            drop(desk);
            done(None);
            return now;
        }
        desk.waiting += usize::from(done.is_some());
        match desk.asked.entry(folder.clone()) {
            Entry::Occupied(mut asked) => {
                asked.get_mut().waiting.extend(done);
                return asked.get().since;
            }
            Entry::Vacant(asked) => drop(asked.insert(Asked { since: now, waiting: done.into_iter().collect() })),
        }
        drop(desk);
        if let Err(mpsc::TrySendError::Full((folder, _)) | mpsc::TrySendError::Disconnected((folder, _))) =
            self.jobs.try_send((folder, limits))
        {
            answer(&self.desk, &folder, None);
        }
        now
    }
}

fn look(counts: &Counts, question: Look) {
    let Look { folder, limits, more, done } = question;
    // An unreadable file is treated as missing.
    match quota::recorded(&folder, limits, SystemTime::now()).ok().flatten() {
        Some(standing) if standing.decides(limits, more) => done(Some(standing)),
        _ => {
            let settled = |usage| Standing { usage, is_settled: true };
            counts.ask(folder, limits, Box::new(move |usage| done(usage.map(settled))), Instant::now());
        }
    }
}

fn count(desk: &Mutex<Desk>, folder: PathBuf, limits: Limits) {
    let begun_at = Instant::now();
    let usage = quota::recount(&folder, limits).ok();
    if let Some(usage) = usage {
        let now = Instant::now();
        lock(desk).slow.learn(&folder, usage, now - begun_at, now);
    }
    answer(desk, &folder, usage);
}

fn answer(desk: &Mutex<Desk>, folder: &Path, usage: Option<Usage>) {
    let answered = lock(desk).take(folder);
    answered.into_iter().for_each(|done| done(usage));
}

impl Desk {
    /// The callers that wait for a finished count.
    fn take(&mut self, folder: &Path) -> Vec<Done> {
        let waiting = self.asked.remove(folder).map(|asked| asked.waiting).unwrap_or_default();
        self.waiting -= waiting.len();
        waiting
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    // A panic with the lock held has already aborted the process.
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts threads that process jobs in order.
fn spawn<T: Send + 'static>(
    name: &str,
    jobs: Receiver<T>,
    work: impl Fn(T) + Clone + Send + 'static,
) -> io::Result<()> {
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..THREADS {
        let (jobs, work) = (jobs.clone(), work.clone());
        let next = move || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        thread::Builder::new().name(name.into()).spawn(move || {
            while let Ok(job) = next() {
                work(job);
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits = Limits { bytes: 100, messages: 0 };

    #[test]
    fn who_asks_while_a_maildir_is_counted_is_told_by_the_same_count() {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, desk: Arc::default() };
        let root = tempfile::tempdir().unwrap();
        let (sender, told) = mpsc::channel();
        for number in 0..3 {
            let sender = sender.clone();
            let done = move |usage: Option<Usage>| sender.send((number, usage)).unwrap();
            counts.ask(root.path().into(), LIMITS, Box::new(done), Instant::now());
        }
        let (folder, limits) = folders.try_recv().unwrap();
        assert!(folders.try_recv().is_err(), "there is one job for all three");
        count(&counts.desk, folder, limits);
        let usage = Some(Usage::default());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(0, usage), (1, usage), (2, usage)]);
        let desk = lock(&counts.desk);
        assert!(desk.asked.is_empty() && desk.waiting == 0);
    }

    #[test]
    fn who_comes_when_too_many_wait_is_told_at_once_that_nobody_can_say() {
        let (jobs, _folders) = mpsc::sync_channel(1);
        let counts = Counts { jobs, desk: Arc::default() };
        let (sender, told) = mpsc::channel();
        for folder in ["a", "b"] {
            let sender = sender.clone();
            let done = Box::new(move |usage| sender.send((folder, usage)).unwrap());
            counts.ask(folder.into(), LIMITS, done, Instant::now());
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [("b", None)]);
    }

    /// Regression: the number of callers waiting for one count was not limited.
    #[test]
    fn who_comes_when_too_many_wait_for_one_count_is_told_the_same() {
        let (jobs, folders) = mpsc::sync_channel(1);
        let counts = Counts { jobs, desk: Arc::default() };
        let (sender, told) = mpsc::channel();
        let root = tempfile::tempdir().unwrap();
        for number in 0..WAITING_MAX + 1 {
            let sender = sender.clone();
            let done = Box::new(move |usage: Option<Usage>| sender.send((number, usage)).unwrap());
            counts.ask(root.path().into(), LIMITS, done, Instant::now());
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(WAITING_MAX, None)]);
        let (folder, limits) = folders.try_recv().unwrap();
        count(&counts.desk, folder, limits);
        assert_eq!(told.try_iter().filter(|(_, usage)| usage.is_some()).count(), WAITING_MAX);
        assert_eq!(lock(&counts.desk).waiting, 0);
    }

    /// Regression: a mailbox that changed during each count was counted again and again, and never
    /// limited.
    #[test]
    fn a_maildir_that_took_long_to_count_is_left_alone_for_a_while_and_nobody_waits_for_it() {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, desk: Arc::default() };
        let (sender, told) = mpsc::channel();
        let ask = |now| {
            let sender = sender.clone();
            let done = Box::new(move |usage| sender.send(usage).unwrap());
            counts.ask("a".into(), LIMITS, done, now);
        };
        let (held, now) = (Usage { bytes: 90, messages: 9 }, Instant::now());
        lock(&counts.desk).slow.learn(Path::new("a"), held, Duration::from_secs(2), now);
        ask(now);
        assert_eq!(told.try_recv(), Ok(Some(held)));
        assert!(folders.try_recv().is_err(), "it rests");
        let later = now + Duration::from_secs(201);
        for _ in 0..2 {
            ask(later);
            assert_eq!(told.try_recv(), Ok(Some(held)));
        }
        assert!(folders.try_recv().is_ok(), "it is counted again");
        assert!(folders.try_recv().is_err(), "but only once");
    }

    #[test]
    fn a_count_tells_since_when_it_has_been_asked_for() {
        let (jobs, _folders) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, desk: Arc::default() };
        let now = Instant::now();
        let since = |folder: &str, now| counts.ask(folder.into(), LIMITS, Box::new(drop), now);
        let later = now + Duration::from_secs(1);
        assert_eq!((since("a", now), since("a", later), since("b", later)), (now, now, later));
    }

    #[test]
    fn a_look_counts_only_where_the_file_does_not_tell() {
        let root = tempfile::tempdir().unwrap();
        ["tmp", "new", "cur"].iter().for_each(|part| fs::create_dir(root.path().join(part)).unwrap());
        let counter = Counter::start().unwrap();
        let standing = |bytes| {
            let (sender, told) = mpsc::channel();
            let done = Box::new(move |standing| sender.send(standing).unwrap());
            counter.look(Look { folder: root.path().into(), limits: LIMITS, more: Usage::message(bytes), done });
            told.recv().unwrap().map(|standing: Standing| (standing.usage.bytes, standing.is_settled))
        };
        fs::write(root.path().join("maildirsize"), "100S\n60 1\n-20 -1\n").unwrap();
        assert_eq!(standing(60), Some((40, false)));
        assert_eq!(standing(61), Some((0, true)), "it would not fit, so the mailbox was counted");
        assert_eq!(fs::read_to_string(root.path().join("maildirsize")).unwrap(), "100S\n0 0\n");
    }
}
