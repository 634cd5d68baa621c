//! A complete message, from a session or the drop folder, as checks see and edit it before it is
//! stored.

use std::future::{Future, ready};
use std::io;
use std::pin::Pin;

use filter::{CheckedMessage, ContentFuture, Edit, Field};
use mail::{Address, DsnNotify, Reply};
use protocol::smtp::server::RcptRequest;

use crate::body::IncomingBody;
use crate::transaction::Transaction;
use crate::{IntakeContext, replies};

/// The message with its envelope and the fields before it.
pub(crate) struct MessageInCheck<'a> {
    pub(crate) context: &'a IntakeContext,
    pub(crate) transaction: &'a mut Transaction,
    /// Trace fields and those that this server or a check adds.
    pub(crate) prefix: &'a mut Vec<u8>,
    pub(crate) content: MessageContent<'a>,
}

/// Where the message is.
pub(crate) enum MessageContent<'a> {
    /// In memory or in a file of the spool.
    Incoming(&'a mut IncomingBody),
    /// In memory.
    Memory(&'a [u8]),
}

impl CheckedMessage for MessageInCheck<'_> {
    fn sender(&self) -> Option<&Address> {
        self.transaction.mail.sender.as_ref()
    }

    fn recipients(&self) -> Vec<&Address> {
        self.transaction.recipients().map(|recipient| &recipient.address).collect()
    }

    fn prefix(&self) -> &[u8] {
        self.prefix
    }

    fn content_len(&self) -> u64 {
        match &self.content {
            MessageContent::Incoming(body) => body.len(),
            MessageContent::Memory(bytes) => bytes.len() as u64,
        }
    }

    fn read_content(&mut self, position: u64) -> ContentFuture<'_> {
        match &mut self.content {
            MessageContent::Incoming(body) => Box::pin(body.read(position)),
            MessageContent::Memory(bytes) => {
                let from = usize::try_from(position).unwrap_or(usize::MAX).min(bytes.len());
                Box::pin(ready(io::Result::Ok(&bytes[from..])))
            }
        }
    }

    fn edit(&mut self, edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        match edit {
            Edit::PrependField(field) => Box::pin(ready(self.prepend(&field))),
            Edit::ChangeSender(sender) => {
                self.transaction.mail.sender = sender;
                Box::pin(ready(Ok(())))
            }
            Edit::AddRecipient(address) => Box::pin(self.add_recipient(address)),
            Edit::RemoveRecipient(address) => {
                self.transaction.remove_recipient(&address);
                Box::pin(ready(Ok(())))
            }
        }
    }
}

impl MessageInCheck<'_> {
    fn prepend(&mut self, field: &Field) -> Result<(), Reply> {
        let field = field.wire().as_bytes();
        if self.prefix.len() + field.len() > spool::PREFIX_BYTES_MAX as usize {
            return Err(replies::TOO_MANY_FIELDS);
        }
        self.prefix.splice(..0, field.iter().copied());
        Ok(())
    }

    /// The operator's check has the right to relay, whoever the client is.
    async fn add_recipient(&mut self, address: Address) -> Result<(), Reply> {
        let request = RcptRequest { address, notify: DsnNotify::UNSET, orcpt: None };
        let address = self.context.normalize_address(&request.address, None).await;
        let added = self.transaction.add_recipient(self.context, &address, &request, true).await;
        added.map_err(|refusal| refusal.into_reply(self.context))
    }
}
