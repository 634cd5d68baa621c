//! The nodes of a cluster: which ones there are.
//!
//! Each node keeps an entry in a bucket, and writes it again every [`WRITE_INTERVAL`]. An entry that
//! is not written again is gone after [`ENTRY_LIFETIME`]. It says nothing about lanes: what a node
//! owns is in the streams.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::connection::{Connection, StreamError};
use super::lane_stream::{create_stream, ensure_stream};
use super::names::nodes_bucket;
use crate::NodeName;

/// How often a node writes its entry.
pub const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// How long an entry lasts that is not written again.
const ENTRY_LIFETIME: Duration = Duration::from_secs(15);

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// The version of Mailrace.
    pub version: String,
    /// When it was started, in milliseconds since 1970.
    pub started: u64,
    /// A digest of its configuration, equal on nodes with the same one.
    pub configuration: String,
    /// The lanes that it owns, as text.
    pub lanes: Vec<String>,
    /// The subject of requests to it.
    pub control_subject: String,
}

/// The bucket of the nodes; clones share the connection.
#[derive(Clone)]
pub struct NodesBucket {
    store: kv::Store,
}

impl Connection {
    /// Opens the bucket of the nodes, or makes it.
    pub async fn nodes(&self) -> Result<NodesBucket, StreamError> {
        let bucket = nodes_bucket(&self.config().name);
        // What async-nats asks before it makes a bucket itself, servers of version 2.9 do not answer as it expects.
        create_stream(self, self.bucket_config(&bucket)).await?;
        let opened = self.context().get_key_value(bucket).await;
        let store = opened.map_err(|error| StreamError::Unavailable(error.to_string()))?;
        Ok(NodesBucket { store })
    }

    /// Gives the streams that all nodes share the settings of this node. Returns the names of those that had
    /// others. Called once, at the start.
    pub(crate) async fn set_up_shared(&self) -> Result<Vec<String>, StreamError> {
        let mut changed = Vec::new();
        let nodes = self.bucket_config(&nodes_bucket(&self.config().name));
        for config in [nodes, self.rates_config(), self.closed_lanes_config()] {
            let name = config.name.clone();
            if ensure_stream(self, config).await? {
                changed.push(name);
            }
        }
        Ok(changed)
    }

    /// The stream of a bucket.
    fn bucket_config(&self, bucket: &str) -> Config {
        Config {
            name: format!("KV_{bucket}"),
            description: Some(format!("Mailrace: nodes of cluster {}", self.config().name)),
            subjects: vec![format!("$KV.{bucket}.>")],
            storage: StorageType::Memory,
            discard: DiscardPolicy::New,
            max_messages_per_subject: 1,
            max_age: ENTRY_LIFETIME,
            duplicate_window: ENTRY_LIFETIME,
            num_replicas: self.config().replicas,
            allow_rollup: true,
            allow_direct: true,
            deny_delete: true,
            ..Config::default()
        }
    }
}

impl NodesBucket {
    /// Writes the entry of a node.
    pub async fn write(&self, node: &NodeName, entry: &NodeEntry) -> Result<(), StreamError> {
        let unavailable = |error: &dyn std::fmt::Display| StreamError::Unavailable(error.to_string());
        let bytes = serde_json::to_vec(entry).map_err(|error| unavailable(&error))?;
        self.store.put(node.as_str(), bytes.into()).await.map(drop).map_err(|error| unavailable(&error))
    }

    /// Removes the entry of a node.
    pub async fn remove(&self, node: &NodeName) -> Result<(), StreamError> {
        let removed = self.store.purge(node.as_str()).await;
        removed.map_err(|error| StreamError::Unavailable(error.to_string()))
    }

    /// The nodes that wrote their entry in time, by name. Entries of a version that this one does
    /// not understand are left out.
    pub async fn list(&self) -> Result<Vec<(NodeName, NodeEntry)>, StreamError> {
        let unavailable = |error: &dyn std::fmt::Display| StreamError::Unavailable(error.to_string());
        let mut keys = self.store.keys().await.map_err(|error| unavailable(&error))?;
        let mut nodes = Vec::new();
        while let Some(key) = keys.next().await {
            let key = key.map_err(|error| unavailable(&error))?;
            let value = self.store.get(key.as_str()).await.map_err(|error| unavailable(&error))?;
            let entry = value.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            nodes.extend(key.parse().ok().zip(entry));
        }
        nodes.sort_by(|a: &(NodeName, NodeEntry), b| a.0.cmp(&b.0));
        Ok(nodes)
    }
}
