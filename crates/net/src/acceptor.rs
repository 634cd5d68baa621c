//! TLS for those who come to us: which certificate a client sees, and how a connection becomes a secure one.
//!
//! The files are read when an [`Acceptor`] is made, and again by [`Acceptor::reload`]: all of them are checked first, and
//! where one is wrong the certificates stay those that were in force. Handshakes under way keep what they began with.
//!
//! The client's name for us (SNI, RFC 6066 section 3) chooses: a certificate with just that name, else one with a wildcard
//! in place of its first label, else the first of the configuration. Of several for a name (one RSA, one ECDSA) it is the
//! first whose signatures the client understands.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::certificate::{Certificate, CertificateError, CertificateFiles};
use crate::stream::Stream;

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    V1_2,
    /// RFC 8446.
    V1_3,
}

/// Makes connections secure.
pub struct Acceptor {
    files: Vec<CertificateFiles>,
    shelf: Arc<Shelf>,
    /// What the files were like when they were last read.
    seen: Mutex<Vec<Option<Stamp>>>,
    tls: TlsAcceptor,
    handshake_time_max: Duration,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Why there is no acceptor.
#[derive(Debug, thiserror::Error)]
pub enum AcceptorError {
    /// None is configured.
    #[error("TLS needs a certificate, and there is none")]
    NoCertificate,
    /// One is wrong.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// In rustls's words.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

impl Acceptor {
    /// Reads the certificates. A handshake that takes longer than `handshake_time_max` fails.
    pub fn new(
        files: Vec<CertificateFiles>,
        version_min: TlsVersion,
        handshake_time_max: Duration,
    ) -> Result<Acceptor, AcceptorError> {
        if files.is_empty() {
            return Err(AcceptorError::NoCertificate);
        }
        let seen = stamps(&files);
        let shelf = Arc::new(Shelf(RwLock::new(Arc::new(Order::of(&load(&files)?)))));
        let versions = match version_min {
            TlsVersion::V1_2 => &[&TLS13, &TLS12][..],
            TlsVersion::V1_3 => &[&TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(shelf.clone());
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        let tls = TlsAcceptor::from(Arc::new(config));
        Ok(Acceptor { files, shelf, seen: Mutex::new(seen), tls, handshake_time_max })
    }

    /// Reads the files again and presents what is in them from now on, if all is well with all of them; gives what is
    /// presented. Waits for the disk.
    pub fn reload(&self) -> Result<Vec<Certificate>, CertificateError> {
        let seen = stamps(&self.files);
        let loaded = load(&self.files);
        // What could not be read may be readable next time, changed or not.
        let is_unread = matches!(loaded, Err(CertificateError::Unreadable { .. }));
        // Each lock guards one assignment.
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = if is_unread { Vec::new() } else { seen };
        let loaded = loaded?;
        *self.shelf.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Order::of(&loaded));
        Ok(loaded)
    }

    /// The same, where any file has changed since it was last read, wrong or not, or could not be read then; else None.
    /// Waits for the disk.
    pub fn reload_if_changed(&self) -> Option<Result<Vec<Certificate>, CertificateError>> {
        let now = stamps(&self.files);
        let is_changed = *self.seen.lock().unwrap_or_else(PoisonError::into_inner) != now;
        is_changed.then(|| self.reload())
    }

    /// The handshake. Its error says in rustls's words what was the matter; the client has been told too, where there was
    /// somebody to tell.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let handshake = tokio::time::timeout(self.handshake_time_max, self.tls.accept(stream));
        let too_slow = |_| {
            let text = format!("it took longer than {:?}", self.handshake_time_max);
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        handshake.await.map_err(too_slow)?.map(|stream| Stream::Secure(Box::new(stream)))
    }
}

fn load(files: &[CertificateFiles]) -> Result<Vec<Certificate>, CertificateError> {
    files.iter().map(Certificate::load).collect()
}

/// What tells one content of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    octets: u64,
    /// When its content changed, and when anything about it did, in seconds and nanoseconds.
    times: [(i64, i64); 2],
}

fn stamps(files: &[CertificateFiles]) -> Vec<Option<Stamp>> {
    files.iter().flat_map(|files| [&files.chain, &files.key]).map(|path| stamp(path)).collect()
}

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    Some(Stamp {
        inode: (about.dev(), about.ino()),
        octets: about.len(),
        times: [(about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec())],
    })
}

/// The certificates in force.
#[derive(Debug)]
struct Shelf(RwLock<Arc<Order>>);

/// Which certificate is for whom.
#[derive(Debug)]
struct Order {
    named: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
    /// In the order of the configuration; one at least.
    all: Vec<Arc<CertifiedKey>>,
}

impl Order {
    fn of(certificates: &[Certificate]) -> Order {
        let mut named: HashMap<Box<str>, Vec<_>> = HashMap::new();
        for certificate in certificates {
            for name in certificate.names() {
                named.entry(name.clone()).or_default().push(certificate.signer.clone());
            }
        }
        Order { named, all: certificates.iter().map(|certificate| certificate.signer.clone()).collect() }
    }

    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let found = name.and_then(|name| self.named_so(name)).unwrap_or(&self.all);
        let is_understood = |signer: &&Arc<CertifiedKey>| signer.key.choose_scheme(schemes).is_some();
        found.iter().find(is_understood).or(found.first()).cloned()
    }

    fn named_so(&self, name: &str) -> Option<&Vec<Arc<CertifiedKey>>> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = || name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        self.named.get(&*name).or_else(|| self.named.get(&*wildcard()?))
    }
}

impl ResolvesServerCert for Shelf {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let order = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        order.choose(hello.server_name(), hello.signature_schemes())
    }
}
