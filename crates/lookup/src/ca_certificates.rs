//! The CA certificates that a table trusts: those of a file, or those of the system.
//!
//! A file is used as a whole or not at all. Certificates of the system that rustls rejects are
//! skipped. No certificate at all is an error only for a file: a server may need no TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The CA file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct CaCertificatesError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// TLS that trusts the certificates in `ca_file`, or those of the system, and always verifies the
/// host name.
pub(crate) fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig, CaCertificatesError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let failed = |what: String| CaCertificatesError { path: path.into(), what };
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| failed(error.to_string()))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    Ok(tls_config_with_roots(roots))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CaCertificatesError> {
    let failed = |what: String| CaCertificatesError { path: path.into(), what };
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| failed(error.to_string()))?;
    match certificates.is_empty() {
        true => Err(failed("no certificate found".into())),
        false => Ok(certificates),
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
