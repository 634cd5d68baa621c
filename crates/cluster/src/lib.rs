//! A second copy of accepted mail, and the takeover of the lanes of nodes that are gone.
//!
//! Each lane of a spool has a stream of records on NATS JetStream. The node that owns the lane writes
//! every committed batch to it, beside the sync of the local disk. The stream is also the arbiter of
//! who owns the lane: a record names the sequence that must be the last one of the stream, so of two
//! nodes that write, one is refused.
//!
//! [`record`] and [`codec`] are the format. [`lane`] has the state machines of one lane, which have no
//! clock, no socket and no async code.

pub mod codec;
pub mod lane;
mod names;
pub mod record;

pub use names::{ClusterName, InvalidName, NodeName};
