//! The client side of TLS, for connections that we open; `tls_server` has the server side.
//!
//! A failed handshake gives an error in rustls's words, and the connection is unusable. A client
//! that verifies nobody ([`TlsClient::unverified`]) protects against eavesdropping only. Others
//! demand what [`ServerVerifier`] lists.
//!
//! Sessions are resumed only by clients that verify nobody: a resumed session proves what was
//! demanded when it began, which may be less than what this connection demands.

use std::fmt;
use std::io;
use std::sync::Arc;

use mail::{DanePolicy, TlsFailure};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificate_chain::PROVIDER;
use crate::server_verifier::ServerVerifier;
use crate::trusted_roots::{TrustedRoots, TrustedRootsError};

/// The longest text of an error. rustls lists all names of a certificate, of which a hostile server
/// has thousands.
const ERROR_OCTETS_MAX: usize = 400;

/// A TLS connection to a server.
pub(crate) type ClientTlsStream = TlsStream<TcpStream>;

/// Which server certificates are accepted.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsClient")
    }
}

impl TlsClient {
    /// Accepts every certificate: encryption without authentication (RFC 7435). It protects against
    /// eavesdropping, but not against an active attacker. Resumes sessions if the server offers it
    /// (RFC 8446 section 2.2).
    pub fn unverified() -> TlsClient {
        TlsClient::new(ServerVerifier::Unverified, Resumption::default())
    }

    /// The same, but every connection makes a full handshake.
    pub fn unverified_without_resumption() -> TlsClient {
        TlsClient::new(ServerVerifier::Unverified, Resumption::disabled())
    }

    /// Accepts a certificate of a trusted authority that has one of these names, with A-labels, or
    /// addresses. Reads the authorities at the first call, on a blocking thread.
    pub async fn verified(roots: &TrustedRoots, names: Vec<Box<str>>) -> Result<TlsClient, TrustedRootsError> {
        Ok(TlsClient::new(ServerVerifier::Named { roots: roots.loaded().await?, names }, Resumption::disabled()))
    }

    /// Accepts a certificate that TLSA records name (RFC 7672 section 3).
    pub fn dane(policy: Arc<DanePolicy>) -> TlsClient {
        TlsClient::new(ServerVerifier::Dane(policy), Resumption::disabled())
    }

    fn new(verifier: ServerVerifier, resumption: Resumption) -> TlsClient {
        let mut config = ClientConfig::builder_with_provider(PROVIDER.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption = resumption;
        TlsClient(TlsConnector::from(Arc::new(config)))
    }

    /// Performs the handshake. `name` is the server's name or address, for its choice of a
    /// certificate (SNI).
    pub(crate) async fn handshake(&self, stream: TcpStream, name: &str) -> io::Result<ClientTlsStream> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await.map_err(HandshakeError::wrap)
    }
}

/// Why a handshake failed: the error of rustls without what would be too long to be kept with each message.
#[derive(Debug)]
struct HandshakeError {
    text: String,
    failure: TlsFailure,
}

impl HandshakeError {
    /// The same error in short, if it is one of rustls.
    fn wrap(error: io::Error) -> io::Error {
        let Some(of_rustls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
            return error;
        };
        let (mut text, failure) = (error.to_string(), failure_of(of_rustls));
        if text.len() > ERROR_OCTETS_MAX {
            text.truncate(text.floor_char_boundary(ERROR_OCTETS_MAX));
            text.push_str("...");
        }
        io::Error::new(error.kind(), HandshakeError { text, failure })
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for HandshakeError {}

/// What a failed [`crate::OutboundConnection::start_tls`] says about the server.
pub fn tls_failure(error: &io::Error) -> TlsFailure {
    let failed = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeError>());
    failed.map_or(TlsFailure::Other, |failed| failed.failure)
}

pub(crate) fn failure_of(error: &rustls::Error) -> TlsFailure {
    let rustls::Error::InvalidCertificate(why) = error else { return TlsFailure::Other };
    match why {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => TlsFailure::Expired,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => TlsFailure::HostMismatch,
        // What has no name of its own is wrong with the chain: most often the certificate has signed itself.
        CertificateError::UnknownIssuer | CertificateError::Other(_) => TlsFailure::Untrusted,
        _ => TlsFailure::Other,
    }
}
