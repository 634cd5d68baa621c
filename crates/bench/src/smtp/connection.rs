//! One connection of the source: the SMTP client machine on a connection, with timing.
//!
//! A phase lasts from sending its command, or the group of commands with it, to its reply. The
//! final reply counts from sending the last byte of the message.

use std::io::{self, IoSlice};
use std::sync::Arc;

use mail::{Address, BodyType};
use net::{OutboundConnection, SentOrReceived, TlsClient, steady_now};
use protocol::smtp::client::{
    BeginTransactionError, CloseReason, RecipientOutcome, SmtpClient, SmtpClientConfig, SmtpClientEvent, SmtpStage,
    SmtpViolation, Transaction,
};
use tokio::time::Instant;

use super::message::OutgoingMessage;
use crate::dial::{dial, error_text};
use crate::engine::Worker;
use crate::tally::normalize_reply;
use crate::target::TargetServer;

/// The timed phases, by the index that [`phase_index`] returns.
pub(super) const PHASES: &[&str] =
    &["connect", "banner", "EHLO", "STARTTLS", "AUTH", "MAIL", "RCPT", "DATA", "final reply", "QUIT"];
const CONNECT: usize = 0;
const STARTTLS: usize = 3;

/// A connection with greeting, TLS and login done.
#[derive(Debug)]
pub(super) struct SmtpConnection {
    wire: OutboundConnection,
    client: SmtpClient,
    /// When the last command was sent.
    command_sent_at: Instant,
}

/// Why a message has no result.
#[derive(Debug)]
pub(super) struct DeliveryError {
    /// For the list of errors.
    pub(super) text: String,
    /// The server closed the session before it received more of the message than MAIL, so it can be
    /// sent again.
    pub(super) was_idle: bool,
}

impl DeliveryError {
    fn new(text: impl Into<String>) -> DeliveryError {
        DeliveryError { text: text.into(), was_idle: false }
    }
}

impl SmtpConnection {
    /// Connects and waits until a message can be sent.
    pub(super) async fn open<'a>(
        target: &TargetServer,
        config: Arc<SmtpClientConfig>,
        trust: impl Fn() -> &'a TlsClient,
        worker: &Worker,
    ) -> Result<SmtpConnection, DeliveryError> {
        let wire = dial(target.address, worker, CONNECT).await.map_err(DeliveryError::new)?;
        let client = SmtpClient::new(config, steady_now());
        let mut connection = SmtpConnection { wire, client, command_sent_at: Instant::now() };
        loop {
            match connection.next_event(worker, None).await {
                SmtpClientEvent::Ready => return Ok(connection),
                SmtpClientEvent::StartTls => connection = connection.secure(target, trust(), worker).await?,
                SmtpClientEvent::ComputeProof(work) => connection.client.handle_proof(steady_now(), work.compute()),
                SmtpClientEvent::Closed(closed) => return Err(connection.close_error(&closed)),
                SmtpClientEvent::Replied { .. } | SmtpClientEvent::Finished(_) => {}
            }
        }
    }

    async fn secure(
        mut self,
        target: &TargetServer,
        trust: &TlsClient,
        worker: &Worker,
    ) -> Result<SmtpConnection, DeliveryError> {
        let wire = self.wire.start_tls(trust, &target.host, worker.deadline()).await;
        self.wire = wire.map_err(|error| DeliveryError::new(format!("TLS: {}", error_text(&error))))?;
        let now = Instant::now();
        let mut tally = worker.tally.lock();
        tally.counts.tls_connections += 1;
        tally.record_phase(STARTTLS, now - self.command_sent_at);
        drop(tally);
        self.client.handle_tls_established(steady_now());
        Ok(self)
    }

    /// Sends a message. Returns the connection if it can carry another one.
    pub(super) async fn deliver(
        mut self,
        worker: &Worker,
        message: &OutgoingMessage,
        sender: &Option<Address>,
        recipients: &[Address],
    ) -> (Result<Vec<RecipientOutcome>, DeliveryError>, Option<SmtpConnection>) {
        let mut transaction = Transaction::new(sender.clone(), recipients.iter().cloned(), message.content());
        if message.eight_bit && self.client.extensions().eight_bit_mime {
            transaction.body_type = BodyType::EightBitMime;
        }
        match self.client.begin_transaction(steady_now(), &transaction) {
            Ok(()) => {}
            Err(BeginTransactionError::NotReady) => return (Err(self.closed_between_messages()), None),
            Err(unsendable) => return (Err(DeliveryError::new(unsendable.to_string())), Some(self)),
        }
        let mut verdicts = Vec::new();
        loop {
            match self.next_event(worker, Some(message)).await {
                SmtpClientEvent::Finished(found) => verdicts = found,
                SmtpClientEvent::Ready => return (Ok(verdicts), Some(self)),
                SmtpClientEvent::Closed(closed) => return (self.conclude(verdicts, &closed), None),
                SmtpClientEvent::Replied { .. } | SmtpClientEvent::StartTls | SmtpClientEvent::ComputeProof(_) => {}
            }
        }
    }

    /// The session is over; the results of the message may still be known.
    fn conclude(
        &self,
        verdicts: Vec<RecipientOutcome>,
        closed: &CloseReason,
    ) -> Result<Vec<RecipientOutcome>, DeliveryError> {
        let untouched = verdicts.iter().all(|verdict| match verdict {
            RecipientOutcome::NotSent => true,
            // A server that shuts down says so in reply to any command.
            RecipientOutcome::Refused { stage, .. } => {
                *stage == SmtpStage::Mail && matches!(closed, CloseReason::Shutdown(_))
            }
            RecipientOutcome::Accepted(_) | RecipientOutcome::InDoubt => false,
        });
        let was_idle = untouched
            && matches!(closed, CloseReason::Ended(SmtpStage::Mail | SmtpStage::Idle) | CloseReason::Shutdown(_));
        match verdicts.iter().any(|verdict| *verdict != RecipientOutcome::NotSent) && !was_idle {
            true => Ok(verdicts),
            false => Err(DeliveryError { was_idle, ..self.close_error(closed) }),
        }
    }

    /// The server sent a reply or closed the connection between two messages.
    fn closed_between_messages(&mut self) -> DeliveryError {
        DeliveryError { text: "the server ended the connection between messages".to_owned(), was_idle: true }
    }

    /// Sends QUIT and waits for the reply. Errors are ignored from here on.
    pub(super) async fn quit(mut self, worker: &Worker) {
        self.client.quit(steady_now());
        while !matches!(self.next_event(worker, None).await, SmtpClientEvent::Closed(_)) {}
    }

    /// Runs the session until an event that is not just a reply.
    async fn next_event(&mut self, worker: &Worker, message: Option<&OutgoingMessage>) -> SmtpClientEvent {
        loop {
            while let Some(event) = self.client.poll_event() {
                let SmtpClientEvent::Replied { stage, .. } = event else { return event };
                if let Some(phase) = phase_index(stage) {
                    worker.tally.lock().record_phase(phase, self.command_sent_at.elapsed());
                }
            }
            self.move_bytes(worker, message).await;
        }
    }

    /// Sends pending output, or receives.
    async fn move_bytes(&mut self, worker: &Worker, message: Option<&OutgoingMessage>) {
        let deadline = self.client.poll_deadline().map_or_else(|| worker.deadline(), net::steady_instant);
        let (client, wire) = (&mut self.client, &mut self.wire);
        let output = client.output();
        let [head, text, tail] = match message {
            Some(letter) if !output.content.is_empty() => letter.pieces(output.form, output.content.clone()),
            _ => [&[][..]; 3],
        };
        let pieces = [output.head, head, text, tail, output.tail].map(IoSlice::new);
        let moved = match output.is_empty() {
            true => wire.receive(deadline, |input| handle_received(client, input)).await.map(SentOrReceived::Received),
            false => {
                let mut input = Vec::new();
                let moved = wire.send_or_receive(&pieces, deadline, |bytes| input.extend_from_slice(bytes)).await;
                if let Ok(SentOrReceived::Received(())) = moved {
                    handle_received(client, &input);
                }
                moved
            }
        };
        match moved {
            Ok(SentOrReceived::Sent(count)) => {
                client.handle_sent(steady_now(), count as u64);
                if client.output().is_empty() {
                    self.command_sent_at = Instant::now();
                }
            }
            Ok(SentOrReceived::Received(())) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => client.handle_timeout(steady_now()),
            Err(_) => client.handle_disconnect(),
        }
    }

    fn close_error(&self, closed: &CloseReason) -> DeliveryError {
        DeliveryError::new(match closed {
            CloseReason::Quit => "the session ended".to_owned(),
            CloseReason::Shutdown(reply) => normalize_reply(&reply.to_string()),
            CloseReason::Refused { stage, reply } => {
                format!("{}: {}", stage_name(*stage), normalize_reply(&reply.to_string()))
            }
            CloseReason::Lacks(lack) => lack.to_string(),
            CloseReason::Ended(stage) => format!("{}: the server ended the connection", stage_name(*stage)),
            CloseReason::TimedOut(stage) => format!("{}: no answer in time", stage_name(*stage)),
            CloseReason::ProtocolViolation(SmtpViolation::Unexpected { stage, code }) => {
                format!("{}: unexpected reply {code}", stage_name(*stage))
            }
            CloseReason::ProtocolViolation(misbehaviour) => format!("not SMTP: {misbehaviour}"),
        })
    }
}

fn handle_received(client: &mut SmtpClient, input: &[u8]) {
    if input.is_empty() {
        client.handle_disconnect();
    } else {
        client.handle_input(steady_now(), input);
    }
}

/// The error text for one recipient.
pub(super) fn recipient_error(verdict: &RecipientOutcome) -> Option<String> {
    match verdict {
        RecipientOutcome::Accepted(_) => None,
        RecipientOutcome::Refused { stage, reply } => {
            Some(format!("{}: {}", stage_name(*stage), normalize_reply(&reply.to_string())))
        }
        RecipientOutcome::NotSent => Some("the session ended before the message was sent".to_owned()),
        RecipientOutcome::InDoubt => Some("the session ended before the final reply: in doubt".to_owned()),
    }
}

fn phase_index(stage: SmtpStage) -> Option<usize> {
    let name = match stage {
        // TLS is counted after its handshake.
        SmtpStage::StartTls | SmtpStage::Idle | SmtpStage::Rset => return None,
        stage => stage_name(stage),
    };
    PHASES.iter().position(|phase| *phase == name)
}

/// The name of a stage in texts and phases.
fn stage_name(stage: SmtpStage) -> &'static str {
    match stage {
        SmtpStage::Banner => "banner",
        SmtpStage::Hello => "EHLO",
        SmtpStage::StartTls => "STARTTLS",
        SmtpStage::Auth => "AUTH",
        SmtpStage::Idle => "between messages",
        SmtpStage::Xforward => "XFORWARD",
        SmtpStage::Mail => "MAIL",
        SmtpStage::Rcpt(_) => "RCPT",
        SmtpStage::Data => "DATA",
        SmtpStage::Message(_) => "final reply",
        SmtpStage::Rset => "RSET",
        SmtpStage::Quit => "QUIT",
    }
}
