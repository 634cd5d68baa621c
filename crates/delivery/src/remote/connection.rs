//! One connection and its SMTP session: the client state machine, the socket, and how long the
//! server takes to reply. It reports what happens and makes no decisions.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mail::{BodyError, HostTls, TlsFailure, TlsProof};
use net::{OutboundConnection, TlsClient, TrustedRoots, TrustedRootsError, steady_instant, steady_now};
use protocol::sasl::Nonce;
use protocol::sasl::client::ScramProof;
use protocol::smtp::client::{
    BeginTransactionError, CloseReason, DotStuffing, SmtpClient, SmtpClientConfig, SmtpClientEvent, Transaction,
};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::time::{Instant, sleep};

use super::RemotePeer;
use super::content::{ContentSender, SendStep};

/// A server that reads a message more slowly than this is dropped.
const OCTETS_PER_SECOND_MIN: u64 = 1000;
/// A server that reads a message more slowly than this, and also exceeds the time for one reply, is
/// slow.
const SLOW_OCTETS_PER_SECOND: u64 = 16_000;
/// How long to wait if the session has no deadline.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// A session with one server. Boxed, since it is moved between tasks.
#[derive(Debug)]
pub(super) struct RemoteConnection {
    outbound: OutboundConnection,
    client: SmtpClient,
    peer: RemotePeer,
    /// When the current wait began.
    wait_started_at: Instant,
    /// How long the server may go without reading any bytes of a message.
    block_time: Duration,
    /// The content being sent.
    transfer: Option<ContentTransfer>,
    slowest: Duration,
    transactions: u32,
}

/// The sending of a message's octets. Each byte the server reads restarts the wait for it, so a
/// server that reads a little now and then could hold a connection for hours: the whole transfer
/// has a time limit too.
#[derive(Clone, Copy, Debug)]
struct ContentTransfer {
    started_at: Instant,
    octets: u64,
}

impl ContentTransfer {
    /// When a server that reads this many octets per second, after this delay, has read them all.
    fn due_at(self, delay: Duration, octets_per_second: u64) -> Instant {
        self.started_at + delay + Duration::from_millis(self.octets.saturating_mul(1000) / octets_per_second)
    }
}

/// The result of waiting.
#[derive(Debug)]
pub(super) enum ConnectionEvent {
    /// An event of the session.
    Session(SmtpClientEvent),
    /// The message cannot be sent; the session is in the middle of it.
    Damaged(BodyError),
    /// The server waits for the message, which may not be sent now; the session is in the middle of it.
    Withheld,
}

/// Reports once per task that the server is slow.
pub(super) struct SlowDetector<'a> {
    slow_after: Duration,
    is_reported: bool,
    on_slow: &'a dyn Fn(),
}

impl<'a> SlowDetector<'a> {
    pub(super) fn new(slower_than: Duration, tell: &'a dyn Fn()) -> Self {
        SlowDetector { slow_after: slower_than, is_reported: false, on_slow: tell }
    }

    /// Waits for the future, and reports the server as slow if that takes too long.
    pub(super) async fn watch<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        if !self.is_reported {
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep(self.slow_after) => self.report(),
            }
        }
        future.await
    }

    fn report(&mut self) {
        self.is_reported = true;
        (self.on_slow)();
    }

    /// When to report a wait that began at `asked_at`, or the content being sent.
    fn report_at(&self, asked_at: Instant, transfer: Option<ContentTransfer>) -> Option<Instant> {
        let reply_due = asked_at + self.slow_after;
        let content_due = transfer.map(|transfer| transfer.due_at(self.slow_after, SLOW_OCTETS_PER_SECOND));
        (!self.is_reported).then(|| content_due.map_or(reply_due, |due| due.min(reply_due)))
    }
}

impl RemoteConnection {
    /// Starts the session on a new connection, which may have TLS already.
    pub(super) fn new(
        outbound: OutboundConnection,
        config: Arc<SmtpClientConfig>,
        peer: RemotePeer,
        is_secure: bool,
    ) -> Box<Self> {
        let block_time = config.timeouts.block;
        let nonce = config.credentials.is_some().then(login_nonce).flatten();
        let mut client = SmtpClient::new(config, steady_now());
        if let Some(nonce) = nonce {
            client = client.with_nonce(nonce);
        }
        if is_secure {
            client = client.over_tls();
        }
        let (asked_at, slowest) = (Instant::now(), Duration::ZERO);
        Box::new(RemoteConnection {
            outbound,
            client,
            peer,
            wait_started_at: asked_at,
            block_time,
            transfer: None,
            slowest,
            transactions: 0,
        })
    }

    /// Call after [`SmtpClientEvent::StartTls`]. After an error the connection is gone.
    pub(super) async fn start_tls(
        self: Box<Self>,
        tls_client: &TlsClient,
        timeout: Duration,
        slow_detector: &mut SlowDetector<'_>,
    ) -> io::Result<Box<RemoteConnection>> {
        let RemoteConnection { outbound, mut client, peer, block_time, slowest, transactions, .. } = *self;
        let handshake = outbound.start_tls(tls_client, server_name(&peer), Instant::now() + timeout);
        let outbound = slow_detector.watch(handshake).await?;
        client.handle_tls_established(steady_now());
        let asked_at = Instant::now();
        Ok(Box::new(RemoteConnection {
            outbound,
            client,
            peer,
            wait_started_at: asked_at,
            block_time,
            transfer: None,
            slowest,
            transactions,
        }))
    }

    /// Call after [`SmtpClientEvent::ComputeProof`].
    pub(super) fn handle_proof(&mut self, proof: ScramProof) {
        self.client.handle_proof(steady_now(), proof);
        self.wait_started_at = Instant::now();
    }

    pub(super) fn peer(&self) -> &RemotePeer {
        &self.peer
    }

    pub(super) fn client(&self) -> &SmtpClient {
        &self.client
    }

    /// How the connection is protected.
    pub(super) fn proof(&self) -> TlsProof {
        if self.outbound.is_secure() { self.peer.tls().proof() } else { TlsProof::Clear }
    }

    /// What is wrong with the host's certificate for its own name; None: nothing is.
    ///
    /// # Errors
    ///
    /// The trusted authorities cannot be read.
    pub(super) async fn certificate_failure(
        &self,
        roots: &TrustedRoots,
    ) -> Result<Option<TlsFailure>, TrustedRootsError> {
        self.outbound.certificate_failure(roots, self.peer.host()).await
    }

    /// Whether the session can take another message: it is ready, the server has read everything we
    /// sent, and neither our limit nor the server's (MAILMAX, RFC 9422 section 4.1) is reached.
    pub(super) fn is_reusable(&self, transactions_max: u32) -> bool {
        let theirs = self.client.extensions().transactions_max.map_or(u32::MAX, NonZeroU32::get);
        self.client.is_ready()
            && !self.outbound.has_file_pages_in_flight()
            && self.transactions < transactions_max.min(theirs)
    }

    /// Returns the longest wait for a reply since the last call, and starts again from zero.
    pub(super) fn take_slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }

    /// Begins a transaction.
    pub(super) fn begin_transaction(
        &mut self,
        transaction: &Transaction,
        content: &mut ContentSender,
        sendfile_above: Option<u64>,
    ) -> Result<(), BeginTransactionError> {
        self.client.begin_transaction(steady_now(), transaction)?;
        content.rewind(self.client.dot_stuffing(), &self.outbound, sendfile_above);
        (self.wait_started_at, self.transfer) = (Instant::now(), None);
        self.transactions += 1;
        Ok(())
    }

    /// The form in which the next message is sent.
    pub(super) fn form(&self) -> DotStuffing {
        self.client.dot_stuffing()
    }

    /// Runs the session until an event other than a reply. `may_send` is asked before the first octet of
    /// the content is sent.
    pub(super) async fn next_event(
        &mut self,
        mut content: Option<&mut ContentSender>,
        slow_detector: &mut SlowDetector<'_>,
        may_send: &dyn Fn() -> bool,
    ) -> ConnectionEvent {
        loop {
            while let Some(event) = self.client.poll_event() {
                match event {
                    SmtpClientEvent::Replied { .. } => self.record_reply(),
                    SmtpClientEvent::Ready => {
                        self.outbound.update_file_pages_in_flight();
                        return ConnectionEvent::Session(event);
                    }
                    event => return ConnectionEvent::Session(event),
                }
            }
            let begins_content = self.transfer.is_none() && !self.client.output().content.is_empty();
            if begins_content && !may_send() {
                return ConnectionEvent::Withheld;
            }
            match (self.poll_io_once(content.as_deref_mut(), slow_detector).await, content.as_deref_mut()) {
                (SendStep::NotInMemory, Some(content)) => {
                    if let Err(damaged) = content.fetch().await {
                        return ConnectionEvent::Damaged(damaged);
                    }
                }
                (SendStep::Damaged(damaged), _) => return ConnectionEvent::Damaged(damaged),
                (SendStep::Sent(_) | SendStep::NotInMemory, _) => {}
            }
        }
    }

    fn record_reply(&mut self) {
        let now = Instant::now();
        self.slowest = self.slowest.max(now - self.wait_started_at);
        self.wait_started_at = now;
    }

    /// Sends output, receives input, or handles a timeout, whichever comes first.
    async fn poll_io_once(
        &mut self,
        mut content: Option<&mut ContentSender>,
        slow_detector: &mut SlowDetector<'_>,
    ) -> SendStep {
        self.track_transfer();
        let deadline = self.client.poll_deadline().map_or_else(|| Instant::now() + IDLE_POLL_INTERVAL, steady_instant);
        let slow_at = slow_detector.report_at(self.wait_started_at, self.transfer);
        let over_at = self.transfer.map(|transfer| transfer.due_at(self.block_time, OCTETS_PER_SECOND_MIN));
        let wake_at = [slow_at, over_at].into_iter().flatten().fold(deadline, Instant::min);
        let moved = poll_fn(|context| {
            if !self.client.output().is_empty()
                && let Poll::Ready(sent) = self.poll_send(content.as_deref_mut(), context)
            {
                return Poll::Ready(sent);
            }
            if let Poll::Ready(received) = self.poll_receive(context) {
                return Poll::Ready(received.map(|()| SendStep::Sent(0)));
            }
            self.outbound.poll_deadline(wake_at, context).map(Err)
        });
        match moved.await {
            Ok(step) => return step,
            Err(error) if error.kind() != io::ErrorKind::TimedOut => self.client.handle_disconnect(),
            Err(_) if is_past(slow_at) => slow_detector.report(),
            // The state machine treats this as a server that stopped reading.
            Err(_) if is_past(over_at) => {
                let deadline = self.client.poll_deadline();
                self.client.handle_timeout(deadline.unwrap_or_else(steady_now));
            }
            Err(_) => self.client.handle_timeout(steady_now()),
        }
        SendStep::Sent(0)
    }

    /// Notes when content begins to be sent, and when all of it was sent.
    fn track_transfer(&mut self) {
        let content = self.client.output().content;
        if content.is_empty() {
            if let Some(transfer) = self.transfer.take() {
                let late =
                    Instant::now().saturating_duration_since(transfer.due_at(Duration::ZERO, SLOW_OCTETS_PER_SECOND));
                self.slowest = self.slowest.max(late);
            }
        } else if self.transfer.is_none() {
            self.transfer = Some(ContentTransfer { started_at: Instant::now(), octets: content.end - content.start });
        }
    }

    fn poll_send(
        &mut self,
        content: Option<&mut ContentSender>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<SendStep>> {
        let output = self.client.output();
        let step = match content {
            Some(content) if !output.content.is_empty() => {
                ready!(content.poll_send(&mut self.outbound, &output, context))?
            }
            _ => {
                let pieces = [IoSlice::new(output.head), IoSlice::new(output.tail)];
                SendStep::Sent(ready!(self.outbound.poll_send(&pieces, context))? as u64)
            }
        };
        if let SendStep::Sent(octets) = step {
            self.client.handle_sent(steady_now(), octets);
            self.wait_started_at = Instant::now();
        }
        Poll::Ready(Ok(step))
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let client = &mut self.client;
        let take = |input: &[u8]| match input {
            [] => client.handle_disconnect(),
            input => client.handle_input(steady_now(), input),
        };
        self.outbound.poll_receive(&mut Some(take), context)
    }

    /// Ready when an idle connection should be closed: its time is over, or the server closed it or
    /// sent anything.
    pub(super) fn poll_idle_end(&mut self, until: Instant, context: &mut Context<'_>) -> Poll<()> {
        match self.poll_receive(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.outbound.poll_deadline(until, context).map(drop),
        }
    }

    /// Sends QUIT if the session allows it, and closes the connection. The reply would not matter,
    /// and waiting for a slow server would keep a connection open that is no longer counted.
    pub(super) async fn quit(mut self: Box<Self>) {
        // A connection that still refers to pages of a file has to be reset, and a reset would
        // overtake QUIT.
        if !self.outbound.has_file_pages_in_flight() {
            self.client.quit(steady_now());
            self.close().await;
        }
    }

    /// Sends the remaining output, if the socket takes it immediately, and closes the connection.
    pub(super) async fn close(mut self: Box<Self>) {
        if !self.client.output().is_empty() {
            poll_fn(|context| Poll::Ready(self.poll_send(None, context).is_ready())).await;
        }
    }
}

/// None if the system gives no random numbers: SCRAM is not used then.
fn login_nonce() -> Option<Nonce> {
    let mut octets = [0; Nonce::OCTETS];
    getrandom(&mut octets, GetRandomFlags::empty()).ok().filter(|count| *count == octets.len())?;
    Some(Nonce::from_random(octets))
}

/// The name that the server is asked for (SNI).
pub(super) fn server_name(peer: &RemotePeer) -> &str {
    match peer.tls() {
        HostTls::Dane(policy) => &policy.base_domain,
        HostTls::Transport | HostTls::Encrypted | HostTls::Verified(_) => peer.host(),
    }
}

fn is_past(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| moment <= Instant::now())
}

/// Why a session ended, as text.
pub(super) fn close_reason(closed: &CloseReason) -> String {
    match closed {
        CloseReason::Quit => "the session ended".to_owned(),
        CloseReason::Shutdown(reply) | CloseReason::Refused { reply, .. } => reply.to_string(),
        CloseReason::Lacks(lack) => lack.to_string(),
        CloseReason::Ended(stage) => format!("the server ended the connection ({stage})"),
        CloseReason::TimedOut(stage) => format!("no answer in time ({stage})"),
        CloseReason::ProtocolViolation(misbehaviour) => format!("not SMTP: {misbehaviour}"),
    }
}
