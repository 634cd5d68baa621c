//! Certificates for tests, and a client that accepts them all.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use net::CertificateFiles;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio_rustls::TlsConnector;

/// Writes a self-signed certificate for these names.
pub(crate) fn issue(
    folder: &Path,
    name: &str,
    hosts: &[&str],
    change: impl FnOnce(&mut CertificateParams),
) -> CertificateFiles {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    change(&mut params);
    let pair = KeyPair::generate().unwrap();
    let files = CertificateFiles {
        chain: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
        names: Vec::new(),
    };
    fs::write(&files.chain, params.self_signed(&pair).unwrap().pem()).unwrap();
    fs::write(&files.key, pair.serialize_pem()).unwrap();
    files
}

/// Accepts every certificate and signature.
#[derive(Debug)]
pub(crate) struct AcceptAnyCertificate;

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A client with these versions of TLS.
pub(crate) fn connector(versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsConnector {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}
