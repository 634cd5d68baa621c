//! Packets over a connection: TCP, TLS or a Unix socket. Sequence numbers are checked, so that an
//! answer that belongs to another command is noticed.

use std::io;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio_rustls::TlsConnector;

use super::packet::{HEADER_OCTETS, ProtocolError, packet, read_header};
use crate::byte_stream::ByteStream;

/// Octets read at once.
const BUFFER_OCTETS: usize = 16 * 1024;

/// Why a packet cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// A stream of packets.
pub(super) struct PacketStream {
    stream: BufReader<Box<dyn ByteStream>>,
    /// The sequence number of the next packet, of either side.
    sequence: u8,
    /// The content of the last packet that was read.
    content: Vec<u8>,
}

impl PacketStream {
    pub(super) fn new(stream: Box<dyn ByteStream>) -> Self {
        PacketStream { stream: BufReader::with_capacity(BUFFER_OCTETS, stream), sequence: 0, content: Vec::new() }
    }

    /// Reads the next packet, and returns its content.
    pub(super) async fn read(&mut self) -> Result<&[u8], StreamError> {
        let mut header = [0; HEADER_OCTETS];
        self.stream.read_exact(&mut header).await?;
        let (length, sequence) = read_header(header)?;
        if sequence != self.sequence {
            return Err(ProtocolError("a packet out of order").into());
        }
        self.sequence = sequence.wrapping_add(1);
        self.content.clear();
        // Memory is taken as octets arrive, not as the header claims.
        let read = (&mut self.stream).take(length as u64).read_to_end(&mut self.content).await?;
        match read == length {
            true => Ok(&self.content),
            false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// Writes the packet that follows the one read last.
    pub(super) async fn write(&mut self, content: &[u8]) -> Result<(), StreamError> {
        self.stream.write_all(&packet(self.sequence, content)).await?;
        self.stream.flush().await?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    /// Writes a command, which begins a new sequence.
    pub(super) async fn command(&mut self, content: &[u8]) -> Result<(), StreamError> {
        self.sequence = 0;
        self.write(content).await
    }

    /// Continues with TLS. What the server has sent before would count as sent within TLS, and is
    /// refused.
    pub(super) async fn into_tls(self, tls: &TlsConnector, name: ServerName<'static>) -> Result<Self, StreamError> {
        if !self.stream.buffer().is_empty() {
            return Err(ProtocolError("data before TLS").into());
        }
        let stream = tls.connect(name, self.stream.into_inner()).await?;
        Ok(PacketStream { sequence: self.sequence, ..PacketStream::new(Box::new(stream)) })
    }
}
