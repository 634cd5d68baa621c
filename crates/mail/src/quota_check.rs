//! The question whether a mailbox has room for a message: sessions ask it, and what stores mailboxes
//! answers it.

use std::pin::Pin;
use std::time::Instant;

use crate::Address;

/// Whether a message fits in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaFit {
    /// It fits, or the mailbox has no quota.
    Fits,
    /// It does not fit.
    Full {
        /// The message is refused permanently instead of deferred.
        for_good: bool,
    },
    /// Unknown within reasonable time.
    Unknown,
}

/// Knows which mailboxes are full.
pub trait QuotaCheck: Send + Sync {
    /// The answer found a short time ago, if it still applies to a message of this size.
    fn cached(&self, mailbox: &Address, octets: u64, now: Instant) -> Option<QuotaFit>;

    /// Finds the answer, within a time limit.
    fn check<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = QuotaFit> + Send + 'a>>;
}
