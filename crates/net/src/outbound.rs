//! The client side of a connection: connect, start TLS, send, receive, each with a deadline.
//!
//! A [`OutboundConnection`] has no input buffer of its own: input is passed to the caller in a
//! buffer that all connections of a thread share, so that an idle one costs a socket and a timer.
//! Output is written directly from the caller's slices, or by the kernel from a file. A deadline
//! that passes gives [`io::ErrorKind::TimedOut`]; the connection is then unusable.
//!
//! Pages of a file queued by `sendfile` stay pages of that file until the peer has them: changing
//! them would change what the peer gets. From the first such page until
//! [`OutboundConnection::update_file_pages_in_flight`] finds that the peer has them all, closing
//! the connection for any reason resets it.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mail::TlsFailure;
use nix::sys::socket::sockopt::{GetStruct, IpBindAddressNoPort};
use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, libc, sockopt_impl};
use rustls::pki_types::UnixTime;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Endpoint;
use crate::certificate_chain::verify_named;
use crate::file_range::{FileRange, try_send_file};
use crate::input::with_input;
use crate::tls_client::{ClientTlsStream, TlsClient, failure_of};
use crate::trusted_roots::{TrustedRoots, TrustedRootsError};

/// A connection to a peer that we opened.
#[derive(Debug)]
pub struct OutboundConnection {
    stream: OutboundStream,
    /// May fire before the deadline and is then set again: moving it for every reply would cost
    /// more.
    timer: Pin<Box<Sleep>>,
    /// Pages of a file may be queued.
    file_pages_in_flight: bool,
}

/// The direction in which bytes were transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentOrReceived<T> {
    /// The number of bytes sent.
    Sent(usize),
    /// Bytes were received; the result of handling them.
    Received(T),
}

/// What the bytes of a connection pass through.
#[derive(Debug)]
pub(crate) enum OutboundStream {
    Plain(TcpStream),
    Unix(UnixStream),
    Secure(Box<ClientTlsStream>),
}

impl OutboundConnection {
    /// Connects to `to`, from the local address `from` if given.
    pub async fn connect(
        to: impl Into<Endpoint>,
        from: Option<IpAddr>,
        deadline: Instant,
    ) -> io::Result<OutboundConnection> {
        let connecting = async {
            Ok(match to.into() {
                Endpoint::Tcp(address) => OutboundStream::Plain(tcp_socket(address, from)?.connect(address).await?),
                Endpoint::Unix(path) => OutboundStream::Unix(UnixStream::connect(path).await?),
            })
        };
        let stream: io::Result<OutboundStream> =
            tokio::time::timeout_at(deadline, connecting).await.map_err(|_| timed_out())?;
        Ok(OutboundConnection { stream: stream?, timer: Box::pin(sleep_until(deadline)), file_pages_in_flight: false })
    }

    /// Starts TLS on a TCP connection. The server must not have sent anything unsolicited before.
    pub async fn start_tls(self, tls: &TlsClient, name: &str, deadline: Instant) -> io::Result<OutboundConnection> {
        let stream = match self.stream {
            OutboundStream::Plain(stream) => stream,
            OutboundStream::Unix(_) => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is not supported over a unix socket"));
            }
            OutboundStream::Secure(_) => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "TLS is already active"));
            }
        };
        let handshake = tokio::time::timeout_at(deadline, tls.handshake(stream, name));
        let secured = handshake.await.map_err(|_| timed_out())??;
        Ok(OutboundConnection {
            stream: OutboundStream::Secure(Box::new(secured)),
            timer: self.timer,
            file_pages_in_flight: false,
        })
    }

    /// What is wrong with the server's certificate, if its owner wants it to be for this name and of one of
    /// these authorities; None: nothing is. Nothing depends on it: [`TlsClient::verified`] demands a certificate.
    ///
    /// # Errors
    ///
    /// The authorities cannot be read.
    pub async fn certificate_failure(
        &self,
        roots: &TrustedRoots,
        name: &str,
    ) -> Result<Option<TlsFailure>, TrustedRootsError> {
        let OutboundStream::Secure(stream) = &self.stream else { return Ok(Some(TlsFailure::NotSupported)) };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let Some((end_entity, intermediates)) = chain.split_first() else { return Ok(Some(TlsFailure::Other)) };
        let roots = roots.loaded().await?;
        let verified = verify_named(end_entity, intermediates, &roots, &[name.into()], UnixTime::now());
        Ok(verified.err().map(|error| failure_of(&error)))
    }

    /// Sends some of the slices, at least one byte unless all are empty; returns the number of
    /// bytes sent.
    pub async fn send(&mut self, pieces: &[IoSlice<'_>], deadline: Instant) -> io::Result<usize> {
        poll_fn(|context| match self.poll_send(pieces, context) {
            Poll::Pending => self.poll_deadline(deadline, context).map(Err),
            sent => sent,
        })
        .await
    }

    /// Waits for input and passes it to `take`; empty at the end of the connection.
    pub async fn receive<T>(&mut self, deadline: Instant, take: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut take = Some(take);
        poll_fn(|context| match self.poll_receive(&mut take, context) {
            Poll::Pending => self.poll_deadline(deadline, context).map(Err),
            received => received,
        })
        .await
    }

    /// Sends some of the slices, or passes input to `take` if the peer accepts no bytes: two sides
    /// that both only send would wait forever. With nothing to send, it receives.
    pub async fn send_or_receive<T>(
        &mut self,
        pieces: &[IoSlice<'_>],
        deadline: Instant,
        take: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<SentOrReceived<T>> {
        let mut take = Some(take);
        let idle = pieces.iter().all(|piece| piece.is_empty());
        poll_fn(|context| {
            if !idle && let Poll::Ready(sent) = self.poll_send(pieces, context) {
                return Poll::Ready(sent.map(SentOrReceived::Sent));
            }
            if let Poll::Ready(received) = self.poll_receive(&mut take, context) {
                return Poll::Ready(received.map(SentOrReceived::Received));
            }
            self.poll_deadline(deadline, context).map(Err)
        })
        .await
    }

    /// Ready when bytes can be sent, for callers that must fetch them first.
    pub fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.stream {
            OutboundStream::Plain(stream) => stream.poll_write_ready(context),
            OutboundStream::Unix(stream) => stream.poll_write_ready(context),
            OutboundStream::Secure(stream) => stream.get_ref().0.poll_write_ready(context),
        }
    }

    /// The poll function of [`OutboundConnection::send`].
    pub fn poll_send(&mut self, pieces: &[IoSlice<'_>], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            OutboundStream::Plain(stream) => match only_piece(pieces) {
                // Most output is one command, for which the kernel has a faster call.
                Some(piece) => Pin::new(stream).poll_write(context, piece),
                None => Pin::new(stream).poll_write_vectored(context, pieces),
            },
            OutboundStream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            OutboundStream::Secure(stream) => {
                let taken = ready!(Pin::new(&mut *stream).poll_write_vectored(context, pieces))?;
                // TLS has buffered the bytes; a flush sends them, and what is not flushed goes with
                // the next write.
                let _ = Pin::new(stream).poll_flush(context)?;
                Poll::Ready(Ok(taken))
            }
        }
    }

    /// Whether it uses TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self.stream, OutboundStream::Secure(_))
    }

    /// Whether [`OutboundConnection::poll_send_file`] is supported: over TCP in clear text. Bytes
    /// in a unix socket outlive a reset, and TLS must encrypt what it sends.
    pub fn supports_sendfile(&self) -> bool {
        matches!(self.stream, OutboundStream::Plain(_))
    }

    /// Sends the head, held back until bytes of the file go with it, and then some of the file;
    /// returns how many bytes of both were sent. A file that ends early is
    /// [`io::ErrorKind::UnexpectedEof`].
    pub fn poll_send_file(
        &mut self,
        head: &[u8],
        range: FileRange<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let OutboundStream::Plain(stream) = &self.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        if !self.file_pages_in_flight {
            SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
            self.file_pages_in_flight = true;
        }
        loop {
            ready!(stream.poll_write_ready(context))?;
            match try_send_file(stream, head, range) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    /// Call it when the peer has replied to what was sent from files: closing the connection is
    /// normal again if the send queue is empty. If it is not, the peer replied before it had read
    /// everything, and [`OutboundConnection::has_file_pages_in_flight`] stays true.
    pub fn update_file_pages_in_flight(&mut self) {
        if let OutboundStream::Plain(stream) = &self.stream
            && self.file_pages_in_flight
        {
            let is_peaceful = || is_all_acknowledged(stream) && SockRef::from(stream).set_linger(None).is_ok();
            self.file_pages_in_flight = !is_peaceful();
        }
    }

    /// Whether pages of a file may be queued. They must not change until the connection is closed.
    pub fn has_file_pages_in_flight(&self) -> bool {
        self.file_pages_in_flight
    }

    /// The poll function of [`OutboundConnection::receive`]. Takes the closure out of `take` when
    /// it is ready.
    pub fn poll_receive<T>(
        &mut self,
        take: &mut Option<impl FnOnce(&[u8]) -> T>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        with_input(|input| {
            let mut buffer = ReadBuf::new(input);
            ready!(self.poll_read(context, &mut buffer))?;
            let take = take.take().ok_or_else(|| io::Error::other("polled after completion"))?;
            Poll::Ready(Ok(take(buffer.filled())))
        })
    }

    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            OutboundStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            OutboundStream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            OutboundStream::Secure(stream) => {
                let _ = Pin::new(&mut *stream).poll_flush(context)?;
                Pin::new(stream).poll_read(context, buffer)
            }
        }
    }

    /// The stream, for those who have a timer of their own.
    pub(crate) fn into_stream(self) -> OutboundStream {
        self.stream
    }

    /// Ready when the deadline has passed; returns the error to report.
    pub fn poll_deadline(&mut self, deadline: Instant, context: &mut Context<'_>) -> Poll<io::Error> {
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

fn tcp_socket(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpSocket> {
    let socket = if to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    socket.set_nodelay(true)?;
    if let Some(from) = from {
        // Lets the kernel choose the port once it knows the peer; otherwise ports are used up
        // across all peers.
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        socket.bind(SocketAddr::new(from, 0))?;
    }
    Ok(socket)
}

/// The length of the kernel's array of socket memory statistics.
const MEMORY_NUMBERS: usize = libc::SK_MEMINFO_DROPS as usize + 1;

sockopt_impl!(
    /// The kernel memory used by a socket, indexed by `SK_MEMINFO_*`.
    Memory, GetOnly, libc::SOL_SOCKET, libc::SO_MEMINFO, [u32; MEMORY_NUMBERS], GetStruct<[u32; MEMORY_NUMBERS]>
);

/// Whether the send queue is empty. It contains everything the peer has not acknowledged, sent or
/// not; a reply acknowledges all that its sender had received. If the system does not tell, the
/// queue counts as not empty.
fn is_all_acknowledged(stream: &TcpStream) -> bool {
    getsockopt(stream, Memory).is_ok_and(|memory| memory[libc::SK_MEMINFO_WMEM_QUEUED as usize] == 0)
}

/// The slice that is not empty, if there is exactly one.
fn only_piece<'a>(pieces: &'a [IoSlice<'_>]) -> Option<&'a [u8]> {
    let mut filled = pieces.iter().filter(|piece| !piece.is_empty());
    filled.next().filter(|_| filled.next().is_none()).map(|piece| &piece[..])
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}
