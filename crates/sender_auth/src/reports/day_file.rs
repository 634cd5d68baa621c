//! The file with the counts of a day: lines of JSON, each an increment. It is read as a whole at the
//! start, and written anew when it has grown to twice what it has to say.
//!
//! | line | says |
//! |---|---|
//! | `{"policy":[SUBJECT,POLICY]}` | this policy from here on |
//! | `{"count":[SUBJECT,ROW,N]}` | the row was observed N more times |
//! | `{"sent":[SUBJECT,SECOND]}` | what was counted so far is reported, up to this second |
//!
//! A crash can cut the last line off, or lose the last lines. A line that cannot be read is left out and
//! counted. Nothing is synced: these are statistics.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::counts::DayCounts;
use super::observation::{ReportRow, ReportSubject};
use crate::dmarc::record::PublishedPolicy;

/// A file that is this much longer than twice its content is written anew.
const SPARE_OCTETS: u64 = 1 << 20;

/// A line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DayLine {
    Policy(ReportSubject, PublishedPolicy),
    Count(ReportSubject, ReportRow, u64),
    Sent(ReportSubject, u64),
}

/// The file of a day.
#[derive(Debug)]
pub(super) struct DayFile {
    path: PathBuf,
    /// None: it has not been opened yet.
    file: Option<File>,
    octets: u64,
    /// Its octets when it was written anew.
    fresh_octets: u64,
}

impl DayFile {
    /// The file at this path, which need not exist yet.
    pub(super) fn new(path: PathBuf) -> DayFile {
        DayFile { path, file: None, octets: 0, fresh_octets: 0 }
    }

    /// The counts in the file, and the number of lines that cannot be read. The file is written anew if there
    /// are any, so that a line that was cut off does not spoil the next one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or not be written.
    pub(super) fn load(&mut self) -> io::Result<(DayCounts, u64)> {
        let (mut counts, mut unreadable) = (DayCounts::default(), 0);
        let mut reader = BufReader::new(File::open(&self.path)?);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            match serde_json::from_slice(&line) {
                Ok(DayLine::Policy(subject, policy)) => counts.restore_policy(subject, policy),
                Ok(DayLine::Count(subject, row, count)) => counts.restore_row(subject, row, count),
                Ok(DayLine::Sent(subject, until)) => counts.restore_sent(subject, until),
                Err(_) => unreadable += 1,
            }
            self.octets += line.len() as u64;
            line.clear();
        }
        self.rewrite(&mut counts)?;
        Ok((counts, unreadable))
    }

    /// Writes what is not in the file yet.
    ///
    /// # Errors
    ///
    /// The file cannot be written; the next call tries again.
    pub(super) fn write(&mut self, counts: &mut DayCounts) -> io::Result<()> {
        if self.octets > 2 * counts.octets().max(self.fresh_octets) + SPARE_OCTETS {
            return self.rewrite(counts);
        }
        let lines = unwritten_lines(counts);
        if !lines.is_empty() {
            self.append(&lines)?;
            mark_written(counts);
        }
        Ok(())
    }

    /// Writes that a report was sent, whose rows `counts` no longer has.
    ///
    /// # Errors
    ///
    /// The file cannot be written: the report may be sent again.
    pub(super) fn write_sent(&mut self, subject: &ReportSubject, until: u64, counts: &mut DayCounts) -> io::Result<()> {
        self.append(&json_line(&DayLine::Sent(subject.clone(), until)))?;
        self.write(counts)
    }

    /// Removes the file.
    pub(super) fn remove(self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().create(true).append(true).open(&self.path)?);
        }
        if let Some(file) = &mut self.file {
            file.write_all(lines)?;
            self.octets += lines.len() as u64;
        }
        Ok(())
    }

    /// Replaces the file by one that says each thing once.
    fn rewrite(&mut self, counts: &mut DayCounts) -> io::Result<()> {
        mark_unwritten(counts);
        let lines = [sent_lines(counts), unwritten_lines(counts)].concat();
        let fresh = self.path.with_extension("new");
        fs::write(&fresh, &lines)?;
        fs::rename(&fresh, &self.path)?;
        (self.file, self.octets, self.fresh_octets) = (None, lines.len() as u64, lines.len() as u64);
        mark_written(counts);
        Ok(())
    }
}

/// The folder's file for a day.
pub(super) fn day_path(folder: &Path, day: &str) -> PathBuf {
    folder.join(format!("{day}.jsonl"))
}

fn json_line(line: &DayLine) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

fn sent_lines(counts: &mut DayCounts) -> Vec<u8> {
    let sent = counts.subjects_mut().filter_map(|(subject, known)| Some((subject.clone(), known.reported_until?)));
    sent.flat_map(|(subject, until)| json_line(&DayLine::Sent(subject, until))).collect()
}

fn unwritten_lines(counts: &mut DayCounts) -> Vec<u8> {
    let mut lines = Vec::new();
    for (subject, known) in counts.subjects_mut() {
        if let Some(policy) = known.policy.as_ref().filter(|_| known.policy_unwritten) {
            lines.extend(json_line(&DayLine::Policy(subject.clone(), policy.clone())));
        }
        for (row, count) in known.rows.iter().filter(|(_, count)| count.unwritten > 0) {
            lines.extend(json_line(&DayLine::Count(subject.clone(), row.clone(), count.unwritten)));
        }
    }
    lines
}

fn mark_written(counts: &mut DayCounts) {
    for (_, known) in counts.subjects_mut() {
        known.policy_unwritten = false;
        known.rows.values_mut().for_each(|count| count.unwritten = 0);
    }
}

fn mark_unwritten(counts: &mut DayCounts) {
    for (_, known) in counts.subjects_mut() {
        known.policy_unwritten = true;
        known.rows.values_mut().for_each(|count| count.unwritten = count.total);
    }
}
