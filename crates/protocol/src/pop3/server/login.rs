//! USER and PASS (RFC 1939 section 7), AUTH (RFC 5034) with the lines of its exchange, and the
//! opening of the maildrop after a successful login. Exchanges are implemented by
//! [`sasl`](crate::sasl); USER and PASS are one with a user name and a password.
//!
//! A client logs in once per session, and only over TLS unless the configuration allows clear text.
//! Each attempt is reported to the driver; too many failures end the session. A client that has
//! logged in but whose maildrop is not available may log in again.

use std::mem;
use std::sync::Arc;

use super::maildrop::OpenMaildrop;
use super::{
    MaildropListing, OpenRefusal, PendingQuestion, Pop3Action, Pop3Question, Pop3Server, Refusal, Step, command,
    replies,
};
use crate::TlsMode;
use crate::sasl::{self, CredentialQuestion, Mechanism, SaslAction, SaslExchange, SaslOutcome, SaslRefusal};

/// The login settings of a listener.
#[derive(Clone, Debug)]
pub struct Pop3AuthConfig {
    /// The mechanisms of AUTH, in the order in which they are advertised. USER and PASS are
    /// available if PLAIN or LOGIN is.
    pub mechanisms: Box<[Mechanism]>,
    /// Whether logins are possible without TLS, where passwords can be intercepted. Ignored if TLS
    /// is required.
    pub clear_text: bool,
    /// Settings shared by all exchanges.
    pub sasl: sasl::SaslConfig,
}

impl Pop3AuthConfig {
    /// Whether clients may send passwords.
    fn takes_passwords(&self) -> bool {
        self.mechanisms.iter().any(|mechanism| matches!(mechanism, Mechanism::Plain | Mechanism::Login))
    }
}

/// One authentication attempt.
#[derive(Debug)]
pub(super) struct AuthAttempt {
    exchange: SaslExchange,
    /// The user name that the client gave; empty before it did.
    user: Box<str>,
}

impl Pop3Server {
    /// Appends the capabilities that depend on the login (RFC 2449 section 6).
    pub(super) fn send_login_capabilities(&mut self) {
        let config = Arc::clone(&self.config);
        if self.maildrop.is_some() || self.check_login_allowed().is_err() {
            return;
        }
        if config.auth.takes_passwords() {
            self.send_line("USER");
        }
        if !config.auth.mechanisms.is_empty() {
            let names: Vec<&str> = config.auth.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
            self.send_line(&format!("SASL {}", names.join(" ")));
        }
    }

    /// Logins need TLS, unless clear text is allowed and TLS is not required.
    fn check_login_allowed(&self) -> Result<(), Refusal> {
        match self.config.tls {
            _ if self.secured => Ok(()),
            TlsMode::Required => Err(replies::TLS_REQUIRED),
            TlsMode::Never | TlsMode::Offered | TlsMode::Implicit if self.config.auth.clear_text => Ok(()),
            TlsMode::Offered => Err(replies::TLS_REQUIRED),
            TlsMode::Never | TlsMode::Implicit => Err(replies::LOGIN_IMPOSSIBLE),
        }
    }

    /// The reply does not tell whether the user exists.
    pub(super) fn user_command(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        self.check_takes_passwords()?;
        if argument.is_empty() {
            return Err(replies::USER_SYNTAX);
        }
        self.named_user = Some(argument.into());
        self.send_idle_reply(replies::USER_OK);
        Ok(())
    }

    pub(super) fn pass(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        self.check_takes_passwords()?;
        let user = self.named_user.take().ok_or(replies::USER_FIRST)?;
        let exchange = SaslExchange::begin_with_password(&user, argument, &self.config.auth.sasl);
        self.advance_login(Box::new(AuthAttempt { exchange, user: Box::default() }));
        Ok(())
    }

    fn check_takes_passwords(&self) -> Result<(), Refusal> {
        if !self.config.auth.takes_passwords() {
            return Err(replies::UNKNOWN_MECHANISM);
        }
        self.check_login_allowed()
    }

    /// `AUTH mechanism [initial-response]` (RFC 5034 section 4).
    pub(super) fn auth(&mut self, argument: &[u8]) -> Result<(), Refusal> {
        let mut words = command::words(argument);
        let (Some(name), initial, None) = (words.next(), words.next(), words.next()) else {
            return Err(replies::AUTH_SYNTAX);
        };
        let auth = &self.config.auth;
        let known = str::from_utf8(name).ok().and_then(Mechanism::from_name);
        let offered = known.filter(|mechanism| auth.mechanisms.contains(mechanism));
        let mechanism = offered.ok_or(replies::UNKNOWN_MECHANISM)?;
        self.check_login_allowed()?;
        let initial = initial.map(sasl::decode_initial).transpose();
        let initial = initial.map_err(|error| replies::login_refused(error.into()))?;
        let exchange = SaslExchange::begin(mechanism, initial.as_deref().map(Vec::as_slice), &auth.sasl);
        self.named_user = None;
        self.advance_login(Box::new(AuthAttempt { exchange, user: Box::default() }));
        Ok(())
    }

    /// Handles a response line of the client.
    pub(super) fn respond(&mut self, line: &[u8]) {
        let Step::Authenticating(mut attempt) = mem::replace(&mut self.step, Step::Command) else { return };
        match sasl::decode(line) {
            Ok(response) => attempt.exchange.handle_response(&response),
            Err(error) => attempt.exchange.handle_cancel(error.into()),
        }
        self.advance_login(attempt);
    }

    /// A question of the exchange was answered.
    pub(super) fn answer_login(&mut self, mut attempt: Box<AuthAttempt>, answer: impl FnOnce(&mut SaslExchange)) {
        answer(&mut attempt.exchange);
        self.advance_login(attempt);
    }

    /// Performs the one action that the exchange wants after each event.
    fn advance_login(&mut self, mut attempt: Box<AuthAttempt>) {
        match attempt.exchange.poll_action() {
            Some(SaslAction::Challenge(challenge)) => {
                self.send_line(&format!("+ {}", sasl::encode(&challenge)));
                self.step = Step::Authenticating(attempt);
            }
            Some(SaslAction::Ask(CredentialQuestion::Verify { user, password })) => {
                attempt.user = user.clone();
                self.ask(PendingQuestion::Login(attempt), Pop3Question::Password { user, password });
            }
            Some(SaslAction::Ask(CredentialQuestion::Credentials { user })) => {
                attempt.user = user.clone();
                self.ask(PendingQuestion::Login(attempt), Pop3Question::ScramKeys { user });
            }
            Some(SaslAction::Done(outcome)) => self.finish_login(*attempt, outcome),
            // The answer was for a question of another mechanism.
            None => self.finish_login(*attempt, SaslOutcome::Refused(SaslRefusal::Unavailable)),
        }
    }

    pub(super) fn finish_login(&mut self, attempt: AuthAttempt, outcome: SaslOutcome) {
        let (mechanism, user) = (attempt.exchange.mechanism(), attempt.user);
        self.actions.push_back(Pop3Action::Login { mechanism, user, outcome: outcome.clone() });
        match outcome {
            SaslOutcome::Accepted { user } => {
                self.ask(PendingQuestion::Open { user: user.clone() }, Pop3Question::Open { user });
            }
            SaslOutcome::Refused(refusal) => self.refuse_login(refusal),
        }
    }

    /// If the password could not be checked, the attempt does not count as failed.
    fn refuse_login(&mut self, refusal: SaslRefusal) {
        self.failed_logins += u32::from(refusal != SaslRefusal::Unavailable);
        if self.failed_logins > self.config.limits.failed_logins_max {
            self.close("login", replies::TOO_MANY_FAILED_LOGINS);
        } else {
            self.refuse(replies::login_refused(refusal));
        }
    }

    /// The client enters the transaction state, or may log in again.
    pub(super) fn take_opened(&mut self, user: Box<str>, opened: Result<Arc<dyn MaildropListing>, OpenRefusal>) {
        match opened {
            Ok(listing) => {
                let maildrop = OpenMaildrop::new(listing);
                self.commands = 0;
                self.send_line(&format!("+OK logged in, {} messages", maildrop.messages_left()));
                self.maildrop = Some(Box::new(maildrop));
                self.user = Some(user);
            }
            Err(refusal) => {
                let refusal = replies::open_refused(refusal);
                self.actions.push_back(Pop3Action::Refused { stage: "open", reply: refusal.text });
                self.refuse(refusal);
            }
        }
    }
}
