//! Requests from one node to another. An answer is sent in parts of what the servers take, and ends with
//! an empty one: so that its length is not limited by them, and a part that is missing is noticed. A message with a
//! reply subject is no part: by it the other node asks whether the answer is still awaited, before it begins.

use std::time::Duration;

use async_nats::{Message, Request, StatusCode};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::timeout;

use super::connection::{Connection, StreamError};
use super::names::{control_subject, presence_subject};
use crate::NodeName;

/// The most bytes of an answer that are taken.
const ANSWER_BYTES_MAX: usize = 17 << 20;
/// How long a process of the same name may take to say so.
const PRESENCE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a node may take to say that it still waits for an answer.
const AWAITED_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest part of an answer, if the servers take it.
const PART_BYTES_MAX: usize = 512 << 10;

/// A request that another node sent.
pub struct NodeRequest {
    /// Its content.
    pub payload: Bytes,
    reply: Option<async_nats::Subject>,
    connection: Connection,
}

impl NodeRequest {
    /// Whether the node that sent it still waits for the answer. If not, it reports that nothing was begun.
    pub async fn is_awaited(&self) -> bool {
        let Some(reply) = self.reply.clone() else { return false };
        let request = Request::new().timeout(Some(AWAITED_TIMEOUT));
        self.connection.client().send_request(reply, request).await.is_ok()
    }

    /// Answers it; where nobody waits any more, nothing happens.
    pub async fn answer(self, answer: Bytes) {
        let Some(reply) = self.reply else { return };
        let part_bytes = PART_BYTES_MAX.min(self.connection.payload_bytes_max()).max(1);
        let parts = (0..answer.len()).step_by(part_bytes);
        let parts = parts.map(|start| answer.slice(start..answer.len().min(start + part_bytes)));
        for part in parts.chain([Bytes::new()]) {
            // The one who asks will notice that nothing came.
            drop(self.connection.client().publish(reply.clone(), part).await);
        }
    }
}

/// Why a node did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody takes requests to it.
    #[error("node {0} is not connected")]
    Absent(NodeName),
    /// It has not begun in time, and does not begin later.
    #[error("node {0} does not answer: {1}")]
    Silent(NodeName, String),
    /// It has begun, and not all of its answer has come.
    #[error("node {0} has begun, and its answer did not come: {1}")]
    Unfinished(NodeName, String),
}

impl Connection {
    /// Sends a request to a node, and waits for its answer.
    pub async fn ask(&self, node: &NodeName, payload: Bytes, limit: Duration) -> Result<Bytes, AskError> {
        let mut has_begun = false;
        let asked = timeout(limit, self.ask_for_parts(node, payload, &mut has_begun)).await;
        let why = match asked {
            Ok(Ok(Some(answer))) => return Ok(answer),
            Ok(Ok(None)) => return Err(AskError::Absent(node.clone())),
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {limit:?}"),
        };
        Err(match has_begun {
            true => AskError::Unfinished(node.clone(), why),
            false => AskError::Silent(node.clone(), why),
        })
    }

    /// The answer; None if nobody takes requests to this node. `has_begun` is set before the other node may begin.
    async fn ask_for_parts(
        &self,
        node: &NodeName,
        payload: Bytes,
        has_begun: &mut bool,
    ) -> Result<Option<Bytes>, String> {
        let client = self.client();
        let inbox = client.new_inbox();
        let mut parts = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        let subject = control_subject(&self.config().name, node);
        client.publish_with_reply(subject, inbox, payload).await.map_err(|error| error.to_string())?;
        let mut answer = Vec::new();
        while let Some(Message { payload, status, reply, .. }) = parts.next().await {
            match (status, reply) {
                (Some(StatusCode::NO_RESPONDERS), _) => return Ok(None),
                (_, Some(reply)) => {
                    *has_begun = true;
                    client.publish(reply, Bytes::new()).await.map_err(|error| error.to_string())?;
                }
                _ if payload.is_empty() => return Ok(Some(answer.into())),
                _ if answer.len() + payload.len() > ANSWER_BYTES_MAX => return Err("its answer is too long".into()),
                _ => answer.extend_from_slice(&payload),
            }
        }
        Err("the connection is closed".into())
    }

    /// Whether another process that is alive has the name of this node.
    pub(crate) async fn is_name_taken(&self) -> bool {
        let config = self.config();
        let request = Request::new().timeout(Some(PRESENCE_TIMEOUT));
        // One that hangs does not answer: it loses its lanes to this one.
        self.client().send_request(presence_subject(&config.name, &config.node), request).await.is_ok()
    }

    /// Answers other processes that would take the name of this node, until it is dropped.
    pub(crate) async fn keep_name(&self) -> Result<impl Future<Output = ()> + Send + use<>, StreamError> {
        let (config, connection) = (self.config(), self.clone());
        let mut messages = self.subscribe(presence_subject(&config.name, &config.node)).await?;
        Ok(async move {
            while let Some(message) = messages.next().await {
                if let Some(reply) = message.reply {
                    // Without an answer the other process goes on, and is fenced where it matters.
                    drop(connection.client().publish(reply, Bytes::new()).await);
                }
            }
        })
    }

    /// The requests that other nodes send to this one.
    pub async fn requests(&self) -> Result<impl Stream<Item = NodeRequest> + Send + use<>, StreamError> {
        let config = self.config();
        let messages = self.subscribe(control_subject(&config.name, &config.node)).await?;
        let connection = self.clone();
        Ok(messages.map(move |message| NodeRequest {
            payload: message.payload,
            reply: message.reply,
            connection: connection.clone(),
        }))
    }
}
