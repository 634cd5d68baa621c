//! `--pattern log`: one writer appends records to one file. Each batch is one write followed by
//! fdatasync(2), as a spool syncs the messages that it acknowledges.
//!
//! In a new file a sync also writes metadata; with `--overwrite` the blocks exist already.
//! Afterwards the page cache of the file is dropped, so that the check reads from the disk. A time
//! limit ends the preparation and the writing; everything written is still checked, unless a signal
//! arrives.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::time::Instant;

use fastrand::Rng;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::content::FileContent;
use super::damage::Damage;
use super::stop_condition::{StopCondition, StopReason};
use super::stopwatch::Stopwatch;
use super::work_folder::WorkFolder;
use super::{FilesOptions, LogOptions, per_second};
use crate::BenchError;
use crate::machine_usage::{BYTES_PER_MB, MachineUsage};
use crate::timing_stats::{TimeUnit, TimingStats, table};

/// Size of a write during the preparation.
const PREPARE_BYTES: usize = 1 << 20;

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct LogReport {
    folder: String,
    overwrite: bool,
    record_bytes: usize,
    batch_bytes: usize,
    records: u64,
    /// Records that were read again; fewer than `records` only after a signal.
    records_checked: u64,
    records_per_second: f64,
    end: StopReason,
    seconds: f64,
    syncs_per_second: f64,
    written_mb: f64,
    written_mb_per_second: f64,
    times: [TimingStats; 2],
    damage: Damage,
    meanwhile: MachineUsage,
}

/// The file and its measurements.
struct Log {
    file: File,
    content: FileContent,
    record_bytes: usize,
    records: u64,
    records_checked: u64,
    writes: Stopwatch,
    syncs: Stopwatch,
    damage: Damage,
}

/// Writes a log, checks it, and removes it.
pub(super) fn measure(options: &FilesOptions, mut ending: StopCondition) -> Result<LogReport, BenchError> {
    let folder = WorkFolder::create(&options.folder)?;
    let mut log = Log::create(options, &folder, &mut ending).map_err(BenchError::system("preparing the log"))?;
    let meter = MachineUsage::begin_with_disk(&options.folder)?;
    let begun = Instant::now();
    log.fill(&options.log, &mut ending).map_err(BenchError::system("writing the log"))?;
    let seconds = begun.elapsed().as_secs_f64();
    let meanwhile = meter.end();
    log.check(&mut ending).map_err(BenchError::system("reading the log again"))?;
    folder.remove()?;
    Ok(LogReport::of(options, log, seconds, ending.reason(), meanwhile))
}

impl Log {
    fn create(options: &FilesOptions, folder: &WorkFolder, ending: &mut StopCondition) -> io::Result<Log> {
        let LogOptions { records, record, overwrite, .. } = options.log;
        let path = folder.path().join("log");
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        if overwrite {
            let blank = vec![0; PREPARE_BYTES];
            let mut left = records.saturating_mul(record as u64).div_ceil(PREPARE_BYTES as u64);
            while left > 0 && !ending.is_met() {
                file.write_all(&blank)?;
                left -= 1;
            }
            file.rewind()?;
        }
        file.sync_all()?;
        File::open(folder.path())?.sync_all()?;
        Ok(Log {
            file,
            content: FileContent::new(record, &mut Rng::with_seed(options.seed)),
            record_bytes: record,
            records: 0,
            records_checked: 0,
            writes: Stopwatch::new(),
            syncs: Stopwatch::new(),
            damage: Damage::default(),
        })
    }

    fn fill(&mut self, options: &LogOptions, ending: &mut StopCondition) -> io::Result<()> {
        let LogOptions { records, batch: batch_bytes, .. } = *options;
        let mut batch = Vec::with_capacity(batch_bytes + self.record_bytes);
        while self.records < records && !ending.is_met() {
            while batch.len() < batch_bytes && self.records < records {
                batch.extend_from_slice(self.content.slice(self.records, 0, self.record_bytes));
                self.records += 1;
            }
            self.write(&batch)?;
            batch.clear();
        }
        Ok(())
    }

    fn write(&mut self, batch: &[u8]) -> io::Result<()> {
        let begun = Instant::now();
        self.file.write_all(batch)?;
        let written = Instant::now();
        self.file.sync_data()?;
        self.writes.record(written - begun);
        self.syncs.record(written.elapsed());
        Ok(())
    }

    /// Compares each record with what was written.
    fn check(&mut self, ending: &mut StopCondition) -> io::Result<()> {
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        self.file.rewind()?;
        let mut file = BufReader::with_capacity(PREPARE_BYTES, &self.file);
        let mut record = vec![0; self.record_bytes];
        while self.records_checked < self.records && !ending.is_signalled() {
            let number = self.records_checked;
            match file.read_exact(&mut record) {
                Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => {
                    self.damage.record(format!("the log ends before record {number} of {}", self.records));
                    break;
                }
                read => read?,
            }
            if record != self.content.slice(number, 0, self.record_bytes) {
                self.damage.record(format!("record {number} of the log differs from what was written"));
            }
            self.records_checked += 1;
        }
        Ok(())
    }
}

impl LogReport {
    fn of(options: &FilesOptions, log: Log, seconds: f64, end: StopReason, meanwhile: MachineUsage) -> LogReport {
        let written_mb = log.records as f64 * log.record_bytes as f64 / BYTES_PER_MB;
        LogReport {
            folder: options.folder.display().to_string(),
            overwrite: options.log.overwrite,
            record_bytes: log.record_bytes,
            batch_bytes: options.log.batch,
            records: log.records,
            records_checked: log.records_checked,
            records_per_second: per_second(log.records as f64, seconds),
            end,
            seconds,
            syncs_per_second: per_second(log.syncs.count() as f64, seconds),
            written_mb,
            written_mb_per_second: per_second(written_mb, seconds),
            times: [log.writes.times("write"), log.syncs.times("sync")],
            damage: log.damage,
            meanwhile,
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damage.is_none()
    }
}

impl fmt::Display for LogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.overwrite { "overwritten in" } else { "appended to" };
        write!(f, "{} records of {} bytes, {how} a log in {}, ", self.records, self.record_bytes, self.folder)?;
        writeln!(f, "synced in batches of {} bytes", self.batch_bytes)?;
        writeln!(f, "  {:.0} syncs/s, {:.0} records/s", self.syncs_per_second, self.records_per_second)?;
        writeln!(f, "  {:.1} MB in {:.2} s ({:.1} MB/s)", self.written_mb, self.seconds, self.written_mb_per_second)?;
        if self.records_checked < self.records {
            writeln!(f, "  only {} of the records were checked", self.records_checked)?;
        }
        writeln!(f, "{}\n{}", self.end, table(TimeUnit::Microseconds, &self.times))?;
        write!(f, "{}{}", self.damage, self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::super::tests::options;
    use super::*;

    fn measured(folder: &Path, words: &[&str]) -> LogReport {
        let options = options(folder, words);
        measure(&options, StopCondition::new(options.duration, None)).unwrap()
    }

    #[test]
    fn a_time_limit_ends_a_run_and_written_records_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let words = ["--pattern", "log", "--record", "100", "--batch", "200", "--records", "1000000000"];
        for (more, writes) in [(&["--duration", "300ms"][..], true), (&["--duration", "1ms", "--overwrite"], false)] {
            let report = measured(folder.path(), &[&words, more].concat());
            assert_eq!((report.records > 0, report.end), (writes, StopReason::Time), "{report}");
            assert!(report.is_sound() && report.records_checked == report.records, "{report}");
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        }
    }

    #[test]
    fn batches_end_with_a_whole_record_and_the_rest_is_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        for overwrite in [&[][..], &["--overwrite"]] {
            let words = ["--pattern", "log", "--records", "10", "--record", "1000", "--batch", "2500"];
            let report = measured(folder.path(), &[&words, overwrite].concat());
            assert_eq!((report.records, report.times[1].count, report.written_mb), (10, 4, 0.01));
            assert!(report.is_sound() && report.records_checked == 10, "{report}");
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        }
    }

    #[test]
    fn a_flipped_bit_and_a_missing_end_are_found() {
        let parent = tempfile::tempdir().unwrap();
        let options = options(parent.path(), &["--pattern", "log", "--records", "10"]);
        let folder = WorkFolder::create(parent.path()).unwrap();
        let mut ending = StopCondition::new(None, None);
        let mut log = Log::create(&options, &folder, &mut ending).unwrap();
        log.fill(&options.log, &mut ending).unwrap();
        log.check(&mut ending).unwrap();
        assert!(log.damage.is_none());
        let right = log.content.slice(3, 17, 1)[0];
        log.file.write_all_at(&[right ^ 1], 3 * 6000 + 17).unwrap();
        log.file.set_len(59_999).unwrap();
        log.records_checked = 0;
        log.check(&mut ending).unwrap();
        assert_eq!(
            log.damage.to_string(),
            "damaged: 2\n  record 3 of the log differs from what was written\n  \
             the log ends before record 9 of 10\n"
        );
    }
}
