//! What every message goes through on its way into the spool, whether an SMTP session or the [drop
//! folder](crate::drop_folder) brings it. Both admit recipients here, so both give the same answer.
//!
//! | step | here | only in a session | only in the drop folder |
//! |---|---|---|---|
//! | MAIL | the queue id | load, rates, access rules, sender of a user | load |
//! | RCPT | directory, right to relay, source routes, quota, number of recipients | access rules | |
//! | data | the Received line | streaming, limits, missing fields | loops, NUL |
//! | end of data | checks of the message | | |
//! | commit | envelope, spool, log, holding | the reply | the notice |
//!
//! Nothing here replies: the caller turns a [`RecipientRefusal`] into a reply, a later try or a
//! notice.

use std::time::Instant;

use filter::SessionInfo;
use lookup::directory::{AddressResolution, LocalDomain, ResolvedRecipient};
use mail::{
    Address, BodyFlags, ClientInfo, Envelope, LoggedHeader, MailEvent, QueueId, Recipient, Reply, Timestamp, TlsInfo,
};
use protocol::smtp::server::{MailRequest, RcptRequest};
use spool::{CommitError, RecipientState, SpoolEntry, SubmittedBody};

use crate::commit_notifier::CommitTicket;
use crate::received_line::{MessageSource, ReceivedLine};
use crate::recipients::{RecipientList, TooManyRecipients};
use crate::{IntakeContext, recipient_lookup, replies};

/// A message from MAIL on: its envelope so far.
pub(crate) struct Transaction {
    pub(crate) id: QueueId,
    pub(crate) mail: Box<MailRequest>,
    recipients: RecipientList,
    /// Accepts mail for a mailbox that is full for now: it waits in the queue. Clients are told to
    /// try again instead.
    pub(crate) waits_for_room: bool,
    /// The content filter sends it back: its aliases are expanded, and it is not filtered again.
    pub(crate) is_from_content_filter: bool,
}

/// Why a recipient is not admitted.
#[derive(Debug)]
pub(crate) enum RecipientRefusal {
    /// The directory cannot look up this address; the reason is not for the client.
    Unavailable { address: Address, why: String },
    /// Beyond a limit on the recipients of one transaction; the client may send to the rest of them
    /// in another one.
    TooMany(Reply),
    /// Anything else.
    Denied(Reply),
}

/// What the log has of a message beside its envelope.
pub(crate) struct ReceivedDetails {
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) protocol: &'static str,
    pub(crate) security: Option<TlsInfo>,
    pub(crate) user: Option<Box<str>>,
    pub(crate) header: LoggedHeader,
    /// What checks found about the sender.
    pub(crate) auth: Option<Box<str>>,
}

impl From<Reply> for RecipientRefusal {
    fn from(reply: Reply) -> RecipientRefusal {
        RecipientRefusal::Denied(reply)
    }
}

impl RecipientRefusal {
    /// The reply to a client. Clients are not told why the directory failed: that is logged.
    pub(crate) fn into_reply(self, context: &IntakeContext) -> Reply {
        match self {
            RecipientRefusal::Unavailable { address, why } => {
                context.operator_log.log_line(format_args!("cannot look up <{address}> in the directory: {why}"));
                replies::DIRECTORY_UNAVAILABLE
            }
            RecipientRefusal::TooMany(reply) | RecipientRefusal::Denied(reply) => reply,
        }
    }
}

impl Transaction {
    /// MAIL, once the caller has accepted it.
    pub(crate) fn new(context: &IntakeContext, mail: Box<MailRequest>) -> Transaction {
        Transaction {
            id: context.spool.new_id(),
            mail,
            recipients: RecipientList::default(),
            waits_for_room: false,
            is_from_content_filter: false,
        }
    }

    /// RCPT: adds what `recipient` resolves to. It is the address of the request as
    /// [`IntakeContext::normalize_address`] returned it. `trusted` clients may relay.
    pub(crate) async fn add_recipient(
        &mut self,
        context: &IntakeContext,
        recipient: &Address,
        request: &RcptRequest,
        trusted: bool,
    ) -> Result<(), RecipientRefusal> {
        let resolution = match self.is_from_content_filter {
            true => context.take_as_resolved(recipient).await,
            false => context.resolve_recipient(recipient).await,
        };
        let resolved = match resolution {
            AddressResolution::Local(resolved) => resolved,
            AddressResolution::Unknown => return Err(replies::unknown_user(&request.address).into()),
            AddressResolution::Remote(address) => vec![context.remote_recipient(address, trusted)?],
            AddressResolution::Returned(resolved) => self.returned_recipients(context, resolved, &request.address)?,
            AddressResolution::NotReturned(refusal) => {
                return Err(replies::not_returned(&request.address, refusal).into());
            }
            AddressResolution::Unavailable(why) => return Err(unavailable(recipient, why)),
            AddressResolution::TooDeep => return Err(replies::ALIAS_TOO_DEEP.into()),
            AddressResolution::TooMany => return Err(RecipientRefusal::TooMany(replies::ALIAS_TOO_MANY)),
        };
        if !trusted {
            context.refuse_source_routes(&resolved).await?;
        }
        match context.check_quota(&request.address, &resolved, self.mail.size).await {
            Err(full) if !(self.waits_for_room && full.is_transient()) => return Err(full.into()),
            Ok(()) | Err(_) => {}
        }
        let added = self.recipients.add(resolved, request, context.expanded_recipients_max);
        added.map_err(|TooManyRecipients| RecipientRefusal::TooMany(replies::RECIPIENTS_FULL))
    }

    /// The recipients of a notice to the rewritten sender `address`. Anything but a notice has another
    /// way to the original sender, and would make us a relay for everyone who knows the address.
    fn returned_recipients(
        &self,
        context: &IntakeContext,
        resolved: Vec<ResolvedRecipient>,
        address: &Address,
    ) -> Result<Vec<ResolvedRecipient>, Reply> {
        if self.mail.sender.is_some() {
            return Err(replies::only_notices(address));
        }
        resolved.iter().filter(|found| !found.local).try_for_each(|found| context.check_qualified(&found.address))?;
        Ok(resolved)
    }

    /// Whether the sender is rewritten for recipients in other domains: the message is a stranger's,
    /// and an alias or a check sends it on.
    ///
    /// # Errors
    ///
    /// The directory cannot say whether the domain of the sender is ours.
    pub(crate) async fn is_forwarded(&self, context: &IntakeContext, trusted: bool) -> Result<bool, Reply> {
        let (Some(is_rewritten), Some(sender)) = (&context.rewritten_senders, &self.mail.sender) else {
            return Ok(false);
        };
        if trusted || !is_rewritten(sender.domain()) || !self.recipients().any(|recipient| recipient.is_forwarded) {
            return Ok(false);
        }
        // Boxed, to keep sessions small.
        let ours = Box::pin(context.directory.domain(sender.domain())).await.map(|domain| domain.is_some());
        ours.map(|ours| !ours).map_err(|why| unavailable(sender, why).into_reply(context))
    }

    /// The recipients so far.
    pub(crate) fn recipients(&self) -> impl Iterator<Item = &Recipient> {
        self.recipients.iter()
    }

    /// The recipients so far, before alias expansion.
    pub(crate) fn named_recipients(&self) -> Vec<&Address> {
        self.recipients.named()
    }

    /// The number of recipients so far.
    pub(crate) fn recipient_count(&self) -> usize {
        self.recipients.len()
    }

    /// What checks are told of a session, with its transaction but without the number of recipients.
    pub(crate) fn describe<'a>(&'a self, session: SessionInfo<'a>) -> SessionInfo<'a> {
        SessionInfo { id: Some(self.id), sender: Some(self.mail.sender.as_ref()), mail: Some(&self.mail), ..session }
    }

    /// Whether the recipients from this number on all have mailboxes here; None: there are none.
    pub(crate) fn are_local_from(&self, count: usize) -> Option<bool> {
        let mut added = self.recipients.iter().skip(count).peekable();
        added.peek()?;
        Some(added.all(|recipient| !recipient.is_forwarded))
    }

    /// Removes the recipients that were added last, from this number on.
    pub(crate) fn remove_recipients_from(&mut self, count: usize) {
        self.recipients.truncate(count);
    }

    /// Takes the recipients: the message is for nobody now.
    pub(crate) fn take_recipients(&mut self) -> Vec<Recipient> {
        std::mem::take(&mut self.recipients).into_list()
    }

    /// Removes an address with all that it resolved to.
    pub(crate) fn remove_recipient(&mut self, address: &Address) {
        self.recipients.remove(address);
    }

    /// The Received line. `protocol` is the word after "with".
    pub(crate) fn received_line<'a>(
        &'a self,
        context: &'a IntakeContext,
        source: MessageSource<'a>,
        protocol: &'static str,
        now: Timestamp,
    ) -> ReceivedLine<'a> {
        let recipient = self.recipients.only().map(|only| only.original.as_ref().unwrap_or(&only.address));
        ReceivedLine { source, hostname: &context.hostname, protocol, id: self.id, recipient, now }
    }

    /// The envelope of the complete message; `is_forwarded` as [`Transaction::is_forwarded`] says.
    pub(crate) fn into_envelope(self, client: ClientInfo, is_forwarded: bool, now: Timestamp) -> Envelope {
        let MailRequest { sender, size: _, body_type, smtputf8, ret, envid, auth: _ } = *self.mail;
        let mut recipients = self.recipients.into_list();
        recipients.iter_mut().for_each(|recipient| recipient.is_forwarded &= is_forwarded);
        let content_filter = !self.is_from_content_filter;
        Envelope { sender, recipients, accepted_at: now, client, body_type, smtputf8, ret, envid, content_filter }
    }
}

impl ReceivedDetails {
    /// The event for the log.
    pub(crate) fn into_event(self, id: QueueId, envelope: &Envelope) -> MailEvent {
        let ReceivedDetails { size, protocol, security, user, header, auth } = self;
        MailEvent::Received {
            id,
            client: envelope.client.address,
            helo: envelope.client.helo.clone(),
            sender: envelope.sender.clone(),
            recipients: envelope.recipients.len(),
            size,
            protocol,
            security,
            user,
            header,
            auth,
        }
    }
}

impl IntakeContext {
    /// Submits entries that belong together, waits for the result, and writes the events once the
    /// entries are durable.
    pub(crate) async fn commit(
        &self,
        entries: Vec<SpoolEntry>,
        (done, answer): CommitTicket,
        events: impl IntoIterator<Item = MailEvent>,
    ) -> Result<(), CommitError> {
        let started = Instant::now();
        self.spool.submit(entries, done);
        // The result is missing only if the spool is closed.
        answer.await.unwrap_or(Err(CommitError::Closed))?;
        self.commit_micros.record(started.elapsed().as_micros() as u64);
        events.into_iter().for_each(|event| self.event_log.write(event));
        Ok(())
    }

    /// Logs a message that a check discarded.
    pub(crate) fn log_discarded(&self, id: QueueId, envelope: &Envelope, check: Box<str>) {
        self.event_log.write(MailEvent::Discarded {
            id,
            client: envelope.client.address,
            helo: envelope.client.helo.clone(),
            sender: envelope.sender.clone(),
            check,
        });
    }

    /// A recipient in a remote domain: only for relay networks, users and local programs. A local
    /// alias may lead elsewhere for any client: its target is our decision.
    fn remote_recipient(&self, address: Address, trusted: bool) -> Result<ResolvedRecipient, Reply> {
        if !trusted {
            return Err(if self.relaying_is_deferred { replies::RELAY_DEFERRED } else { replies::RELAY_DENIED });
        }
        self.check_qualified(&address)?;
        Ok(ResolvedRecipient { address, original: None, local: false })
    }

    fn check_qualified(&self, address: &Address) -> Result<(), Reply> {
        match recipient_lookup::is_dotless(address) && !(self.routed_domains)(address.domain()) {
            true => Err(replies::NOT_QUALIFIED),
            false => Ok(()),
        }
    }

    /// Refuses source routes through a domain we relay for, such as `victim%elsewhere.example@ours`
    /// (RFC 1123 section 5.2.16): a next hop that trusts us might follow them. The target of a
    /// local alias and an entry in a table of mailboxes are not source routes, but an address tag
    /// is chosen by the sender.
    async fn refuse_source_routes(&self, resolved: &[ResolvedRecipient]) -> Result<(), RecipientRefusal> {
        for found in resolved.iter().filter(|found| found.original.is_none()) {
            let domain = self.directory.domain(found.address.domain()).await;
            let domain = domain.map_err(|why| unavailable(&found.address, why))?;
            if domain.is_some_and(|domain| has_source_route(&found.address, &domain)) {
                return Err(replies::SOURCE_ROUTE_DENIED.into());
            }
        }
        Ok(())
    }
}

/// What to commit for a message, and the events of its held recipients. A held message is held for
/// all its recipients from the start, in the same batch.
pub(crate) fn message_entries(
    id: QueueId,
    envelope: Envelope,
    content: SubmittedBody,
    flags: BodyFlags,
    is_held: bool,
) -> (Vec<SpoolEntry>, Vec<MailEvent>) {
    let held = if is_held { envelope.recipients.as_slice() } else { &[] };
    let events = held.iter().map(|to| MailEvent::Held { id, recipient: to.address.clone() }).collect();
    let states: Vec<_> = (0..).zip(held).map(|(ordinal, _)| (ordinal, RecipientState::Held { attempts: 0 })).collect();
    let mut entries = vec![SpoolEntry::Message { id, envelope, content, flags }];
    if !states.is_empty() {
        entries.push(SpoolEntry::Outcome { id, recipients: states, bounce: None });
    }
    (entries, events)
}

fn unavailable(address: &Address, why: String) -> RecipientRefusal {
    RecipientRefusal::Unavailable { address: address.clone(), why }
}

fn has_source_route(address: &Address, domain: &LocalDomain) -> bool {
    let name = address.unquoted_local_part();
    let unconfirmed = match domain.mailboxes {
        None => &*name,
        Some(_) => domain.delimiter.and_then(|delimiter| name.find(delimiter)).map_or("", |tag| &name[tag..]),
    };
    !domain.is_final && unconfirmed.contains(['@', '%', '!'])
}
