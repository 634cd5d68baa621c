//! The adapter to NATS JetStream: one connection, and on it the streams of lanes, signs of life,
//! lanes that are closed, and the nodes of the cluster.

mod closed_lanes;
mod connection;
mod lane_stream;
mod names;
mod node_requests;
mod nodes;
mod renewals;
mod sharing;

pub use connection::{Connection, OpenError, StreamError};
pub use lane_stream::{LaneStream, NewestEpoch, ReadError};
pub use names::control_subject;
pub(crate) use names::parse_lane;
pub use node_requests::{AskError, NodeRequest};
pub use nodes::{NodeEntry, NodesBucket, WRITE_INTERVAL};
pub(crate) use sharing::{NodeBroadcast, RatesBucket, StoredEntry, StoredRequest, next_hop_key};
