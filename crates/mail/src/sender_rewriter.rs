//! Senders of forwarded mail (SRS): delivery asks with which address mail goes on, and the directory
//! of recipients where a notice to such an address leads back to.

use crate::Address;

/// Why a rewritten address leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnRefusal {
    /// It is not from us, or was changed.
    Forged,
    /// It was ours, but too long ago.
    Expired,
}

/// Rewrites senders into one domain, and finds them again. The clock is the implementation's.
pub trait SenderRewriter: Send + Sync {
    /// The sender with which mail of `sender` is forwarded; None: it keeps its sender, since the
    /// rewritten address would be too long.
    fn forward(&self, sender: &Address) -> Option<Address>;

    /// Where mail for `recipient` returns to. None: it is not a rewritten address, or not in our
    /// domain.
    fn reverse(&self, recipient: &Address) -> Option<Result<Address, ReturnRefusal>>;
}
