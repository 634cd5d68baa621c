//! The server side of TLS: chooses the certificate for a client and performs the handshake.
//!
//! Each certificate is replaced independently when its files change: if they are invalid, the old
//! one stays, and the others are not affected. Handshakes in progress keep what they started with.
//!
//! The name that the client sends (SNI, RFC 6066 section 3) chooses: a certificate with exactly
//! that name, else one with a wildcard as the first label, else the first in the configuration.
//! Among several for a name (one RSA, one ECDSA), it is the first whose signature scheme the client
//! supports.
//!
//! While a certificate authority is about to check a name by TLS-ALPN-01 (RFC 8737), connections that
//! begin with TLS are looked at first: the handshakes of the authority get the certificate of the
//! challenge, and end there.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{Acceptor, ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ServerConfig, SignatureScheme, SupportedProtocolVersion};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use crate::certificate::{Certificate, CertificateError, CertificateFiles};
use crate::challenges::{ACME_TLS, ChallengeResolver, ChallengeStore};
use crate::server_stream::ServerStream;

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    V1_2,
    /// RFC 8446.
    V1_3,
}

/// A file that changed more recently may still be being written: it is left for the next reload.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Performs TLS handshakes as a server.
pub struct TlsServer {
    resolver: Arc<CertResolver>,
    /// In the order of the configuration, never empty. Only reloads take this lock.
    entries: Mutex<Vec<CertificateEntry>>,
    tls: TlsAcceptor,
    challenges: Arc<ChallengeStore>,
    /// For the handshakes of certificate authorities.
    challenge_config: Arc<ServerConfig>,
    handshake_time_max: Duration,
}

/// A configured certificate, and what stands for it until its files can be used.
#[derive(Clone, Debug)]
pub struct CertificateSource {
    /// Where it is.
    pub files: CertificateFiles,
    /// Without it, files that cannot be used are an error.
    pub placeholder: Option<Certificate>,
}

impl From<CertificateFiles> for CertificateSource {
    fn from(files: CertificateFiles) -> CertificateSource {
        CertificateSource { files, placeholder: None }
    }
}

/// Who began a connection with a handshake.
#[derive(Debug)]
pub enum FirstHandshake {
    /// A client.
    Client(ServerStream),
    /// A certificate authority. It has its answer, and the connection is to be closed.
    Authority(TcpStream),
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsServer").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// Why the server side of TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsServerError {
    /// No certificate is configured.
    #[error("no certificate configured for TLS")]
    NoCertificate,
    /// A certificate cannot be loaded.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// An error of rustls.
    #[error("unable to set up TLS: {0}")]
    Setup(#[from] rustls::Error),
}

impl TlsServer {
    /// Loads the certificates. A handshake that takes longer than `handshake_time_max` fails.
    pub fn new(
        sources: Vec<impl Into<CertificateSource>>,
        version_min: TlsVersion,
        handshake_time_max: Duration,
    ) -> Result<TlsServer, TlsServerError> {
        if sources.is_empty() {
            return Err(TlsServerError::NoCertificate);
        }
        let entries = sources.into_iter().map(CertificateEntry::load).collect::<Result<Vec<_>, _>>()?;
        let resolver = Arc::new(CertResolver(RwLock::new(Arc::new(CertIndex::from_entries(&entries)))));
        let versions = match version_min {
            TlsVersion::V1_2 => &[&TLS13, &TLS12][..],
            TlsVersion::V1_3 => &[&TLS13],
        };
        let mut config = server_config(versions, resolver.clone())?;
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        let tls = TlsAcceptor::from(Arc::new(config));
        let challenges = Arc::<ChallengeStore>::default();
        let challenge_config = challenge_config(&challenges)?;
        Ok(TlsServer { resolver, entries: Mutex::new(entries), tls, challenges, challenge_config, handshake_time_max })
    }

    /// The same, which also answers these challenges of certificate authorities.
    ///
    /// # Errors
    ///
    /// An error of rustls.
    pub fn with_challenges(self, challenges: Arc<ChallengeStore>) -> Result<TlsServer, TlsServerError> {
        Ok(TlsServer { challenge_config: challenge_config(&challenges)?, challenges, ..self })
    }

    /// The certificates in use, in the order of the configuration.
    pub fn certificates(&self) -> Vec<Certificate> {
        self.entries.lock().iter().map(|entry| entry.certificate.clone()).collect()
    }

    /// Reloads the certificates whose files have changed, and uses those that are valid from now
    /// on. Returns each certificate that was replaced, and each new error. Files that cannot be
    /// read are tried every time, but reported again only if the reason or the files change. Files
    /// that changed within the last 2 s, or while they were read, are left for the next call.
    /// Blocks on disk I/O.
    pub fn reload_changed(&self, now: SystemTime) -> Vec<Result<Certificate, CertificateError>> {
        self.reload(Some(now))
    }

    /// The same, but includes files that have just changed: the caller says that they are complete.
    pub fn reload_changed_now(&self) -> Vec<Result<Certificate, CertificateError>> {
        self.reload(None)
    }

    fn reload(&self, now: Option<SystemTime>) -> Vec<Result<Certificate, CertificateError>> {
        // An entry is always consistent.
        let mut entries = self.entries.lock();
        let found: Vec<_> =
            entries.iter_mut().filter_map(|entry| entry.reload_if_changed(now, Certificate::load)).collect();
        if found.iter().any(Result::is_ok) {
            *self.resolver.0.write() = Arc::new(CertIndex::from_entries(&entries));
        }
        found
    }

    /// Performs the handshake. An error is reported in rustls's words; if possible, the client has
    /// got an alert too.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<ServerStream> {
        self.in_time(self.tls.accept(stream)).await.map(|stream| ServerStream::Secure(Box::new(stream)))
    }

    /// The same at the start of a connection, which may be one of a certificate authority.
    pub async fn accept_first(&self, stream: TcpStream) -> io::Result<FirstHandshake> {
        match self.challenges.expects_tls() {
            true => self.in_time(self.accept_or_answer(stream)).await,
            false => self.accept(stream).await.map(FirstHandshake::Client),
        }
    }

    async fn accept_or_answer(&self, stream: TcpStream) -> io::Result<FirstHandshake> {
        let handshake = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let offers: Vec<_> = handshake.client_hello().alpn().into_iter().flatten().map(<[u8]>::to_vec).collect();
        if offers == [ACME_TLS] {
            let mut answered = handshake.into_stream(self.challenge_config.clone()).await?;
            // Whether the authority still listens does not matter.
            let _ = answered.shutdown().await;
            return Ok(FirstHandshake::Authority(answered.into_inner().0));
        }
        let stream = handshake.into_stream(self.tls.config().clone()).await?;
        Ok(FirstHandshake::Client(ServerStream::Secure(Box::new(stream))))
    }

    async fn in_time<T>(&self, handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let too_slow = |_| {
            let text = format!("handshake timed out after {:?}", self.handshake_time_max);
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        tokio::time::timeout(self.handshake_time_max, handshake).await.map_err(too_slow)?
    }
}

fn server_config(
    versions: &[&'static SupportedProtocolVersion],
    resolver: Arc<dyn ResolvesServerCert>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    // All our suites are secure; a client's preference may be as old as its build.
    config.ignore_client_order = true;
    Ok(config)
}

/// A handshake that proves something to an authority, and is the end of its connection.
fn challenge_config(challenges: &Arc<ChallengeStore>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = server_config(&[&TLS13, &TLS12], Arc::new(ChallengeResolver(challenges.clone())))?;
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// A configured certificate.
#[derive(Debug)]
struct CertificateEntry {
    files: CertificateFiles,
    /// The certificate in use.
    certificate: Certificate,
    /// The state of the files when it was loaded.
    stamps: CertificateStamps,
    /// The error of the last reload, if it failed.
    failure: Option<LoadFailure>,
}

/// Why the files were rejected, and their state then.
#[derive(Debug, PartialEq, Eq)]
struct LoadFailure {
    stamps: CertificateStamps,
    text: String,
    is_unreadable: bool,
}

/// The cipher suites of the provider, those of AES-128 with SHA-256 first, for which processors
/// have instructions. With SHA-384, which few processors accelerate, a handshake takes a quarter
/// longer (`examples/handshake_cost`).
fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| {
        !matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    provider
}

impl CertificateEntry {
    fn load(source: impl Into<CertificateSource>) -> Result<CertificateEntry, CertificateError> {
        let CertificateSource { files, placeholder } = source.into();
        // Taken before reading: a change during the read then counts as a later change.
        let stamps = stamps(&files);
        let certificate = Certificate::load(&files).or_else(|error| placeholder.ok_or(error))?;
        Ok(CertificateEntry { files, certificate, stamps, failure: None })
    }

    /// Calls `load` if the files have changed, and returns the result to report. Without `now`,
    /// recent changes are not left for later.
    fn reload_if_changed(
        &mut self,
        now: Option<SystemTime>,
        load: impl FnOnce(&CertificateFiles) -> Result<Certificate, CertificateError>,
    ) -> Option<Result<Certificate, CertificateError>> {
        let before = stamps(&self.files);
        if before == self.stamps {
            self.failure = None;
            return None;
        }
        // Unreadable files are tried again even if unchanged: permissions of a parent directory may
        // have changed.
        let is_known = |fault: &LoadFailure| !fault.is_unreadable && fault.stamps == before;
        let are_unsettled = |now| before.iter().flatten().any(|stamp| stamp.is_recent(now));
        if self.failure.as_ref().is_some_and(is_known) || now.is_some_and(are_unsettled) {
            return None;
        }
        let loaded = load(&self.files);
        if stamps(&self.files) != before {
            return None;
        }
        match loaded {
            Ok(certificate) => {
                (self.stamps, self.failure) = (before, None);
                self.certificate = certificate.clone();
                Some(Ok(certificate))
            }
            Err(error) => {
                let is_unreadable = matches!(error, CertificateError::Unreadable { .. });
                let fault = Some(LoadFailure { stamps: before, text: error.to_string(), is_unreadable });
                let is_told = self.failure == fault;
                self.failure = fault;
                (!is_told).then_some(Err(error))
            }
        }
    }
}

/// Identifies a version of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CertificateStamp {
    inode: (u64, u64),
    octets: u64,
    /// Modification and status change times, in seconds and nanoseconds.
    times: [(i64, i64); 2],
}

/// Of the chain and the key; None if the file is not accessible.
type CertificateStamps = [Option<CertificateStamp>; 2];

impl CertificateStamp {
    /// A time in the future comes from another clock and is not recent.
    fn is_recent(&self, now: SystemTime) -> bool {
        let [(seconds, nanoseconds), _] = self.times;
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(seconds), u32::try_from(nanoseconds)) else { return false };
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
        let age = changed.and_then(|changed| now.duration_since(changed).ok());
        age.is_some_and(|age| age < SETTLED_AFTER)
    }
}

fn stamps(files: &CertificateFiles) -> CertificateStamps {
    [stamp(&files.chain), stamp(&files.key)]
}

fn stamp(path: &Path) -> Option<CertificateStamp> {
    let about = fs::metadata(path).ok()?;
    Some(CertificateStamp {
        inode: (about.dev(), about.ino()),
        octets: about.len(),
        times: [(about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec())],
    })
}

/// The certificates in use.
#[derive(Debug)]
struct CertResolver(RwLock<Arc<CertIndex>>);

/// The certificates by name.
#[derive(Debug)]
struct CertIndex {
    by_name: HashMap<Box<str>, Vec<Arc<CertifiedKey>>>,
    /// In the order of the configuration, never empty.
    all: Vec<Arc<CertifiedKey>>,
}

impl CertIndex {
    fn from_entries(entries: &[CertificateEntry]) -> CertIndex {
        let certificates = || entries.iter().map(|entry| &entry.certificate);
        let mut named: HashMap<Box<str>, Vec<_>> = HashMap::new();
        for certificate in certificates() {
            for name in certificate.names() {
                named.entry(name.clone()).or_default().push(certificate.signer.clone());
            }
        }
        CertIndex { by_name: named, all: certificates().map(|certificate| certificate.signer.clone()).collect() }
    }

    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let found = name.and_then(|name| self.find_by_name(name)).unwrap_or(&self.all);
        let is_understood = |signer: &&Arc<CertifiedKey>| signer.key.choose_scheme(schemes).is_some();
        found.iter().find(is_understood).or(found.first()).cloned()
    }

    fn find_by_name(&self, name: &str) -> Option<&Vec<Arc<CertifiedKey>>> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let wildcard = || name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        self.by_name.get(&*name).or_else(|| self.by_name.get(&*wildcard()?))
    }
}

impl ResolvesServerCert for CertResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let index = self.0.read().clone();
        index.choose(hello.server_name(), hello.signature_schemes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(files: &CertificateFiles) {
        let pair = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["mx.example.org".to_owned()]).unwrap();
        fs::write(&files.chain, params.self_signed(&pair).unwrap().pem()).unwrap();
        fs::write(&files.key, pair.serialize_pem()).unwrap();
    }

    #[test]
    fn files_that_change_while_they_are_read_are_left_for_the_next_time() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = |name| folder.path().join(name);
        let files = CertificateFiles { chain: file("a.pem"), key: file("a.key"), names: Vec::new() };
        write(&files);
        let mut entry = CertificateEntry::load(files.clone()).unwrap();
        let old = entry.certificate.signer.clone();
        let append = |path: &Path| fs::write(path, [fs::read(path).unwrap(), b"\n".to_vec()].concat()).unwrap();
        append(&files.chain);
        let later = Some(SystemTime::now() + Duration::from_secs(60));
        // Valid or not, the files may be from two different versions.
        let is_left = entry.reload_if_changed(later, |files| {
            let loaded = Certificate::load(files);
            append(&files.key);
            loaded
        });
        assert!(is_left.is_none() && Arc::ptr_eq(&entry.certificate.signer, &old));
        let is_left = entry.reload_if_changed(later, |files| {
            append(&files.key);
            Err(CertificateError::Mismatch { chain: files.chain.clone(), key: files.key.clone() })
        });
        assert!(is_left.is_none() && entry.failure.is_none());
        assert!(entry.reload_if_changed(later, Certificate::load).unwrap().is_ok());
        assert!(!Arc::ptr_eq(&entry.certificate.signer, &old));
        assert!(entry.reload_if_changed(later, |_| unreachable!("the files have not changed")).is_none());
    }

    #[test]
    fn unreadable_files_are_tried_again_even_if_unchanged() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = |name| folder.path().join(name);
        let files = CertificateFiles { chain: file("a.pem"), key: file("a.key"), names: Vec::new() };
        write(&files);
        let mut entry = CertificateEntry::load(files.clone()).unwrap();
        fs::write(&files.key, [fs::read(&files.key).unwrap(), b"\n".to_vec()].concat()).unwrap();
        let later = Some(SystemTime::now() + Duration::from_secs(60));
        let denied = |files: &CertificateFiles| {
            let error = io::ErrorKind::PermissionDenied.into();
            Err(CertificateError::Unreadable { path: files.key.clone(), error, is_key: true })
        };
        assert!(entry.reload_if_changed(later, denied).unwrap().is_err());
        assert!(entry.reload_if_changed(later, denied).is_none(), "the error was reported twice");
        assert!(entry.reload_if_changed(later, Certificate::load).unwrap().is_ok());
    }
}
