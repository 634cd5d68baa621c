//! Signs of life of all lanes, as they pass by.
//!
//! They are messages that the servers pass on without keeping a promise: one may be missed. So they
//! only save asking; what an owner may do, and who may adopt its lane, is decided by the stream.

use futures_util::{Stream, StreamExt};
use spool::LaneId;

use super::connection::{Connection, StreamError};
use super::names::{all_renew_subjects, lane_of_renewal};

impl Connection {
    /// The lanes whose owners give a sign of life, as they do so. Ends when the connection is closed.
    pub async fn renewals(&self) -> Result<impl Stream<Item = LaneId> + Send + use<>, StreamError> {
        let messages = self.subscribe(all_renew_subjects(&self.config().name)).await?;
        Ok(messages.filter_map(|message| std::future::ready(lane_of_renewal(&message.subject))))
    }
}
