//! The counts of several days, each in its file, and which reports are due. Time is an argument.
//!
//! | a day | its counts |
//! |---|---|
//! | today | grow |
//! | yesterday | are reported, each subject at a time of its own within the spread |
//! | earlier, up to [`DAYS_KEPT`] | are reported if that could not be done before |
//! | older | are dropped |

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mail::Timestamp;

use super::counters::DroppedObservation;
use super::counts::{CollectedReport, CountLimits, DayCounts, SubjectCounts};
use super::day_file::{DayFile, day_path};
use super::observation::{Observation, ReportSubject};
use super::utc_day::UtcDay;

/// Days before today whose reports are still sent.
const DAYS_KEPT: u64 = 2;

/// The counts of all days.
#[derive(Debug)]
pub struct ReportStore {
    folder: PathBuf,
    limits: CountLimits,
    days: BTreeMap<UtcDay, StoredDay>,
    /// Lines of files that could not be read.
    unreadable: u64,
}

#[derive(Debug)]
struct StoredDay {
    counts: DayCounts,
    file: DayFile,
}

/// A report to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueReport {
    /// The day of its counts.
    pub day: UtcDay,
    /// Its content.
    pub report: CollectedReport,
}

/// A report in the making, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSummary {
    /// The day of its counts.
    pub day: UtcDay,
    /// What it is about.
    pub subject: ReportSubject,
    /// The number of different rows.
    pub rows: usize,
    /// The number of observations.
    pub total: u64,
}

impl ReportStore {
    /// Opens the folder, which is created if it does not exist, with the counts that are in it.
    ///
    /// # Errors
    ///
    /// The folder cannot be created, or a file in it not be read.
    pub fn open(folder: &Path, limits: CountLimits, now: Timestamp) -> io::Result<ReportStore> {
        fs::create_dir_all(folder)?;
        let mut store = ReportStore { folder: folder.to_owned(), limits, days: BTreeMap::new(), unreadable: 0 };
        let today = UtcDay::of(now);
        for day in (0..=DAYS_KEPT).map(|days| today.before(days)) {
            let mut file = DayFile::new(day_path(folder, &day.to_string()));
            match file.load() {
                Ok((counts, unreadable)) => {
                    store.unreadable += unreadable;
                    store.days.insert(day, StoredDay { counts, file });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        store.remove_old_files(today.before(DAYS_KEPT))?;
        Ok(store)
    }

    /// Lines that could not be read when it was opened, as after a crash.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Removes the files of days before `oldest`. Those of days to come stay: the clock may be wrong now.
    fn remove_old_files(&self, oldest: UtcDay) -> io::Result<()> {
        let oldest = day_path(&self.folder, &oldest.to_string());
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_ours = path.extension().is_some_and(|extension| extension == "jsonl" || extension == "new");
            if is_ours && path < oldest {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Counts an observation on the day of `now`.
    ///
    /// # Errors
    ///
    /// It is not counted, by this limit.
    pub fn add(&mut self, now: Timestamp, observation: Observation) -> Result<(), DroppedObservation> {
        let day = UtcDay::of(now);
        let folder = &self.folder;
        let stored = self.days.entry(day).or_insert_with(|| StoredDay {
            counts: DayCounts::default(),
            file: DayFile::new(day_path(folder, &day.to_string())),
        });
        stored.counts.add(observation, &self.limits)
    }

    /// Writes what is not in the files yet.
    ///
    /// # Errors
    ///
    /// A file cannot be written. Nothing is lost: the next call tries again.
    pub fn write(&mut self) -> io::Result<()> {
        self.days.values_mut().try_for_each(|stored| stored.file.write(&mut stored.counts))
    }

    /// The report of an earlier day that has been due for the longest time: what is tried again waits behind
    /// all others, which would else never be sent if it always fails.
    pub fn next_due(&self, now: Timestamp, spread: Duration) -> Option<DueReport> {
        let waiting = self.days.range(..UtcDay::of(now)).flat_map(|(day, stored)| {
            let unreported = stored.counts.unreported();
            unreported.map(move |(subject, counts)| (due_at(*day, subject, counts, spread), *day, subject, stored))
        });
        let first = waiting.min_by_key(|(at, ..)| *at).filter(|(at, ..)| *at <= now.seconds());
        let (_, day, subject, stored) = first?;
        Some(DueReport { day, report: stored.counts.report(subject, day.begin(), day.end())? })
    }

    /// All reports about a domain, of today too, up to now.
    pub fn reports_of(&self, now: Timestamp, domain: &str) -> Vec<DueReport> {
        let of_day = |(day, stored): (&UtcDay, &StoredDay)| {
            let about = stored.counts.unreported().filter(|(subject, _)| *subject.domain == *domain);
            let end = day.end().min(now.seconds());
            let reports = about.filter_map(|(subject, _)| stored.counts.report(subject, day.begin(), end));
            reports.map(|report| DueReport { day: *day, report }).collect::<Vec<_>>()
        };
        self.days.iter().flat_map(of_day).collect()
    }

    /// A report is done with: what it says is no longer counted.
    ///
    /// # Errors
    ///
    /// The file cannot be written: after a restart, the report may be sent again.
    pub fn finish(&mut self, due: &DueReport) -> io::Result<()> {
        let Some(StoredDay { counts, file }) = self.days.get_mut(&due.day) else { return Ok(()) };
        counts.subtract(&due.report);
        file.write_sent(&due.report.subject, due.report.end + 1, counts)
    }

    /// A report cannot be sent now, and is not due again before this time.
    pub fn postpone(&mut self, due: &DueReport, until: Timestamp) {
        let stored = self.days.get_mut(&due.day);
        if let Some(counts) = stored.and_then(|stored| stored.counts.subject_mut(&due.report.subject)) {
            counts.retry_at = Some(until);
        }
    }

    /// Forgets the days whose reports are sent, and those that are too old. Returns how many reports are
    /// not sent any more.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn remove_old_days(&mut self, now: Timestamp) -> io::Result<u64> {
        let today = UtcDay::of(now);
        let oldest = today.before(DAYS_KEPT);
        let is_done = |day: UtcDay, stored: &StoredDay| {
            day < oldest || day < today && stored.counts.unreported().next().is_none()
        };
        let mut lost = 0;
        let done: Vec<UtcDay> =
            self.days.iter().filter(|(day, stored)| is_done(**day, stored)).map(|(day, _)| *day).collect();
        for day in done {
            let Some(stored) = self.days.remove(&day) else { continue };
            lost += stored.counts.unreported().count() as u64;
            stored.file.remove()?;
        }
        Ok(lost)
    }

    /// What will be reported.
    pub fn summaries(&self) -> Vec<ReportSummary> {
        let of_day = |(day, stored): (&UtcDay, &StoredDay)| {
            let summary = |(subject, counts): (&ReportSubject, &SubjectCounts)| ReportSummary {
                day: *day,
                subject: subject.clone(),
                rows: counts.rows.len(),
                total: counts.rows.values().map(|count| count.total).sum(),
            };
            stored.counts.unreported().map(summary).collect::<Vec<_>>()
        };
        self.days.iter().flat_map(of_day).collect()
    }
}

/// The second from which a report is due.
fn due_at(day: UtcDay, subject: &ReportSubject, counts: &SubjectCounts, spread: Duration) -> u64 {
    counts.retry_at.map_or_else(|| due_second(day, subject, spread), Timestamp::seconds)
}

/// When the report of a day about a subject is due: spread evenly, and the same after a restart.
fn due_second(day: UtcDay, subject: &ReportSubject, spread: Duration) -> u64 {
    let mut hasher = DefaultHasher::new();
    (day, subject).hash(&mut hasher);
    day.end() + 1 + hasher.finish() % spread.as_secs().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{ReportKind, ReportRow, TlsRow};

    const SPREAD: Duration = Duration::from_secs(3600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Duration::from_secs(seconds)
    }

    fn noon(day: u64) -> Timestamp {
        at(day * 86_400 + 43_200)
    }

    fn observation(domain: &str, host: &str) -> Observation {
        let row = ReportRow::Tls(TlsRow {
            policy_type: "sts".into(),
            policy_strings: vec!["version: STSv1".into()],
            mx_host: host.into(),
            receiving_ip: None,
            failure: None,
            reason: None,
        });
        Observation { subject: ReportSubject { kind: ReportKind::Tls, domain: domain.into() }, policy: None, row }
    }

    fn open(folder: &Path, now: Timestamp) -> ReportStore {
        ReportStore::open(folder, CountLimits::default(), now).unwrap()
    }

    #[test]
    fn a_day_is_reported_after_its_end_within_the_spread() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        store.add(noon(100), observation("a.example", "mx1")).unwrap();
        store.add(noon(101), observation("a.example", "mx1")).unwrap();
        assert_eq!(store.next_due(noon(100), SPREAD), None);
        let midnight = 101 * 86_400;
        let due = (midnight..midnight + 3600).find(|second| store.next_due(at(*second), SPREAD).is_some()).unwrap();
        let report = store.next_due(at(due), SPREAD).unwrap();
        assert_eq!((report.report.begin, report.report.end, report.report.total()), (100 * 86_400, midnight - 1, 1));
        store.finish(&report).unwrap();
        assert_eq!(store.next_due(noon(101), SPREAD), None);
        assert_eq!(store.remove_old_days(noon(101)).unwrap(), 0);
        assert_eq!(store.summaries().len(), 1);
    }

    #[test]
    fn counts_and_what_was_sent_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        for host in ["mx1", "mx2", "mx1"] {
            store.add(noon(100), observation("a.example", host)).unwrap();
            store.write().unwrap();
        }
        store.add(noon(100), observation("b.example", "mx1")).unwrap();
        store.write().unwrap();
        let before = store.summaries();
        let mut store = open(folder.path(), noon(101));
        assert_eq!(store.summaries(), before);
        let due = store.next_due(noon(101), SPREAD).unwrap();
        store.finish(&due).unwrap();
        let store = open(folder.path(), noon(101));
        assert_eq!(store.summaries(), before[1..]);
    }

    #[test]
    fn a_line_that_was_cut_off_costs_only_its_own_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        store.add(noon(100), observation("a.example", "mx1")).unwrap();
        store.add(noon(100), observation("a.example", "mx2")).unwrap();
        store.write().unwrap();
        let path = day_path(folder.path(), &UtcDay::of(noon(100)).to_string());
        let text = fs::read(&path).unwrap();
        for length in 0..text.len() {
            fs::write(&path, &text[..length]).unwrap();
            let mut store = open(folder.path(), noon(100));
            assert!(store.unreadable() <= 1, "{length}");
            store.add(noon(100), observation("a.example", "mx3")).unwrap();
            store.write().unwrap();
            let again = open(folder.path(), noon(100));
            assert_eq!((again.unreadable(), again.summaries()), (0, store.summaries()), "{length}");
        }
        fs::write(&path, b"\xff{}\n[]\n{\"count\":1}\n\n").unwrap();
        assert_eq!(open(folder.path(), noon(100)).unreadable(), 4);
    }

    #[test]
    fn a_file_stays_as_long_as_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        let path = day_path(folder.path(), &UtcDay::of(noon(100)).to_string());
        for _ in 0..12_000 {
            store.add(noon(100), observation("a.example", "mx1")).unwrap();
            store.write().unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() < 3 << 19);
        assert_eq!(open(folder.path(), noon(100)).summaries()[0].total, 12_000);
    }

    #[test]
    fn reports_that_cannot_be_sent_wait_and_then_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        store.add(noon(100), observation("a.example", "mx1")).unwrap();
        store.write().unwrap();
        let due = store.next_due(noon(101), SPREAD).unwrap();
        store.postpone(&due, noon(102));
        assert_eq!(store.next_due(at(102 * 86_400), SPREAD), None);
        assert_eq!(store.next_due(noon(102), SPREAD), Some(due));
        assert_eq!(store.remove_old_days(noon(102)).unwrap(), 0);
        assert_eq!(store.remove_old_days(noon(103)).unwrap(), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_report_that_is_tried_again_waits_behind_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        store.add(noon(100), observation("a.example", "mx1")).unwrap();
        store.add(noon(100), observation("b.example", "mx1")).unwrap();
        let first = store.next_due(noon(101), SPREAD).unwrap();
        store.postpone(&first, noon(101) + Duration::from_secs(1));
        let second = store.next_due(noon(101) + Duration::from_secs(2), SPREAD).unwrap();
        assert_ne!(first, second);
        store.finish(&second).unwrap();
        assert_eq!(store.next_due(noon(101) + Duration::from_secs(2), SPREAD), Some(first));
    }

    #[test]
    fn a_clock_that_is_behind_at_the_start_costs_no_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        store.add(noon(100), observation("a.example", "mx1")).unwrap();
        store.write().unwrap();
        assert_eq!(open(folder.path(), noon(0)).summaries(), []);
        assert_eq!(open(folder.path(), noon(100)).summaries(), store.summaries());
    }

    #[test]
    fn the_files_of_days_long_ago_are_removed_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path(), noon(100));
        store.add(noon(100), observation("a.example", "mx1")).unwrap();
        store.write().unwrap();
        fs::write(folder.path().join("README"), "stays").unwrap();
        open(folder.path(), noon(110));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
