//! TLS for PostgreSQL. Certificates are always verified, including the host name.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{PostgresConfig, PostgresConfigError};

/// The ALPN protocol name, which servers require for direct TLS.
const PROTOCOL: &[u8] = b"postgresql";

/// The TLS connector for this configuration.
pub(super) fn connector(config: &PostgresConfig) -> Result<MakeRustlsConnect, PostgresConfigError> {
    let mut tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(root_store(config)?)
        .with_no_client_auth();
    if config.url.ssl_negotiation() == SslNegotiation::Direct {
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    }
    Ok(MakeRustlsConnect::new(tls))
}

fn root_store(config: &PostgresConfig) -> Result<RootCertStore, PostgresConfigError> {
    let mut roots = RootCertStore::empty();
    match (&config.ca_file, config.url.ssl_mode()) {
        (_, SslMode::Disable) => {}
        (Some(path), _) => {
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
        }
        // Skip certificates of the system that rustls rejects.
        (None, _) => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PostgresConfigError> {
    let failed = |what: String| PostgresConfigError::Certificates { path: path.into(), what };
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|error| failed(error.to_string()))?;
    match certificates.is_empty() {
        true => Err(failed("no certificate found".into())),
        false => Ok(certificates),
    }
}
