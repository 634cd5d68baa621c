//! The client's side of a connection: connect, secure, send, receive, each with a deadline.
//!
//! A [`Wire`] has no input buffer of its own: what comes in is shown to the caller in a buffer that all wires of a
//! thread share, so that an idle one costs a socket and a timer. What goes out is written from the caller's pieces
//! without being gathered first. A deadline that passes is [`io::ErrorKind::TimedOut`]; after it the wire is of no
//! more use.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::input::with_input;
use crate::tls::{Secured, Trust};

/// A connection that we opened.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    /// Goes off at an early deadline and looks what the deadline is now: moving it at every reply would cost more.
    timer: Pin<Box<Sleep>>,
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved<T> {
    /// So many to the peer.
    Sent(usize),
    /// Some from the peer, and what was made of them.
    Received(T),
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Secure(Box<Secured>),
}

impl Wire {
    /// Connects to `to`, from the address `from` where one is named.
    pub async fn connect(to: SocketAddr, from: Option<IpAddr>, deadline: Instant) -> io::Result<Wire> {
        let socket = if to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
        socket.set_nodelay(true)?;
        if let Some(from) = from {
            // The kernel may pick the port when it knows the peer: else ports run out at one peer's count.
            setsockopt(&socket, IpBindAddressNoPort, &true)?;
            socket.bind(SocketAddr::new(from, 0))?;
        }
        let stream = tokio::time::timeout_at(deadline, socket.connect(to)).await.map_err(|_| timed_out())??;
        Ok(Wire { stream: Stream::Plain(stream), timer: Box::pin(sleep_until(deadline)) })
    }

    /// Makes the connection a secure one. Nothing may have been received that was not asked for.
    pub async fn secure(self, trust: &Trust, name: &str, deadline: Instant) -> io::Result<Wire> {
        let Stream::Plain(stream) = self.stream else {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the connection is secure already"));
        };
        let handshake = tokio::time::timeout_at(deadline, trust.secure(stream, name));
        let secured = handshake.await.map_err(|_| timed_out())??;
        Ok(Wire { stream: Stream::Secure(Box::new(secured)), timer: self.timer })
    }

    /// Sends some of the pieces, at least a byte unless they are all empty, and says how many bytes went out.
    pub async fn send(&mut self, pieces: &[IoSlice<'_>], deadline: Instant) -> io::Result<usize> {
        poll_fn(|context| match self.poll_send(pieces, context) {
            Poll::Pending => self.poll_deadline(deadline, context).map(Err),
            sent => sent,
        })
        .await
    }

    /// Waits for input and shows it to `take`; empty at the end of the connection.
    pub async fn receive<T>(&mut self, deadline: Instant, take: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut take = Some(take);
        poll_fn(|context| match self.poll_show(&mut take, context) {
            Poll::Pending => self.poll_deadline(deadline, context).map(Err),
            received => received,
        })
        .await
    }

    /// Sends some of the pieces, or, where the peer takes no bytes now, shows input to `take`: whoever only sends to a
    /// peer that only sends waits for ever. With nothing to send it receives.
    pub async fn exchange<T>(
        &mut self,
        pieces: &[IoSlice<'_>],
        deadline: Instant,
        take: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<Moved<T>> {
        let mut take = Some(take);
        let idle = pieces.iter().all(|piece| piece.is_empty());
        poll_fn(|context| {
            if !idle && let Poll::Ready(sent) = self.poll_send(pieces, context) {
                return Poll::Ready(sent.map(Moved::Sent));
            }
            if let Poll::Ready(received) = self.poll_show(&mut take, context) {
                return Poll::Ready(received.map(Moved::Received));
            }
            self.poll_deadline(deadline, context).map(Err)
        })
        .await
    }

    fn poll_show<T>(
        &mut self,
        take: &mut Option<impl FnOnce(&[u8]) -> T>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        with_input(|input| {
            let mut buffer = ReadBuf::new(input);
            ready!(self.poll_receive(context, &mut buffer))?;
            let take = take.take().ok_or_else(|| io::Error::other("polled after it was ready"))?;
            Poll::Ready(Ok(take(buffer.filled())))
        })
    }

    fn poll_send(&mut self, pieces: &[IoSlice<'_>], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let sent = match &mut self.stream {
            Stream::Plain(stream) => match only_piece(pieces) {
                // Nearly all that is sent is one command, for which the kernel has a shorter way.
                Some(piece) => ready!(Pin::new(stream).poll_write(context, piece))?,
                None => ready!(Pin::new(stream).poll_write_vectored(context, pieces))?,
            },
            Stream::Secure(stream) => {
                let taken = ready!(Pin::new(&mut *stream).poll_write_vectored(context, pieces))?;
                // What TLS has taken is only on its way once it is flushed; what is not goes with the next piece.
                let _ = Pin::new(stream).poll_flush(context)?;
                taken
            }
        };
        Poll::Ready(Ok(sent))
    }

    fn poll_receive(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Secure(stream) => {
                let _ = Pin::new(&mut *stream).poll_flush(context)?;
                Pin::new(stream).poll_read(context, buffer)
            }
        }
    }

    fn poll_deadline(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            if self.timer.deadline() > deadline {
                self.timer.as_mut().reset(deadline);
            }
            ready!(self.timer.as_mut().poll(context));
            if Instant::now() >= deadline {
                return Poll::Ready(timed_out());
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}

/// The piece that is not empty, if there is just one.
fn only_piece<'a>(pieces: &'a [IoSlice<'_>]) -> Option<&'a [u8]> {
    let mut filled = pieces.iter().filter(|piece| !piece.is_empty());
    filled.next().filter(|_| filled.next().is_none()).map(|piece| &piece[..])
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}
