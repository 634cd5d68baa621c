//! `--pattern pool`: postmark's measurement. The pool is created, transactions are made, what is left is deleted; each
//! phase is timed. It differs from postmark where that one stumbles: a pool that runs empty or full does not end the
//! run or skip acts (see [`super::plan`]), clocks have no whole seconds, and contents are checked.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;

use super::damage::Damage;
use super::folder::Folder;
use super::plan::{Plan, Shape};
use super::store::{Calls, Seen, Store};
use super::times::Times;
use super::{Options, PoolOptions, Sync};
use crate::Fault;
use crate::meanwhile::Meanwhile;

const BYTES_PER_MB: f64 = 1e6;

/// What postmark reports, and more.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    folder: String,
    seed: u64,
    files: usize,
    size_bytes: RangeInclusive<u64>,
    sync: Sync,
    seconds: f64,
    /// The first files, created alone.
    created_alone: Rate,
    transactions: Rate,
    /// Parts of the transactions.
    created: Rate,
    read: Rate,
    appended: Rate,
    deleted: Rate,
    /// The last files, deleted alone.
    deleted_alone: Rate,
    read_mb: f64,
    read_mb_per_second: f64,
    written_mb: f64,
    written_mb_per_second: f64,
    times: Operations,
    damage: Damage,
    meanwhile: Meanwhile,
}

/// So many in that time.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rate {
    count: u64,
    seconds: f64,
    per_second: f64,
}

/// How long each kind of operation took, syncs included, over all phases.
#[derive(Debug, Serialize)]
struct Operations {
    create: Times,
    read: Times,
    append: Times,
    delete: Times,
    sync: Times,
}

/// How long the phases took, and how much was done before and after the transactions.
struct Phases {
    creating: Rate,
    transactions: Rate,
    deleting: Rate,
}

/// Makes a pool, uses it, and removes it.
pub(super) fn measure(options: &Options) -> Result<Report, Fault> {
    let folder = Folder::make(&options.folder)?;
    let mut rng = Rng::with_seed(options.seed);
    let mut store = make_store(options, &folder, &mut rng)?;
    let mut plan = Plan::new(Shape::of(&options.pool), rng);
    let meter = Meanwhile::begin_with_disk(&options.folder)?;
    let phases = perform(options, &mut plan, &mut store).map_err(Fault::system("using the pool of files"))?;
    let report = Report::of(options, &phases, &store.seen, meter.end());
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

fn perform(options: &Options, plan: &mut Plan, store: &mut Store) -> std::io::Result<Phases> {
    let begun = Instant::now();
    for _ in 0..options.pool.files {
        store.perform(plan.create())?;
    }
    let creating = Rate::of(options.pool.files as u64, begun.elapsed());

    let begun = Instant::now();
    let deadline = options.duration.map(|span| begun + span);
    let mut transactions = 0;
    while transactions < options.pool.transactions && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let [first, second] = plan.transaction();
        store.perform(first)?;
        store.perform(second)?;
        transactions += 1;
    }
    let transactions = Rate::of(transactions, begun.elapsed());

    let (begun, mut deleted) = (Instant::now(), 0);
    while let Some(act) = plan.clear() {
        store.perform(act)?;
        deleted += 1;
    }
    Ok(Phases { creating, transactions, deleting: Rate::of(deleted, begun.elapsed()) })
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
        Rate { count, seconds, per_second: if seconds > 0.0 { count as f64 / seconds } else { 0.0 } }
    }
}

impl Report {
    fn of(options: &Options, phases: &Phases, seen: &Seen, meanwhile: Meanwhile) -> Report {
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
            seconds,
            created_alone: creating,
            transactions,
            created: mixed(seen.creates.count() - creating.count),
            read: mixed(seen.reads.count()),
            appended: mixed(seen.appends.count()),
            deleted: mixed(seen.deletes.count() - deleting.count),
            deleted_alone: deleting,
            read_mb,
            read_mb_per_second: read_mb / seconds,
            written_mb,
            written_mb_per_second: written_mb / seconds,
            times: Operations {
                create: seen.creates.times(),
                read: seen.reads.times(),
                append: seen.appends.times(),
                delete: seen.deletes.times(),
                sync: seen.syncs.times(),
            },
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
        writeln!(f, "seed {}, synced: {:?}", self.seed, self.sync)?;
        writeln!(f, "  created alone {}", self.created_alone)?;
        writeln!(f, "  transactions  {}", self.transactions)?;
        writeln!(f, "    created     {}", self.created)?;
        writeln!(f, "    read        {}", self.read)?;
        writeln!(f, "    appended    {}", self.appended)?;
        writeln!(f, "    deleted     {}", self.deleted)?;
        writeln!(f, "  deleted alone {}", self.deleted_alone)?;
        write!(f, "  in {:.2} s: {:.1} MB read ({:.1} MB/s), ", self.seconds, self.read_mb, self.read_mb_per_second)?;
        writeln!(f, "{:.1} MB written ({:.1} MB/s)", self.written_mb, self.written_mb_per_second)?;
        write!(f, "{}{}{}", self.times, self.damage, self.meanwhile)
    }
}

impl fmt::Display for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  operation {}", Times::HEADER)?;
        writeln!(f, "  create    {}", self.create)?;
        writeln!(f, "  read      {}", self.read)?;
        writeln!(f, "  append    {}", self.append)?;
        writeln!(f, "  delete    {}", self.delete)?;
        if self.sync.count > 0 { writeln!(f, "  sync      {}", self.sync) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::*;

    #[test]
    fn all_that_was_created_is_deleted_and_all_that_was_asked_for_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["--files", "50", "--transactions", "300", "--subfolders", "4", "--sync", "folder"];
        let report = measure(&options(folder.path(), &words)).unwrap();
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

    #[test]
    fn a_run_ends_with_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["--files", "5", "--transactions", "1000000000", "--duration", "50ms"];
        let report = measure(&options(folder.path(), &words)).unwrap();
        assert!((1..1_000_000_000).contains(&report.transactions.count), "{report}");
        assert!(report.transactions.seconds >= 0.05);
    }
}
