//! `bench files` in a process of its own, because signals reach the whole process.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bench::{RunVerdict, files};
use clap::Parser;
use rustix::process::{Signal, getpid, kill_process};

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: files::FilesOptions,
}

/// More work than a test can wait for, in each phase of a run.
const ENDLESS: [&[&str]; 3] = [
    &["--files", "100000000", "--size", "1..2"],
    &["--files", "1", "--size", "1..2", "--transactions", "1000000000000"],
    &["--pattern", "log", "--record", "10", "--batch", "10", "--records", "1000000000"],
];
/// How long a run may take to start working, and to end after the signal.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Ends a run that ignores the signal.
const DURATION: &str = "20s";

/// A signal used to end the process without cleanup and left millions of files behind.
#[test]
fn a_signal_ends_a_run_with_its_report_and_removes_its_folder() {
    for (words, signal) in ENDLESS.into_iter().zip([Signal::INT, Signal::TERM, Signal::TERM]) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_str().unwrap();
        let line = CommandLine::try_parse_from([&["files", "--folder", place, "--duration", DURATION], words].concat())
            .unwrap();
        let begun = Instant::now();
        let run = thread::spawn(move || files::run(&line.options));
        while !is_at_work(folder.path()) {
            assert!(begun.elapsed() < TIME_MAX && !run.is_finished(), "{words:?}: nothing is done");
            thread::yield_now();
        }
        kill_process(getpid(), signal).unwrap();
        let signalled_at = Instant::now();
        assert_eq!(run.join().unwrap().unwrap(), RunVerdict::Good, "{words:?}");
        assert!(signalled_at.elapsed() < TIME_MAX, "{words:?}: the signal was not heard");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{words:?}: something was left behind");
    }
}

/// Whether a file has content yet. The run handles signals before it creates files.
fn is_at_work(parent: &Path) -> bool {
    let folders = fs::read_dir(parent).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path())).flatten().flatten();
    files.flat_map(|file| file.metadata()).any(|state| state.len() > 0)
}
