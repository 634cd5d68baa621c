//! Reads the stream of a lane up to a claim: which of its messages are live, and into a folder if the
//! lane is to be restored. Works on a blocking thread, and in bounded memory: a batch is held until it
//! is complete, with its large bodies in files.

use std::collections::HashMap;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use futures_util::StreamExt;
use mail::QueueId;
use spool::{
    CommitError, LaneRestorer, PREFIX_BYTES_MAX, RecipientState, RestoreError, RestoredMessage, SpillError,
    SpillWriter, SubmittedBody,
};
use tokio::runtime::Handle;

use crate::lane::TailFailure;
use crate::lane::replay::{BatchReader, ReplayError, ReplayEvent, ReplayedMessage};
use crate::lane::retention::{LaneRetention, RetainedEntry};
use crate::{LaneStream, ReadError};

/// Bodies larger than this are written to files of their own.
const BODY_IN_MEMORY_MAX: u64 = 1 << 20;
/// So many bytes of finished records are left in a stream before live ones are copied to its end.
const SLACK_BYTES: u64 = 64 << 20;

/// Why a stream could not be read to its end, or a lane not be restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayFailure {
    #[error("the server is stopping")]
    Stopped,
    #[error("the stream could not be read from record {expected} on")]
    EndedEarly { expected: u64 },
    #[error("{0}")]
    Start(#[from] TailFailure),
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("{0}")]
    Replay(#[from] ReplayError),
    #[error("cannot restore the lane: {0}")]
    Restore(#[from] RestoreError),
    #[error("cannot restore a message: {0}")]
    Commit(#[from] CommitError),
    #[error("cannot write a body: {0}")]
    Spill(#[from] SpillError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What a stream has.
pub(super) struct ReplayedLane {
    pub(super) retention: LaneRetention,
    /// The number of recipients of each live message; none of a lane that is restored.
    pub(super) recipients: HashMap<QueueId, u32>,
}

/// What is restored from a stream, and where.
pub(super) trait RestoreTarget {
    /// Whether the content of a message is of no use: it is there already, or nobody wants it.
    fn skips_content(&self, id: QueueId) -> bool;
    /// Creates the file of a large body.
    fn create_spill_file(&self, id: QueueId) -> io::Result<SpillWriter>;
    /// Writes a message.
    fn append_message(&self, message: RestoredMessage) -> Result<(), ReplayFailure>;
    /// Writes new states of a message that was written before, or whose content was skipped.
    fn append_outcome(&self, id: QueueId, recipients: Vec<(u32, RecipientState)>) -> Result<(), ReplayFailure>;
}

/// All of it is restored, to a folder.
impl RestoreTarget for LaneRestorer {
    fn skips_content(&self, id: QueueId) -> bool {
        self.is_live(id)
    }

    fn create_spill_file(&self, id: QueueId) -> io::Result<SpillWriter> {
        LaneRestorer::create_spill_file(self, id)
    }

    fn append_message(&self, message: RestoredMessage) -> Result<(), ReplayFailure> {
        Ok(LaneRestorer::append_message(self, message)?)
    }

    fn append_outcome(&self, id: QueueId, recipients: Vec<(u32, RecipientState)>) -> Result<(), ReplayFailure> {
        Ok(LaneRestorer::append_outcome(self, id, recipients)?)
    }
}

/// Reads the records of a stream up to `last`; with `target`, restores what they have. The stream may
/// become shorter meanwhile, by a purge of the owner before: then it fails, and has to be tried again. It ends
/// early when the server stops, which waits for this thread.
pub(super) fn replay(
    runtime: &Handle,
    stream: &LaneStream,
    last: u64,
    target: Option<&dyn RestoreTarget>,
    is_stopping: &dyn Fn() -> bool,
) -> Result<ReplayedLane, ReplayFailure> {
    let first = runtime.block_on(stream.first_sequence())?;
    let sink = ReplaySink::new(target, stream.bytes_max());
    let mut records = pin!(stream.read(first, last));
    replay_records(sink, (first, last), || runtime.block_on(records.next()), is_stopping)
}

/// A record with its sequence.
type ReadRecord = Result<(u64, Bytes), ReadError>;

/// Only what was read to its `last` record is a lane: one that lacks the rest would count as finished.
fn replay_records(
    mut sink: ReplaySink<'_>,
    (first, last): (u64, u64),
    mut next: impl FnMut() -> Option<ReadRecord>,
    is_stopping: &dyn Fn() -> bool,
) -> Result<ReplayedLane, ReplayFailure> {
    let mut reader = BatchReader::new(first);
    for expected in first..=last {
        if is_stopping() {
            return Err(ReplayFailure::Stopped);
        }
        let (sequence, record) = next().ok_or(ReplayFailure::EndedEarly { expected })??;
        reader.handle_record(sequence, &record)?;
        sink.take_all(&mut reader)?;
    }
    reader.finish();
    sink.take_all(&mut reader)?;
    Ok(sink.finish())
}

struct ReplaySink<'a> {
    target: Option<&'a dyn RestoreTarget>,
    retention: LaneRetention,
    recipients: HashMap<QueueId, u32>,
    /// The batch that is being read.
    retained: Vec<RetainedEntry>,
    restored: Vec<RestoredEntry>,
    incoming: Option<IncomingMessage>,
}

/// An entry of a batch that is not complete yet.
enum RestoredEntry {
    Message(Box<RestoredMessage>),
    Outcome { id: QueueId, recipients: Vec<(u32, RecipientState)> },
}

/// A message whose content is being read.
struct IncomingMessage {
    message: ReplayedMessage,
    left: u64,
    content: IncomingContent,
}

enum IncomingContent {
    Memory(Vec<u8>),
    /// The prefix, and the file with the rest.
    File(Vec<u8>, SpillWriter),
    /// It is there already, or nobody wants it.
    Unused,
}

impl<'a> ReplaySink<'a> {
    fn new(target: Option<&'a dyn RestoreTarget>, stream_bytes_max: Option<u64>) -> Self {
        ReplaySink {
            target,
            retention: LaneRetention::new(SLACK_BYTES, stream_bytes_max),
            recipients: HashMap::new(),
            retained: Vec::new(),
            restored: Vec::new(),
            incoming: None,
        }
    }

    fn take_all(&mut self, reader: &mut BatchReader) -> Result<(), ReplayFailure> {
        while let Some(event) = reader.poll_event() {
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: ReplayEvent) -> Result<(), ReplayFailure> {
        match event {
            ReplayEvent::Epoch { sequence, .. } => self.retention.handle_epoch(sequence),
            ReplayEvent::Message(message) => return self.begin_message(message),
            ReplayEvent::Content(bytes) => return self.add_content(&bytes),
            ReplayEvent::Outcome { id, recipients, .. } => {
                self.restored.push(RestoredEntry::Outcome { id, recipients: recipients.clone() });
                self.retained.push(RetainedEntry::Outcome { id, recipients });
            }
            ReplayEvent::BatchComplete(range) => {
                let retained = std::mem::take(&mut self.retained);
                if self.target.is_none() {
                    self.note_recipients(&retained);
                }
                self.retention.handle_stored(range, retained);
                return self.write_batch();
            }
            ReplayEvent::BatchDropped => {
                self.retained.clear();
                self.restored.clear();
                self.incoming = None;
            }
            ReplayEvent::Released => {}
        }
        Ok(())
    }

    fn note_recipients(&mut self, entries: &[RetainedEntry]) {
        for entry in entries {
            if let RetainedEntry::Message { id, recipients, .. } = entry {
                self.recipients.insert(*id, *recipients);
            }
        }
    }

    fn begin_message(&mut self, message: ReplayedMessage) -> Result<(), ReplayFailure> {
        let recipients = u32::try_from(message.envelope.recipients.len()).unwrap_or(u32::MAX);
        self.retained.push(RetainedEntry::Message { id: message.id, recipients, states: message.states.clone() });
        let content = match self.target {
            None => IncomingContent::Unused,
            Some(target) => IncomingContent::for_message(target, &message)?,
        };
        let incoming = IncomingMessage { left: message.content_len, message, content };
        self.incoming = Some(incoming);
        self.add_content(&Bytes::new())
    }

    fn add_content(&mut self, bytes: &Bytes) -> Result<(), ReplayFailure> {
        let Some(mut incoming) = self.incoming.take() else { return Ok(()) };
        incoming.add(bytes)?;
        match incoming.left {
            0 => self.restored.extend(incoming.finish()?),
            _ => self.incoming = Some(incoming),
        }
        Ok(())
    }

    fn write_batch(&mut self) -> Result<(), ReplayFailure> {
        let batch = std::mem::take(&mut self.restored);
        let Some(target) = self.target else { return Ok(()) };
        for entry in batch {
            match entry {
                RestoredEntry::Message(message) => target.append_message(*message)?,
                RestoredEntry::Outcome { id, recipients } => target.append_outcome(id, recipients)?,
            }
        }
        Ok(())
    }

    fn finish(mut self) -> ReplayedLane {
        self.recipients.retain(|id, _| self.retention.is_live(*id));
        ReplayedLane { retention: self.retention, recipients: self.recipients }
    }
}

impl IncomingContent {
    fn for_message(target: &dyn RestoreTarget, message: &ReplayedMessage) -> io::Result<IncomingContent> {
        if target.skips_content(message.id) {
            return Ok(IncomingContent::Unused);
        }
        if message.content_len <= BODY_IN_MEMORY_MAX || message.prefix_len > PREFIX_BYTES_MAX {
            return Ok(IncomingContent::Memory(Vec::new()));
        }
        match target.create_spill_file(message.id) {
            Ok(file) => Ok(IncomingContent::File(Vec::new(), file)),
            // The message was appended, and is being written.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(IncomingContent::Unused),
            Err(error) => Err(error),
        }
    }
}

impl IncomingMessage {
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        match &mut self.content {
            IncomingContent::Memory(content) => content.extend_from_slice(bytes),
            IncomingContent::File(prefix, file) => {
                let wanted = self.message.prefix_len.saturating_sub(prefix.len() as u64);
                let (first, rest) = bytes.split_at(bytes.len().min(usize::try_from(wanted).unwrap_or(usize::MAX)));
                prefix.extend_from_slice(first);
                file.append(rest)?;
            }
            IncomingContent::Unused => {}
        }
        Ok(())
    }

    /// What to write; None if there is nothing.
    fn finish(self) -> Result<Option<RestoredEntry>, SpillError> {
        let ReplayedMessage { id, envelope, states, flags, prefix_len, .. } = self.message;
        let content = match self.content {
            IncomingContent::Memory(mut prefix) => {
                let at = usize::try_from(prefix_len).unwrap_or(usize::MAX).min(prefix.len());
                let body = prefix.split_off(at);
                SubmittedBody::Memory { prefix, body }
            }
            IncomingContent::File(prefix, file) => SubmittedBody::Spilled(file.finish(&prefix)?),
            IncomingContent::Unused if states.is_empty() => return Ok(None),
            IncomingContent::Unused => return Ok(Some(RestoredEntry::Outcome { id, recipients: states })),
        };
        let message = RestoredMessage { id, envelope, states, content, flags };
        Ok(Some(RestoredEntry::Message(Box::new(message))))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use mail::{BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, Recipient, SpoolId, Timestamp};
    use spool::DraftBody;

    use super::*;
    use crate::codec::{BatchEncoder, CopiedEntry};
    use crate::record::{EpochRecord, RecordHeader, RecordKind};

    fn envelope() -> Envelope {
        let address: mail::Address = "b@example.org".parse().unwrap();
        let recipient =
            Recipient { address, original: None, notify: DsnNotify::UNSET, orcpt: None, is_forwarded: false };
        Envelope {
            sender: None,
            recipients: vec![recipient],
            accepted_at: Timestamp(5),
            client: ClientInfo { address: None, helo: "client".into(), trusted: false },
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        }
    }

    /// The record of an owner, and one for each of two messages.
    fn records() -> Vec<(u64, Bytes)> {
        let header = |kind, batch| RecordHeader { kind, epoch: 1, token: 1, batch, part: 0, last: batch > 0 };
        let owner = EpochRecord { node: "one".parse().unwrap(), spool_epoch: 1, lease: Duration::from_secs(3) };
        let message = |batch| {
            let entry = CopiedEntry::Message {
                id: QueueId::new(SpoolId::new(1), 0, batch),
                envelope: envelope(),
                states: Vec::new(),
                content: DraftBody::Memory { prefix: Arc::default(), body: Arc::default() },
                flags: BodyFlags::default(),
                digest: 0,
            };
            let (payload, _) = BatchEncoder::new(vec![entry], 64 << 10).next_part().unwrap().unwrap();
            (batch + 1, header(RecordKind::Part, batch).encode(&payload))
        };
        vec![(1, header(RecordKind::Epoch, 0).encode(&owner.encode())), message(1), message(2)]
    }

    /// Replays the first `count` of the records, and stops before record `stop_at`.
    fn replay_some(count: usize, stop_at: u64) -> Result<ReplayedLane, ReplayFailure> {
        let (records, checks) = (records(), Cell::new(0));
        let mut records = records.into_iter().take(count).map(Ok);
        let is_stopping = || checks.replace(checks.get() + 1) + 1 >= stop_at;
        replay_records(ReplaySink::new(None, None), (1, 3), || records.next(), &is_stopping)
    }

    /// What comes later would count as finished: mail that is only in the stream would be withdrawn.
    #[test]
    fn a_replay_that_ends_early_is_a_failure_and_not_a_shorter_stream() {
        assert_eq!(replay_some(3, u64::MAX).unwrap().recipients.len(), 2);
        for stop_at in 1..=3 {
            assert!(matches!(replay_some(3, stop_at), Err(ReplayFailure::Stopped)), "{stop_at}");
        }
        for count in 0..3 {
            let failure = replay_some(count, u64::MAX).err();
            assert!(
                matches!(failure, Some(ReplayFailure::EndedEarly { expected }) if expected == count as u64 + 1),
                "{failure:?}"
            );
        }
    }
}
