//! The certificate authorities that vouch for other servers: those of a file, or of the system.
//!
//! They are read once, when the first connection needs them, so that a server that verifies nobody
//! does not read them. A file that cannot be read is kept as an error: then no certificate is
//! trusted, and each handshake says why.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The certificates of trusted authorities. Clones share them.
#[derive(Clone, Debug)]
pub struct TrustedRoots {
    source: RootSource,
    loaded: Arc<OnceLock<Result<Arc<RootCertStore>, TrustedRootsError>>>,
}

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RootSource {
    System,
    File(PathBuf),
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
        TrustedRoots { source: RootSource::System, loaded: Arc::default() }
    }

    /// Those in a PEM file.
    pub fn in_file(path: &Path) -> TrustedRoots {
        TrustedRoots { source: RootSource::File(path.to_owned()), loaded: Arc::default() }
    }

    /// The certificates. Blocks on disk I/O at the first call.
    pub fn load(&self) -> Result<Arc<RootCertStore>, TrustedRootsError> {
        let load = || match &self.source {
            RootSource::System => system_roots(),
            RootSource::File(path) => {
                roots_in(path).map_err(|why| TrustedRootsError::File { path: path.clone(), why: why.into() })
            }
        };
        self.loaded.get_or_init(|| load().map(Arc::new)).clone()
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
