//! The client's side of an SMTP or LMTP session. [`Client`] owns the dialogue: what is said when, what each reply means,
//! and what became of a message for each of its recipients. It promises that it tells this once for every transaction
//! that began, and honestly: what may have been accepted is in doubt, never lost. The bytes of a message do not pass
//! through it; it says which range of them is due. Nothing here is fatal: a server that breaks the protocol is hung up on.
//!
//! PIPELINING (RFC 2920), SIZE (1870), 8BITMIME (6152), SMTPUTF8 (6531), CHUNKING (3030), DSN (3461), LIMITS (9422),
//! STARTTLS (3207) and AUTH (4954, by PLAIN and LOGIN) are spoken where the server offers and the [`Config`] wants them.
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
//! | Exchange  | its replies           | Ready; or, where the server still has the envelope, RSET: Reset                |
//! | Reset     | 2xx                   | Ready                                                                          |
//! | Quit      | any reply             | Closed                                                                         |
//! | Closed    | nothing               | the end                                                                        |
//!
//! 421 leads to Closed from everywhere, and so does the end of the connection, a deadline that has passed, and a reply
//! that is none or that nobody asked for.

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
/// Events of the connection come in by the `handle_*` methods, events of the session go out by
/// [`poll_event`](Client::poll_event). After each of them: send the [`output`](Client::output), poll until there is no
/// event left, and close when [`wants_close`](Client::wants_close) says so and the output is sent.
///
/// The driver must go on reading while the server takes no bytes, and say what was sent before it says what was read: a
/// group of commands may be longer than the buffers between the two sides, and a reply that comes before its command
/// went out is misbehaviour.
#[derive(Debug)]
pub struct Client {
    config: Arc<Config>,
    extensions: Extensions,
    state: State,
    secured: bool,
    reader: ReplyReader,
    outbox: Outbox,
    events: VecDeque<Event>,
    /// The last time that something went on: a reply came, bytes went out.
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
    /// A session over a connection that was made `now`.
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

    /// TLS stands, as [`Event::StartTls`] asked. What the server said before is forgotten (RFC 3207 section 4.2).
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

    /// Call it when [`poll_deadline`](Client::poll_deadline) has passed; earlier it does nothing.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_deadline().is_some_and(|deadline| deadline <= now) {
            self.close(Closed::TimedOut(self.stage()));
        }
    }

    /// Begins a transaction, after [`Event::Ready`]. Its end is told by [`Event::Finished`]; after an error it has not
    /// begun.
    pub fn begin(&mut self, now: Timestamp, transaction: &Transaction) -> Result<(), Unsendable> {
        if !self.is_ready() {
            return Err(Unsendable::NotReady);
        }
        self.open(transaction)?;
        self.moved_at = now;
        Ok(())
    }

    /// Says QUIT, after [`Event::Ready`]; else it does nothing.
    pub fn quit(&mut self, now: Timestamp) {
        if self.is_ready() {
            self.moved_at = now;
            self.say(State::Quit, "QUIT\r\n");
        }
    }

    /// What happened next, in order.
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

    /// The first `count` octets of the output went out: of the head, then of the content, then of the tail.
    pub fn handle_sent(&mut self, now: Timestamp, count: u64) {
        if count > 0 {
            self.moved_at = now;
            self.outbox.handle_sent(count);
        }
    }

    /// When [`handle_timeout`](Client::handle_timeout) is due. None while it is the driver's turn.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.patience().map(|span| self.moved_at + span)
    }

    /// Whether the connection is to be closed once the output is sent, which is a QUIT at the most: it need not wait for
    /// that long.
    pub fn wants_close(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether a transaction may begin.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// In which form the content of the next transaction goes out.
    pub fn form(&self) -> Form {
        if self.config.chunking && self.extensions.chunking { Form::Plain } else { Form::Stuffed }
    }

    /// What the server offered.
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

    /// Tells the reply, and then what it leads to.
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
            // Nothing was said, and so no line was found above.
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

    /// Ends the session, and the transaction before it. What was not sent is not sent any more.
    fn close(&mut self, closed: Closed) {
        if let State::Exchange(exchange) = std::mem::replace(&mut self.state, State::Closed) {
            self.events.push_back(Event::Finished(exchange.into_verdicts(&self.outbox)));
        }
        self.outbox = Outbox::default();
        self.reader = ReplyReader::default();
        self.events.push_back(Event::Closed(closed));
    }
}
