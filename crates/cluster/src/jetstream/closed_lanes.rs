//! The lanes that are closed ([`crate::lane::ownership`] says what that means): one small record for each,
//! in a stream of their own, which is never purged. Only its leader is asked: a copy that lags could
//! have a lane opened that another node has finished.

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use spool::LaneId;

use super::connection::{Connection, StreamError};
use super::lane_stream::{create_stream, raw_failure};
use super::names::{closed_stream, closed_subject, closed_subjects};
use crate::lane::ReadFailure;

impl Connection {
    /// Notes for ever that a lane is closed. When this returns, every node finds it.
    pub async fn note_closed(&self, lane: LaneId) -> Result<(), StreamError> {
        create_stream(self, self.closed_lanes_config()).await?;
        let unavailable = |error: &dyn std::fmt::Display| StreamError::Unavailable(error.to_string());
        let config = self.config();
        let by = config.node.to_string();
        let sent = self.context().publish(closed_subject(&config.name, lane), by.into()).await;
        sent.map_err(|error| unavailable(&error))?.await.map(drop).map_err(|error| unavailable(&error))
    }

    /// Whether a lane is closed.
    pub async fn is_closed(&self, lane: LaneId) -> Result<bool, ReadFailure> {
        let cluster = &self.config().name;
        let stream = self.context().get_stream_no_info(closed_stream(cluster)).await;
        let stream = stream.map_err(|_| ReadFailure::Unavailable)?;
        match stream.get_last_raw_message_by_subject(&closed_subject(cluster, lane)).await {
            Ok(_) => Ok(true),
            Err(error) => match raw_failure(&error) {
                None | Some(ReadFailure::NoStream) => Ok(false),
                Some(failure) => Err(failure),
            },
        }
    }

    /// The stream of the notes. Each start of a node gives it as many copies as the lanes have: a note that is lost
    /// could have a lane opened again.
    pub(super) fn closed_lanes_config(&self) -> Config {
        let config = self.config();
        Config {
            name: closed_stream(&config.name),
            description: Some(format!("Mailrace: closed lanes of cluster {}", config.name)),
            subjects: vec![closed_subjects(&config.name)],
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            max_messages_per_subject: 1,
            num_replicas: config.replicas,
            deny_delete: true,
            deny_purge: true,
            ..Config::default()
        }
    }
}
