//! The transport to a server: TCP, TLS, StartTLS or a Unix socket; and splitting the stream into
//! messages.
//!
//! Certificates are always verified, with the configured CA file or the system's CAs. Data received
//! before TLS is never used after it.

use std::io;

use lookup::{ByteStream, CaCertificatesError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::message::{self, LdapResponse};
use super::{LdapUrl, ber};

/// Maximum message length; enough for a group with 200,000 members.
const MESSAGE_OCTETS_MAX: usize = 16 * 1024 * 1024;
/// Maximum message length before TLS.
const STARTTLS_OCTETS_MAX: usize = 16 * 1024;
const READ_OCTETS: usize = 16 * 1024;

/// Connects to `url`. Calls `tls` for a configuration if TLS is needed.
pub(super) async fn connect(
    url: &LdapUrl,
    starttls: bool,
    tls: impl FnOnce() -> Result<TlsConnector, CaCertificatesError>,
) -> io::Result<Box<dyn ByteStream>> {
    match url {
        LdapUrl::Unix { path } => Ok(Box::new(UnixStream::connect(path).await?)),
        LdapUrl::Tcp { host, port, tls: at_once } => {
            let mut stream = TcpStream::connect((&**host, *port)).await?;
            stream.set_nodelay(true)?;
            if !at_once && !starttls {
                return Ok(Box::new(stream));
            }
            let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
            let tls = tls().map_err(io::Error::other)?;
            if !at_once {
                start_tls(&mut stream).await?;
            }
            Ok(Box::new(tls.connect(name, stream).await?))
        }
    }
}

async fn start_tls(stream: &mut TcpStream) -> io::Result<()> {
    const ID: u32 = 1;
    stream.write_all(&message::starttls(ID)).await?;
    let mut messages = MessageReader::new(STARTTLS_OCTETS_MAX);
    let Some(answer) = messages.next(stream).await? else {
        return Err(io::Error::other("StartTLS: the server closed the connection"));
    };
    match message::decode(answer).map_err(io::Error::other)? {
        (ID, Some(LdapResponse::Done(done))) if done.code == 0 => {}
        (_, Some(LdapResponse::Done(done))) => return Err(io::Error::other(format!("StartTLS: {done}"))),
        _ => return Err(io::Error::other("StartTLS: unexpected response")),
    }
    // An attacker could have inserted data that would later count as sent within TLS.
    match messages.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other("StartTLS: the server sent data before TLS")),
    }
}

/// Splits a stream into messages.
pub(super) struct MessageReader {
    buffer: Vec<u8>,
    /// The start of the next message in the buffer.
    start: usize,
    octets_max: usize,
}

impl MessageReader {
    pub(super) fn new(octets_max: usize) -> Self {
        MessageReader { buffer: Vec::new(), start: 0, octets_max }
    }

    /// The next message; None if the connection was closed between messages. After an error the
    /// stream is unusable. Cancel safe.
    pub(super) async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Box<[u8]>>> {
        loop {
            if let Some(message) = self.next_complete().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.buffer.reserve(READ_OCTETS);
            if from.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::Error::other("connection closed within a message")),
                };
            }
        }
    }

    /// Whether no data follows the last message.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    fn next_complete(&mut self) -> Result<Option<Box<[u8]>>, ber::Malformed> {
        let rest = &self.buffer[self.start..];
        // Check the first octet before waiting for the rest.
        if rest.first().is_some_and(|&tag| tag != ber::SEQUENCE) {
            return Err(ber::Malformed("unexpected first octet"));
        }
        let Some((_, head, length)) = ber::header(rest)? else { return Ok(None) };
        if length > self.octets_max {
            return Err(ber::Malformed("message too long"));
        }
        let Some(message) = rest.get(..head + length) else { return Ok(None) };
        let message = Box::from(message);
        self.start += head + length;
        Ok(Some(message))
    }
}

impl Default for MessageReader {
    fn default() -> Self {
        MessageReader::new(MESSAGE_OCTETS_MAX)
    }
}
