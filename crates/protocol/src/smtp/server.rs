//! The server side of an SMTP or LMTP session. [`SmtpSession`] controls the dialogue: the greeting,
//! the open transaction, the replies. It guarantees that no byte is passed on twice or out of
//! order, that replies and messages do not depend on how the input is split, and that a message
//! ends where RFC 5321 says and nowhere else. No error here is fatal: a peer that exceeds a limit
//! gets a reply, and at worst is disconnected.
//!
//! Supported are PIPELINING (RFC 2920), SIZE (1870), 8BITMIME (6152), SMTPUTF8 (6531), CHUNKING
//! (3030), ENHANCEDSTATUSCODES (2034), DSN (3461), LIMITS (9422), STARTTLS (3207) and AUTH (4954).
//! The driver performs the TLS handshake and looks up users and passwords. XCLIENT (`xclient.rs`)
//! is for peers that the driver trusts.
//!
//! # States
//!
//! | state    | waits for             | then                                                                         |
//! |----------|-----------------------|------------------------------------------------------------------------------|
//! | Command  | a line                | the function of the verb; over the limit: LongLine                           |
//! | LongLine | CRLF                  | 500, Command; fails an AUTH exchange                                         |
//! | AwaitingAnswer    | the driver's answer   | Hello, UnknownCommand, Identity, Mail, Recipient: reply, Command. Data: 354, Data; or Chunk. Message: Command. Login: 334, Authenticating; or its end |
//! | Authenticating | a line          | AwaitingAnswer (Login), 334 and Authenticating, or the end: 235, 4xx, 5xx, Command; over the limit: LongLine |
//! | Data     | CRLF `.` CRLF         | AwaitingAnswer (Message); or, if the content was refused, its reply and Command       |
//! | Chunk    | the rest of the chunk | 250, Command; after LAST as Data                                             |
//! | Discard  | the rest of the chunk | the refusal of its BDAT, Command                                             |
//! | Securing | the end of the handshake | Command, as in a new session; any byte in clear text: 554, Closed         |
//! | Closed   | nothing               | the end                                                                      |
//!
//! The state is combined with the transaction, which exists from an accepted MAIL until its message
//! is answered or it is abandoned:
//!
//! | verb            | no greeting | greeted                 | after MAIL      | after RCPT      | after BDAT |
//! |-----------------|-------------|-------------------------|-----------------|-----------------|------------|
//! | HELO EHLO LHLO  | 250         | 250                     | abandon, 250    | abandon, 250    | abandon    |
//! | MAIL            | 503         | ask                     | 503             | 503             | 503        |
//! | RCPT            | 503         | 503                     | ask             | ask, 452 if full| 503        |
//! | DATA            | 503         | 503                     | 503             | ask             | 503        |
//! | BDAT            | discard, 503| discard, 503            | discard, 503    | ask             | chunk      |
//! | RSET            | 250         | 250                     | abandon, 250    | abandon, 250    | abandon    |
//! | STARTTLS        | 220, secure | 220, secure             | 503             | 503             | 503        |
//! | AUTH            | 503         | after EHLO: ask, 334    | 503             | 503             | 503        |
//! | XCLIENT         | ask         | ask                     | 503             | 503             | 503        |
//! | NOOP HELP VRFY  | 2xx         | 2xx                     | 2xx             | 2xx             | 2xx        |
//! | QUIT            | 221, close  | 221, close              | abandon, close  | abandon, close  | abandon    |
//!
//! STARTTLS is offered if it is configured and TLS is not active yet. Until then, a listener that
//! requires TLS replies 530 to everything except EHLO, LHLO, NOOP, STARTTLS and QUIT (RFC 3207
//! section 4). Clear text after the STARTTLS line may have been injected by an attacker and is
//! never processed: the session ends (command injection, CVE-2011-0411).
//!
//! AUTH is offered if it is configured, and only within TLS (538) unless the configuration allows
//! otherwise. If login is required, MAIL gets 530 before it. A second AUTH after a 235 gets 503.
//! STARTTLS discards the login with everything else received in clear text; so does XCLIENT, since
//! another client had logged in.
//!
//! Bytes after the DATA line that arrive before its reply are the message of a client that does not
//! wait (RFC 2920 section 3.1). If configured, this ends the session of an untrusted client
//! (`tolerance.rs`) whether DATA would be accepted or refused, since a message after a refused DATA
//! would be read as commands. An untrusted client that sends its message too slowly is also
//! disconnected (`rate.rs`).
//!
//! A refused Data question ends the transaction: DATA gets its reply immediately, BDAT after its
//! bytes are discarded. So does a fault in the content, which the driver learns immediately and the
//! peer after the end of its data.
//!
//! [`SessionQuestion::Message`] hands the message over to the driver. From then until the answer,
//! no timeout, end of input or shutdown ends the session: the peer must learn what happened to its
//! mail.

mod actions;
mod command;
mod content;
mod dot;
mod header;
mod input;
mod limits;
mod login;
mod parameters;
mod path;
mod rate;
mod replies;
#[cfg(test)]
mod tests;
mod tolerance;
mod verbs;
mod xclient;

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use mail::{Address, Reply, Timestamp};

pub use super::MailProtocol;
pub use actions::{
    BodySink, LoginRequest, MailRequest, MessageEnd, RcptRequest, ScramKeysRequest, SessionAction, SessionAnswer,
    SessionQuestion, XclientIdentity,
};
pub use limits::SessionLimits;
pub use login::AuthConfig;
pub use parameters::{MailParameters, RcptParameters};
pub use tolerance::{NulPolicy, TolerancePolicy};

use command::{Chunk, Verb};
use content::{ContentFault, ContentState};
use dot::DotDecoder;
use login::AuthAttempt;
use rate::RateWindow;

use crate::TlsMode;

/// The configuration shared by the sessions of a listener.
#[derive(Clone, Debug)]
pub struct SmtpServerConfig {
    /// The host name of this server, for the banner and as the domain of `<postmaster>`.
    pub hostname: Box<str>,
    /// SMTP or LMTP.
    pub flavor: MailProtocol,
    /// Whether the session is, or may be, over TLS.
    pub tls: TlsMode,
    /// The settings of AUTH; None disables it.
    pub auth: Option<AuthConfig>,
    /// What is accepted beyond RFC 5321.
    pub tolerance: TolerancePolicy,
    /// All limits.
    pub limits: SessionLimits,
}

impl SmtpServerConfig {
    /// The first line of a session.
    fn banner(&self) -> String {
        let protocol = match self.flavor {
            MailProtocol::Smtp => "ESMTP",
            MailProtocol::Lmtp => "LMTP",
        };
        format!("220 {} {protocol} Mailrace\r\n", self.hostname)
    }
}

/// What is known of the peer before the session starts.
#[derive(Clone, Debug, Default)]
pub struct SmtpPeer {
    /// Its IP address; None if unknown.
    pub address: Option<IpAddr>,
    /// A bare CR or LF in its messages is converted to CRLF; other peers' messages with one are
    /// refused.
    pub normalise_bare_newlines: bool,
    /// It may relay to other domains. Some other input that is refused from untrusted clients is
    /// accepted from it.
    pub may_relay: bool,
}

/// One session of one peer.
///
/// Events come in by the `handle_*` methods, actions go out by the `poll_*` methods and
/// [`output`](SmtpSession::output). After each event: send the output, perform the actions until
/// there are none left, and close when [`wants_close`](SmtpSession::wants_close) is true and the
/// output is sent.
#[derive(Debug)]
pub struct SmtpSession {
    config: Arc<SmtpServerConfig>,
    peer: SmtpPeer,
    helo: Box<str>,
    greeting: Option<GreetingKind>,
    state: State,
    transaction: Option<Transaction>,
    /// Input that cannot be processed yet, from `backlog_used` on: part of a line, or what follows
    /// a pending question.
    backlog: Vec<u8>,
    backlog_used: usize,
    output: Vec<u8>,
    output_sent: usize,
    actions: VecDeque<SessionAction>,
    started_at: Timestamp,
    heard_at: Timestamp,
    errors: u32,
    commands: u32,
    stopping: bool,
    ended: bool,
    /// TLS is active.
    secured: bool,
    /// The user who has logged in.
    authenticated_user: Option<Box<str>>,
    failed_logins: u32,
    /// The driver is asked about every greeting.
    checks_hello: bool,
    /// The driver is asked about every command that the session does not know.
    checks_unknown_commands: bool,
    /// The peer may use XCLIENT.
    trusts_xclient: bool,
    /// The HELO name of the client that the peer speaks for.
    xclient_helo: Option<Box<str>>,
    /// The name was given before the address of its client.
    xclient_helo_first: bool,
}

/// The form of the peer's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GreetingKind {
    Helo,
    /// EHLO or LHLO.
    Extended,
}

#[derive(Debug)]
enum State {
    Command,
    LongLine {
        after_cr: bool,
        /// The line belongs to an AUTH exchange, which fails with it.
        login: Option<Box<AuthAttempt>>,
    },
    AwaitingAnswer(PendingQuestion),
    /// AUTH has begun, and the client must respond to a challenge.
    Authenticating(Box<AuthAttempt>),
    Data(DotDecoder),
    Chunk(Chunk),
    /// The remaining octets of a refused BDAT.
    Discard {
        octets: u64,
        reply: Reply,
        times: usize,
    },
    /// STARTTLS got its 220; the driver must perform the handshake.
    Securing,
    Closed,
}

/// What the pending question is about.
#[derive(Debug)]
enum PendingQuestion {
    Hello {
        name: Box<str>,
        greeting: GreetingKind,
    },
    /// With the reply of the session.
    UnknownCommand(Reply),
    Identity(Box<XclientIdentity>),
    Mail {
        sender: Option<Address>,
        smtputf8: bool,
    },
    Recipient(Address),
    Data,
    FirstChunk(Chunk),
    Message,
    Login(Box<AuthAttempt>),
}

#[derive(Debug)]
struct Transaction {
    smtputf8: bool,
    /// The number of accepted recipients.
    recipients: usize,
    /// A BDAT was accepted: the message has begun.
    chunks_begun: bool,
    content: ContentState,
    /// Measures the data rate, once the message may come.
    window: Option<RateWindow>,
    /// Set: the driver was told to abandon the transaction, but the peer is still sending its data.
    fault: Option<ContentFault>,
}

impl SmtpSession {
    /// Starts a session at `now`; the banner is in its output.
    pub fn new(config: Arc<SmtpServerConfig>, peer: SmtpPeer, now: Timestamp) -> Self {
        let output = config.banner().into_bytes();
        let secured = config.tls == TlsMode::Implicit;
        SmtpSession {
            config,
            peer,
            helo: Box::default(),
            greeting: None,
            state: State::Command,
            transaction: None,
            backlog: Vec::new(),
            backlog_used: 0,
            output,
            output_sent: 0,
            actions: VecDeque::new(),
            started_at: now,
            heard_at: now,
            errors: 0,
            commands: 0,
            stopping: false,
            ended: false,
            secured,
            authenticated_user: None,
            failed_logins: 0,
            checks_hello: false,
            checks_unknown_commands: false,
            trusts_xclient: false,
            xclient_helo: None,
            xclient_helo_first: false,
        }
    }

    /// Makes the session ask the driver about every greeting; otherwise every valid name is
    /// accepted.
    pub fn with_hello_check(mut self) -> Self {
        self.checks_hello = true;
        self
    }

    /// Makes the session ask the driver about every command that it does not know; otherwise it replies
    /// itself.
    pub fn with_unknown_command_check(mut self) -> Self {
        self.checks_unknown_commands = true;
        self
    }

    /// Takes all of `input`. What cannot be processed before an answer is kept until then.
    pub fn handle_input(&mut self, now: Timestamp, input: &[u8], body: &mut impl BodySink) {
        self.heard_at = now;
        self.count_octets(input.len());
        if self.backlog.is_empty() {
            let used = self.process_input(input, body);
            self.backlog.extend_from_slice(&input[used..]);
        } else {
            self.backlog.drain(..self.backlog_used);
            self.backlog_used = 0;
            self.backlog.extend_from_slice(input);
            self.work_on_backlog(body);
        }
    }

    /// Takes the answer to the pending question. Ignored if there is none, since the session may
    /// have closed in the meantime.
    pub fn handle_driver_answer(&mut self, now: Timestamp, answer: SessionAnswer, body: &mut impl BodySink) {
        if !matches!(self.state, State::AwaitingAnswer(_)) {
            return;
        }
        self.heard_at = now;
        if let State::AwaitingAnswer(asked) = std::mem::replace(&mut self.state, State::Command) {
            self.take_answer(asked, answer);
            self.close_if_stopping();
        }
        self.work_on_backlog(body);
        self.close_if_ended();
    }

    /// The handshake requested by [`wants_handshake`](SmtpSession::wants_handshake) has succeeded.
    /// Everything the peer said before is forgotten (RFC 3207 section 4.2), but counts towards its
    /// limits. Ignored if no handshake was requested. A failed handshake ends the session: call
    /// [`handle_disconnect`](SmtpSession::handle_disconnect).
    pub fn handle_tls_established(&mut self, now: Timestamp) {
        if !matches!(self.state, State::Securing) {
            return;
        }
        self.heard_at = now;
        self.abandon();
        self.helo = Box::default();
        self.greeting = None;
        self.backlog = Vec::new();
        self.backlog_used = 0;
        self.secured = true;
        self.authenticated_user = None;
        self.state = State::Command;
        self.close_if_stopping();
    }

    /// Call it when [`poll_deadline`](SmtpSession::poll_deadline) has passed; before that it does
    /// nothing.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if now >= self.started_at + self.config.limits.session_time_max {
            self.close("session", replies::SESSION_TOO_LONG);
        } else if now >= self.heard_at + self.config.limits.idle_time_max {
            self.close("idle", replies::IDLE);
        } else {
            self.end_window(now);
        }
    }

    /// The server shuts down: 421, immediately or after the reply to a message in progress.
    pub fn handle_shutdown(&mut self, _now: Timestamp) {
        self.stopping = true;
        self.close_if_stopping();
    }

    /// The peer closed its side. Earlier input is still answered; an unfinished transaction is
    /// abandoned.
    pub fn handle_disconnect(&mut self) {
        self.ended = true;
        self.close_if_ended();
    }

    /// The next action, in order.
    pub fn poll_action(&mut self) -> Option<SessionAction> {
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            self.actions = VecDeque::new();
        }
        action
    }

    /// The bytes to send.
    pub fn output(&self) -> &[u8] {
        &self.output[self.output_sent..]
    }

    /// The first `count` bytes of the output were sent.
    pub fn handle_sent(&mut self, count: usize) {
        self.output_sent = self.output.len().min(self.output_sent + count);
        if self.output_sent == self.output.len() {
            self.output = Vec::new();
            self.output_sent = 0;
        }
    }

    /// When to call [`handle_timeout`](SmtpSession::handle_timeout). None while the driver must
    /// act.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let limits = &self.config.limits;
        match self.state {
            State::AwaitingAnswer(_) | State::Closed => None,
            _ => {
                let deadline = (self.heard_at + limits.idle_time_max).min(self.started_at + limits.session_time_max);
                Some(self.window_end().map_or(deadline, |end| deadline.min(end)))
            }
        }
    }

    /// Whether more input can be processed now. If not, reading more would only use memory.
    pub fn wants_input(&self) -> bool {
        !matches!(self.state, State::AwaitingAnswer(_) | State::Securing | State::Closed)
    }

    /// Whether the driver must perform the TLS handshake once the output is sent. Bytes read before
    /// belong to [`handle_input`](SmtpSession::handle_input), which ends the session; later ones
    /// belong to the handshake.
    pub fn wants_handshake(&self) -> bool {
        matches!(self.state, State::Securing)
    }

    /// Whether to close the connection once the output is sent.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The peer's HELO name; empty before HELO.
    pub fn helo(&self) -> &str {
        &self.helo
    }

    /// The peer as passed to [`SmtpSession::new`], or as changed by XCLIENT.
    pub fn peer(&self) -> &SmtpPeer {
        &self.peer
    }

    /// The user who has logged in, in the spelling of the lookup table (RFC 4954).
    pub fn user(&self) -> Option<&str> {
        self.authenticated_user.as_deref()
    }

    /// The protocol name of the open transaction for Received lines (RFC 3848, RFC 6531 section
    /// 4.3), from the greeting, also one that is being checked, with `S` for TLS and `A` for a login.
    pub fn protocol_name(&self) -> &'static str {
        let utf8 = self.transaction.as_ref().is_some_and(|t| t.smtputf8);
        let greeting = match &self.state {
            State::AwaitingAnswer(PendingQuestion::Hello { greeting, .. }) => Some(*greeting),
            _ => self.greeting,
        };
        let names = match (self.config.flavor, greeting) {
            (MailProtocol::Lmtp, _) if utf8 => ["UTF8LMTP", "UTF8LMTPA", "UTF8LMTPS", "UTF8LMTPSA"],
            (MailProtocol::Lmtp, _) => ["LMTP", "LMTPA", "LMTPS", "LMTPSA"],
            (MailProtocol::Smtp, _) if utf8 => ["UTF8SMTP", "UTF8SMTPA", "UTF8SMTPS", "UTF8SMTPSA"],
            (MailProtocol::Smtp, Some(GreetingKind::Extended)) => ["ESMTP", "ESMTPA", "ESMTPS", "ESMTPSA"],
            // There are no names for HELO with TLS or a login.
            (MailProtocol::Smtp, _) => ["SMTP"; 4],
        };
        names[usize::from(self.secured) * 2 + usize::from(self.authenticated_user.is_some())]
    }
}

/// Questions and answers.
impl SmtpSession {
    fn ask(&mut self, asked: PendingQuestion, question: SessionQuestion) {
        self.state = State::AwaitingAnswer(asked);
        self.actions.push_back(SessionAction::Ask(question));
    }

    fn take_answer(&mut self, pending: PendingQuestion, answer: SessionAnswer) {
        match pending {
            PendingQuestion::Message => self.message_answered(answer),
            PendingQuestion::Hello { name, greeting } => match answer.refusal() {
                None => self.accept_greeting(name, greeting),
                Some(reply) => self.refuse(self.greeting_stage(greeting), None, reply),
            },
            PendingQuestion::UnknownCommand(reply) => {
                self.refuse(Verb::Unknown.stage(), None, answer.refusal().unwrap_or(reply));
            }
            PendingQuestion::Identity(identity) => match answer.refusal() {
                None => self.accept_identity(*identity),
                Some(reply) => self.refuse_identity(reply),
            },
            PendingQuestion::Mail { sender, smtputf8 } => match answer.refusal() {
                None => self.begin_transaction(smtputf8),
                Some(reply) => self.refuse(Verb::Mail.stage(), sender, reply),
            },
            PendingQuestion::Recipient(address) => match answer.refusal() {
                None => self.add_recipient(),
                Some(reply) => self.refuse(Verb::Rcpt.stage(), Some(address), reply),
            },
            PendingQuestion::Data if self.breaks_sync(self.backlog.len() > self.backlog_used) => {
                self.close_out_of_sync()
            }
            PendingQuestion::Data => match answer.refusal() {
                None => self.start_data(),
                Some(reply) => {
                    self.abandon();
                    self.refuse(Verb::Data.stage(), None, reply);
                }
            },
            PendingQuestion::Login(attempt) => self.login_answered(attempt, answer),
            PendingQuestion::FirstChunk(chunk) => match answer.refusal() {
                None => self.start_chunks(chunk),
                Some(reply) => self.refuse_chunk_data(chunk, reply),
            },
        }
    }

    fn begin_transaction(&mut self, smtputf8: bool) {
        let content = ContentState::new();
        let (recipients, chunks_begun, window, fault) = (0, false, None, None);
        self.transaction = Some(Transaction { smtputf8, recipients, chunks_begun, content, window, fault });
        self.send_reply(replies::MAIL_OK);
    }

    fn add_recipient(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.recipients += 1;
        }
        self.send_reply(replies::RCPT_OK);
    }

    fn start_data(&mut self) {
        self.begin_window();
        self.send_reply(replies::START_DATA);
        self.state = State::Data(DotDecoder::new(self.peer.normalise_bare_newlines));
    }

    fn start_chunks(&mut self, chunk: Chunk) {
        if let Some(transaction) = &mut self.transaction {
            transaction.chunks_begun = true;
        }
        self.begin_window();
        self.state = State::Chunk(chunk);
    }

    /// The chunk is refused, and with it the message.
    fn refuse_chunk_data(&mut self, chunk: Chunk, reply: Reply) {
        let times = if chunk.last { self.replies_at_end() } else { 1 };
        self.abandon();
        self.discard_chunk(chunk, reply, times);
    }

    fn discard_chunk(&mut self, chunk: Chunk, reply: Reply, times: usize) {
        self.state = State::Discard { octets: chunk.octets, reply, times };
    }

    /// The number of replies to the end of a message (RFC 2033 section 4.2).
    fn replies_at_end(&self) -> usize {
        match (self.config.flavor, &self.transaction) {
            (MailProtocol::Lmtp, Some(transaction)) => transaction.recipients.max(1),
            _ => 1,
        }
    }

    fn message_answered(&mut self, answer: SessionAnswer) {
        let times = self.replies_at_end();
        self.transaction = None;
        let reply = match answer {
            SessionAnswer::Accept => replies::MESSAGE_OK,
            SessionAnswer::Refuse(reply) | SessionAnswer::Done(reply) => reply,
            SessionAnswer::Verdict(_) | SessionAnswer::Keys { .. } => replies::UNANSWERED,
        };
        if reply.is_success() {
            self.commands = 0;
            (0..times).for_each(|_| reply.write_wire(&mut self.output));
        } else {
            self.refuse_times("message", None, reply, times);
        }
    }
}

/// Replies, and the ways a session ends.
impl SmtpSession {
    fn send_reply(&mut self, reply: &[u8]) {
        // Writing to a Vec cannot fail.
        let _ = self.output.write_all(reply);
    }

    /// Replies to a command that makes no progress with mail.
    fn send_idle_reply(&mut self, reply: &[u8]) {
        self.commands += 1;
        if self.commands > self.config.limits.commands_max {
            self.close("command", replies::TOO_MANY_COMMANDS);
        } else {
            self.send_reply(reply);
        }
    }

    fn refuse(&mut self, stage: &'static str, address: Option<Address>, reply: Reply) {
        self.refuse_times(stage, address, reply, 1);
    }

    /// Replies 4xx or 5xx, unless the peer has exceeded its limit of errors.
    fn refuse_times(&mut self, stage: &'static str, address: Option<Address>, reply: Reply, times: usize) {
        if self.exceeds_error_limit(stage, &reply) {
            return;
        }
        (0..times).for_each(|_| reply.write_wire(&mut self.output));
        // RFC 5321 section 3.8; and 521, as in Postfix's access(5).
        let closes = matches!(reply.code, 421 | 521);
        self.actions.push_back(SessionAction::Refused { stage, address, reply });
        if closes {
            self.abandon();
            self.state = State::Closed;
        }
    }

    /// Counts a 4xx or 5xx reply, and closes the session beyond the limit.
    fn exceeds_error_limit(&mut self, stage: &'static str, reply: &Reply) -> bool {
        // Once a recipient is accepted, others that are over the limit, or whose lookup failed, are
        // normal.
        let is_unproductive = self.transaction.as_ref().is_none_or(|t| t.recipients == 0);
        self.commands += u32::from(is_unproductive);
        // A 454 to RCPT is a temporary refusal to relay: an untrusted client must not retry without
        // limit.
        let denies_relaying = reply.code == 454 && stage == Verb::Rcpt.stage();
        self.errors += u32::from(reply.is_permanent() || denies_relaying);
        let limits = &self.config.limits;
        let too_far = if self.errors > limits.errors_max {
            Some(replies::TOO_MANY_ERRORS)
        } else {
            (self.commands > limits.commands_max).then_some(replies::TOO_MANY_COMMANDS)
        };
        too_far.inspect(|reply| self.close(stage, reply.clone())).is_some()
    }

    fn close(&mut self, stage: &'static str, reply: Reply) {
        self.abandon();
        reply.write_wire(&mut self.output);
        self.actions.push_back(SessionAction::Refused { stage, address: None, reply });
        self.state = State::Closed;
    }

    /// Drops the open transaction, if any. After a fault, the driver was told before.
    fn abandon(&mut self) {
        if self.transaction.take().is_some_and(|t| t.fault.is_none()) {
            self.actions.push_back(SessionAction::Abandon);
        }
    }

    fn close_if_stopping(&mut self) {
        let busy = match self.state {
            State::AwaitingAnswer(_) | State::Data(_) | State::Chunk(_) | State::Securing | State::Closed => true,
            State::Command | State::LongLine { .. } | State::Discard { .. } | State::Authenticating(_) => {
                self.transaction.as_ref().is_some_and(|t| t.chunks_begun)
            }
        };
        if self.stopping && !busy {
            self.close("shutdown", replies::SHUTDOWN);
        }
    }

    fn close_if_ended(&mut self) {
        if self.ended && !matches!(self.state, State::AwaitingAnswer(_) | State::Closed) {
            self.abandon();
            self.state = State::Closed;
        }
    }
}
