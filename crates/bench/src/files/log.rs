//! `--pattern log`: one writer appends records to one file; a batch is written by one call and synced (fdatasync)
//! before the next one begins, as a spool does with the messages that it acknowledges.
//!
//! Into a new file a sync has to write metadata too; with `--overwrite` the blocks were written and synced before, and
//! it has not. Afterwards the file's pages are dropped, so that what is checked is read from the disk.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};
use std::time::Instant;

use fastrand::Rng;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::content::Content;
use super::damage::Damage;
use super::folder::Folder;
use super::times::{Stopwatch, Times};
use super::{LogOptions, Options};
use crate::Fault;
use crate::meanwhile::Meanwhile;

const BYTES_PER_MB: f64 = 1e6;
/// Bytes that the preparation writes at a time.
const PREPARE_BYTES: usize = 1 << 20;

/// What the log took.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    folder: String,
    overwrite: bool,
    record_bytes: usize,
    batch_bytes: usize,
    records: u64,
    records_per_second: f64,
    seconds: f64,
    syncs_per_second: f64,
    written_mb: f64,
    written_mb_per_second: f64,
    times: Operations,
    damage: Damage,
    meanwhile: Meanwhile,
}

#[derive(Debug, Serialize)]
struct Operations {
    write: Times,
    sync: Times,
}

/// The file, and what was measured on it.
struct Log {
    file: File,
    content: Content,
    record_bytes: usize,
    records: u64,
    writes: Stopwatch,
    syncs: Stopwatch,
}

/// Writes a log, reads it again, and removes it.
pub(super) fn measure(options: &Options) -> Result<Report, Fault> {
    let folder = Folder::make(&options.folder)?;
    let mut log = Log::make(options, &folder).map_err(Fault::system("preparing the log"))?;
    let meter = Meanwhile::begin_with_disk(&options.folder)?;
    let begun = Instant::now();
    log.fill(options, begun).map_err(Fault::system("writing the log"))?;
    let seconds = begun.elapsed().as_secs_f64();
    let meanwhile = meter.end();
    let damage = log.check().map_err(Fault::system("reading the log again"))?;
    folder.remove()?;
    Ok(Report::of(options, &log, seconds, damage, meanwhile))
}

impl Log {
    fn make(options: &Options, folder: &Folder) -> io::Result<Log> {
        let LogOptions { records, record, overwrite, .. } = options.log;
        let path = folder.path().join("log");
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        if overwrite {
            let blank = vec![0; PREPARE_BYTES];
            let length = records.saturating_mul(record as u64);
            (0..length.div_ceil(PREPARE_BYTES as u64)).try_for_each(|_| file.write_all(&blank))?;
            file.rewind()?;
        }
        file.sync_all()?;
        File::open(folder.path())?.sync_all()?;
        Ok(Log {
            file,
            content: Content::new(record, &mut Rng::with_seed(options.seed)),
            record_bytes: record,
            records: 0,
            writes: Stopwatch::new(),
            syncs: Stopwatch::new(),
        })
    }

    fn fill(&mut self, options: &Options, begun: Instant) -> io::Result<()> {
        let LogOptions { records, batch: batch_bytes, .. } = options.log;
        let deadline = options.duration.map(|span| begun + span);
        let mut batch = Vec::with_capacity(batch_bytes + self.record_bytes);
        while self.records < records && deadline.is_none_or(|deadline| Instant::now() < deadline) {
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

    /// Holds every record against what was written.
    fn check(&mut self) -> io::Result<Damage> {
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        self.file.rewind()?;
        let mut file = BufReader::with_capacity(PREPARE_BYTES, &self.file);
        let mut record = vec![0; self.record_bytes];
        let mut damage = Damage::default();
        for number in 0..self.records {
            match file.read_exact(&mut record) {
                Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => {
                    damage.found(format!("the log ends before record {number} of {}", self.records));
                    break;
                }
                read => read?,
            }
            if record != self.content.slice(number, 0, self.record_bytes) {
                damage.found(format!("record {number} of the log does not read as it was written"));
            }
        }
        Ok(damage)
    }
}

impl Report {
    fn of(options: &Options, log: &Log, seconds: f64, damage: Damage, meanwhile: Meanwhile) -> Report {
        let written_mb = log.records as f64 * log.record_bytes as f64 / BYTES_PER_MB;
        Report {
            folder: options.folder.display().to_string(),
            overwrite: options.log.overwrite,
            record_bytes: log.record_bytes,
            batch_bytes: options.log.batch,
            records: log.records,
            records_per_second: log.records as f64 / seconds,
            seconds,
            syncs_per_second: log.syncs.count() as f64 / seconds,
            written_mb,
            written_mb_per_second: written_mb / seconds,
            times: Operations { write: log.writes.times(), sync: log.syncs.times() },
            damage,
            meanwhile,
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damage.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.overwrite { "written over in" } else { "appended to" };
        write!(f, "{} records of {} bytes, {how} a log in {}, ", self.records, self.record_bytes, self.folder)?;
        writeln!(f, "synced in batches of {} bytes", self.batch_bytes)?;
        writeln!(f, "  {:.0} syncs/s, {:.0} records/s", self.syncs_per_second, self.records_per_second)?;
        writeln!(f, "  {:.1} MB in {:.2} s ({:.1} MB/s)", self.written_mb, self.seconds, self.written_mb_per_second)?;
        writeln!(f, "  operation {}", Times::HEADER)?;
        writeln!(f, "  write     {}", self.times.write)?;
        writeln!(f, "  sync      {}", self.times.sync)?;
        write!(f, "{}{}", self.damage, self.meanwhile)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::tests::options;
    use super::*;

    #[test]
    fn batches_end_with_a_whole_record_and_the_rest_is_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        for overwrite in [&[][..], &["--overwrite"]] {
            let words = ["--pattern", "log", "--records", "10", "--record", "1000", "--batch", "2500"];
            let report = measure(&options(folder.path(), &[&words, overwrite].concat())).unwrap();
            assert_eq!((report.records, report.times.sync.count, report.written_mb), (10, 4, 0.01));
            assert!(report.is_sound(), "{report}");
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        }
    }

    #[test]
    fn one_bit_and_a_missing_end_are_found() {
        let parent = tempfile::tempdir().unwrap();
        let options = options(parent.path(), &["--pattern", "log", "--records", "10"]);
        let folder = Folder::make(parent.path()).unwrap();
        let mut log = Log::make(&options, &folder).unwrap();
        log.fill(&options, Instant::now()).unwrap();
        assert!(log.check().unwrap().is_none());
        let right = log.content.slice(3, 17, 1)[0];
        log.file.write_all_at(&[right ^ 1], 3 * 6000 + 17).unwrap();
        log.file.set_len(59_999).unwrap();
        assert_eq!(
            log.check().unwrap().to_string(),
            "damaged: 2\n  record 3 of the log does not read as it was written\n  \
             the log ends before record 9 of 10\n"
        );
    }
}
