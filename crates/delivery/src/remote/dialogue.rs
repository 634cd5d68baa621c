//! One connection and the session over it: the client machine, the wire that carries its bytes, and how long the server
//! takes to answer. It says what happens and decides nothing.

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

/// Whoever reads a message more slowly than this is given up.
const OCTETS_PER_SECOND_MIN: u64 = 1000;
/// Whoever reads a message more slowly than this, and is not done after the time for one answer either, is slow.
const FAIR_OCTETS_PER_SECOND: u64 = 16_000;
/// When to look again where the session has no deadline.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A session with one server. It is kept in a box, since it goes from hand to hand.
#[derive(Debug)]
pub(super) struct Dialogue {
    wire: Wire,
    client: Client,
    peer: Peer,
    /// When the wait for what comes next began.
    asked_at: Instant,
    /// How long the server may take no bytes of a message.
    block_time: Duration,
    /// The content that goes out now.
    stretch: Option<Stretch>,
    slowest: Duration,
    transactions: u32,
}

/// Octets of a message on their way. Each byte that the server takes ends a wait, so that one who reads a little now and
/// then never keeps us waiting for long, and yet holds a place for hours: the whole of them has its time too.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    begun_at: Instant,
    octets: u64,
}

impl Stretch {
    /// When whoever reads so many octets a second, after that delay, has them all.
    fn due(self, delay: Duration, octets_per_second: u64) -> Instant {
        self.begun_at + delay + Duration::from_millis(self.octets.saturating_mul(1000) / octets_per_second)
    }
}

/// What came of listening.
#[derive(Debug)]
pub(super) enum Heard {
    /// Something of the session.
    Event(Event),
    /// The message cannot be sent; the session is in the middle of it.
    Damaged(Damaged),
}

/// Tells once of a task that the server is slow.
pub(super) struct Vigil<'a> {
    slower_than: Duration,
    is_told: bool,
    tell: &'a dyn Fn(),
}

impl<'a> Vigil<'a> {
    pub(super) fn new(slower_than: Duration, tell: &'a dyn Fn()) -> Self {
        Vigil { slower_than, is_told: false, tell }
    }

    /// Waits for the future, and tells if that takes too long.
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

    /// When to tell of a wait that began then, or of the content that goes out.
    fn due(&self, asked_at: Instant, stretch: Option<Stretch>) -> Option<Instant> {
        let reply_due = asked_at + self.slower_than;
        let content_due = stretch.map(|stretch| stretch.due(self.slower_than, FAIR_OCTETS_PER_SECOND));
        (!self.is_told).then(|| content_due.map_or(reply_due, |due| due.min(reply_due)))
    }
}

impl Dialogue {
    /// Over a connection that was just made.
    pub(super) fn new(wire: Wire, config: Arc<Config>, peer: Peer) -> Box<Self> {
        let block_time = config.timeouts.block;
        let client = Client::new(config, steady_now());
        let (asked_at, slowest) = (Instant::now(), Duration::ZERO);
        Box::new(Dialogue { wire, client, peer, asked_at, block_time, stretch: None, slowest, transactions: 0 })
    }

    /// After [`Event::StartTls`]. An error leaves nothing to go on with.
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

    /// Whether it can carry another message: the session is ready, the server has read what it answered, and neither we
    /// nor it (MAILMAX, RFC 9422 section 4.1) have had enough of it.
    pub(super) fn may_go_on(&self, transactions_max: u32) -> bool {
        let theirs = self.client.extensions().transactions_max.map_or(u32::MAX, NonZeroU32::get);
        self.client.is_ready() && !self.wire.lends_files() && self.transactions < transactions_max.min(theirs)
    }

    /// A new task begins; gives the longest wait for a reply in the one before.
    pub(super) fn take_slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }

    /// Begins to send a message.
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

    /// In which form the next message goes.
    pub(super) fn form(&self) -> Form {
        self.client.form()
    }

    /// Carries the session on until something happens that is not a mere reply.
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

    /// Sends some of what there is to send, or takes what comes, or hears that the time is over.
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
            // To the machine it is as if nothing had gone out any more.
            Err(_) if is_past(over_at) => {
                let deadline = self.client.poll_deadline();
                self.client.handle_timeout(deadline.unwrap_or_else(steady_now));
            }
            Err(_) => self.client.handle_timeout(steady_now()),
        }
        Step::Sent(0)
    }

    /// Looks whether content begins to go out, or has gone out.
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

    /// Ready when a connection that nobody uses should end: the moment has come, or the server hangs up, or says anything
    /// at all.
    pub(super) fn poll_idle_end(&mut self, until: Instant, context: &mut Context<'_>) -> Poll<()> {
        match self.poll_receive(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.wire.poll_deadline(until, context).map(drop),
        }
    }

    /// Says QUIT, if it is the time for it, and goes. The answer would tell nothing, and a server that is slow to give it
    /// would keep a connection that nobody counts.
    pub(super) async fn quit(mut self: Box<Self>) {
        // What lends pages of a file has to be reset, and a reset would overtake the word.
        if !self.wire.lends_files() {
            self.client.quit(steady_now());
            self.hang_up().await;
        }
    }

    /// Says the last word that the machine has for the server, if it can be said at once, and ends the connection.
    pub(super) async fn hang_up(mut self: Box<Self>) {
        if !self.client.output().is_empty() {
            poll_fn(|context| Poll::Ready(self.poll_send(None, context).is_ready())).await;
        }
    }
}

fn is_past(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| moment <= Instant::now())
}

/// Why a session ended, in words.
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
