//! TLS by rustls for the connections that we open; `acceptor` has it for those that come to us.
//!
//! A handshake that fails is an error that says why, in rustls's words; the connection is then of no more use. So far
//! every certificate is believed ([`Trust::anyone`]): that is what a measurement wants, and no protection against whoever
//! stands between.

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

/// A secured connection.
pub(crate) type Secured = TlsStream<TcpStream>;

/// Whose certificates are believed.
#[derive(Clone)]
pub struct Trust(TlsConnector);

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trust")
    }
}

impl Trust {
    /// Every certificate is: encryption without knowing whose (RFC 7435). It hides from those who listen and from
    /// nobody who stands between. Sessions are resumed where the server offers it (RFC 8446 section 2.2).
    pub fn anyone() -> Trust {
        Trust::believing(Resumption::default())
    }

    /// The same, but each connection makes a full handshake.
    pub fn anyone_without_resumption() -> Trust {
        Trust::believing(Resumption::disabled())
    }

    fn believing(resumption: Resumption) -> Trust {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has the suites of TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth();
        config.resumption = resumption;
        Trust(TlsConnector::from(Arc::new(config)))
    }

    /// The handshake. `name` is the server's name or address.
    pub(crate) async fn secure(&self, stream: TcpStream, name: &str) -> io::Result<Secured> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// Believes every certificate, but checks that the peer has its key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
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
