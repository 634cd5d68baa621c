//! The client side of TLS, for connections that we open; `tls_server` has the server side.
//!
//! A failed handshake gives an error in rustls's words, and the connection is unusable. A client
//! that verifies nobody ([`TlsClient::unverified`]) protects against eavesdropping only. Others
//! demand what [`ServerVerifier`] lists.
//!
//! Sessions are resumed only by clients that verify nobody: a resumed session proves what was
//! demanded when it began, which may be less than what this connection demands.

use std::io;
use std::sync::Arc;

use mail::DanePolicy;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
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

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        self.0.connect(name, stream).await.map_err(shorten)
    }
}

/// Cuts the text of an error that is too long to be kept with each message.
fn shorten(error: io::Error) -> io::Error {
    let mut text = error.to_string();
    if text.len() <= ERROR_OCTETS_MAX {
        return error;
    }
    text.truncate(text.floor_char_boundary(ERROR_OCTETS_MAX));
    io::Error::new(error.kind(), text + "...")
}
