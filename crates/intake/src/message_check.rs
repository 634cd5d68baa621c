//! A complete message, from a session or the drop folder, as checks see and edit it before it is
//! stored.

use std::future::{Future, ready};
use std::io;
use std::ops::Range;
use std::pin::Pin;

use filter::{CheckedMessage, ContentFuture, Edit, Field, ReplacedOctets, has_bare_newline, header};
use mail::{Address, BodyFlags, Reply};
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
    /// The properties of the content.
    pub(crate) flags: &'a mut BodyFlags,
    pub(crate) content: MessageContent<'a>,
}

/// Where the message is.
pub(crate) enum MessageContent<'a> {
    /// In memory or in a file of the spool.
    Incoming(&'a mut IncomingBody),
    /// In memory.
    Memory(&'a mut Vec<u8>),
}

impl CheckedMessage for MessageInCheck<'_> {
    fn sender(&self) -> Option<&Address> {
        self.transaction.mail.sender.as_ref()
    }

    fn recipients(&self) -> Vec<&Address> {
        self.transaction.recipients().map(|recipient| &recipient.address).collect()
    }

    fn named_recipients(&self) -> Vec<&Address> {
        self.transaction.named_recipients()
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

    fn is_eight_bit(&self) -> bool {
        self.flags.eight_bit
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

    fn reserve_memory(&mut self, octets: usize) -> bool {
        match &mut self.content {
            MessageContent::Incoming(body) => body.reserve_more(octets),
            // Messages of local programs are checked one by one.
            MessageContent::Memory(_) => true,
        }
    }

    fn edit(&mut self, edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        match edit {
            Edit::PrependField(field) => Box::pin(ready(self.prepend(&field))),
            Edit::AppendField(field) => Box::pin(self.append(field)),
            Edit::InsertField { index, field } => Box::pin(self.insert_field(index, field)),
            Edit::ReplaceField { name, occurrence, field } => Box::pin(self.replace_field(name, occurrence, field)),
            Edit::RemoveFields { places } => Box::pin(self.remove_fields(places)),
            Edit::ReplaceOctets { changes } => Box::pin(self.replace_octets(changes)),
            Edit::ReplaceBody(body) => Box::pin(self.replace_body(body)),
            Edit::ReplaceContent(content) => Box::pin(self.replace_content(content)),
            Edit::ChangeSender(sender) => {
                self.transaction.mail.sender = sender;
                Box::pin(ready(Ok(())))
            }
            Edit::ChangeNoticeRequest { ret, envid } => {
                (self.transaction.mail.ret, self.transaction.mail.envid) = (ret, envid);
                Box::pin(ready(Ok(())))
            }
            Edit::AddRecipient { address, notify, orcpt } => {
                Box::pin(self.add_recipient(RcptRequest { address, notify, orcpt }))
            }
            Edit::RemoveRecipient(address) => {
                self.transaction.remove_recipient(&address);
                Box::pin(ready(Ok(())))
            }
            Edit::Redirect(address) => {
                self.transaction.remove_recipients_from(0);
                self.edit(Edit::add_recipient(address))
            }
        }
    }
}

impl MessageInCheck<'_> {
    fn prepend(&mut self, field: &Field) -> Result<(), Reply> {
        self.insert_into_prefix(&mut 0, field).map(|_| ())
    }

    /// False: the prefix has fewer fields.
    fn insert_into_prefix(&mut self, index: &mut usize, field: &Field) -> Result<bool, Reply> {
        if self.prefix.len() + field.wire().len() > spool::PREFIX_BYTES_MAX as usize {
            return Err(replies::TOO_MANY_FIELDS);
        }
        Ok(header::insert_field(self.prefix, index, field))
    }

    async fn insert_field(&mut self, mut index: usize, field: Field) -> Result<(), Reply> {
        if self.insert_into_prefix(&mut index, &field)? {
            return Ok(());
        }
        let mut header = self.read_header().await?;
        let len = header.len();
        if header::insert_field(&mut header, &mut index, &field) {
            return self.replace_start(len, header).await;
        }
        self.append(field).await
    }

    async fn append(&mut self, field: Field) -> Result<(), Reply> {
        let mut header = self.read_header().await?;
        let len = header.len();
        header.extend_from_slice(field.wire().as_bytes());
        self.replace_start(len, header).await
    }

    async fn replace_field(
        &mut self,
        name: Box<str>,
        mut occurrence: usize,
        field: Option<Field>,
    ) -> Result<(), Reply> {
        if header::replace_field(self.prefix, &name, &mut occurrence, field.as_ref()) {
            return Ok(());
        }
        let mut header = self.read_header().await?;
        let len = header.len();
        if header::replace_field(&mut header, &name, &mut occurrence, field.as_ref()) {
            return self.replace_start(len, header).await;
        }
        match field {
            Some(field) => self.append(field).await,
            None => Ok(()),
        }
    }

    async fn remove_fields(&mut self, places: Box<[Range<usize>]>) -> Result<(), Reply> {
        let header = self.read_header().await?;
        let kept = header::without_fields(&header, &places);
        self.replace_start(header.len(), kept).await
    }

    /// Reads the content as far as the last change, and replaces that.
    async fn replace_octets(&mut self, changes: Box<[ReplacedOctets]>) -> Result<(), Reply> {
        let (mut start, mut position) = (Vec::new(), 0);
        for (place, new) in changes {
            self.copy_content(position..place.start, &mut start).await?;
            start.extend_from_slice(&new);
            position = place.end;
        }
        self.replace_start(position.min(self.content_len()) as usize, start).await
    }

    /// Appends octets of the content.
    async fn copy_content(&mut self, place: Range<u64>, copy: &mut Vec<u8>) -> Result<(), Reply> {
        let mut position = place.start;
        while position < place.end {
            let chunk = self.read_content(position).await.map_err(|error| replies::body_unwritable(&error))?;
            if chunk.is_empty() {
                return Err(replies::BODY_NOT_EDITED);
            }
            let count = (chunk.len() as u64).min(place.end - position);
            copy.extend_from_slice(&chunk[..count as usize]);
            position += count;
        }
        Ok(())
    }

    async fn replace_body(&mut self, body: Vec<u8>) -> Result<(), Reply> {
        let mut content = self.read_header().await?;
        content.extend_from_slice(b"\r\n");
        content.extend_from_slice(&body);
        self.replace_content(content).await
    }

    async fn replace_content(&mut self, content: Vec<u8>) -> Result<(), Reply> {
        if has_bare_newline(&content) {
            return Err(replies::BODY_NOT_EDITED);
        }
        *self.flags = BodyFlags::default();
        let len = self.content_len();
        self.flags.ends_in_crlf = content.ends_with(b"\r\n");
        self.replace_start(len as usize, content).await
    }

    /// The header of the content, without the empty line after it. A longer one than is read is not edited.
    async fn read_header(&mut self) -> Result<Vec<u8>, Reply> {
        let read = header::read(self).await;
        read.map_err(|error| replies::body_unwritable(&error))?.ok_or(replies::HEADER_NOT_EDITED)
    }

    /// Replaces the first bytes of the content, which may be all of it.
    async fn replace_start(&mut self, count: usize, start: Vec<u8>) -> Result<(), Reply> {
        self.flags.dot_lines |= start.starts_with(b".") || start.windows(2).any(|pair| pair == b"\n.");
        self.flags.eight_bit |= !start.is_ascii();
        match &mut self.content {
            MessageContent::Incoming(body) => {
                let replaced = body.replace_start(count as u64, start).await;
                replaced.map_err(|error| replies::body_unwritable(&error))
            }
            MessageContent::Memory(bytes) => {
                bytes.splice(..count, start);
                Ok(())
            }
        }
    }

    /// The operator's check has the right to relay, whoever the client is.
    async fn add_recipient(&mut self, request: RcptRequest) -> Result<(), Reply> {
        let address = self.context.normalize_address(&request.address, None).await;
        let added = self.transaction.add_recipient(self.context, &address, &request, true).await;
        added.map_err(|refusal| refusal.into_reply(self.context))
    }
}
