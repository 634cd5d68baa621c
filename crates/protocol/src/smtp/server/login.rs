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
use super::{Action, Answer, Asked, Greeting, KeysRequest, LoginRequest, Question, Session, State, Tls, replies};
use crate::sasl::{self, DecodeError, Exchange, Mechanism, Outcome, Refusal};

/// The AUTH settings of a listener.
#[derive(Clone, Debug)]
pub struct Auth {
    /// The mechanisms, in the order in which they are advertised.
    pub mechanisms: Box<[Mechanism]>,
    /// Whether AUTH is offered without TLS, where passwords can be intercepted (RFC 4954 section
    /// 4). Ignored if TLS is required.
    pub clear_text: bool,
    /// Clients must log in before MAIL, or get 530 (RFC 6409 section 4.3).
    pub required: bool,
    /// Settings shared by all exchanges.
    pub exchanges: sasl::Config,
}

/// One authentication attempt.
#[derive(Debug)]
pub(super) struct Login {
    exchange: Exchange,
    /// The user name that the client gave; empty before it did.
    user: Box<str>,
}

impl Session {
    /// The AUTH line for the reply to EHLO, such as `AUTH PLAIN LOGIN`. None if no mechanism is
    /// available now.
    pub(super) fn offered_mechanisms(&self) -> Option<String> {
        let auth = self.config.auth.as_ref().filter(|auth| self.user.is_none() && self.may_log_in(auth))?;
        let names: Vec<&str> = auth.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
        (!names.is_empty()).then(|| format!("AUTH {}", names.join(" ")))
    }

    /// Whether AUTH is available: over TLS, or if clear text is allowed and TLS is not required.
    fn may_log_in(&self, auth: &Auth) -> bool {
        self.secured || auth.clear_text && self.config.tls != Tls::Required
    }

    /// Whether the client must log in before it may send mail.
    pub(super) fn lacks_login(&self) -> bool {
        self.user.is_none() && self.config.auth.as_ref().is_some_and(|auth| auth.required)
    }

    /// `AUTH mechanism [initial-response]` (RFC 4954 section 4).
    pub(super) fn auth(&mut self, arguments: &[u8]) -> Result<(), Reply> {
        let config = self.config.clone();
        let auth = config.auth.as_ref().ok_or(replies::NOT_IMPLEMENTED)?;
        let mut words = arguments.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (Some(name), initial, None) = (words.next(), words.next(), words.next()) else {
            return Err(replies::AUTH_SYNTAX);
        };
        if self.greeting != Some(Greeting::Extended) {
            return Err(replies::GREET_FIRST);
        }
        if self.user.is_some() {
            return Err(replies::LOGGED_IN_ALREADY);
        }
        if self.transaction.is_some() {
            return Err(replies::NOT_IN_TRANSACTION);
        }
        let known = str::from_utf8(name).ok().and_then(Mechanism::from_name);
        let spoken = known.filter(|mechanism| auth.mechanisms.contains(mechanism));
        let mechanism = spoken.ok_or(replies::UNKNOWN_MECHANISM)?;
        if !self.may_log_in(auth) {
            return Err(replies::ENCRYPTION_REQUIRED);
        }
        let initial = initial.map(sasl::decode_initial).transpose().map_err(undecodable)?;
        let exchange = Exchange::begin(mechanism, initial.as_deref().map(Vec::as_slice), &auth.exchanges);
        self.go_on(Box::new(Login { exchange, user: Box::default() }));
        Ok(())
    }

    /// Handles a response line of the client.
    pub(super) fn respond(&mut self, line: &[u8]) {
        let State::Authenticating(mut login) = mem::replace(&mut self.state, State::Command) else { return };
        match sasl::decode(line) {
            Ok(response) => login.exchange.handle_response(&response),
            Err(DecodeError::Cancelled) => login.exchange.handle_cancel(Refusal::Cancelled),
            Err(DecodeError::Malformed) => login.exchange.handle_cancel(Refusal::Malformed),
            Err(DecodeError::TooLong) => login.exchange.handle_cancel(Refusal::LineTooLong),
        }
        self.go_on(login);
    }

    /// Handles the answer to a question of the exchange.
    pub(super) fn login_answered(&mut self, mut login: Box<Login>, answer: Answer) {
        match answer {
            Answer::Verdict(verdict) => login.exchange.handle_verdict(verdict),
            Answer::Keys { keys, nonce } => login.exchange.handle_keys(keys, &nonce),
            // These answer other questions, so nothing is known.
            Answer::Accept | Answer::Refuse(_) | Answer::Done(_) => login.exchange.handle_cancel(Refusal::Unavailable),
        }
        self.go_on(login);
    }

    /// Performs the one action that the exchange wants after each event.
    fn go_on(&mut self, mut login: Box<Login>) {
        match login.exchange.poll_action() {
            Some(sasl::Action::Challenge(challenge)) => {
                self.say(format!("334 {}\r\n", sasl::encode(&challenge)).as_bytes());
                self.state = State::Authenticating(login);
            }
            Some(sasl::Action::Ask(sasl::Question::Verify { user, password })) => {
                login.user = user.clone();
                self.ask(Asked::Login(login), Question::Login(LoginRequest { user, password }));
            }
            Some(sasl::Action::Ask(sasl::Question::Credentials { user })) => {
                login.user = user.clone();
                self.ask(Asked::Login(login), Question::Keys(KeysRequest { user }));
            }
            Some(sasl::Action::Done(outcome)) => self.end_login(*login, outcome),
            // The answer was for a question of another mechanism.
            None => self.end_login(*login, Outcome::Refused(Refusal::Unavailable)),
        }
    }

    pub(super) fn end_login(&mut self, login: Login, outcome: Outcome) {
        let reply = outcome.reply();
        let (mechanism, user) = (login.exchange.mechanism(), login.user);
        self.actions.push_back(Action::Login { mechanism, user, outcome: outcome.clone() });
        match outcome {
            Outcome::Accepted { user } => {
                self.user = Some(user);
                reply.write_wire(&mut self.output);
            }
            Outcome::Refused(refusal) => self.refuse_login(refusal, &reply),
        }
    }

    /// The driver has been told. If the password could not be checked, the attempt does not count
    /// as failed.
    fn refuse_login(&mut self, refusal: Refusal, reply: &Reply) {
        self.failed_logins += u32::from(refusal != Refusal::Unavailable);
        if self.failed_logins > self.config.limits.failed_logins_max {
            self.close(Verb::Auth.stage(), replies::TOO_MANY_FAILED_LOGINS);
        } else if !self.goes_too_far(Verb::Auth.stage(), reply) {
            reply.write_wire(&mut self.output);
        }
    }
}

fn undecodable(error: DecodeError) -> Reply {
    match error {
        DecodeError::TooLong => Refusal::LineTooLong.reply(),
        DecodeError::Malformed => Refusal::Malformed.reply(),
        DecodeError::Cancelled => Refusal::Cancelled.reply(),
    }
}
