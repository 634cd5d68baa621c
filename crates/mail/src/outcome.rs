//! What became of one attempt for one recipient. Data, not an error.

use crate::Reply;

/// The end of an attempt, as the room that made it saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The next hop has the message, durably: this recipient is done.
    Delivered,
    /// Not now: the same may succeed later.
    Deferred(Reply),
    /// Never: the sender is told.
    Failed(Reply),
}
