//! A session with one mailbox: the POP3 client on a connection. Each step has the same time limit,
//! no matter how much data it transfers.

use std::io::{self, IoSlice};
use std::time::Duration;

use net::OutboundConnection;
use protocol::pop3::client::{Pop3Client, Pop3Command, Pop3Event, Pop3ResponseLimits, Pop3Violation};
use tokio::time::Instant;

use super::Account;
use crate::dial::error_text;
use crate::{StampCheckResult, StampChecker};

/// A connection to a server.
pub(crate) struct Pop3Session {
    wire: OutboundConnection,
    client: Pop3Client,
    timeout: Duration,
    line: Vec<u8>,
}

/// A fetched message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetrievedMessage {
    pub(crate) octets: u64,
    /// None if it has no stamp.
    pub(crate) seen: Option<StampCheckResult>,
}

/// Why a step failed, with the command and the reason.
#[derive(Debug)]
pub(crate) enum Pop3Error {
    /// The server answered -ERR; the session can continue.
    Refused(String),
    /// The session is over.
    Broken(String),
}

impl Pop3Session {
    /// Starts a session on a new connection.
    pub(crate) fn new(wire: OutboundConnection, timeout: Duration) -> Pop3Session {
        Pop3Session { wire, client: Pop3Client::new(Pop3ResponseLimits::default()), timeout, line: Vec::new() }
    }

    /// Waits for the greeting.
    pub(crate) async fn banner(&mut self) -> Result<(), Pop3Error> {
        self.receive_reply("banner", Instant::now() + self.timeout, |_| {}).await
    }

    /// Sends USER and PASS.
    pub(crate) async fn log_in(&mut self, account: &Account) -> Result<(), Pop3Error> {
        self.run_command(Pop3Command::User(&account.user), |_| {}).await?;
        self.run_command(Pop3Command::Pass(&account.password), |_| {}).await
    }

    /// Sends STAT, LIST and UIDL, which must agree on the number of messages.
    pub(crate) async fn list(&mut self) -> Result<u32, Pop3Error> {
        let mut found = 0;
        let handle_event = |event: Pop3Event<'_>| {
            if let Pop3Event::Stat { messages, .. } = event {
                found = messages;
            }
        };
        self.run_command(Pop3Command::Stat, handle_event).await?;
        self.check_count(Pop3Command::List, found).await?;
        match self.check_count(Pop3Command::Uidl, found).await {
            // UIDL is optional (RFC 1939 section 7).
            Ok(()) | Err(Pop3Error::Refused(_)) => Ok(found),
            Err(trouble) => Err(trouble),
        }
    }

    /// Fetches a message and examines it.
    pub(crate) async fn retrieve(&mut self, number: u32) -> Result<RetrievedMessage, Pop3Error> {
        let mut octets = 0;
        let mut examiner = StampChecker::default();
        let take = |event: Pop3Event<'_>| {
            if let Pop3Event::Content(piece) = event {
                octets += piece.len() as u64;
                examiner.append(piece);
            }
        };
        self.run_command(Pop3Command::Retr(number), take).await?;
        Ok(RetrievedMessage { octets, seen: examiner.finish() })
    }

    /// Marks a message as deleted.
    pub(crate) async fn delete(&mut self, number: u32) -> Result<(), Pop3Error> {
        self.run_command(Pop3Command::Dele(number), |_| {}).await
    }

    /// Ends the session.
    pub(crate) async fn quit(&mut self) -> Result<(), Pop3Error> {
        self.run_command(Pop3Command::Quit, |_| {}).await
    }

    async fn check_count(&mut self, command: Pop3Command<'_>, expected: u32) -> Result<(), Pop3Error> {
        let mut lines = 0;
        let take = |event: Pop3Event<'_>| {
            lines += u32::from(matches!(event, Pop3Event::Size { .. } | Pop3Event::UniqueId { .. }))
        };
        self.run_command(command, take).await?;
        if lines == expected {
            return Ok(());
        }
        Err(Pop3Error::Broken(format!("{} and STAT differ in the number of messages", command.verb())))
    }

    async fn run_command(
        &mut self,
        command: Pop3Command<'_>,
        take: impl FnMut(Pop3Event<'_>),
    ) -> Result<(), Pop3Error> {
        let deadline = Instant::now() + self.timeout;
        let verb = command.verb();
        self.line.clear();
        self.client.send(command, &mut self.line).map_err(|why| Pop3Error::Broken(format!("{verb}: {why}")))?;
        self.send(deadline).await.map_err(|error| broken_connection(verb, &error))?;
        self.receive_reply(verb, deadline, take).await
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
    async fn receive_reply(
        &mut self,
        what: &str,
        deadline: Instant,
        mut take: impl FnMut(Pop3Event<'_>),
    ) -> Result<(), Pop3Error> {
        let mut refused = None;
        let mut sort = |event: Pop3Event<'_>| match event {
            Pop3Event::Refused(text) => refused = Some(format!("{what}: -ERR {text}")),
            event => take(event),
        };
        loop {
            let client = &mut self.client;
            let received = self.wire.receive(deadline, |input| handle_received(client, input, &mut sort)).await;
            received
                .map_err(|error| broken_connection(what, &error))?
                .map_err(|misbehaviour| Pop3Error::Broken(format!("{what}: {misbehaviour}")))?;
            if self.client.is_ready() || self.client.is_closed() {
                return refused.map_or(Ok(()), |text| Err(Pop3Error::Refused(text)));
            }
        }
    }
}

/// Handles received bytes; none mean the end of the connection.
fn handle_received(
    client: &mut Pop3Client,
    mut input: &[u8],
    take: &mut impl FnMut(Pop3Event<'_>),
) -> Result<(), Pop3Violation> {
    if input.is_empty() {
        return client.handle_disconnect();
    }
    while let Some(event) = client.handle_input(&mut input)? {
        take(event);
    }
    Ok(())
}

fn broken_connection(what: &str, error: &io::Error) -> Pop3Error {
    Pop3Error::Broken(format!("{what}: {}", error_text(error)))
}
