//! What a sender is told: delivery status notifications (RFC 3464) of failures, delays and, where they were asked
//! for, successes. A [`Report`] decides who is told what, a [`Letter`] is its text, a [`Cap`] bounds how many go to
//! a sender that may be forged.
//!
//! | became of a recipient | reported where NOTIFY (RFC 3461) has | Action |
//! |---|---|---|
//! | failed | FAILURE, or was not given | failed |
//! | delayed, and the time to say so has come | DELAY, or was not given | delayed |
//! | delivered here | SUCCESS | delivered |
//! | taken by a next hop that reports nothing | SUCCESS | relayed |
//!
//! One attempt makes one letter at most, whatever became of each recipient (RFC 3464 section 2 allows different
//! actions in one report): an outcome is recorded with the one message that it causes, and the sender reads one.
//!
//! | sender | failed recipient | who is told |
//! |---|---|---|
//! | given | any | the sender |
//! | given, and its letters name their recipients ([`crate::verp`]) | one alone | the sender's address for this recipient |
//! | null | not the postmaster | the postmaster, if there is one to tell: a double bounce |
//! | null | the postmaster | nobody: this is what ends it |

mod cap;
mod letter;
mod report;
mod status;
mod text;
mod words;

pub use cap::{Cap, CapLimits};
pub use letter::{Letter, ORIGINAL_OCTETS_MAX, Occasion};
pub use report::{Fate, Finding, Kind, Report};
