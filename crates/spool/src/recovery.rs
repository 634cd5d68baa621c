//! Opens a lane: finds the live messages in the log and returns them in its order.
//!
//! Recovery only writes what it sets aside, so a crash during recovery changes nothing. What it
//! reads in an unsealed segment is on the disk, not only in memory, because other segments are
//! freed based on it. All outcomes are collected before the first message, because an outcome may
//! come before a copy of its message.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use mail::SpoolId;

use crate::disk::keep_aside;
use crate::disk::{Disk, DiskFile, read_lossy};
use crate::entry::{Live, MessageHead, OutcomeHead, live, sequence_of};
use crate::lane::COUNTER_BITS;
use crate::ledger::{Ledger, Place, Segment, Slot, Stage};
use crate::record::{FLAG_SKIPPABLE, Kind, Use};
use crate::scan::Contents;
use crate::segment::{self, Header, Lease, Standing};
use crate::states::States;
use crate::{OpenError, spill};

/// A lane's folder with its headers.
pub(crate) struct Survey {
    pub(crate) disk: Arc<dyn Disk>,
    /// The ids of spool and lane, if any segment has them.
    pub(crate) identity: Option<(SpoolId, u16)>,
    pub(crate) epoch: u32,
    pub(crate) next_number: u64,
    segments: BTreeMap<Slot, Surveyed>,
    /// Files whose creation was interrupted: nothing in them was acknowledged.
    blank: Vec<String>,
    /// Files whose current header cannot be read.
    rotten: Vec<String>,
}

struct Surveyed {
    file: Arc<dyn DiskFile>,
    size: u64,
    segment: Option<Use>,
    last_number: u64,
    generation: u64,
}

/// What recovery reports besides the live messages.
#[derive(Default)]
pub(crate) struct Findings {
    /// What was set aside, and its origin.
    pub(crate) aside: Vec<String>,
    /// The highest epoch in a header or a sequence number.
    pub(crate) epoch: u32,
}

impl Survey {
    /// Reads the header of every segment.
    pub(crate) fn of(disk: Arc<dyn Disk>) -> Result<Survey, OpenError> {
        let mut survey = Survey {
            disk,
            identity: None,
            epoch: 0,
            next_number: 1,
            segments: BTreeMap::new(),
            blank: Vec::new(),
            rotten: Vec::new(),
        };
        for name in survey.disk.list()? {
            if let Some(ordinal) = segment::file_ordinal(&name) {
                survey.add(ordinal, &name)?;
            }
        }
        Ok(survey)
    }

    fn add(&mut self, ordinal: Slot, name: &str) -> Result<(), OpenError> {
        let file = self.disk.open(name)?;
        let size = file.len()?;
        let mut surveyed = Surveyed { file, size, segment: None, last_number: 0, generation: 0 };
        match Header::load(&*surveyed.file)? {
            Standing::Version(version) => return Err(OpenError::Version { segment: name.to_owned(), version }),
            Standing::Blank => {
                self.blank.push(name.to_owned());
                return Ok(());
            }
            Standing::Unreadable => {
                surveyed.segment = segment::first_use(&*surveyed.file)?;
                self.rotten.push(name.to_owned());
            }
            Standing::Good { header, .. } => self.take(&mut surveyed, &header, header.segment)?,
            Standing::Outlived { header, found } => {
                self.take(&mut surveyed, &header, Some(found))?;
                self.rotten.push(name.to_owned());
            }
        }
        surveyed.last_number = surveyed.last_number.max(surveyed.segment.unwrap_or_default().number);
        self.next_number = self.next_number.max(surveyed.last_number.saturating_add(1));
        self.segments.insert(ordinal, surveyed);
        Ok(())
    }

    fn take(&mut self, surveyed: &mut Surveyed, header: &Header, segment: Option<Use>) -> Result<(), OpenError> {
        self.identify(header)?;
        self.epoch = self.epoch.max(header.epoch);
        surveyed.generation = header.generation;
        surveyed.last_number = header.last_number;
        surveyed.segment = segment;
        Ok(())
    }

    fn identify(&mut self, header: &Header) -> Result<(), OpenError> {
        let found = (header.spool, header.lane);
        match self.identity {
            Some(known) if known != found => Err(OpenError::Mixed),
            _ => {
                self.identity = Some(found);
                Ok(())
            }
        }
    }

    /// Reads the segments; `sink` gets every live message, in the order of the log.
    pub(crate) fn recover(
        self,
        (spool, lane): (SpoolId, u16),
        sink: &mut dyn FnMut(Live),
    ) -> Result<(Ledger, Findings), OpenError> {
        let mut reading = Reading { ledger: Ledger::default(), contents: BTreeMap::new(), ..Reading::default() };
        let mut findings = Findings { epoch: self.epoch, ..Findings::default() };
        for (slot, surveyed) in self.segments {
            reading.enter(slot, surveyed, &*self.disk, &mut findings)?;
        }
        for name in self.blank {
            self.disk.remove(&name)?;
        }
        let rot = |name| format!("{name}: the header is unreadable; the records were read without it");
        findings.aside.extend(self.rotten.into_iter().map(rot));
        reading.understands_all()?;
        findings.epoch = findings.epoch.max(reading.highest_epoch());
        reading.gather_outcomes();
        reading.place_messages(&mut |head| sink(live(spool, lane, head, true)));
        reading.place_references();
        findings.aside.append(&mut reading.strange);
        sweep_bodies(&*self.disk, &reading.ledger, &mut findings)?;
        Ok((reading.ledger, findings))
    }
}

#[derive(Default)]
struct Reading {
    ledger: Ledger,
    /// By number, which is the order of the log.
    contents: BTreeMap<u64, (Slot, Contents)>,
    outcomes: HashMap<u64, States>,
    /// Descriptions of records with a valid checksum that cannot be decoded.
    strange: Vec<String>,
}

impl Reading {
    fn enter(&mut self, slot: Slot, surveyed: Surveyed, disk: &dyn Disk, findings: &mut Findings) -> io::Result<()> {
        let mut pinned = false;
        if let Some(used @ Use { number, .. }) = surveyed.segment {
            let contents = match Contents::by_index(&*surveyed.file, used)? {
                Some(contents) => contents,
                None => {
                    surveyed.file.settle()?;
                    Contents::by_record(&*surveyed.file, used)?
                }
            };
            for range in &contents.damage {
                pinned |= set_range_aside(disk, &surveyed, number, range, findings).is_err();
            }
            self.contents.insert(number, (slot, contents));
        }
        let segment = Segment {
            stage: if surveyed.segment.is_some() { Stage::Sealed } else { Stage::Free },
            number: surveyed.segment.unwrap_or_default().number,
            salt: surveyed.segment.unwrap_or_default().salt,
            last_number: surveyed.last_number,
            generation: surveyed.generation,
            size: surveyed.size,
            lease: Arc::new(Lease(surveyed.file)),
            live: 0,
            live_bytes: 0,
            refers: Default::default(),
            pinned,
        };
        self.ledger.segments.insert(slot, segment);
        Ok(())
    }

    /// A record of an unknown kind may only be skipped if it says so.
    fn understands_all(&self) -> Result<(), OpenError> {
        let mut records = self.contents.values().flat_map(|(_, contents)| contents.records());
        let strange = records.find_map(|listed| match listed.frame.kind {
            Kind::Unknown(kind) if listed.frame.flags & FLAG_SKIPPABLE == 0 => Some(kind),
            _ => None,
        });
        strange.map_or(Ok(()), |kind| Err(OpenError::UnknownRecord { kind }))
    }

    /// If a damaged header had the highest epoch, the sequence numbers still show it.
    fn highest_epoch(&self) -> u32 {
        let records = self.contents.values().flat_map(|(_, contents)| contents.records());
        let sequences = records.filter_map(|listed| sequence_of(listed.head));
        sequences.map(|sequence| (sequence >> COUNTER_BITS) as u32).max().unwrap_or(0)
    }

    fn gather_outcomes(&mut self) {
        for listed in self.contents.values().flat_map(|(_, contents)| contents.records()) {
            let (sequence, states) = match listed.frame.kind {
                Kind::Outcome => match OutcomeHead::read(listed.head) {
                    Some(head) => (head.sequence, head.states),
                    None => continue,
                },
                // A copy contains the states known when it was made.
                Kind::Message if MessageHead::has_states(listed.head) => match MessageHead::read(listed.head) {
                    Some(head) => (head.sequence, head.states),
                    None => continue,
                },
                _ => continue,
            };
            self.outcomes.entry(sequence).or_default().merge(states);
        }
    }

    fn place_messages(&mut self, sink: &mut dyn FnMut(MessageHead)) {
        for (slot, contents) in self.contents.values() {
            for listed in contents.records().filter(|listed| listed.frame.kind == Kind::Message) {
                let Some(mut head) = MessageHead::read(listed.head) else {
                    self.ledger.segment(*slot).pinned = true;
                    let what = "the checksum is right, but the record cannot be decoded; its segment is kept";
                    self.strange.push(format!("{}, byte {}: {what}", segment::file_name(*slot), listed.offset));
                    continue;
                };
                if let Some(states) = self.outcomes.get(&head.sequence) {
                    head.states = states.listed();
                }
                let known = self.ledger.place(head.sequence).is_some();
                let place = Place { slot: *slot, offset: listed.offset, span: listed.frame.span() };
                self.ledger.insert(&head, place);
                if !known && self.ledger.place(head.sequence).is_some() {
                    sink(head);
                }
            }
        }
    }

    /// A segment refers to every earlier one with a record of a message of which it has an outcome
    /// or a copy.
    fn place_references(&mut self) {
        let mut holders: HashMap<u64, Vec<u64>> = self.outcomes.keys().map(|key| (*key, Vec::new())).collect();
        for (number, (_, contents)) in &self.contents {
            for listed in contents.records().filter(|listed| listed.frame.kind == Kind::Message) {
                if let Some(sequence) = sequence_of(listed.head)
                    && let Some(numbers) = holders.get_mut(&sequence)
                {
                    numbers.push(*number);
                }
            }
        }
        for (number, (slot, contents)) in &self.contents {
            for listed in contents.records() {
                let sequence = sequence_of(listed.head);
                let earlier = sequence.and_then(|sequence| holders.get(&sequence)).into_iter().flatten();
                for holder in earlier.filter(|holder| *holder < number) {
                    self.ledger.refer(*slot, *holder);
                }
            }
        }
    }
}

/// Copies a damaged range to a file beside the log.
fn set_range_aside(
    disk: &dyn Disk,
    surveyed: &Surveyed,
    number: u64,
    range: &Range<u64>,
    findings: &mut Findings,
) -> io::Result<()> {
    let name = format!("aside-{number:06}-{:09}", range.start);
    let what = format!("segment use {number}, bytes {} to {}: unreadable; kept as {name}", range.start, range.end);
    findings.aside.push(what);
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read_lossy(&*surveyed.file, &mut bytes, range.start);
    keep_aside(disk, &name, &bytes)
}

/// Removes body files that no message refers to: their message was never acknowledged, or is
/// finished. If anything was unreadable they are set aside instead, because the record may be in
/// the damaged part.
fn sweep_bodies(disk: &dyn Disk, ledger: &Ledger, findings: &mut Findings) -> io::Result<()> {
    for name in disk.list()? {
        let Some(sequence) = spill::file_sequence(&name) else { continue };
        if ledger.place(sequence).is_some() {
            continue;
        }
        if findings.aside.is_empty() {
            disk.remove(&name)?;
        } else {
            disk.rename(&name, &format!("aside-{name}"))?;
            findings.aside.push(format!("{name}: no message refers to it; kept as aside-{name}"));
        }
    }
    Ok(())
}
