//! The server's side of an SMTP or LMTP session. [`Session`] owns the dialogue: what was greeted, which transaction is
//! open, what the peer is told. It promises that no byte is handed on twice or out of order, that output and message
//! are the same however the input was cut, and that the end of a message is found where RFC 5321 has it and nowhere
//! else. Nothing here is fatal: a peer that goes beyond a limit is told so and, at the worst, hung up on.
//!
//! PIPELINING (RFC 2920), SIZE (1870), 8BITMIME (6152), SMTPUTF8 (6531), CHUNKING (3030), ENHANCEDSTATUSCODES (2034),
//! DSN (3461), LIMITS (9422), STARTTLS (3207) and AUTH (4954) are spoken. The handshake of TLS is the driver's, and so is
//! what there is to know of users and their passwords. XCLIENT (`xclient.rs`) is for peers that the driver trusts.
//!
//! # States
//!
//! | state    | waits for             | then                                                                         |
//! |----------|-----------------------|------------------------------------------------------------------------------|
//! | Command  | a line                | the verb's own function; over the limit: LongLine                            |
//! | LongLine | CRLF                  | 500, Command; an exchange of AUTH has failed                                 |
//! | Asked    | the driver's answer   | Hello, Identity, Mail, Recipient: reply, Command. Data: 354, Data; or Chunk. Message: Command. Login: 334, Authenticating; or its end |
//! | Authenticating | a line          | Asked (Login), 334 and Authenticating, or its end: 235, 4xx, 5xx, Command; over the limit: LongLine |
//! | Data     | CRLF `.` CRLF         | Asked (Message); or, if the content was refused, its reply and Command       |
//! | Chunk    | so many bytes         | 250, Command; after LAST as Data                                             |
//! | Swallow  | so many bytes         | the refusal of their BDAT, Command                                           |
//! | Securing | the end of the handshake | Command, as if the session had just begun; any byte in clear text: 554, Closed |
//! | Closed   | nothing               | the end                                                                      |
//!
//! Beside the state stands the transaction, from the accepted MAIL until its message is answered or it is abandoned:
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
//! STARTTLS is there where the configuration offers it and TLS is not in force yet. Until it is, a listener that requires
//! it answers 530 to everything but EHLO, LHLO, NOOP, STARTTLS and QUIT (RFC 3207 section 4). What stands behind the line
//! of STARTTLS in clear text may have been put there by somebody else than the client, and is never worked on: the session
//! ends (the command injection of CVE-2011-0411).
//!
//! AUTH is there where the configuration offers it, and only within TLS unless that says otherwise (538). Where logging in
//! is required MAIL is answered 530 before. A second AUTH after a 235 is 503; a STARTTLS takes the login away, with all else
//! that was said in clear text, and so does an XCLIENT: who logged in was another client.
//!
//! What stands behind the line of DATA before its reply has gone out is the message of a client that does not wait (RFC 2920
//! section 3.1). Where the configuration wants that, it ends the session of a stranger (`tolerance.rs`), whether DATA would
//! have been accepted or refused: a message behind a refused DATA would be read as commands. A stranger whose message comes
//! too slowly loses its session too (`rate.rs`).
//!
//! A refused Data question ends the transaction: DATA is answered at once, BDAT after its bytes were swallowed. So does a
//! fault in the content, which the driver learns at once and the peer after the end of its data.
//!
//! A message becomes the driver's with [`Question::Message`]. From that moment no deadline, no end of input and no
//! shutdown cuts the session short before the answer came: the peer must learn what became of its mail.

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

/// What all sessions of a listener share.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this server: in the banner, and the domain of `<postmaster>`.
    pub hostname: Box<str>,
    /// The protocol.
    pub flavor: Flavor,
    /// Whether the session is, or may become, one over TLS.
    pub tls: Tls,
    /// Who may log in; None: there is no AUTH.
    pub auth: Option<Auth>,
    /// What is taken beyond RFC 5321.
    pub tolerance: Tolerance,
    /// Where everything ends.
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

/// What TLS is to the sessions of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// There is none.
    #[default]
    Never,
    /// STARTTLS may be used (RFC 3207).
    Offered,
    /// Nothing of mail is spoken before STARTTLS.
    Required,
    /// The handshake came before the first byte of the session (RFC 8314 section 3).
    Implicit,
}

/// What is known of the peer before it says a word.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its address; None where nobody knows it.
    pub address: Option<IpAddr>,
    /// A bare CR or LF in its messages becomes CRLF, where others have the message refused.
    pub normalise_bare_newlines: bool,
    /// It may send to other people's domains. The session also accepts some input from it that it refuses to strangers.
    pub may_relay: bool,
}

/// One session of one peer.
///
/// Events come in by the `handle_*` methods, actions go out by the `poll_*` methods and [`output`](Session::output).
/// After each event: send the output, do the actions until there are none, and close when
/// [`wants_close`](Session::wants_close) says so and the output is sent.
#[derive(Debug)]
pub struct Session {
    config: Arc<Config>,
    peer: Peer,
    helo: Box<str>,
    greeting: Option<Greeting>,
    state: State,
    transaction: Option<Transaction>,
    /// Input that could not be worked on yet, from `backlog_used` on: part of a line, or what waits for an answer.
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
    /// TLS is in force.
    secured: bool,
    /// Who has logged in.
    user: Option<Box<str>>,
    failed_logins: u32,
    /// The driver is asked of every greeting.
    asks_hello: bool,
    /// The peer may speak for others.
    trusts_xclient: bool,
    /// What the client calls itself for whom the peer speaks.
    named: Option<Box<str>>,
    /// That was said before the address of the client whose name it is.
    named_ahead: bool,
}

/// How the peer introduced itself.
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
        /// It is one of an exchange of AUTH, which is over with it.
        login: Option<Box<Login>>,
    },
    Asked(Asked),
    /// AUTH has begun, and the client is to respond to a challenge.
    Authenticating(Box<Login>),
    Data(DotDecoder),
    Chunk(Chunk),
    /// So many octets of a refused BDAT are still to come.
    Swallow {
        octets: u64,
        reply: Reply,
        times: usize,
    },
    /// STARTTLS was answered; the driver is to make the handshake.
    Securing,
    Closed,
}

/// What the open question was about.
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
    /// Accepted ones.
    recipients: usize,
    /// BDAT was accepted: the message has begun.
    chunks_begun: bool,
    content: Content,
    /// How fast its message comes; from the moment on at which it may.
    window: Option<Window>,
    /// Set: the driver was told to abandon the transaction, but the peer has not ended its data yet.
    fault: Option<Fault>,
}

impl Session {
    /// A session that begins `now`. The banner is in its output.
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

    /// Has the driver asked whether it likes what the peer calls itself; else every sound name is taken.
    pub fn asking_of_greetings(mut self) -> Self {
        self.asks_hello = true;
        self
    }

    /// Takes all of `input`. What cannot be worked on before an answer comes is kept and worked on when it is there.
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

    /// Takes the answer to the open question; without one it is ignored, for the session may have closed meanwhile.
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

    /// The handshake that [`wants_handshake`](Session::wants_handshake) asked for has succeeded. Nothing that the peer said
    /// before is known any more (RFC 3207 section 4.2); what it used up of its limits is. Where no handshake was wanted it
    /// does nothing. One that failed is the end of the session: [`handle_end`](Session::handle_end).
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

    /// Call it when [`poll_deadline`](Session::poll_deadline) has passed; earlier it does nothing.
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

    /// The server stops: 421, at once or as soon as the message that is just coming is answered.
    pub fn handle_shutdown(&mut self, _now: Timestamp) {
        self.stopping = true;
        self.stop_if_due();
    }

    /// The peer closed its side. What it sent before is still answered; an unfinished transaction is abandoned.
    pub fn handle_end(&mut self) {
        self.ended = true;
        self.end_if_due();
    }

    /// The next thing to do, in order.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            self.actions = VecDeque::new();
        }
        action
    }

    /// Bytes to send, in order.
    pub fn output(&self) -> &[u8] {
        &self.output[self.output_sent..]
    }

    /// The first `count` bytes of the output went out.
    pub fn handle_sent(&mut self, count: usize) {
        self.output_sent = self.output.len().min(self.output_sent + count);
        if self.output_sent == self.output.len() {
            self.output = Vec::new();
            self.output_sent = 0;
        }
    }

    /// When [`handle_timeout`](Session::handle_timeout) is due. None while it is the driver's turn.
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

    /// Whether more input could be worked on now. While it cannot, reading on only fills memory.
    pub fn wants_input(&self) -> bool {
        !matches!(self.state, State::Asked(_) | State::Securing | State::Closed)
    }

    /// Whether the driver is to make the handshake of TLS as soon as the output is sent. What it has read of the peer by
    /// then belongs to [`handle_input`](Session::handle_input), which ends the session; what comes later is the handshake's.
    pub fn wants_handshake(&self) -> bool {
        matches!(self.state, State::Securing)
    }

    /// Whether the connection is to be closed once the output is sent.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The name that the peer gave itself; empty before.
    pub fn helo(&self) -> &str {
        &self.helo
    }

    /// The peer, as it was given to [`Session::new`], or as it named itself since by XCLIENT.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Who has logged in, in the spelling of the table (RFC 4954).
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The protocol of the open transaction, as Received lines name it (RFC 3848, RFC 6531 section 4.3): with the greeting's
    /// word, `S` for TLS and `A` for a login.
    pub fn protocol_name(&self) -> &'static str {
        let utf8 = self.transaction.as_ref().is_some_and(|t| t.smtputf8);
        let names = match (self.config.flavor, self.greeting) {
            (Flavor::Lmtp, _) if utf8 => ["UTF8LMTP", "UTF8LMTPA", "UTF8LMTPS", "UTF8LMTPSA"],
            (Flavor::Lmtp, _) => ["LMTP", "LMTPA", "LMTPS", "LMTPSA"],
            (Flavor::Smtp, _) if utf8 => ["UTF8SMTP", "UTF8SMTPA", "UTF8SMTPS", "UTF8SMTPSA"],
            (Flavor::Smtp, Some(Greeting::Extended)) => ["ESMTP", "ESMTPA", "ESMTPS", "ESMTPSA"],
            // No name stands for HELO over TLS, nor for HELO after a login.
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

    /// The chunk is not wanted, and so neither is the message.
    fn refuse_chunk(&mut self, chunk: Chunk, reply: Reply) {
        let times = if chunk.last { self.replies_at_end() } else { 1 };
        self.abandon();
        self.swallow_later(chunk, reply, times);
    }

    fn swallow_later(&mut self, chunk: Chunk, reply: Reply, times: usize) {
        self.state = State::Swallow { octets: chunk.octets, reply, times };
    }

    /// How many replies the end of a message gets (RFC 2033 section 4.2).
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

/// Replies, and the ways in which a session ends.
impl Session {
    fn say(&mut self, reply: &[u8]) {
        // Writing to a Vec cannot fail.
        let _ = self.output.write_all(reply);
    }

    /// Replies to a command that brings no mail forward.
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

    /// Replies 4xx or 5xx, unless the peer had too many of these already.
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

    /// Counts a reply 4xx or 5xx, and closes where there were too many.
    fn goes_too_far(&mut self, stage: &'static str, reply: &Reply) -> bool {
        // Recipients over the limit, or whose directory is down, are no sign of a peer that only plays.
        let plays = self.transaction.as_ref().is_none_or(|t| t.recipients == 0);
        self.commands += u32::from(plays);
        // RCPT gets 454 for relaying that is denied for now: a stranger must not try for as long as it likes.
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

    /// Drops the transaction, if there is one. After a fault the driver has been told before.
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
