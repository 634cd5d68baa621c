//! `--pattern pool`: the measurement of postmark. Files are created, transactions run, the
//! remaining files are deleted; each phase is timed. Unlike postmark, an empty or full pool neither
//! ends the run nor skips operations (see [`super::plan`]), times are not rounded to seconds, and
//! contents are checked. When the run ends early, the remaining files are removed with the folder,
//! which is not timed.

use std::fmt;
use std::io;
use std::iter;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

use super::damage::Damage;
use super::ending::{End, Ending};
use super::folder::Folder;
use super::plan::{Act, Plan, Shape};
use super::store::{Calls, Seen, Store};
use super::{Options, PoolOptions, Sync, per_second};
use crate::Fault;
use crate::meanwhile::{BYTES_PER_MB, Meanwhile};
use crate::times::{Times, Unit, table};

/// The report: the figures of postmark and more.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    folder: String,
    seed: u64,
    files: usize,
    size_bytes: RangeInclusive<u64>,
    sync: Sync,
    end: End,
    seconds: f64,
    /// Creation of the initial files.
    created_alone: Rate,
    transactions: Rate,
    /// The operations within the transactions.
    created: Rate,
    read: Rate,
    appended: Rate,
    deleted: Rate,
    /// Deletion of the remaining files.
    deleted_alone: Rate,
    read_mb: f64,
    read_mb_per_second: f64,
    written_mb: f64,
    written_mb_per_second: f64,
    /// Times of each kind of operation over all phases, syncs included; only kinds that occurred.
    times: Vec<Times>,
    damage: Damage,
    meanwhile: Meanwhile,
}

/// A count and the time it took.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rate {
    count: u64,
    seconds: f64,
    per_second: f64,
}

/// Counts and times of the three phases.
struct Phases {
    creating: Rate,
    transactions: Rate,
    deleting: Rate,
}

/// Creates the files, runs the transactions, and deletes the files.
pub(super) fn measure(options: &Options, mut ending: Ending) -> Result<Report, Fault> {
    let folder = Folder::make(&options.folder)?;
    let mut rng = Rng::with_seed(options.seed);
    let mut store = make_store(options, &folder, &mut rng)?;
    let mut plan = Plan::new(Shape::of(&options.pool), rng);
    let meter = Meanwhile::begin_with_disk(&options.folder)?;
    let performed = perform(&options.pool, &mut plan, &mut store, &mut ending);
    let phases = performed.map_err(Fault::system("using the pool of files"))?;
    let report = Report::of(options, &phases, ending.end(), &store.seen, meter.end());
    drop(store);
    folder.remove()?;
    Ok(report)
}

fn make_store(options: &Options, folder: &Folder, rng: &mut Rng) -> Result<Store, Fault> {
    let PoolOptions { block, unbuffered, subfolders, sync, .. } = options.pool;
    let buffer_bytes = if unbuffered { None } else { Some(folder.block_bytes()?) };
    let calls = Calls { block_bytes: block, buffer_bytes };
    Store::make(folder.path(), subfolders, calls, sync, rng).map_err(Fault::system("making the subfolders"))
}

fn perform(options: &PoolOptions, plan: &mut Plan, store: &mut Store, ending: &mut Ending) -> io::Result<Phases> {
    let creating = phase(store, ending, (0..options.files).map(|_| [plan.create()]))?;
    let transactions = phase(store, ending, (0..options.transactions).map(|_| plan.transaction()))?;
    let deleting = phase(store, ending, iter::from_fn(|| plan.clear().map(|act| [act])))?;
    Ok(Phases { creating, transactions, deleting })
}

/// Performs the steps until none are left or the run ends. A step that was planned and not
/// performed does no harm, because the plan is not used after that.
fn phase<const ACTS: usize>(
    store: &mut Store,
    ending: &mut Ending,
    steps: impl Iterator<Item = [Act; ACTS]>,
) -> io::Result<Rate> {
    let (begun, mut count) = (Instant::now(), 0);
    for acts in steps {
        if ending.has_come() {
            break;
        }
        acts.into_iter().try_for_each(|act| store.perform(act))?;
        count += 1;
    }
    Ok(Rate::of(count, begun.elapsed()))
}

impl Shape {
    fn of(options: &PoolOptions) -> Shape {
        let PoolOptions { files, subfolders, read_bias, create_bias, .. } = *options;
        Shape { files, size: options.size.clone(), subfolders, read_bias, create_bias }
    }
}

impl Rate {
    fn of(count: u64, span: Duration) -> Rate {
        Rate::over(count, span.as_secs_f64())
    }

    fn over(count: u64, seconds: f64) -> Rate {
        Rate { count, seconds, per_second: per_second(count as f64, seconds) }
    }
}

impl Report {
    fn of(options: &Options, phases: &Phases, end: End, seen: &Seen, meanwhile: Meanwhile) -> Report {
        let Phases { creating, transactions, deleting } = *phases;
        let seconds = creating.seconds + transactions.seconds + deleting.seconds;
        let mixed = |count| Rate::over(count, transactions.seconds);
        let (read_mb, written_mb) = (seen.read_bytes as f64 / BYTES_PER_MB, seen.written_bytes as f64 / BYTES_PER_MB);
        Report {
            folder: options.folder.display().to_string(),
            seed: options.seed,
            files: options.pool.files,
            size_bytes: options.pool.size.clone(),
            sync: options.pool.sync,
            end,
            seconds,
            created_alone: creating,
            transactions,
            created: mixed(seen.creates.count() - creating.count),
            read: mixed(seen.reads.count()),
            appended: mixed(seen.appends.count()),
            deleted: mixed(seen.deletes.count() - deleting.count),
            deleted_alone: deleting,
            read_mb,
            read_mb_per_second: per_second(read_mb, seconds),
            written_mb,
            written_mb_per_second: per_second(written_mb, seconds),
            times: seen.times(),
            damage: seen.damage.clone(),
            meanwhile,
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damage.is_none()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10} {:>9.2} s {:>10.0} /s", self.count, self.seconds, self.per_second)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (self.size_bytes.start(), self.size_bytes.end());
        write!(f, "a pool of {} files of {min} to {max} bytes in {}, ", self.files, self.folder)?;
        writeln!(f, "seed {}, {}", self.seed, self.sync)?;
        writeln!(f, "  created alone {}", self.created_alone)?;
        writeln!(f, "  transactions  {}", self.transactions)?;
        writeln!(f, "    created     {}", self.created)?;
        writeln!(f, "    read        {}", self.read)?;
        writeln!(f, "    appended    {}", self.appended)?;
        writeln!(f, "    deleted     {}", self.deleted)?;
        writeln!(f, "  deleted alone {}", self.deleted_alone)?;
        write!(f, "  in {:.2} s: {:.1} MB read ({:.1} MB/s), ", self.seconds, self.read_mb, self.read_mb_per_second)?;
        writeln!(f, "{:.1} MB written ({:.1} MB/s)", self.written_mb, self.written_mb_per_second)?;
        writeln!(f, "{}\n{}", self.end, table(Unit::Microseconds, &self.times))?;
        write!(f, "{}{}", self.damage, self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::options;
    use super::*;

    fn measured(folder: &Path, words: &[&str]) -> Report {
        let options = options(folder, words);
        measure(&options, Ending::new(options.duration, None)).unwrap()
    }

    #[test]
    fn all_that_was_created_is_deleted_and_all_that_was_asked_for_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["--files", "50", "--transactions", "300", "--subfolders", "4", "--sync", "folder"];
        let report = measured(folder.path(), &words);
        assert_eq!((report.created_alone.count, report.transactions.count), (50, 300));
        assert_eq!(
            report.created.count + report.created_alone.count,
            report.deleted.count + report.deleted_alone.count
        );
        assert_eq!(report.read.count + report.appended.count, 300);
        assert_eq!(report.created.count + report.deleted.count, 300);
        assert!(report.is_sound() && report.read_mb > 0.0 && report.written_mb > 0.0, "{report}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    /// The time limit used to cover only the transactions, so the other phases could take any time.
    #[test]
    fn a_run_ends_with_its_time_in_whatever_phase() {
        let endless = "1000000000";
        for (words, phase) in [
            (["--files", "5", "--transactions", endless, "--size", "1..2"], 1),
            (["--files", "50000000", "--transactions", "5", "--size", "1..2"], 0),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let report = measured(folder.path(), &[&words[..], &["--duration", "100ms"]].concat());
            let counts = [report.created_alone.count, report.transactions.count, report.deleted_alone.count];
            assert!(counts[phase] > 0 && counts[phase + 1..].iter().all(|&count| count == 0), "{report}");
            assert_eq!(report.end, End::Time, "{report}");
            assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the folder was not removed");
        }
    }

    #[test]
    fn people_read_what_was_asked_for_and_how_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let report = measured(folder.path(), &["--sync", "file"]);
        assert!(report.to_string().contains("seed 42, each file synced\n"), "{report}");
        assert_eq!(
            report.times.iter().map(|times| times.name).collect::<Vec<_>>().join(" "),
            "create read append delete sync"
        );
        assert_eq!((report.end, report.end.to_string()), (End::AllDone, String::new()));
        let ended = End::Signal.to_string();
        let report = Report { end: End::Signal, ..report };
        assert!(report.to_string().contains(&ended), "{report}");
    }
}
