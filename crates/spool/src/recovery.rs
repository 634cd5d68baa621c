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

use crate::disk::write_aside_file;
use crate::disk::{Disk, DiskFile, read_lossy};
use crate::entries::{LiveMessage, MessageHead, OutcomeHead, live_message, sequence_of};
use crate::lane::COUNTER_BITS;
use crate::message_index::{MessageIndex, RecordPlace, Segment, SegmentSlot, SegmentStage};
use crate::recipient_states::RecipientStates;
use crate::record::{FLAG_SKIPPABLE, RecordKind, SegmentUse};
use crate::scan::{ListedRecord, SegmentContents};
use crate::segment::{self, FileLease, HeaderState, SegmentHeader};
use crate::{LaneId, OpenError, spill};

/// A lane's folder with its headers.
pub(crate) struct LaneSurvey {
    pub(crate) disk: Arc<dyn Disk>,
    /// The lane, if any segment says it.
    pub(crate) identity: Option<LaneId>,
    pub(crate) epoch: u32,
    pub(crate) next_number: u64,
    segments: BTreeMap<SegmentSlot, SurveyedSegment>,
    /// Files whose creation was interrupted: nothing in them was acknowledged.
    blank: Vec<String>,
    /// Files whose current header cannot be read.
    damaged_headers: Vec<String>,
}

struct SurveyedSegment {
    file: Arc<dyn DiskFile>,
    size: u64,
    segment: Option<SegmentUse>,
    last_number: u64,
    generation: u64,
}

/// A lane whose log was read.
pub(crate) struct RecoveredLog {
    pub(crate) index: MessageIndex,
    pub(crate) findings: RecoveryFindings,
    pub(crate) messages: LoggedMessages,
}

/// The messages of a lane, as its log has them: less than half of what they are as [`LiveMessage`]s.
pub(crate) struct LoggedMessages {
    lane: LaneId,
    /// By number, which is the order of the log.
    contents: BTreeMap<u64, (SegmentSlot, SegmentContents)>,
    /// Of live messages.
    outcomes: HashMap<u64, RecipientStates>,
}

/// What recovery reports besides the live messages.
#[derive(Default)]
pub(crate) struct RecoveryFindings {
    /// What was set aside, and its origin.
    pub(crate) aside: Vec<String>,
    /// The highest epoch in a header or a sequence number.
    pub(crate) epoch: u32,
    /// Outcomes of messages that are not live.
    pub(crate) outcomes: HashMap<u64, RecipientStates>,
}

impl LaneSurvey {
    /// Reads the header of every segment.
    pub(crate) fn of(disk: Arc<dyn Disk>) -> Result<LaneSurvey, OpenError> {
        let mut survey = LaneSurvey {
            disk,
            identity: None,
            epoch: 0,
            next_number: 1,
            segments: BTreeMap::new(),
            blank: Vec::new(),
            damaged_headers: Vec::new(),
        };
        for name in survey.disk.list()? {
            if let Some(ordinal) = segment::file_ordinal(&name) {
                survey.add(ordinal, &name)?;
            }
        }
        Ok(survey)
    }

    fn add(&mut self, ordinal: SegmentSlot, name: &str) -> Result<(), OpenError> {
        let file = self.disk.open(name)?;
        let size = file.len()?;
        let mut surveyed = SurveyedSegment { file, size, segment: None, last_number: 0, generation: 0 };
        match SegmentHeader::load(&*surveyed.file)? {
            HeaderState::Version(version) => return Err(OpenError::Version { segment: name.to_owned(), version }),
            HeaderState::Blank => {
                self.blank.push(name.to_owned());
                return Ok(());
            }
            HeaderState::Unreadable => {
                surveyed.segment = segment::first_use(&*surveyed.file)?;
                self.damaged_headers.push(name.to_owned());
            }
            HeaderState::Good { header, .. } => self.apply_header(&mut surveyed, &header, header.segment)?,
            HeaderState::NewestUnreadable { header, found } => {
                self.apply_header(&mut surveyed, &header, Some(found))?;
                self.damaged_headers.push(name.to_owned());
            }
        }
        surveyed.last_number = surveyed.last_number.max(surveyed.segment.unwrap_or_default().number);
        self.next_number = self.next_number.max(surveyed.last_number.saturating_add(1));
        self.segments.insert(ordinal, surveyed);
        Ok(())
    }

    fn apply_header(
        &mut self,
        surveyed: &mut SurveyedSegment,
        header: &SegmentHeader,
        segment: Option<SegmentUse>,
    ) -> Result<(), OpenError> {
        self.identify(header)?;
        self.epoch = self.epoch.max(header.epoch);
        surveyed.generation = header.generation;
        surveyed.last_number = header.last_number;
        surveyed.segment = segment;
        Ok(())
    }

    fn identify(&mut self, header: &SegmentHeader) -> Result<(), OpenError> {
        let found = header.lane;
        match self.identity {
            Some(known) if known != found => Err(OpenError::MixedLanes),
            _ => {
                self.identity = Some(found);
                Ok(())
            }
        }
    }

    /// Reads the segments; `sink` gets every live message, in the order of the log.
    pub(crate) fn recover(self, lane: LaneId, sink: &mut dyn FnMut(LiveMessage)) -> Result<RecoveredLog, OpenError> {
        let mut reading = LaneReader::default();
        let mut findings = RecoveryFindings { epoch: self.epoch, ..RecoveryFindings::default() };
        for (slot, surveyed) in self.segments {
            reading.add_segment(slot, surveyed, &*self.disk, &mut findings)?;
        }
        for name in self.blank {
            self.disk.remove(&name)?;
        }
        let rot = |name| format!("{name}: the header is unreadable; the records were read without it");
        findings.aside.extend(self.damaged_headers.into_iter().map(rot));
        reading.check_record_kinds()?;
        findings.epoch = findings.epoch.max(reading.highest_epoch());
        reading.gather_outcomes();
        reading.index_messages(&mut |head| sink(live_message(lane, head, true)));
        reading.index_references();
        findings.outcomes = reading.take_outcomes_without_message();
        findings.aside.append(&mut reading.malformed);
        remove_unclaimed_bodies(&*self.disk, &reading.index, &mut findings)?;
        let LaneReader { index, contents, outcomes, .. } = reading;
        Ok(RecoveredLog { index, findings, messages: LoggedMessages { lane, contents, outcomes } })
    }
}

impl LoggedMessages {
    /// Passes on the messages that recovery has passed to its sink before, of which these are the sequence
    /// numbers in their order. Frees what was passed on.
    pub(crate) fn pass_on(self, sequences: Vec<u64>, sink: &mut dyn FnMut(LiveMessage)) {
        let mut wanted = sequences.into_iter().peekable();
        for (_, contents) in self.contents.into_values() {
            for listed in contents.records().filter(|listed| listed.frame.kind == RecordKind::Message) {
                // Further copies of a message do not come up again.
                if sequence_of(listed.head) == wanted.peek().copied()
                    && let Some(head) = read_message(&listed, &self.outcomes)
                {
                    wanted.next();
                    sink(live_message(self.lane, head, true));
                }
            }
        }
    }
}

/// The head of a message, with its newest states.
fn read_message(listed: &ListedRecord<'_>, outcomes: &HashMap<u64, RecipientStates>) -> Option<MessageHead> {
    let mut head = MessageHead::read(listed.head)?;
    if let Some(states) = outcomes.get(&head.sequence) {
        head.states = states.listed();
    }
    Some(head)
}

#[derive(Default)]
struct LaneReader {
    index: MessageIndex,
    /// By number, which is the order of the log.
    contents: BTreeMap<u64, (SegmentSlot, SegmentContents)>,
    outcomes: HashMap<u64, RecipientStates>,
    /// Descriptions of records with a valid checksum that cannot be decoded.
    malformed: Vec<String>,
}

impl LaneReader {
    fn add_segment(
        &mut self,
        slot: SegmentSlot,
        surveyed: SurveyedSegment,
        disk: &dyn Disk,
        findings: &mut RecoveryFindings,
    ) -> io::Result<()> {
        let mut pinned = false;
        if let Some(used @ SegmentUse { number, .. }) = surveyed.segment {
            let contents = match SegmentContents::by_index(&*surveyed.file, used)? {
                Some(contents) => contents,
                None => {
                    surveyed.file.sync_and_drop_cache()?;
                    SegmentContents::by_record(&*surveyed.file, used)?
                }
            };
            for range in &contents.damage {
                pinned |= set_range_aside(disk, &surveyed, number, range, findings).is_err();
            }
            self.contents.insert(number, (slot, contents));
        }
        let segment = Segment {
            stage: if surveyed.segment.is_some() { SegmentStage::Sealed } else { SegmentStage::Free },
            number: surveyed.segment.unwrap_or_default().number,
            salt: surveyed.segment.unwrap_or_default().salt,
            last_number: surveyed.last_number,
            generation: surveyed.generation,
            size: surveyed.size,
            lease: Arc::new(FileLease(surveyed.file)),
            live: 0,
            live_bytes: 0,
            references: Default::default(),
            pinned,
        };
        self.index.segments.insert(slot, segment);
        Ok(())
    }

    /// A record of an unknown kind may only be skipped if it says so.
    fn check_record_kinds(&self) -> Result<(), OpenError> {
        let mut records = self.contents.values().flat_map(|(_, contents)| contents.records());
        let strange = records.find_map(|listed| match listed.frame.kind {
            RecordKind::Unknown(kind) if listed.frame.flags & FLAG_SKIPPABLE == 0 => Some(kind),
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
                RecordKind::Outcome => match OutcomeHead::read(listed.head) {
                    Some(head) => (head.sequence, head.states),
                    None => continue,
                },
                // A copy contains the states known when it was made.
                RecordKind::Message if MessageHead::lists_states(listed.head) => match MessageHead::read(listed.head) {
                    Some(head) => (head.sequence, head.states),
                    None => continue,
                },
                _ => continue,
            };
            self.outcomes.entry(sequence).or_default().merge(states);
        }
    }

    fn index_messages(&mut self, sink: &mut dyn FnMut(MessageHead)) {
        for (slot, contents) in self.contents.values() {
            for listed in contents.records().filter(|listed| listed.frame.kind == RecordKind::Message) {
                let Some(head) = read_message(&listed, &self.outcomes) else {
                    self.index.segment(*slot).pinned = true;
                    let what = "the checksum is right, but the record cannot be decoded; its segment is kept";
                    self.malformed.push(format!("{}, byte {}: {what}", segment::file_name(*slot), listed.offset));
                    continue;
                };
                let known = self.index.place(head.sequence).is_some();
                let place = RecordPlace { slot: *slot, offset: listed.offset, span: listed.frame.span() };
                self.index.insert(&head, place);
                if !known && self.index.place(head.sequence).is_some() {
                    sink(head);
                }
            }
        }
    }

    fn take_outcomes_without_message(&mut self) -> HashMap<u64, RecipientStates> {
        let index = &self.index;
        self.outcomes.extract_if(|sequence, _| index.place(*sequence).is_none()).collect()
    }

    /// A segment refers to every earlier one with a record of a message of which it has an outcome
    /// or a copy.
    fn index_references(&mut self) {
        let mut holders: HashMap<u64, Vec<u64>> = self.outcomes.keys().map(|key| (*key, Vec::new())).collect();
        for (number, (_, contents)) in &self.contents {
            for listed in contents.records().filter(|listed| listed.frame.kind == RecordKind::Message) {
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
                    self.index.add_reference(*slot, *holder);
                }
            }
        }
    }
}

/// Copies a damaged range to a file beside the log.
fn set_range_aside(
    disk: &dyn Disk,
    surveyed: &SurveyedSegment,
    number: u64,
    range: &Range<u64>,
    findings: &mut RecoveryFindings,
) -> io::Result<()> {
    let name = format!("aside-{number:06}-{:09}", range.start);
    let what = format!("segment use {number}, bytes {} to {}: unreadable; kept as {name}", range.start, range.end);
    findings.aside.push(what);
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read_lossy(&*surveyed.file, &mut bytes, range.start);
    write_aside_file(disk, &name, &bytes)
}

/// Removes body files that no message refers to: their message was never acknowledged, or is
/// finished. If anything was unreadable they are set aside instead, because the record may be in
/// the damaged part.
fn remove_unclaimed_bodies(disk: &dyn Disk, index: &MessageIndex, findings: &mut RecoveryFindings) -> io::Result<()> {
    for name in disk.list()? {
        let Some(sequence) = spill::file_sequence(&name) else { continue };
        if index.place(sequence).is_some() {
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
