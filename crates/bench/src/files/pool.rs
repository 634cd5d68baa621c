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
use super::plan::{FileOperation, OperationPlan, PoolShape};
use super::stop_condition::{StopCondition, StopReason};
use super::store::{FileStore, IoMode, StoreStats};
use super::work_folder::WorkFolder;
use super::{FilesOptions, PoolOptions, SyncMode, per_second};
use crate::BenchError;
use crate::machine_usage::{BYTES_PER_MB, MachineUsage};
use crate::timing_stats::{TimeUnit, TimingStats, table};

/// The report: the figures of postmark and more.
#[derive(Debug, Serialize)]
pub(super) struct PoolReport {
    folder: String,
    seed: u64,
    files: usize,
    size_bytes: RangeInclusive<u64>,
    sync: SyncMode,
    end: StopReason,
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
    times: Vec<TimingStats>,
    damage: Damage,
    meanwhile: MachineUsage,
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
pub(super) fn measure(options: &FilesOptions, mut ending: StopCondition) -> Result<PoolReport, BenchError> {
    let folder = WorkFolder::create(&options.folder)?;
    let mut rng = Rng::with_seed(options.seed);
    let mut store = make_store(options, &folder, &mut rng)?;
    let mut plan = OperationPlan::new(PoolShape::from_options(&options.pool), rng);
    let meter = MachineUsage::begin_with_disk(&options.folder)?;
    let performed = perform(&options.pool, &mut plan, &mut store, &mut ending);
    let phases = performed.map_err(BenchError::system("using the pool of files"))?;
    let report = PoolReport::of(options, &phases, ending.reason(), &store.stats, meter.end());
    drop(store);
    folder.remove()?;
    Ok(report)
}

fn make_store(options: &FilesOptions, folder: &WorkFolder, rng: &mut Rng) -> Result<FileStore, BenchError> {
    let PoolOptions { block, unbuffered, subfolders, sync, .. } = options.pool;
    let buffer_bytes = if unbuffered { None } else { Some(folder.block_bytes()?) };
    let calls = IoMode { block_bytes: block, buffer_bytes };
    FileStore::create_in(folder.path(), subfolders, calls, sync, rng)
        .map_err(BenchError::system("making the subfolders"))
}

fn perform(
    options: &PoolOptions,
    plan: &mut OperationPlan,
    store: &mut FileStore,
    ending: &mut StopCondition,
) -> io::Result<Phases> {
    let creating = phase(store, ending, (0..options.files).map(|_| [plan.create()]))?;
    let transactions = phase(store, ending, (0..options.transactions).map(|_| plan.transaction()))?;
    let deleting = phase(store, ending, iter::from_fn(|| plan.delete_next().map(|operation| [operation])))?;
    Ok(Phases { creating, transactions, deleting })
}

/// Performs the steps until none are left or the run ends. A step that was planned and not
/// performed does no harm, because the plan is not used after that.
fn phase<const ACTS: usize>(
    store: &mut FileStore,
    ending: &mut StopCondition,
    steps: impl Iterator<Item = [FileOperation; ACTS]>,
) -> io::Result<Rate> {
    let (begun, mut count) = (Instant::now(), 0);
    for acts in steps {
        if ending.is_met() {
            break;
        }
        acts.into_iter().try_for_each(|operation| store.perform(operation))?;
        count += 1;
    }
    Ok(Rate::of(count, begun.elapsed()))
}

impl PoolShape {
    fn from_options(options: &PoolOptions) -> PoolShape {
        let PoolOptions { files, subfolders, read_bias, create_bias, .. } = *options;
        PoolShape { files, size: options.size.clone(), subfolders, read_bias, create_bias }
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

impl PoolReport {
    fn of(
        options: &FilesOptions,
        phases: &Phases,
        end: StopReason,
        stats: &StoreStats,
        meanwhile: MachineUsage,
    ) -> PoolReport {
        let Phases { creating, transactions, deleting } = *phases;
        let seconds = creating.seconds + transactions.seconds + deleting.seconds;
        let mixed = |count| Rate::over(count, transactions.seconds);
        let (read_mb, written_mb) = (stats.read_bytes as f64 / BYTES_PER_MB, stats.written_bytes as f64 / BYTES_PER_MB);
        PoolReport {
            folder: options.folder.display().to_string(),
            seed: options.seed,
            files: options.pool.files,
            size_bytes: options.pool.size.clone(),
            sync: options.pool.sync,
            end,
            seconds,
            created_alone: creating,
            transactions,
            created: mixed(stats.creates.count() - creating.count),
            read: mixed(stats.reads.count()),
            appended: mixed(stats.appends.count()),
            deleted: mixed(stats.deletes.count() - deleting.count),
            deleted_alone: deleting,
            read_mb,
            read_mb_per_second: per_second(read_mb, seconds),
            written_mb,
            written_mb_per_second: per_second(written_mb, seconds),
            times: stats.times(),
            damage: stats.damage.clone(),
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

impl fmt::Display for PoolReport {
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
        writeln!(f, "{}\n{}", self.end, table(TimeUnit::Microseconds, &self.times))?;
        write!(f, "{}{}", self.damage, self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::options;
    use super::*;

    fn measured(folder: &Path, words: &[&str]) -> PoolReport {
        let options = options(folder, words);
        measure(&options, StopCondition::new(options.duration, None)).unwrap()
    }

    #[test]
    fn all_requested_operations_run_and_all_files_are_deleted() {
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
    fn a_time_limit_ends_a_run_in_any_phase() {
        let endless = "1000000000";
        for (words, phase) in [
            (["--files", "5", "--transactions", endless, "--size", "1..2"], 1),
            (["--files", "50000000", "--transactions", "5", "--size", "1..2"], 0),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let report = measured(folder.path(), &[&words[..], &["--duration", "100ms"]].concat());
            let counts = [report.created_alone.count, report.transactions.count, report.deleted_alone.count];
            assert!(counts[phase] > 0 && counts[phase + 1..].iter().all(|&count| count == 0), "{report}");
            assert_eq!(report.end, StopReason::Time, "{report}");
            assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the folder was not removed");
        }
    }

    #[test]
    fn the_report_has_the_settings_and_the_end_reason() {
        let folder = tempfile::tempdir().unwrap();
        let report = measured(folder.path(), &["--sync", "file"]);
        assert!(report.to_string().contains("seed 42, each file synced\n"), "{report}");
        assert_eq!(
            report.times.iter().map(|times| times.name).collect::<Vec<_>>().join(" "),
            "create read append delete sync"
        );
        assert_eq!((report.end, report.end.to_string()), (StopReason::AllDone, String::new()));
        let ended = StopReason::Signal.to_string();
        let report = PoolReport { end: StopReason::Signal, ..report };
        assert!(report.to_string().contains(&ended), "{report}");
    }
}
