//! Submits messages from the drop folder to the spool, by the same [`Transaction`] as sessions, with
//! the rights of a relay network. Recipients that cannot get the message are reported in a notice to
//! the sender, committed together with the message. These notices are not limited, since the sender
//! is a local user.
//!
//! | a session would answer to RCPT | here |
//! |---|---|
//! | 250 | the recipient gets the message |
//! | 4xx | the file stays for a later try, for all its recipients |
//! | 452 4.5.3, too many recipients | 550 5.5.3 in the notice: a file is one transaction, and the rest never fits |
//! | 5xx | the same reply in the notice |
//!
//! There is no client, so access rules, rates and the limits of single clients do not apply.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use filter::{Disposition, MessageCheckError, Origin, Refusal, SessionInfo, Submitter};
use load::{AllowedClients, LoadRestrictions};
use lookup::directory::AddressResolution;
use mail::{
    Address, BodyFlags, ClientInfo, DsnNotify, EnhancedCode, Envelope, MailEvent, QueueId, Recipient, Reply, Timestamp,
};
use protocol::smtp::server::{MailRequest, NulPolicy, RcptRequest};
use spool::{CommitError, SpoolEntry, SubmittedBody};
use tokio::runtime::Runtime;

use super::file::DropFile;
use super::notice::{DropNotice, NoticeComposer, RefusedMessage};
use crate::IntakeContext;
use crate::commit_notifier::single_ticket;
use crate::message_check::{MessageContent, MessageInCheck};
use crate::received_line::MessageSource;
use crate::transaction::{ReceivedDetails, RecipientRefusal, Transaction, message_entries};

/// The protocol of these messages in Received lines and in the log.
const PROTOCOL: &str = "local";

/// Submits messages from the drop folder.
pub struct DropSubmitter {
    /// The context that sessions use: directory, spool, limits.
    pub intake: Arc<IntakeContext>,
    /// Runs lookups; the scanner's thread waits for them.
    pub runtime: Runtime,
    /// Messages larger than this many bytes go to a file of their own.
    pub spill_above: u64,
    /// The most Received lines of a message; one with more is in a mail loop.
    pub received_max: u32,
    /// How to treat NUL in a message, as in sessions.
    pub nul: NulPolicy,
    /// Writes the notices.
    pub notices: Box<dyn NoticeComposer>,
}

/// The message is in the spool.
pub(super) struct Submitted;

/// Why it is not.
pub(super) enum DropSubmitError {
    /// A later try may succeed.
    Temporary(String),
    /// No try will.
    Permanent(String),
}

/// A message whose recipients are known.
struct ResolvedMessage {
    id: QueueId,
    /// With the recipients that get the message.
    envelope: Envelope,
    refused: RefusedRecipients,
    /// The Received line, and the fields that checks added.
    prefix: Vec<u8>,
    content: Vec<u8>,
    disposition: Disposition,
    /// The flags of `content`.
    flags: BodyFlags,
}

/// Recipients that cannot get the message, each once.
#[derive(Default)]
struct RefusedRecipients {
    recipients: Vec<Recipient>,
    /// Why, in the same order.
    replies: Vec<Reply>,
}

impl DropSubmitter {
    /// Submits a message. On success it is durable in the spool. It is not there if any recipient
    /// is deferred, if the server stops meanwhile, or if neither message nor notice has a
    /// recipient.
    pub(super) fn submit(
        &self,
        drop_file: DropFile,
        uid: u32,
        now: Timestamp,
        stopping: &AtomicBool,
    ) -> Result<Submitted, DropSubmitError> {
        self.runtime.block_on(self.submit_message(drop_file, uid, now, stopping))
    }

    async fn submit_message(
        &self,
        drop_file: DropFile,
        uid: u32,
        now: Timestamp,
        stopping: &AtomicBool,
    ) -> Result<Submitted, DropSubmitError> {
        let LoadRestrictions { intake, shortage, .. } = self.intake.load.restrictions();
        if intake == AllowedClients::None {
            return Err(DropSubmitError::Temporary("the server is draining its queue".into()));
        }
        if shortage.is_some() {
            return Err(DropSubmitError::Temporary("disk space or memory is low".into()));
        }
        let message = self.resolve_message(drop_file, uid, now, stopping).await?;
        let notice = self.notice(&message, now).await?;
        if let (true, None, Some((to, reply))) =
            (message.envelope.recipients.is_empty(), &notice, message.refused.iter().next())
        {
            let why = format!("no valid recipient, and no notice can be sent: <{}>: {reply}", to.address);
            return Err(DropSubmitError::Permanent(why));
        }
        let (entries, events) = self.prepare(message, notice)?;
        match self.intake.commit(entries, single_ticket(), events).await {
            Ok(()) => Ok(Submitted),
            Err(CommitError::TooLarge) => Err(DropSubmitError::Permanent(CommitError::TooLarge.to_string())),
            Err(error) => Err(DropSubmitError::Temporary(error.to_string())),
        }
    }

    async fn resolve_message(
        &self,
        drop_file: DropFile,
        uid: u32,
        now: Timestamp,
        stopping: &AtomicBool,
    ) -> Result<ResolvedMessage, DropSubmitError> {
        let mut drop_file = drop_file;
        if self.nul == NulPolicy::Strip {
            drop_file.content.retain(|octet| *octet != 0);
        }
        let mut flags = drop_file.body_flags();
        let DropFile { sender, recipients, ret, envid, body_type, smtputf8, mut content } = drop_file;
        let size = Some(content.len() as u64);
        let mail = MailRequest { sender, size, body_type, smtputf8, ret, envid, auth: None };
        let mut transaction = Transaction::new(&self.intake, Box::new(mail));
        transaction.waits_for_room = true;
        let mut refused = match self.content_refusal(&content) {
            Some(reply) => RefusedRecipients::all(recipients, &reply),
            None => self.add_recipients(&mut transaction, recipients, stopping).await?,
        };
        let (id, source) = (transaction.id, MessageSource::LocalProgram { uid });
        let line = transaction.received_line(&self.intake, source, PROTOCOL, now).to_line();
        let mut prefix = line.into_bytes();
        let check = (&mut prefix, &mut flags, &mut content);
        let disposition = self.check_message(&mut transaction, &mut refused, check).await?;
        let client = ClientInfo { address: None, helo: format!("uid-{uid}").into(), trusted: true };
        let mut envelope = transaction.into_envelope(client, false, now);
        envelope.smtputf8 |= is_international(&envelope);
        Ok(ResolvedMessage { id, envelope, refused, prefix, content, disposition, flags })
    }

    /// Runs the checks of the message, if it has recipients. A permanent refusal moves them all to
    /// `refused`.
    async fn check_message(
        &self,
        transaction: &mut Transaction,
        refused: &mut RefusedRecipients,
        (prefix, flags, content): (&mut Vec<u8>, &mut BodyFlags, &mut Vec<u8>),
    ) -> Result<Disposition, DropSubmitError> {
        let Some(mut checks) = self.intake.checks.start(Origin::LocalProgram) else {
            return Ok(Disposition::default());
        };
        if transaction.recipients().next().is_none() {
            return Ok(Disposition::default());
        }
        let (id, mail, recipients) = (transaction.id, transaction.mail.clone(), transaction.named_recipients().len());
        let session = SessionInfo {
            is_user: true,
            submitter: Submitter::LocalProgram,
            id: Some(id),
            sender: Some(mail.sender.as_ref()),
            mail: Some(&mail),
            recipients,
            ..SessionInfo::default()
        };
        let content = MessageContent::Memory(content);
        let mut message = MessageInCheck { context: &self.intake, transaction, prefix, flags, content };
        let reply = match checks.message(&session, &mut message).await {
            Ok(()) => return Ok(checks.disposition(message.transaction.recipients().next().is_some())),
            Err(MessageCheckError::NotEdited(reply) | MessageCheckError::Refused(Refusal { reply, .. })) => reply,
        };
        if !reply.is_permanent() {
            return Err(DropSubmitError::Temporary(reply.to_string()));
        }
        refused.add(transaction.take_recipients(), &reply);
        Ok(Disposition::default())
    }

    /// Why the message is refused for all recipients.
    fn content_refusal(&self, content: &[u8]) -> Option<Reply> {
        if count_received_lines(content) > self.received_max as usize {
            let text = "Mail loop detected: too many Received lines";
            return Some(Reply::new(550, EnhancedCode(5, 4, 6), text));
        }
        let has_nul = self.nul == NulPolicy::Refuse && content.contains(&0);
        has_nul.then(|| Reply::new(550, EnhancedCode(5, 6, 0), "The message contains NUL"))
    }

    /// RCPT, for each recipient once. A deferred one holds up the whole message.
    async fn add_recipients(
        &self,
        transaction: &mut Transaction,
        recipients: Vec<RcptRequest>,
        stopping: &AtomicBool,
    ) -> Result<RefusedRecipients, DropSubmitError> {
        let (mut refused, mut named) = (RefusedRecipients::default(), HashSet::new());
        for request in recipients {
            if stopping.load(Relaxed) {
                return Err(DropSubmitError::Temporary("the server is stopping".into()));
            }
            if !named.insert(request.address.clone()) {
                continue;
            }
            let recipient = self.intake.normalize_address(&request.address, None).await;
            if let Err(refusal) = transaction.add_recipient(&self.intake, &recipient, &request, true).await {
                let reply = final_reply(refusal, &request.address)?;
                refused.push(request, reply);
            }
        }
        Ok(refused)
    }

    /// The notice for the sender and its queue id, if it can be sent.
    async fn notice(
        &self,
        message: &ResolvedMessage,
        now: Timestamp,
    ) -> Result<Option<(QueueId, DropNotice)>, DropSubmitError> {
        let ResolvedMessage { id, refused, content, .. } = message;
        if refused.recipients.is_empty() {
            return Ok(None);
        }
        let envelope = Envelope { recipients: refused.recipients.clone(), ..message.envelope.clone() };
        let refused = RefusedMessage { id: *id, envelope: &envelope, replies: &refused.replies, content, now };
        let Some(address) = self.notices.notified_address(&refused) else { return Ok(None) };
        let recipients = self.notice_recipients(&address).await?;
        if recipients.is_empty() {
            return Ok(None);
        }
        let notice_id = self.intake.spool.new_id_in_lane_of(*id);
        Ok(self.notices.compose(&refused, notice_id, recipients).await.map(|notice| (notice_id, notice)))
    }

    /// The recipients of a notice. None if there is no such user; then the failure is only logged.
    async fn notice_recipients(&self, sender: &Address) -> Result<Vec<Recipient>, DropSubmitError> {
        let recipient = |address, original| Recipient {
            address,
            original,
            notify: DsnNotify::NEVER,
            orcpt: None,
            is_forwarded: false,
        };
        let asked = self.intake.normalize_address(sender, None).await;
        match self.intake.resolve_recipient(&asked).await {
            AddressResolution::Local(finals) | AddressResolution::Returned(finals) => {
                Ok(finals.into_iter().map(|to| recipient(to.address, to.original)).collect())
            }
            AddressResolution::Remote(address) => Ok(vec![recipient(address, None)]),
            AddressResolution::Unavailable(why) => {
                Err(DropSubmitError::Temporary(format!("cannot look up the sender <{sender}>: {why}")))
            }
            AddressResolution::Unknown
            | AddressResolution::NotReturned(_)
            | AddressResolution::TooDeep
            | AddressResolution::TooMany => Ok(Vec::new()),
        }
    }

    /// What to commit, and what to log then.
    fn prepare(
        &self,
        message: ResolvedMessage,
        notice: Option<(QueueId, DropNotice)>,
    ) -> Result<(Vec<SpoolEntry>, Vec<MailEvent>), DropSubmitError> {
        let ResolvedMessage { id, envelope, refused, prefix, content, disposition, mut flags } = message;
        let details = ReceivedDetails {
            size: (prefix.len() + content.len()) as u64,
            protocol: PROTOCOL,
            security: None,
            user: None,
            header: mail::find_logged_header(&content, self.intake.logs_subjects),
            auth: None,
        };
        let received = details.into_event(id, &envelope);
        let bounced = refused.into_events(id, &envelope.sender, notice.as_ref().map(|(notice_id, _)| *notice_id));
        let (mut entries, mut events) = (Vec::new(), Vec::new());
        let is_discarded = disposition.discarded_by.is_some();
        if let Some(check) = disposition.discarded_by {
            self.intake.log_discarded(id, &envelope, check);
        } else if !envelope.recipients.is_empty() {
            flags.eight_bit |= !prefix.is_ascii();
            let content = self.store(id, prefix, content)?;
            let (message, held) = message_entries(id, envelope, content, flags, disposition.held);
            entries.extend(message);
            events.extend(held);
        }
        if let Some((id, DropNotice { envelope, prefix, content, flags, received })) = notice {
            let content = SubmittedBody::Memory { prefix, body: content };
            entries.push(SpoolEntry::Message { id, envelope, content, flags });
            events.push(received);
        }
        if !is_discarded {
            events.push(received);
        }
        events.extend(bounced);
        Ok((entries, events))
    }

    /// The message as the spool takes it.
    fn store(&self, id: QueueId, prefix: Vec<u8>, content: Vec<u8>) -> Result<SubmittedBody, DropSubmitError> {
        if (prefix.len() + content.len()) as u64 <= self.spill_above {
            return Ok(SubmittedBody::Memory { prefix, body: content });
        }
        let spilled = self.intake.spool.create_spill_file(id).and_then(|mut spill| {
            spill.append(&content)?;
            Ok(spill.finish(&prefix)?)
        });
        spilled
            .map(SubmittedBody::Spilled)
            .map_err(|error| DropSubmitError::Temporary(format!("cannot write it to a file: {error}")))
    }
}

impl RefusedRecipients {
    /// All recipients, for the same reason.
    fn all(recipients: Vec<RcptRequest>, reply: &Reply) -> RefusedRecipients {
        let mut refused = RefusedRecipients::default();
        recipients.into_iter().for_each(|request| refused.push(request, reply.clone()));
        refused
    }

    /// Adds recipients that were admitted before, for the same reason.
    fn add(&mut self, recipients: Vec<Recipient>, reply: &Reply) {
        self.replies.extend(recipients.iter().map(|_| reply.clone()));
        self.recipients.extend(recipients);
    }

    fn push(&mut self, request: RcptRequest, reply: Reply) {
        let RcptRequest { address, notify, orcpt } = request;
        self.recipients.push(Recipient { address, original: None, notify, orcpt, is_forwarded: false });
        self.replies.push(reply);
    }

    fn iter(&self) -> impl Iterator<Item = (&Recipient, &Reply)> {
        self.recipients.iter().zip(&self.replies)
    }

    /// The events for the log; `bounce` is the notice.
    fn into_events(self, id: QueueId, sender: &Option<Address>, bounce: Option<QueueId>) -> Vec<MailEvent> {
        let event = |(recipient, reason): (Recipient, Reply)| MailEvent::Bounced {
            id,
            sender: sender.clone(),
            recipient: recipient.address,
            transport: "none".into(),
            relay: None,
            reason,
            bounce,
        };
        self.recipients.into_iter().zip(self.replies).map(event).collect()
    }
}

/// The reply for the notice, or why the file stays: see the table above.
fn final_reply(refusal: RecipientRefusal, recipient: &Address) -> Result<Reply, DropSubmitError> {
    match refusal {
        RecipientRefusal::Unavailable { address, why } => {
            Err(DropSubmitError::Temporary(format!("cannot look up <{address}>: {why}")))
        }
        RecipientRefusal::TooMany(reply) => Ok(Reply { code: 550, enhanced: Some(EnhancedCode(5, 5, 3)), ..reply }),
        RecipientRefusal::Denied(reply) if reply.code < 500 => {
            Err(DropSubmitError::Temporary(format!("<{recipient}>: {reply}")))
        }
        RecipientRefusal::Denied(reply) => Ok(reply),
    }
}

/// Whether an address is not ASCII.
fn is_international(envelope: &Envelope) -> bool {
    let mut addresses = envelope.sender.iter().chain(envelope.recipients.iter().map(|to| &to.address));
    addresses.any(|address| !address.is_ascii())
}

/// Counts the Received lines of the header.
fn count_received_lines(message: &[u8]) -> usize {
    let lines = message.split_inclusive(|byte| *byte == b'\n').take_while(|line| *line != b"\r\n");
    let is_trace = |line: &&[u8]| line.get(..9).is_some_and(|name| name.eq_ignore_ascii_case(b"received:"));
    lines.filter(is_trace).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_lines_of_the_header_are_counted() {
        let message = b"Received: a\r\n b\r\nRECEIVED:\r\nSubject: Received:\r\n\r\nReceived: c\r\n";
        assert_eq!(count_received_lines(message), 2);
        assert_eq!(count_received_lines(b""), 0);
    }
}
