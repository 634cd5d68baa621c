//! Checks at RCPT whether a mailbox has room for a message. Usage is counted from the files of the
//! mailbox, which intake does not read: it asks a [`Room`], and accepts the message if the answer
//! is unknown. Delivery checks again.

use std::pin::Pin;
use std::time::Instant;

use lookup::directory::Final;
use mail::{Address, Reply};

use crate::{Desk, replies};

/// Whether a message fits in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
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
pub trait Room: Send + Sync {
    /// The answer found a short time ago, if it still applies to a message of this size.
    fn known(&self, mailbox: &Address, octets: u64, now: Instant) -> Option<Fit>;

    /// Finds the answer, within a time limit.
    fn ask<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = Fit> + Send + 'a>>;
}

impl Desk {
    /// Refuses the recipient if the mailbox is full for a message of this size, or of unknown size.
    /// If an address expands to several mailboxes, a full one does not refuse the message for the
    /// others.
    pub(crate) async fn refuse_full(&self, asked: &Address, finals: &[Final], size: Option<u64>) -> Result<(), Reply> {
        let (Some(room), [Final { address, local: true, .. }]) = (&self.room, finals) else { return Ok(()) };
        // No message is empty, and a full mailbox is full for every message.
        let octets = size.unwrap_or(1).max(1);
        let fit = match room.known(address, octets, Instant::now()) {
            Some(fit) => fit,
            None => room.ask(address, octets).await,
        };
        match fit {
            Fit::Fits | Fit::Unknown => Ok(()),
            Fit::Full { for_good } => Err(replies::mailbox_full(asked, for_good)),
        }
    }
}
