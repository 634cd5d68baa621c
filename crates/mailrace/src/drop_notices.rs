//! Writes the notices about recipients of mail from local programs, for `intake`, which takes that
//! mail.

use std::borrow::Cow;
use std::sync::Arc;

use config::NulPolicy;
use delivery::bounce::{
    DsnAction, DsnComposeInput, DsnReport, NoticeSigner, ORIGINAL_OCTETS_MAX, RecipientResult, SubmittedNotice,
};
use intake::drop_folder::{DropNotice, NoticeComposer, NoticeFuture, RefusedMessage};
use mail::{Address, QueueId, Recipient};

/// Writes notices in the form that all notices of this server have.
pub struct DropNoticeComposer {
    /// The name of this server.
    pub hostname: Box<str>,
    /// Gets notices for messages without a sender.
    pub double_bounces_to: Option<Address>,
    /// How to treat NUL in a message.
    pub nul: NulPolicy,
    /// Signs the notices.
    pub signer: Option<Arc<dyn NoticeSigner>>,
}

impl DropNoticeComposer {
    fn report<'a>(&'a self, refused: &RefusedMessage<'a>) -> Option<DsnReport<'a>> {
        let findings = (0..).zip(refused.replies).map(|(ordinal, reply)| RecipientResult {
            ordinal,
            action: DsnAction::Failed(reply),
            peer: None,
        });
        DsnReport::build(refused.envelope, self.double_bounces_to.as_ref(), findings)
    }
}

impl NoticeComposer for DropNoticeComposer {
    fn notified_address(&self, refused: &RefusedMessage<'_>) -> Option<Address> {
        self.report(refused).map(|report| report.notified_address().clone())
    }

    fn compose<'a>(
        &'a self,
        refused: &'a RefusedMessage<'a>,
        id: QueueId,
        recipients: Vec<Recipient>,
    ) -> NoticeFuture<'a> {
        Box::pin(async move {
            let mut notice = self.write(refused, id, recipients)?;
            if let Some(signer) = &self.signer {
                notice.prefix = signer.sign(&notice.content).await;
            }
            Some(notice)
        })
    }
}

impl DropNoticeComposer {
    fn write(&self, refused: &RefusedMessage<'_>, id: QueueId, recipients: Vec<Recipient>) -> Option<DropNotice> {
        let RefusedMessage { id: original_id, content, now, .. } = *refused;
        let start = &content[..content.len().min(ORIGINAL_OCTETS_MAX as usize)];
        let original = returned_content(start, self.nul);
        let dsn = self.report(refused)?.compose(&DsnComposeInput {
            hostname: &self.hostname,
            id,
            now,
            original_id,
            attempted_at: Some(now),
            octets: (content.len() - (start.len() - original.len())) as u64,
            original: &original,
        });
        let envelope = dsn.envelope(&self.hostname, now, recipients);
        let received = SubmittedNotice::new(&dsn, id, Vec::new(), &envelope).received_event(&self.hostname);
        Some(DropNotice { envelope, prefix: Vec::new(), content: dsn.content, flags: dsn.flags, received })
    }
}

/// The part of a message that a notice returns. If NULs are refused, the notice contains none
/// either.
fn returned_content(original: &[u8], nul: NulPolicy) -> Cow<'_, [u8]> {
    if nul == NulPolicy::Refuse && original.contains(&0) {
        return Cow::Owned(original.iter().copied().filter(|octet| *octet != 0).collect());
    }
    Cow::Borrowed(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_omits_nuls_if_they_are_refused() {
        let content = b"Subject: \0x\r\n\r\na\0b\0\r\n";
        assert_eq!(*returned_content(content, NulPolicy::Refuse), *b"Subject: x\r\n\r\nab\r\n");
        assert_eq!(*returned_content(content, NulPolicy::Keep), *content);
    }
}
