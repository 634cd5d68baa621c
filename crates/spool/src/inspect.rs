//! Inspects a lane without a running server: what each segment holds, and whether all of it can be
//! read. Writes nothing.
//!
//! A body file is only checked while the log has a pending recipient for it: the file of a finished
//! message may be removed at any time.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::OpenError;
use crate::disk::{Disk, DiskFile, read_exact_at};
use crate::entries::{MessageHead, OutcomeHead};
use crate::recipient_states::RecipientStates;
use crate::record::RecordKind;
use crate::scan::{ListedRecord, SegmentContents, body_crc};
use crate::segment::{self, HeaderState, SegmentHeader};
use crate::spill::{self, SpilledRange};

/// Files are read in blocks of this size.
const PIECE_BYTES: u64 = 1 << 20;

/// The content of a lane's folder.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The segments, by file name.
    pub segments: Vec<SegmentReport>,
    /// Files with data that was set aside earlier.
    pub aside: Vec<String>,
}

/// The content of a segment file.
#[derive(Clone, Debug)]
pub struct SegmentReport {
    /// The name of the file.
    pub name: String,
    /// The number of its current use; None if it is free.
    pub number: Option<u64>,
    /// Whether it has an index.
    pub sealed: bool,
    /// Messages, including dead ones.
    pub messages: u64,
    /// The size of their bodies in the log.
    pub body_bytes: u64,
    /// Outcome records.
    pub outcomes: u64,
    /// What cannot be read, as text.
    pub damage: Vec<String>,
}

/// Reads a lane; with `bodies`, verifies every body too.
pub fn inspect(disk: &dyn Disk, bodies: bool) -> Result<Inspection, OpenError> {
    let mut names = disk.list()?;
    names.sort_unstable();
    let mut inspection = Inspection::default();
    let mut files = BodyFiles::default();
    for name in names {
        if segment::file_ordinal(&name).is_some() {
            files.segment = inspection.segments.len();
            inspection.segments.push(inspect_segment(disk, name, bodies.then_some(&mut files))?);
        } else if name.starts_with("aside-") {
            inspection.aside.push(name);
        }
    }
    for (segment, damage) in files.damage(disk) {
        inspection.segments[segment].damage.push(damage);
    }
    Ok(inspection)
}

/// Reads one segment, and its bodies if `files` is given.
fn inspect_segment(
    disk: &dyn Disk,
    name: String,
    mut files: Option<&mut BodyFiles>,
) -> Result<SegmentReport, OpenError> {
    let file = disk.open(&name)?;
    let mut report = SegmentReport {
        name,
        number: None,
        sealed: false,
        messages: 0,
        body_bytes: 0,
        outcomes: 0,
        damage: Vec::new(),
    };
    let mut used = None;
    match SegmentHeader::load(&*file)? {
        HeaderState::Version(version) => return Err(OpenError::Version { segment: report.name, version }),
        HeaderState::Blank => {}
        HeaderState::Unreadable => {
            used = segment::first_use(&*file)?;
            report.damage.push("both copies of the header are unreadable".into());
        }
        HeaderState::NewestUnreadable { found, .. } => {
            used = Some(found);
            report.damage.push("the current copy of the header is unreadable".into());
        }
        HeaderState::Good { header, damaged } => {
            used = header.segment;
            if damaged {
                report.damage.push("one copy of the header is unreadable".into());
            }
        }
    }
    report.number = used.map(|used| used.number);
    let Some(used) = used else { return Ok(report) };
    let contents = match SegmentContents::by_index(&*file, used)? {
        Some(contents) => contents,
        None => SegmentContents::by_record(&*file, used)?,
    };
    report.sealed = contents.indexed;
    report.damage.extend(contents.damage.iter().map(|range| format!("bytes {} to {}", range.start, range.end)));
    for listed in contents.records() {
        match listed.frame.kind {
            RecordKind::Message => report.messages += 1,
            RecordKind::Outcome => report.outcomes += 1,
            _ => {}
        }
        report.body_bytes += u64::from(listed.frame.body_len);
        if let Some(files) = &mut files {
            files.note(&listed);
            let crc = body_crc(&*file, listed.offset + listed.frame.body_offset(), listed.frame.body_len);
            if crc != Some(listed.frame.body_crc) {
                let whose = MessageHead::read(listed.head).map(|head| format!(" of message {:x}", head.sequence));
                report.damage.push(format!("the body{} at byte {}", whose.unwrap_or_default(), listed.offset));
            }
        }
    }
    Ok(report)
}

/// The body files of a lane, and the outcomes of their messages.
#[derive(Default)]
struct BodyFiles {
    /// The index of the segment that is being read.
    segment: usize,
    /// By sequence number.
    spilled: BTreeMap<u64, BodyFile>,
    /// Of every message: an outcome may be found before its message.
    states: HashMap<u64, RecipientStates>,
}

struct BodyFile {
    segment: usize,
    range: SpilledRange,
    recipients: usize,
}

impl BodyFiles {
    fn note(&mut self, listed: &ListedRecord<'_>) {
        let message = || MessageHead::read(listed.head).filter(|_| listed.frame.kind == RecordKind::Message);
        let outcome = || OutcomeHead::read(listed.head).filter(|_| listed.frame.kind == RecordKind::Outcome);
        if let Some(head) = message() {
            if let Some(range) = head.spilled {
                let recipients = head.envelope.recipients.len();
                self.spilled.insert(head.sequence, BodyFile { segment: self.segment, range, recipients });
                self.states.entry(head.sequence).or_default().merge(head.states);
            }
        } else if let Some(head) = outcome() {
            self.states.entry(head.sequence).or_default().merge(head.states);
        }
    }

    /// The damage of body files with pending recipients, each with the segment that names it.
    fn damage(&self, disk: &dyn Disk) -> Vec<(usize, String)> {
        let waits = |(sequence, file): &(&u64, &BodyFile)| {
            self.states.get(sequence).map_or(0, RecipientStates::finished) < file.recipients
        };
        let damage = |(sequence, file): (&u64, &BodyFile)| {
            let name = spill::file_name(*sequence);
            let fault = file_fault(disk, &name, file.range)?;
            Some((file.segment, format!("the body of message {sequence:x} in {name}: {fault}")))
        };
        self.spilled.iter().filter(waits).filter_map(damage).collect()
    }
}

fn file_fault(disk: &dyn Disk, name: &str, range: SpilledRange) -> Option<String> {
    let read = || {
        let file = disk.open(name)?;
        let len = file.len()?;
        // A wrong length is reported without reading the content.
        Ok((len, if len == range.end() { range_crc(&*file, range)? } else { 0 }))
    };
    let read: io::Result<_> = read();
    match read {
        Err(error) => Some(error.to_string()),
        Ok((len, _)) if len != range.end() => Some(format!("{len} bytes, expected {}", range.end())),
        Ok((_, crc)) if crc != range.digest => Some("wrong checksum".into()),
        Ok(_) => None,
    }
}

fn range_crc(file: &dyn DiskFile, range: SpilledRange) -> io::Result<u32> {
    let mut buffer = vec![0; PIECE_BYTES.min(range.len) as usize];
    (range.start..range.end()).step_by(PIECE_BYTES as usize).try_fold(0, |crc, offset| {
        let piece = &mut buffer[..PIECE_BYTES.min(range.end() - offset) as usize];
        read_exact_at(file, piece, offset)?;
        Ok(crc32c::crc32c_append(crc, piece))
    })
}
