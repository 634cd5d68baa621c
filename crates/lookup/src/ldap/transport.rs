//! The way to a server: TCP, TLS over it or after StartTLS, or a socket of this machine; and messages cut out of what
//! comes along it.
//!
//! Certificates are always verified, against the CA file that is given or else the system's. What a server says before
//! TLS began never counts as said within.

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

use super::message::{self, Response};
use super::{Url, ber};

/// One message; the entry of a group with 200,000 members fits.
const MESSAGE_OCTETS_MAX: usize = 16 * 1024 * 1024;
/// Before TLS nobody has anything long to say.
const STARTTLS_OCTETS_MAX: usize = 16 * 1024;
const READ_OCTETS: usize = 16 * 1024;

/// A connection, whatever it goes over.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Whose certificates are believed.
pub(super) fn trust(ca_file: Option<&Path>) -> Result<TlsConnector, TrustError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let failed =
                |source: &dyn std::fmt::Display| TrustError::File { path: path.into(), why: source.to_string().into() };
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
            if roots.is_empty() {
                return Err(failed(&"no certificate is in it"));
            }
        }
        None => {
            let loaded = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(loaded.certs);
            if roots.is_empty() {
                let why = loaded.errors.first().map(ToString::to_string).unwrap_or_default();
                return Err(TrustError::System(why.into()));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// No certificates to believe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The file of authorities is of no use.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: Box<Path>,
        /// What is wrong with it.
        why: Box<str>,
    },
    /// The system has none.
    #[error("the system has no certificates of authorities; name a file of them: {0}")]
    System(Box<str>),
}

/// Opens the way to `url`. `tls` is asked for a configuration where TLS is needed.
pub(super) async fn open(
    url: &Url,
    starttls: bool,
    tls: impl FnOnce() -> Result<TlsConnector, TrustError>,
) -> io::Result<Box<dyn Wire>> {
    match url {
        Url::Unix { path } => Ok(Box::new(UnixStream::connect(path).await?)),
        Url::Tcp { host, port, tls: at_once } => {
            let mut stream = TcpStream::connect((&**host, *port)).await?;
            stream.set_nodelay(true)?;
            if !at_once && !starttls {
                return Ok(Box::new(stream));
            }
            let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
            let tls = tls().map_err(io::Error::other)?;
            if !at_once {
                ask_for_tls(&mut stream).await?;
            }
            Ok(Box::new(tls.connect(name, stream).await?))
        }
    }
}

async fn ask_for_tls(stream: &mut TcpStream) -> io::Result<()> {
    const ID: u32 = 1;
    stream.write_all(&message::starttls(ID)).await?;
    let mut messages = Messages::new(STARTTLS_OCTETS_MAX);
    let Some(answer) = messages.next(stream).await? else {
        return Err(io::Error::other("StartTLS: the server closed the connection"));
    };
    match message::decode(answer).map_err(io::Error::other)? {
        (ID, Some(Response::Done(done))) if done.code == 0 => {}
        (_, Some(Response::Done(done))) => return Err(io::Error::other(format!("StartTLS: {done}"))),
        _ => return Err(io::Error::other("StartTLS: the server answered something else")),
    }
    // Whoever stands between could have put it there, to be taken for what the server says within TLS.
    match messages.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other("StartTLS: the server went on talking without TLS")),
    }
}

/// Cuts messages out of what comes.
pub(super) struct Messages {
    buffer: Vec<u8>,
    /// Where in the buffer the next message begins.
    start: usize,
    octets_max: usize,
}

impl Messages {
    pub(super) fn new(octets_max: usize) -> Self {
        Messages { buffer: Vec::new(), start: 0, octets_max }
    }

    /// The next message as a whole; None when the other side closed the connection between two of them. An error leaves
    /// nothing that could be read on. Safe to drop and call again.
    pub(super) async fn next(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Box<[u8]>>> {
        loop {
            if let Some(message) = self.cut().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.buffer.reserve(READ_OCTETS);
            if from.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::Error::other("the connection was closed in the middle of a message")),
                };
            }
        }
    }

    /// Whether nothing came behind the last message.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }

    fn cut(&mut self) -> Result<Option<Box<[u8]>>, ber::Malformed> {
        let rest = &self.buffer[self.start..];
        // Refused before the rest has come: whatever is no message shows in its first octet.
        if rest.first().is_some_and(|&tag| tag != ber::SEQUENCE) {
            return Err(ber::Malformed("it does not begin as a message does"));
        }
        let Some((_, head, length)) = ber::header(rest)? else { return Ok(None) };
        if length > self.octets_max {
            return Err(ber::Malformed("it is longer than a message may be"));
        }
        let Some(message) = rest.get(..head + length) else { return Ok(None) };
        let message = Box::from(message);
        self.start += head + length;
        Ok(Some(message))
    }
}

impl Default for Messages {
    fn default() -> Self {
        Messages::new(MESSAGE_OCTETS_MAX)
    }
}
