//! The server side of an IMAP session before its login (the not authenticated state, RFC 9051
//! section 3.1). [`ImapLoginSession`] finds out who the client is; then another host serves the
//! mailbox, and [`ImapLoginSession::hand_over`] passes on what the client has sent so far. Replies do
//! not depend on how the input is split. No error is fatal: a client that exceeds a limit gets a BYE
//! and is disconnected.
//!
//! Supported are literals (LITERAL+, RFC 7888), ID (RFC 2971), STARTTLS, and AUTHENTICATE with an
//! initial response (SASL-IR, RFC 4959) with the mechanisms of [`sasl`](crate::sasl).
//!
//! # States
//!
//! | state          | waits for                | then                                                     |
//! |----------------|--------------------------|----------------------------------------------------------|
//! | Command        | a command with its literals | its reply; AwaitingLogin, Authenticating, Securing, or Closed |
//! | Authenticating | a line                   | AwaitingLogin, `+` and Authenticating, or NO and Command |
//! | AwaitingLogin  | the verdict or the keys  | accepted: AwaitingOpen. Else NO and Command, or `+` and Authenticating |
//! | AwaitingOpen   | the driver               | HandedOver; or NO and Command                            |
//! | Securing       | the end of the handshake | Command; any byte in clear text: BYE, Closed             |
//! | HandedOver     | nothing                  | the session belongs to another host                      |
//! | Closed         | nothing                  | the end                                                  |
//!
//! | command       | reply                                                                               |
//! |---------------|-------------------------------------------------------------------------------------|
//! | CAPABILITY, NOOP, ID | OK                                                                            |
//! | STARTTLS      | OK, and the handshake; BAD if it is not offered                                      |
//! | LOGIN, AUTHENTICATE | OK in the words of the host that stores the mailbox; NO with a code of RFC 5530; NO \[PRIVACYREQUIRED\] where TLS is needed first |
//! | LOGOUT        | BYE, OK, and the end                                                                 |
//! | others        | BAD                                                                                  |
//!
//! Clear text after the STARTTLS line may have been injected by an attacker and is never processed:
//! the session ends (CVE-2011-0411).

mod command;
mod limits;
mod login;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use mail::Timestamp;

pub use limits::ImapLimits;
pub use login::ImapAuthConfig;

use command::{ArgumentReader, CommandScan};
use login::AuthAttempt;

use crate::TlsMode;
use crate::backend_login::BackendAcceptance;
use crate::sasl::{Mechanism, SaslOutcome, Secret};

/// The configuration shared by the sessions of a listener.
#[derive(Clone, Debug)]
pub struct ImapServerConfig {
    /// The host name of this server, for the greeting.
    pub hostname: Box<str>,
    /// Whether the session is, or may be, over TLS.
    pub tls: TlsMode,
    /// How clients log in.
    pub auth: ImapAuthConfig,
    /// All limits.
    pub limits: ImapLimits,
}

/// What the driver must do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImapAction {
    /// Answer the question. Nothing else happens until then.
    Ask(ImapQuestion),
    /// A login attempt has ended: log it.
    Login {
        /// Its mechanism; [`Mechanism::Plain`] for the command LOGIN.
        mechanism: Mechanism,
        /// The user name that the client gave; empty if it did not get that far.
        user: Box<str>,
        /// The result.
        outcome: SaslOutcome,
    },
    /// The session was closed by a limit or an error of the client: log it.
    Refused {
        /// What the client was doing: `command`, `login`, `idle`, `STARTTLS` or `shutdown`.
        stage: &'static str,
        /// The text of the BYE.
        reply: Box<str>,
    },
}

/// A question to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImapQuestion {
    /// Is this the user's password? Answer with
    /// [`ImapLoginSession::handle_password_verdict`].
    Password {
        /// The user name that the client gave.
        user: Box<str>,
        /// The password.
        password: Secret,
    },
    /// Which keys are stored for the user? Answer with [`ImapLoginSession::handle_scram_keys`].
    ScramKeys {
        /// The user name that the client gave.
        user: Box<str>,
    },
    /// The user has logged in: find the host of the mailbox. Answer with
    /// [`ImapLoginSession::hand_over`] or [`ImapLoginSession::handle_open_refused`].
    Open {
        /// The user name in the spelling of the lookup table.
        user: Box<str>,
    },
}

/// Why a mailbox cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImapOpenRefusal {
    /// Not at present (RFC 5530: UNAVAILABLE).
    Unavailable,
    /// The user has no mailbox (RFC 5530: AUTHORIZATIONFAILED).
    NoMailbox,
    /// In the words of the host that stores the mailbox, without control characters. They begin with
    /// a response code.
    Backend(Box<str>),
}

/// One session of one client, up to its login.
///
/// Events come in by the `handle_*` methods, actions go out by
/// [`poll_action`](ImapLoginSession::poll_action) and [`output`](ImapLoginSession::output). After each
/// event: perform the actions until there are none left, send the output, and close when
/// [`wants_close`](ImapLoginSession::wants_close) is true and the output is sent.
#[derive(Debug)]
pub struct ImapLoginSession {
    config: Arc<ImapServerConfig>,
    state: State,
    /// Input that cannot be processed yet: a part of a command, or what follows a pending question.
    backlog: Vec<u8>,
    output: Vec<u8>,
    output_sent: usize,
    actions: VecDeque<ImapAction>,
    started_at: Timestamp,
    heard_at: Timestamp,
    /// The `+` sent for literals of the command that is arriving.
    literals_invited: usize,
    commands: u32,
    failed_logins: u32,
    stopping: bool,
    ended: bool,
    /// TLS is active.
    secured: bool,
}

#[derive(Debug)]
enum State {
    Command,
    Authenticating(Box<AuthAttempt>),
    AwaitingLogin(Box<AuthAttempt>),
    AwaitingOpen { tag: Box<str> },
    Securing,
    HandedOver,
    Closed,
}

/// The events.
impl ImapLoginSession {
    /// Starts a session at `now`; the greeting is in its output.
    pub fn new(config: Arc<ImapServerConfig>, now: Timestamp) -> ImapLoginSession {
        let secured = config.tls == TlsMode::Implicit;
        let mut session = ImapLoginSession {
            config,
            state: State::Command,
            backlog: Vec::new(),
            output: Vec::new(),
            output_sent: 0,
            actions: VecDeque::new(),
            started_at: now,
            heard_at: now,
            literals_invited: 0,
            commands: 0,
            failed_logins: 0,
            stopping: false,
            ended: false,
            secured,
        };
        let greeting = format!("* OK [CAPABILITY {}] {} Mailrace\r\n", session.capabilities(), session.config.hostname);
        session.output = greeting.into_bytes();
        session
    }

    /// Takes all of `input`. What cannot be processed before an answer is kept until then.
    pub fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.heard_at = now;
        if self.backlog.is_empty() {
            let used = self.process_input(input);
            self.backlog.extend_from_slice(&input[used..]);
        } else {
            self.backlog.extend_from_slice(input);
            self.work_on_backlog();
        }
    }

    /// The answer to [`ImapQuestion::Open`]: the mailbox cannot be opened. Ignored if it was not
    /// asked.
    pub fn handle_open_refused(&mut self, now: Timestamp, refusal: &ImapOpenRefusal) {
        if !matches!(self.state, State::AwaitingOpen { .. }) {
            return;
        }
        self.heard_at = now;
        if let State::AwaitingOpen { tag } = mem::replace(&mut self.state, State::Command) {
            let text: &str = match refusal {
                ImapOpenRefusal::Unavailable => "[UNAVAILABLE] The mailbox is temporarily unavailable",
                ImapOpenRefusal::NoMailbox => "[AUTHORIZATIONFAILED] There is no mailbox for this user",
                ImapOpenRefusal::Backend(text) => text,
            };
            self.refuse_command(&tag, "NO", text);
        }
        self.go_on();
    }

    /// The answer to [`ImapQuestion::Open`]: another host has accepted the login. Its words and what
    /// is left of the output are to be sent to the client, and then what it sends. Returns what the
    /// client has sent after its login, which that host must get first. Nothing was asked: None.
    pub fn hand_over(&mut self, acceptance: &BackendAcceptance) -> Option<Vec<u8>> {
        let State::AwaitingOpen { tag } = &self.state else { return None };
        if let Some(capability) = &acceptance.capability_line {
            self.output.extend([capability.as_bytes(), b"\r\n"].concat());
        }
        self.output.extend([tag.as_bytes(), b" OK ", acceptance.text.as_bytes(), b"\r\n"].concat());
        self.state = State::HandedOver;
        Some(mem::take(&mut self.backlog))
    }

    /// The handshake requested by [`wants_handshake`](ImapLoginSession::wants_handshake) has
    /// succeeded. Ignored if none was requested. A failed handshake ends the session: call
    /// [`handle_disconnect`](ImapLoginSession::handle_disconnect).
    pub fn handle_tls_established(&mut self, now: Timestamp) {
        if matches!(self.state, State::Securing) {
            self.heard_at = now;
            self.secured = true;
            self.state = State::Command;
            self.close_if_stopping();
        }
    }

    /// Call it when [`poll_deadline`](ImapLoginSession::poll_deadline) has passed; before that it does
    /// nothing.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_deadline().is_some_and(|deadline| now >= deadline) {
            self.close("idle", "Too slow to log in");
        }
    }

    /// The server shuts down: BYE, immediately or after the answer to the pending question.
    pub fn handle_shutdown(&mut self, _now: Timestamp) {
        self.stopping = true;
        self.close_if_stopping();
    }

    /// The client closed its side. Earlier input is still answered.
    pub fn handle_disconnect(&mut self) {
        self.ended = true;
        self.close_if_ended();
    }
}

/// What the driver polls.
impl ImapLoginSession {
    /// The next action, in order.
    pub fn poll_action(&mut self) -> Option<ImapAction> {
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

    /// When to call [`handle_timeout`](ImapLoginSession::handle_timeout). None while the driver must
    /// act.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let limits = &self.config.limits;
        match self.state {
            State::Command | State::Authenticating(_) | State::Securing => {
                Some((self.heard_at + limits.idle_time_max).min(self.started_at + limits.login_time_max))
            }
            State::AwaitingLogin(_) | State::AwaitingOpen { .. } | State::HandedOver | State::Closed => None,
        }
    }

    /// Whether the driver must perform the TLS handshake once the output is sent. Bytes read before
    /// belong to [`handle_input`](ImapLoginSession::handle_input), which ends the session; later ones
    /// belong to the handshake.
    pub fn wants_handshake(&self) -> bool {
        matches!(self.state, State::Securing)
    }

    /// Whether to close the connection once the output is sent.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, State::Closed)
    }
}

/// Input and commands.
impl ImapLoginSession {
    /// Processes as much input as possible; returns the number of bytes used.
    fn process_input(&mut self, input: &[u8]) -> usize {
        let mut used = 0;
        while let Some(count) = self.step(&input[used..]) {
            used += count;
            self.close_if_stopping();
        }
        used
    }

    fn work_on_backlog(&mut self) {
        let mut backlog = mem::take(&mut self.backlog);
        let used = self.process_input(&backlog);
        if used < backlog.len() {
            backlog.drain(..used);
            self.backlog = backlog;
        }
    }

    /// Goes on after an answer of the driver.
    fn go_on(&mut self) {
        self.close_if_stopping();
        self.work_on_backlog();
        self.close_if_ended();
    }

    /// Takes one step of the state table. Returns the number of bytes used, or None if more input or
    /// an answer is needed.
    fn step(&mut self, input: &[u8]) -> Option<usize> {
        match self.state {
            State::Command => self.take_command(input),
            State::Authenticating(_) => self.take_response(input),
            State::AwaitingLogin(_) | State::AwaitingOpen { .. } | State::HandedOver => None,
            State::Securing if input.is_empty() => None,
            State::Securing => {
                self.close("STARTTLS", "Clear text received after STARTTLS");
                Some(input.len())
            }
            State::Closed => (!input.is_empty()).then_some(input.len()),
        }
    }

    fn take_command(&mut self, input: &[u8]) -> Option<usize> {
        match command::scan(input, &self.config.limits) {
            CommandScan::Complete { octets, invitations } => {
                self.invite_literals(invitations);
                self.literals_invited = 0;
                // Without the CRLF.
                self.run_command(&input[..octets - 2]);
                Some(octets)
            }
            CommandScan::Incomplete { invitations } => {
                self.invite_literals(invitations);
                None
            }
            CommandScan::Invalid { reason, invitations } => {
                self.invite_literals(invitations);
                self.close("command", reason);
                Some(input.len())
            }
        }
    }

    /// Clients wait for a `+` before they send a synchronizing literal (RFC 9051 section 4.3).
    fn invite_literals(&mut self, invitations: usize) {
        for _ in self.literals_invited..invitations {
            self.output.extend(b"+ OK\r\n");
        }
        self.literals_invited = invitations;
    }

    fn run_command(&mut self, command: &[u8]) {
        let mut arguments = ArgumentReader::new(command);
        let Some(tag) = arguments.tag() else {
            return self.refuse_command("*", "BAD", "Invalid tag");
        };
        let Some(name) = arguments.space_and_atom() else {
            return self.refuse_command(tag, "BAD", "Command expected");
        };
        match name.to_ascii_uppercase().as_str() {
            "CAPABILITY" if arguments.is_at_end() => {
                let capabilities = format!("* CAPABILITY {}\r\n", self.capabilities());
                self.answer(&capabilities, tag, "Capability completed");
            }
            "NOOP" if arguments.is_at_end() => self.answer("", tag, "NOOP completed"),
            "ID" if arguments.is_id() => self.answer("* ID (\"name\" \"Mailrace\")\r\n", tag, "ID completed"),
            "LOGOUT" if arguments.is_at_end() => {
                self.answer("* BYE Logging out\r\n", tag, "Logout completed");
                self.state = State::Closed;
            }
            "STARTTLS" if arguments.is_at_end() => self.start_tls(tag),
            "LOGIN" => self.log_in(tag, arguments),
            "AUTHENTICATE" => self.authenticate(tag, arguments),
            "CAPABILITY" | "NOOP" | "ID" | "LOGOUT" | "STARTTLS" => {
                self.refuse_command(tag, "BAD", "Unexpected arguments");
            }
            _ => self.refuse_command(tag, "BAD", "Unknown command, or not available before login"),
        }
    }

    fn start_tls(&mut self, tag: &str) {
        if self.is_starttls_offered() {
            self.reply(tag, "OK", "Begin TLS negotiation now");
            self.state = State::Securing;
        } else {
            self.refuse_command(tag, "BAD", "STARTTLS is not available");
        }
    }

    fn is_starttls_offered(&self) -> bool {
        !self.secured && matches!(self.config.tls, TlsMode::Offered | TlsMode::Required)
    }

    /// What the client can use now. LOGINDISABLED means that only TLS makes a login possible, or that
    /// the command LOGIN does not (RFC 9051 section 6.2.3).
    fn capabilities(&self) -> String {
        let mut text = String::from("IMAP4rev1 LITERAL+ SASL-IR ID");
        if self.is_starttls_offered() {
            text += " STARTTLS";
        }
        let auth = &self.config.auth;
        if !self.is_login_allowed() || !auth.has_passwords() {
            text += " LOGINDISABLED";
        }
        if self.is_login_allowed() {
            auth.mechanisms.iter().for_each(|mechanism| text.extend([" AUTH=", mechanism.name()]));
        }
        text
    }
}

/// Replies, and the ways a session ends.
impl ImapLoginSession {
    fn reply(&mut self, tag: &str, status: &str, text: &str) {
        self.output.extend([tag, " ", status, " ", text, "\r\n"].concat().into_bytes());
    }

    /// Replies OK to a command that is not a login, after these lines.
    fn answer(&mut self, lines: &str, tag: &str, text: &str) {
        if self.count_command() {
            self.output.extend(lines.as_bytes());
            self.reply(tag, "OK", text);
        }
    }

    /// Replies NO or BAD.
    fn refuse_command(&mut self, tag: &str, status: &str, text: &str) {
        if self.count_command() {
            self.reply(tag, status, text);
        }
    }

    /// Counts a command that is not a login; false if there were too many, and the session is closed.
    fn count_command(&mut self) -> bool {
        self.commands += 1;
        let is_within = self.commands <= self.config.limits.commands_max;
        if !is_within {
            self.close("command", "Too many commands without login");
        }
        is_within
    }

    fn close(&mut self, stage: &'static str, text: &str) {
        self.output.extend(["* BYE ", text, "\r\n"].concat().into_bytes());
        self.actions.push_back(ImapAction::Refused { stage, reply: text.into() });
        self.state = State::Closed;
    }

    fn close_if_stopping(&mut self) {
        if self.stopping && matches!(self.state, State::Command | State::Authenticating(_)) {
            self.close("shutdown", "The server is shutting down");
        }
    }

    fn close_if_ended(&mut self) {
        if self.ended && !matches!(self.state, State::AwaitingLogin(_) | State::AwaitingOpen { .. }) {
            self.state = State::Closed;
        }
    }
}
