//! The verification of a message's signatures, step by step. Each step may give a signature its
//! result; the rest is pending.
//!
//! | step | results that it gives |
//! |---|---|
//! | `take_keys` | no key, none that can be used, no answer |
//! | `take_body_hashes` | another body |
//! | `take_results` | all others |
//! | `finish` | one for all that is still pending, such as a temporary error |

use std::sync::Arc;

use crate::arc::{self, ArcCheck, ArcResult, ArcSet};
use crate::body_hash::{BodyHashRequest, BodyHashes};
use crate::dkim::key::{KeyRecord, PublicKey};
use crate::dkim::signature::{MessageSignature, SealSignature, SignatureLabel};
use crate::dkim::{DkimCheck, DkimResult, FoundSignature, Rejection, verify};
use crate::message_header::MessageHeader;

use super::{FoundKeys, FoundSignatures, SignatureVerdicts};

/// The signatures of a message.
pub(super) struct SignatureVerification {
    dkim: Option<(Vec<Candidate>, usize)>,
    chain: Option<Chain>,
}

/// A signature of DKIM.
struct Candidate {
    field: usize,
    label: SignatureLabel,
    state: CandidateState,
}

enum CandidateState {
    Pending(Box<PendingSignature>),
    Done(DkimResult, Option<&'static str>),
}

struct PendingSignature {
    signature: MessageSignature,
    key: Option<KeyRecord>,
    /// `l=` leaves out a part of the body.
    is_cut: bool,
}

/// The chain of ARC; it has sets if it is pending.
struct Chain {
    sets: Vec<ArcSet>,
    /// The domains of the keys for which there was no answer.
    unanswered: Vec<Box<str>>,
    state: ChainState,
}

enum ChainState {
    Pending(Option<ChainKeys>),
    Done(ArcResult, Option<&'static str>),
}

#[derive(Clone)]
struct ChainKeys {
    /// Of each set, the oldest first. None: there was no answer, here and below.
    seals: Vec<Option<PublicKey>>,
    /// Of the newest signature over the message.
    signature: Option<PublicKey>,
}

/// The most signatures that are verified without another thread, if their keys are short.
const SHORT_SIGNATURES_MAX: usize = 2;
/// The longest header for that: the signed fields are copied and hashed for each signature.
const SHORT_HEADER_OCTETS_MAX: usize = 32 * 1024;

/// What is left to compute.
pub(super) struct KeyOperations {
    header: Arc<MessageHeader>,
    signatures: Vec<SignatureOperation>,
    chain: Option<(Vec<ArcSet>, ChainKeys)>,
}

struct SignatureOperation {
    /// The place in the list of candidates.
    candidate: usize,
    field: usize,
    signature: MessageSignature,
    key: PublicKey,
}

/// Which of them are valid.
pub(super) struct OperationResults {
    signatures: Vec<(usize, bool)>,
    chain: Option<Result<(), &'static str>>,
}

impl SignatureVerification {
    pub(super) fn new(found: FoundSignatures) -> SignatureVerification {
        let candidate = |FoundSignature { field, label, signature }| Candidate {
            field,
            label,
            state: match signature {
                Ok(signature) => {
                    CandidateState::Pending(Box::new(PendingSignature { signature, key: None, is_cut: false }))
                }
                Err(rejection) => rejection.into(),
            },
        };
        let chain = |chain: Result<Vec<ArcSet>, &'static str>| match chain {
            Ok(sets) if sets.is_empty() => Chain::new(sets, ChainState::Done(ArcResult::None, None)),
            Ok(sets) => Chain::new(sets, ChainState::Pending(None)),
            Err(reason) => Chain::new(Vec::new(), ChainState::Done(ArcResult::Fail, Some(reason))),
        };
        SignatureVerification {
            dkim: found.dkim.map(|(found, others)| (found.into_iter().map(candidate).collect(), others)),
            chain: found.chain.map(chain),
        }
    }

    /// The signatures whose keys are needed.
    pub(super) fn seals(&self) -> Vec<&SealSignature> {
        let dkim = self.candidates().filter_map(Candidate::pending).map(|pending| &pending.signature.seal);
        let sets = || self.pending_chain().into_iter().flat_map(|chain| &chain.sets);
        let newest = sets().last().and_then(|set| set.signature.as_ref()).map(|signature| &signature.seal);
        dkim.chain(newest).chain(sets().map(|set| &set.seal)).collect()
    }

    pub(super) fn take_keys(&mut self, keys: &FoundKeys) {
        let key_of = |seal: &SealSignature| {
            let found = keys.get(&(seal.selector.clone(), seal.domain.clone()));
            let key = found.cloned().unwrap_or(Err(Rejection::new(DkimResult::TempError, "the key is unknown")))?;
            key.check_algorithm(seal.algorithm).map(|()| key)
        };
        self.settle_each(|pending| {
            let key = key_of(&pending.signature.seal)?;
            verify::check_key(&pending.signature, &key)?;
            pending.key = Some(key);
            Ok(())
        });
        self.settle_chain(|sets, known| {
            let seals = sets.iter().map(|set| answered(key_of(&set.seal))).collect::<Result<_, _>>()?;
            let signature = answered(key_of(&newest_signature(sets)?.seal))?;
            *known = Some(ChainKeys { seals, signature });
            Ok(())
        });
        self.chain.iter_mut().for_each(Chain::note_unanswered);
    }

    /// The hashes of the body that are needed.
    pub(super) fn body_hash_requests(&self) -> Vec<BodyHashRequest> {
        let dkim = self.candidates().filter_map(Candidate::pending).map(|pending| pending.signature.body);
        let newest = self.pending_chain().and_then(|chain| chain.sets.last()?.signature.as_ref());
        dkim.chain(newest.map(|signature| signature.body)).collect()
    }

    pub(super) fn take_body_hashes(&mut self, hashes: &BodyHashes) {
        self.settle_each(|pending| {
            pending.is_cut = verify::is_cut(&pending.signature, hashes);
            verify::check_body(&pending.signature, hashes)
        });
        self.settle_chain(|sets, _| {
            let signature = newest_signature(sets)?;
            verify::check_body(signature, hashes)?;
            match verify::is_cut(signature, hashes) {
                true => Err(CUT),
                false => Ok(()),
            }
        });
    }

    /// What is left to compute; None: nothing.
    pub(super) fn key_operations(&self, header: &Arc<MessageHeader>) -> Option<KeyOperations> {
        let operation = |(number, candidate): (usize, &Candidate)| {
            let pending = candidate.pending()?;
            let (signature, key) = (pending.signature.clone(), pending.key.as_ref()?.key.clone());
            Some(SignatureOperation { candidate: number, field: candidate.field, signature, key })
        };
        let signatures: Vec<SignatureOperation> = self.candidates().enumerate().filter_map(operation).collect();
        let chain = self.chain.as_ref().and_then(|chain| match &chain.state {
            ChainState::Pending(Some(keys)) => Some((chain.sets.clone(), keys.clone())),
            _ => None,
        });
        let is_empty = signatures.is_empty() && chain.is_none();
        (!is_empty).then(|| KeyOperations { header: header.clone(), signatures, chain })
    }

    pub(super) fn take_results(&mut self, results: &OperationResults) {
        let candidates = self.dkim.as_mut().map_or(&mut [][..], |(candidates, _)| candidates);
        for (number, is_valid) in &results.signatures {
            let Some(candidate) = candidates.get_mut(*number) else { continue };
            if let Some(pending) = candidate.pending() {
                candidate.state = pending.settled(*is_valid);
            }
        }
        if let (Some(chain), Some(result)) = (&mut self.chain, results.chain) {
            chain.state = match result {
                Ok(()) if !chain.unanswered.is_empty() => {
                    ChainState::Done(ArcResult::TempError, Some("no answer for a key"))
                }
                Ok(()) => ChainState::Done(ArcResult::Pass, None),
                Err(reason) => ChainState::Done(ArcResult::Fail, Some(reason)),
            };
        }
    }

    /// The results; what is pending has this one.
    pub(super) fn finish(self, pending: Rejection) -> SignatureVerdicts {
        let check = |Candidate { label, state, .. }| match state {
            CandidateState::Pending(_) => DkimCheck { result: pending.result, reason: Some(pending.reason), label },
            CandidateState::Done(result, reason) => DkimCheck { result, reason, label },
        };
        let chain = |Chain { sets, unanswered, state }| {
            let (result, reason) = match state {
                ChainState::Pending(_) => (chain_result(pending), Some(pending.reason)),
                ChainState::Done(result, reason) => (result, reason),
            };
            let sealers = sets.into_iter().map(|set| set.seal.domain).collect();
            ArcCheck { result, reason, sealers, unanswered }
        };
        SignatureVerdicts {
            dkim: self.dkim.map(|(candidates, others)| (candidates.into_iter().map(check).collect(), others)),
            arc: self.chain.map(chain),
            is_oversized: false,
        }
    }

    fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.dkim.iter().flat_map(|(candidates, _)| candidates)
    }

    fn pending_chain(&self) -> Option<&Chain> {
        self.chain.as_ref().filter(|chain| matches!(chain.state, ChainState::Pending(_)))
    }

    /// Ends the signatures for which a step fails.
    fn settle_each(&mut self, step: impl Fn(&mut PendingSignature) -> Result<(), Rejection>) {
        for candidate in self.dkim.iter_mut().flat_map(|(candidates, _)| candidates) {
            if let CandidateState::Pending(pending) = &mut candidate.state
                && let Err(rejection) = step(pending)
            {
                candidate.state = rejection.into();
            }
        }
    }

    /// Ends the chain if a step fails.
    fn settle_chain(&mut self, step: impl Fn(&[ArcSet], &mut Option<ChainKeys>) -> Result<(), Rejection>) {
        let Some(chain) = &mut self.chain else { return };
        if let ChainState::Pending(keys) = &mut chain.state
            && let Err(rejection) = step(&chain.sets, keys)
        {
            chain.state = ChainState::Done(chain_result(rejection), Some(rejection.reason));
        }
    }
}

impl Candidate {
    fn pending(&self) -> Option<&PendingSignature> {
        match &self.state {
            CandidateState::Pending(pending) => Some(pending),
            CandidateState::Done(..) => None,
        }
    }
}

impl Chain {
    fn new(sets: Vec<ArcSet>, state: ChainState) -> Chain {
        Chain { sets, unanswered: Vec::new(), state }
    }

    fn note_unanswered(&mut self) {
        let ChainState::Pending(Some(keys)) = &self.state else { return };
        let seals = self.sets.iter().zip(&keys.seals).filter(|(_, key)| key.is_none()).map(|(set, _)| &set.seal);
        let newest = self.sets.last().and_then(|set| set.signature.as_ref()).filter(|_| keys.signature.is_none());
        self.unanswered =
            seals.chain(newest.map(|signature| &signature.seal)).map(|seal| seal.domain.clone()).collect();
    }
}

impl PendingSignature {
    /// The result, once it is known whether the signature is valid.
    fn settled(&self, is_valid: bool) -> CandidateState {
        match (is_valid, &self.key) {
            (_, Some(key)) if key.is_test => CandidateState::Done(DkimResult::Neutral, Some("the key is in test mode")),
            (true, _) if self.is_cut => CUT.into(),
            (true, _) => CandidateState::Done(DkimResult::Pass, None),
            (false, _) => CandidateState::Done(DkimResult::Fail, Some(INVALID)),
        }
    }
}

impl From<Rejection> for CandidateState {
    fn from(Rejection { result, reason }: Rejection) -> CandidateState {
        CandidateState::Done(result, Some(reason))
    }
}

impl KeyOperations {
    /// Whether everything takes a tenth of a millisecond or two, which is what another thread would cost.
    pub(super) fn are_short(&self) -> bool {
        self.chain.is_none()
            && self.signatures.len() <= SHORT_SIGNATURES_MAX
            && self.header.octets() <= SHORT_HEADER_OCTETS_MAX
            && self.signatures.iter().all(|operation| operation.key.is_short())
    }

    /// Computes everything: milliseconds at most.
    pub(super) fn run(self) -> OperationResults {
        let header = &*self.header;
        let is_valid = |field, signature: &MessageSignature, key: &PublicKey| {
            let bytes = verify::signed_bytes(header, field, signature);
            verify::is_valid(key, &bytes, &signature.seal.octets)
        };
        let signatures = self
            .signatures
            .iter()
            .map(|operation| (operation.candidate, is_valid(operation.field, &operation.signature, &operation.key)));
        let chain = self.chain.as_ref().map(|(sets, keys)| {
            let newest = sets.last().and_then(|set| Some((set.signature_field, set.signature.as_ref()?)));
            match newest {
                Some((field, signature))
                    if keys.signature.as_ref().is_none_or(|key| is_valid(field, signature, key)) =>
                {
                    let are_valid = arc::seals_are_valid(header, sets, &keys.seals);
                    if are_valid { Ok(()) } else { Err("a seal is not valid") }
                }
                _ => Err(INVALID),
            }
        });
        OperationResults { signatures: signatures.collect(), chain }
    }
}

/// None: there was no answer for the key. The other keys of the chain can still show that it is not
/// valid.
fn answered(key: Result<KeyRecord, Rejection>) -> Result<Option<PublicKey>, Rejection> {
    match key {
        Ok(key) => Ok(Some(key.key)),
        Err(rejection) if rejection.result == DkimResult::TempError => Ok(None),
        Err(rejection) => Err(rejection),
    }
}

/// A chain has no words for permanent errors.
fn chain_result(rejection: Rejection) -> ArcResult {
    if rejection.result == DkimResult::TempError { ArcResult::TempError } else { ArcResult::Fail }
}

fn newest_signature(sets: &[ArcSet]) -> Result<&MessageSignature, Rejection> {
    let signature = sets.last().and_then(|set| set.signature.as_ref());
    signature.ok_or(Rejection::new(DkimResult::Neutral, "no signature over the message"))
}

const INVALID: &str = "the signature is not valid";
const CUT: Rejection = Rejection::new(DkimResult::Policy, "l= leaves out a part of the body");
