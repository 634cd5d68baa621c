//! Whether a mailbox has room for one message more. Quotas are counted in files, which intake does not touch: it asks
//! whoever knows, and takes the message where nobody can say. At delivery it is asked again.

use std::pin::Pin;
use std::time::Instant;

use lookup::directory::Final;
use mail::{Address, Reply};

use crate::{Desk, replies};

/// Whether a message fits into a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It does, or nothing limits the mailbox.
    Fits,
    /// It does not.
    Full {
        /// Mail is refused for good, and need not come again.
        for_good: bool,
    },
    /// Nobody can say in reasonable time.
    Unknown,
}

/// Knows which mailboxes are full.
pub trait Room: Send + Sync {
    /// What was found out a short time ago, if it still tells whether a message of so many bytes fits.
    fn known(&self, mailbox: &Address, octets: u64, now: Instant) -> Option<Fit>;

    /// Finds it out. Has a bound on its time.
    fn ask<'a>(&'a self, mailbox: &'a Address, octets: u64) -> Pin<Box<dyn Future<Output = Fit> + Send + 'a>>;
}

impl Desk {
    /// Refuses the message, of which the client declared a size or not, where the mailbox of `asked` is full. Where an
    /// address stands for several, one that is full refuses nothing to the others.
    pub(crate) async fn refuse_full(&self, asked: &Address, finals: &[Final], size: Option<u64>) -> Result<(), Reply> {
        let (Some(room), [Final { address, local: true, .. }]) = (&self.room, finals) else { return Ok(()) };
        // No message is empty, and a full mailbox is full for all.
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
