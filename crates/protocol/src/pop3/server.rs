//! The server side of a POP3 session. [`Pop3Server`] controls the dialogue: the greeting, the login,
//! the replies, which messages are marked as deleted. It guarantees that output does not depend on
//! how the input is split, and that only QUIT deletes: a lost connection, a timeout or a shutdown
//! deletes nothing. No error here is fatal: a client that exceeds a limit gets a reply, and at worst
//! is disconnected.
//!
//! Supported are RFC 1939 with TOP, UIDL, USER and PASS, CAPA, PIPELINING and response codes (RFC
//! 2449, 3206), STLS (2595), AUTH (5034), and UTF8 and LANG (6856). APOP is not, since it needs
//! passwords in clear text at the server. The driver performs the TLS handshake, looks up users and
//! passwords, and has the maildrop and its files.
//!
//! # States
//!
//! | state          | waits for                | then                                                    |
//! |----------------|--------------------------|---------------------------------------------------------|
//! | Command        | a line                   | the function of the verb; over the limit: LongLine      |
//! | LongLine       | LF                       | -ERR, Command; fails an AUTH exchange                   |
//! | Authenticating | a line                   | Asked (login), `+` and Authenticating, or the end: -ERR, Command; over the limit: LongLine |
//! | Asked          | the driver's answer      | login: Asked (open), or `+` and Authenticating. Open, update: Command, Closed. Content: Command, Copying or SendingFile. Chunk: Copying, Command |
//! | Listing        | room in the output       | the next lines; after the last one Command              |
//! | Copying        | room in the output       | Asked (chunk)                                           |
//! | SendingFile    | its ranges to be sent    | the end of the message, Command                         |
//! | Securing       | the end of the handshake | Command, as in a new session; any byte in clear text: -ERR, Closed |
//! | Closed         | nothing                  | the end                                                 |
//!
//! The state is combined with that of RFC 1939 section 3, which is "transaction" while a maildrop is
//! open. QUIT enters "update", in which the driver removes what is marked as deleted.
//!
//! | verb                          | authorization         | transaction                |
//! |-------------------------------|-----------------------|----------------------------|
//! | CAPA, LANG                    | +OK                   | +OK                        |
//! | USER, UTF8                    | +OK                   | -ERR                       |
//! | PASS                          | after USER: ask       | -ERR                       |
//! | AUTH                          | ask, `+`              | -ERR                       |
//! | STLS                          | +OK, secure           | -ERR                       |
//! | STAT, LIST, UIDL, NOOP, RSET  | -ERR                  | +OK                        |
//! | RETR, TOP                     | -ERR                  | ask; a marked message: -ERR |
//! | DELE                          | -ERR                  | mark; a marked message: -ERR |
//! | QUIT                          | +OK, close            | ask, +OK or -ERR, close    |
//!
//! STLS is offered if it is configured and TLS is not active yet. Clear text after the STLS line may
//! have been injected by an attacker and is never processed: the session ends (as with STARTTLS,
//! CVE-2011-0411). What was received in clear text, also UTF8 and a user name, is forgotten. Logins
//! need TLS unless the configuration allows clear text.
//!
//! # Output
//!
//! Commands that arrive together are processed together, and their output is sent at once, as long
//! as less than [`OUTPUT_WAITING_MAX`] of it waits. Then the session is stalled until everything is
//! sent: [`can_continue`](Pop3Server::can_continue). So a client that sends commands and never reads
//! occupies a limited amount of memory (`limits.rs`).

mod actions;
mod command;
mod content;
mod encoder;
mod input;
mod limits;
mod listing;
mod login;
mod maildrop;
mod replies;
#[cfg(test)]
mod tests;
mod verbs;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use mail::Timestamp;

pub use actions::{Content, MaildropListing, OpenRefusal, Pop3Action, Pop3Output, Pop3Question};
pub use limits::{OUTPUT_WAITING_MAX, Pop3Limits};
pub use login::Pop3AuthConfig;

use content::FileContent;
use encoder::ContentEncoder;
use listing::ListingCursor;
use login::AuthAttempt;
use maildrop::OpenMaildrop;
use replies::Refusal;

use crate::TlsMode;
use crate::sasl::{Nonce, PasswordVerdict, ScramKeysAnswer};

/// The configuration shared by the sessions of a listener.
#[derive(Clone, Debug)]
pub struct Pop3ServerConfig {
    /// The host name of this server, for the greeting.
    pub hostname: Box<str>,
    /// Whether the session is, or may be, over TLS.
    pub tls: TlsMode,
    /// How clients log in.
    pub auth: Pop3AuthConfig,
    /// All limits.
    pub limits: Pop3Limits,
}

/// One session of one client.
///
/// Events come in by the `handle_*` methods, actions go out by
/// [`poll_action`](Pop3Server::poll_action) and [`output`](Pop3Server::output). After each event:
/// perform the actions until there are none left, send the output until there is none left, and
/// repeat both while [`can_continue`](Pop3Server::can_continue). Then close if
/// [`wants_close`](Pop3Server::wants_close), or read on. Answers to questions that are not pending
/// are ignored, since the session may have closed in the meantime.
pub struct Pop3Server {
    config: Arc<Pop3ServerConfig>,
    step: Step,
    /// In the transaction state.
    maildrop: Option<Box<OpenMaildrop>>,
    /// The user whose maildrop is, or was, open.
    user: Option<Box<str>>,
    /// The argument of USER.
    named_user: Option<Box<[u8]>>,
    /// Input that cannot be processed yet, from `backlog_used` on: part of a line, or what follows a
    /// pending question or a stall.
    backlog: Vec<u8>,
    backlog_used: usize,
    output: Vec<u8>,
    output_sent: usize,
    /// Actions that come before the question.
    actions: VecDeque<Pop3Action>,
    /// The pending question, until the driver has it.
    question: Option<Pop3Question>,
    started_at: Timestamp,
    /// When the client last sent something or accepted output, or the driver answered.
    active_at: Timestamp,
    /// When the time for the login began.
    login_from: Timestamp,
    errors: u32,
    commands: u32,
    failed_logins: u32,
    /// Processing stopped with work left, and can continue when the output is sent.
    stalled: bool,
    stopping: bool,
    ended: bool,
    /// TLS is active.
    secured: bool,
}

/// The states of the first table.
#[derive(Debug)]
enum Step {
    Command,
    /// With the AUTH exchange that the line belongs to, which fails with it.
    LongLine(Option<Box<AuthAttempt>>),
    Authenticating(Box<AuthAttempt>),
    Asked(PendingQuestion),
    Listing(ListingCursor),
    Copying(Box<ContentEncoder>),
    SendingFile(Box<FileContent>),
    Securing,
    Closed,
}

/// What the pending question is about.
#[derive(Debug)]
enum PendingQuestion {
    Login(Box<AuthAttempt>),
    Open { user: Box<str> },
    Content { message: usize, lines: Option<u32> },
    Chunk(Box<ContentEncoder>),
    Update,
}

/// Events and actions.
impl Pop3Server {
    /// Starts a session at `now`; the greeting is in its output.
    pub fn new(config: Arc<Pop3ServerConfig>, now: Timestamp) -> Self {
        // Without a timestamp in angle brackets, which would offer APOP (RFC 1939 section 7).
        let output = format!("+OK {} POP3 Mailrace\r\n", config.hostname).into_bytes();
        let secured = config.tls == TlsMode::Implicit;
        Pop3Server {
            config,
            step: Step::Command,
            maildrop: None,
            user: None,
            named_user: None,
            backlog: Vec::new(),
            backlog_used: 0,
            output,
            output_sent: 0,
            actions: VecDeque::new(),
            question: None,
            started_at: now,
            active_at: now,
            login_from: now,
            errors: 0,
            commands: 0,
            failed_logins: 0,
            stalled: false,
            stopping: false,
            ended: false,
            secured,
        }
    }

    /// Takes all of `input`. What cannot be processed yet is kept, so no more should be read before
    /// the output is sent.
    pub fn handle_input(&mut self, now: Timestamp, input: &[u8]) {
        self.active_at = now;
        if self.backlog.is_empty() {
            let used = self.process_input(input);
            self.backlog.extend_from_slice(&input[used..]);
        } else {
            self.backlog.drain(..self.backlog_used);
            self.backlog_used = 0;
            self.backlog.extend_from_slice(input);
            self.work_on_backlog();
        }
    }

    /// The answer to [`Pop3Question::Password`].
    pub fn handle_password_verdict(&mut self, now: Timestamp, verdict: PasswordVerdict) {
        if let Some(PendingQuestion::Login(attempt)) = self.take_question(PendingQuestion::is_login) {
            self.answer_login(attempt, |exchange| exchange.handle_password_verdict(verdict));
            self.continue_after_answer(now);
        }
    }

    /// The answer to [`Pop3Question::ScramKeys`], and a nonce of this server that was never used
    /// before.
    pub fn handle_scram_keys(&mut self, now: Timestamp, keys: ScramKeysAnswer, nonce: &Nonce) {
        if let Some(PendingQuestion::Login(attempt)) = self.take_question(PendingQuestion::is_login) {
            self.answer_login(attempt, |exchange| exchange.handle_scram_keys(keys, nonce));
            self.continue_after_answer(now);
        }
    }

    /// The answer to [`Pop3Question::Open`]. The session keeps the listing until QUIT or its end.
    pub fn handle_opened(&mut self, now: Timestamp, opened: Result<Arc<dyn MaildropListing>, OpenRefusal>) {
        let is_open = |question: &PendingQuestion| matches!(question, PendingQuestion::Open { .. });
        if let Some(PendingQuestion::Open { user }) = self.take_question(is_open) {
            self.take_opened(user, opened);
            self.continue_after_answer(now);
        }
    }

    /// The other answer to [`Pop3Question::Open`], of a proxy: another host has accepted the login,
    /// and has the session from now on. Returns what the client has sent after its login, which that
    /// host must get first; what is left of the output must be sent before its reply. None: nothing
    /// was asked.
    pub fn take_pipelined_input(&mut self) -> Option<Vec<u8>> {
        let is_open = |question: &PendingQuestion| matches!(question, PendingQuestion::Open { .. });
        self.take_question(is_open)?;
        self.step = Step::Closed;
        let mut backlog = std::mem::take(&mut self.backlog);
        backlog.drain(..std::mem::take(&mut self.backlog_used));
        Some(backlog)
    }

    /// The answer to [`Pop3Question::Retrieve`].
    pub fn handle_content(&mut self, now: Timestamp, content: Content<'_>) {
        let is_content = |question: &PendingQuestion| matches!(question, PendingQuestion::Content { .. });
        if let Some(PendingQuestion::Content { message, lines }) = self.take_question(is_content) {
            self.take_content(message, lines, content);
            self.continue_after_answer(now);
        }
    }

    /// The answer to [`Pop3Question::More`]: the next stored bytes, and whether they are the last.
    pub fn handle_chunk(&mut self, now: Timestamp, bytes: &[u8], is_last: bool) {
        if let Some(PendingQuestion::Chunk(encoder)) = self.take_question(PendingQuestion::is_chunk) {
            self.take_chunk(encoder, bytes, is_last);
            self.continue_after_answer(now);
        }
    }

    /// The other answer to [`Pop3Question::More`]: the next bytes cannot be read. The session ends
    /// without the end of the message, so the client sees that it is incomplete.
    pub fn handle_content_failed(&mut self) {
        if self.take_question(PendingQuestion::is_chunk).is_some() {
            self.close_without_reply("message", replies::CONTENT_FAILED);
        }
    }

    /// The answer to [`Pop3Question::Update`]: whether all messages were removed (RFC 1939 section
    /// 6). The session ends.
    pub fn handle_updated(&mut self, now: Timestamp, all_removed: bool) {
        let is_update = |question: &PendingQuestion| matches!(question, PendingQuestion::Update);
        if self.take_question(is_update).is_none() {
            return;
        }
        self.active_at = now;
        if all_removed {
            self.send_line(replies::QUIT_OK);
            self.end();
        } else {
            self.close("update", replies::NOT_UPDATED);
        }
    }

    /// The handshake requested by [`wants_handshake`](Pop3Server::wants_handshake) has succeeded.
    /// Everything the client said before is forgotten (RFC 2595 section 4), but counts towards its
    /// limits. A failed handshake ends the session: call
    /// [`handle_disconnect`](Pop3Server::handle_disconnect).
    pub fn handle_tls_established(&mut self, now: Timestamp) {
        if !matches!(self.step, Step::Securing) {
            return;
        }
        self.active_at = now;
        self.login_from = now;
        self.named_user = None;
        self.backlog = Vec::new();
        self.backlog_used = 0;
        self.secured = true;
        self.step = Step::Command;
        self.close_if_stopping();
    }

    /// Call it when [`poll_deadline`](Pop3Server::poll_deadline) has passed; before that it does
    /// nothing. The session ends without a reply (RFC 1939 section 3).
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let (stage, reason) = if now >= self.started_at + self.config.limits.session_time_max {
            ("session", replies::SESSION_TOO_LONG)
        } else if self.maildrop.is_some() {
            ("idle", replies::IDLE)
        } else {
            ("login", replies::LOGIN_TOO_LATE)
        };
        // What the client did not accept in time is not sent.
        self.output = Vec::new();
        self.output_sent = 0;
        self.close_without_reply(stage, reason);
    }

    /// The server shuts down: -ERR, immediately or after the reply in progress.
    pub fn handle_shutdown(&mut self) {
        self.stopping = true;
        self.close_if_stopping();
    }

    /// The client closed its side, or is gone. The session ends; if a question is pending, with its
    /// answer.
    pub fn handle_disconnect(&mut self) {
        self.ended = true;
        self.close_if_ended();
    }

    /// The first `count` octets of the output were sent at `now`.
    pub fn handle_sent(&mut self, now: Timestamp, count: usize) {
        if count > 0 {
            self.active_at = now;
        }
        if self.output_sent == self.output.len() {
            return self.handle_file_sent(count as u64);
        }
        self.output_sent = self.output.len().min(self.output_sent + count);
        if self.output_sent == self.output.len() {
            self.output = Vec::new();
            self.output_sent = 0;
        }
    }

    /// The next action, in order.
    pub fn poll_action(&mut self) -> Option<Pop3Action> {
        if self.stalled && self.actions.is_empty() {
            self.work_on_backlog();
        }
        let action = self.actions.pop_front();
        if self.actions.is_empty() {
            self.actions = VecDeque::new();
        }
        action.or_else(|| self.question.take().map(Pop3Action::Ask))
    }

    /// The next bytes to send.
    pub fn output(&self) -> Pop3Output<'_> {
        let bytes = &self.output[self.output_sent..];
        match &self.step {
            Step::SendingFile(_) if !bytes.is_empty() => Pop3Output::Head(bytes),
            Step::SendingFile(file) => {
                let (offset, octets) = file.range();
                Pop3Output::File { offset, octets }
            }
            _ => Pop3Output::Bytes(bytes),
        }
    }

    /// Whether there is more to do once the output is sent: call
    /// [`poll_action`](Pop3Server::poll_action) before reading on.
    pub fn can_continue(&self) -> bool {
        self.stalled
    }

    /// When to call [`handle_timeout`](Pop3Server::handle_timeout). None while the driver must act.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let limits = &self.config.limits;
        if matches!(self.step, Step::Asked(_) | Step::Closed) {
            return None;
        }
        let deadline = match self.maildrop {
            Some(_) => self.active_at + limits.idle_time_max,
            None => self.login_from + limits.login_time_max,
        };
        Some(deadline.min(self.started_at + limits.session_time_max))
    }

    /// Whether a message is being sent, and its content is still needed.
    pub fn is_sending_content(&self) -> bool {
        matches!(self.step, Step::Copying(_) | Step::SendingFile(_) | Step::Asked(PendingQuestion::Chunk(_)))
    }

    /// Whether the driver must perform the TLS handshake once the output is sent. Bytes read before
    /// belong to [`handle_input`](Pop3Server::handle_input), which ends the session; later ones
    /// belong to the handshake.
    pub fn wants_handshake(&self) -> bool {
        matches!(self.step, Step::Securing)
    }

    /// Whether to close the connection once the output is sent.
    pub fn wants_close(&self) -> bool {
        matches!(self.step, Step::Closed)
    }

    /// The user who has logged in, in the spelling of the lookup table.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

/// Questions, replies, and the ways a session ends.
impl Pop3Server {
    fn ask(&mut self, asked: PendingQuestion, question: Pop3Question) {
        self.step = Step::Asked(asked);
        self.question = Some(question);
    }

    /// Takes the pending question if it is the one that was answered; the next state is Command.
    fn take_question(&mut self, is_answered: impl FnOnce(&PendingQuestion) -> bool) -> Option<PendingQuestion> {
        match std::mem::replace(&mut self.step, Step::Command) {
            Step::Asked(question) if is_answered(&question) => Some(question),
            other => {
                self.step = other;
                None
            }
        }
    }

    fn continue_after_answer(&mut self, now: Timestamp) {
        self.active_at = now;
        self.login_from = now;
        self.close_if_ended();
        self.work_on_backlog();
    }

    fn send_line(&mut self, line: &str) {
        self.output.extend_from_slice(line.as_bytes());
        self.output.extend_from_slice(b"\r\n");
    }

    /// Replies to a command that makes no progress with mail; false if that was one too many.
    fn send_idle_reply(&mut self, reply: &str) -> bool {
        let is_within_limit = self.count_idle_command();
        if is_within_limit {
            self.send_line(reply);
        }
        is_within_limit
    }

    /// Counts a command that makes no progress, and closes the session beyond the limit.
    fn count_idle_command(&mut self) -> bool {
        self.commands += 1;
        let is_within_limit = self.commands <= self.config.limits.commands_max;
        if !is_within_limit {
            self.close("command", replies::TOO_MANY_COMMANDS);
        }
        is_within_limit
    }

    /// Replies -ERR, unless the client has exceeded a limit.
    fn refuse(&mut self, refusal: Refusal) {
        self.errors += u32::from(refusal.is_error);
        if self.errors > self.config.limits.errors_max {
            self.close("command", replies::TOO_MANY_ERRORS);
        } else {
            self.send_idle_reply(refusal.text);
        }
    }

    fn close(&mut self, stage: &'static str, reply: &'static str) {
        self.send_line(reply);
        self.close_without_reply(stage, reply);
    }

    fn close_without_reply(&mut self, stage: &'static str, reply: &'static str) {
        self.actions.push_back(Pop3Action::Refused { stage, reply });
        self.end();
    }

    /// Only the output is still needed.
    fn end(&mut self) {
        self.step = Step::Closed;
        self.maildrop = None;
        self.named_user = None;
        self.backlog = Vec::new();
        self.backlog_used = 0;
        self.stalled = false;
    }

    fn close_if_stopping(&mut self) {
        if self.stopping && matches!(self.step, Step::Command | Step::LongLine(_) | Step::Authenticating(_)) {
            self.close("shutdown", replies::SHUTDOWN);
        }
    }

    /// Input that could not be processed is dropped: above all a QUIT, since the client may not have
    /// received what was to be sent before.
    fn close_if_ended(&mut self) {
        if self.ended && !matches!(self.step, Step::Asked(_) | Step::Closed) {
            self.end();
        }
    }
}

impl PendingQuestion {
    fn is_login(&self) -> bool {
        matches!(self, PendingQuestion::Login(_))
    }

    fn is_chunk(&self) -> bool {
        matches!(self, PendingQuestion::Chunk(_))
    }
}

impl fmt::Debug for Pop3Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pop3Server").field("step", &self.step).finish_non_exhaustive()
    }
}
