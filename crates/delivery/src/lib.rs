//! Deliveries: one attempt at one next hop, and the text of bounces. This room never sees the spool; it gets a
//! message by its envelope and a leased body, and says what became of each recipient.

pub mod bounce;
pub mod local;
pub mod remote;
pub mod verp;

use mail::Outcome;

/// What became of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// An outcome for each recipient, in the order of the task.
    Outcomes(Vec<Outcome>),
    /// The bytes of the message are not those that were accepted; in words.
    Damaged(String),
}
