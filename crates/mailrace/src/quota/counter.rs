//! The threads that wait for the disk so that nobody else has to: some look at the files of Maildirs, others count, so that
//! who only needs a look is not behind who counts a hundred thousand letters. A Maildir is counted once at a time, for all
//! who want to know. They end when nobody can ask any more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::SystemTime;

use mailbox::quota::{self, Limits, Standing, Usage};

/// Of each kind. More would only be in each other's way on a disk.
const THREADS: usize = 2;
/// Questions that wait; who comes when there are more is told that nobody can say.
const WAITING_MAX: usize = 10_000;

/// Told what a Maildir holds; None if nobody can say.
pub(super) type Done = Box<dyn FnOnce(Option<Usage>) + Send>;

/// A way to ask the threads.
#[derive(Clone)]
pub struct Counter {
    looks: SyncSender<Look>,
    counts: Counts,
}

/// Whether there is room in a Maildir.
pub(super) struct Look {
    pub(super) folder: PathBuf,
    pub(super) limits: Limits,
    /// What is to be added.
    pub(super) more: Usage,
    /// Told what is known; None if nobody can say.
    pub(super) done: Box<dyn FnOnce(Option<Standing>) + Send>,
}

/// Counts that wait or are under way.
#[derive(Clone)]
struct Counts {
    jobs: SyncSender<(PathBuf, Limits)>,
    waiting: Arc<Mutex<Waiting>>,
}

type Waiting = HashMap<PathBuf, Vec<Done>>;

impl Counter {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system has none.
    pub fn start() -> io::Result<Counter> {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let (looks, questions) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, waiting: Arc::default() };
        let waiting = counts.waiting.clone();
        spawn("quota-count", folders, move |(folder, limits)| count(&waiting, folder, limits))?;
        let counter = Counter { looks, counts: counts.clone() };
        spawn("quota-look", questions, move |question| look(&counts, question))?;
        Ok(counter)
    }

    /// Looks at the file, and counts where that does not tell whether there is room.
    pub(super) fn look(&self, question: Look) {
        if let Err(mpsc::TrySendError::Full(question) | mpsc::TrySendError::Disconnected(question)) =
            self.looks.try_send(question)
        {
            (question.done)(None);
        }
    }

    /// Counts the Maildir, or tells of the count that is under way.
    pub(super) fn recount(&self, folder: PathBuf, limits: Limits, done: Done) {
        self.counts.ask(folder, limits, done);
    }
}

impl Counts {
    fn ask(&self, folder: PathBuf, limits: Limits, done: Done) {
        match lock(&self.waiting).entry(folder.clone()) {
            Entry::Occupied(mut waiting) => return waiting.get_mut().push(done),
            Entry::Vacant(waiting) => drop(waiting.insert(vec![done])),
        }
        if let Err(mpsc::TrySendError::Full((folder, _)) | mpsc::TrySendError::Disconnected((folder, _))) =
            self.jobs.try_send((folder, limits))
        {
            answer(&self.waiting, &folder, None);
        }
    }
}

fn look(counts: &Counts, question: Look) {
    let Look { folder, limits, more, done } = question;
    // A file that cannot be read is as good as none.
    match quota::recorded(&folder, limits, SystemTime::now()).ok().flatten() {
        Some(standing) if standing.decides(limits, more) => done(Some(standing)),
        _ => {
            let settled = |usage| Standing { usage, is_settled: true };
            counts.ask(folder, limits, Box::new(move |usage| done(usage.map(settled))));
        }
    }
}

fn count(waiting: &Mutex<Waiting>, folder: PathBuf, limits: Limits) {
    answer(waiting, &folder, quota::recount(&folder, limits).ok());
}

fn answer(waiting: &Mutex<Waiting>, folder: &PathBuf, usage: Option<Usage>) {
    let answered = lock(waiting).remove(folder);
    answered.into_iter().flatten().for_each(|done| done(usage));
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    // A map that somebody panicked over ended the process.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that do the jobs as they come.
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

    use super::*;

    const LIMITS: Limits = Limits { bytes: 100, messages: 0 };

    #[test]
    fn who_asks_while_a_maildir_is_counted_is_told_by_the_same_count() {
        let (jobs, folders) = mpsc::sync_channel(WAITING_MAX);
        let counts = Counts { jobs, waiting: Arc::default() };
        let root = tempfile::tempdir().unwrap();
        let (sender, told) = mpsc::channel();
        for number in 0..3 {
            let sender = sender.clone();
            let done = move |usage: Option<Usage>| sender.send((number, usage)).unwrap();
            counts.ask(root.path().into(), LIMITS, Box::new(done));
        }
        let (folder, limits) = folders.try_recv().unwrap();
        assert!(folders.try_recv().is_err(), "there is one job for all three");
        count(&counts.waiting, folder, limits);
        let usage = Some(Usage::default());
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(0, usage), (1, usage), (2, usage)]);
        assert!(lock(&counts.waiting).is_empty());
    }

    #[test]
    fn who_comes_when_too_many_wait_is_told_at_once_that_nobody_can_say() {
        let (jobs, _folders) = mpsc::sync_channel(1);
        let counts = Counts { jobs, waiting: Arc::default() };
        let (sender, told) = mpsc::channel();
        for folder in ["a", "b"] {
            let sender = sender.clone();
            counts.ask(folder.into(), LIMITS, Box::new(move |usage| sender.send((folder, usage)).unwrap()));
        }
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [("b", None)]);
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
        assert_eq!(standing(61), Some((0, true)), "there would be no room, so it was counted");
        assert_eq!(fs::read_to_string(root.path().join("maildirsize")).unwrap(), "100S\n0 0\n");
    }
}
