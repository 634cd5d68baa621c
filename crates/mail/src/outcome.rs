//! The result of one delivery attempt for one recipient. Data, not an error.

use crate::Reply;

/// The result of an attempt, as reported by the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message is durably in the mailbox: done.
    Delivered,
    /// A next hop took responsibility for the message (RFC 5321 section 6.1): done here.
    Relayed {
        /// The next hop's reply.
        reply: Reply,
        /// It also took responsibility for the requested notifications (RFC 3461 section 5.2.1).
        dsn: bool,
    },
    /// Temporary failure: the same may succeed later.
    Deferred(Reply),
    /// Permanent failure: the sender gets a bounce.
    Failed(Reply),
}
