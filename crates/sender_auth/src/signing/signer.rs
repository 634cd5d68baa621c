//! Signs a message whose bytes are known: finds the keys of its author's domain, hashes, and makes a
//! DKIM-Signature field for each key. Hashing happens where the bytes are read; the key operations
//! have threads of their own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use filter::Field;
use mail::{Address, Timestamp};
use parking_lot::RwLock;

use super::key_ring::{KeyRing, KeysUnavailable, SigningDomain, SigningKey};
use super::private_key::{CryptoError, KeyAlgorithm};
use super::signature_field::{SignatureTags, UnsignedField};
use super::signed_fields::{SignedFields, TooManyFields};
use super::signing_threads::{JobError, SigningThreads, SigningThreadsConfig};
use crate::body_hash::{BodyHashRequest, BodyHasher, HASH_OCTETS};
use crate::canonical_form::CanonicalForm;
use crate::dmarc::author::author_address;
use crate::message_header::MessageHeader;

/// Signs messages.
pub struct Signer {
    /// Replaced as a whole.
    keys: RwLock<Arc<KeyRing>>,
    threads: SigningThreads,
    /// The time from `t=` to `x=`; None: signatures do not expire.
    expires_after: Option<Duration>,
    counters: Arc<SigningCounters>,
}

/// What was signed since the start.
#[derive(Debug, Default)]
pub struct SigningCounters {
    /// Signatures by RSA.
    pub rsa: AtomicU64,
    /// Signatures by Ed25519.
    pub ed25519: AtomicU64,
    /// Messages that could not be signed at the time, and were deferred.
    pub deferred: AtomicU64,
}

/// Why a message cannot be signed now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigningError {
    /// The keys cannot be found.
    #[error("cannot find the keys to sign with: {0}")]
    Keys(#[from] KeysUnavailable),
    /// Too many messages wait to be signed.
    #[error("too many messages wait to be signed")]
    Busy,
    /// The thread that was to sign has ended.
    #[error("a thread that signs has ended; restart the server")]
    ThreadEnded,
    /// The key operation failed.
    #[error("the signature cannot be made: the cryptographic library failed")]
    Crypto,
}

impl From<JobError> for SigningError {
    fn from(error: JobError) -> SigningError {
        match error {
            JobError::LineFull => SigningError::Busy,
            JobError::ThreadEnded => SigningError::ThreadEnded,
        }
    }
}

impl From<CryptoError> for SigningError {
    fn from(_: CryptoError) -> SigningError {
        SigningError::Crypto
    }
}

/// A message that is to be signed, before its body is read.
pub(crate) struct MessageToSign<'a> {
    author: Address,
    domain: SigningDomain,
    fields: SignedFields<'a>,
}

impl MessageToSign<'_> {
    /// The address in From.
    pub(crate) fn author(&self) -> &Address {
        &self.author
    }
}

impl Signer {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    pub fn start(
        keys: KeyRing,
        threads: &SigningThreadsConfig,
        expires_after: Option<Duration>,
        counters: Arc<SigningCounters>,
    ) -> io::Result<Signer> {
        Ok(Signer {
            keys: RwLock::new(Arc::new(keys)),
            threads: SigningThreads::start(threads)?,
            expires_after,
            counters,
        })
    }

    /// Replaces the keys. Returns whether those of the configuration have changed.
    pub fn replace_keys(&self, keys: KeyRing) -> bool {
        let mut in_use = self.keys.write();
        let has_changed = !in_use.has_same_configured(&keys);
        *in_use = Arc::new(keys);
        has_changed
    }

    /// What was signed.
    pub fn counters(&self) -> &Arc<SigningCounters> {
        &self.counters
    }

    /// The keys for mail of an author in this domain, which has A-labels; None: there are none.
    pub async fn keys_of(&self, author_domain: &str) -> Result<Option<SigningDomain>, SigningError> {
        let keys = self.keys.read().clone();
        Ok(keys.find(author_domain).await?)
    }

    /// Whether a message with this header is signed: it has one author, whose domain has keys. The
    /// header is that of the whole message.
    pub(crate) async fn begin<'a>(&self, header: &'a MessageHeader) -> Result<Option<MessageToSign<'a>>, SigningError> {
        let Ok(author) = author_address(header) else { return Ok(None) };
        let Ok(fields) = SignedFields::select(header).map_err(|TooManyFields| ()) else { return Ok(None) };
        let domain = self.keys_of(author.domain()).await?;
        Ok(domain.map(|domain| MessageToSign { author, domain, fields }))
    }

    /// The fields to put before the message: a signature for each key of the domain.
    pub(crate) async fn sign(
        &self,
        message: &MessageToSign<'_>,
        body_hash: &[u8; HASH_OCTETS],
        now: Timestamp,
    ) -> Result<Vec<Field>, SigningError> {
        let MessageToSign { domain: SigningDomain { domain, keys }, fields, .. } = message;
        let mut header_hash = Context::new(&SHA256);
        fields.hash(&mut header_hash);
        let expires_at = self.expires_after.map(|after| Timestamp(now.millis() + after.as_millis() as u64));
        let unsigned = |SigningKey { selector, key }: &SigningKey| {
            UnsignedField::new(SignatureTags {
                algorithm: key.algorithm(),
                domain,
                selector,
                signed_at: now,
                expires_at,
                fields: &mut fields.names(),
                body_hash,
            })
        };
        let jobs: Vec<_> = keys.iter().map(|key| (key.key.clone(), unsigned(key))).collect();
        let signed = self.threads.run(move || {
            let sign = |(key, field): (Arc<_>, UnsignedField)| sign_field(&key, field, header_hash.clone());
            jobs.into_iter().map(sign).collect::<Result<Vec<_>, _>>()
        });
        let signed = signed.await??;
        keys.iter().for_each(|key| self.counters.count(key.key.algorithm()));
        Ok(signed)
    }

    /// Signs a message that is in memory, such as a notice of this server. Empty: no key is for it.
    pub async fn sign_bytes(&self, message: &[u8], now: Timestamp) -> Result<Vec<Field>, SigningError> {
        let header_len = filter::header::header_len(message, true).unwrap_or(message.len());
        let (header, rest) = message.split_at(header_len);
        let header = MessageHeader::parse(header.to_vec());
        let Some(to_sign) = self.begin(&header).await? else { return Ok(Vec::new()) };
        let mut hasher = RelaxedBodyHasher::default();
        hasher.update(rest.strip_prefix(b"\r\n").unwrap_or(rest));
        self.sign(&to_sign, &hasher.finish(), now).await
    }
}

fn sign_field(key: &super::PrivateKey, field: UnsignedField, mut header_hash: Context) -> Result<Field, CryptoError> {
    header_hash.update(&field.canonical());
    let signature = key.sign(&header_hash.finish())?;
    field.with_signature(&signature).ok_or(CryptoError)
}

impl SigningCounters {
    fn count(&self, algorithm: KeyAlgorithm) {
        let counter = match algorithm {
            KeyAlgorithm::Rsa => &self.rsa,
            KeyAlgorithm::Ed25519 => &self.ed25519,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Hashes a body in relaxed form.
pub(crate) struct RelaxedBodyHasher(BodyHasher);

const RELAXED: BodyHashRequest = BodyHashRequest { form: CanonicalForm::Relaxed, limit: None };

impl Default for RelaxedBodyHasher {
    fn default() -> Self {
        let mut hasher = BodyHasher::default();
        hasher.request(RELAXED);
        RelaxedBodyHasher(hasher)
    }
}

impl RelaxedBodyHasher {
    /// Takes the next bytes of the body.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of the whole body.
    pub(crate) fn finish(self) -> [u8; HASH_OCTETS] {
        self.0.finish().hash(RELAXED).expect("this hash was requested").digest
    }
}
