//! The chain of a server's certificate, and the names in it.

use std::sync::{Arc, LazyLock};

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{Error, RootCertStore};

/// The cryptography of all clients.
pub(crate) static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// The chain must lead to one of the roots, and the certificate must have one of the names.
pub(crate) fn verify_named(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    names: &[Box<str>],
    now: UnixTime,
) -> Result<(), Error> {
    let certificate = ParsedCertificate::try_from(end_entity)?;
    let algorithms = PROVIDER.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
    let mut mismatch = Error::General("no name is known for the server".to_owned());
    for name in names {
        let verified = ServerName::try_from(&**name)
            .map_err(|_| Error::General(format!("'{name}' cannot be the name of a server")))
            .and_then(|name| verify_server_name(&certificate, &name));
        match verified {
            Ok(()) => return Ok(()),
            Err(error) => mismatch = error,
        }
    }
    Err(mismatch)
}
