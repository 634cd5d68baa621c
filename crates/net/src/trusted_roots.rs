//! The certificate authorities that vouch for other servers: those of a file, or of the system.
//!
//! They are read once, when the first connection needs them, so that a server that verifies nobody
//! does not read them. While they cannot be read no certificate is trusted, and each handshake says
//! why; after [`RETRY_AFTER`] the next one reads them again, so that a repaired file needs no restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::task::spawn_blocking;

/// How long certificates that cannot be read are not read again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The certificates of trusted authorities. Clones share them.
#[derive(Clone, Debug)]
pub struct TrustedRoots {
    source: RootSource,
    read: Arc<ReadRoots>,
}

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RootSource {
    System,
    File(PathBuf),
}

type LoadedRoots = Result<Arc<RootCertStore>, TrustedRootsError>;

/// What was read.
#[derive(Debug, Default)]
struct ReadRoots {
    /// Held while they are being read.
    turn: Mutex<()>,
    /// Never held while they are being read. Also when that was.
    last: Mutex<Option<(LoadedRoots, Instant)>>,
}

/// The certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustedRootsError {
    /// The file of CA certificates is unusable.
    #[error("unable to use the CA certificates in {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: Box<str>,
    },
    /// The system has none.
    #[error("this system has no CA certificates; install ca-certificates, or name a file: {0}")]
    System(Box<str>),
}

impl TrustedRoots {
    /// Those of the system. The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name
    /// others.
    pub fn of_system() -> TrustedRoots {
        TrustedRoots { source: RootSource::System, read: Arc::default() }
    }

    /// Those in a PEM file.
    pub fn in_file(path: &Path) -> TrustedRoots {
        TrustedRoots { source: RootSource::File(path.to_owned()), read: Arc::default() }
    }

    /// The certificates. Blocks on disk I/O if they are not in memory.
    pub fn load(&self) -> Result<Arc<RootCertStore>, TrustedRootsError> {
        self.load_at(Instant::now())
    }

    /// The certificates, read on a blocking thread if they are not in memory.
    pub async fn loaded(&self) -> Result<Arc<RootCertStore>, TrustedRootsError> {
        if let Some(known) = self.known(Instant::now()) {
            return known;
        }
        let roots = self.clone();
        // A runtime that is stopping starts no thread.
        spawn_blocking(move || roots.load()).await.unwrap_or_else(|_| self.load())
    }

    fn load_at(&self, now: Instant) -> LoadedRoots {
        let _turn = self.read.turn.lock();
        if let Some(known) = self.known(now) {
            return known;
        }
        let loaded = self.source.read().map(Arc::new);
        *self.read.last.lock() = Some((loaded.clone(), now));
        loaded
    }

    /// What was read. None: it is to be read.
    fn known(&self, now: Instant) -> Option<LoadedRoots> {
        let last = self.read.last.lock();
        let (loaded, read_at) = last.as_ref()?;
        let counts = loaded.is_ok() || now.saturating_duration_since(*read_at) < RETRY_AFTER;
        counts.then(|| loaded.clone())
    }
}

impl RootSource {
    fn read(&self) -> Result<RootCertStore, TrustedRootsError> {
        match self {
            RootSource::System => system_roots(),
            RootSource::File(path) => {
                roots_in(path).map_err(|why| TrustedRootsError::File { path: path.clone(), why: why.into() })
            }
        }
    }
}

/// The system's certificates; those that cannot be parsed are left out.
fn system_roots() -> Result<RootCertStore, TrustedRootsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
        return Err(TrustedRootsError::System(why.into()));
    }
    Ok(roots)
}

/// All certificates of a file; an operator who names a file wants all of it.
fn roots_in(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("it contains no certificate".to_owned()) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that was missing at the first connection once kept all mail back until a restart.
    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_read_again_after_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let (roots, now) = (TrustedRoots::in_file(&path), Instant::now());
        assert!(roots.load_at(now).is_err());
        let authority = rcgen::generate_simple_self_signed(vec!["ca.example".into()]).unwrap();
        std::fs::write(&path, authority.cert.pem()).unwrap();
        assert!(roots.clone().loaded().await.is_err(), "a handshake does not read a file that was just read");
        assert_eq!(roots.load_at(now + RETRY_AFTER).unwrap().len(), 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(roots.load_at(now + RETRY_AFTER * 2).unwrap().len(), 1, "what was read stays");
    }
}
