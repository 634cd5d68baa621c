//! A session with one mailbox: the POP3 client on a connection. Each step has the same time limit,
//! no matter how much data it transfers.

use std::io::{self, IoSlice};
use std::time::Duration;

use net::Wire;
use protocol::pop3::client::{Client, Command, Event, Limits, Misbehaviour};
use tokio::time::Instant;

use super::Account;
use crate::dial::plainly;
use crate::{Examiner, Seen};

/// A connection to a server.
pub(crate) struct Session {
    wire: Wire,
    client: Client,
    timeout: Duration,
    line: Vec<u8>,
}

/// A fetched message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) octets: u64,
    /// None if it has no stamp.
    pub(crate) seen: Option<Seen>,
}

/// Why a step failed, with the command and the reason.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server answered -ERR; the session can continue.
    Refused(String),
    /// The session is over.
    Broken(String),
}

impl Session {
    /// Starts a session on a new connection.
    pub(crate) fn new(wire: Wire, timeout: Duration) -> Session {
        Session { wire, client: Client::new(Limits::default()), timeout, line: Vec::new() }
    }

    /// Waits for the greeting.
    pub(crate) async fn banner(&mut self) -> Result<(), Trouble> {
        self.hear("banner", Instant::now() + self.timeout, |_| {}).await
    }

    /// Sends USER and PASS.
    pub(crate) async fn log_in(&mut self, account: &Account) -> Result<(), Trouble> {
        self.ask(Command::User(&account.user), |_| {}).await?;
        self.ask(Command::Pass(&account.password), |_| {}).await
    }

    /// Sends STAT, LIST and UIDL, which must agree on the number of messages.
    pub(crate) async fn list(&mut self) -> Result<u32, Trouble> {
        let mut found = 0;
        let take = |event: Event<'_>| {
            if let Event::Stat { messages, .. } = event {
                found = messages;
            }
        };
        self.ask(Command::Stat, take).await?;
        self.count(Command::List, found).await?;
        match self.count(Command::Uidl, found).await {
            // UIDL is optional (RFC 1939 section 7).
            Ok(()) | Err(Trouble::Refused(_)) => Ok(found),
            Err(trouble) => Err(trouble),
        }
    }

    /// Fetches a message and examines it.
    pub(crate) async fn retrieve(&mut self, number: u32) -> Result<Message, Trouble> {
        let mut octets = 0;
        let mut examiner = Examiner::default();
        let take = |event: Event<'_>| {
            if let Event::Content(piece) = event {
                octets += piece.len() as u64;
                examiner.append(piece);
            }
        };
        self.ask(Command::Retr(number), take).await?;
        Ok(Message { octets, seen: examiner.finish() })
    }

    /// Marks a message as deleted.
    pub(crate) async fn delete(&mut self, number: u32) -> Result<(), Trouble> {
        self.ask(Command::Dele(number), |_| {}).await
    }

    /// Ends the session.
    pub(crate) async fn quit(&mut self) -> Result<(), Trouble> {
        self.ask(Command::Quit, |_| {}).await
    }

    async fn count(&mut self, command: Command<'_>, expected: u32) -> Result<(), Trouble> {
        let mut lines = 0;
        let take = |event: Event<'_>| lines += u32::from(matches!(event, Event::Size { .. } | Event::Unique { .. }));
        self.ask(command, take).await?;
        if lines == expected {
            return Ok(());
        }
        Err(Trouble::Broken(format!("{} and STAT differ in the number of messages", command.verb())))
    }

    async fn ask(&mut self, command: Command<'_>, take: impl FnMut(Event<'_>)) -> Result<(), Trouble> {
        let deadline = Instant::now() + self.timeout;
        let verb = command.verb();
        self.line.clear();
        self.client.say(command, &mut self.line).map_err(|why| Trouble::Broken(format!("{verb}: {why}")))?;
        self.send(deadline).await.map_err(|error| broken(verb, &error))?;
        self.hear(verb, deadline, take).await
    }

    async fn send(&mut self, deadline: Instant) -> io::Result<()> {
        let mut rest = &self.line[..];
        while !rest.is_empty() {
            let sent = self.wire.send(&[IoSlice::new(rest)], deadline).await?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Receives until the reply is complete or the session is over.
    async fn hear(&mut self, what: &str, deadline: Instant, mut take: impl FnMut(Event<'_>)) -> Result<(), Trouble> {
        let mut refused = None;
        let mut sort = |event: Event<'_>| match event {
            Event::Refused(text) => refused = Some(format!("{what}: -ERR {text}")),
            event => take(event),
        };
        loop {
            let client = &mut self.client;
            let heard = self.wire.receive(deadline, |input| hear(client, input, &mut sort)).await;
            heard
                .map_err(|error| broken(what, &error))?
                .map_err(|misbehaviour| Trouble::Broken(format!("{what}: {misbehaviour}")))?;
            if self.client.is_ready() || self.client.is_closed() {
                return refused.map_or(Ok(()), |text| Err(Trouble::Refused(text)));
            }
        }
    }
}

/// Handles received bytes; none mean the end of the connection.
fn hear(client: &mut Client, mut input: &[u8], take: &mut impl FnMut(Event<'_>)) -> Result<(), Misbehaviour> {
    if input.is_empty() {
        return client.handle_end();
    }
    while let Some(event) = client.handle_input(&mut input)? {
        take(event);
    }
    Ok(())
}

fn broken(what: &str, error: &io::Error) -> Trouble {
    Trouble::Broken(format!("{what}: {}", plainly(error)))
}
