//! What became of one attempt for one recipient. Data, not an error.

use crate::Reply;

/// The end of an attempt, as the room that made it saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The mailbox has the message, durably: this recipient is done.
    Delivered,
    /// A next hop took charge of the message (RFC 5321 section 6.1): this recipient is done here.
    Relayed {
        /// How it said so.
        reply: Reply,
        /// It also took charge of the notifications that were asked for (RFC 3461 section 5.2.1).
        dsn: bool,
    },
    /// Not now: the same may succeed later.
    Deferred(Reply),
    /// Never: the sender is told.
    Failed(Reply),
}
