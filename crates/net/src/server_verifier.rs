//! Decides whether the certificate of a server is good enough. Whatever it demands, the server must
//! prove that it has the key of its certificate.
//!
//! | demanded | chain | names | dates |
//! |---|---|---|---|
//! | nothing | - | - | - |
//! | names | to a trusted authority | one of them (RFC 9525) | valid now |
//! | TLSA records, DANE-TA(2) | to the certificate that a record names | one of the policy's | valid now |
//! | TLSA records, DANE-EE(3) | - | - | - |
//!
//! The common name of a subject never counts (RFC 9525 section 2).

use std::sync::Arc;

use mail::DanePolicy;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::certificate_chain::{PROVIDER, verify_named};
use crate::dane;

/// Verifies servers.
#[derive(Debug)]
pub(crate) enum ServerVerifier {
    /// Accepts every certificate.
    Unverified,
    /// Demands a trusted authority and one of the names.
    Named { roots: Arc<RootCertStore>, names: Vec<Box<str>> },
    /// Demands what TLSA records say.
    Dane(Arc<DanePolicy>),
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self {
            ServerVerifier::Unverified => {}
            ServerVerifier::Named { roots, names } => verify_named(end_entity, intermediates, roots, names, now)?,
            ServerVerifier::Dane(policy) => dane::verify(policy, end_entity, intermediates, now)?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &PROVIDER.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &PROVIDER.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER.signature_verification_algorithms.supported_schemes()
    }
}
