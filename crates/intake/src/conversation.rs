//! The session of one client: asks the directory, policy and spool what the protocol needs to know,
//! and collects the transaction.

use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use lookup::credentials::Pending;
use lookup::directory::{Domain, Final, Resolution};
use mail::{Address, BodyFlags, Client, Envelope, Fact, QueueId, Reply, Security, Timestamp};
use net::{Acceptor, Conversation};
use protocol::sasl::{self, Mechanism, Outcome};
use protocol::smtp::server::{Action, Answer, BodySink, MailRequest, MessageEnd, Peer, Question, RcptRequest, Session};
use spool::{CommitError, Entry, State};

use crate::access::Stage;
use crate::body::Incoming;
use crate::completion::Completion;
use crate::recipients::{Recipients, TooMany};
use crate::standing::{Denied, Standing};
use crate::trace::Trace;
use crate::{Answers, Counter, Desk, Refusal, Visitor, replies, whom};

/// A session and its transaction.
pub(crate) struct Intake {
    pub(crate) desk: Arc<Desk>,
    answers: Answers,
    pub(crate) session: Session,
    pub(crate) visitor: Visitor,
    /// The access rule that denied the current command, for the log.
    pub(crate) denied_by: Option<Box<str>>,
    acceptor: Option<Arc<Acceptor>>,
    completes: bool,
    /// A SCRAM proof in progress, and where to report its result. Boxed: few clients log in this
    /// way.
    proof: Option<Box<Pending>>,
    /// Boxed: most sessions are in clear text.
    security: Option<Box<Security>>,
    /// From the accepted MAIL to the reply at the end of data. Boxed: most sessions are idle.
    transaction: Option<Box<Transaction>>,
}

struct Transaction {
    id: QueueId,
    mail: MailRequest,
    recipients: Recipients,
    /// The result of the access rules for the sender and the recipients so far.
    standing: Standing,
    /// From DATA on.
    body: Option<Incoming>,
    /// From DATA to the end of the header, if missing fields are to be added.
    header: Option<Box<Completion>>,
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
            match &mut transaction.header {
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
        if let (Some(header), Some(body)) = (self.header.take(), &mut self.body) {
            body.append(&header.finish(ended));
        }
    }
}

impl Intake {
    /// With `security`, the connection has used TLS from the start.
    pub(crate) fn new(counter: Counter, peer: Peer, visitor: Visitor, security: Option<Security>) -> Self {
        let Counter { desk, machine, answers, acceptor, balancers: _, completes } = counter;
        let speaks_for_others = peer.address.is_some_and(|address| (desk.proxies)(address));
        let asks_of_greetings = desk.access.as_ref().is_some_and(|access| access.asks_at(Stage::Helo));
        let mut session = Session::new(machine, peer, net::steady_now());
        if asks_of_greetings {
            session = session.asking_of_greetings();
        }
        if speaks_for_others {
            session = session.trusting_xclient();
        }
        let security = security.map(Box::new);
        let (denied_by, proof, transaction) = (None, None, None);
        Intake { desk, answers, session, visitor, denied_by, acceptor, completes, proof, security, transaction }
    }

    async fn answer(&mut self, question: Question) -> Answer {
        let refused = match question {
            Question::Hello(name) => self.greet(&name).await,
            Question::Identity(identity) => self.become_client(&identity).await,
            Question::Mail(request) => self.begin(request).await,
            Question::Recipient(request) => self.add(request).await,
            Question::Data => self.open().await,
            Question::Message(end) => return Answer::Done(self.keep(end).await),
            Question::Login(request) => {
                // The result of an earlier proof would have been reported by now.
                self.proof = None;
                return self.desk.verify(&request, self.session.peer().address).await;
            }
            Question::Keys(request) => {
                let (answer, pending) = self.desk.keys(&request, self.session.peer().address).await;
                self.proof = pending.map(Box::new);
                return answer;
            }
        };
        refused.map_or_else(Answer::Refuse, |()| Answer::Accept)
    }

    /// MAIL: the last point at which load, or the client's rate limit, can refuse a message.
    async fn begin(&mut self, mail: MailRequest) -> Result<(), Reply> {
        self.desk.take_message(&self.visitor.pass).map_err(Refusal::reply)?;
        let standing = self.judge_sender(&mail).await?;
        if let Some(user) = self.session.user() {
            self.desk.check_sender(user, mail.sender.as_ref()).await?;
        }
        let id = self.desk.spool.begin();
        self.transaction = Some(Box::new(Transaction {
            id,
            mail,
            recipients: Recipients::default(),
            standing,
            body: None,
            header: None,
            trace_is_ascii: true,
            failed: None,
        }));
        Ok(())
    }

    /// RCPT: resolves the recipient, and checks whether the client may send to it and whether the
    /// mailbox has room.
    async fn add(&mut self, request: RcptRequest) -> Result<(), Reply> {
        let asked = self.desk.meant(&request.address, self.visitor.own_address).await;
        let asked = asked.as_ref();
        let judged = self.judge(asked).await;
        let standing = judged.map_err(|denied| denied.told(&mut self.denied_by))?;
        let finals = match self.desk.resolve(asked).await {
            Resolution::Local(finals) => finals,
            Resolution::Unknown => return Err(replies::unknown_user(&request.address)),
            Resolution::Remote(address) => vec![self.elsewhere(address)?],
            Resolution::Unavailable(why) => return Err(self.unanswered(asked, &why)),
            Resolution::TooDeep => return Err(replies::ALIAS_TOO_DEEP),
            Resolution::TooMany => return Err(replies::ALIAS_TOO_MANY),
        };
        if !self.is_trusted() {
            self.refuse_ways(&finals).await?;
        }
        let size = self.transaction.as_ref().and_then(|transaction| transaction.mail.size);
        self.desk.refuse_full(&request.address, &finals, size).await?;
        let Some(transaction) = &mut self.transaction else { return Ok(()) };
        let added = transaction.recipients.add(finals, &request, self.desk.expanded_recipients_max);
        added.map_err(|TooMany| replies::RECIPIENTS_FULL)?;
        transaction.standing.held |= standing.held;
        Ok(())
    }

    /// Evaluates the access rules for a recipient, unless the sender was accepted.
    async fn judge(&self, recipient: &Address) -> Result<Standing, Denied> {
        match &self.transaction {
            Some(transaction) if !transaction.standing.accepted => {
                self.judge_recipient(transaction.mail.sender.as_ref(), recipient).await
            }
            _ => Ok(Standing::default()),
        }
    }

    /// Whether the client may relay and use the memory reserved for trusted clients.
    fn is_trusted(&self) -> bool {
        self.visitor.trusted || self.session.user().is_some()
    }

    /// AUTH has ended. Settles a pending SCRAM proof, which counts like a password check, and logs
    /// the login.
    fn end_login(&mut self, mechanism: Mechanism, user: Box<str>, outcome: &Outcome) {
        match (self.proof.take(), outcome) {
            (Some(pending), Outcome::Accepted { .. }) if mechanism == Mechanism::ScramSha256 => pending.succeeded(),
            (Some(pending), Outcome::Refused(sasl::Refusal::Credentials)) => pending.failed(),
            // A dropped proof counts as failed, but not as a wrong password.
            _ => {}
        }
        self.desk.tell_login(self.session.peer().address, self.session.helo(), mechanism, user, outcome);
    }

    /// A recipient in a remote domain: only for relay networks and users. A local alias may lead
    /// elsewhere for any client: its target is our decision.
    fn elsewhere(&self, address: Address) -> Result<Final, Reply> {
        if !self.is_trusted() {
            let deferred = self.desk.relaying_is_deferred;
            return Err(if deferred { replies::RELAY_DEFERRED } else { replies::RELAY_DENIED });
        }
        if whom::is_dotless(&address) && !(self.desk.routed)(address.domain()) {
            return Err(replies::NOT_QUALIFIED);
        }
        Ok(Final { address, original: None, local: false })
    }

    /// Logs the reason.
    fn unanswered(&self, asked: &Address, why: &str) -> Reply {
        self.desk.troubles.report(format_args!("cannot look up <{asked}> in the directory: {why}"));
        replies::DIRECTORY_DOWN
    }

    /// Refuses source routes through a domain we relay for, such as `victim%elsewhere.example@ours`
    /// (RFC 1123 section 5.2.16): a next hop that trusts us might follow them. The target of a
    /// local alias and an entry in a table of mailboxes are not source routes, but an address tag
    /// is chosen by the sender.
    async fn refuse_ways(&self, finals: &[Final]) -> Result<(), Reply> {
        for found in finals.iter().filter(|found| found.original.is_none()) {
            let domain = self.desk.directory.domain(found.address.domain()).await;
            let domain = domain.map_err(|why| self.unanswered(&found.address, &why))?;
            if domain.is_some_and(|domain| names_a_way(&found.address, &domain)) {
                return Err(replies::WAY_DENIED);
            }
        }
        Ok(())
    }

    /// DATA: reserves memory for the body. The Received line comes first, so that the stored
    /// message is one range.
    async fn open(&mut self) -> Result<(), Reply> {
        let is_trusted = self.is_trusted();
        let Some(transaction) = &mut self.transaction else { return Err(replies::BODY_UNWRITABLE) };
        let memory = self.desk.memory.reserve(is_trusted, self.desk.message_wait_max).await;
        let body = transaction.body.insert(memory.ok_or(replies::MEMORY_SHORT)?);
        let recipient = transaction.recipients.only().map(|only| only.original.as_ref().unwrap_or(&only.address));
        let trace = Trace {
            helo: self.session.helo(),
            client: self.session.peer().address,
            hostname: &self.desk.hostname,
            protocol: self.session.protocol_name(),
            security: self.security.as_deref().copied(),
            user: self.session.user().filter(|_| self.desk.logins.as_ref().is_some_and(|logins| logins.traced)),
            id: transaction.id,
            recipient,
            now: now(),
        };
        let line = trace.line();
        transaction.trace_is_ascii = line.is_ascii();
        body.append(line.as_bytes());
        if self.completes {
            let completion = Completion::new(transaction.id, &self.desk.hostname, trace.now);
            transaction.header = Some(Box::new(completion));
        }
        Ok(())
    }

    /// End of data: submits the message to the spool and waits for the result.
    async fn keep(&mut self, end: MessageEnd) -> Reply {
        let Some(mut transaction) = self.transaction.take() else { return replies::BODY_UNWRITABLE };
        transaction.complete(true);
        let Transaction { id, mail, recipients, standing, body, header: _, trace_is_ascii, failed } = *transaction;
        if let Some(reply) = failed {
            return reply;
        }
        let Some(mut body) = body else { return replies::BODY_UNWRITABLE };
        let (recipients, size) = (recipients.into_list(), body.len());
        let header = body.logged_header(self.desk.logs_subjects);
        let (content, _held) = match body.finish().await {
            Ok(finished) => finished,
            Err(error) => return self.unwritten(id, &error),
        };
        let (address, trusted) = (self.session.peer().address, self.is_trusted());
        let client = Client { address, helo: self.session.helo().into(), trusted };
        let fact = Fact::Received {
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
        let is_held = standing.held || self.is_held();
        let held = if is_held { envelope.recipients.iter().map(|to| to.address.clone()).collect() } else { Vec::new() };
        match self.commit(id, Entry::Message { id, envelope, content, flags }, held.len()).await {
            Ok(()) => {
                self.desk.journal.write(fact);
                held.into_iter().for_each(|recipient| self.desk.journal.write(Fact::Held { id, recipient }));
                replies::kept(id)
            }
            Err(error) => replies::not_kept(&error),
        }
    }

    /// If the message is held, all its `held` recipients are held from the start, in the same
    /// batch.
    async fn commit(&self, id: QueueId, message: Entry, held: usize) -> Result<(), CommitError> {
        let mut entries = vec![message];
        if held > 0 {
            let recipients = (0..).take(held).map(|ordinal| (ordinal, State::Held { attempts: 0 })).collect();
            entries.push(Entry::Outcome { id, recipients, bounce: None });
        }
        let (done, answer) = self.answers.expect();
        self.desk.spool.submit(entries, done);
        // The result is missing only if the spool is closed.
        answer.await.unwrap_or(Err(CommitError::Closed))
    }

    fn unwritten(&self, id: QueueId, error: &io::Error) -> Reply {
        self.desk.troubles.report(format_args!("cannot write the body of {id} to a file: {error}"));
        replies::unwritable(error)
    }

    /// The message is lost; the client is told at the end of data.
    fn fail(&mut self, reply: Reply) {
        if let Some(transaction) = &mut self.transaction {
            transaction.failed = Some(reply);
        }
    }

    fn log_refusal(&mut self, stage: &'static str, address: Option<Address>, reply: Reply) {
        let rule = self.denied_by.take();
        // The text of a rule may look like any other reply.
        let of_ours = if rule.is_none() { Refusal::told_by(&reply) } else { None };
        if of_ours.is_some_and(|refusal| !self.desk.refusals.count(refusal, Instant::now())) {
            return;
        }
        let (client, helo) = (self.session.peer().address, self.session.helo().into());
        self.desk.journal.write(Fact::Refused { client, helo, stage, address, rule, reply });
    }
}

impl Conversation for Intake {
    fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.session.handle_input(now, input, &mut Sink(self.transaction.as_deref_mut()));
    }

    fn handle_end(&mut self, _now: Timestamp) {
        self.session.handle_end();
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
                Some(Action::Ask(question)) => {
                    let answer = self.answer(question).await;
                    self.session.handle_answer(net::steady_now(), answer, &mut Sink(self.transaction.as_deref_mut()));
                }
                Some(Action::Abandon) => self.transaction = None,
                Some(Action::Refused { stage, address, reply }) => self.log_refusal(stage, address, reply),
                Some(Action::Login { mechanism, user, outcome }) => self.end_login(mechanism, user, &outcome),
                None => break,
            }
        }
        if let Some(transaction) = &mut self.transaction
            && let Some(body) = &mut transaction.body
            && body.is_heavy()
            && transaction.failed.is_none()
        {
            let relieved = body.relieve(&self.desk.spool, transaction.id, self.desk.logs_subjects).await;
            if let Err(error) = relieved {
                let id = transaction.id;
                let reply = self.unwritten(id, &error);
                self.fail(reply);
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

    fn wants_handshake(&self) -> Option<Arc<Acceptor>> {
        self.acceptor.as_ref().filter(|_| self.session.wants_handshake()).cloned()
    }

    fn handle_secured(&mut self, now: Timestamp, security: Security) {
        self.desk.handshakes.count_made(security);
        self.security = Some(Box::new(security));
        self.session.handle_secured(now);
    }

    fn handle_insecure(&mut self, _now: Timestamp, error: &io::Error) {
        self.desk.tell_insecure(self.session.peer().address, self.session.helo(), error);
    }
}

fn names_a_way(address: &Address, domain: &Domain) -> bool {
    let name = address.mailbox_name();
    let unconfirmed = match domain.mailboxes {
        None => &*name,
        Some(_) => domain.delimiter.and_then(|delimiter| name.find(delimiter)).map_or("", |tag| &name[tag..]),
    };
    !domain.is_final && unconfirmed.contains(['@', '%', '!'])
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
