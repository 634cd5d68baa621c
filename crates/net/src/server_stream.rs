//! A connection opened by a client, in clear text or over TLS. The TLS state is boxed, so that a
//! plain connection is no larger than its socket.
//!
//! TLS buffers bytes before it sends them: they are sent once [`ServerStream::has_unsent`] returns
//! false.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use mail::TlsInfo;
use rustls::{CipherSuite, ProtocolVersion};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::file_range;

/// The server side of a connection.
#[derive(Debug)]
pub enum ServerStream {
    /// In clear text.
    Plain(TcpStream),
    /// Over TLS.
    Secure(Box<TlsStream<TcpStream>>),
}

impl From<TcpStream> for ServerStream {
    fn from(stream: TcpStream) -> Self {
        ServerStream::Plain(stream)
    }
}

impl ServerStream {
    /// The TLS parameters; None in clear text.
    pub fn tls_info(&self) -> Option<TlsInfo> {
        let ServerStream::Secure(stream) = self else { return None };
        let session = stream.get_ref().1;
        let version = match session.protocol_version()? {
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "unknown",
        };
        Some(TlsInfo { version, cipher: cipher_name(session.negotiated_cipher_suite()?.suite()) })
    }

    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            ServerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ServerStream::Secure(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }

    /// Takes some of the bytes, and sends as much as the socket accepts. Without bytes, it sends
    /// what was taken before. `WouldBlock`: nothing was taken, and the socket accepts no more.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ServerStream::Plain(stream) => stream.try_write(bytes),
            ServerStream::Secure(stream) => {
                let taken = if bytes.is_empty() { 0 } else { stream.get_mut().1.writer().write(bytes)? };
                flush_taken(stream, taken)
            }
        }
    }

    /// Like [`ServerStream::try_send`], for two pieces that leave together; counts both.
    pub(crate) fn try_send_pair(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let pieces = [IoSlice::new(first), IoSlice::new(second)];
        match self {
            ServerStream::Plain(stream) => stream.try_write_vectored(&pieces),
            ServerStream::Secure(stream) => {
                let taken = stream.get_mut().1.writer().write_vectored(&pieces)?;
                flush_taken(stream, taken)
            }
        }
    }

    /// Like [`ServerStream::try_send`], for bytes with a range of a file behind them: in clear text
    /// they are held back until the range is sent, or 200 ms.
    pub(crate) fn try_send_head(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ServerStream::Plain(stream) => file_range::try_send_head(stream, bytes),
            ServerStream::Secure(_) => self.try_send(bytes),
        }
    }

    /// Whether bytes were taken but not sent.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            ServerStream::Plain(_) => false,
            ServerStream::Secure(stream) => stream.get_ref().1.wants_write(),
        }
    }

    pub(crate) fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ServerStream::Plain(stream) => stream.poll_write_ready(context),
            ServerStream::Secure(stream) => stream.get_ref().0.poll_write_ready(context),
        }
    }

    /// Over TLS, queues a close_notify (RFC 8446 section 6.1). No more bytes may be written.
    pub(crate) fn announce_end(&mut self) {
        if let ServerStream::Secure(stream) = self {
            stream.get_mut().1.send_close_notify();
        }
    }

    /// The socket; unsent bytes are dropped.
    pub(crate) fn into_socket(self) -> TcpStream {
        match self {
            ServerStream::Plain(stream) => stream,
            ServerStream::Secure(stream) => stream.into_inner().0,
        }
    }
}

/// Sends what TLS has. What it has taken counts even if the socket accepts nothing.
fn flush_taken(stream: &mut TlsStream<TcpStream>, taken: usize) -> io::Result<usize> {
    match flush(stream) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => Ok(taken),
        flushed => flushed.map(|()| taken),
    }
}

fn flush(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let (socket, session) = stream.get_mut();
    while session.wants_write() {
        session.write_tls(&mut SocketWriter(socket))?;
    }
    Ok(())
}

/// Writes as much as the socket accepts without waiting.
struct SocketWriter<'a>(&'a TcpStream);

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The registered names of TLS 1.3 suites do not contain the version.
fn cipher_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or("unknown"),
    }
}
