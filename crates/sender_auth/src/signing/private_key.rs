//! Private keys for signatures (RFC 6376 section 3.3, RFC 8463): read from files, made, and used.
//!
//! | in the file | key |
//! |---|---|
//! | PEM, `PRIVATE KEY` (PKCS#8) | RSA or Ed25519 |
//! | PEM, `RSA PRIVATE KEY` (PKCS#1) | RSA |
//! | 32 octets in base64 | the seed of an Ed25519 key, as in RFC 8463 appendix A.2 |
//!
//! RSA keys have 2048 to 4096 bits: verifiers need not take larger ones (RFC 8301 section 3.2), and
//! the library signs with no smaller ones, which receivers distrust anyway.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use aws_lc_rs::digest::Digest;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::error::{KeyRejected, Unspecified};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

/// A larger file is no key.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// RFC 8301 section 3.2.
const RSA_BITS_MAX: usize = 4096;
const ED25519_SEED_BYTES: usize = 32;
/// RFC 7468 section 2.
const PEM_LINE_CHARS: usize = 64;

/// An algorithm of signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyAlgorithm {
    /// `rsa-sha256`.
    Rsa,
    /// `ed25519-sha256`.
    Ed25519,
}

impl KeyAlgorithm {
    /// The name in the `k=` tag of a key record.
    pub fn key_type(self) -> &'static str {
        match self {
            KeyAlgorithm::Rsa => "rsa",
            KeyAlgorithm::Ed25519 => "ed25519",
        }
    }

    /// The name in the `a=` tag of a signature.
    pub fn signature_name(self) -> &'static str {
        match self {
            KeyAlgorithm::Rsa => "rsa-sha256",
            KeyAlgorithm::Ed25519 => "ed25519-sha256",
        }
    }
}

/// A size of a new RSA key, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RsaBits {
    /// 2048.
    B2048,
    /// 3072.
    B3072,
    /// 4096.
    B4096,
}

/// A private key.
#[derive(Debug)]
pub struct PrivateKey(KeyKind);

#[derive(Debug)]
enum KeyKind {
    Rsa(RsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// Why a file gives no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("unable to read the key: {0}")]
    Unreadable(#[from] io::Error),
    /// It is too large to be a key.
    #[error("the file has more than {FILE_BYTES_MAX} bytes; expected a private key in PEM")]
    FileTooLarge,
    /// It is encrypted.
    #[error("the private key is encrypted; expected one without a passphrase")]
    Encrypted,
    /// It has no private key.
    #[error("no private key found; expected PEM with PRIVATE KEY or RSA PRIVATE KEY")]
    NotFound,
    /// The key has another type, or is damaged.
    #[error("the private key is damaged, or neither RSA nor Ed25519")]
    Unusable,
    /// An RSA key that proves nothing (RFC 8301 section 3.2).
    #[error("the RSA key is too short; expected at least 2048 bits")]
    TooShort,
    /// An RSA key that verifiers need not take.
    #[error("the RSA key is too long; expected at most {RSA_BITS_MAX} bits")]
    TooLong,
}

/// A key cannot be made, or a signature: the library gives no reason.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the cryptographic library failed")]
pub struct CryptoError;

impl From<Unspecified> for CryptoError {
    fn from(_: Unspecified) -> CryptoError {
        CryptoError
    }
}

impl PrivateKey {
    /// Reads a key from a file.
    pub fn load(path: &Path) -> Result<PrivateKey, KeyError> {
        let mut bytes = Vec::new();
        File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > FILE_BYTES_MAX {
            true => Err(KeyError::FileTooLarge),
            false => PrivateKey::parse(&bytes),
        }
    }

    /// Parses the content of a file.
    pub fn parse(file: &[u8]) -> Result<PrivateKey, KeyError> {
        if let Some(seed) = decode_seed(file) {
            let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| KeyError::Unusable)?;
            return Ok(PrivateKey(KeyKind::Ed25519(pair)));
        }
        let is_encrypted = || memchr::memmem::find(file, b"BEGIN ENCRYPTED PRIVATE KEY").is_some();
        match PrivateKeyDer::from_pem_slice(file) {
            Ok(PrivateKeyDer::Pkcs1(der)) => PrivateKey::from_rsa(RsaKeyPair::from_der(der.secret_pkcs1_der())),
            Ok(PrivateKeyDer::Pkcs8(der)) => PrivateKey::from_pkcs8(der.secret_pkcs8_der()),
            Ok(_) => Err(KeyError::Unusable),
            Err(_) if is_encrypted() => Err(KeyError::Encrypted),
            Err(_) => Err(KeyError::NotFound),
        }
    }

    fn from_pkcs8(der: &[u8]) -> Result<PrivateKey, KeyError> {
        match Ed25519KeyPair::from_pkcs8(der) {
            Ok(pair) => Ok(PrivateKey(KeyKind::Ed25519(pair))),
            Err(_) => PrivateKey::from_rsa(RsaKeyPair::from_pkcs8(der)),
        }
    }

    fn from_rsa(read: Result<RsaKeyPair, KeyRejected>) -> Result<PrivateKey, KeyError> {
        match read {
            Ok(pair) if pair.public_modulus_len() * 8 > RSA_BITS_MAX => Err(KeyError::TooLong),
            Ok(pair) => Ok(PrivateKey(KeyKind::Rsa(pair))),
            // The library tells its reasons apart only by their text.
            Err(error) => Err(match error.to_string().as_str() {
                "TooSmall" => KeyError::TooShort,
                "TooLarge" => KeyError::TooLong,
                _ => KeyError::Unusable,
            }),
        }
    }

    /// Makes a new RSA key. This takes up to seconds.
    pub fn generate_rsa(bits: RsaBits) -> Result<PrivateKey, CryptoError> {
        let size = match bits {
            RsaBits::B2048 => KeySize::Rsa2048,
            RsaBits::B3072 => KeySize::Rsa3072,
            RsaBits::B4096 => KeySize::Rsa4096,
        };
        Ok(PrivateKey(KeyKind::Rsa(RsaKeyPair::generate(size)?)))
    }

    /// Makes a new Ed25519 key.
    pub fn generate_ed25519() -> Result<PrivateKey, CryptoError> {
        Ok(PrivateKey(KeyKind::Ed25519(Ed25519KeyPair::generate()?)))
    }

    /// Its algorithm.
    pub fn algorithm(&self) -> KeyAlgorithm {
        match &self.0 {
            KeyKind::Rsa(_) => KeyAlgorithm::Rsa,
            KeyKind::Ed25519(_) => KeyAlgorithm::Ed25519,
        }
    }

    /// The key as PEM, PKCS#8 version 1, which other programs read too.
    pub fn to_pem(&self) -> Result<String, CryptoError> {
        let der: Pkcs8V1Der<'_> = match &self.0 {
            KeyKind::Rsa(pair) => pair.as_der()?,
            KeyKind::Ed25519(pair) => pair.as_der()?,
        };
        let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
        for line in BASE64_STANDARD.encode(der.as_ref()).as_bytes().chunks(PEM_LINE_CHARS) {
            pem.extend(line.iter().map(|octet| char::from(*octet)));
            pem.push('\n');
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        Ok(pem)
    }

    /// The public key as in the `p=` tag of a key record, before base64: a SubjectPublicKeyInfo for
    /// RSA (RFC 6376 section 3.6.1), 32 octets for Ed25519 (RFC 8463 section 4).
    pub fn public_key(&self) -> Result<Vec<u8>, CryptoError> {
        match &self.0 {
            KeyKind::Rsa(pair) => {
                let der: PublicKeyX509Der<'_> = pair.public_key().as_der()?;
                Ok(der.as_ref().to_vec())
            }
            KeyKind::Ed25519(pair) => Ok(pair.public_key().as_ref().to_vec()),
        }
    }

    /// Signs a SHA-256 digest (RFC 6376 section 3.3.1, RFC 8463 section 3).
    pub fn sign(&self, digest: &Digest) -> Result<Vec<u8>, CryptoError> {
        match &self.0 {
            KeyKind::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign_digest(&RSA_PKCS1_SHA256, digest, &mut signature)?;
                Ok(signature)
            }
            KeyKind::Ed25519(pair) => Ok(pair.try_sign(digest.as_ref())?.as_ref().to_vec()),
        }
    }
}

/// The seed, if the file has one in base64 and nothing else.
fn decode_seed(file: &[u8]) -> Option<Vec<u8>> {
    let seed = BASE64_STANDARD.decode(file.trim_ascii()).ok()?;
    (seed.len() == ED25519_SEED_BYTES).then_some(seed)
}
