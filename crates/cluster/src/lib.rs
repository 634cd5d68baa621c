//! A second copy of accepted mail, and the takeover of the lanes of nodes that are gone.
//!
//! Each lane of a spool has a stream of records on NATS JetStream. The node that owns the lane writes
//! every committed batch to it, beside the sync of the local disk. The stream is also the arbiter of
//! who owns the lane: a record names the sequence that must be the last one of the stream, so of two
//! nodes that write, one is refused.
//!
//! [`record`] and [`codec`] are the format. [`lane`] has the state machines of one lane, which have no
//! clock, no socket and no async code. [`Connection`] is the adapter to the servers; a [`LaneTask`]
//! moves what a lane's state machines decide to its stream, and [`ClusterStep`] passes the batches of
//! the spool to the tasks. A [`ClusterNode`] decides which lanes it claims, and restores those of others.

mod clock;
pub mod codec;
mod config;
mod credentials;
pub mod departures;
mod jetstream;
pub mod lane;
mod lane_task;
mod names;
mod node;
pub mod record;
pub mod slots;
mod step;
mod thread;

pub use clock::boot_time;
pub use config::{ClusterConfig, ClusterTls, NatsServer, NatsServerError};
pub use credentials::{CredentialsError, check_credentials};
pub use jetstream::{
    AskError, Connection, LaneStream, NewestEpoch, NodeEntry, NodeRequest, NodesBucket, OpenError, ReadError,
    StreamError, WRITE_INTERVAL, control_subject,
};
pub use lane_task::{ClaimedLane, LaneEnd, LaneHandle, LaneStatus, LaneTask, ReadMessage};
pub use names::{ClusterName, InvalidName, NodeName};
pub use node::{
    AdmitMessages, AdoptError, AnswerRequest, ClusterNode, CountFailedLogin, ForgetError, GivenBack, GrantDepartures,
    GrantSlots, LaneLostCallback, LaneReport, LaneRole, LimitUse, NodeAnswers, NodeError, NodeFigures, NodeParts,
    NodeSharing, SharingCallbacks, StartingNode,
};
pub use step::ClusterStep;
pub use thread::ClusterThread;
