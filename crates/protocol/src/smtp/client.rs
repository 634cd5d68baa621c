//! The client side of an SMTP or LMTP session. [`SmtpClient`] controls the dialogue: what to send
//! when, what each reply means, and what happens to a message for each recipient. It reports this
//! once for every transaction that began, and conservatively: a message that may have been accepted
//! is reported as in doubt, never as unsent. The bytes of a message do not pass through it; it says
//! which range of them to send. No error here is fatal: a server that breaks the protocol is
//! disconnected.
//!
//! PIPELINING (RFC 2920), SIZE (1870), 8BITMIME (6152), SMTPUTF8 (6531), CHUNKING (3030), DSN
//! (3461), LIMITS (9422), STARTTLS (3207) and AUTH (4954) are used if the
//! server offers and the [`SmtpClientConfig`] allows them; Postfix's XFORWARD if a transaction asks for it.
//!
//! # States
//!
//! | state     | waits for             | then                                                                           |
//! |-----------|-----------------------|--------------------------------------------------------------------------------|
//! | Banner    | 220                   | EHLO or LHLO: Hello                                                            |
//! | Hello     | 250                   | STARTTLS: StartTls; or AUTH: Auth; or Ready. EHLO refused by 5xx: HELO         |
//! | StartTls  | 220                   | Handshake; refused and not required: as after Hello                            |
//! | Handshake | the driver            | all extensions forgotten, EHLO: Hello. Bytes in clear text: Closed             |
//! | Auth      | 235, or 334 and again | Ready. With SCRAM, the driver computes the answer to the first 334             |
//! | Ready     | the driver            | a transaction: Transaction; QUIT: Quit                                            |
//! | Transaction  | its replies           | Ready; or, if the server still has the envelope, RSET: Reset                   |
//! | Reset     | 2xx                   | Ready                                                                          |
//! | Quit      | any reply             | Closed                                                                         |
//! | Closed    | nothing               | the end                                                                        |
//!
//! A 421 leads to Closed from every state, as does the end of the connection, a timeout, or an
//! invalid or unexpected reply.

mod config;
mod event;
mod extensions;
mod forwarded;
mod greeting;
mod outbox;
mod reply;
#[cfg(test)]
mod tests;
mod transaction;
mod transaction_state;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mail::{Reply, Timestamp};

pub use super::MailProtocol;
use crate::sasl::client::{SaslClient, ScramProof};
use crate::sasl::{Nonce, encode};
pub use config::{
    CREDENTIAL_OCTETS_MAX, CommandArgument, InvalidCommandArgument, MalformedCredentials, SmtpClientConfig,
    SmtpCredentials, TOKEN_OCTETS_MAX, Timeouts, TlsPolicy, WORD_OCTETS_MAX,
};
pub use event::{
    BeginTransactionError, CloseReason, MissingCapability, RecipientOutcome, SmtpClientEvent, SmtpStage, SmtpViolation,
};
pub use extensions::Extensions;
pub use forwarded::{ForwardedAttributes, ForwardedClient};
pub use outbox::SmtpClientOutput;
pub use reply::{LINE_OCTETS_MAX, REPLY_LINES_MAX, REPLY_OCTETS_MAX};
pub use transaction::{ContentSize, DotStuffing, Transaction, TransactionRecipient, stuff_dots};
pub use transaction_state::GROUPED_CHUNK_OCTETS_MAX;

use greeting::HelloKind;
use outbox::Outbox;
use reply::ReplyReader;
use transaction_state::TransactionState;

/// One session with one server.
///
/// Connection events come in by the `handle_*` methods, session events go out by
/// [`poll_event`](SmtpClient::poll_event). After each event: send the
/// [`output`](SmtpClient::output), poll until no event is left, and close when
/// [`wants_close`](SmtpClient::wants_close) is true and the output is sent.
///
/// The driver must keep reading while the server accepts no bytes, and report what was sent before
/// what was received: a group of commands may exceed the buffers between the two sides, and a reply
/// that precedes its command is a protocol violation.
#[derive(Debug)]
pub struct SmtpClient {
    config: Arc<SmtpClientConfig>,
    extensions: Extensions,
    state: State,
    secured: bool,
    /// For SCRAM.
    nonce: Option<Box<Nonce>>,
    reader: ReplyReader,
    outbox: Outbox,
    events: VecDeque<SmtpClientEvent>,
    /// When the last reply was received or bytes were sent.
    last_activity_at: Timestamp,
}

#[derive(Debug)]
enum State {
    Banner,
    Hello(HelloKind),
    StartTls,
    Handshake,
    Auth(Box<SaslClient>),
    Ready,
    Transaction(TransactionState),
    Reset,
    Quit,
    Closed,
}

impl SmtpClient {
    /// Starts a session on a connection made at `now`.
    pub fn new(config: Arc<SmtpClientConfig>, now: Timestamp) -> Self {
        SmtpClient {
            config,
            extensions: Extensions::default(),
            state: State::Banner,
            secured: false,
            nonce: None,
            reader: ReplyReader::default(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            last_activity_at: now,
        }
    }

    /// The connection uses TLS from its first byte (RFC 8314 section 3.3).
    pub fn over_tls(self) -> Self {
        SmtpClient { secured: true, ..self }
    }

    /// Allows a login by SCRAM, with a nonce that was never used before.
    pub fn with_nonce(self, nonce: Nonce) -> Self {
        SmtpClient { nonce: Some(Box::new(nonce)), ..self }
    }

    /// Takes all of `input`.
    pub fn handle_input(&mut self, now: Timestamp, mut input: &[u8]) {
        while !input.is_empty() && !self.wants_close() {
            if matches!(self.state, State::Handshake) {
                return self.close_for_violation(SmtpViolation::ClearText);
            }
            match self.reader.next_reply(&mut input) {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    self.last_activity_at = now;
                    self.handle_reply(reply);
                }
                Err(misbehaviour) => self.close_for_violation(misbehaviour),
            }
        }
    }

    /// The TLS handshake requested by [`SmtpClientEvent::StartTls`] has succeeded. Everything the
    /// server said before is forgotten (RFC 3207 section 4.2).
    pub fn handle_tls_established(&mut self, now: Timestamp) {
        if matches!(self.state, State::Handshake) {
            self.last_activity_at = now;
            self.secured = true;
            self.extensions = Extensions::default();
            self.say_hello(HelloKind::Extended);
        }
    }

    /// The proof requested by [`SmtpClientEvent::ComputeProof`].
    pub fn handle_proof(&mut self, now: Timestamp, proof: ScramProof) {
        if let State::Auth(login) = &mut self.state
            && let Some(response) = login.handle_proof(proof)
        {
            self.last_activity_at = now;
            self.outbox.send(format!("{}\r\n", encode(&response)).into_bytes());
        }
    }

    /// The server closed its side, or the connection broke.
    pub fn handle_disconnect(&mut self) {
        match self.state {
            State::Closed => {}
            State::Quit => self.close(CloseReason::Quit),
            _ => self.close(CloseReason::Ended(self.stage())),
        }
    }

    /// Call it when [`poll_deadline`](SmtpClient::poll_deadline) has passed; before that it does
    /// nothing.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if self.poll_deadline().is_some_and(|deadline| deadline <= now) {
            self.close(CloseReason::TimedOut(self.stage()));
        }
    }

    /// Begins a transaction; call it after [`SmtpClientEvent::Ready`].
    /// [`SmtpClientEvent::Finished`] reports its end. After an error, no transaction has begun.
    pub fn begin_transaction(
        &mut self,
        now: Timestamp,
        transaction: &Transaction,
    ) -> Result<(), BeginTransactionError> {
        if !self.is_ready() {
            return Err(BeginTransactionError::NotReady);
        }
        self.open(transaction)?;
        self.last_activity_at = now;
        Ok(())
    }

    /// Sends QUIT; call it after [`SmtpClientEvent::Ready`], otherwise it does nothing.
    pub fn quit(&mut self, now: Timestamp) {
        if self.is_ready() {
            self.last_activity_at = now;
            self.send_command(State::Quit, "QUIT\r\n");
        }
    }

    /// The next event, in order.
    pub fn poll_event(&mut self) -> Option<SmtpClientEvent> {
        let event = self.events.pop_front();
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
        event
    }

    /// What to send.
    pub fn output(&self) -> SmtpClientOutput<'_> {
        self.outbox.output()
    }

    /// The first `count` octets of the output were sent: of the head, then the content, then the
    /// tail.
    pub fn handle_sent(&mut self, now: Timestamp, count: u64) {
        if count > 0 {
            self.last_activity_at = now;
            self.outbox.handle_sent(count);
        }
    }

    /// When to call [`handle_timeout`](SmtpClient::handle_timeout). None while the driver must act.
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        self.timeout().map(|span| self.last_activity_at + span)
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
    pub fn dot_stuffing(&self) -> DotStuffing {
        if self.config.chunking && self.extensions.chunking { DotStuffing::Plain } else { DotStuffing::Stuffed }
    }

    /// The extensions that the server offers.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }
}

impl SmtpClient {
    fn stage(&self) -> SmtpStage {
        match &self.state {
            State::Banner => SmtpStage::Banner,
            State::Hello(_) => SmtpStage::Hello,
            State::StartTls | State::Handshake => SmtpStage::StartTls,
            State::Auth(_) => SmtpStage::Auth,
            State::Ready | State::Closed => SmtpStage::Idle,
            State::Transaction(state) => state.stage(),
            State::Reset => SmtpStage::Rset,
            State::Quit => SmtpStage::Quit,
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let timeouts = &self.config.timeouts;
        match self.stage() {
            SmtpStage::Banner => Some(timeouts.banner),
            SmtpStage::Idle => None,
            SmtpStage::Data => Some(timeouts.data),
            SmtpStage::Message(_) if self.outbox.output().is_empty() => Some(timeouts.message),
            SmtpStage::Message(_) => Some(timeouts.block),
            _ => Some(timeouts.command),
        }
    }

    /// Reports the reply before the events that it causes.
    fn handle_reply(&mut self, reply: Reply) {
        let (stage, place) = (self.stage(), self.events.len());
        self.dispatch_reply(stage, &reply);
        self.events.insert(place, SmtpClientEvent::Replied { stage, reply });
    }

    fn dispatch_reply(&mut self, stage: SmtpStage, reply: &Reply) {
        if reply.code == 421 && stage != SmtpStage::Quit {
            return self.handle_421(stage, reply);
        }
        let has_line = !matches!(stage, SmtpStage::Banner | SmtpStage::Message(_));
        if has_line && !self.outbox.answer_line() {
            return self.close_for_violation(SmtpViolation::Early);
        }
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Banner => self.banner_came(reply),
            State::Hello(hello) => self.hello_replied(hello, reply),
            State::StartTls => self.start_tls_replied(reply),
            State::Auth(login) => self.auth_replied(login, reply),
            State::Transaction(state) => self.take_exchange_reply(state, stage, reply),
            State::Reset if reply.is_success() => self.ready(),
            State::Reset => self.quit_after_refusal(stage, reply),
            State::Quit => self.close(CloseReason::Quit),
            // No command was sent, which was checked above.
            State::Ready | State::Handshake | State::Closed => self.close_for_violation(SmtpViolation::Early),
        }
    }

    fn send_command(&mut self, state: State, line: &str) {
        self.outbox.send(line.as_bytes().to_vec());
        self.state = state;
    }

    fn ready(&mut self) {
        self.state = State::Ready;
        self.events.push_back(SmtpClientEvent::Ready);
    }

    /// RFC 5321 section 3.8: 421 may come at any time.
    fn handle_421(&mut self, stage: SmtpStage, reply: &Reply) {
        if let State::Transaction(state) = &mut self.state {
            state.handle_shutdown(stage, reply);
        }
        self.close(CloseReason::Shutdown(reply.clone()));
    }

    fn close_for_violation(&mut self, misbehaviour: SmtpViolation) {
        self.close(CloseReason::ProtocolViolation(misbehaviour));
    }

    /// Ends the session, and first its transaction. Unsent output is dropped.
    fn close(&mut self, closed: CloseReason) {
        if let State::Transaction(state) = std::mem::replace(&mut self.state, State::Closed) {
            self.events.push_back(SmtpClientEvent::Finished(state.into_outcomes(&self.outbox)));
        }
        self.outbox = Outbox::default();
        self.reader = ReplyReader::default();
        self.events.push_back(SmtpClientEvent::Closed(closed));
    }
}
