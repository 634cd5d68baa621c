//! The login of a proxy at the host that stores a mailbox, by IMAP (RFC 9051) or POP3 (RFC 1939). The
//! rest of the session is the user's own: what the host has sent after its last reply to the login
//! is not touched.
//!
//! # States
//!
//! | state    | waits for                    | then                                                       |
//! |----------|------------------------------|------------------------------------------------------------|
//! | Greeting | `* OK`, `+OK`                | the login is sent: Login; or STARTTLS (STLS): StartTls     |
//! | StartTls | OK                           | Securing                                                   |
//! | Securing | the end of the handshake     | the login is sent: Login; any byte in clear text: failed   |
//! | Login    | the reply; or `+`, `+OK` to USER | accepted or refused; the next part of the login is sent |
//! | Ended    | nothing                      | the rest of the input belongs to the user                  |
//!
//! | method | IMAP                                                     | POP3                                     |
//! |--------|----------------------------------------------------------|------------------------------------------|
//! | PLAIN  | AUTHENTICATE, with SASL-IR (RFC 4959) if it is announced | AUTH (RFC 5034), in one line if it fits  |
//! | LOGIN  | LOGIN, with literals for what cannot be quoted           | USER, PASS                               |
//!
//! The client's address goes before an IMAP login, as `x-originating-ip` of an ID (RFC 2971), in
//! one packet with it. Anything that the host should not send fails the login; nothing is fatal.

mod imap;
mod pop3;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use memchr::memchr;
use zeroize::Zeroizing;

use crate::sasl::{Secret, encode};
use crate::text::printable;

/// Octets of a line that the host sends, with its CRLF.
pub const LINE_OCTETS_MAX: usize = 8192;
/// Lines of the host before the last reply to the login.
pub const LINES_MAX: usize = 100;

/// The protocol of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendProtocol {
    /// IMAP4rev1 or later.
    Imap,
    /// POP3.
    Pop3,
}

impl BackendProtocol {
    /// Whether these first bytes of a connection show that the host is at work.
    pub fn is_greeting(self, bytes: &[u8]) -> bool {
        match self {
            BackendProtocol::Imap => bytes.starts_with(b"* OK"),
            BackendProtocol::Pop3 => bytes.starts_with(b"+OK"),
        }
    }
}

impl fmt::Display for BackendProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BackendProtocol::Imap => "IMAP",
            BackendProtocol::Pop3 => "POP3",
        })
    }
}

/// How the name and the password are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendLoginMethod {
    /// SASL PLAIN (RFC 4616), which can log in one user in the name of another.
    #[default]
    Plain,
    /// The protocol's own commands: LOGIN, or USER and PASS.
    Login,
}

/// Who logs in, and how.
#[derive(Clone, Debug)]
pub struct BackendLoginRequest {
    /// The protocol.
    pub protocol: BackendProtocol,
    /// Whether the connection must be upgraded to TLS first.
    pub starts_tls: bool,
    /// How to log in.
    pub method: BackendLoginMethod,
    /// The user to act as, if it is not `user` itself; only with PLAIN.
    pub authzid: Option<Box<str>>,
    /// The user whose password this is.
    pub user: Box<str>,
    /// The password.
    pub password: Secret,
    /// The client's address, to tell an IMAP host.
    pub client: Option<IpAddr>,
}

/// The host has accepted the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAcceptance {
    /// The text of its reply, with a response code if there is one, without control characters.
    pub text: Box<str>,
    /// The untagged CAPABILITY response before it, if any.
    pub capability_line: Option<Box<str>>,
}

/// The host has refused the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRefusal {
    /// Name or password are wrong; else it refuses for another reason, at least at present.
    pub is_about_credentials: bool,
    /// The text of its reply, without control characters.
    pub text: Box<str>,
}

/// Why the login cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendFault {
    /// It does not greet.
    #[error("it refuses connections: {0}")]
    NoGreeting(Box<str>),
    /// It does not upgrade to TLS.
    #[error("it refuses to start TLS: {0}")]
    NoTls(Box<str>),
    /// Bytes in clear text before the TLS handshake, which someone else may have sent.
    #[error("clear text after STARTTLS")]
    ClearTextAfterStartTls,
    /// A line that is not expected.
    #[error("unexpected line {0:?}")]
    Unexpected(Box<str>),
    /// A line exceeds [`LINE_OCTETS_MAX`].
    #[error("a line is too long")]
    LineTooLong,
    /// It exceeds [`LINES_MAX`].
    #[error("too many lines before the reply to the login")]
    TooManyLines,
    /// A name or password has control characters, or the method has no authorization identity.
    #[error("the method cannot send this name or password")]
    Unsendable,
    /// It has closed the connection.
    #[error("it closed the connection")]
    Disconnected,
}

/// The end of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendLoginOutcome {
    /// The user is logged in.
    Accepted(BackendAcceptance),
    /// The host said no.
    Refused(BackendRefusal),
    /// The connection is of no use.
    Failed(BackendFault),
}

/// What a complete line of the host means.
enum LineMeaning {
    /// The greeting, the reply to STARTTLS, or that the next part of the login may come.
    GoOn,
    /// Nothing.
    Skip,
    End(BackendLoginOutcome),
}

/// One login on one connection.
///
/// Input and the end of the handshake come in by the `handle_*` methods; after each, send
/// [`output`](BackendLogin::output), and look at [`outcome`](BackendLogin::outcome) and
/// [`wants_handshake`](BackendLogin::wants_handshake). The driver has the clock.
#[derive(Debug)]
pub struct BackendLogin {
    request: BackendLoginRequest,
    state: State,
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    lines: usize,
    greeted: bool,
    output: Zeroizing<Vec<u8>>,
    /// The parts of the login that are not sent yet.
    parts: VecDeque<Zeroizing<Vec<u8>>>,
    /// What the greeting announces.
    has_sasl_ir: bool,
    capability_line: Option<Box<str>>,
}

#[derive(Debug)]
enum State {
    Greeting,
    StartTls,
    Securing,
    Login,
    Ended(BackendLoginOutcome),
}

impl BackendLogin {
    /// A login on a new connection, over which the host speaks first.
    pub fn new(request: BackendLoginRequest) -> BackendLogin {
        BackendLogin {
            request,
            state: State::Greeting,
            partial: Vec::new(),
            lines: 0,
            greeted: false,
            output: Zeroizing::default(),
            parts: VecDeque::new(),
            has_sasl_ir: false,
            capability_line: None,
        }
    }

    /// Takes the lines of the host up to the end of the login; returns the number of bytes used. The
    /// rest is for the user; after a failure there is none.
    pub fn handle_input(&mut self, input: &[u8]) -> usize {
        let mut used = 0;
        while !matches!(self.state, State::Ended(_)) && used < input.len() {
            if let State::Securing = self.state {
                self.fail(BackendFault::ClearTextAfterStartTls);
                break;
            }
            used += self.take_line(&input[used..]);
        }
        let is_failed = matches!(self.state, State::Ended(BackendLoginOutcome::Failed(_)));
        if is_failed { input.len() } else { used }
    }

    /// The handshake has succeeded.
    pub fn handle_tls_established(&mut self) {
        if let State::Securing = self.state {
            self.begin_login();
        }
    }

    /// The host has closed its side.
    pub fn handle_disconnect(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            self.fail(BackendFault::Disconnected);
        }
    }

    /// The bytes to send, all of them.
    pub fn take_output(&mut self) -> Zeroizing<Vec<u8>> {
        std::mem::take(&mut self.output)
    }

    /// Whether to perform the TLS handshake now.
    pub fn wants_handshake(&self) -> bool {
        matches!(self.state, State::Securing)
    }

    /// Whether the host has greeted: it is at work, whatever follows.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// The end of the login; None before.
    pub fn outcome(&self) -> Option<&BackendLoginOutcome> {
        match &self.state {
            State::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }
}

impl BackendLogin {
    /// Takes one line, or keeps its beginning; returns the number of bytes used.
    fn take_line(&mut self, input: &[u8]) -> usize {
        let end = memchr(b'\n', input).map(|place| place + 1);
        let piece = &input[..end.unwrap_or(input.len())];
        if self.partial.len() + piece.len() > LINE_OCTETS_MAX {
            self.fail(BackendFault::LineTooLong);
        } else if end.is_none() {
            self.partial.extend_from_slice(piece);
        } else if self.partial.is_empty() {
            self.handle_line(piece);
        } else {
            let mut line = std::mem::take(&mut self.partial);
            line.extend_from_slice(piece);
            self.handle_line(&line);
        }
        piece.len()
    }

    fn handle_line(&mut self, line: &[u8]) {
        let text = line.strip_suffix(b"\r\n").map(printable);
        let Some(text) = text else {
            return self.fail(BackendFault::Unexpected(printable(line).into()));
        };
        self.lines += 1;
        if self.lines > LINES_MAX {
            return self.fail(BackendFault::TooManyLines);
        }
        let meaning = match self.request.protocol {
            BackendProtocol::Imap => self.read_imap_line(&text),
            BackendProtocol::Pop3 => self.read_pop3_line(&text),
        };
        match meaning {
            LineMeaning::GoOn => self.go_on(),
            LineMeaning::Skip => {}
            LineMeaning::End(outcome) => self.state = State::Ended(outcome),
        }
    }

    fn go_on(&mut self) {
        self.greeted = true;
        match self.state {
            State::Greeting if self.request.starts_tls => {
                let command: &[u8] = match self.request.protocol {
                    BackendProtocol::Imap => imap::STARTTLS,
                    BackendProtocol::Pop3 => pop3::STLS,
                };
                self.output.extend_from_slice(command);
                self.state = State::StartTls;
            }
            State::Greeting | State::Securing => self.begin_login(),
            State::StartTls => self.state = State::Securing,
            State::Login => self.send_part(),
            State::Ended(_) => {}
        }
    }

    /// Sends the login, or its first part.
    fn begin_login(&mut self) {
        let BackendLoginRequest { authzid, user, password, method, .. } = &self.request;
        let has_control = |text: &str| text.chars().any(char::is_control);
        let acts_for_other_by_login = authzid.is_some() && *method == BackendLoginMethod::Login;
        let is_unsendable = has_control(user)
            || has_control(password.reveal())
            || authzid.as_deref().is_some_and(has_control)
            || acts_for_other_by_login;
        if is_unsendable {
            return self.fail(BackendFault::Unsendable);
        }
        match self.request.protocol {
            BackendProtocol::Imap => self.make_imap_login(),
            BackendProtocol::Pop3 => self.make_pop3_login(),
        }
        self.state = State::Login;
        self.send_part();
    }

    /// Sends the next part of the login. Without one, the host has asked for too much.
    fn send_part(&mut self) {
        match self.parts.pop_front() {
            Some(part) => self.output.extend_from_slice(&part),
            None => self.fail(BackendFault::Unexpected("+".into())),
        }
    }

    fn add_part(&mut self, pieces: &[&[u8]]) {
        self.parts.push_back(Zeroizing::new(pieces.concat()));
    }

    /// The message of PLAIN (RFC 4616 section 2), in base64.
    fn plain_message(&self) -> Zeroizing<String> {
        let BackendLoginRequest { authzid, user, password, .. } = &self.request;
        let authzid = authzid.as_deref().unwrap_or_default();
        let message = [authzid.as_bytes(), user.as_bytes(), password.reveal().as_bytes()].join(&0);
        Zeroizing::new(encode(&Zeroizing::new(message)))
    }

    fn fail(&mut self, fault: BackendFault) {
        self.state = State::Ended(BackendLoginOutcome::Failed(fault));
    }
}
