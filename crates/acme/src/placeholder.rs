//! Certificates that the server signs itself: the placeholder until the first one is issued, and the
//! answer to a TLS-ALPN-01 challenge (RFC 8737 section 3).

use net::{Certificate, ChainError};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::settings::CertificateNames;

/// Who a placeholder says that it is.
const COMMON_NAME: &str = "Mailrace placeholder";

/// A certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlaceholderError {
    /// It cannot be signed, or has an invalid name.
    #[error("unable to make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("unable to use a certificate of our own: {0}")]
    Use(#[from] ChainError),
}

/// A certificate with its key.
type SelfSigned = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// What is presented for these names until their certificate is there.
///
/// # Errors
///
/// A name is invalid.
pub fn placeholder(names: &CertificateNames) -> Result<Certificate, PlaceholderError> {
    let mut params = CertificateParams::new(names.iter().map(|name| name.to_string()).collect::<Vec<_>>())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, COMMON_NAME);
    let (certificate, key) = self_signed(&params)?;
    Ok(Certificate::from_der(vec![certificate], key)?.into_placeholder())
}

/// The answer to a challenge for this name; `digest` is that of the key authorization.
pub(crate) fn challenge_certificate(name: &str, digest: &[u8]) -> Result<SelfSigned, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    self_signed(&params)
}

fn self_signed(params: &CertificateParams) -> Result<SelfSigned, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.der().clone();
    Ok((certificate, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_has_the_names_and_says_what_it_is() {
        let made = placeholder(&["mx.example.org".into(), "mail.example.org".into()].into()).unwrap();
        assert!(made.is_placeholder() && made.issuer().contains(COMMON_NAME));
        assert_eq!(made.names(), ["mx.example.org".into(), "mail.example.org".into()]);
    }

    /// The extension is critical, so that nobody takes the certificate for a usual one.
    #[test]
    fn the_answer_to_a_challenge_has_the_digest_and_is_no_certificate_to_others() {
        let digest: [u8; 32] = std::array::from_fn(|index| index as u8);
        let (certificate, key) = challenge_certificate("mx.example.org", &digest).unwrap();
        assert!(certificate.windows(32).any(|window| window == digest));
        assert!(Certificate::from_der(vec![certificate], key).is_err());
    }
}
