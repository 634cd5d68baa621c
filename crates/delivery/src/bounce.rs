//! Delivery status notifications (RFC 3464) about failures, delays and, on request, successes. A
//! [`DsnReport`] decides who is notified of what, a [`Dsn`] is the resulting message, and a
//! [`NoticeLimiter`] limits how many go to a sender whose address may be forged.
//!
//! | result for a recipient | reported if NOTIFY (RFC 3461) | Action |
//! |---|---|---|
//! | failed | contains FAILURE, or is absent | failed |
//! | delayed, and a delay notice is due | contains DELAY, or is absent | delayed |
//! | delivered here | contains SUCCESS | delivered |
//! | accepted by a next hop without DSN | contains SUCCESS | relayed |
//!
//! One attempt causes at most one notice, whatever the result for each recipient (RFC 3464 section
//! 2 allows different actions in one report): an outcome is recorded together with the one notice
//! it causes, and the sender reads one message.
//!
//! | sender | failed recipient | notified |
//! |---|---|---|
//! | given | any | the sender |
//! | given, with VERP ([`crate::verp`]) | exactly one | the sender's VERP address |
//! | null | not the postmaster | the postmaster, if configured: a double bounce |
//! | null | the postmaster | no one: this ends the loop |

use std::future::Future;
use std::pin::Pin;

mod dsn;
mod dsn_input;
mod limiter;
mod notice_writer;
mod report;
mod status_part;
mod submitted_notice;
mod text_part;

pub use dsn::Dsn;
pub use dsn_input::{DsnComposeInput, ORIGINAL_OCTETS_MAX};
pub use limiter::{NoticeLimiter, NoticeLimits};
pub use report::{DsnAction, DsnKind, DsnReport, RecipientResult};
pub use submitted_notice::SubmittedNotice;

/// The fields to come.
pub type SignatureFuture<'a> = Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'a>>;

/// Signs notices.
pub trait NoticeSigner: Send + Sync {
    /// The fields to put before a notice, in ASCII, each with its CRLF. None if no key is for the notice,
    /// or if it cannot be signed now, which the signer logs: a notice does not wait for its signature.
    fn sign<'a>(&'a self, notice: &'a [u8]) -> SignatureFuture<'a>;
}
