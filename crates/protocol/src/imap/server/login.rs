//! LOGIN and AUTHENTICATE: the commands, the lines of the exchange, and its end. The exchange itself
//! is implemented by [`sasl`](crate::sasl), for LOGIN too, so that names and passwords have the same
//! rules in both.
//!
//! Only over TLS, unless the configuration allows clear text. Each attempt is reported to the
//! driver; too many failures end the session.

use std::mem;

use memchr::memchr;

use super::command::ArgumentReader;
use super::{ImapAction, ImapLoginSession, ImapQuestion, State};
use crate::TlsMode;
use crate::sasl::{
    self, CredentialQuestion, Mechanism, Nonce, PasswordVerdict, SaslAction, SaslConfig, SaslExchange, SaslOutcome,
    SaslRefusal, ScramKeysAnswer,
};

/// How clients log in.
#[derive(Clone, Debug)]
pub struct ImapAuthConfig {
    /// The mechanisms, in the order in which they are advertised. The command LOGIN is available if
    /// any of them sends passwords.
    pub mechanisms: Box<[Mechanism]>,
    /// Whether clients may log in without TLS, where passwords can be intercepted. Ignored if TLS is
    /// required.
    pub clear_text: bool,
    /// Settings shared by all exchanges.
    pub sasl: SaslConfig,
}

impl ImapAuthConfig {
    /// Whether a mechanism sends passwords.
    pub(super) fn has_passwords(&self) -> bool {
        self.mechanisms.iter().any(|mechanism| matches!(mechanism, Mechanism::Plain | Mechanism::Login))
    }
}

/// One login attempt.
#[derive(Debug)]
pub(super) struct AuthAttempt {
    tag: Box<str>,
    exchange: SaslExchange,
    /// The user name that the client gave; empty before it did.
    user: Box<str>,
}

/// What the client of a failed login is told (RFC 5530 section 3).
fn refusal_reply(refusal: SaslRefusal) -> (&'static str, &'static str) {
    match refusal {
        SaslRefusal::Credentials | SaslRefusal::TooLong | SaslRefusal::InvalidText => {
            ("NO", "[AUTHENTICATIONFAILED] Authentication failed")
        }
        SaslRefusal::Authzid => ("NO", "[AUTHORIZATIONFAILED] Authorization failed"),
        SaslRefusal::Throttled => ("NO", "[UNAVAILABLE] Too many failures, try again later"),
        SaslRefusal::Unavailable => ("NO", "[UNAVAILABLE] Temporary authentication failure"),
        SaslRefusal::Unsupported => ("NO", "[CANNOT] Unsupported parameter of the mechanism"),
        SaslRefusal::Cancelled => ("BAD", "Authentication cancelled"),
        SaslRefusal::Malformed => ("BAD", "Malformed authentication data"),
        SaslRefusal::LineTooLong => ("BAD", "Authentication line is too long"),
    }
}

impl ImapLoginSession {
    /// Whether clients may log in now.
    pub(super) fn is_login_allowed(&self) -> bool {
        self.secured || self.config.auth.clear_text && self.config.tls != TlsMode::Required
    }

    /// Replies if clients may not log in now.
    fn refuse_clear_text_login(&mut self, tag: &str) -> bool {
        let is_refused = !self.is_login_allowed();
        if is_refused {
            self.refuse_command(tag, "NO", "[PRIVACYREQUIRED] TLS is required before login");
        }
        is_refused
    }

    /// `LOGIN user password` (RFC 9051 section 6.2.3).
    pub(super) fn log_in(&mut self, tag: &str, mut arguments: ArgumentReader<'_>) {
        if self.refuse_clear_text_login(tag) {
            return;
        }
        if !self.config.auth.has_passwords() {
            return self.refuse_command(tag, "NO", "[CANNOT] LOGIN is disabled");
        }
        let (Some(user), Some(password), true) =
            (arguments.space_and_astring(), arguments.space_and_astring(), arguments.is_at_end())
        else {
            return self.refuse_command(tag, "BAD", "User name and password expected");
        };
        let exchange = SaslExchange::begin_with_password(&user, &password, &self.config.auth.sasl);
        self.advance_login(Box::new(AuthAttempt { tag: tag.into(), exchange, user: Box::default() }));
    }

    /// `AUTHENTICATE mechanism [initial-response]` (RFC 9051 section 6.2.2).
    pub(super) fn authenticate(&mut self, tag: &str, mut arguments: ArgumentReader<'_>) {
        let Some(name) = arguments.space_and_atom() else {
            return self.refuse_command(tag, "BAD", "Mechanism expected");
        };
        let initial = match arguments.is_at_end() {
            true => None,
            false => match arguments.space_and_rest() {
                Some(initial) => Some(initial),
                None => return self.refuse_command(tag, "BAD", "Unexpected arguments"),
            },
        };
        let offered = Mechanism::from_name(name).filter(|known| self.config.auth.mechanisms.contains(known));
        let Some(mechanism) = offered else {
            return self.refuse_command(tag, "NO", "[CANNOT] Unsupported authentication mechanism");
        };
        if self.refuse_clear_text_login(tag) {
            return;
        }
        let initial = match initial.map(sasl::decode_initial).transpose() {
            Ok(initial) => initial,
            Err(error) => {
                let (status, text) = refusal_reply(error.into());
                return self.refuse_command(tag, status, text);
            }
        };
        let initial = initial.as_deref().map(Vec::as_slice);
        let exchange = SaslExchange::begin(mechanism, initial, &self.config.auth.sasl);
        self.advance_login(Box::new(AuthAttempt { tag: tag.into(), exchange, user: Box::default() }));
    }

    /// Takes a line of the exchange.
    pub(super) fn take_response(&mut self, input: &[u8]) -> Option<usize> {
        let limit = self.config.limits.command_octets_max;
        let window = &input[..input.len().min(limit)];
        let Some(end) = memchr(b'\n', window) else {
            if window.len() < limit {
                return None;
            }
            self.fail_exchange(SaslRefusal::LineTooLong);
            self.close("login", "The line is too long");
            return Some(input.len());
        };
        let Some(line) = window[..end].strip_suffix(b"\r") else {
            self.fail_exchange(SaslRefusal::Malformed);
            self.close("login", "Lines must end in CRLF");
            return Some(input.len());
        };
        if let State::Authenticating(mut attempt) = mem::replace(&mut self.state, State::Command) {
            match sasl::decode(line) {
                Ok(response) => attempt.exchange.handle_response(&response),
                Err(error) => attempt.exchange.handle_cancel(error.into()),
            }
            self.advance_login(attempt);
        }
        Some(end + 1)
    }

    /// The line is no response: reports the end of the exchange, before the session ends.
    fn fail_exchange(&mut self, refusal: SaslRefusal) {
        if let State::Authenticating(attempt) = mem::replace(&mut self.state, State::Command) {
            let AuthAttempt { exchange, user, .. } = *attempt;
            let outcome = SaslOutcome::Refused(refusal);
            self.actions.push_back(ImapAction::Login { mechanism: exchange.mechanism(), user, outcome });
        }
    }

    /// The answer to [`ImapQuestion::Password`]. Ignored if it was not asked.
    pub fn handle_password_verdict(&mut self, now: mail::Timestamp, verdict: PasswordVerdict) {
        self.handle_login_answer(now, |exchange| exchange.handle_password_verdict(verdict));
    }

    /// The answer to [`ImapQuestion::ScramKeys`], with a nonce that was never used before. Ignored if
    /// it was not asked.
    pub fn handle_scram_keys(&mut self, now: mail::Timestamp, keys: ScramKeysAnswer, nonce: &Nonce) {
        self.handle_login_answer(now, |exchange| exchange.handle_scram_keys(keys, nonce));
    }

    fn handle_login_answer(&mut self, now: mail::Timestamp, answer: impl FnOnce(&mut SaslExchange)) {
        if !matches!(self.state, State::AwaitingLogin(_)) {
            return;
        }
        self.heard_at = now;
        if let State::AwaitingLogin(mut attempt) = mem::replace(&mut self.state, State::Command) {
            answer(&mut attempt.exchange);
            self.advance_login(attempt);
        }
        self.go_on();
    }

    /// Performs the one action that the exchange wants after each event.
    fn advance_login(&mut self, mut attempt: Box<AuthAttempt>) {
        match attempt.exchange.poll_action() {
            Some(SaslAction::Challenge(challenge)) => {
                self.output.extend(format!("+ {}\r\n", sasl::encode(&challenge)).into_bytes());
                self.state = State::Authenticating(attempt);
            }
            Some(SaslAction::Ask(question)) => {
                let (user, question) = match question {
                    CredentialQuestion::Verify { user, password } => {
                        (user.clone(), ImapQuestion::Password { user, password })
                    }
                    CredentialQuestion::Credentials { user } => (user.clone(), ImapQuestion::ScramKeys { user }),
                };
                attempt.user = user;
                self.state = State::AwaitingLogin(attempt);
                self.actions.push_back(ImapAction::Ask(question));
            }
            Some(SaslAction::Done(outcome)) => self.finish_login(*attempt, outcome),
            // The answer was for a question of another mechanism.
            None => self.finish_login(*attempt, SaslOutcome::Refused(SaslRefusal::Unavailable)),
        }
    }

    fn finish_login(&mut self, attempt: AuthAttempt, outcome: SaslOutcome) {
        let AuthAttempt { tag, exchange, user } = attempt;
        self.actions.push_back(ImapAction::Login { mechanism: exchange.mechanism(), user, outcome: outcome.clone() });
        match outcome {
            SaslOutcome::Accepted { user } => {
                self.actions.push_back(ImapAction::Ask(ImapQuestion::Open { user }));
                self.state = State::AwaitingOpen { tag };
            }
            SaslOutcome::Refused(refusal) => self.refuse_login(&tag, refusal),
        }
    }

    /// If the password could not be checked, the attempt does not count as failed, but as a command.
    fn refuse_login(&mut self, tag: &str, refusal: SaslRefusal) {
        let (status, text) = refusal_reply(refusal);
        if refusal == SaslRefusal::Unavailable {
            return self.refuse_command(tag, status, text);
        }
        self.reply(tag, status, text);
        self.failed_logins += 1;
        if self.failed_logins > self.config.limits.failed_logins_max {
            self.close("login", "Too many failed logins");
        }
    }
}
