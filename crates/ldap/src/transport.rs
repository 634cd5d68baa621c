//! The transport to a server: TCP, TLS, StartTLS or a Unix socket; and splitting the stream into
//! messages.
//!
//! Certificates are always verified, with the configured CA file or the system's CAs. Data received
//! before TLS is never used after it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::message::{self, LdapResponse};
use super::{LdapUrl, ber};

/// Maximum message length; enough for a group with 200,000 members.
const MESSAGE_OCTETS_MAX: usize = 16 * 1024 * 1024;
/// Maximum message length before TLS.
const STARTTLS_OCTETS_MAX: usize = 16 * 1024;
const READ_OCTETS: usize = 16 * 1024;

/// A connection of any kind.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The TLS configuration that trusts these CAs.
pub(super) fn tls_connector(ca_file: Option<&Path>) -> Result<TlsConnector, CaCertificatesError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let failed = |source: &dyn std::fmt::Display| CaCertificatesError::File {
                path: path.into(),
                why: source.to_string().into(),
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
            if roots.is_empty() {
                return Err(failed(&"no certificate found"));
            }
        }
        None => {
            let loaded = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(loaded.certs);
            if roots.is_empty() {
                let why = loaded.errors.first().map(ToString::to_string).unwrap_or_default();
                return Err(CaCertificatesError::System(why.into()));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The CA certificates cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaCertificatesError {
    /// The CA file is unusable.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: Box<Path>,
        /// What is wrong.
        why: Box<str>,
    },
    /// The system has no CA certificates.
    #[error("no CA certificates found on this system: set ca_file: {0}")]
    System(Box<str>),
}

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
