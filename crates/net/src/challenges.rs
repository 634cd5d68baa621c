//! The answers to a certificate authority that checks who controls a name (ACME, RFC 8555 section 8).
//!
//! | challenge | who answers |
//! |---|---|
//! | HTTP-01 (RFC 8555 section 8.3) | listeners of HTTP, below [`HTTP_CHALLENGE_PATH`] |
//! | TLS-ALPN-01 (RFC 8737) | [`TlsServer`](crate::TlsServer), to clients that offer nothing but `acme-tls/1` |
//!
//! An answer is there from the moment it is added until its [`PendingChallenge`] is dropped. At most
//! [`CHALLENGES_MAX`] are there at a time; without any, neither costs anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::RwLock;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Where the authority asks by HTTP; the token follows.
pub const HTTP_CHALLENGE_PATH: &[u8] = b"/.well-known/acme-challenge/";
/// The protocol of the authority's TLS handshakes (RFC 8737 section 6.2).
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";
/// Answers at a time. An order for the most names that authorities accept needs a hundred.
pub const CHALLENGES_MAX: usize = 256;

/// Why an answer cannot be added.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChallengeError {
    /// There are [`CHALLENGES_MAX`] answers already.
    #[error("too many challenges at a time: at most {CHALLENGES_MAX}")]
    TooMany,
    /// The key of the certificate cannot sign.
    #[error("unable to answer a challenge: {0}")]
    Key(rustls::Error),
}

/// The answers that are there now.
#[derive(Debug, Default)]
pub struct ChallengeStore {
    answers: RwLock<HashMap<ChallengeKey, ChallengeAnswer>>,
    /// How many of them are TLS handshakes.
    tls_answers: AtomicUsize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ChallengeKey {
    HttpToken(Box<str>),
    TlsName(Box<str>),
}

#[derive(Clone, Debug)]
enum ChallengeAnswer {
    /// The key authorization (RFC 8555 section 8.1).
    Http(Arc<str>),
    Tls(Arc<CertifiedKey>),
}

/// Takes the answer back when it is dropped.
#[derive(Debug)]
pub struct PendingChallenge {
    store: Arc<ChallengeStore>,
    key: ChallengeKey,
}

impl ChallengeStore {
    /// Answers requests for this token with the key authorization.
    ///
    /// # Errors
    ///
    /// There are too many answers.
    pub fn add_http(
        self: &Arc<Self>,
        token: &str,
        key_authorization: &str,
    ) -> Result<PendingChallenge, ChallengeError> {
        self.add(ChallengeKey::HttpToken(token.into()), ChallengeAnswer::Http(key_authorization.into()))
    }

    /// Presents this certificate in handshakes for the name, which is in lower case. Only an authority
    /// can read the certificate: it has a critical extension (RFC 8737 section 3).
    ///
    /// # Errors
    ///
    /// There are too many answers, or the key cannot sign.
    pub fn add_tls(
        self: &Arc<Self>,
        name: &str,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<PendingChallenge, ChallengeError> {
        let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).map_err(ChallengeError::Key)?;
        let signer = Arc::new(CertifiedKey::new(vec![certificate], key));
        self.add(ChallengeKey::TlsName(name.into()), ChallengeAnswer::Tls(signer))
    }

    /// The key authorization for this path of a request.
    pub fn http_answer(&self, path: &[u8]) -> Option<Arc<str>> {
        let token = str::from_utf8(path.strip_prefix(HTTP_CHALLENGE_PATH)?).ok()?;
        match self.answers.read().get(&ChallengeKey::HttpToken(token.into()))? {
            ChallengeAnswer::Http(key_authorization) => Some(key_authorization.clone()),
            ChallengeAnswer::Tls(_) => None,
        }
    }

    /// Whether an authority may ask by TLS now.
    pub(crate) fn expects_tls(&self) -> bool {
        self.tls_answers.load(Relaxed) > 0
    }

    fn add(self: &Arc<Self>, key: ChallengeKey, answer: ChallengeAnswer) -> Result<PendingChallenge, ChallengeError> {
        let mut answers = self.answers.write();
        if answers.len() >= CHALLENGES_MAX && !answers.contains_key(&key) {
            return Err(ChallengeError::TooMany);
        }
        answers.insert(key.clone(), answer);
        self.count_tls(&answers);
        Ok(PendingChallenge { store: self.clone(), key })
    }

    fn count_tls(&self, answers: &HashMap<ChallengeKey, ChallengeAnswer>) {
        let count = answers.values().filter(|answer| matches!(answer, ChallengeAnswer::Tls(_))).count();
        self.tls_answers.store(count, Relaxed);
    }
}

impl Drop for PendingChallenge {
    fn drop(&mut self) {
        let mut answers = self.store.answers.write();
        answers.remove(&self.key);
        self.store.count_tls(&answers);
    }
}

/// Presents the certificates of challenges, and no others.
#[derive(Debug)]
pub(crate) struct ChallengeResolver(pub(crate) Arc<ChallengeStore>);

impl ResolvesServerCert for ChallengeResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        match self.0.answers.read().get(&ChallengeKey::TlsName(name.into()))? {
            ChallengeAnswer::Tls(signer) => Some(signer.clone()),
            ChallengeAnswer::Http(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_there_until_its_challenge_is_dropped() {
        let store = Arc::new(ChallengeStore::default());
        let pending = store.add_http("abc_-1", "abc_-1.thumb").unwrap();
        assert_eq!(store.http_answer(b"/.well-known/acme-challenge/abc_-1").as_deref(), Some("abc_-1.thumb"));
        for path in ["/.well-known/acme-challenge/abc", "/.well-known/acme-challenge/", "/abc_-1", "/", ""] {
            assert_eq!(store.http_answer(path.as_bytes()), None, "{path}");
        }
        assert_eq!(store.http_answer(b"/.well-known/acme-challenge/\xff"), None);
        assert!(!store.expects_tls());
        drop(pending);
        assert_eq!(store.http_answer(b"/.well-known/acme-challenge/abc_-1"), None);
    }

    #[test]
    fn the_number_of_answers_is_limited() {
        let store = Arc::new(ChallengeStore::default());
        let mut pending: Vec<_> =
            (0..CHALLENGES_MAX).map(|number| store.add_http(&number.to_string(), "x").unwrap()).collect();
        assert_eq!(store.add_http("one more", "x").unwrap_err(), ChallengeError::TooMany);
        pending.pop();
        assert!(store.add_http("one more", "x").is_ok());
    }
}
