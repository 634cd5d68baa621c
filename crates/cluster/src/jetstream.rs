//! The adapter to NATS JetStream: one connection, and on it the streams of lanes, signs of life,
//! lanes that are closed, and the nodes of the cluster.

mod closed_lanes;
mod connection;
mod lane_stream;
mod names;
mod nodes;
mod renewals;

pub use connection::{Connection, OpenError, StreamError};
pub use lane_stream::{LaneStream, NewestEpoch, ReadError};
pub use names::control_subject;
pub(crate) use names::parse_lane;
pub use nodes::{AskError, NodeEntry, NodeRequest, NodesBucket, WRITE_INTERVAL};
