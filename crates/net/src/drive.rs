//! Drives one connection: reads input, lets the conversation work, writes output, and watches the
//! deadline.
//!
//! Output comes in pieces: bytes, or a range of a file, which never passes through the conversation.
//! If a file is shorter than the range when it is sent, the connection ends at once, over TLS
//! without a close_notify: nothing that follows could be taken for the rest of the file.
//!
//! A conversation may hand its client over to another host ([`ConnectionHandler::take_tunnel`]).
//! From then on bytes pass between both, and the conversation only learns of the end.

mod range_sender;
mod tunnel;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mail::{Timestamp, TlsInfo};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep_until};

use crate::file_range::FileRange;
use crate::input::with_input;
use crate::server_stream::ServerStream;
use crate::{StopReceiver, TlsServer, steady_instant, steady_now as now};

pub use tunnel::{Tunnel, TunnelEnd, TunnelEndReason};

use range_sender::{RangeError, RangeSender};

/// How long a closing connection reads the peer's last bytes. Closing with unread input would reset
/// the connection, and the peer might not see the last reply.
const LINGER: Duration = Duration::from_secs(2);
/// How much of a file a connection sends before others of its thread have their turn. A fast reader
/// would otherwise occupy the thread.
const TURN_OCTETS: usize = 1 << 20;

/// The next bytes for the peer.
#[derive(Clone, Copy, Debug)]
pub enum OutputPiece<'a> {
    /// These bytes; empty if there is no output.
    Bytes(&'a [u8]),
    /// The first bytes, and then the others, neither of them empty. They leave together, and
    /// [`ConnectionHandler::handle_sent`] counts both.
    Pair(&'a [u8], &'a [u8]),
    /// These bytes, which are not empty, with a range of a file behind them. In clear text they
    /// leave together with its first bytes.
    Head(&'a [u8]),
    /// A range of a file, which is sent without a copy in clear text. Until the peer has
    /// acknowledged it, it must not be overwritten in place: the peer would get the new bytes.
    File(FileRange<'a>),
    /// A range of a file, which is copied also in clear text, and may be overwritten in place.
    FileCopy(FileRange<'a>),
}

/// A protocol machine with the code that answers its questions. Times are from
/// [`crate::steady_now`].
pub trait ConnectionHandler {
    /// Handles bytes from the peer.
    fn handle_input(&mut self, now: Timestamp, input: &[u8]);
    /// The peer has closed its side.
    fn handle_disconnect(&mut self, now: Timestamp);
    /// A deadline has passed: the current one, or an earlier one that has moved since.
    fn handle_timeout(&mut self, now: Timestamp);
    /// The server is shutting down.
    fn handle_stop(&mut self, now: Timestamp);
    /// Performs the machine's actions until there are none left. No input arrives during the call.
    fn work(&mut self) -> impl Future<Output = ()> + Send;
    /// The first piece of the output that is not sent yet, without what is sent of it. A handler
    /// resolves what its protocol machine says about a file to the file itself.
    fn output(&self) -> OutputPiece<'_>;
    /// The first `count` bytes of the piece were sent; may be 0.
    fn handle_sent(&mut self, count: usize);
    /// A file of the output cannot be read, or is too short (`UnexpectedEof`): the peer will miss the
    /// rest of it. `handle_disconnect` follows.
    fn handle_file_failed(&mut self, _error: &io::Error) {}
    /// When to call [`ConnectionHandler::handle_timeout`].
    fn deadline(&self) -> Option<Timestamp>;
    /// Whether to close the connection once the output is sent.
    fn wants_close(&self) -> bool;

    /// Whether [`ConnectionHandler::work`] has more to do now that the output is sent, before any
    /// input: a handler can make a long output in parts. Between them, others of the thread have
    /// their turn.
    fn has_work(&self) -> bool {
        false
    }

    /// The TLS server for a handshake, if the conversation wants one as soon as the output is sent.
    /// Bytes read before belong to the conversation, later ones to the handshake. Called only in
    /// clear text.
    fn wants_handshake(&self) -> Option<Arc<TlsServer>> {
        None
    }
    /// The handshake succeeded: from here on everything goes over TLS.
    fn handle_tls_established(&mut self, _now: Timestamp, _security: TlsInfo) {}
    /// The handshake failed; `handle_disconnect` follows.
    fn handle_handshake_failed(&mut self, _now: Timestamp, _error: &io::Error) {}

    /// The host that serves the client from now on, if the conversation hands it over as soon as the
    /// output is sent. Bytes read before belong to the conversation, which passes them on in
    /// [`Tunnel::first_to_backend`]; later ones belong to the host. No other method is called until
    /// the end of the tunnel.
    fn take_tunnel(&mut self) -> Option<Box<Tunnel>> {
        None
    }
    /// The tunnel has ended; `handle_disconnect` follows.
    fn handle_tunnel_ended(&mut self, _now: Timestamp, _end: TunnelEnd) {}
}

/// Why a waiting connection woke up.
enum WakeUp {
    Input,
    End,
    Broken,
    Writable,
    Deadline,
    Stop,
}

/// The events that can interrupt a connection while it reads or writes.
struct Interrupts<'a, S> {
    stopping: Pin<&'a mut S>,
    stop_was_reported: bool,
    timer: Pin<&'a mut Sleep>,
    /// When the timer fires.
    due: Timestamp,
}

impl<S: Future<Output = ()>> Interrupts<'_, S> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<WakeUp> {
        if !self.stop_was_reported && self.stopping.as_mut().poll(context).is_ready() {
            self.stop_was_reported = true;
            return Poll::Ready(WakeUp::Stop);
        }
        self.timer.as_mut().poll(context).map(|()| WakeUp::Deadline)
    }

    fn rearm(&mut self, due: Timestamp) {
        self.due = due;
        self.timer.as_mut().reset(steady_instant(due));
    }

    /// Moves the timer if the deadline is earlier. A later deadline costs nothing until the timer
    /// fires.
    fn shorten_timer(&mut self, deadline: Option<Timestamp>) {
        if let Some(deadline) = deadline.filter(|deadline| *deadline < self.due) {
            self.rearm(deadline);
        }
    }
}

/// Runs a conversation until one side ends it. Whatever happens to the connection,
/// `handle_disconnect` is called.
pub async fn drive_connection(
    mut stream: ServerStream,
    mut stop: StopReceiver,
    conversation: &mut (impl ConnectionHandler + Send),
) {
    let stopping = pin!(stop.wait_for_stop());
    let due = deadline(conversation);
    let timer = pin!(sleep_until(steady_instant(due)));
    let mut interrupts = Interrupts { stopping, stop_was_reported: false, timer, due };
    loop {
        conversation.work().await;
        if send(&mut stream, &mut interrupts, conversation).await.is_err() {
            break;
        }
        if conversation.wants_close() {
            // The shutdown may have come while sending.
            conversation.work().await;
            return close_gracefully(close_tls(stream, &mut interrupts, conversation).await).await;
        }
        if conversation.has_work() {
            match yield_turn(&stream, &mut interrupts, conversation).await {
                Ok(()) => continue,
                Err(_) => break,
            }
        }
        if let Some(tunnel) = conversation.take_tunnel() {
            // Boxed, so that sessions without one do not reserve memory for it.
            let end = Box::pin(tunnel::carry(stream, *tunnel, &mut interrupts)).await;
            conversation.handle_tunnel_ended(now(), end);
            break;
        }
        if let ServerStream::Plain(_) = stream
            && let Some(tls_server) = conversation.wants_handshake()
        {
            match handshake(stream, tls_server, &mut interrupts).await {
                Ok(Some(secured)) => {
                    if let Some(security) = secured.tls_info() {
                        conversation.handle_tls_established(now(), security);
                    }
                    stream = secured;
                    continue;
                }
                // The session ends because of the shutdown; the handshake did not fail.
                Ok(None) => conversation.handle_stop(now()),
                Err(error) => conversation.handle_handshake_failed(now(), &error),
            }
            break;
        }
        interrupts.shorten_timer(conversation.deadline());
        let event = poll_fn(|context| match interrupts.poll(context) {
            Poll::Pending => poll_input(&mut stream, conversation, context),
            interrupted => interrupted,
        });
        match event.await {
            WakeUp::Input | WakeUp::Writable => {}
            WakeUp::End => {
                conversation.handle_disconnect(now());
                conversation.work().await;
                if send(&mut stream, &mut interrupts, conversation).await.is_ok() {
                    close_tls(stream, &mut interrupts, conversation).await;
                }
                return;
            }
            WakeUp::Broken => break,
            // The timer is not moved for every command: it fires at an earlier deadline, and is set
            // to the current one then.
            WakeUp::Deadline => {
                read_pending_input(&mut stream, conversation).await;
                conversation.handle_timeout(now());
                interrupts.rearm(deadline(conversation));
            }
            WakeUp::Stop => conversation.handle_stop(now()),
        }
    }
    conversation.handle_disconnect(now());
    conversation.work().await;
}

/// The handshake, boxed so that sessions without one do not reserve memory for it. None if a
/// shutdown ended it.
async fn handshake(
    stream: ServerStream,
    tls_server: Arc<TlsServer>,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
) -> io::Result<Option<ServerStream>> {
    let ServerStream::Plain(socket) = stream else { return Ok(Some(stream)) };
    let mut handshake = Box::pin(async move { tls_server.accept(socket).await });
    poll_fn(|context| {
        if let Poll::Ready(made) = handshake.as_mut().poll(context) {
            return Poll::Ready(made.map(Some));
        }
        if !interrupts.stop_was_reported && interrupts.stopping.as_mut().poll(context).is_ready() {
            interrupts.stop_was_reported = true;
            return Poll::Ready(Ok(None));
        }
        Poll::Pending
    })
    .await
}

/// The conversation's deadline; without one, a time to check again.
fn deadline(conversation: &impl ConnectionHandler) -> Timestamp {
    const NONE: Duration = Duration::from_secs(60);
    conversation.deadline().unwrap_or_else(|| now() + NONE)
}

fn poll_input(
    stream: &mut ServerStream,
    conversation: &mut impl ConnectionHandler,
    context: &mut Context<'_>,
) -> Poll<WakeUp> {
    with_input(|input| {
        let mut buffer = ReadBuf::new(input);
        Poll::Ready(match ready!(stream.poll_read(context, &mut buffer)) {
            Err(_) => WakeUp::Broken,
            Ok(()) if buffer.filled().is_empty() => WakeUp::End,
            Ok(()) => {
                conversation.handle_input(now(), buffer.filled());
                WakeUp::Input
            }
        })
    })
}

/// Handles input that arrived before the deadline but was not read in time. Ends and errors are
/// seen at the next read.
async fn read_pending_input(stream: &mut ServerStream, conversation: &mut impl ConnectionHandler) {
    poll_fn(|context| {
        let _ = poll_input(stream, conversation, context);
        Poll::Ready(())
    })
    .await;
}

/// Sends all output. The socket nearly always takes it immediately. A peer that does not read has
/// until the conversation's deadline, and a short time after the conversation has ended.
async fn send(
    stream: &mut ServerStream,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
    conversation: &mut (impl ConnectionHandler + Send),
) -> io::Result<()> {
    loop {
        let sent = match conversation.output() {
            OutputPiece::Bytes(bytes) if bytes.is_empty() && !stream.has_unsent() => return Ok(()),
            OutputPiece::Bytes(bytes) => Some(stream.try_send(bytes)),
            OutputPiece::Pair(first, second) => Some(stream.try_send_pair(first, second)),
            OutputPiece::Head(bytes) => Some(stream.try_send_head(bytes)),
            OutputPiece::File(_) | OutputPiece::FileCopy(_) => None,
        };
        match sent {
            Some(Ok(sent)) => conversation.handle_sent(sent),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_writable(stream, interrupts, conversation).await?;
            }
            Some(Err(error)) => return Err(error),
            // Boxed, so that sessions without files do not reserve memory for it.
            None => Box::pin(send_files(stream, interrupts, conversation)).await?,
        }
    }
}

/// Sends output until a piece is not a range of a file. An error if a file is too short.
async fn send_files(
    stream: &mut ServerStream,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
    conversation: &mut (impl ConnectionHandler + Send),
) -> io::Result<()> {
    let (mut sender, mut turn) = (RangeSender::default(), 0);
    loop {
        let (rest, is_copied) = match conversation.output() {
            OutputPiece::File(rest) => (rest, false),
            OutputPiece::FileCopy(rest) => (rest, true),
            OutputPiece::Bytes(_) | OutputPiece::Pair(..) | OutputPiece::Head(_) => return Ok(()),
        };
        let octets = rest.octets;
        match sender.try_send(stream, rest, is_copied).await {
            Ok(sent) => {
                conversation.handle_sent(sent);
                turn += sent;
                if sent as u64 == octets {
                    sender = RangeSender::default();
                }
            }
            Err(RangeError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_writable(stream, interrupts, conversation).await?;
            }
            Err(RangeError::Socket(error)) => return Err(error),
            Err(RangeError::File(error)) => {
                conversation.handle_file_failed(&error);
                return Err(error);
            }
        }
        if turn >= TURN_OCTETS {
            turn = 0;
            yield_turn(stream, interrupts, conversation).await?;
        }
    }
}

/// Lets others of the thread have their turn. A stop and the deadline must also be seen if the
/// socket always accepts more.
async fn yield_turn(
    stream: &ServerStream,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
    conversation: &mut impl ConnectionHandler,
) -> io::Result<()> {
    interrupts.shorten_timer(conversation.deadline());
    tokio::task::yield_now().await;
    wait_until_writable(stream, interrupts, conversation).await
}

async fn wait_until_writable(
    stream: &ServerStream,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
    conversation: &mut impl ConnectionHandler,
) -> io::Result<()> {
    let event = poll_fn(|context| match interrupts.poll(context) {
        Poll::Pending => stream.poll_writable(context).map_ok(|()| WakeUp::Writable),
        interrupted => interrupted.map(Ok),
    });
    match event.await? {
        WakeUp::Deadline => {
            conversation.handle_timeout(now());
            if conversation.deadline().is_none() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            interrupts.rearm(deadline(conversation));
        }
        WakeUp::Stop => {
            conversation.handle_stop(now());
            // A finished conversation has no deadline; this limits the remaining wait.
            interrupts.rearm(deadline(conversation).min(now() + LINGER));
        }
        WakeUp::Input | WakeUp::End | WakeUp::Broken | WakeUp::Writable => {}
    }
    Ok(())
}

/// Sends the TLS close_notify, whichever side ends first; a client that does not get one must
/// assume truncation (RFC 8446 section 6.1). Waits like other output.
async fn close_tls(
    mut stream: ServerStream,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
    conversation: &mut impl ConnectionHandler,
) -> TcpStream {
    stream.announce_end();
    while stream.has_unsent() {
        let sent = match stream.try_send(&[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_writable(&stream, interrupts, conversation).await
            }
            sent => sent.map(drop),
        };
        if sent.is_err() {
            break;
        }
    }
    stream.into_socket()
}

/// Reads what the peer has sent so far, before a connection is dropped without waiting. Dropping it
/// with unread input would reset it, and the peer might not see the last reply.
pub(crate) fn discard_input(stream: &TcpStream) {
    // If nothing can be read, nothing is left unread.
    let _ = with_input(|input| stream.try_read(input));
}

/// Closes the connection so that the peer gets the last reply. Usually nothing is unread, and the
/// kernel does the rest. With unread input, which would reset the connection, it takes up to two
/// seconds.
pub(crate) async fn close_gracefully(mut stream: TcpStream) {
    let unread = with_input(|input| stream.try_read(input));
    if !unread.is_ok_and(|count| count > 0) || stream.shutdown().await.is_err() {
        return;
    }
    // Reads through tokio, which limits each turn of the task, so that a peer that keeps sending
    // does not occupy the thread.
    let drained = poll_fn(|context| {
        with_input(|input| {
            loop {
                let mut buffer = ReadBuf::new(input);
                match ready!(Pin::new(&mut stream).poll_read(context, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => {}
                    _ => return Poll::Ready(()),
                }
            }
        })
    });
    // A peer that keeps sending is cut off.
    let _ = tokio::time::timeout(LINGER, drained).await;
}
