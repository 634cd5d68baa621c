//! From the connection to the first transaction: banner, EHLO, STARTTLS with another EHLO, AUTH.
//!
//! If the server refuses a step that the configuration requires, the session ends with QUIT.

use mail::Reply;

use super::{
    CloseReason, Extensions, MissingCapability, SmtpClient, SmtpClientEvent, SmtpStage, SmtpViolation, State, TlsPolicy,
};
use crate::sasl::client::{LoginMechanism, SaslClient, SaslStep, SaslViolation};
use crate::sasl::{decode, encode};
use crate::smtp::MailProtocol;

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

    /// RFC 4954 section 4.
    fn log_in(&mut self) {
        let config = self.config.clone();
        let Some(credentials) = &config.credentials else { return self.ready() };
        if credentials.needs_tls() && !self.secured {
            return self.quit_without(MissingCapability::LoginTls);
        }
        let begin = |mechanism: &LoginMechanism| {
            SaslClient::begin(*mechanism, credentials.user(), credentials.secret(), self.nonce.as_deref())
        };
        let mechanisms = credentials.mechanisms();
        let mut offered = mechanisms.iter().filter(|mechanism| self.extensions.has_mechanism(mechanism.name()));
        let Some((mechanism, (login, initial))) = offered.find_map(|mechanism| Some((mechanism, begin(mechanism)?)))
        else {
            let (wanted, offered) = (in_words(mechanisms), self.extensions.mechanisms.clone());
            return self.quit_without(MissingCapability::Mechanism { wanted, offered });
        };
        let line = match initial {
            Some(initial) => format!("AUTH {mechanism} {}\r\n", encode(&initial)),
            None => format!("AUTH {mechanism}\r\n"),
        };
        self.send_command(State::Auth(Box::new(login)), &line);
    }

    pub(super) fn auth_replied(&mut self, mut login: Box<SaslClient>, reply: &Reply) {
        match reply.code {
            // What is not base64 is no challenge, which does not matter to LOGIN.
            334 => match login.handle_challenge(&decode(reply.text.as_bytes()).unwrap_or_default()) {
                Ok(SaslStep::Respond(response)) => {
                    self.send_command(State::Auth(login), &format!("{}\r\n", encode(&response)));
                }
                Ok(SaslStep::Compute(work)) => {
                    self.state = State::Auth(login);
                    self.events.push_back(SmtpClientEvent::ComputeProof(work));
                }
                Err(violation) => self.close_for_violation(SmtpViolation::Login(violation)),
            },
            235 if login.is_complete() => self.ready(),
            235 => self.close_for_violation(SmtpViolation::Login(SaslViolation::Unproved)),
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

/// `PLAIN or LOGIN`.
fn in_words(mechanisms: &[LoginMechanism]) -> Box<str> {
    let names: Vec<&str> = mechanisms.iter().map(|mechanism| mechanism.name()).collect();
    names.join(" or ").into()
}
