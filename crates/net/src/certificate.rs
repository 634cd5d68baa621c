//! A certificate with its key, read from PEM files: what it is for, how long it is valid, and whether the key is its own.
//!
//! Everything is looked at before anything is used: a [`Certificate`] is one that a server can present. Whether a client
//! believes it is the client's business, and that it has expired is no error here but a [`Doubt`]: a server with an old
//! certificate still encrypts.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// A file that is longer is no certificate and no key.
const FILE_OCTETS_MAX: u64 = 1 << 20;

/// Where a certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM: the server's own certificate first, then those that lead to its authority.
    pub chain: PathBuf,
    /// PEM: its private key (PKCS #8, PKCS #1 or SEC 1), not encrypted.
    pub key: PathBuf,
    /// For which names (SNI) it is presented, in lower case and A-labels; `*.example.org` is for all names with one
    /// label more. None: those in the certificate.
    pub names: Vec<Box<str>>,
}

/// One that can be presented.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub(crate) signer: Arc<CertifiedKey>,
    names: Vec<Box<str>>,
    not_before: SystemTime,
    not_after: SystemTime,
}

/// What clients will not like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// Its last moment is over.
    #[error("has expired")]
    Expired,
    /// Its first moment is still to come.
    #[error("is not valid yet")]
    NotYetValid,
}

/// Why a certificate cannot be presented.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
        /// It is the one of the key.
        is_key: bool,
    },
    /// The file of the chain has no certificate, or not a sound one.
    #[error("{} has no sound certificate: {why}", path.display())]
    NoCertificate {
        /// Which.
        path: PathBuf,
        /// In the words of whoever read it.
        why: String,
    },
    /// The file of the key has none, or not one that can sign.
    #[error("{} has no usable private key: {why}", path.display())]
    NoKey {
        /// Which.
        path: PathBuf,
        /// In the words of whoever read it. Nothing of the key is in them.
        why: String,
    },
    /// Certificate and key are not of one another.
    #[error("the key in {} does not fit the certificate in {}", key.display(), chain.display())]
    Mismatch {
        /// The file of the chain.
        chain: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
}

impl CertificateError {
    /// Whether it is the key's file that should be looked at, and not the chain's.
    pub fn is_of_key(&self) -> bool {
        match self {
            CertificateError::Unreadable { is_key, .. } => *is_key,
            CertificateError::NoCertificate { .. } => false,
            CertificateError::NoKey { .. } | CertificateError::Mismatch { .. } => true,
        }
    }
}

impl Certificate {
    /// Reads and checks it. Waits for the disk.
    pub fn load(files: &CertificateFiles) -> Result<Certificate, CertificateError> {
        let no_certificate = |why: String| CertificateError::NoCertificate { path: files.chain.clone(), why };
        let no_key = |why: String| CertificateError::NoKey { path: files.key.clone(), why };
        let chain = CertificateDer::pem_slice_iter(&read(&files.chain, false)?).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| no_certificate(error.to_string()))?;
        let own = chain.first().ok_or_else(|| no_certificate("there is none in it".into()))?;
        let own = x509_cert::Certificate::from_der(own).map_err(|error| no_certificate(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key, true)?).map_err(|error| no_key(error.to_string()))?;
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(key);
        let signer = CertifiedKey::new(chain, key.map_err(|error| no_key(error.to_string()))?);
        match signer.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(CertificateError::Mismatch { chain: files.chain.clone(), key: files.key.clone() });
            }
            Err(error) => return Err(no_certificate(error.to_string())),
        }
        let validity = own.tbs_certificate.validity;
        Ok(Certificate {
            signer: Arc::new(signer),
            names: if files.names.is_empty() { dns_names(&own) } else { files.names.clone() },
            not_before: validity.not_before.to_system_time(),
            not_after: validity.not_after.to_system_time(),
        })
    }

    /// For which names it is presented.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// Its last moment.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// What is the matter with it at `now`.
    pub fn doubt(&self, now: SystemTime) -> Option<Doubt> {
        if now > self.not_after {
            Some(Doubt::Expired)
        } else if now < self.not_before {
            Some(Doubt::NotYetValid)
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
        _ => Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB"))),
    }
}

/// The names of hosts among the subject's alternative names (RFC 5280 section 4.2.1.6). The common name is none of them
/// (RFC 9525 section 2).
fn dns_names(certificate: &x509_cert::Certificate) -> Vec<Box<str>> {
    let alternatives = certificate.tbs_certificate.get::<SubjectAltName>().ok().flatten();
    let names = alternatives.map(|(_, SubjectAltName(names))| names).unwrap_or_default();
    let name = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase().into_boxed_str()),
        _ => None,
    };
    names.into_iter().filter_map(name).collect()
}
