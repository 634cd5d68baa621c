//! What the drop folder needs from the code that writes notices to senders. This crate receives
//! mail, and does not know how notices look.

use std::future::Future;
use std::pin::Pin;

use mail::{Address, BodyFlags, Envelope, MailEvent, QueueId, Recipient, Reply, Timestamp};

/// A message that some of its recipients, or all, cannot get.
pub struct RefusedMessage<'a> {
    /// Its queue id; not in the spool if it has no other recipients.
    pub id: QueueId,
    /// Its envelope, with the refused recipients only.
    pub envelope: &'a Envelope,
    /// Why they are refused, in the order of the envelope.
    pub replies: &'a [Reply],
    /// The message as the program left it.
    pub content: &'a [u8],
    /// When the recipients were refused.
    pub now: Timestamp,
}

/// A notice to the sender.
pub struct DropNotice {
    /// Its envelope.
    pub envelope: Envelope,
    /// Fields before `content`: its signatures.
    pub prefix: Vec<u8>,
    /// Header and body.
    pub content: Vec<u8>,
    /// The flags of `content`.
    pub flags: BodyFlags,
    /// The event to log once the notice is in the spool.
    pub received: MailEvent,
}

/// The notice to come.
pub type NoticeFuture<'a> = Pin<Box<dyn Future<Output = Option<DropNotice>> + 'a>>;

/// Decides who gets a notice, and writes it.
pub trait NoticeComposer: Send {
    /// The address to notify; None: no notice is wanted, or there is no sender.
    fn notified_address(&self, refused: &RefusedMessage<'_>) -> Option<Address>;

    /// The notice with the queue id `id`, for what [`NoticeComposer::notified_address`] resolved
    /// to. None under the same conditions as there.
    fn compose<'a>(
        &'a self,
        refused: &'a RefusedMessage<'a>,
        id: QueueId,
        recipients: Vec<Recipient>,
    ) -> NoticeFuture<'a>;
}
