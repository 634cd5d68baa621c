//! The vocabulary of Mailrace: the types that other crates exchange, and nothing more.
//!
//! Nothing here opens a file, reads the clock or uses the network. [`Body`] holds a handle to bytes
//! that another crate stores; everything else is plain data. This crate imports no other crate of
//! the workspace.

mod address;
mod body;
mod envelope;
mod fact;
mod histogram;
mod id;
mod outcome;
mod reply;
mod scram;
mod security;
mod time;
pub mod units;

pub use address::{Address, AddressError, DOMAIN_OCTETS_MAX, LOCAL_PART_OCTETS_MAX, PATH_OCTETS_MAX};
pub use body::{Body, BodyFlags, ByteSource, Damaged};
pub use envelope::{BodyType, Client, Envelope, Notify, Recipient, Return};
pub use fact::{Fact, Journal, LoggedHeader};
pub use histogram::{Histogram, Recorder};
pub use id::{QueueId, QueueIdError, SpoolId};
pub use outcome::Outcome;
pub use reply::{Enhanced, NotAReply, Reply};
pub use scram::ScramKeys;
pub use security::Security;
pub use time::Timestamp;
