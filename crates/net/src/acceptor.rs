//! TLS for those who come to us: which certificate a client sees, and how a connection becomes a secure one.
//!
//! The files are read when an [`Acceptor`] is made, and those that have changed again by [`Acceptor::reload_changed`] and
//! [`Acceptor::reload_ready`]. Each certificate is exchanged by itself: where its files are wrong it stays as it was,
//! and the others do not wait for it. Handshakes under way keep what they began with.
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
use std::time::{Duration, SystemTime};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ServerConfig, SignatureScheme};
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

/// A file that changed later than so long ago may still be in somebody's hands: it is left for the next look.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Makes connections secure.
pub struct Acceptor {
    shelf: Arc<Shelf>,
    /// In the order of the configuration; one at least. Only those who look for changes wait for one another.
    entries: Mutex<Vec<Entry>>,
    tls: TlsAcceptor,
    handshake_time_max: Duration,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("entries", &self.entries).finish_non_exhaustive()
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
        let entries = files.into_iter().map(Entry::load).collect::<Result<Vec<_>, _>>()?;
        let shelf = Arc::new(Shelf(RwLock::new(Arc::new(Order::of(&entries)))));
        let versions = match version_min {
            TlsVersion::V1_2 => &[&TLS13, &TLS12][..],
            TlsVersion::V1_3 => &[&TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(shelf.clone());
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        // All that we have are sound; the order of a client may be of the year in which it was built.
        config.ignore_client_order = true;
        let tls = TlsAcceptor::from(Arc::new(config));
        Ok(Acceptor { shelf, entries: Mutex::new(entries), tls, handshake_time_max })
    }

    /// Reads the certificates again whose files have changed since they were last read, and presents from now on those
    /// that are sound; gives each that was exchanged, and each error that was not told before. What cannot be read is
    /// tried every time, and told again only where the reason or the files are others. Files that changed within the
    /// last 2 s, or while they were read, are left for the next time. Waits for the disk.
    pub fn reload_changed(&self, now: SystemTime) -> Vec<Result<Certificate, CertificateError>> {
        self.reload(Some(now))
    }

    /// The same at the word of somebody who says that the files are ready: those that changed a moment ago are read too.
    pub fn reload_ready(&self) -> Vec<Result<Certificate, CertificateError>> {
        self.reload(None)
    }

    fn reload(&self, now: Option<SystemTime>) -> Vec<Result<Certificate, CertificateError>> {
        // An entry changes in one piece.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = entries.iter_mut().filter_map(|entry| entry.look(now, Certificate::load)).collect();
        if found.iter().any(Result::is_ok) {
            // The lock guards one assignment.
            *self.shelf.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Order::of(&entries));
        }
        found
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

/// A certificate of the configuration.
#[derive(Debug)]
struct Entry {
    files: CertificateFiles,
    /// In force.
    certificate: Certificate,
    /// What the files were like when it was read.
    stamps: Stamps,
    /// What was the matter with them since.
    fault: Option<Fault>,
}

/// Why the files were not taken when they were like this.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    stamps: Stamps,
    text: String,
    is_unreadable: bool,
}

/// The suites of the provider, those of AES-128 with SHA-256 first: processors have instructions for both. With
/// SHA-384, for which few have any, a handshake takes a quarter more (`examples/handshake_cost`).
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

impl Entry {
    fn load(files: CertificateFiles) -> Result<Entry, CertificateError> {
        // Before: what changes while it is read has then changed.
        let stamps = stamps(&files);
        let certificate = Certificate::load(&files)?;
        Ok(Entry { files, certificate, stamps, fault: None })
    }

    /// What is to be told of the files, after `load` has read them where that makes sense. Without a time it does not
    /// matter how long ago they changed.
    fn look(
        &mut self,
        now: Option<SystemTime>,
        load: impl FnOnce(&CertificateFiles) -> Result<Certificate, CertificateError>,
    ) -> Option<Result<Certificate, CertificateError>> {
        let before = stamps(&self.files);
        if before == self.stamps {
            self.fault = None;
            return None;
        }
        // What could not be read may be readable now, changed or not: a folder above it tells nothing here.
        let is_known = |fault: &Fault| !fault.is_unreadable && fault.stamps == before;
        let are_unsettled = |now| before.iter().flatten().any(|stamp| stamp.is_unsettled(now));
        if self.fault.as_ref().is_some_and(is_known) || now.is_some_and(are_unsettled) {
            return None;
        }
        let loaded = load(&self.files);
        if stamps(&self.files) != before {
            return None;
        }
        match loaded {
            Ok(certificate) => {
                (self.stamps, self.fault) = (before, None);
                self.certificate = certificate.clone();
                Some(Ok(certificate))
            }
            Err(error) => {
                let is_unreadable = matches!(error, CertificateError::Unreadable { .. });
                let fault = Some(Fault { stamps: before, text: error.to_string(), is_unreadable });
                let is_told = self.fault == fault;
                self.fault = fault;
                (!is_told).then_some(Err(error))
            }
        }
    }
}

/// What tells one content of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    octets: u64,
    /// When its content changed, and when anything about it did, in seconds and nanoseconds.
    times: [(i64, i64); 2],
}

/// Of the chain and of the key; None where there is nothing to see.
type Stamps = [Option<Stamp>; 2];

impl Stamp {
    /// A time to come is that of another clock, and says nothing.
    fn is_unsettled(&self, now: SystemTime) -> bool {
        let [(seconds, nanoseconds), _] = self.times;
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(seconds), u32::try_from(nanoseconds)) else { return false };
        let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
        let age = changed.and_then(|changed| now.duration_since(changed).ok());
        age.is_some_and(|age| age < SETTLED_AFTER)
    }
}

fn stamps(files: &CertificateFiles) -> Stamps {
    [stamp(&files.chain), stamp(&files.key)]
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
    fn of(entries: &[Entry]) -> Order {
        let certificates = || entries.iter().map(|entry| &entry.certificate);
        let mut named: HashMap<Box<str>, Vec<_>> = HashMap::new();
        for certificate in certificates() {
            for name in certificate.names() {
                named.entry(name.clone()).or_default().push(certificate.signer.clone());
            }
        }
        Order { named, all: certificates().map(|certificate| certificate.signer.clone()).collect() }
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
    fn what_changes_while_it_is_read_is_left_for_the_next_time() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = |name| folder.path().join(name);
        let files = CertificateFiles { chain: file("a.pem"), key: file("a.key"), names: Vec::new() };
        write(&files);
        let mut entry = Entry::load(files.clone()).unwrap();
        let old = entry.certificate.signer.clone();
        let append = |path: &Path| fs::write(path, [fs::read(path).unwrap(), b"\n".to_vec()].concat()).unwrap();
        append(&files.chain);
        let later = Some(SystemTime::now() + Duration::from_secs(60));
        // Sound or not, it may be half of one and half of the other.
        let is_left = entry.look(later, |files| {
            let loaded = Certificate::load(files);
            append(&files.key);
            loaded
        });
        assert!(is_left.is_none() && Arc::ptr_eq(&entry.certificate.signer, &old));
        let is_left = entry.look(later, |files| {
            append(&files.key);
            Err(CertificateError::Mismatch { chain: files.chain.clone(), key: files.key.clone() })
        });
        assert!(is_left.is_none() && entry.fault.is_none());
        assert!(entry.look(later, Certificate::load).unwrap().is_ok());
        assert!(!Arc::ptr_eq(&entry.certificate.signer, &old));
        assert!(entry.look(later, |_| unreachable!("nothing has changed")).is_none());
    }

    #[test]
    fn what_could_not_be_read_is_tried_again_though_nothing_has_changed() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = |name| folder.path().join(name);
        let files = CertificateFiles { chain: file("a.pem"), key: file("a.key"), names: Vec::new() };
        write(&files);
        let mut entry = Entry::load(files.clone()).unwrap();
        fs::write(&files.key, [fs::read(&files.key).unwrap(), b"\n".to_vec()].concat()).unwrap();
        let later = Some(SystemTime::now() + Duration::from_secs(60));
        let denied = |files: &CertificateFiles| {
            let error = io::ErrorKind::PermissionDenied.into();
            Err(CertificateError::Unreadable { path: files.key.clone(), error, is_key: true })
        };
        assert!(entry.look(later, denied).unwrap().is_err());
        assert!(entry.look(later, denied).is_none(), "it is told once");
        assert!(entry.look(later, Certificate::load).unwrap().is_ok());
    }
}
