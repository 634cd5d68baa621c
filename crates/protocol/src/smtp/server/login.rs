//! AUTH (RFC 4954): the command, the lines of its exchange, and its end. The exchange itself is one of
//! [`sasl`](crate::sasl); what it asks goes to the driver, what it challenges with goes to the client.
//!
//! A client logs in once in a session, outside of transactions, and only where what it sends cannot be overheard, unless
//! the configuration allows that. Each failed try is told to the driver, and beyond a limit the session is over.

use std::mem;

use mail::Reply;

use super::command::Verb;
use super::{Action, Answer, Asked, Greeting, KeysRequest, LoginRequest, Question, Session, State, replies};
use crate::sasl::{self, DecodeError, Exchange, Mechanism, Outcome, Refusal};

/// Who may log in to the sessions of a listener, and who has to.
#[derive(Clone, Debug)]
pub struct Auth {
    /// What is spoken, in the order in which it is advertised.
    pub mechanisms: Box<[Mechanism]>,
    /// Whether it is spoken without TLS too, where passwords can be overheard (RFC 4954 section 4).
    pub clear_text: bool,
    /// Nobody else may send: MAIL is told 530 before (RFC 6409 section 4.3).
    pub required: bool,
    /// What all exchanges share.
    pub exchanges: sasl::Config,
}

/// One try of one client.
#[derive(Debug)]
pub(super) struct Login {
    exchange: Exchange,
    /// Who it says it is; empty before it did.
    user: Box<str>,
}

impl Session {
    /// What can be used now, for the reply to EHLO: `AUTH PLAIN LOGIN`. None where nothing can.
    pub(super) fn offered_mechanisms(&self) -> Option<String> {
        let auth = self.config.auth.as_ref().filter(|auth| self.user.is_none() && self.may_log_in(auth))?;
        let names: Vec<&str> = auth.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
        (!names.is_empty()).then(|| format!("AUTH {}", names.join(" ")))
    }

    /// Whether what the client sends is overheard by nobody, or that is allowed.
    fn may_log_in(&self, auth: &Auth) -> bool {
        self.secured || auth.clear_text
    }

    /// Whether somebody has to log in first who has not.
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

    /// A line of the client in the middle of the exchange.
    pub(super) fn respond(&mut self, line: &[u8]) {
        let State::Authenticating(mut login) = mem::replace(&mut self.state, State::Command) else { return };
        match sasl::decode(line) {
            Ok(response) => login.exchange.handle_response(&response),
            Err(DecodeError::Cancelled) => login.exchange.handle_cancel(Refusal::Cancelled),
            Err(DecodeError::Malformed) => login.exchange.handle_cancel(Refusal::Malformed),
            Err(DecodeError::TooLong) => login.exchange.handle_cancel(Refusal::TooLong),
        }
        self.go_on(login);
    }

    /// What the exchange asked is answered.
    pub(super) fn login_answered(&mut self, mut login: Box<Login>, answer: Answer) {
        match answer {
            Answer::Verdict(verdict) => login.exchange.handle_verdict(verdict),
            Answer::Keys { keys, nonce } => login.exchange.handle_keys(keys, &nonce),
            // These answer other questions: nothing was found out.
            Answer::Accept | Answer::Refuse(_) | Answer::Done(_) => login.exchange.handle_cancel(Refusal::Unavailable),
        }
        self.go_on(login);
    }

    /// Does the one thing that the exchange wants after each event.
    fn go_on(&mut self, mut login: Box<Login>) {
        match login.exchange.poll_action() {
            Some(sasl::Action::Challenge(challenge)) => {
                self.say(format!("334 {}\r\n", sasl::encode(&challenge)).as_bytes());
                self.state = State::Authenticating(login);
            }
            Some(sasl::Action::Ask(sasl::Question::Verify { user, password, authzid: _ })) => {
                login.user = user.clone();
                let mechanism = login.exchange.mechanism();
                self.ask(Asked::Login(login), Question::Login(LoginRequest { mechanism, user, password }));
            }
            Some(sasl::Action::Ask(sasl::Question::Credentials { user })) => {
                login.user = user.clone();
                self.ask(Asked::Login(login), Question::Keys(KeysRequest { user }));
            }
            Some(sasl::Action::Done(outcome)) => self.end_login(*login, outcome),
            // The answer was one to a question of another mechanism.
            None => self.end_login(*login, Outcome::Refused(Refusal::Unavailable)),
        }
    }

    fn end_login(&mut self, login: Login, outcome: Outcome) {
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

    /// The driver has been told. Where nothing could be said of a password nobody has guessed one.
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
        DecodeError::TooLong => replies::EXCHANGE_LINE_TOO_LONG,
        DecodeError::Malformed => Refusal::Malformed.reply(),
        DecodeError::Cancelled => Refusal::Cancelled.reply(),
    }
}
