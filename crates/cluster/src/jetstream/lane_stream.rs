//! The stream of a lane: made and checked, written, read and purged.
//!
//! Writes name the sequence that must be the last one of the stream, so what is stored is what the
//! caller meant, however late a message arrives. The end of a stream is asked of its leader. Records
//! within it never change, so they are read from any copy; one that lags is asked again.

use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, DeleteStreamErrorKind, GetStreamError, PublishError, PublishErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{
    Config, DirectGetErrorKind, DiscardPolicy, InfoError, RawMessageError, RawMessageErrorKind, RetentionPolicy,
    StorageType, Stream as NatsStream,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use spool::LaneId;

use super::connection::{Connection, StreamError};
use super::names::{lane_of_stream, record_subject, stream_name};
use crate::lane::{PublishFailure, ReadFailure, RecordSubject, Slot, StreamTail, TailFailure};
use crate::record::{EpochRecord, RecordError, RecordHeader};

/// Records that are asked for at the same time when a stream is read.
const READS_IN_FLIGHT: usize = 16;

/// How often a record that a copy of the stream lacks is asked for again, and after which time.
const READ_TRIES: usize = 40;
const READ_PAUSE: Duration = Duration::from_millis(50);

/// How often the end of a stream is asked for if it moves meanwhile.
const TAIL_TRIES: usize = 8;

/// The stream of one lane; clones share the connection.
#[derive(Clone)]
pub struct LaneStream {
    connection: Connection,
    lane: LaneId,
    name: String,
    subjects: LaneSubjects,
}

#[derive(Clone)]
struct LaneSubjects {
    log: Subject,
    renew: Subject,
    epoch: Subject,
}

/// What the newest Epoch record of a lane says, or a newer Renew record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestEpoch {
    /// Its sequence.
    pub sequence: u64,
    /// Its header, with the epoch.
    pub header: RecordHeader,
    /// The owner.
    pub record: EpochRecord,
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The servers did not answer in time.
    #[error("record {sequence} of stream {stream} cannot be read now: {reason}")]
    Unavailable {
        /// The name of the stream.
        stream: String,
        /// The sequence.
        sequence: u64,
        /// What happened.
        reason: String,
    },
    /// It was purged or deleted.
    #[error("stream {stream} has no record {sequence}")]
    Missing {
        /// The name of the stream.
        stream: String,
        /// The sequence.
        sequence: u64,
    },
}

impl Connection {
    /// The stream of a lane, which need not be there yet.
    pub fn lane_stream(&self, lane: LaneId) -> LaneStream {
        let cluster = &self.config().name;
        LaneStream {
            connection: self.clone(),
            lane,
            name: stream_name(cluster, lane),
            subjects: LaneSubjects {
                log: record_subject(cluster, lane, RecordSubject::Log).into(),
                renew: record_subject(cluster, lane, RecordSubject::Renew).into(),
                epoch: record_subject(cluster, lane, RecordSubject::Epoch).into(),
            },
        }
    }

    /// All lanes of the cluster that have a stream, sorted.
    pub async fn lanes(&self) -> Result<Vec<LaneId>, StreamError> {
        let mut names = self.context().stream_names();
        let mut lanes = Vec::new();
        while let Some(name) = names.next().await {
            let name = name.map_err(|error| StreamError::Unavailable(error.to_string()))?;
            lanes.extend(lane_of_stream(&self.config().name, &name));
        }
        lanes.sort_unstable();
        Ok(lanes)
    }
}

impl LaneStream {
    /// The lane.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// The most bytes that the stream may have; None: as many as the servers allow.
    pub fn bytes_max(&self) -> Option<u64> {
        self.connection.config().stream_bytes_max
    }

    /// The largest message that the servers take, in bytes.
    pub fn payload_bytes_max(&self) -> usize {
        self.connection.payload_bytes_max()
    }

    /// Makes the stream, or gives an existing one the settings of this node.
    pub async fn ensure(&self) -> Result<(), StreamError> {
        ensure_stream(&self.connection, self.config()).await.map(drop)
    }

    /// Deletes the stream with all its records. True if it was there.
    pub async fn delete(&self) -> Result<bool, StreamError> {
        self.connection.note_place(&self.name, Ok(()));
        match self.connection.context().delete_stream(&self.name).await {
            Ok(status) => Ok(status.success),
            Err(error) => match error.kind() {
                DeleteStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    Ok(false)
                }
                kind => Err(StreamError::Unavailable(kind.to_string())),
            },
        }
    }

    /// Sends a record, which is stored only as the one after `expected_last`. Returns, once it is on
    /// its way, what waits for the answer: the sequence at which it is stored.
    pub async fn publish(
        &self,
        subject: RecordSubject,
        expected_last: u64,
        record: Bytes,
    ) -> Result<impl Future<Output = Result<u64, PublishFailure>> + Send + use<>, PublishFailure> {
        if !self.connection.is_connected() {
            return Err(PublishFailure::Unavailable);
        }
        let subject = match subject {
            RecordSubject::Log => self.subjects.log.clone(),
            RecordSubject::Renew => self.subjects.renew.clone(),
            RecordSubject::Epoch => self.subjects.epoch.clone(),
        };
        let broken = self.connection.next_disconnection();
        let message = PublishMessage::build().payload(record).expected_last_sequence(expected_last);
        let sent = self.connection.context().send_publish(subject, message).await;
        let answer = sent.map_err(|error| publish_failure(&error))?;
        Ok(async move {
            tokio::select! {
                answer = answer.into_future() => {
                    answer.map(|stored| stored.sequence).map_err(|error| publish_failure(&error))
                }
                () = broken => Err(PublishFailure::Unavailable),
            }
        })
    }

    /// The end of the stream, as its leader sees it.
    pub async fn tail(&self) -> Result<StreamTail, TailFailure> {
        let stream = self.stream().await.map_err(|_| TailFailure::Unavailable)?;
        for _ in 0..TAIL_TRIES {
            let state = stream.get_info().await.map_err(|error| tail_failure(&error))?.state;
            let (last_sequence, first_sequence) = (state.last_sequence, state.first_sequence);
            if state.messages == 0 {
                return Ok(StreamTail { last_sequence, first_sequence, record: None });
            }
            match stream.get_raw_message(last_sequence).await {
                Ok(message) => {
                    let unreadable = |error| TailFailure::Unreadable { sequence: last_sequence, error };
                    let record = RecordHeader::read(&message.payload).map_err(unreadable)?;
                    return Ok(StreamTail { last_sequence, first_sequence, record: Some(record) });
                }
                // It was purged while others followed it.
                Err(error) if raw_failure(&error).is_none() => {}
                Err(_) => return Err(TailFailure::Unavailable),
            }
        }
        Err(TailFailure::Unavailable)
    }

    /// The sequence of the first record that was not purged, as the stream's leader sees it.
    pub async fn first_sequence(&self) -> Result<u64, TailFailure> {
        let stream = self.stream().await.map_err(|_| TailFailure::Unavailable)?;
        stream.get_info().await.map(|info| info.state.first_sequence).map_err(|error| tail_failure(&error))
    }

    /// The newest Epoch record, as the stream's leader sees it; or, if the servers have lost it, the same
    /// from the newest Renew record. None: there is neither.
    pub async fn newest_epoch(&self) -> Result<Option<NewestEpoch>, TailFailure> {
        match self.newest_of(&self.subjects.epoch, EpochRecord::read_record).await? {
            None => self.newest_of(&self.subjects.renew, EpochRecord::read_renewal).await,
            newest => Ok(newest),
        }
    }

    async fn newest_of(
        &self,
        subject: &Subject,
        read: impl Fn(&[u8]) -> Result<(RecordHeader, EpochRecord), RecordError>,
    ) -> Result<Option<NewestEpoch>, TailFailure> {
        let stream = self.stream().await.map_err(|_| TailFailure::Unavailable)?;
        match stream.get_last_raw_message_by_subject(subject.as_str()).await {
            Ok(message) => {
                let sequence = message.sequence;
                let unreadable = |error| TailFailure::Unreadable { sequence, error };
                let (header, record) = read(&message.payload).map_err(unreadable)?;
                Ok(Some(NewestEpoch { sequence, header, record }))
            }
            Err(error) => raw_failure(&error).map_or(Ok(None), |failure| Err(failure.into())),
        }
    }

    /// What its leader has at `sequence`.
    pub async fn slot(&self, sequence: u64) -> Result<Slot, ReadFailure> {
        let stream = self.stream().await.map_err(|_| ReadFailure::Unavailable)?;
        match stream.get_raw_message(sequence).await {
            Ok(message) => Ok(Slot::Stored(message.payload)),
            Err(error) => match raw_failure(&error) {
                Some(failure) => Err(failure),
                None => match stream.get_info().await {
                    Ok(info) => Ok(Slot::Absent { last_sequence: info.state.last_sequence }),
                    Err(error) => Err(read_failure(&error)),
                },
            },
        }
    }

    /// Removes all records up to `sequence`, which must not be the last one.
    pub async fn purge_up_to(&self, sequence: u64) -> Result<(), StreamError> {
        let unavailable = |error: &dyn std::fmt::Display| StreamError::Unavailable(error.to_string());
        let stream = self.stream().await.map_err(|error| unavailable(&error))?;
        stream.purge().sequence(sequence.saturating_add(1)).await.map(drop).map_err(|error| unavailable(&error))
    }

    /// The records `first` to `last`, in their order, each with its sequence. Ends after the first
    /// error.
    pub fn read(&self, first: u64, last: u64) -> impl Stream<Item = Result<(u64, Bytes), ReadError>> + Send + '_ {
        stream::iter(first..=last).map(move |sequence| self.record(sequence)).buffered(READS_IN_FLIGHT)
    }

    async fn record(&self, sequence: u64) -> Result<(u64, Bytes), ReadError> {
        let stream = self.stream().await.map_err(|error| self.unavailable(sequence, &error))?;
        let mut result = Err(ReadError::Missing { stream: self.name.clone(), sequence });
        for _ in 0..READ_TRIES {
            result = match stream.direct_get(sequence).await {
                Ok(message) => return Ok((sequence, message.payload)),
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => {
                    Err(ReadError::Missing { stream: self.name.clone(), sequence })
                }
                Err(error) => Err(self.unavailable(sequence, &error)),
            };
            tokio::time::sleep(READ_PAUSE).await;
        }
        result
    }

    fn unavailable(&self, sequence: u64, error: &dyn std::fmt::Display) -> ReadError {
        ReadError::Unavailable { stream: self.name.clone(), sequence, reason: error.to_string() }
    }

    /// A handle, without asking the servers.
    async fn stream(&self) -> Result<NatsStream<()>, GetStreamError> {
        self.connection.context().get_stream_no_info(&self.name).await
    }

    fn config(&self) -> Config {
        let settings = self.connection.config();
        let LaneSubjects { log, renew, epoch } = &self.subjects;
        Config {
            name: self.name.clone(),
            description: Some(format!("Mailrace: lane {} of cluster {}", self.lane, settings.name)),
            subjects: [log, renew, epoch].map(|subject| subject.to_string()).into(),
            storage: StorageType::File,
            retention: RetentionPolicy::Limits,
            // A full stream refuses records. It never drops old ones.
            discard: DiscardPolicy::New,
            max_bytes: settings.stream_bytes_max.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
            max_messages: -1,
            max_messages_per_subject: -1,
            num_replicas: settings.replicas,
            allow_direct: true,
            deny_delete: true,
            ..Config::default()
        }
    }
}

/// Makes a stream, or changes the settings of the one that has its name: then true. For the only node that
/// uses it, or for a start: nodes with different settings would change it in turns.
pub(super) async fn ensure_stream(connection: &Connection, config: Config) -> Result<bool, StreamError> {
    let context = connection.context();
    let ensured = match context.create_stream(config.clone()).await {
        Err(error) if is_taken(&error.kind()) => context.update_stream(config.clone()).await.map(|_| true),
        made => made.map(|_| false),
    };
    noted(connection, &config, ensured)
}

/// Makes a stream, unless there is one of its name, which stays as it is.
pub(super) async fn create_stream(connection: &Connection, config: Config) -> Result<(), StreamError> {
    let created = match connection.context().create_stream(config.clone()).await {
        Err(error) if is_taken(&error.kind()) => Ok(()),
        made => made.map(drop),
    };
    noted(connection, &config, created)
}

/// Notes whether there is a place for the stream.
fn noted<T>(connection: &Connection, config: &Config, result: Result<T, CreateStreamError>) -> Result<T, StreamError> {
    let result = result.map_err(|error| make_failure(config, &error.kind()));
    connection.note_place(&config.name, result.as_ref().map(|_| ()));
    result
}

fn make_failure(config: &Config, kind: &CreateStreamErrorKind) -> StreamError {
    let stream = config.name.clone();
    match kind {
        CreateStreamErrorKind::JetStream(error) if lacks_place(error.error_code()) => {
            StreamError::NoPlace { stream, needed: needed_place(config), reason: error.to_string() }
        }
        CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED => {
            StreamError::Refused { stream, reason: format!("{}: {error}", needed_place(config)) }
        }
        CreateStreamErrorKind::JetStream(error) if !is_passing(error.error_code()) => {
            StreamError::Refused { stream, reason: error.to_string() }
        }
        kind => StreamError::Unavailable(kind.to_string()),
    }
}

/// What the settings ask of the servers.
fn needed_place(config: &Config) -> String {
    let replicas = config.num_replicas;
    let room = match config.max_bytes {
        ..=0 => "`cluster.stream_max` reserves none".to_owned(),
        octets => format!("`cluster.stream_max` reserves {octets} octets on each"),
    };
    format!(
        "`cluster.replicas` = {replicas} takes {replicas} of them, in one NATS cluster and with JetStream, and {room}"
    )
}

/// Whether there is a stream of this name with other settings.
fn is_taken(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

/// Errors that end by themselves: a leader is being elected, or servers are starting.
fn is_passing(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CLUSTER_NOT_AVAILABLE
            | ErrorCode::CLUSTER_NOT_LEADER
            | ErrorCode::CLUSTER_NOT_ACTIVE
            | ErrorCode::CLUSTER_INCOMPLETE
    )
}

/// Errors that end when servers or disks are added, or a smaller `replicas` or `stream_max` is set.
fn lacks_place(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CLUSTER_NO_PEERS
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::MEMORY_RESOURCES_EXCEEDED
    )
}

fn publish_failure(error: &PublishError) -> PublishFailure {
    match error.kind() {
        PublishErrorKind::WrongLastSequence => PublishFailure::WrongLastSequence,
        PublishErrorKind::TimedOut => PublishFailure::Timeout,
        _ => match jetstream_code(error) {
            Some(ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT) => PublishFailure::WrongLastSequence,
            Some(ErrorCode::STREAM_STORE_FAILED | ErrorCode::INSUFFICIENT_RESOURCES) => PublishFailure::StreamFull,
            Some(ErrorCode::STORAGE_RESOURCES_EXCEEDED) => PublishFailure::StreamFull,
            _ => PublishFailure::Unavailable,
        },
    }
}

/// The code of the servers' error that caused `error`.
fn jetstream_code(error: &(dyn std::error::Error + 'static)) -> Option<ErrorCode> {
    let source = error.source()?;
    source.downcast_ref::<async_nats::jetstream::Error>().map(|error| error.error_code())
}

fn read_failure(error: &InfoError) -> ReadFailure {
    match jetstream_code(error) {
        Some(ErrorCode::STREAM_NOT_FOUND) => ReadFailure::NoStream,
        _ => ReadFailure::Unavailable,
    }
}

/// None: there is no such record.
pub(super) fn raw_failure(error: &RawMessageError) -> Option<ReadFailure> {
    match error.kind() {
        RawMessageErrorKind::NoMessageFound => None,
        RawMessageErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
            Some(ReadFailure::NoStream)
        }
        _ => Some(ReadFailure::Unavailable),
    }
}

fn tail_failure(error: &InfoError) -> TailFailure {
    read_failure(error).into()
}
