//! The vocabulary of Mailrace: the types that other crates exchange, and nothing more.
//!
//! Nothing here opens a file, reads the clock or uses the network. [`Body`] holds a handle to bytes
//! that another crate stores; everything else is plain data. This crate imports no other crate of
//! the workspace.

mod address;
mod allowance;
mod body;
mod envelope;
mod event;
mod histogram;
mod host_tls;
mod id;
mod logged_header;
mod network;
mod outcome;
mod printable;
mod quota_check;
mod rate;
mod reply;
mod scram;
mod sender_rewriter;
mod time;
mod tls_info;
mod tls_session;
pub mod units;

pub use address::{Address, AddressError, DOMAIN_OCTETS_MAX, LOCAL_PART_OCTETS_MAX, PATH_OCTETS_MAX};
pub use allowance::{Allowance, Shortfall};
pub use body::{Body, BodyError, BodyFlags, ByteSource};
pub use envelope::{BodyType, ClientInfo, DsnNotify, DsnReturn, Envelope, FILTER_FIELD, QUEUE_FIELD, Recipient};
pub use event::{EventLog, LogLevel, LogObserver, MailEvent, OperatorLog, ServerLog};
pub use histogram::{Histogram, HistogramRecorder};
pub use host_tls::{
    DaneMatching, DanePolicy, DaneRecord, DaneSelector, DaneUsage, HostTls, StsRule, StsTest, TlsProof, VerifiedBy,
    VerifiedNames,
};
pub use id::{QueueId, QueueIdError, SpoolId};
pub use logged_header::{LoggedHeader, find_logged_header};
pub use network::{InvalidNetwork, Network, Networks};
pub use outcome::Outcome;
pub use printable::{must_escape, printable, push_escaped};
pub use quota_check::{QuotaCheck, QuotaFit};
pub use rate::{InvalidRate, Rate};
pub use reply::{EnhancedCode, InvalidReply, Reply};
pub use scram::ScramKeys;
pub use sender_rewriter::{ReturnRefusal, SenderRewriter};
pub use time::Timestamp;
pub use tls_info::TlsInfo;
pub use tls_session::{DomainTlsPolicy, TlsFailure, TlsPolicyFailure, TlsSession, TlsSessionLog};
