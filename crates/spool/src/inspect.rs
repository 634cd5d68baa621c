//! Looking at a lane that no server runs on: what each segment holds, and whether all of it can be read.
//! Nothing is written.

use crate::OpenError;
use crate::disk::Disk;
use crate::entry::MessageHead;
use crate::record::Kind;
use crate::scan::{Contents, body_crc};
use crate::segment::{self, Header, Standing};

/// What a lane's folder holds.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// By file name.
    pub segments: Vec<SegmentReport>,
    /// Files with what was set aside earlier.
    pub aside: Vec<String>,
}

/// What one segment file holds.
#[derive(Clone, Debug)]
pub struct SegmentReport {
    /// The file.
    pub name: String,
    /// The number of its present use; None if it is free.
    pub number: Option<u64>,
    /// It carries an index.
    pub sealed: bool,
    /// Messages, dead ones too.
    pub messages: u64,
    /// Bytes of their bodies in the log.
    pub body_bytes: u64,
    /// Records of outcomes.
    pub outcomes: u64,
    /// What cannot be read, in words with places.
    pub damage: Vec<String>,
}

/// Reads a lane; with `bodies` every body too.
pub fn inspect(disk: &dyn Disk, bodies: bool) -> Result<Inspection, OpenError> {
    let mut names = disk.list()?;
    names.sort_unstable();
    let mut inspection = Inspection::default();
    for name in names {
        if segment::file_ordinal(&name).is_some() {
            inspection.segments.push(inspect_segment(disk, name, bodies)?);
        } else if name.starts_with("aside-") {
            inspection.aside.push(name);
        }
    }
    Ok(inspection)
}

fn inspect_segment(disk: &dyn Disk, name: String, bodies: bool) -> Result<SegmentReport, OpenError> {
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
    match Header::load(&*file)? {
        Standing::Version(version) => return Err(OpenError::Version { segment: report.name, version }),
        Standing::Blank => {}
        Standing::Unreadable => {
            used = segment::first_use(&*file)?;
            report.damage.push("neither copy of the header can be read".into());
        }
        Standing::Outlived { found, .. } => {
            used = Some(found);
            report.damage.push("the copy of the header that is in force cannot be read".into());
        }
        Standing::Good { header, damaged } => {
            used = header.segment;
            if damaged {
                report.damage.push("one of the two copies of the header cannot be read".into());
            }
        }
    }
    report.number = used.map(|used| used.number);
    let Some(used) = used else { return Ok(report) };
    let contents = match Contents::by_index(&*file, used)? {
        Some(contents) => contents,
        None => Contents::by_record(&*file, used)?,
    };
    report.sealed = contents.indexed;
    report.damage.extend(contents.damage.iter().map(|range| format!("bytes {} to {}", range.start, range.end)));
    for listed in contents.records() {
        match listed.frame.kind {
            Kind::Message => report.messages += 1,
            Kind::Outcome => report.outcomes += 1,
            _ => {}
        }
        report.body_bytes += u64::from(listed.frame.body_len);
        if bodies {
            let crc = body_crc(&*file, listed.offset + listed.frame.body_offset(), listed.frame.body_len);
            if crc != Some(listed.frame.body_crc) {
                let whose = MessageHead::read(listed.head).map(|head| format!(" of message {:x}", head.sequence));
                report.damage.push(format!("the body{} at byte {}", whose.unwrap_or_default(), listed.offset));
            }
        }
    }
    Ok(report)
}
