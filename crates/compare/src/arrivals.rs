//! Counts the mail that arrived, and compares the count with what was acknowledged.
//!
//! The time of the last arrival is that of the look that found it, so it is late by the pause between two looks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::CompareError;
use crate::interrupt::Interrupt;
use crate::process::{self, Launch};

/// Counting costs CPU, so the pause after a look is this many times as long as the look took.
const PAUSE_LOOKS: u32 = 10;
/// The shortest and the longest pause.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a command that counts may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);

/// Where mail arrives.
#[derive(Clone, Debug)]
pub(crate) enum ArrivalCounter {
    /// In Maildirs anywhere below this folder.
    Maildirs(PathBuf),
    /// A command in this folder prints the number.
    Command { argv: Vec<String>, folder: PathBuf },
}

impl ArrivalCounter {
    /// The number of copies that have arrived.
    ///
    /// # Errors
    ///
    /// The command fails or prints something else; the run is interrupted.
    pub(crate) fn count(&self, interrupt: &Interrupt) -> Result<u64, CompareError> {
        match self {
            ArrivalCounter::Maildirs(folder) => Ok(messages_below(folder)),
            ArrivalCounter::Command { argv, folder } => {
                let launch = Launch { name: "arrivals", argv, folder, user: None };
                let output = process::run_command(&launch, COMMAND_TIME_MAX, interrupt)?.output;
                let number = output.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
                number.ok_or_else(|| {
                    let line = argv.join(" ");
                    CompareError::Failed(format!("`{line}` printed {output:?}: expected the number of messages"))
                })
            }
        }
    }

    /// Waits until `expected` more than `before` have arrived, and returns how long that took: 0 if they were there.
    ///
    /// # Errors
    ///
    /// There are fewer after `time_max`, or more: the system lost or duplicated mail.
    pub(crate) fn await_count(
        &self,
        before: u64,
        expected: u64,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<Duration, CompareError> {
        let begun = Instant::now();
        let mut waited = Duration::ZERO;
        loop {
            let look = Instant::now();
            let arrived = self.count(interrupt)?.saturating_sub(before);
            let is_late = begun.elapsed() >= time_max;
            if arrived == expected {
                return Ok(waited);
            }
            if arrived > expected || is_late {
                let text = format!("{expected} messages were acknowledged, and {arrived} arrived");
                return Err(CompareError::Failed(text));
            }
            interrupt.rest((look.elapsed() * PAUSE_LOOKS).clamp(PAUSE_MIN, PAUSE_MAX))?;
            waited = begun.elapsed();
        }
    }
}

/// Files in folders named `new` or `cur`. Folders that appear or vanish meanwhile are counted later.
fn messages_below(folder: &Path) -> u64 {
    let holds_messages = folder.file_name().is_some_and(|name| name == "new" || name == "cur");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let count = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => messages_below(&entry.path()),
        Ok(kind) if kind.is_file() && holds_messages => 1,
        _ => 0,
    });
    count.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_in_all_maildirs_and_must_be_as_many_as_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["a/new/1", "a/cur/2:2,S", "b/c/new/3", "a/tmp/4", "a/index"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let counter = ArrivalCounter::Maildirs(folder.path().to_owned());
        let interrupt = Interrupt::default();
        assert_eq!(counter.count(&interrupt).unwrap(), 3);
        assert_eq!(counter.await_count(1, 2, Duration::ZERO, &interrupt).unwrap(), Duration::ZERO);
        for (before, expected) in [(0, 4), (0, 2)] {
            let error = counter.await_count(before, expected, Duration::ZERO, &interrupt).unwrap_err();
            assert!(error.to_string().contains("and 3 arrived"), "{error}");
        }
    }

    #[test]
    fn a_command_prints_the_number_first() {
        let folder = tempfile::tempdir().unwrap();
        let command =
            |line: &str| ArrivalCounter::Command { argv: process::shell(line), folder: folder.path().to_owned() };
        assert_eq!(command("echo 42 recipients").count(&Interrupt::default()).unwrap(), 42);
        assert!(command("echo none").count(&Interrupt::default()).is_err());
    }
}
