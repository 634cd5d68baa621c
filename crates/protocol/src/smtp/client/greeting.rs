//! From the connection to the first transaction: banner, EHLO, STARTTLS with another EHLO, AUTH.
//!
//! If the server refuses a step that the configuration requires, the session ends with QUIT.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use mail::Reply;

use super::{
    CloseReason, Extensions, MissingCapability, SmtpClient, SmtpClientEvent, SmtpCredentials, SmtpStage, SmtpViolation,
    State, TlsPolicy,
};
use crate::smtp::MailProtocol;

/// The progress of AUTH LOGIN or PLAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthStep {
    /// The server will ask for the user name.
    User,
    /// The server will ask for the password.
    Password,
    /// Everything was sent.
    Done,
}

/// How the client introduced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloKind {
    /// By HELO, to a server without extensions.
    Plain,
    /// By EHLO or LHLO.
    Extended,
}

impl SmtpClient {
    pub(super) fn banner_came(&mut self, reply: &Reply) {
        match reply.code {
            220 => self.say_hello(HelloKind::Extended),
            _ => self.quit_after_refusal(SmtpStage::Banner, reply),
        }
    }

    pub(super) fn say_hello(&mut self, hello: HelloKind) {
        let verb = match (self.config.flavor, hello) {
            (MailProtocol::Lmtp, _) => "LHLO",
            (MailProtocol::Smtp, HelloKind::Extended) => "EHLO",
            (MailProtocol::Smtp, HelloKind::Plain) => "HELO",
        };
        let line = format!("{verb} {}\r\n", self.config.helo.as_str());
        self.send_command(State::Hello(hello), &line);
    }

    pub(super) fn hello_replied(&mut self, hello: HelloKind, reply: &Reply) {
        if reply.code == 250 {
            if hello == HelloKind::Extended {
                self.extensions = Extensions::parse(&reply.text);
            }
            self.start_tls_or_log_in();
        } else if reply.is_permanent() && hello == HelloKind::Extended && self.may_do_without_extensions() {
            self.say_hello(HelloKind::Plain);
        } else {
            self.quit_after_refusal(SmtpStage::Hello, reply);
        }
    }

    /// Use HELO if EHLO is not supported (RFC 5321 section 4.1.4).
    fn may_do_without_extensions(&self) -> bool {
        let needs_tls = self.config.tls == TlsPolicy::Required && !self.secured;
        self.config.flavor == MailProtocol::Smtp && self.config.credentials.is_none() && !needs_tls
    }

    fn start_tls_or_log_in(&mut self) {
        match self.config.tls {
            TlsPolicy::Required | TlsPolicy::Offered if self.secured => self.log_in(),
            TlsPolicy::Required | TlsPolicy::Offered if self.extensions.start_tls => {
                self.send_command(State::StartTls, "STARTTLS\r\n")
            }
            TlsPolicy::Required => self.quit_without(MissingCapability::StartTls),
            TlsPolicy::Offered | TlsPolicy::Never => self.log_in(),
        }
    }

    pub(super) fn start_tls_replied(&mut self, reply: &Reply) {
        match reply.code {
            220 => {
                self.state = State::Handshake;
                self.events.push_back(SmtpClientEvent::StartTls);
            }
            400.. if self.config.tls == TlsPolicy::Offered => self.log_in(),
            _ => self.quit_after_refusal(SmtpStage::StartTls, reply),
        }
    }

    /// RFC 4954 section 4. PLAIN is preferred: it takes one round trip.
    fn log_in(&mut self) {
        let config = self.config.clone();
        match &config.credentials {
            None => self.ready(),
            Some(credentials) if self.extensions.has_mechanism("PLAIN") => {
                let line = format!("AUTH PLAIN {}\r\n", plain_response(credentials));
                self.send_command(State::Auth(AuthStep::Done), &line);
            }
            Some(_) if self.extensions.has_mechanism("LOGIN") => {
                self.send_command(State::Auth(AuthStep::User), "AUTH LOGIN\r\n")
            }
            Some(_) => {
                let offered = self.extensions.mechanisms.clone();
                self.quit_without(MissingCapability::Mechanism { offered });
            }
        }
    }

    pub(super) fn auth_replied(&mut self, login: AuthStep, reply: &Reply) {
        let config = self.config.clone();
        match (login, reply.code, &config.credentials) {
            (AuthStep::User, 334, Some(credentials)) => {
                let line = format!("{}\r\n", BASE64.encode(credentials.user()));
                self.send_command(State::Auth(AuthStep::Password), &line);
            }
            (AuthStep::Password, 334, Some(credentials)) => {
                let line = format!("{}\r\n", BASE64.encode(credentials.password()));
                self.send_command(State::Auth(AuthStep::Done), &line);
            }
            (AuthStep::Done, 235, _) => self.ready(),
            _ => self.quit_after_refusal(SmtpStage::Auth, reply),
        }
    }

    /// Ends the session after a reply that makes it impossible to continue.
    pub(super) fn quit_after_refusal(&mut self, stage: SmtpStage, reply: &Reply) {
        if !reply.is_transient() && !reply.is_permanent() {
            return self.close_for_violation(SmtpViolation::Unexpected { stage, code: reply.code });
        }
        self.close(CloseReason::Refused { stage, reply: reply.clone() });
        self.outbox.send(b"QUIT\r\n".to_vec());
    }

    fn quit_without(&mut self, lack: MissingCapability) {
        self.close(CloseReason::Lacks(lack));
        self.outbox.send(b"QUIT\r\n".to_vec());
    }
}

/// RFC 4616: empty authorization identity, user name, password.
fn plain_response(credentials: &SmtpCredentials) -> String {
    BASE64.encode(format!("\0{}\0{}", credentials.user(), credentials.password()))
}
