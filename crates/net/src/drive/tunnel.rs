//! Carries bytes between the client of a session and another host, both ways, without looking at
//! them.
//!
//! | state of a direction | waits for                              | then                                  |
//! |----------------------|----------------------------------------|---------------------------------------|
//! | Open                 | bytes; or room for those taken before  | Open; the end of the sender: Closing  |
//! | Closing              | the end is passed on                   | Ended                                 |
//! | Ended                | the other direction                    |                                       |
//!
//! The tunnel ends when both directions have ended, when one side breaks, when nothing was carried
//! for too long, and at a stop. A side that does not read is not sent more than its socket takes: no
//! more is then read from the other.
//!
//! Small amounts are read into the buffer of the thread and written from there, which is one call
//! less than a pipe takes. If there is more, and both sides are in clear text, the kernel moves it
//! through a pipe ([`Pipe`]) without a copy. An idle tunnel has neither pipe nor buffer.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::{Interrupts, TURN_OCTETS, WakeUp, now};
use crate::OutboundConnection;
use crate::input::with_input;
use crate::outbound::OutboundStream;
use crate::pipe_pool::Pipe;
use crate::server_stream::ServerStream;

/// From this amount on a pipe is cheaper than a copy.
const BULK_OCTETS: usize = 16 << 10;
/// How long nothing may be carried once one side has ended: the other has no reason to wait.
const HALF_CLOSED_TIME_MAX: Duration = Duration::from_secs(60);

/// Another host that gets the client's bytes from now on, and whose bytes the client gets.
#[derive(Debug)]
pub struct Tunnel {
    /// The connection to the host.
    pub backend: OutboundConnection,
    /// What the host gets first: bytes of the client that were received before.
    pub first_to_backend: Vec<u8>,
    /// How long nothing may be carried.
    pub idle_time_max: Duration,
}

/// What a tunnel has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelEnd {
    /// Why it ended.
    pub reason: TunnelEndReason,
    /// Octets from the client.
    pub octets_to_backend: u64,
    /// Octets to the client.
    pub octets_to_client: u64,
}

/// Why a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEndReason {
    /// Both sides have closed.
    Closed,
    /// A connection broke.
    Broken,
    /// Nothing was carried for too long.
    Idle,
    /// The server is shutting down.
    Stopped,
}

/// Carries bytes until the end.
pub(super) async fn carry(
    client: ServerStream,
    tunnel: Tunnel,
    interrupts: &mut Interrupts<'_, impl Future<Output = ()>>,
) -> TunnelEnd {
    let mut client = TunnelSide::from(client);
    let mut backend = TunnelSide::from(tunnel.backend.into_stream());
    let mut to_backend = Direction { rest: tunnel.first_to_backend, ..Direction::default() };
    let mut to_client = Direction::default();
    let (mut time_max, mut moved_at) = (tunnel.idle_time_max, now());
    interrupts.rearm(moved_at + time_max);
    let mut is_half_closed = false;
    let reason = loop {
        if interrupts.stop_was_reported {
            break TunnelEndReason::Stopped;
        }
        let event = poll_fn(|context| {
            if let Poll::Ready(interrupt) = interrupts.poll(context) {
                return Poll::Ready(Ok(TunnelEvent::Interrupt(interrupt)));
            }
            let before = to_backend.octets + to_client.octets;
            let is_last = to_client.is_ended();
            let ended_up = to_backend.poll(&mut client, &mut backend, is_last, context)?.is_ready();
            let ended_down = to_client.poll(&mut backend, &mut client, ended_up, context)?.is_ready();
            if to_backend.octets + to_client.octets > before {
                moved_at = now();
            }
            match (ended_up, ended_down) {
                (true, true) => Poll::Ready(Ok(TunnelEvent::Closed)),
                (true, false) | (false, true) if !is_half_closed => Poll::Ready(Ok(TunnelEvent::HalfClosed)),
                _ => Poll::Pending::<io::Result<TunnelEvent>>,
            }
        });
        match event.await {
            Err(_) => break TunnelEndReason::Broken,
            Ok(TunnelEvent::Closed) => break TunnelEndReason::Closed,
            Ok(TunnelEvent::HalfClosed) => {
                is_half_closed = true;
                time_max = time_max.min(HALF_CLOSED_TIME_MAX);
                interrupts.rearm(now() + time_max);
            }
            // The timer is not moved for every byte: it fires early, and is set again.
            Ok(TunnelEvent::Interrupt(WakeUp::Deadline)) if now() < moved_at + time_max => {
                interrupts.rearm(moved_at + time_max);
            }
            Ok(TunnelEvent::Interrupt(WakeUp::Deadline)) => break TunnelEndReason::Idle,
            // A stop, which ends the loop.
            Ok(TunnelEvent::Interrupt(_)) => {}
        }
    };
    if reason != TunnelEndReason::Closed {
        poll_fn(|context| {
            client.announce_cut(context);
            backend.announce_cut(context);
            Poll::Ready(())
        })
        .await;
    }
    TunnelEnd { reason, octets_to_backend: to_backend.octets, octets_to_client: to_client.octets }
}

/// Why a waiting tunnel woke up.
enum TunnelEvent {
    Interrupt(WakeUp),
    HalfClosed,
    Closed,
}

/// A connection at one end of a tunnel.
enum TunnelSide {
    /// In clear text.
    Tcp(TcpStream),
    /// Over TLS, or over a unix socket.
    Other(Box<dyn OtherStream>),
}

trait OtherStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> OtherStream for T {}

impl From<ServerStream> for TunnelSide {
    fn from(stream: ServerStream) -> Self {
        match stream {
            ServerStream::Plain(stream) => TunnelSide::Tcp(stream),
            ServerStream::Secure(stream) => TunnelSide::Other(stream),
        }
    }
}

impl From<OutboundStream> for TunnelSide {
    fn from(stream: OutboundStream) -> Self {
        match stream {
            OutboundStream::Plain(stream) => TunnelSide::Tcp(stream),
            OutboundStream::Unix(stream) => TunnelSide::Other(Box::new(stream)),
            OutboundStream::Secure(stream) => TunnelSide::Other(stream),
        }
    }
}

impl TunnelSide {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            TunnelSide::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            TunnelSide::Other(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }

    /// Sends some of the bytes, or takes them to send them later ([`TunnelSide::poll_flush`]).
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            TunnelSide::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            TunnelSide::Other(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            TunnelSide::Tcp(_) => Poll::Ready(Ok(())),
            TunnelSide::Other(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    /// Passes on the end of the other side. If it is the last that happens, closing the socket does
    /// the same without a call of its own.
    fn poll_shutdown(&mut self, is_last: bool, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            TunnelSide::Tcp(_) if is_last => Poll::Ready(Ok(())),
            TunnelSide::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            TunnelSide::Other(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    /// Over TLS a side that is cut off gets a close_notify, if its socket takes it at once.
    fn announce_cut(&mut self, context: &mut Context<'_>) {
        if let TunnelSide::Other(stream) = self {
            let _ = Pin::new(stream).poll_shutdown(context);
        }
    }
}

/// The bytes from one side to the other.
#[derive(Default)]
struct Direction {
    state: DirectionState,
    /// Bytes taken from the sender, from `rest_sent` on, for which the receiver had no room.
    rest: Vec<u8>,
    rest_sent: usize,
    /// The pipe in use, and the bytes in it.
    pipe: Option<Pipe>,
    octets_in_pipe: usize,
    /// The sender sends much: pipes are worth their calls.
    is_bulk: bool,
    /// Octets moved since the sender had no more.
    burst: usize,
    /// All octets taken from the sender.
    octets: u64,
}

#[derive(Default)]
enum DirectionState {
    #[default]
    Open,
    Closing,
    Ended,
}

impl Direction {
    fn is_ended(&self) -> bool {
        matches!(self.state, DirectionState::Ended)
    }

    /// Carries what it can. Ready when the direction has ended; `is_last`: the other one has.
    fn poll(
        &mut self,
        from: &mut TunnelSide,
        to: &mut TunnelSide,
        is_last: bool,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let turn_end = self.octets + TURN_OCTETS as u64;
        loop {
            ready!(self.poll_drain(to, context))?;
            match self.state {
                DirectionState::Open => {}
                DirectionState::Closing => {
                    ready!(to.poll_shutdown(is_last, context))?;
                    self.state = DirectionState::Ended;
                    return Poll::Ready(Ok(()));
                }
                DirectionState::Ended => return Poll::Ready(Ok(())),
            }
            if self.octets >= turn_end {
                // Others of the thread have their turn.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match (&mut *from, &mut *to) {
                (TunnelSide::Tcp(from), TunnelSide::Tcp(_)) if self.has_pipe() => {
                    ready!(self.poll_fill_pipe(from, context))?;
                }
                (from, to) => ready!(self.poll_copy(from, to, context))?,
            }
        }
    }

    /// Sends what was taken from the sender before.
    fn poll_drain(&mut self, to: &mut TunnelSide, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.rest_sent < self.rest.len() {
            match ready!(to.poll_write(context, &self.rest[self.rest_sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.rest_sent += sent,
            }
        }
        if !self.rest.is_empty() {
            (self.rest, self.rest_sent) = (Vec::new(), 0);
        }
        if let (Some(pipe), TunnelSide::Tcp(to)) = (&self.pipe, &*to) {
            while self.octets_in_pipe > 0 {
                ready!(to.poll_write_ready(context))?;
                match to.try_io(Interest::WRITABLE, || pipe.empty(to, self.octets_in_pipe)) {
                    Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Ok(sent) => self.octets_in_pipe -= sent,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
        }
        to.poll_flush(context)
    }

    /// Reads bytes and writes them; keeps those for which there is no room.
    fn poll_copy(
        &mut self,
        from: &mut TunnelSide,
        to: &mut TunnelSide,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        with_input(|input| {
            let could_splice = matches!((&*from, &*to), (TunnelSide::Tcp(_), TunnelSide::Tcp(_)));
            let octets_max = if could_splice && !self.is_bulk { BULK_OCTETS } else { input.len() };
            let mut buffer = ReadBuf::new(&mut input[..octets_max]);
            ready!(from.poll_read(context, &mut buffer))?;
            let bytes = buffer.filled();
            if bytes.is_empty() {
                self.state = DirectionState::Closing;
                return Poll::Ready(Ok(()));
            }
            self.octets += bytes.len() as u64;
            self.is_bulk = bytes.len() >= BULK_OCTETS;
            match to.poll_write(context, bytes)? {
                Poll::Ready(sent) if sent == bytes.len() => {}
                Poll::Ready(sent) => self.rest = bytes[sent..].to_vec(),
                Poll::Pending => self.rest = bytes.to_vec(),
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Whether bytes go through a pipe: there is much to carry, and a pipe is free.
    fn has_pipe(&mut self) -> bool {
        if self.is_bulk && self.pipe.is_none() {
            self.pipe = Pipe::take();
        }
        self.pipe.is_some()
    }

    /// Moves bytes into the pipe, which is empty. Without more bytes, the pipe is left to others.
    fn poll_fill_pipe(&mut self, from: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(pipe) = &self.pipe else { return Poll::Ready(Ok(())) };
        loop {
            if from.poll_read_ready(context)?.is_pending() {
                self.is_bulk = self.burst >= BULK_OCTETS;
                self.put_pipe_back();
                return Poll::Pending;
            }
            match from.try_io(Interest::READABLE, || pipe.fill(from)) {
                Ok(0) => {
                    self.state = DirectionState::Closing;
                    self.put_pipe_back();
                }
                Ok(filled) => {
                    self.octets_in_pipe = filled;
                    self.octets += filled as u64;
                    self.burst += filled;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(Err(error)),
            }
            return Poll::Ready(Ok(()));
        }
    }

    fn put_pipe_back(&mut self) {
        self.burst = 0;
        if let Some(pipe) = self.pipe.take() {
            pipe.put_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::net::TcpListener;

    use super::*;
    use crate::pipe_pool::idle_pipes;

    /// Bytes that differ everywhere.
    fn content(octets: u32) -> Vec<u8> {
        (0..octets).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[tokio::test]
    async fn bytes_for_which_there_is_no_room_are_kept_in_order() {
        let (mut sender, from) = duplex(1 << 20);
        let (to, mut receiver) = duplex(1000);
        let (mut from, mut to) = (TunnelSide::Other(Box::new(from)), TunnelSide::Other(Box::new(to)));
        let sent = content(200_000);
        sender.write_all(&sent).await.unwrap();
        drop(sender);
        let mut direction = Direction { rest: b"first".to_vec(), ..Direction::default() };
        let carry = poll_fn(|context| direction.poll(&mut from, &mut to, false, context));
        let mut got = Vec::new();
        let (carried, read) = tokio::join!(carry, receiver.read_to_end(&mut got));
        carried.and(read).unwrap();
        assert!(got == [b"first", &sent[..]].concat(), "{} octets", got.len());
        assert_eq!(direction.rest.capacity(), 0);
    }

    async fn socket_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, connected) = tokio::join!(listener.accept(), connected);
        (accepted.unwrap().0, connected.unwrap())
    }

    #[tokio::test]
    async fn much_goes_through_a_pipe_that_an_idle_tunnel_does_not_keep() {
        let ((mut sender, from), (to, mut receiver)) = (socket_pair().await, socket_pair().await);
        let (mut from, mut to) = (TunnelSide::Tcp(from), TunnelSide::Tcp(to));
        let (sent, mut direction) = (content(5_000_000), Direction::default());
        let mut got = vec![0; sent.len()];
        let carry = poll_fn(|context| direction.poll(&mut from, &mut to, false, context));
        let exchange = async { tokio::join!(sender.write_all(&sent), receiver.read_exact(&mut got)) };
        tokio::select! {
            ended = carry => panic!("{ended:?}"),
            (wrote, read) = exchange => assert_eq!(wrote.and(read).unwrap(), sent.len()),
        }
        assert!(got == sent);
        // The receiver may have had everything before the direction found that no more comes.
        let poll_once = poll_fn(|context| Poll::Ready(direction.poll(&mut from, &mut to, false, context).is_pending()));
        assert!(poll_once.await);
        assert!(direction.pipe.is_none() && direction.rest.capacity() == 0);
        assert_eq!(idle_pipes(), 1, "no pipe was used");
    }
}
