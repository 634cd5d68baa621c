//! Where a destination's mail goes: what the navigator found out, as the queue carries it to the attempt.

use std::sync::Arc;

use delivery::remote::NextHop;
use mail::Outcome;

/// A way for the mail of a destination.
#[derive(Debug)]
pub enum Way {
    /// Into mailboxes here.
    Mailboxes {
        /// By the courier of this name.
        transport: Box<str>,
    },
    /// To another host.
    Remote {
        /// The name of the transport.
        transport: Box<str>,
        /// The hosts.
        hop: Arc<NextHop>,
    },
    /// The directory did not say which machine stores the mailbox: it is asked again.
    Unsorted,
    /// There is none: every attempt ends so.
    Nowhere {
        /// How it ends.
        outcome: Outcome,
    },
}

impl Way {
    /// The name of the transport, for the log.
    pub fn transport(&self) -> &str {
        match self {
            Way::Mailboxes { transport } | Way::Remote { transport, .. } => transport,
            Way::Unsorted | Way::Nowhere { .. } => "none",
        }
    }
}
