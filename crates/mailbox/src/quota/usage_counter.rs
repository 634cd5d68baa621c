//! Threads that wait for the disk so that sessions and deliveries need not. Some read the usage
//! files, others count Maildirs, so that a quick read does not wait behind a long count. A Maildir
//! is counted once at a time, for all callers; one that took long is not recounted soon (see
//! [`SlowCounts`]). The threads end when nothing can request a count any more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;

use super::slow_counts::SlowCounts;
use super::{QuotaLimits, Usage, UsageEstimate, read_usage, recount};

/// Threads of each kind. More would only compete for the disk.
const THREADS: usize = 2;
/// The most waiting checks, counts, and callers that wait for counts; beyond it, the answer is
/// "unknown".
const WAITING_MAX: usize = 10_000;

/// Called with the usage of a Maildir; None if unknown.
pub(super) type CountCallback = Box<dyn FnOnce(Option<Usage>) + Send>;

/// A handle to the threads.
#[derive(Clone)]
pub struct UsageCounter {
    look_sender: SyncSender<UsageCheck>,
    count_queue: CountQueue,
}

/// Asks whether a Maildir has room.
pub(super) struct UsageCheck {
    pub(super) folder: PathBuf,
    pub(super) limits: QuotaLimits,
    /// The additional usage.
    pub(super) more: Usage,
    /// Called with what is known; None if unknown.
    pub(super) done: Box<dyn FnOnce(Option<UsageEstimate>) + Send>,
}

/// Counts that are waiting or running.
#[derive(Clone)]
struct CountQueue {
    jobs: SyncSender<(PathBuf, QuotaLimits)>,
    state: Arc<Mutex<CountQueueState>>,
}

#[derive(Default)]
struct CountQueueState {
    /// Counts that are waiting or running.
    pending: HashMap<PathBuf, PendingCount>,
    /// All callers that wait for them.
    waiting: usize,
    slow_counts: SlowCounts,
}

/// A count that is waiting or running.
struct PendingCount {
    since: Instant,
    waiting: Vec<CountCallback>,
}

impl UsageCounter {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub fn start() -> io::Result<UsageCounter> {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let (check_sender, checks) = mpsc::sync_channel(WAITING_MAX);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        let state = count_queue.state.clone();
        spawn("quota-count", folders, move |(folder, limits)| run_count(&state, folder, limits))?;
        let counter = UsageCounter { look_sender: check_sender, count_queue: count_queue.clone() };
        spawn("quota-look", checks, move |check| run_check(&count_queue, check))?;
        Ok(counter)
    }

    /// Reads the usage file, and counts if that does not decide the question.
    pub(super) fn check(&self, check: UsageCheck) {
        if let Err(mpsc::TrySendError::Full(question) | mpsc::TrySendError::Disconnected(question)) =
            self.look_sender.try_send(check)
        {
            (question.done)(None);
        }
    }

    /// Counts the Maildir, joins a running count, or returns a recent slow count. Returns when the
    /// count was first requested.
    pub(super) fn count(&self, folder: PathBuf, limits: QuotaLimits, done: CountCallback) -> Instant {
        self.count_queue.request(folder, limits, done, Instant::now())
    }

    /// Adds delivered messages to the usage of these Maildirs.
    pub(super) fn add<'a>(&self, added: impl Iterator<Item = (&'a Path, Usage)>) {
        let mut state = self.count_queue.state.lock();
        added.for_each(|(folder, usage)| state.slow_counts.add(folder, usage));
    }

    /// For tests: counts never finish while the job queue is kept.
    #[cfg(test)]
    pub(super) fn with_stuck_threads() -> (UsageCounter, Receiver<(PathBuf, QuotaLimits)>) {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        (UsageCounter { look_sender: mpsc::sync_channel(1).0, count_queue }, folders)
    }

    /// For tests: as if a slow count had just finished.
    #[cfg(test)]
    pub(super) fn record_slow_count(&self, folder: &Path, usage: Usage) {
        self.count_queue.state.lock().slow_counts.record(folder, usage, super::QUOTA_TIME_MAX, Instant::now());
    }
}

impl CountQueue {
    fn request(&self, folder: PathBuf, limits: QuotaLimits, done: CountCallback, now: Instant) -> Instant {
        let known = self.state.lock().slow_counts.find(&folder, now);
        let Some(known) = known else { return self.start_count(folder, limits, Some(done), now) };
        if known.is_due {
            self.start_count(folder, limits, None, now);
        }
        done(Some(known.usage));
        now
    }

    /// Starts a count unless one is pending. The callback is queued, unless too many are waiting.
    fn start_count(
        &self,
        folder: PathBuf,
        limits: QuotaLimits,
        mut done: Option<CountCallback>,
        now: Instant,
    ) -> Instant {
        let mut state = self.state.lock();
        if state.waiting >= WAITING_MAX
            && let Some(done) = done.take()
        {
            drop(state);
            done(None);
            return now;
        }
        state.waiting += usize::from(done.is_some());
        match state.pending.entry(folder.clone()) {
            Entry::Occupied(mut asked) => {
                asked.get_mut().waiting.extend(done);
                return asked.get().since;
            }
            Entry::Vacant(asked) => {
                asked.insert(PendingCount { since: now, waiting: done.into_iter().collect() });
            }
        }
        drop(state);
        if let Err(mpsc::TrySendError::Full((folder, _)) | mpsc::TrySendError::Disconnected((folder, _))) =
            self.jobs.try_send((folder, limits))
        {
            finish_count(&self.state, &folder, None);
        }
        now
    }
}

fn run_check(count_queue: &CountQueue, check: UsageCheck) {
    let UsageCheck { folder, limits, more, done } = check;
    // An unreadable file is treated as missing.
    match read_usage(&folder, limits, SystemTime::now()).ok().flatten() {
        Some(standing) if standing.is_conclusive(limits, more) => done(Some(standing)),
        _ => {
            let settled = |usage| UsageEstimate { usage, is_reliable: true };
            count_queue.request(folder, limits, Box::new(move |usage| done(usage.map(settled))), Instant::now());
        }
    }
}

fn run_count(state: &Mutex<CountQueueState>, folder: PathBuf, limits: QuotaLimits) {
    let started_at = Instant::now();
    let usage = recount(&folder, limits).ok();
    if let Some(usage) = usage {
        let now = Instant::now();
        state.lock().slow_counts.record(&folder, usage, now - started_at, now);
    }
    finish_count(state, &folder, usage);
}

fn finish_count(state: &Mutex<CountQueueState>, folder: &Path, usage: Option<Usage>) {
    let waiting = state.lock().take_waiting(folder);
    waiting.into_iter().for_each(|done| done(usage));
}

impl CountQueueState {
    /// The callers that wait for a finished count.
    fn take_waiting(&mut self, folder: &Path) -> Vec<CountCallback> {
        let waiting = self.pending.remove(folder).map(|asked| asked.waiting).unwrap_or_default();
        self.waiting -= waiting.len();
        waiting
    }
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
        let next = move || jobs.lock().recv();
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

    const LIMITS: QuotaLimits = QuotaLimits { bytes: 100, messages: 0 };

    #[test]
    fn concurrent_requests_share_one_count() {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        let root = tempfile::tempdir().unwrap();
        let (sender, told) = mpsc::channel();
        for number in 0..3 {
            let sender = sender.clone();
            let done = move |usage: Option<Usage>| sender.send((number, usage)).unwrap();
            count_queue.request(root.path().into(), LIMITS, Box::new(done), Instant::now());
        }
        let (folder, limits) = folders.try_recv().unwrap();
        assert!(folders.try_recv().is_err(), "there is one job for all three");
        run_count(&count_queue.state, folder, limits);
        let usage = Some(Usage::default());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(0, usage), (1, usage), (2, usage)]);
        let state = count_queue.state.lock();
        assert!(state.pending.is_empty() && state.waiting == 0);
    }

    #[test]
    fn a_full_queue_answers_unknown() {
        let (jobs, _folders) = mpsc::sync_channel(1);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        let (sender, told) = mpsc::channel();
        for folder in ["a", "b"] {
            let sender = sender.clone();
            let done = Box::new(move |usage| sender.send((folder, usage)).unwrap());
            count_queue.request(folder.into(), LIMITS, done, Instant::now());
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [("b", None)]);
    }

    /// Regression: the number of callers waiting for one count was not limited.
    #[test]
    fn waiters_for_one_count_are_bounded() {
        let (jobs, folders) = mpsc::sync_channel(1);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        let (sender, told) = mpsc::channel();
        let root = tempfile::tempdir().unwrap();
        for number in 0..WAITING_MAX + 1 {
            let sender = sender.clone();
            let done = Box::new(move |usage: Option<Usage>| sender.send((number, usage)).unwrap());
            count_queue.request(root.path().into(), LIMITS, done, Instant::now());
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(WAITING_MAX, None)]);
        let (folder, limits) = folders.try_recv().unwrap();
        run_count(&count_queue.state, folder, limits);
        assert_eq!(told.try_iter().filter(|(_, usage)| usage.is_some()).count(), WAITING_MAX);
        assert_eq!(count_queue.state.lock().waiting, 0);
    }

    /// Regression: a mailbox that changed during each count was counted again and again, and never
    /// limited.
    #[test]
    fn a_slow_maildir_is_recounted_later_in_the_background() {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        let (sender, told) = mpsc::channel();
        let ask = |now| {
            let sender = sender.clone();
            let done = Box::new(move |usage| sender.send(usage).unwrap());
            count_queue.request("a".into(), LIMITS, done, now);
        };
        let (held, now) = (Usage { bytes: 90, messages: 9 }, Instant::now());
        count_queue.state.lock().slow_counts.record(Path::new("a"), held, Duration::from_secs(2), now);
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
    fn a_count_reports_when_it_was_first_requested() {
        let (jobs, _folders) = mpsc::sync_channel(WAITING_MAX);
        let count_queue = CountQueue { jobs, state: Arc::default() };
        let now = Instant::now();
        let since = |folder: &str, now| count_queue.request(folder.into(), LIMITS, Box::new(drop), now);
        let later = now + Duration::from_secs(1);
        assert_eq!((since("a", now), since("a", later), since("b", later)), (now, now, later));
    }

    #[test]
    fn a_check_counts_only_if_the_file_is_inconclusive() {
        let root = tempfile::tempdir().unwrap();
        ["tmp", "new", "cur"].iter().for_each(|part| fs::create_dir(root.path().join(part)).unwrap());
        let counter = UsageCounter::start().unwrap();
        let standing = |bytes| {
            let (sender, told) = mpsc::channel();
            let done = Box::new(move |standing| sender.send(standing).unwrap());
            counter.check(UsageCheck {
                folder: root.path().into(),
                limits: LIMITS,
                more: Usage::of_message(bytes),
                done,
            });
            told.recv().unwrap().map(|standing: UsageEstimate| (standing.usage.bytes, standing.is_reliable))
        };
        fs::write(root.path().join("maildirsize"), "100S\n60 1\n-20 -1\n").unwrap();
        assert_eq!(standing(60), Some((40, false)));
        assert_eq!(standing(61), Some((0, true)), "it would not fit, so the mailbox was counted");
        assert_eq!(fs::read_to_string(root.path().join("maildirsize")).unwrap(), "100S\n0 0\n");
    }
}
