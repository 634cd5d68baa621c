//! The client side of an SMTP or LMTP session. [`Client`] controls the dialogue: what to send when,
//! what each reply means, and what happens to a message for each recipient. It reports this once
//! for every transaction that began, and conservatively: a message that may have been accepted is
//! reported as in doubt, never as unsent. The bytes of a message do not pass through it; it says
//! which range of them to send. No error here is fatal: a server that breaks the protocol is
//! disconnected.
//!
//! PIPELINING (RFC 2920), SIZE (1870), 8BITMIME (6152), SMTPUTF8 (6531), CHUNKING (3030), DSN
//! (3461), LIMITS (9422), STARTTLS (3207) and AUTH (4954, by PLAIN and LOGIN) are used if the
//! server offers and the [`Config`] allows them.
//!
//! # States
//!
//! | state     | waits for             | then                                                                           |
//! |-----------|-----------------------|--------------------------------------------------------------------------------|
//! | Banner    | 220                   | EHLO or LHLO: Hello                                                            |
//! | Hello     | 250                   | STARTTLS: StartTls; or AUTH: Auth; or Ready. EHLO refused by 5xx: HELO         |
//! | StartTls  | 220                   | Handshake; refused and not required: as after Hello                            |
//! | Handshake | the driver            | all extensions forgotten, EHLO: Hello. Bytes in clear text: Closed             |
//! | Auth      | 235, or 334 and again | Ready                                                                          |
//! | Ready     | the driver            | a transaction: Exchange; QUIT: Quit                                            |
//! | Exchange  | its replies           | Ready; or, if the server still has the envelope, RSET: Reset                   |
//! | Reset     | 2xx                   | Ready                                                                          |
//! | Quit      | any reply             | Closed                                                                         |
//! | Closed    | nothing               | the end                                                                        |
//!
//! A 421 leads to Closed from every state, as does the end of the connection, a timeout, or an
//! invalid or unexpected reply.

mod config;
mod event;
mod exchange;
mod extensions;
mod greeting;
mod outbox;
mod reply;
#[cfg(test)]
mod tests;
mod transaction;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mail::{Reply, Timestamp};

pub use super::Flavor;
pub use config::{
    BadCredentials, CREDENTIAL_OCTETS_MAX, Config, Credentials, NoWord, Timeouts, Tls, WORD_OCTETS_MAX, Word,
};
pub use event::{Closed, Event, Lack, Misbehaviour, Stage, Unsendable, Verdict};
pub use exchange::GROUPED_CHUNK_OCTETS_MAX;
pub use extensions::Extensions;
pub use outbox::Output;
pub use reply::{LINE_OCTETS_MAX, REPLY_LINES_MAX, REPLY_OCTETS_MAX};
pub use transaction::{Content, Form, Recipient, Transaction, stuff_dots};

use exchange::Exchange;
use greeting::{Hello, Login};
use outbox::Outbox;
use reply::ReplyReader;

/// One session with one server.
///
/// Connection events come in by the `handle_*` methods, session events go out by
/// [`poll_event`](Client::poll_event). After each event: send the [`output`](Client::output), poll
/// until no event is left, and close when [`wants_close`](Client::wants_close) is true and the
/// output is sent.
///
/// The driver must keep reading while the server accepts no bytes, and report what was sent before
/// what was received: a group of commands may exceed the buffers between the two sides, and a reply
/// that precedes its command is a protocol violation.
#[derive(Debug)]
pub struct Client {
    config: Arc<Config>,
    extensions: Extensions,
    state: State,
    secured: bool,
    reader: ReplyReader,
    outbox: Outbox,
    events: VecDeque<Event>,
    /// When the last reply was received or bytes were sent.
    moved_at: Timestamp,
}

#[derive(Debug)]
enum State {
    Banner,
    Hello(Hello),
    StartTls,
    Handshake,
    Auth(Login),
    Ready,
    Exchange(Exchange),
    Reset,
    Quit,
    Closed,
}

impl Client {
    /// Starts a session on a connection made at `now`.
    pub fn new(config: Arc<Config>, now: Timestamp) -> Self {
        Client {
            config,
            extensions: Extensions::default(),
            state: State::Banner,
            secured: false,
            reader: ReplyReader::default(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            moved_at: now,
        }
    }

    /// Takes all of `input`.
    pub fn handle_input(&mut self, now: Timestamp, mut input: &[u8]) {
        while !input.is_empty() && !self.wants_close() {
            if matches!(self.state, State::Handshake) {
                return self.misbehaved(Misbehaviour::ClearText);
            }
            match self.reader.next_reply(&mut input) {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    self.moved_at = now;
                    self.take_reply(reply);
                }
                Err(misbehaviour) => self.misbehaved(misbehaviour),
            }
        }
    }

    /// The TLS handshake requested by [`Event::StartTls`] has succeeded. Everything the server said
    /// before is forgotten (RFC 3207 section 4.2).
    pub fn handle_secured(&mut self, now: Timestamp) {
        if matches!(self.state, State::Handshake) {
            self.moved_at = now;
            self.secured = true;
            self.extensions = Extensions::default();
            self.say_hello(Hello::Extended);
        }
    }

    /// The server closed its side, or the connection broke.
    pub fn handle_end(&mut self) {
        match self.state {
            State::Closed => {}
            State::Quit => self.close(Closed::Quit),
            _ => self.close(Closed::Ended(self.stage())),
        }
    }

    /// Call it when [`poll_deadline`](Client::poll_deadline) has passed; before that it does
    /// nothing.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_deadline().is_some_and(|deadline| deadline <= now) {
            self.close(Closed::TimedOut(self.stage()));
        }
    }

    /// Begins a transaction; call it after [`Event::Ready`]. [`Event::Finished`] reports its end.
    /// After an error, no transaction has begun.
    pub fn begin(&mut self, now: Timestamp, transaction: &Transaction) -> Result<(), Unsendable> {
        if !self.is_ready() {
            return Err(Unsendable::NotReady);
        }
        self.open(transaction)?;
        self.moved_at = now;
        Ok(())
    }

    /// Sends QUIT; call it after [`Event::Ready`], otherwise it does nothing.
    pub fn quit(&mut self, now: Timestamp) {
        if self.is_ready() {
            self.moved_at = now;
            self.say(State::Quit, "QUIT\r\n");
        }
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
        event
    }

    /// What to send.
    pub fn output(&self) -> Output<'_> {
        self.outbox.output()
    }

    /// The first `count` octets of the output were sent: of the head, then the content, then the
    /// tail.
    pub fn handle_sent(&mut self, now: Timestamp, count: u64) {
        if count > 0 {
            self.moved_at = now;
            self.outbox.handle_sent(count);
        }
    }

    /// When to call [`handle_timeout`](Client::handle_timeout). None while the driver must act.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.patience().map(|span| self.moved_at + span)
    }

    /// Whether to close the connection once the output is sent, which is at most a QUIT; closing
    /// need not wait long for it.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether a transaction may begin.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// The form in which the content of the next transaction is sent.
    pub fn form(&self) -> Form {
        if self.config.chunking && self.extensions.chunking { Form::Plain } else { Form::Stuffed }
    }

    /// The extensions that the server offers.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }
}

impl Client {
    fn stage(&self) -> Stage {
        match &self.state {
            State::Banner => Stage::Banner,
            State::Hello(_) => Stage::Hello,
            State::StartTls | State::Handshake => Stage::StartTls,
            State::Auth(_) => Stage::Auth,
            State::Ready | State::Closed => Stage::Idle,
            State::Exchange(exchange) => exchange.stage(),
            State::Reset => Stage::Rset,
            State::Quit => Stage::Quit,
        }
    }

    fn patience(&self) -> Option<Duration> {
        let timeouts = &self.config.timeouts;
        match self.stage() {
            Stage::Banner => Some(timeouts.banner),
            Stage::Idle => None,
            Stage::Data => Some(timeouts.data),
            Stage::Message(_) if self.outbox.output().is_empty() => Some(timeouts.message),
            Stage::Message(_) => Some(timeouts.block),
            _ => Some(timeouts.command),
        }
    }

    /// Reports the reply before the events that it causes.
    fn take_reply(&mut self, reply: Reply) {
        let (stage, place) = (self.stage(), self.events.len());
        self.obey_reply(stage, &reply);
        self.events.insert(place, Event::Replied { stage, reply });
    }

    fn obey_reply(&mut self, stage: Stage, reply: &Reply) {
        if reply.code == 421 && stage != Stage::Quit {
            return self.shut_down(stage, reply);
        }
        let has_line = !matches!(stage, Stage::Banner | Stage::Message(_));
        if has_line && !self.outbox.answer_line() {
            return self.misbehaved(Misbehaviour::Early);
        }
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Banner => self.banner_came(reply),
            State::Hello(hello) => self.hello_replied(hello, reply),
            State::StartTls => self.start_tls_replied(reply),
            State::Auth(login) => self.auth_replied(login, reply),
            State::Exchange(exchange) => self.take_exchange_reply(exchange, stage, reply),
            State::Reset if reply.is_success() => self.ready(),
            State::Reset => self.give_up(stage, reply),
            State::Quit => self.close(Closed::Quit),
            // No command was sent, which was checked above.
            State::Ready | State::Handshake | State::Closed => self.misbehaved(Misbehaviour::Early),
        }
    }

    fn say(&mut self, state: State, line: &str) {
        self.outbox.send(line.as_bytes().to_vec());
        self.state = state;
    }

    fn ready(&mut self) {
        self.state = State::Ready;
        self.events.push_back(Event::Ready);
    }

    /// RFC 5321 section 3.8: 421 may come at any time.
    fn shut_down(&mut self, stage: Stage, reply: &Reply) {
        if let State::Exchange(exchange) = &mut self.state {
            exchange.handle_shutdown(stage, reply);
        }
        self.close(Closed::Shutdown(reply.clone()));
    }

    fn misbehaved(&mut self, misbehaviour: Misbehaviour) {
        self.close(Closed::Misbehaved(misbehaviour));
    }

    /// Ends the session, and first its transaction. Unsent output is dropped.
    fn close(&mut self, closed: Closed) {
        if let State::Exchange(exchange) = std::mem::replace(&mut self.state, State::Closed) {
            self.events.push_back(Event::Finished(exchange.into_verdicts(&self.outbox)));
        }
        self.outbox = Outbox::default();
        self.reader = ReplyReader::default();
        self.events.push_back(Event::Closed(closed));
    }
}
