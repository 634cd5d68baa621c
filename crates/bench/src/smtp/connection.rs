//! One connection of the source: the SMTP client machine on a connection, with timing.
//!
//! A phase lasts from sending its command, or the group of commands with it, to its reply. The
//! final reply counts from sending the last byte of the message.

use std::io::{self, IoSlice};
use std::sync::Arc;

use mail::{Address, BodyType};
use net::{Moved, Trust, Wire, steady_now};
use protocol::smtp::client::{Client, Closed, Config, Event, Misbehaviour, Stage, Transaction, Unsendable, Verdict};
use tokio::time::Instant;

use super::letter::Letter;
use crate::dial::{dial, plainly};
use crate::engine::Worker;
use crate::tally::likeness;
use crate::target::Target;

/// The timed phases, by the index that [`phase`] returns.
pub(super) const PHASES: &[&str] =
    &["connect", "banner", "EHLO", "STARTTLS", "AUTH", "MAIL", "RCPT", "DATA", "final reply", "QUIT"];
const CONNECT: usize = 0;
const STARTTLS: usize = 3;

/// A connection with greeting, TLS and login done.
#[derive(Debug)]
pub(super) struct Connection {
    wire: Wire,
    client: Client,
    /// When the last command was sent.
    asked_at: Instant,
}

/// Why a message has no result.
#[derive(Debug)]
pub(super) struct Trouble {
    /// For the list of errors.
    pub(super) text: String,
    /// The server closed the session before it received more of the message than MAIL, so it can be
    /// sent again.
    pub(super) was_idle: bool,
}

impl Trouble {
    fn new(text: impl Into<String>) -> Trouble {
        Trouble { text: text.into(), was_idle: false }
    }
}

impl Connection {
    /// Connects and waits until a message can be sent.
    pub(super) async fn open<'a>(
        target: &Target,
        config: Arc<Config>,
        trust: impl Fn() -> &'a Trust,
        worker: &Worker,
    ) -> Result<Connection, Trouble> {
        let wire = dial(target.address, worker, CONNECT).await.map_err(Trouble::new)?;
        let client = Client::new(config, steady_now());
        let mut connection = Connection { wire, client, asked_at: Instant::now() };
        loop {
            match connection.next_event(worker, None).await {
                Event::Ready => return Ok(connection),
                Event::StartTls => connection = connection.secure(target, trust(), worker).await?,
                Event::Closed(closed) => return Err(connection.trouble(&closed)),
                Event::Replied { .. } | Event::Finished(_) => {}
            }
        }
    }

    async fn secure(mut self, target: &Target, trust: &Trust, worker: &Worker) -> Result<Connection, Trouble> {
        let wire = self.wire.secure(trust, &target.host, worker.deadline()).await;
        self.wire = wire.map_err(|error| Trouble::new(format!("TLS: {}", plainly(&error))))?;
        let now = Instant::now();
        let mut tally = worker.tally();
        tally.counts.tls_connections += 1;
        tally.phase(STARTTLS, now - self.asked_at);
        drop(tally);
        self.client.handle_secured(steady_now());
        Ok(self)
    }

    /// Sends a message. Returns the connection if it can carry another one.
    pub(super) async fn deliver(
        mut self,
        worker: &Worker,
        letter: &Letter,
        sender: &Option<Address>,
        recipients: &[Address],
    ) -> (Result<Vec<Verdict>, Trouble>, Option<Connection>) {
        let mut transaction = Transaction::new(sender.clone(), recipients.iter().cloned(), letter.content());
        if letter.eight_bit && self.client.extensions().eight_bit_mime {
            transaction.body_type = BodyType::EightBitMime;
        }
        match self.client.begin(steady_now(), &transaction) {
            Ok(()) => {}
            Err(Unsendable::NotReady) => return (Err(self.ended_early()), None),
            Err(unsendable) => return (Err(Trouble::new(unsendable.to_string())), Some(self)),
        }
        let mut verdicts = Vec::new();
        loop {
            match self.next_event(worker, Some(letter)).await {
                Event::Finished(found) => verdicts = found,
                Event::Ready => return (Ok(verdicts), Some(self)),
                Event::Closed(closed) => return (self.settle(verdicts, &closed), None),
                Event::Replied { .. } | Event::StartTls => {}
            }
        }
    }

    /// The session is over; the results of the message may still be known.
    fn settle(&self, verdicts: Vec<Verdict>, closed: &Closed) -> Result<Vec<Verdict>, Trouble> {
        let untouched = verdicts.iter().all(|verdict| match verdict {
            Verdict::NotSent => true,
            // A server that shuts down says so in reply to any command.
            Verdict::Refused { stage, .. } => *stage == Stage::Mail && matches!(closed, Closed::Shutdown(_)),
            Verdict::Accepted(_) | Verdict::InDoubt => false,
        });
        let was_idle = untouched && matches!(closed, Closed::Ended(Stage::Mail | Stage::Idle) | Closed::Shutdown(_));
        match verdicts.iter().any(|verdict| *verdict != Verdict::NotSent) && !was_idle {
            true => Ok(verdicts),
            false => Err(Trouble { was_idle, ..self.trouble(closed) }),
        }
    }

    /// The server sent a reply or closed the connection between two messages.
    fn ended_early(&mut self) -> Trouble {
        Trouble { text: "the server ended the connection between messages".to_owned(), was_idle: true }
    }

    /// Sends QUIT and waits for the reply. Errors are ignored from here on.
    pub(super) async fn quit(mut self, worker: &Worker) {
        self.client.quit(steady_now());
        while !matches!(self.next_event(worker, None).await, Event::Closed(_)) {}
    }

    /// Runs the session until an event that is not just a reply.
    async fn next_event(&mut self, worker: &Worker, letter: Option<&Letter>) -> Event {
        loop {
            while let Some(event) = self.client.poll_event() {
                let Event::Replied { stage, .. } = event else { return event };
                if let Some(phase) = phase(stage) {
                    worker.tally().phase(phase, self.asked_at.elapsed());
                }
            }
            self.move_bytes(worker, letter).await;
        }
    }

    /// Sends pending output, or receives.
    async fn move_bytes(&mut self, worker: &Worker, letter: Option<&Letter>) {
        let deadline = self.client.poll_deadline().map_or_else(|| worker.deadline(), net::instant_of);
        let (client, wire) = (&mut self.client, &mut self.wire);
        let output = client.output();
        let [head, text, tail] = match letter {
            Some(letter) if !output.content.is_empty() => letter.pieces(output.form, output.content.clone()),
            _ => [&[][..]; 3],
        };
        let pieces = [output.head, head, text, tail, output.tail].map(IoSlice::new);
        let moved = match output.is_empty() {
            true => wire.receive(deadline, |input| take(client, input)).await.map(Moved::Received),
            false => {
                let mut input = Vec::new();
                let moved = wire.exchange(&pieces, deadline, |bytes| input.extend_from_slice(bytes)).await;
                if let Ok(Moved::Received(())) = moved {
                    take(client, &input);
                }
                moved
            }
        };
        match moved {
            Ok(Moved::Sent(count)) => {
                client.handle_sent(steady_now(), count as u64);
                if client.output().is_empty() {
                    self.asked_at = Instant::now();
                }
            }
            Ok(Moved::Received(())) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => client.handle_timeout(steady_now()),
            Err(_) => client.handle_end(),
        }
    }

    fn trouble(&self, closed: &Closed) -> Trouble {
        Trouble::new(match closed {
            Closed::Quit => "the session ended".to_owned(),
            Closed::Shutdown(reply) => likeness(&reply.to_string()),
            Closed::Refused { stage, reply } => format!("{}: {}", name(*stage), likeness(&reply.to_string())),
            Closed::Lacks(lack) => lack.to_string(),
            Closed::Ended(stage) => format!("{}: the server ended the connection", name(*stage)),
            Closed::TimedOut(stage) => format!("{}: no answer in time", name(*stage)),
            Closed::Misbehaved(Misbehaviour::Unexpected { stage, code }) => {
                format!("{}: unexpected reply {code}", name(*stage))
            }
            Closed::Misbehaved(misbehaviour) => format!("not SMTP: {misbehaviour}"),
        })
    }
}

fn take(client: &mut Client, input: &[u8]) {
    if input.is_empty() {
        client.handle_end();
    } else {
        client.handle_input(steady_now(), input);
    }
}

/// The error text for one recipient.
pub(super) fn complaint(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Accepted(_) => None,
        Verdict::Refused { stage, reply } => Some(format!("{}: {}", name(*stage), likeness(&reply.to_string()))),
        Verdict::NotSent => Some("the session ended before the message was sent".to_owned()),
        Verdict::InDoubt => Some("the session ended before the final reply: in doubt".to_owned()),
    }
}

fn phase(stage: Stage) -> Option<usize> {
    let name = match stage {
        // TLS is counted after its handshake.
        Stage::StartTls | Stage::Idle | Stage::Rset => return None,
        stage => name(stage),
    };
    PHASES.iter().position(|phase| *phase == name)
}

/// The name of a stage in texts and phases.
fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Banner => "banner",
        Stage::Hello => "EHLO",
        Stage::StartTls => "STARTTLS",
        Stage::Auth => "AUTH",
        Stage::Idle => "between messages",
        Stage::Mail => "MAIL",
        Stage::Rcpt(_) => "RCPT",
        Stage::Data => "DATA",
        Stage::Message(_) => "final reply",
        Stage::Rset => "RSET",
        Stage::Quit => "QUIT",
    }
}
