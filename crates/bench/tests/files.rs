//! `bench files` in a process of its own, for it is ended by signals, which are the whole process's.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bench::{Verdict, files};
use clap::Parser;
use rustix::process::{Signal, getpid, kill_process};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: files::Options,
}

/// More than there is time for, at each of the places where a run spends its time.
const ENDLESS: [&[&str]; 3] = [
    &["--files", "100000000", "--size", "1..2"],
    &["--files", "1", "--size", "1..2", "--transactions", "1000000000000"],
    &["--pattern", "log", "--record", "10", "--batch", "10", "--records", "1000000000"],
];
/// Before that the run must be at work, and after the signal as soon at its end.
const TIME_MAX: Duration = Duration::from_secs(10);
/// When a run ends that does not hear the signal.
const DURATION: &str = "20s";

/// A signal ended the process at once, and millions of files stayed behind.
#[test]
fn a_signal_ends_a_run_with_its_report_and_leaves_nothing_behind() {
    for (words, signal) in ENDLESS.into_iter().zip([Signal::INT, Signal::TERM, Signal::TERM]) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_str().unwrap();
        let line =
            Line::try_parse_from([&["files", "--folder", place, "--duration", DURATION], words].concat()).unwrap();
        let begun = Instant::now();
        let run = thread::spawn(move || files::run(&line.options));
        while !is_at_work(folder.path()) {
            assert!(begun.elapsed() < TIME_MAX && !run.is_finished(), "{words:?}: nothing is done");
            thread::yield_now();
        }
        kill_process(getpid(), signal).unwrap();
        let told = Instant::now();
        assert_eq!(run.join().unwrap().unwrap(), Verdict::Good, "{words:?}");
        assert!(told.elapsed() < TIME_MAX, "{words:?}: the signal was not heard");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{words:?}: something was left behind");
    }
}

/// Whether there is a file that something was written to. The run hears signals before it makes any.
fn is_at_work(parent: &Path) -> bool {
    let folders = fs::read_dir(parent).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path())).flatten().flatten();
    files.flat_map(|file| file.metadata()).any(|state| state.len() > 0)
}
