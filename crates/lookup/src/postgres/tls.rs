//! TLS for PostgreSQL. Certificates are always verified, including the host name.

use rustls::RootCertStore;
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::PostgresConfig;
use crate::ca_certificates::{CaCertificatesError, tls_config_if_needed, tls_config_with_roots};

/// The ALPN protocol name, which servers require for direct TLS.
const PROTOCOL: &[u8] = b"postgresql";

/// The TLS connector for this configuration.
pub(super) fn connector(config: &PostgresConfig) -> Result<MakeRustlsConnect, CaCertificatesError> {
    let mut tls = match config.url.ssl_mode() {
        SslMode::Disable => tls_config_with_roots(RootCertStore::empty()),
        _ => tls_config_if_needed(config.ca_file.as_deref())?,
    };
    if config.url.ssl_negotiation() == SslNegotiation::Direct {
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
    }
    Ok(MakeRustlsConnect::new(tls))
}
