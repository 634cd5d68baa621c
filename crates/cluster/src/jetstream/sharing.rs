//! What nodes tell one another: requests for departures and tables of slots, in a bucket whose order all nodes
//! see alike, and broadcasts, which nothing keeps.
//!
//! The bucket keeps the last requests for each next hop, in memory: they are worth nothing after a while.

use std::future::ready;
use std::net::IpAddr;
use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use futures_util::{Stream, StreamExt};
use serde::{Deserialize, Serialize};

use super::connection::{Connection, StreamError};
use super::lane_stream::create_stream;
use super::names::{broadcast_subject, rates_bucket};
use crate::LimitUse;
use crate::departures::DepartureRequest;
use crate::slots::{SlotTable, SlotWrite, WriteOutcome};

/// How long a request is kept: longer than the longest interval of a rate, an hour.
const REQUEST_LIFETIME: Duration = Duration::from_secs(2 * 3600);
/// Requests that are kept for each next hop, for readers that are a little late.
const REQUESTS_PER_NEXT_HOP: i64 = 8;
/// The longest name of a next hop that is shared.
const KEY_BYTES_MAX: usize = 512;

/// Keys of tables of slots begin with it. No key of a request has a dot.
const SLOTS_PREFIX: &str = "slots.";

/// What was stored.
pub(crate) enum StoredEntry {
    /// A request for departures.
    Request(StoredRequest),
    /// The table of the slots of a next hop, by its key, with its revision.
    Slots(String, u64, SlotTable),
}

/// A request that was stored.
pub(crate) struct StoredRequest {
    /// The key of the next hop.
    pub(crate) key: String,
    /// When it was stored, in nanoseconds since 1970.
    pub(crate) stored_at: u64,
    pub(crate) request: DepartureRequest,
}

/// What a node has seen, and others should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NodeBroadcast {
    /// A next hop is lame.
    LameNextHop(String),
    /// A login has failed.
    FailedLogin {
        /// The user.
        user: String,
        /// The address of the client.
        client: IpAddr,
    },
    /// Allowances were used.
    LimitUse(Vec<LimitUse>),
}

/// A broadcast, with the node that it is from.
#[derive(Serialize, Deserialize)]
struct Announcement {
    node: String,
    broadcast: NodeBroadcast,
}

/// The requests of all nodes; clones share the connection.
#[derive(Clone)]
pub(crate) struct RatesBucket {
    store: kv::Store,
}

impl Connection {
    /// Opens the bucket of the requests, or makes it.
    pub(crate) async fn rates(&self) -> Result<RatesBucket, StreamError> {
        create_stream(self, self.rates_config()).await?;
        let opened = self.context().get_key_value(rates_bucket(&self.config().name)).await;
        let store = opened.map_err(|error| StreamError::Unavailable(error.to_string()))?;
        Ok(RatesBucket { store })
    }

    /// The stream of the bucket.
    pub(super) fn rates_config(&self) -> Config {
        let bucket = rates_bucket(&self.config().name);
        Config {
            name: format!("KV_{bucket}"),
            description: Some(format!("Mailrace: shared rates of cluster {}", self.config().name)),
            subjects: vec![format!("$KV.{bucket}.>")],
            storage: StorageType::Memory,
            discard: DiscardPolicy::Old,
            max_messages_per_subject: REQUESTS_PER_NEXT_HOP,
            max_age: REQUEST_LIFETIME,
            num_replicas: self.config().replicas,
            allow_rollup: true,
            allow_direct: true,
            ..Config::default()
        }
    }

    /// Tells the other nodes. Nobody may hear it: without a server it is lost, since it would be old later.
    pub(crate) async fn announce(&self, broadcast: NodeBroadcast) {
        if !self.is_connected() {
            return;
        }
        let announcement = Announcement { node: self.config().node.to_string(), broadcast };
        if let Ok(payload) = serde_json::to_vec(&announcement) {
            // Others find out themselves.
            drop(self.client().publish(broadcast_subject(&self.config().name), payload.into()).await);
        }
    }

    /// The broadcasts of other nodes. Those of a version that this one does not understand are left out.
    pub(crate) async fn broadcasts(&self) -> Result<impl Stream<Item = NodeBroadcast> + Send + use<>, StreamError> {
        let messages = self.subscribe(broadcast_subject(&self.config().name)).await?;
        let node = self.config().node.to_string();
        Ok(messages.filter_map(move |message| {
            let announcement = serde_json::from_slice::<Announcement>(&message.payload).ok();
            ready(
                announcement
                    .filter(|announcement| announcement.node != node)
                    .map(|announcement| announcement.broadcast),
            )
        }))
    }
}

impl RatesBucket {
    /// Writes a request.
    pub(crate) async fn write(&self, key: &str, request: &DepartureRequest) -> Result<(), StreamError> {
        let unavailable = |error: &dyn std::fmt::Display| StreamError::Unavailable(error.to_string());
        let bytes = serde_json::to_vec(request).map_err(|error| unavailable(&error))?;
        self.store.put(key, bytes.into()).await.map(drop).map_err(|error| unavailable(&error))
    }

    /// Changes a table of slots, unless others have changed it since.
    pub(crate) async fn change_slots(&self, key: &str, write: SlotWrite) -> WriteOutcome {
        let Ok(bytes) = serde_json::to_vec(&write.table) else { return WriteOutcome::Unknown };
        let slots_key = format!("{SLOTS_PREFIX}{key}");
        match self.store.update(&slots_key, bytes.into(), write.revision).await {
            Ok(revision) => WriteOutcome::Stored(revision),
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {
                let entry = self.store.entry(slots_key).await.ok();
                WriteOutcome::Refused(entry.map(|entry| entry.map(|entry| (entry.revision, slot_table(&entry.value)))))
            }
            Err(_) => WriteOutcome::Unknown,
        }
    }

    /// The last request for each next hop and the tables of slots, and then all that follow, in their order.
    /// Ends when it cannot be read on.
    pub(crate) async fn read(&self) -> Result<impl Stream<Item = StoredEntry> + Send + use<>, StreamError> {
        let watch = self.store.watch_with_history(">").await;
        let entries = watch.map_err(|error| StreamError::Unavailable(error.to_string()))?;
        let entries = entries.take_while(|entry| ready(entry.is_ok()));
        Ok(entries.filter_map(|entry| ready(entry.ok().and_then(stored_entry))))
    }
}

fn stored_entry(entry: kv::Entry) -> Option<StoredEntry> {
    if let Some(key) = entry.key.strip_prefix(SLOTS_PREFIX) {
        return Some(StoredEntry::Slots(key.to_owned(), entry.revision, slot_table(&entry.value)));
    }
    let request = serde_json::from_slice(&entry.value).ok()?;
    let stored_at = u64::try_from(entry.created.unix_timestamp_nanos()).ok()?;
    Some(StoredEntry::Request(StoredRequest { key: entry.key, stored_at, request }))
}

/// One that cannot be read is as good as none: its nodes write it again.
fn slot_table(value: &[u8]) -> SlotTable {
    serde_json::from_slice(value).unwrap_or_default()
}

/// The key of a next hop; None if its name is too long. Characters that keys cannot have are written as
/// `=` and their octets.
pub(crate) fn next_hop_key(next_hop: &str) -> Option<String> {
    let mut key = String::new();
    for octet in next_hop.bytes() {
        match octet {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => key.push(octet.into()),
            _ => key.push_str(&format!("={octet:02x}")),
        }
    }
    (!key.is_empty() && key.len() <= KEY_BYTES_MAX).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_only_what_a_bucket_takes_and_differ_as_names_do() {
        assert_eq!(next_hop_key("smtp:[mx1.example.org]:25").as_deref(), Some("smtp=3a=5bmx1=2eexample=2eorg=5d=3a25"));
        assert_ne!(next_hop_key("a=2e"), next_hop_key("a."));
        assert_eq!((next_hop_key(""), next_hop_key(&"x".repeat(KEY_BYTES_MAX + 1))), (None, None));
    }
}
