//! A certificate chain and its key, loaded from PEM files: names, validity, and whether the key
//! matches.
//!
//! Everything is checked before use: a server can present any [`Certificate`]. Whether clients
//! trust it is up to them. An expired certificate is not an error but a [`CertificateWarning`]: a
//! server with an expired certificate still encrypts. A certificate can also be made in memory: the
//! placeholder for one that has not been issued yet.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// A longer file is neither a certificate nor a key.
const FILE_OCTETS_MAX: u64 = 1 << 20;

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM: the server certificate first, then the intermediate certificates.
    pub chain: PathBuf,
    /// PEM: the private key (PKCS #8, PKCS #1 or SEC 1), not encrypted.
    pub key: PathBuf,
    /// The names (SNI) it is presented for, in lower case and as A-labels; `*.example.org` matches
    /// all names with one more label. Empty: the names in the certificate.
    pub names: Vec<Box<str>>,
}

/// A certificate that a server can present.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub(crate) signer: Arc<CertifiedKey>,
    names: Vec<Box<str>>,
    issuer: Box<str>,
    not_before: SystemTime,
    not_after: SystemTime,
    is_placeholder: bool,
}

/// A problem that clients will notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateWarning {
    /// It has expired.
    #[error("has expired")]
    Expired,
    /// It is not valid yet.
    #[error("is not valid yet")]
    NotYetValid,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("unable to read {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
        /// It is the key file.
        is_key: bool,
    },
    /// The chain file contains no valid certificate.
    #[error("no valid certificate in {}: {why}", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        why: String,
    },
    /// The key file contains no key that can sign.
    #[error("no usable private key in {}: {why}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The parser's error; never contains parts of the key.
        why: String,
    },
    /// Certificate and key do not match.
    #[error("the key in {} does not match the certificate in {}", key.display(), chain.display())]
    Mismatch {
        /// The chain file.
        chain: PathBuf,
        /// The key file.
        key: PathBuf,
    },
}

/// What is wrong with a chain and its key.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The chain has no valid certificate.
    #[error("no valid certificate: {0}")]
    Certificate(String),
    /// The key cannot sign.
    #[error("no usable private key: {0}")]
    Key(String),
    /// Certificate and key do not match.
    #[error("the key does not match the certificate")]
    Mismatch,
}

impl CertificateError {
    fn in_files(files: &CertificateFiles, error: ChainError) -> CertificateError {
        let CertificateFiles { chain, key, .. } = files.clone();
        match error {
            ChainError::Certificate(why) => CertificateError::NoCertificate { path: chain, why },
            ChainError::Key(why) => CertificateError::NoKey { path: key, why },
            ChainError::Mismatch => CertificateError::Mismatch { chain, key },
        }
    }

    /// Whether the key file should be checked, rather than the chain file.
    pub fn concerns_key_file(&self) -> bool {
        match self {
            CertificateError::Unreadable { is_key, .. } => *is_key,
            CertificateError::NoCertificate { .. } => false,
            CertificateError::NoKey { .. } | CertificateError::Mismatch { .. } => true,
        }
    }
}

impl Certificate {
    /// Loads and checks a certificate. Blocks on disk I/O.
    pub fn load(files: &CertificateFiles) -> Result<Certificate, CertificateError> {
        let in_files = |error| CertificateError::in_files(files, error);
        let chain = CertificateDer::pem_slice_iter(&read(&files.chain, false)?).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| in_files(ChainError::Certificate(error.to_string())))?;
        if chain.is_empty() {
            return Err(in_files(ChainError::Certificate("the file contains none".into())));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key, true)?);
        let key = key.map_err(|error| in_files(ChainError::Key(error.to_string())))?;
        let loaded = Certificate::from_der(chain, key).map_err(in_files)?;
        match files.names.is_empty() {
            true => Ok(loaded),
            false => Ok(Certificate { names: files.names.clone(), ..loaded }),
        }
    }

    /// Checks a certificate with its chain, for the names in it.
    pub fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Certificate, ChainError> {
        let no_certificate = ChainError::Certificate;
        let own = chain.first().ok_or_else(|| no_certificate("the chain is empty".into()))?;
        let own = x509_cert::Certificate::from_der(own).map_err(|error| no_certificate(error.to_string()))?;
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(key);
        let signer = CertifiedKey::new(chain, key.map_err(|error| ChainError::Key(error.to_string()))?);
        match signer.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => return Err(ChainError::Mismatch),
            Err(error) => return Err(no_certificate(error.to_string())),
        }
        let validity = own.tbs_certificate.validity;
        Ok(Certificate {
            signer: Arc::new(signer),
            names: dns_names(&own),
            issuer: own.tbs_certificate.issuer.to_string().into(),
            not_before: validity.not_before.to_system_time(),
            not_after: validity.not_after.to_system_time(),
            is_placeholder: false,
        })
    }

    /// This certificate as a placeholder for one that does not exist yet.
    pub fn into_placeholder(self) -> Certificate {
        Certificate { is_placeholder: true, ..self }
    }

    /// Whether it stands for one that does not exist yet. No client trusts it.
    pub fn is_placeholder(&self) -> bool {
        self.is_placeholder
    }

    /// The names it is presented for.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The SHA-256 digest of its public key with the algorithm, as in a TLSA record 3 1 1 (RFC 6698
    /// section 2.1). None: the certificate is of a form that clients of DANE cannot use.
    pub fn public_key_sha256(&self) -> Option<[u8; 32]> {
        let own = ParsedCertificate::try_from(self.signer.cert.first()?).ok()?;
        Some(Sha256::digest(&*own.subject_public_key_info()).into())
    }

    /// Who issued it (RFC 4514).
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The start of its validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// The end of its validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The problem that clients will see at time `now`, if any.
    pub fn warning(&self, now: SystemTime) -> Option<CertificateWarning> {
        if now > self.not_after {
            Some(CertificateWarning::Expired)
        } else if now < self.not_before {
            Some(CertificateWarning::NotYetValid)
        } else {
            None
        }
    }
}

fn read(path: &Path, is_key: bool) -> Result<Vec<u8>, CertificateError> {
    let mut octets = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_OCTETS_MAX + 1).read_to_end(&mut octets));
    let unreadable = |error| CertificateError::Unreadable { path: path.to_owned(), error, is_key };
    match read.map_err(unreadable)? as u64 {
        0..=FILE_OCTETS_MAX => Ok(octets),
        _ => Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, "the file is larger than 1 MiB"))),
    }
}

/// The DNS names in the subject alternative name (RFC 5280 section 4.2.1.6). The common name is not
/// used (RFC 9525 section 2).
fn dns_names(certificate: &x509_cert::Certificate) -> Vec<Box<str>> {
    let alternatives = certificate.tbs_certificate.get::<SubjectAltName>().ok().flatten();
    let names = alternatives.map(|(_, SubjectAltName(names))| names).unwrap_or_default();
    let name = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase().into_boxed_str()),
        _ => None,
    };
    names.into_iter().filter_map(name).collect()
}
