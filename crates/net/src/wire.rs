//! The client's side of a connection: connect, secure, send, receive, each with a deadline.
//!
//! A [`Wire`] has no input buffer of its own: what comes in is shown to the caller in a buffer that all wires of a
//! thread share, so that an idle one costs a socket and a timer. What goes out is written from the caller's pieces
//! without being gathered first, or by the kernel from a file. A deadline that passes is [`io::ErrorKind::TimedOut`];
//! after it the wire is of no more use.
//!
//! Pages of a file that `sendfile` has queued are the file's until the peer has them: whoever changed them then would
//! change what the peer gets. So from the first of them on, until [`Wire::release_files`] finds that the peer has them
//! all, the end of the wire resets the connection, whatever it comes from.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::sockopt::{GetStruct, IpBindAddressNoPort};
use nix::sys::socket::{getsockopt, setsockopt};
use nix::{getsockopt_impl, libc, sockopt_impl};
use rustix::fs::sendfile;
use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Endpoint;
use crate::input::with_input;
use crate::tls::{Secured, Trust};

/// A connection that we opened.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    /// Goes off at an early deadline and looks what the deadline is now: moving it at every reply would cost more.
    timer: Pin<Box<Sleep>>,
    /// Pages of a file may be on their way.
    lends: bool,
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved<T> {
    /// So many to the peer.
    Sent(usize),
    /// Some from the peer, and what was made of them.
    Received(T),
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileRange<'a> {
    /// The file.
    pub file: &'a File,
    /// Where they begin.
    pub offset: u64,
    /// How many there are, one at least.
    pub octets: usize,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Unix(UnixStream),
    Secure(Box<Secured>),
}

impl Wire {
    /// Connects to `to`, from the address `from` where one is named.
    pub async fn connect(to: impl Into<Endpoint>, from: Option<IpAddr>, deadline: Instant) -> io::Result<Wire> {
        let connecting = async {
            Ok(match to.into() {
                Endpoint::Tcp(address) => Stream::Plain(tcp_socket(address, from)?.connect(address).await?),
                Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            })
        };
        let stream: io::Result<Stream> =
            tokio::time::timeout_at(deadline, connecting).await.map_err(|_| timed_out())?;
        Ok(Wire { stream: stream?, timer: Box::pin(sleep_until(deadline)), lends: false })
    }

    /// Makes the connection a secure one; it is one over TCP. Nothing may have been received that was not asked for.
    pub async fn secure(self, trust: &Trust, name: &str, deadline: Instant) -> io::Result<Wire> {
        let stream = match self.stream {
            Stream::Plain(stream) => stream,
            Stream::Unix(_) => return Err(io::Error::new(io::ErrorKind::Unsupported, "no TLS over a unix socket")),
            Stream::Secure(_) => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the connection is secure already"));
            }
        };
        let handshake = tokio::time::timeout_at(deadline, trust.secure(stream, name));
        let secured = handshake.await.map_err(|_| timed_out())??;
        Ok(Wire { stream: Stream::Secure(Box::new(secured)), timer: self.timer, lends: false })
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
        poll_fn(|context| match self.poll_receive(&mut take, context) {
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
            if let Poll::Ready(received) = self.poll_receive(&mut take, context) {
                return Poll::Ready(received.map(Moved::Received));
            }
            self.poll_deadline(deadline, context).map(Err)
        })
        .await
    }

    /// Ready when something may be sent: whoever has to fetch first what it sends waits for this.
    pub fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.stream {
            Stream::Plain(stream) => stream.poll_write_ready(context),
            Stream::Unix(stream) => stream.poll_write_ready(context),
            Stream::Secure(stream) => stream.get_ref().0.poll_write_ready(context),
        }
    }

    /// What [`Wire::send`] waits for.
    pub fn poll_send(&mut self, pieces: &[IoSlice<'_>], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => match only_piece(pieces) {
                // Nearly all that is sent is one command, for which the kernel has a shorter way.
                Some(piece) => Pin::new(stream).poll_write(context, piece),
                None => Pin::new(stream).poll_write_vectored(context, pieces),
            },
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Stream::Secure(stream) => {
                let taken = ready!(Pin::new(&mut *stream).poll_write_vectored(context, pieces))?;
                // What TLS has taken is only on its way once it is flushed; what is not goes with the next piece.
                let _ = Pin::new(stream).poll_flush(context)?;
                Poll::Ready(Ok(taken))
            }
        }
    }

    /// Whether [`Wire::poll_send_file`] works here: over TCP and in clear text. Bytes in a unix socket outlive a reset,
    /// and TLS has to see what it sends.
    pub fn sends_files(&self) -> bool {
        matches!(self.stream, Stream::Plain(_))
    }

    /// Sends the head, held back until bytes of the file are there to go with it, and then some of the file; says how
    /// many bytes of both went out. A file that ends early is [`io::ErrorKind::UnexpectedEof`].
    pub fn poll_send_file(
        &mut self,
        head: &[u8],
        range: FileRange<'_>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let Stream::Plain(stream) = &self.stream else { return Poll::Ready(Err(io::ErrorKind::Unsupported.into())) };
        if !self.lends {
            SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
            self.lends = true;
        }
        loop {
            ready!(stream.poll_write_ready(context))?;
            match stream.try_io(Interest::WRITABLE, || send_file(stream, head, range)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    /// To be called when the peer has answered what was sent from files: the connection may end in peace again, if
    /// nothing is left in the send queue. Where something is, the peer answered before it had read, and the wire goes on
    /// [lending](Wire::lends_files).
    pub fn release_files(&mut self) {
        if let Stream::Plain(stream) = &self.stream
            && self.lends
        {
            let is_peaceful = || is_all_acknowledged(stream) && SockRef::from(stream).set_linger(None).is_ok();
            self.lends = !is_peaceful();
        }
    }

    /// Whether pages of a file may be on their way. They have to stay what they are until the wire has ended.
    pub fn lends_files(&self) -> bool {
        self.lends
    }

    /// What [`Wire::receive`] waits for. `take` is used up when it is ready.
    pub fn poll_receive<T>(
        &mut self,
        take: &mut Option<impl FnOnce(&[u8]) -> T>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        with_input(|input| {
            let mut buffer = ReadBuf::new(input);
            ready!(self.poll_read(context, &mut buffer))?;
            let take = take.take().ok_or_else(|| io::Error::other("polled after it was ready"))?;
            Poll::Ready(Ok(take(buffer.filled())))
        })
    }

    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Secure(stream) => {
                let _ = Pin::new(&mut *stream).poll_flush(context)?;
                Pin::new(stream).poll_read(context, buffer)
            }
        }
    }

    /// Ready when the deadline has passed; gives the error to end with.
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
        // The kernel may pick the port when it knows the peer: else ports run out at one peer's count.
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
        socket.bind(SocketAddr::new(from, 0))?;
    }
    Ok(socket)
}

/// How many numbers tell of the memory of a socket.
const MEMORY_NUMBERS: usize = libc::SK_MEMINFO_DROPS as usize + 1;

sockopt_impl!(
    /// What a socket has of the kernel's memory, by `SK_MEMINFO_*`.
    Memory, GetOnly, libc::SOL_SOCKET, libc::SO_MEMINFO, [u32; MEMORY_NUMBERS], GetStruct<[u32; MEMORY_NUMBERS]>
);

/// Whether the send queue is empty. What the peer has not acknowledged is in it, sent or not, since it may have to be
/// sent again; and a reply acknowledges all that its sender had received. Where the system does not tell, it is not empty.
fn is_all_acknowledged(stream: &TcpStream) -> bool {
    getsockopt(stream, Memory).is_ok_and(|memory| memory[libc::SK_MEMINFO_WMEM_QUEUED as usize] == 0)
}

fn send_file(stream: &TcpStream, head: &[u8], range: FileRange<'_>) -> io::Result<usize> {
    let mut sent = 0;
    if !head.is_empty() {
        sent = retry_on_intr(|| send(stream, head, SendFlags::MORE | SendFlags::NOSIGNAL))?;
        if sent < head.len() {
            return Ok(sent);
        }
    }
    let mut offset = range.offset;
    match retry_on_intr(|| sendfile(stream, range.file, Some(&mut offset), range.octets)) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(sent + count),
        Err(rustix::io::Errno::AGAIN) if sent > 0 => Ok(sent),
        Err(error) => Err(error.into()),
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
