//! The server side of an SMTP or LMTP session. [`Session`] controls the dialogue: the greeting, the
//! open transaction, the replies. It guarantees that no byte is passed on twice or out of order,
//! that replies and messages do not depend on how the input is split, and that a message ends where
//! RFC 5321 says and nowhere else. No error here is fatal: a peer that exceeds a limit gets a
//! reply, and at worst is disconnected.
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
//! | Asked    | the driver's answer   | Hello, Identity, Mail, Recipient: reply, Command. Data: 354, Data; or Chunk. Message: Command. Login: 334, Authenticating; or its end |
//! | Authenticating | a line          | Asked (Login), 334 and Authenticating, or the end: 235, 4xx, 5xx, Command; over the limit: LongLine |
//! | Data     | CRLF `.` CRLF         | Asked (Message); or, if the content was refused, its reply and Command       |
//! | Chunk    | the rest of the chunk | 250, Command; after LAST as Data                                             |
//! | Swallow  | the rest of the chunk | the refusal of its BDAT, Command                                             |
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
//! | BDAT            | swallow, 503| swallow, 503            | swallow, 503    | ask             | chunk      |
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
//! [`Question::Message`] hands the message over to the driver. From then until the answer, no
//! timeout, end of input or shutdown ends the session: the peer must learn what happened to its
//! mail.

mod command;
mod content;
mod dot;
mod exchange;
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

pub use super::Flavor;
pub use exchange::{
    Action, Answer, BodySink, Identity, KeysRequest, LoginRequest, MailRequest, MessageEnd, Question, RcptRequest,
};
pub use limits::Limits;
pub use login::Auth;
pub use tolerance::{NulPolicy, Tolerance};

use command::{Chunk, Verb};
use content::{Content, Fault};
use dot::DotDecoder;
use login::Login;
use rate::Window;

/// The configuration shared by the sessions of a listener.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host name of this server, for the banner and as the domain of `<postmaster>`.
    pub hostname: Box<str>,
    /// SMTP or LMTP.
    pub flavor: Flavor,
    /// Whether the session is, or may be, over TLS.
    pub tls: Tls,
    /// The settings of AUTH; None disables it.
    pub auth: Option<Auth>,
    /// What is accepted beyond RFC 5321.
    pub tolerance: Tolerance,
    /// All limits.
    pub limits: Limits,
}

impl Config {
    /// The first line of a session.
    fn banner(&self) -> String {
        let protocol = match self.flavor {
            Flavor::Smtp => "ESMTP",
            Flavor::Lmtp => "LMTP",
        };
        format!("220 {} {protocol} Mailrace\r\n", self.hostname)
    }
}

/// The use of TLS by the sessions of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// TLS is not available.
    #[default]
    Never,
    /// STARTTLS is offered (RFC 3207).
    Offered,
    /// STARTTLS is required before any mail command.
    Required,
    /// The handshake precedes the first byte of the session (RFC 8314 section 3).
    Implicit,
}

/// What is known of the peer before the session starts.
#[derive(Clone, Debug, Default)]
pub struct Peer {
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
/// [`output`](Session::output). After each event: send the output, perform the actions until there
/// are none left, and close when [`wants_close`](Session::wants_close) is true and the output is
/// sent.
#[derive(Debug)]
pub struct Session {
    config: Arc<Config>,
    peer: Peer,
    helo: Box<str>,
    greeting: Option<Greeting>,
    state: State,
    transaction: Option<Transaction>,
    /// Input that cannot be processed yet, from `backlog_used` on: part of a line, or what follows
    /// a pending question.
    backlog: Vec<u8>,
    backlog_used: usize,
    output: Vec<u8>,
    output_sent: usize,
    actions: VecDeque<Action>,
    started_at: Timestamp,
    heard_at: Timestamp,
    errors: u32,
    commands: u32,
    stopping: bool,
    ended: bool,
    /// TLS is active.
    secured: bool,
    /// The user who has logged in.
    user: Option<Box<str>>,
    failed_logins: u32,
    /// The driver is asked about every greeting.
    asks_hello: bool,
    /// The peer may use XCLIENT.
    trusts_xclient: bool,
    /// The HELO name of the client that the peer speaks for.
    named: Option<Box<str>>,
    /// The name was given before the address of its client.
    named_ahead: bool,
}

/// The form of the peer's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
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
        login: Option<Box<Login>>,
    },
    Asked(Asked),
    /// AUTH has begun, and the client must respond to a challenge.
    Authenticating(Box<Login>),
    Data(DotDecoder),
    Chunk(Chunk),
    /// The remaining octets of a refused BDAT.
    Swallow {
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
enum Asked {
    Hello { name: Box<str>, greeting: Greeting },
    Identity(Box<Identity>),
    Mail { sender: Option<Address>, smtputf8: bool },
    Recipient(Address),
    Data,
    FirstChunk(Chunk),
    Message,
    Login(Box<Login>),
}

#[derive(Debug)]
struct Transaction {
    smtputf8: bool,
    /// The number of accepted recipients.
    recipients: usize,
    /// A BDAT was accepted: the message has begun.
    chunks_begun: bool,
    content: Content,
    /// Measures the data rate, once the message may come.
    window: Option<Window>,
    /// Set: the driver was told to abandon the transaction, but the peer is still sending its data.
    fault: Option<Fault>,
}

impl Session {
    /// Starts a session at `now`; the banner is in its output.
    pub fn new(config: Arc<Config>, peer: Peer, now: Timestamp) -> Self {
        let output = config.banner().into_bytes();
        let secured = config.tls == Tls::Implicit;
        Session {
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
            user: None,
            failed_logins: 0,
            asks_hello: false,
            trusts_xclient: false,
            named: None,
            named_ahead: false,
        }
    }

    /// Makes the session ask the driver about every greeting; otherwise every valid name is
    /// accepted.
    pub fn asking_of_greetings(mut self) -> Self {
        self.asks_hello = true;
        self
    }

    /// Takes all of `input`. What cannot be processed before an answer is kept until then.
    pub fn handle_input(&mut self, now: Timestamp, input: &[u8], body: &mut impl BodySink) {
        self.heard_at = now;
        self.count_octets(input.len());
        if self.backlog.is_empty() {
            let used = self.work(input, body);
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
    pub fn handle_answer(&mut self, now: Timestamp, answer: Answer, body: &mut impl BodySink) {
        if !matches!(self.state, State::Asked(_)) {
            return;
        }
        self.heard_at = now;
        if let State::Asked(asked) = std::mem::replace(&mut self.state, State::Command) {
            self.take_answer(asked, answer);
            self.stop_if_due();
        }
        self.work_on_backlog(body);
        self.end_if_due();
    }

    /// The handshake requested by [`wants_handshake`](Session::wants_handshake) has succeeded.
    /// Everything the peer said before is forgotten (RFC 3207 section 4.2), but counts towards its
    /// limits. Ignored if no handshake was requested. A failed handshake ends the session: call
    /// [`handle_end`](Session::handle_end).
    pub fn handle_secured(&mut self, now: Timestamp) {
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
        self.user = None;
        self.state = State::Command;
        self.stop_if_due();
    }

    /// Call it when [`poll_deadline`](Session::poll_deadline) has passed; before that it does
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
        self.stop_if_due();
    }

    /// The peer closed its side. Earlier input is still answered; an unfinished transaction is
    /// abandoned.
    pub fn handle_end(&mut self) {
        self.ended = true;
        self.end_if_due();
    }

    /// The next action, in order.
    pub fn poll_action(&mut self) -> Option<Action> {
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

    /// When to call [`handle_timeout`](Session::handle_timeout). None while the driver must act.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let limits = &self.config.limits;
        match self.state {
            State::Asked(_) | State::Closed => None,
            _ => {
                let deadline = (self.heard_at + limits.idle_time_max).min(self.started_at + limits.session_time_max);
                Some(self.window_end().map_or(deadline, |end| deadline.min(end)))
            }
        }
    }

    /// Whether more input can be processed now. If not, reading more would only use memory.
    pub fn wants_input(&self) -> bool {
        !matches!(self.state, State::Asked(_) | State::Securing | State::Closed)
    }

    /// Whether the driver must perform the TLS handshake once the output is sent. Bytes read before
    /// belong to [`handle_input`](Session::handle_input), which ends the session; later ones belong
    /// to the handshake.
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

    /// The peer as passed to [`Session::new`], or as changed by XCLIENT.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The user who has logged in, in the spelling of the lookup table (RFC 4954).
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The protocol name of the open transaction for Received lines (RFC 3848, RFC 6531 section
    /// 4.3), from the greeting, with `S` for TLS and `A` for a login.
    pub fn protocol_name(&self) -> &'static str {
        let utf8 = self.transaction.as_ref().is_some_and(|t| t.smtputf8);
        let names = match (self.config.flavor, self.greeting) {
            (Flavor::Lmtp, _) if utf8 => ["UTF8LMTP", "UTF8LMTPA", "UTF8LMTPS", "UTF8LMTPSA"],
            (Flavor::Lmtp, _) => ["LMTP", "LMTPA", "LMTPS", "LMTPSA"],
            (Flavor::Smtp, _) if utf8 => ["UTF8SMTP", "UTF8SMTPA", "UTF8SMTPS", "UTF8SMTPSA"],
            (Flavor::Smtp, Some(Greeting::Extended)) => ["ESMTP", "ESMTPA", "ESMTPS", "ESMTPSA"],
            // There are no names for HELO with TLS or a login.
            (Flavor::Smtp, _) => ["SMTP"; 4],
        };
        names[usize::from(self.secured) * 2 + usize::from(self.user.is_some())]
    }
}

/// Questions and answers.
impl Session {
    fn ask(&mut self, asked: Asked, question: Question) {
        self.state = State::Asked(asked);
        self.actions.push_back(Action::Ask(question));
    }

    fn take_answer(&mut self, asked: Asked, answer: Answer) {
        match asked {
            Asked::Message => self.message_answered(answer),
            Asked::Hello { name, greeting } => match answer.refusal() {
                None => self.be_greeted(name, greeting),
                Some(reply) => self.refuse(self.stage_of(greeting), None, reply),
            },
            Asked::Identity(identity) => match answer.refusal() {
                None => self.adopt(*identity),
                Some(reply) => self.reject(reply),
            },
            Asked::Mail { sender, smtputf8 } => match answer.refusal() {
                None => self.begin_transaction(smtputf8),
                Some(reply) => self.refuse(Verb::Mail.stage(), sender, reply),
            },
            Asked::Recipient(address) => match answer.refusal() {
                None => self.add_recipient(),
                Some(reply) => self.refuse(Verb::Rcpt.stage(), Some(address), reply),
            },
            Asked::Data if self.breaks_sync(self.backlog.len() > self.backlog_used) => self.close_out_of_sync(),
            Asked::Data => match answer.refusal() {
                None => self.start_data(),
                Some(reply) => {
                    self.abandon();
                    self.refuse(Verb::Data.stage(), None, reply);
                }
            },
            Asked::Login(login) => self.login_answered(login, answer),
            Asked::FirstChunk(chunk) => match answer.refusal() {
                None => self.start_chunks(chunk),
                Some(reply) => self.refuse_chunk(chunk, reply),
            },
        }
    }

    fn begin_transaction(&mut self, smtputf8: bool) {
        let content = Content::new();
        let (recipients, chunks_begun, window, fault) = (0, false, None, None);
        self.transaction = Some(Transaction { smtputf8, recipients, chunks_begun, content, window, fault });
        self.say(replies::MAIL_OK);
    }

    fn add_recipient(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.recipients += 1;
        }
        self.say(replies::RCPT_OK);
    }

    fn start_data(&mut self) {
        self.begin_window();
        self.say(replies::START_DATA);
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
    fn refuse_chunk(&mut self, chunk: Chunk, reply: Reply) {
        let times = if chunk.last { self.replies_at_end() } else { 1 };
        self.abandon();
        self.swallow_later(chunk, reply, times);
    }

    fn swallow_later(&mut self, chunk: Chunk, reply: Reply, times: usize) {
        self.state = State::Swallow { octets: chunk.octets, reply, times };
    }

    /// The number of replies to the end of a message (RFC 2033 section 4.2).
    fn replies_at_end(&self) -> usize {
        match (self.config.flavor, &self.transaction) {
            (Flavor::Lmtp, Some(transaction)) => transaction.recipients.max(1),
            _ => 1,
        }
    }

    fn message_answered(&mut self, answer: Answer) {
        let times = self.replies_at_end();
        self.transaction = None;
        let reply = match answer {
            Answer::Accept => replies::MESSAGE_OK,
            Answer::Refuse(reply) | Answer::Done(reply) => reply,
            Answer::Verdict(_) | Answer::Keys { .. } => replies::UNANSWERED,
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
impl Session {
    fn say(&mut self, reply: &[u8]) {
        // Writing to a Vec cannot fail.
        let _ = self.output.write_all(reply);
    }

    /// Replies to a command that makes no progress with mail.
    fn say_idle(&mut self, reply: &[u8]) {
        self.commands += 1;
        if self.commands > self.config.limits.commands_max {
            self.close("command", replies::TOO_MANY_COMMANDS);
        } else {
            self.say(reply);
        }
    }

    fn refuse(&mut self, stage: &'static str, address: Option<Address>, reply: Reply) {
        self.refuse_times(stage, address, reply, 1);
    }

    /// Replies 4xx or 5xx, unless the peer has exceeded its limit of errors.
    fn refuse_times(&mut self, stage: &'static str, address: Option<Address>, reply: Reply, times: usize) {
        if self.goes_too_far(stage, &reply) {
            return;
        }
        (0..times).for_each(|_| reply.write_wire(&mut self.output));
        let closes = reply.code == 421;
        self.actions.push_back(Action::Refused { stage, address, reply });
        if closes {
            self.abandon();
            self.state = State::Closed;
        }
    }

    /// Counts a 4xx or 5xx reply, and closes the session beyond the limit.
    fn goes_too_far(&mut self, stage: &'static str, reply: &Reply) -> bool {
        // Once a recipient is accepted, others that are over the limit, or whose lookup failed, are
        // normal.
        let plays = self.transaction.as_ref().is_none_or(|t| t.recipients == 0);
        self.commands += u32::from(plays);
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
        self.actions.push_back(Action::Refused { stage, address: None, reply });
        self.state = State::Closed;
    }

    /// Drops the open transaction, if any. After a fault, the driver was told before.
    fn abandon(&mut self) {
        if self.transaction.take().is_some_and(|t| t.fault.is_none()) {
            self.actions.push_back(Action::Abandon);
        }
    }

    fn stop_if_due(&mut self) {
        let busy = match self.state {
            State::Asked(_) | State::Data(_) | State::Chunk(_) | State::Securing | State::Closed => true,
            State::Command | State::LongLine { .. } | State::Swallow { .. } | State::Authenticating(_) => {
                self.transaction.as_ref().is_some_and(|t| t.chunks_begun)
            }
        };
        if self.stopping && !busy {
            self.close("shutdown", replies::SHUTDOWN);
        }
    }

    fn end_if_due(&mut self) {
        if self.ended && !matches!(self.state, State::Asked(_) | State::Closed) {
            self.abandon();
            self.state = State::Closed;
        }
    }
}
