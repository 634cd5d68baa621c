//! One connection and its SMTP session: the client state machine, the socket, and how long the
//! server takes to reply. It reports what happens and makes no decisions.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mail::Damaged;
use net::{Trust, Wire, instant_of, steady_now};
use protocol::smtp::client::{Client, Closed, Config, Event, Form, Transaction, Unsendable};
use tokio::time::{Instant, sleep};

use super::Peer;
use super::content::{Content, Step};

/// A server that reads a message more slowly than this is dropped.
const OCTETS_PER_SECOND_MIN: u64 = 1000;
/// A server that reads a message more slowly than this, and also exceeds the time for one reply, is
/// slow.
const FAIR_OCTETS_PER_SECOND: u64 = 16_000;
/// How long to wait if the session has no deadline.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A session with one server. Boxed, since it is moved between tasks.
#[derive(Debug)]
pub(super) struct Dialogue {
    wire: Wire,
    client: Client,
    peer: Peer,
    /// When the current wait began.
    asked_at: Instant,
    /// How long the server may go without reading any bytes of a message.
    block_time: Duration,
    /// The content being sent.
    stretch: Option<Stretch>,
    slowest: Duration,
    transactions: u32,
}

/// The sending of a message's octets. Each byte the server reads restarts the wait for it, so a
/// server that reads a little now and then could hold a connection for hours: the whole transfer
/// has a time limit too.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    begun_at: Instant,
    octets: u64,
}

impl Stretch {
    /// When a server that reads this many octets per second, after this delay, has read them all.
    fn due(self, delay: Duration, octets_per_second: u64) -> Instant {
        self.begun_at + delay + Duration::from_millis(self.octets.saturating_mul(1000) / octets_per_second)
    }
}

/// The result of waiting.
#[derive(Debug)]
pub(super) enum Heard {
    /// An event of the session.
    Event(Event),
    /// The message cannot be sent; the session is in the middle of it.
    Damaged(Damaged),
}

/// Reports once per task that the server is slow.
pub(super) struct Vigil<'a> {
    slower_than: Duration,
    is_told: bool,
    tell: &'a dyn Fn(),
}

impl<'a> Vigil<'a> {
    pub(super) fn new(slower_than: Duration, tell: &'a dyn Fn()) -> Self {
        Vigil { slower_than, is_told: false, tell }
    }

    /// Waits for the future, and reports the server as slow if that takes too long.
    pub(super) async fn watch<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        if !self.is_told {
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep(self.slower_than) => self.tell(),
            }
        }
        future.await
    }

    fn tell(&mut self) {
        self.is_told = true;
        (self.tell)();
    }

    /// When to report a wait that began at `asked_at`, or the content being sent.
    fn due(&self, asked_at: Instant, stretch: Option<Stretch>) -> Option<Instant> {
        let reply_due = asked_at + self.slower_than;
        let content_due = stretch.map(|stretch| stretch.due(self.slower_than, FAIR_OCTETS_PER_SECOND));
        (!self.is_told).then(|| content_due.map_or(reply_due, |due| due.min(reply_due)))
    }
}

impl Dialogue {
    /// Starts the session on a new connection.
    pub(super) fn new(wire: Wire, config: Arc<Config>, peer: Peer) -> Box<Self> {
        let block_time = config.timeouts.block;
        let client = Client::new(config, steady_now());
        let (asked_at, slowest) = (Instant::now(), Duration::ZERO);
        Box::new(Dialogue { wire, client, peer, asked_at, block_time, stretch: None, slowest, transactions: 0 })
    }

    /// Call after [`Event::StartTls`]. After an error the connection is gone.
    pub(super) async fn secure(
        self: Box<Self>,
        trust: &Trust,
        patience: Duration,
        vigil: &mut Vigil<'_>,
    ) -> io::Result<Box<Dialogue>> {
        let Dialogue { wire, mut client, peer, block_time, slowest, transactions, .. } = *self;
        let handshake = wire.secure(trust, peer.host(), Instant::now() + patience);
        let wire = vigil.watch(handshake).await?;
        client.handle_secured(steady_now());
        let asked_at = Instant::now();
        Ok(Box::new(Dialogue { wire, client, peer, asked_at, block_time, stretch: None, slowest, transactions }))
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the session can take another message: it is ready, the server has read everything we
    /// sent, and neither our limit nor the server's (MAILMAX, RFC 9422 section 4.1) is reached.
    pub(super) fn may_go_on(&self, transactions_max: u32) -> bool {
        let theirs = self.client.extensions().transactions_max.map_or(u32::MAX, NonZeroU32::get);
        self.client.is_ready() && !self.wire.lends_files() && self.transactions < transactions_max.min(theirs)
    }

    /// Returns the longest wait for a reply since the last call, and starts again from zero.
    pub(super) fn take_slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }

    /// Begins a transaction.
    pub(super) fn begin(
        &mut self,
        transaction: &Transaction,
        content: &mut Content,
        sendfile_above: Option<u64>,
    ) -> Result<(), Unsendable> {
        self.client.begin(steady_now(), transaction)?;
        content.rewind(self.client.form(), &self.wire, sendfile_above);
        (self.asked_at, self.stretch) = (Instant::now(), None);
        self.transactions += 1;
        Ok(())
    }

    /// The form in which the next message is sent.
    pub(super) fn form(&self) -> Form {
        self.client.form()
    }

    /// Runs the session until an event other than a reply.
    pub(super) async fn hear(&mut self, mut content: Option<&mut Content>, vigil: &mut Vigil<'_>) -> Heard {
        loop {
            while let Some(event) = self.client.poll_event() {
                match event {
                    Event::Replied { .. } => self.note_reply(),
                    Event::Ready => {
                        self.wire.release_files();
                        return Heard::Event(event);
                    }
                    event => return Heard::Event(event),
                }
            }
            match (self.move_bytes(content.as_deref_mut(), vigil).await, content.as_deref_mut()) {
                (Step::Miss, Some(content)) => {
                    if let Err(damaged) = content.fetch().await {
                        return Heard::Damaged(damaged);
                    }
                }
                (Step::Damaged(damaged), _) => return Heard::Damaged(damaged),
                (Step::Sent(_) | Step::Miss, _) => {}
            }
        }
    }

    fn note_reply(&mut self) {
        let now = Instant::now();
        self.slowest = self.slowest.max(now - self.asked_at);
        self.asked_at = now;
    }

    /// Sends output, receives input, or handles a timeout, whichever comes first.
    async fn move_bytes(&mut self, mut content: Option<&mut Content>, vigil: &mut Vigil<'_>) -> Step {
        self.note_content();
        let deadline = self.client.poll_deadline().map_or_else(|| Instant::now() + LOOK_AGAIN, instant_of);
        let slow_at = vigil.due(self.asked_at, self.stretch);
        let over_at = self.stretch.map(|stretch| stretch.due(self.block_time, OCTETS_PER_SECOND_MIN));
        let wake_at = [slow_at, over_at].into_iter().flatten().fold(deadline, Instant::min);
        let moved = poll_fn(|context| {
            if !self.client.output().is_empty()
                && let Poll::Ready(sent) = self.poll_send(content.as_deref_mut(), context)
            {
                return Poll::Ready(sent);
            }
            if let Poll::Ready(received) = self.poll_receive(context) {
                return Poll::Ready(received.map(|()| Step::Sent(0)));
            }
            self.wire.poll_deadline(wake_at, context).map(Err)
        });
        match moved.await {
            Ok(step) => return step,
            Err(error) if error.kind() != io::ErrorKind::TimedOut => self.client.handle_end(),
            Err(_) if is_past(slow_at) => vigil.tell(),
            // The state machine treats this as a server that stopped reading.
            Err(_) if is_past(over_at) => {
                let deadline = self.client.poll_deadline();
                self.client.handle_timeout(deadline.unwrap_or_else(steady_now));
            }
            Err(_) => self.client.handle_timeout(steady_now()),
        }
        Step::Sent(0)
    }

    /// Notes when content begins to be sent, and when all of it was sent.
    fn note_content(&mut self) {
        let content = self.client.output().content;
        if content.is_empty() {
            if let Some(stretch) = self.stretch.take() {
                let late =
                    Instant::now().saturating_duration_since(stretch.due(Duration::ZERO, FAIR_OCTETS_PER_SECOND));
                self.slowest = self.slowest.max(late);
            }
        } else if self.stretch.is_none() {
            self.stretch = Some(Stretch { begun_at: Instant::now(), octets: content.end - content.start });
        }
    }

    fn poll_send(&mut self, content: Option<&mut Content>, context: &mut Context<'_>) -> Poll<io::Result<Step>> {
        let output = self.client.output();
        let step = match content {
            Some(content) if !output.content.is_empty() => ready!(content.poll_send(&mut self.wire, &output, context))?,
            _ => {
                let pieces = [IoSlice::new(output.head), IoSlice::new(output.tail)];
                Step::Sent(ready!(self.wire.poll_send(&pieces, context))? as u64)
            }
        };
        if let Step::Sent(octets) = step {
            self.client.handle_sent(steady_now(), octets);
            self.asked_at = Instant::now();
        }
        Poll::Ready(Ok(step))
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let client = &mut self.client;
        let take = |input: &[u8]| match input {
            [] => client.handle_end(),
            input => client.handle_input(steady_now(), input),
        };
        self.wire.poll_receive(&mut Some(take), context)
    }

    /// Ready when an idle connection should be closed: its time is over, or the server closed it or
    /// sent anything.
    pub(super) fn poll_idle_end(&mut self, until: Instant, context: &mut Context<'_>) -> Poll<()> {
        match self.poll_receive(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.wire.poll_deadline(until, context).map(drop),
        }
    }

    /// Sends QUIT if the session allows it, and closes the connection. The reply would not matter,
    /// and waiting for a slow server would keep a connection open that is no longer counted.
    pub(super) async fn quit(mut self: Box<Self>) {
        // A connection that still refers to pages of a file has to be reset, and a reset would
        // overtake QUIT.
        if !self.wire.lends_files() {
            self.client.quit(steady_now());
            self.hang_up().await;
        }
    }

    /// Sends the remaining output, if the socket takes it immediately, and closes the connection.
    pub(super) async fn hang_up(mut self: Box<Self>) {
        if !self.client.output().is_empty() {
            poll_fn(|context| Poll::Ready(self.poll_send(None, context).is_ready())).await;
        }
    }
}

fn is_past(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| moment <= Instant::now())
}

/// Why a session ended, as text.
pub(super) fn reason(closed: &Closed) -> String {
    match closed {
        Closed::Quit => "the session ended".to_owned(),
        Closed::Shutdown(reply) | Closed::Refused { reply, .. } => reply.to_string(),
        Closed::Lacks(lack) => lack.to_string(),
        Closed::Ended(stage) => format!("the server ended the connection ({stage})"),
        Closed::TimedOut(stage) => format!("no answer in time ({stage})"),
        Closed::Misbehaved(misbehaviour) => format!("not SMTP: {misbehaviour}"),
    }
}
