//! The client side of TLS, for connections that we open; `tls_server` has the server side.
//!
//! A failed handshake gives an error in rustls's words, and the connection is unusable. So far
//! every certificate is accepted ([`TlsClient::unverified`]), which suits benchmarks and gives no
//! protection against an active attacker.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

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
        TlsClient::without_verification(Resumption::default())
    }

    /// The same, but every connection makes a full handshake.
    pub fn unverified_without_resumption() -> TlsClient {
        TlsClient::without_verification(Resumption::disabled())
    }

    fn without_verification(resumption: Resumption) -> TlsClient {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(NoServerVerification(provider)))
            .with_no_client_auth();
        config.resumption = resumption;
        TlsClient(TlsConnector::from(Arc::new(config)))
    }

    /// Performs the handshake. `name` is the server's name or address.
    pub(crate) async fn handshake(&self, stream: TcpStream, name: &str) -> io::Result<ClientTlsStream> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// Accepts every certificate, but checks that the server has its key.
#[derive(Debug)]
struct NoServerVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoServerVerification {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
