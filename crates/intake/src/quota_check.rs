//! Checks at RCPT whether a mailbox has room for a message. Usage is counted from the files of the
//! mailbox, which intake does not read: it asks a [`mail::QuotaCheck`], and accepts the message if the
//! answer is unknown. Delivery checks again.

use std::time::Instant;

use lookup::directory::ResolvedRecipient;
use mail::{Address, QuotaFit, Reply};

use crate::{IntakeContext, replies};

impl IntakeContext {
    /// Refuses the recipient if the mailbox is full for a message of this size, or of unknown size.
    /// If an address expands to several mailboxes, a full one does not refuse the message for the
    /// others.
    pub(crate) async fn check_quota(
        &self,
        asked: &Address,
        resolved: &[ResolvedRecipient],
        size: Option<u64>,
    ) -> Result<(), Reply> {
        let (Some(quota_check), [ResolvedRecipient { address, local: true, .. }]) = (&self.quota_check, resolved)
        else {
            return Ok(());
        };
        // No message is empty, and a full mailbox is full for every message.
        let octets = size.unwrap_or(1).max(1);
        let fit = match quota_check.cached(address, octets, Instant::now()) {
            Some(fit) => fit,
            None => quota_check.check(address, octets).await,
        };
        match fit {
            QuotaFit::Fits | QuotaFit::Unknown => Ok(()),
            QuotaFit::Full { for_good } => Err(replies::mailbox_full(asked, for_good)),
        }
    }
}
