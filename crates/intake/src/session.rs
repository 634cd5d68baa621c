//! The session of one client: asks the directory, policy and spool what the protocol needs to know,
//! and collects the transaction.

use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use credentials::PendingLogin;
use filter::{SessionInfo, Stage};
use mail::{Address, ClientInfo, LoggedHeader, MailEvent, QueueId, Reply, Timestamp, TlsInfo};
use net::{ConnectionHandler, OutputPiece, TlsServer};
use protocol::sasl::{Mechanism, SaslOutcome};
use protocol::smtp::server::{
    BodySink, MailRequest, MessageEnd, RcptRequest, SessionAction, SessionAnswer, SessionQuestion, SmtpPeer,
    SmtpSession,
};

use crate::body::{BodyStart, FinishedBody, IncomingBody};
use crate::message_check::MessageContent;
use crate::received_line::MessageSource;
use crate::session_checks::{OptionalChecks, record_refusal, session_info};
use crate::transaction::{ReceivedDetails, Transaction, message_entries};
use crate::{ClientState, CommitNotifier, IntakeContext, ListenerContext, ResourceRefusal, replies};

/// A session and its transaction.
pub(crate) struct IntakeSession {
    pub(crate) context: Arc<IntakeContext>,
    commit_notifier: CommitNotifier,
    pub(crate) session: SmtpSession,
    pub(crate) client: ClientState,
    /// None without checks.
    pub(crate) checks: OptionalChecks,
    /// The rule or check that denied the current command, for the log.
    pub(crate) denied_by: Option<Box<str>>,
    acceptor: Option<Arc<TlsServer>>,
    adds_missing_headers: bool,
    /// A SCRAM proof in progress, and where to report its result. Boxed: few clients log in this
    /// way.
    proof: Option<Box<PendingLogin>>,
    /// Boxed: most sessions are in clear text.
    pub(crate) security: Option<Box<TlsInfo>>,
    /// From the accepted MAIL to the reply at the end of data. Boxed: most sessions are idle.
    pub(crate) incoming: Option<Box<IncomingMessage>>,
}

/// A transaction and the state that only sessions need.
pub(crate) struct IncomingMessage {
    pub(crate) transaction: Transaction,
    /// From DATA on.
    body: Option<IncomingBody>,
    /// The body could not be written: the reply at the end of data. No more of it is stored.
    failed: Option<Reply>,
}

/// Receives the decoded bytes. Without a transaction the protocol decodes none.
struct Sink<'a>(Option<&'a mut IncomingMessage>);

impl BodySink for Sink<'_> {
    fn append(&mut self, bytes: &[u8]) {
        if let Some(incoming) = &mut self.0
            && incoming.failed.is_none()
            && let Some(body) = &mut incoming.body
        {
            body.append(bytes);
        }
    }
}

impl IntakeSession {
    /// With `security`, the connection has used TLS from the start.
    pub(crate) fn new(
        listener: ListenerContext,
        peer: SmtpPeer,
        client: ClientState,
        checks: OptionalChecks,
        security: Option<TlsInfo>,
    ) -> Self {
        let ListenerContext {
            intake: context,
            smtp_config: machine,
            commit_notifier: answers,
            acceptor,
            proxy_protocol_networks: _,
            address: _,
            counters: _,
            adds_missing_headers: completes,
            is_from_content_filter: _,
            greeting: _,
        } = listener;
        let speaks_for_others = peer.address.is_some_and(|address| context.proxy_networks.contains(address));
        let asks_of_greetings = checks.as_ref().is_some_and(|checks| checks.take_part_in(Stage::Helo));
        let asks_of_unknown_commands = checks.as_ref().is_some_and(|checks| checks.hear_unknown_commands());
        let mut session = SmtpSession::new(machine, peer, net::steady_now());
        if asks_of_greetings {
            session = session.with_hello_check();
        }
        if asks_of_unknown_commands {
            session = session.with_unknown_command_check();
        }
        if speaks_for_others {
            session = session.with_xclient();
        }
        let security = security.map(Box::new);
        let (denied_by, proof, incoming) = (None, None, None);
        IntakeSession {
            context,
            commit_notifier: answers,
            session,
            client,
            checks,
            denied_by,
            acceptor,
            adds_missing_headers: completes,
            proof,
            security,
            incoming,
        }
    }

    /// The largest futures are boxed: a session reserves room for the largest all the time, and is
    /// idle most of it.
    async fn answer(&mut self, question: SessionQuestion) -> SessionAnswer {
        let refused = match question {
            SessionQuestion::Hello(name) => self.check_helo(&name).await,
            SessionQuestion::UnknownCommand(line) => self.check_unknown_command(&line).await,
            SessionQuestion::Identity(identity) => self.switch_client(&identity).await,
            SessionQuestion::Mail(request) => self.begin_transaction(request).await,
            SessionQuestion::Recipient(request) => {
                let added = Box::pin(self.add_recipient(request)).await;
                self.client.counted.count_recipient(added.as_ref().err());
                added
            }
            SessionQuestion::Data => Box::pin(self.begin_body()).await,
            SessionQuestion::Message(end) => {
                let reply = Box::pin(self.commit_message(end)).await;
                self.client.counted.count_message(Some(&reply).filter(|reply| !reply.is_success()));
                return SessionAnswer::Done(reply);
            }
            SessionQuestion::Login(request) => {
                // The result of an earlier proof would have been reported by now.
                self.proof = None;
                return Box::pin(self.context.verify_password(&request, self.session.peer().address)).await;
            }
            SessionQuestion::Keys(request) => {
                let keys = self.context.scram_keys(&request, self.session.peer().address);
                let (answer, pending) = Box::pin(keys).await;
                self.proof = pending.map(Box::new);
                return answer;
            }
        };
        refused.map_or_else(SessionAnswer::Refuse, |()| SessionAnswer::Accept)
    }

    /// MAIL: the last point at which load, or the client's rate limit, can refuse a message.
    async fn begin_transaction(&mut self, mail: Box<MailRequest>) -> Result<(), Reply> {
        self.context.admit_message(&self.client.permit).map_err(ResourceRefusal::reply)?;
        let mut transaction = Transaction::new(&self.context, mail);
        transaction.is_from_content_filter = self.client.is_content_filter && self.is_trusted();
        let incoming = Box::new(IncomingMessage { transaction, body: None, failed: None });
        let Transaction { id, mail, .. } = &incoming.transaction;
        self.check_sender_rules(*id, mail).await?;
        if let Some(user) = self.session.user() {
            // Boxed, to keep sessions small.
            Box::pin(self.context.check_sender(user, mail.sender.as_ref())).await?;
        }
        self.incoming = Some(incoming);
        Ok(())
    }

    /// RCPT: runs the checks, and admits the recipient.
    async fn add_recipient(&mut self, request: RcptRequest) -> Result<(), Reply> {
        let trusted = self.is_trusted();
        let IntakeSession { context, session, client, checks, denied_by, incoming, security, .. } = self;
        let Some(IncomingMessage { transaction, .. }) = incoming.as_deref_mut() else { return Ok(()) };
        let recipient = context.normalize_address(&request.address, client.local_address).await;
        let recipient = recipient.as_ref();
        let Some(checks) = checks else {
            let added = transaction.add_recipient(context, recipient, &request, trusted).await;
            return added.map_err(|refusal| refusal.into_reply(context));
        };
        // Boxed, to keep sessions without checks small.
        let admission = async {
            let (before, security) = (transaction.recipient_count(), security.as_deref().copied());
            let known = session_info(session, client, security);
            let known = SessionInfo { recipient: Some(recipient), rcpt: Some(&request), ..known };
            let admitted = match record_refusal(checks.rcpt(&transaction.describe(known)).await, denied_by) {
                Ok(effects) => {
                    let added = transaction.add_recipient(context, recipient, &request, trusted).await;
                    match added {
                        Ok(()) => Ok(effects),
                        Err(refusal) => Err(effects.refusal_reply(refusal.into_reply(context))),
                    }
                }
                Err(reply) => Err(reply),
            };
            let effects = match admitted {
                Ok(effects) => effects,
                Err(reply) => {
                    checks.recipient_refused(&transaction.describe(known), &reply).await;
                    return Err(reply);
                }
            };
            let is_recipient_local = transaction.are_local_from(before);
            let known = SessionInfo { is_recipient_local, ..known };
            let asked = checks.rcpt_admitted(&transaction.describe(known), &effects).await;
            let later = record_refusal(asked, denied_by).inspect_err(|_| transaction.remove_recipients_from(before))?;
            checks.add_recipient(effects);
            checks.add_recipient(later);
            Ok(())
        };
        Box::pin(admission).await
    }

    /// Whether the client may relay and use the memory reserved for trusted clients.
    fn is_trusted(&self) -> bool {
        self.client.trusted || self.session.user().is_some()
    }

    /// AUTH has ended. Settles a pending SCRAM proof, which counts like a password check, and logs
    /// the login.
    fn finish_login(&mut self, mechanism: Mechanism, user: Box<str>, outcome: &SaslOutcome) {
        if matches!(outcome, SaslOutcome::Accepted { .. }) {
            self.client.login_mechanism = Some(mechanism.name());
        }
        credentials::finish_proof(self.proof.take().map(|pending| *pending), mechanism, outcome);
        let (client, helo) = (self.session.peer().address, self.session.helo());
        self.context.event_log.write(credentials::login_event(client, helo, mechanism, user, outcome));
    }

    /// DATA: reserves memory for the body.
    async fn begin_body(&mut self) -> Result<(), Reply> {
        self.check_data().await?;
        let is_trusted = self.is_trusted();
        let Some(incoming) = &mut self.incoming else { return Err(replies::BODY_UNWRITABLE) };
        let memory = self.context.body_memory.reserve(is_trusted, self.context.message_wait_max).await;
        let body = incoming.body.insert(memory.ok_or(replies::MEMORY_SHORT)?);
        if self.adds_missing_headers {
            body.find_missing_fields();
        }
        Ok(())
    }

    /// End of data: runs the checks, submits the message to the spool and waits for the result.
    async fn commit_message(&mut self, end: MessageEnd) -> Reply {
        let Some(incoming) = self.incoming.take() else { return replies::BODY_UNWRITABLE };
        let IncomingMessage { mut transaction, body, failed } = *incoming;
        if let Some(reply) = failed {
            return reply;
        }
        let Some(mut body) = body else { return replies::BODY_UNWRITABLE };
        let (id, now) = (transaction.id, now());
        let BodyStart { mut logged, missing } = body.take_start(self.context.logs_subjects);
        let mut prefix = self.received_line(&transaction, now).into_bytes();
        if let Some(message_id) = missing.append_to(&mut prefix, id, &self.context.hostname, now) {
            logged.message_id = Some(message_id);
        }
        let (mut flags, content) = (end.flags, MessageContent::Incoming(&mut body));
        let checked = self.check_message(&mut transaction, &mut prefix, &mut flags, content).await;
        let disposition = match checked {
            Ok(disposition) => disposition,
            Err(reply) => return reply,
        };
        let details = self.received_details(prefix.len() as u64 + body.len(), logged);
        let client = ClientInfo {
            address: self.session.peer().address,
            helo: self.session.helo().into(),
            trusted: self.is_trusted(),
        };
        let is_forwarded = match transaction.is_forwarded(&self.context, client.trusted).await {
            Ok(is_forwarded) => is_forwarded,
            Err(reply) => return reply,
        };
        let envelope = transaction.into_envelope(client, is_forwarded, now);
        if let Some(check) = disposition.discarded_by {
            self.context.log_discarded(id, &envelope, check);
            return replies::queued(id);
        }
        flags.eight_bit |= !prefix.is_ascii();
        // The permit is held until the spool answers.
        let FinishedBody { content, permit: _permit } = match body.finish(prefix).await {
            Ok(finished) => finished,
            Err(error) => return self.body_unwritable(id, &error),
        };
        let received = details.into_event(id, &envelope);
        let (entries, held) = message_entries(id, envelope, content, flags, disposition.held);
        let events = std::iter::once(received).chain(held);
        match self.context.commit(entries, self.commit_notifier.register(), events).await {
            Ok(()) => replies::queued(id),
            Err(error) => replies::commit_failed(&error),
        }
    }

    fn received_line(&self, transaction: &Transaction, now: Timestamp) -> String {
        let shows_user = self.context.logins.as_ref().is_some_and(|logins| logins.in_received_line);
        let source = MessageSource::Client {
            helo: self.session.helo(),
            address: self.session.peer().address,
            security: self.security.as_deref().copied(),
            user: self.session.user().filter(|_| shows_user),
        };
        transaction.received_line(&self.context, source, self.session.protocol_name(), now).to_line()
    }

    /// What the log has of the message that ends now.
    fn received_details(&self, size: u64, header: LoggedHeader) -> ReceivedDetails {
        ReceivedDetails {
            size,
            protocol: self.session.protocol_name(),
            security: self.security.as_deref().copied(),
            user: self.session.user().map(Into::into),
            header,
            auth: self.checks.as_ref().and_then(|checks| checks.findings_text()),
        }
    }

    fn body_unwritable(&self, id: QueueId, error: &io::Error) -> Reply {
        self.context.operator_log.log_line(format_args!("cannot write the body of {id} to a file: {error}"));
        replies::body_unwritable(error)
    }

    /// The message is lost; the client is told at the end of data.
    fn mark_failed(&mut self, reply: Reply) {
        if let Some(incoming) = &mut self.incoming {
            incoming.failed = Some(reply);
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
        self.session.handle_input(now, input, &mut Sink(self.incoming.as_deref_mut()));
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
                        &mut Sink(self.incoming.as_deref_mut()),
                    );
                }
                Some(SessionAction::Abandon) => self.incoming = None,
                Some(SessionAction::Refused { stage, address, reply }) => self.log_refusal(stage, address, reply),
                Some(SessionAction::Login { mechanism, user, outcome }) => self.finish_login(mechanism, user, &outcome),
                None => break,
            }
        }
        if let Some(incoming) = &mut self.incoming
            && let Some(body) = &mut incoming.body
            && body.needs_spill()
            && incoming.failed.is_none()
        {
            let id = incoming.transaction.id;
            let relieved = body.spill_to_file(&self.context.spool, id, self.context.logs_subjects).await;
            if let Err(error) = relieved {
                let reply = self.body_unwritable(id, &error);
                self.mark_failed(reply);
            }
        }
    }

    fn output(&self) -> OutputPiece<'_> {
        OutputPiece::Bytes(self.session.output())
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

fn now() -> Timestamp {
    SystemTime::now().into()
}
