//! AUTH (RFC 4954): the command, the lines of its exchange, and its end. The exchange itself is
//! implemented by [`sasl`](crate::sasl); its questions go to the driver, its challenges to the
//! client.
//!
//! A client logs in once per session, outside of transactions, and only over TLS unless the
//! configuration allows clear text. Each failed attempt is reported to the driver; too many end the
//! session.

use std::mem;

use mail::Reply;

use super::command::Verb;
use super::{
    GreetingKind, LoginRequest, PendingQuestion, ScramKeysRequest, SessionAction, SessionAnswer, SessionQuestion,
    SmtpSession, State, replies,
};
use crate::TlsMode;
use crate::sasl::{self, Mechanism, SaslExchange, SaslOutcome, SaslRefusal};

/// The AUTH settings of a listener.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// The mechanisms, in the order in which they are advertised.
    pub mechanisms: Box<[Mechanism]>,
    /// Whether AUTH is offered without TLS, where passwords can be intercepted (RFC 4954 section
    /// 4). Ignored if TLS is required.
    pub clear_text: bool,
    /// Clients must log in before MAIL, or get 530 (RFC 6409 section 4.3).
    pub required: bool,
    /// Settings shared by all exchanges.
    pub sasl: sasl::SaslConfig,
}

/// One authentication attempt.
#[derive(Debug)]
pub(super) struct AuthAttempt {
    exchange: SaslExchange,
    /// The user name that the client gave; empty before it did.
    user: Box<str>,
}

impl SmtpSession {
    /// The AUTH line for the reply to EHLO, such as `AUTH PLAIN LOGIN`. None if no mechanism is
    /// available now.
    pub(super) fn auth_capability(&self) -> Option<String> {
        let auth =
            self.config.auth.as_ref().filter(|auth| self.authenticated_user.is_none() && self.is_auth_allowed(auth))?;
        let names: Vec<&str> = auth.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
        (!names.is_empty()).then(|| format!("AUTH {}", names.join(" ")))
    }

    /// Whether AUTH is available: over TLS, or if clear text is allowed and TLS is not required.
    fn is_auth_allowed(&self, auth: &AuthConfig) -> bool {
        self.secured || auth.clear_text && self.config.tls != TlsMode::Required
    }

    /// Whether the client must log in before it may send mail.
    pub(super) fn requires_login(&self) -> bool {
        self.authenticated_user.is_none() && self.config.auth.as_ref().is_some_and(|auth| auth.required)
    }

    /// `AUTH mechanism [initial-response]` (RFC 4954 section 4).
    pub(super) fn auth(&mut self, arguments: &[u8]) -> Result<(), Reply> {
        let config = self.config.clone();
        let auth = config.auth.as_ref().ok_or(replies::NOT_IMPLEMENTED)?;
        let mut words = arguments.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (Some(name), initial, None) = (words.next(), words.next(), words.next()) else {
            return Err(replies::AUTH_SYNTAX);
        };
        if self.greeting != Some(GreetingKind::Extended) {
            return Err(replies::GREET_FIRST);
        }
        if self.authenticated_user.is_some() {
            return Err(replies::LOGGED_IN_ALREADY);
        }
        if self.transaction.is_some() {
            return Err(replies::NOT_IN_TRANSACTION);
        }
        let known = str::from_utf8(name).ok().and_then(Mechanism::from_name);
        let spoken = known.filter(|mechanism| auth.mechanisms.contains(mechanism));
        let mechanism = spoken.ok_or(replies::UNKNOWN_MECHANISM)?;
        if !self.is_auth_allowed(auth) {
            return Err(replies::ENCRYPTION_REQUIRED);
        }
        let initial = initial.map(sasl::decode_initial).transpose();
        let initial = initial.map_err(|error| SaslRefusal::from(error).reply())?;
        let exchange = SaslExchange::begin(mechanism, initial.as_deref().map(Vec::as_slice), &auth.sasl);
        self.advance_login(Box::new(AuthAttempt { exchange, user: Box::default() }));
        Ok(())
    }

    /// Handles a response line of the client.
    pub(super) fn respond(&mut self, line: &[u8]) {
        let State::Authenticating(mut attempt) = mem::replace(&mut self.state, State::Command) else { return };
        match sasl::decode(line) {
            Ok(response) => attempt.exchange.handle_response(&response),
            Err(error) => attempt.exchange.handle_cancel(error.into()),
        }
        self.advance_login(attempt);
    }

    /// Handles the answer to a question of the exchange.
    pub(super) fn login_answered(&mut self, mut attempt: Box<AuthAttempt>, answer: SessionAnswer) {
        match answer {
            SessionAnswer::Verdict(verdict) => attempt.exchange.handle_password_verdict(verdict),
            SessionAnswer::Keys { keys, nonce } => attempt.exchange.handle_scram_keys(keys, &nonce),
            // These answer other questions, so nothing is known.
            SessionAnswer::Accept | SessionAnswer::Refuse(_) | SessionAnswer::Done(_) => {
                attempt.exchange.handle_cancel(SaslRefusal::Unavailable)
            }
        }
        self.advance_login(attempt);
    }

    /// Performs the one action that the exchange wants after each event.
    fn advance_login(&mut self, mut attempt: Box<AuthAttempt>) {
        match attempt.exchange.poll_action() {
            Some(sasl::SaslAction::Challenge(challenge)) => {
                self.send_reply(format!("334 {}\r\n", sasl::encode(&challenge)).as_bytes());
                self.state = State::Authenticating(attempt);
            }
            Some(sasl::SaslAction::Ask(sasl::CredentialQuestion::Verify { user, password })) => {
                attempt.user = user.clone();
                self.ask(PendingQuestion::Login(attempt), SessionQuestion::Login(LoginRequest { user, password }));
            }
            Some(sasl::SaslAction::Ask(sasl::CredentialQuestion::Credentials { user })) => {
                attempt.user = user.clone();
                self.ask(PendingQuestion::Login(attempt), SessionQuestion::Keys(ScramKeysRequest { user }));
            }
            Some(sasl::SaslAction::Done(outcome)) => self.finish_login(*attempt, outcome),
            // The answer was for a question of another mechanism.
            None => self.finish_login(*attempt, SaslOutcome::Refused(SaslRefusal::Unavailable)),
        }
    }

    pub(super) fn finish_login(&mut self, attempt: AuthAttempt, outcome: SaslOutcome) {
        let reply = outcome.reply();
        let (mechanism, user) = (attempt.exchange.mechanism(), attempt.user);
        self.actions.push_back(SessionAction::Login { mechanism, user, outcome: outcome.clone() });
        match outcome {
            SaslOutcome::Accepted { user } => {
                self.authenticated_user = Some(user);
                reply.write_wire(&mut self.output);
            }
            SaslOutcome::Refused(refusal) => self.refuse_login(refusal, &reply),
        }
    }

    /// The driver has been told. If the password could not be checked, the attempt does not count
    /// as failed.
    fn refuse_login(&mut self, refusal: SaslRefusal, reply: &Reply) {
        self.failed_logins += u32::from(refusal != SaslRefusal::Unavailable);
        if self.failed_logins > self.config.limits.failed_logins_max {
            self.close(Verb::Auth.stage(), replies::TOO_MANY_FAILED_LOGINS);
        } else if !self.exceeds_error_limit(Verb::Auth.stage(), reply) {
            reply.write_wire(&mut self.output);
        }
    }
}
