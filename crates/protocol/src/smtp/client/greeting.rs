//! From the connection to the first transaction: banner, EHLO, STARTTLS with another EHLO, AUTH.
//!
//! If the server refuses a step that the configuration requires, the session ends with QUIT.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use mail::Reply;

use super::{Client, Closed, Credentials, Event, Extensions, Lack, Misbehaviour, Stage, State, Tls};
use crate::smtp::Flavor;

/// The progress of AUTH LOGIN or PLAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    /// The server will ask for the user name.
    User,
    /// The server will ask for the password.
    Password,
    /// Everything was sent.
    Done,
}

/// How the client introduced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// By HELO, to a server without extensions.
    Plain,
    /// By EHLO or LHLO.
    Extended,
}

impl Client {
    pub(super) fn banner_came(&mut self, reply: &Reply) {
        match reply.code {
            220 => self.say_hello(Hello::Extended),
            _ => self.give_up(Stage::Banner, reply),
        }
    }

    pub(super) fn say_hello(&mut self, hello: Hello) {
        let verb = match (self.config.flavor, hello) {
            (Flavor::Lmtp, _) => "LHLO",
            (Flavor::Smtp, Hello::Extended) => "EHLO",
            (Flavor::Smtp, Hello::Plain) => "HELO",
        };
        let line = format!("{verb} {}\r\n", self.config.helo.as_str());
        self.say(State::Hello(hello), &line);
    }

    pub(super) fn hello_replied(&mut self, hello: Hello, reply: &Reply) {
        if reply.code == 250 {
            if hello == Hello::Extended {
                self.extensions = Extensions::parse(&reply.text);
            }
            self.secure();
        } else if reply.is_permanent() && hello == Hello::Extended && self.may_do_without_extensions() {
            self.say_hello(Hello::Plain);
        } else {
            self.give_up(Stage::Hello, reply);
        }
    }

    /// Use HELO if EHLO is not supported (RFC 5321 section 4.1.4).
    fn may_do_without_extensions(&self) -> bool {
        let needs_tls = self.config.tls == Tls::Required && !self.secured;
        self.config.flavor == Flavor::Smtp && self.config.credentials.is_none() && !needs_tls
    }

    fn secure(&mut self) {
        match self.config.tls {
            Tls::Required | Tls::Offered if self.secured => self.log_in(),
            Tls::Required | Tls::Offered if self.extensions.start_tls => self.say(State::StartTls, "STARTTLS\r\n"),
            Tls::Required => self.lacks(Lack::StartTls),
            Tls::Offered | Tls::Never => self.log_in(),
        }
    }

    pub(super) fn start_tls_replied(&mut self, reply: &Reply) {
        match reply.code {
            220 => {
                self.state = State::Handshake;
                self.events.push_back(Event::StartTls);
            }
            400.. if self.config.tls == Tls::Offered => self.log_in(),
            _ => self.give_up(Stage::StartTls, reply),
        }
    }

    /// RFC 4954 section 4. PLAIN is preferred: it takes one round trip.
    fn log_in(&mut self) {
        let config = self.config.clone();
        match &config.credentials {
            None => self.ready(),
            Some(credentials) if self.extensions.has_mechanism("PLAIN") => {
                let line = format!("AUTH PLAIN {}\r\n", plain_response(credentials));
                self.say(State::Auth(Login::Done), &line);
            }
            Some(_) if self.extensions.has_mechanism("LOGIN") => self.say(State::Auth(Login::User), "AUTH LOGIN\r\n"),
            Some(_) => {
                let offered = self.extensions.mechanisms.clone();
                self.lacks(Lack::Mechanism { offered });
            }
        }
    }

    pub(super) fn auth_replied(&mut self, login: Login, reply: &Reply) {
        let config = self.config.clone();
        match (login, reply.code, &config.credentials) {
            (Login::User, 334, Some(credentials)) => {
                let line = format!("{}\r\n", BASE64.encode(credentials.user()));
                self.say(State::Auth(Login::Password), &line);
            }
            (Login::Password, 334, Some(credentials)) => {
                let line = format!("{}\r\n", BASE64.encode(credentials.password()));
                self.say(State::Auth(Login::Done), &line);
            }
            (Login::Done, 235, _) => self.ready(),
            _ => self.give_up(Stage::Auth, reply),
        }
    }

    /// Ends the session after a reply that makes it impossible to continue.
    pub(super) fn give_up(&mut self, stage: Stage, reply: &Reply) {
        if !reply.is_transient() && !reply.is_permanent() {
            return self.misbehaved(Misbehaviour::Unexpected { stage, code: reply.code });
        }
        self.close(Closed::Refused { stage, reply: reply.clone() });
        self.outbox.send(b"QUIT\r\n".to_vec());
    }

    fn lacks(&mut self, lack: Lack) {
        self.close(Closed::Lacks(lack));
        self.outbox.send(b"QUIT\r\n".to_vec());
    }
}

/// RFC 4616: empty authorization identity, user name, password.
fn plain_response(credentials: &Credentials) -> String {
    BASE64.encode(format!("\0{}\0{}", credentials.user(), credentials.password()))
}
