//! All signatures of a message, DKIM and ARC together: their keys are looked up at once, the body is
//! read once, and then the keys are used.
//!
//! The body is hashed where it is, in pieces of [`PIECE_OCTETS`] after which other sessions have
//! their turn: to hand it to another thread would cost as much as the hash. The same is true of one or
//! two signatures with keys of common sizes. More than that is computed on a blocking thread, of which
//! there are few.

mod verification;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use filter::CheckedMessage;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::DnsLookup;
use crate::arc::{ArcCheck, ArcSet};
use crate::body_hash::{BodyHashRequest, BodyHasher, BodyHashes};
use crate::counters::{ReachedLimit, VerdictCounters};
use crate::dkim::key::{self, KeyRecord};
use crate::dkim::signature::SealSignature;
use crate::dkim::{DkimCheck, DkimResult, FoundSignature, Rejection};
use crate::dmarc::{DomainState, TOO_LARGE};
use crate::message_header::MessageHeader;

use verification::{KeyOperations, OperationResults, SignatureVerification};

/// The bytes of a body that are hashed without a pause: a tenth of a millisecond.
const PIECE_OCTETS: usize = 64 * 1024;
/// No answer came in time.
const TOO_LATE: Rejection = Rejection::new(DkimResult::TempError, "no result in time");
const LATE_KEY: Rejection = Rejection::new(DkimResult::TempError, "no answer for the key in time");
const OVERSIZED: Rejection = Rejection::new(DkimResult::TempError, TOO_LARGE);
const UNREADABLE: Rejection = Rejection::new(DkimResult::TempError, "the message cannot be read");

/// The signatures of a message as they were read. None: not asked for.
#[derive(Default)]
pub(crate) struct FoundSignatures {
    /// Also how many there are beyond the limit.
    pub(crate) dkim: Option<(Vec<FoundSignature>, usize)>,
    /// The sets, or why they are no chain.
    pub(crate) chain: Option<Result<Vec<ArcSet>, &'static str>>,
}

/// The results. None: not asked for.
#[derive(Debug, Default)]
pub(crate) struct SignatureVerdicts {
    /// One for each signature that is checked, and the number of others.
    pub(crate) dkim: Option<(Vec<DkimCheck>, usize)>,
    pub(crate) arc: Option<ArcCheck>,
    /// Nothing was verified since the message is too large.
    pub(crate) is_oversized: bool,
}

impl SignatureVerdicts {
    /// The domains that have signed the message, or may have.
    pub(crate) fn signing_domains(&self) -> impl Iterator<Item = (Box<str>, DomainState)> {
        let unknown = if self.is_oversized { DomainState::Oversized } else { DomainState::Unanswered };
        self.dkim.iter().flat_map(|(checks, _)| checks).filter_map(move |check| {
            let domain = dns::to_ascii(check.label.domain.as_deref()?)?;
            match check.result {
                DkimResult::Pass => Some((domain, DomainState::Passed)),
                DkimResult::TempError => Some((domain, unknown)),
                _ => None,
            }
        })
    }
}

/// What a verification needs beside the message.
pub(crate) struct SignatureContext<'a> {
    pub(crate) dns: &'a dyn DnsLookup,
    /// One permit for each thread.
    pub(crate) threads: &'a Arc<Semaphore>,
    pub(crate) counters: &'a VerdictCounters,
    /// For each key. Before `deadline`, so that there is time to use the others.
    pub(crate) keys_deadline: Instant,
    pub(crate) deadline: Instant,
}

/// Keys by selector and domain.
type FoundKeys = HashMap<(Box<str>, Box<str>), Result<KeyRecord, Rejection>>;

impl FoundSignatures {
    /// Whether there is anything to verify.
    pub(crate) fn can_be_verified(&self) -> bool {
        let has_signature = self.dkim.iter().flat_map(|(found, _)| found).any(|found| found.signature.is_ok());
        has_signature || self.chain.iter().flatten().any(|sets| !sets.is_empty())
    }

    /// The results if nothing is looked up: this one for what would have to be.
    pub(crate) fn unverified(self, rejection: Rejection) -> SignatureVerdicts {
        SignatureVerification::new(self).finish(rejection)
    }

    /// The results for a message that is too large.
    pub(crate) fn oversized(self) -> SignatureVerdicts {
        SignatureVerdicts { is_oversized: true, ..self.unverified(OVERSIZED) }
    }
}

/// Verifies the signatures of a message, whose body begins at `body_start`. What has no result at the
/// deadline, or cannot be read, is a temporary error; a key that is late is one of its own signatures
/// only.
pub(crate) async fn verify_all(
    found: FoundSignatures,
    header: &Arc<MessageHeader>,
    body_start: u64,
    message: &mut dyn CheckedMessage,
    context: &SignatureContext<'_>,
) -> SignatureVerdicts {
    let mut verification = SignatureVerification::new(found);
    let deadline = tokio::time::Instant::from_std(context.deadline);
    let keys = look_up_keys(context, verification.seals()).await;
    verification.take_keys(&keys);
    let Ok(hashes) = hash_body(verification.body_hash_requests(), body_start, message).await else {
        return verification.finish(UNREADABLE);
    };
    verification.take_body_hashes(&hashes);
    if let Some(operations) = verification.key_operations(header) {
        let computed = tokio::time::timeout_at(deadline, compute(operations, context.threads)).await;
        match computed {
            Ok(Some(results)) => verification.take_results(&results),
            Ok(None) => {}
            Err(_) => context.counters.count_limit(ReachedLimit::Time),
        }
    }
    verification.finish(TOO_LATE)
}

async fn look_up_keys(context: &SignatureContext<'_>, seals: Vec<&SealSignature>) -> FoundKeys {
    let mut names: Vec<(&str, &str)> = seals.iter().map(|seal| (&*seal.selector, &*seal.domain)).collect();
    names.sort_unstable();
    names.dedup();
    let deadline = context.keys_deadline.into();
    let look_up = |(selector, domain)| async move {
        let found = tokio::time::timeout_at(deadline, key::look_up(context.dns, selector, domain)).await;
        ((Box::from(selector), Box::from(domain)), found.unwrap_or(Err(LATE_KEY)))
    };
    let keys: FoundKeys = join_all(names.into_iter().map(look_up)).await.into_iter().collect();
    if keys.values().any(|key| key.as_ref().err() == Some(&LATE_KEY)) {
        context.counters.count_limit(ReachedLimit::Time);
    }
    keys
}

/// Reads the body once for all hashes.
async fn hash_body(
    requests: Vec<BodyHashRequest>,
    body_start: u64,
    message: &mut dyn CheckedMessage,
) -> std::io::Result<BodyHashes> {
    let mut hasher = BodyHasher::default();
    requests.into_iter().for_each(|request| hasher.request(request));
    let mut position = body_start;
    while !hasher.is_empty() {
        let chunk = message.read_content(position).await?;
        if chunk.is_empty() {
            break;
        }
        let piece = &chunk[..chunk.len().min(PIECE_OCTETS)];
        hasher.update(piece);
        position += piece.len() as u64;
        if piece.len() == PIECE_OCTETS {
            tokio::task::yield_now().await;
        }
    }
    Ok(hasher.finish())
}

/// Uses the keys: at once if that is short, else on a blocking thread once one is free. None: the
/// runtime is stopping.
async fn compute(operations: KeyOperations, threads: &Arc<Semaphore>) -> Option<OperationResults> {
    if operations.are_short() {
        return Some(operations.run());
    }
    let permit = threads.clone().acquire_owned().await.ok()?;
    let work = move || {
        let _permit = permit;
        operations.run()
    };
    tokio::task::spawn_blocking(work).await.ok()
}
