//! The CA certificates that a table trusts: those of a file, or those of the system.
//!
//! A file is used as a whole or not at all. Certificates of the system that rustls rejects are
//! skipped.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The CA certificates cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaCertificatesError {
    /// The CA file cannot be used.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: Box<Path>,
        /// What is wrong.
        what: Box<str>,
    },
    /// The system has no CA certificates.
    #[error("no CA certificates found on this system: set ca_file: {0}")]
    System(Box<str>),
}

/// TLS that trusts the certificates in `ca_file`, or those of the system, and always verifies the
/// host name.
///
/// # Errors
///
/// The file cannot be used, or the system has no certificates.
pub fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, CaCertificatesError> {
    let roots = match ca_file {
        Some(path) => roots_of_file(path)?,
        None => roots_of_system()?,
    };
    Ok(tls_config_with_roots(roots))
}

/// The same for a server that may need no TLS: a system without certificates is no error yet.
pub(crate) fn tls_config_if_needed(ca_file: Option<&Path>) -> Result<ClientConfig, CaCertificatesError> {
    match tls_config(ca_file) {
        Err(CaCertificatesError::System(_)) => Ok(tls_config_with_roots(RootCertStore::empty())),
        config => config,
    }
}

/// TLS that trusts these certificates, and always verifies the host name.
pub(crate) fn tls_config_with_roots(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn roots_of_file(path: &Path) -> Result<RootCertStore, CaCertificatesError> {
    let failed = |what: String| CaCertificatesError::File { path: path.into(), what: what.into() };
    let mut roots = RootCertStore::empty();
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| failed(error.to_string()))?;
    for certificate in certificates {
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() { Err(failed("no certificate found".into())) } else { Ok(roots) }
}

fn roots_of_system() -> Result<RootCertStore, CaCertificatesError> {
    let mut roots = RootCertStore::empty();
    let loaded = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let why = loaded.errors.first().map(ToString::to_string).unwrap_or_default();
        return Err(CaCertificatesError::System(why.into()));
    }
    Ok(roots)
}
