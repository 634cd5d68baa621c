//! The session of one client: asks the directory, policy and spool what the protocol needs to know,
//! and collects the transaction.

use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use credentials::PendingLogin;
use lookup::directory::{AddressResolution, LocalDomain, ResolvedRecipient};
use mail::{Address, BodyFlags, ClientInfo, Envelope, MailEvent, QueueId, Reply, Timestamp, TlsInfo};
use net::{ConnectionHandler, TlsServer};
use protocol::sasl::{self, Mechanism, SaslOutcome};
use protocol::smtp::server::{
    BodySink, MailRequest, MessageEnd, RcptRequest, SessionAction, SessionAnswer, SessionQuestion, SmtpPeer,
    SmtpSession,
};
use spool::{CommitError, RecipientState, SpoolEntry};

use crate::access::AccessStage;
use crate::access_state::{AccessDenied, AccessState};
use crate::body::IncomingBody;
use crate::header_completion::HeaderCompletion;
use crate::received_line::ReceivedLine;
use crate::recipients::{RecipientList, TooManyRecipients};
use crate::{ClientState, CommitNotifier, IntakeContext, ListenerContext, ResourceRefusal, recipient_lookup, replies};

/// A session and its transaction.
pub(crate) struct IntakeSession {
    pub(crate) context: Arc<IntakeContext>,
    commit_notifier: CommitNotifier,
    pub(crate) session: SmtpSession,
    pub(crate) client: ClientState,
    /// The access rule that denied the current command, for the log.
    pub(crate) denied_by: Option<Box<str>>,
    acceptor: Option<Arc<TlsServer>>,
    adds_missing_headers: bool,
    /// A SCRAM proof in progress, and where to report its result. Boxed: few clients log in this
    /// way.
    proof: Option<Box<PendingLogin>>,
    /// Boxed: most sessions are in clear text.
    security: Option<Box<TlsInfo>>,
    /// From the accepted MAIL to the reply at the end of data. Boxed: most sessions are idle.
    transaction: Option<Box<Transaction>>,
}

struct Transaction {
    id: QueueId,
    mail: MailRequest,
    recipients: RecipientList,
    /// The result of the access rules for the sender and the recipients so far.
    access_state: AccessState,
    /// From DATA on.
    body: Option<IncomingBody>,
    /// From DATA to the end of the header, if missing fields are to be added.
    header_completion: Option<Box<HeaderCompletion>>,
    /// The Received line may contain non-ASCII characters (RFC 6531 section 3.7.3).
    trace_is_ascii: bool,
    /// The body could not be written: the reply at the end of data. No more of it is stored.
    failed: Option<Reply>,
}

/// Receives the decoded bytes. Without a transaction the protocol decodes none.
struct Sink<'a>(Option<&'a mut Transaction>);

impl BodySink for Sink<'_> {
    fn append(&mut self, bytes: &[u8]) {
        if let Some(transaction) = &mut self.0
            && transaction.failed.is_none()
            && let Some(body) = &mut transaction.body
        {
            match &mut transaction.header_completion {
                None => body.append(bytes),
                Some(header) => {
                    if header.append(bytes) {
                        transaction.complete(false);
                    }
                }
            }
        }
    }
}

impl Transaction {
    /// Writes the header that was held back, once it or the message has ended.
    fn complete(&mut self, ended: bool) {
        if let (Some(header), Some(body)) = (self.header_completion.take(), &mut self.body) {
            body.append(&header.finish(ended));
        }
    }
}

impl IntakeSession {
    /// With `security`, the connection has used TLS from the start.
    pub(crate) fn new(
        listener: ListenerContext,
        peer: SmtpPeer,
        client: ClientState,
        security: Option<TlsInfo>,
    ) -> Self {
        let ListenerContext {
            intake: context,
            smtp_config: machine,
            commit_notifier: answers,
            acceptor,
            proxy_protocol_networks: _,
            adds_missing_headers: completes,
        } = listener;
        let speaks_for_others = peer.address.is_some_and(|address| context.proxy_networks.contains(address));
        let asks_of_greetings =
            context.access_rules.as_ref().is_some_and(|access| access.has_rules_at(AccessStage::Helo));
        let mut session = SmtpSession::new(machine, peer, net::steady_now());
        if asks_of_greetings {
            session = session.with_hello_check();
        }
        if speaks_for_others {
            session = session.with_xclient();
        }
        let security = security.map(Box::new);
        let (denied_by, proof, transaction) = (None, None, None);
        IntakeSession {
            context,
            commit_notifier: answers,
            session,
            client,
            denied_by,
            acceptor,
            adds_missing_headers: completes,
            proof,
            security,
            transaction,
        }
    }

    async fn answer(&mut self, question: SessionQuestion) -> SessionAnswer {
        let refused = match question {
            SessionQuestion::Hello(name) => self.check_helo(&name).await,
            SessionQuestion::Identity(identity) => self.switch_client(&identity).await,
            SessionQuestion::Mail(request) => self.begin_transaction(request).await,
            SessionQuestion::Recipient(request) => self.add_recipient(request).await,
            SessionQuestion::Data => self.begin_body().await,
            SessionQuestion::Message(end) => return SessionAnswer::Done(self.commit_message(end).await),
            SessionQuestion::Login(request) => {
                // The result of an earlier proof would have been reported by now.
                self.proof = None;
                return self.context.verify_password(&request, self.session.peer().address).await;
            }
            SessionQuestion::Keys(request) => {
                let (answer, pending) = self.context.scram_keys(&request, self.session.peer().address).await;
                self.proof = pending.map(Box::new);
                return answer;
            }
        };
        refused.map_or_else(SessionAnswer::Refuse, |()| SessionAnswer::Accept)
    }

    /// MAIL: the last point at which load, or the client's rate limit, can refuse a message.
    async fn begin_transaction(&mut self, mail: MailRequest) -> Result<(), Reply> {
        self.context.admit_message(&self.client.permit).map_err(ResourceRefusal::reply)?;
        let access_state = self.check_sender_access(&mail).await?;
        if let Some(user) = self.session.user() {
            self.context.check_sender(user, mail.sender.as_ref()).await?;
        }
        let id = self.context.spool.new_id();
        self.transaction = Some(Box::new(Transaction {
            id,
            mail,
            recipients: RecipientList::default(),
            access_state,
            body: None,
            header_completion: None,
            trace_is_ascii: true,
            failed: None,
        }));
        Ok(())
    }

    /// RCPT: resolves the recipient, and checks whether the client may send to it and whether the
    /// mailbox has room.
    async fn add_recipient(&mut self, request: RcptRequest) -> Result<(), Reply> {
        let recipient = self.context.normalize_address(&request.address, self.client.local_address).await;
        let recipient = recipient.as_ref();
        let judged = self.check_recipient_access(recipient).await;
        let access_state = judged.map_err(|denied| denied.into_reply(&mut self.denied_by))?;
        let resolved = match self.context.resolve_recipient(recipient).await {
            AddressResolution::Local(resolved) => resolved,
            AddressResolution::Unknown => return Err(replies::unknown_user(&request.address)),
            AddressResolution::Remote(address) => vec![self.remote_recipient(address)?],
            AddressResolution::Unavailable(why) => return Err(self.directory_unavailable(recipient, &why)),
            AddressResolution::TooDeep => return Err(replies::ALIAS_TOO_DEEP),
            AddressResolution::TooMany => return Err(replies::ALIAS_TOO_MANY),
        };
        if !self.is_trusted() {
            self.refuse_source_routes(&resolved).await?;
        }
        let size = self.transaction.as_ref().and_then(|transaction| transaction.mail.size);
        self.context.check_quota(&request.address, &resolved, size).await?;
        let Some(transaction) = &mut self.transaction else { return Ok(()) };
        let added = transaction.recipients.add(resolved, &request, self.context.expanded_recipients_max);
        added.map_err(|TooManyRecipients| replies::RECIPIENTS_FULL)?;
        transaction.access_state.held |= access_state.held;
        Ok(())
    }

    /// Evaluates the access rules for a recipient, unless the sender was accepted.
    async fn check_recipient_access(&self, recipient: &Address) -> Result<AccessState, AccessDenied> {
        match &self.transaction {
            Some(transaction) if !transaction.access_state.accepted => {
                self.check_recipient_rules(transaction.mail.sender.as_ref(), recipient).await
            }
            _ => Ok(AccessState::default()),
        }
    }

    /// Whether the client may relay and use the memory reserved for trusted clients.
    fn is_trusted(&self) -> bool {
        self.client.trusted || self.session.user().is_some()
    }

    /// AUTH has ended. Settles a pending SCRAM proof, which counts like a password check, and logs
    /// the login.
    fn finish_login(&mut self, mechanism: Mechanism, user: Box<str>, outcome: &SaslOutcome) {
        match (self.proof.take(), outcome) {
            (Some(pending), SaslOutcome::Accepted { .. }) if mechanism == Mechanism::ScramSha256 => {
                pending.record_success()
            }
            (Some(pending), SaslOutcome::Refused(sasl::SaslRefusal::Credentials)) => pending.record_failure(),
            // A dropped proof counts as failed, but not as a wrong password.
            _ => {}
        }
        self.context.log_login(self.session.peer().address, self.session.helo(), mechanism, user, outcome);
    }

    /// A recipient in a remote domain: only for relay networks and users. A local alias may lead
    /// elsewhere for any client: its target is our decision.
    fn remote_recipient(&self, address: Address) -> Result<ResolvedRecipient, Reply> {
        if !self.is_trusted() {
            let deferred = self.context.relaying_is_deferred;
            return Err(if deferred { replies::RELAY_DEFERRED } else { replies::RELAY_DENIED });
        }
        if recipient_lookup::is_dotless(&address) && !(self.context.routed_domains)(address.domain()) {
            return Err(replies::NOT_QUALIFIED);
        }
        Ok(ResolvedRecipient { address, original: None, local: false })
    }

    /// Logs the reason.
    fn directory_unavailable(&self, recipient: &Address, why: &str) -> Reply {
        self.context.operator_log.log_line(format_args!("cannot look up <{recipient}> in the directory: {why}"));
        replies::DIRECTORY_UNAVAILABLE
    }

    /// Refuses source routes through a domain we relay for, such as `victim%elsewhere.example@ours`
    /// (RFC 1123 section 5.2.16): a next hop that trusts us might follow them. The target of a
    /// local alias and an entry in a table of mailboxes are not source routes, but an address tag
    /// is chosen by the sender.
    async fn refuse_source_routes(&self, resolved: &[ResolvedRecipient]) -> Result<(), Reply> {
        for found in resolved.iter().filter(|found| found.original.is_none()) {
            let domain = self.context.directory.domain(found.address.domain()).await;
            let domain = domain.map_err(|why| self.directory_unavailable(&found.address, &why))?;
            if domain.is_some_and(|domain| has_source_route(&found.address, &domain)) {
                return Err(replies::SOURCE_ROUTE_DENIED);
            }
        }
        Ok(())
    }

    /// DATA: reserves memory for the body. The Received line comes first, so that the stored
    /// message is one range.
    async fn begin_body(&mut self) -> Result<(), Reply> {
        let is_trusted = self.is_trusted();
        let Some(transaction) = &mut self.transaction else { return Err(replies::BODY_UNWRITABLE) };
        let memory = self.context.body_memory.reserve(is_trusted, self.context.message_wait_max).await;
        let body = transaction.body.insert(memory.ok_or(replies::MEMORY_SHORT)?);
        let recipient = transaction.recipients.only().map(|only| only.original.as_ref().unwrap_or(&only.address));
        let received = ReceivedLine {
            helo: self.session.helo(),
            client: self.session.peer().address,
            hostname: &self.context.hostname,
            protocol: self.session.protocol_name(),
            security: self.security.as_deref().copied(),
            user: self
                .session
                .user()
                .filter(|_| self.context.logins.as_ref().is_some_and(|logins| logins.in_received_line)),
            id: transaction.id,
            recipient,
            now: now(),
        };
        let line = received.to_line();
        transaction.trace_is_ascii = line.is_ascii();
        body.append(line.as_bytes());
        if self.adds_missing_headers {
            let completion = HeaderCompletion::new(transaction.id, &self.context.hostname, received.now);
            transaction.header_completion = Some(Box::new(completion));
        }
        Ok(())
    }

    /// End of data: submits the message to the spool and waits for the result.
    async fn commit_message(&mut self, end: MessageEnd) -> Reply {
        let Some(mut transaction) = self.transaction.take() else { return replies::BODY_UNWRITABLE };
        transaction.complete(true);
        let Transaction { id, mail, recipients, access_state, body, header_completion: _, trace_is_ascii, failed } =
            *transaction;
        if let Some(reply) = failed {
            return reply;
        }
        let Some(mut body) = body else { return replies::BODY_UNWRITABLE };
        let (recipients, size) = (recipients.into_list(), body.len());
        let header = body.logged_header(self.context.logs_subjects);
        let (content, _held) = match body.finish().await {
            Ok(finished) => finished,
            Err(error) => return self.body_unwritable(id, &error),
        };
        let (address, trusted) = (self.session.peer().address, self.is_trusted());
        let client = ClientInfo { address, helo: self.session.helo().into(), trusted };
        let event = MailEvent::Received {
            id,
            client: client.address,
            helo: client.helo.clone(),
            sender: mail.sender.clone(),
            recipients: recipients.len(),
            size,
            protocol: self.session.protocol_name(),
            security: self.security.as_deref().copied(),
            user: self.session.user().map(Into::into),
            header,
        };
        let envelope = Envelope {
            sender: mail.sender,
            recipients,
            accepted_at: now(),
            client,
            body_type: mail.body_type,
            smtputf8: mail.smtputf8,
            ret: mail.ret,
            envid: mail.envid,
        };
        let flags = BodyFlags { eight_bit: end.flags.eight_bit || !trace_is_ascii, ..end.flags };
        let is_held = access_state.held || self.is_held();
        let held = if is_held { envelope.recipients.iter().map(|to| to.address.clone()).collect() } else { Vec::new() };
        match self.commit(id, SpoolEntry::Message { id, envelope, content, flags }, held.len()).await {
            Ok(()) => {
                self.context.event_log.write(event);
                held.into_iter().for_each(|recipient| self.context.event_log.write(MailEvent::Held { id, recipient }));
                replies::queued(id)
            }
            Err(error) => replies::commit_failed(&error),
        }
    }

    /// If the message is held, all its `held` recipients are held from the start, in the same
    /// batch.
    async fn commit(&self, id: QueueId, message: SpoolEntry, held: usize) -> Result<(), CommitError> {
        let mut entries = vec![message];
        if held > 0 {
            let recipients = (0..).take(held).map(|ordinal| (ordinal, RecipientState::Held { attempts: 0 })).collect();
            entries.push(SpoolEntry::Outcome { id, recipients, bounce: None });
        }
        let (done, answer) = self.commit_notifier.register();
        self.context.spool.submit(entries, done);
        // The result is missing only if the spool is closed.
        answer.await.unwrap_or(Err(CommitError::Closed))
    }

    fn body_unwritable(&self, id: QueueId, error: &io::Error) -> Reply {
        self.context.operator_log.log_line(format_args!("cannot write the body of {id} to a file: {error}"));
        replies::body_unwritable(error)
    }

    /// The message is lost; the client is told at the end of data.
    fn mark_failed(&mut self, reply: Reply) {
        if let Some(transaction) = &mut self.transaction {
            transaction.failed = Some(reply);
        }
    }

    fn log_refusal(&mut self, stage: &'static str, address: Option<Address>, reply: Reply) {
        let rule = self.denied_by.take();
        // The text of a rule may look like any other reply.
        let of_ours = if rule.is_none() { ResourceRefusal::from_reply(&reply) } else { None };
        if of_ours.is_some_and(|refusal| !self.context.refusals.count(refusal, Instant::now())) {
            return;
        }
        let (client, helo) = (self.session.peer().address, self.session.helo().into());
        self.context.event_log.write(MailEvent::Refused { client, helo, stage, address, rule, reply });
    }
}

impl ConnectionHandler for IntakeSession {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.session.handle_input(now, input, &mut Sink(self.transaction.as_deref_mut()));
    }

    fn handle_disconnect(&mut self, _now: Timestamp) {
        self.session.handle_disconnect();
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.session.handle_timeout(now);
    }

    fn handle_stop(&mut self, now: Timestamp) {
        self.session.handle_shutdown(now);
    }

    async fn work(&mut self) {
        loop {
            match self.session.poll_action() {
                Some(SessionAction::Ask(question)) => {
                    let answer = self.answer(question).await;
                    self.session.handle_driver_answer(
                        net::steady_now(),
                        answer,
                        &mut Sink(self.transaction.as_deref_mut()),
                    );
                }
                Some(SessionAction::Abandon) => self.transaction = None,
                Some(SessionAction::Refused { stage, address, reply }) => self.log_refusal(stage, address, reply),
                Some(SessionAction::Login { mechanism, user, outcome }) => self.finish_login(mechanism, user, &outcome),
                None => break,
            }
        }
        if let Some(transaction) = &mut self.transaction
            && let Some(body) = &mut transaction.body
            && body.needs_spill()
            && transaction.failed.is_none()
        {
            let relieved = body.spill_to_file(&self.context.spool, transaction.id, self.context.logs_subjects).await;
            if let Err(error) = relieved {
                let id = transaction.id;
                let reply = self.body_unwritable(id, &error);
                self.mark_failed(reply);
            }
        }
    }

    fn output(&self) -> &[u8] {
        self.session.output()
    }

    fn handle_sent(&mut self, count: usize) {
        self.session.handle_sent(count);
    }

    fn deadline(&self) -> Option<Timestamp> {
        self.session.poll_deadline()
    }

    fn wants_close(&self) -> bool {
        self.session.wants_close()
    }

    fn wants_handshake(&self) -> Option<Arc<TlsServer>> {
        self.acceptor.as_ref().filter(|_| self.session.wants_handshake()).cloned()
    }

    fn handle_tls_established(&mut self, now: Timestamp, security: TlsInfo) {
        self.context.tls_handshakes.count_made(security);
        self.security = Some(Box::new(security));
        self.session.handle_tls_established(now);
    }

    fn handle_handshake_failed(&mut self, _now: Timestamp, error: &io::Error) {
        self.context.log_tls_failure(self.session.peer().address, self.session.helo(), error);
    }
}

fn has_source_route(address: &Address, domain: &LocalDomain) -> bool {
    let name = address.unquoted_local_part();
    let unconfirmed = match domain.mailboxes {
        None => &*name,
        Some(_) => domain.delimiter.and_then(|delimiter| name.find(delimiter)).map_or("", |tag| &name[tag..]),
    };
    !domain.is_final && unconfirmed.contains(['@', '%', '!'])
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
