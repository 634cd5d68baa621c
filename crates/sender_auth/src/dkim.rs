//! DKIM (RFC 6376, 8301, 8463): which domains signed a message.
//!
//! | step | here | ends with |
//! |---|---|---|
//! | signature fields are read, from the top | [`signature`] | neutral, policy; the rest is pending |
//! | their keys are looked up | [`key`] | temperror, permerror, policy |
//! | the body is hashed | `body_hash` | fail, policy |
//! | the header is hashed, and the signature verified | [`verify`] | pass, fail |
//!
//! Only `pass` says anything about a message. What this server does not accept though others may
//! (rsa-sha1, short and very long keys, a body that is only signed in part, more than
//! [`SIGNATURES_MAX`] signatures) is `policy`; a signature with a key in test mode is `neutral`, since
//! it must not be treated differently from none (RFC 6376 section 3.6.1).

pub(crate) mod key;
pub(crate) mod signature;
pub(crate) mod verify;

use crate::message_header::{FieldName, MessageHeader};
use signature::{MessageSignature, SignatureKind, SignatureLabel};

/// The most signatures of a message that are checked, counted from the top.
pub const SIGNATURES_MAX: usize = 8;

/// What a check says of a signature, or of all (RFC 8601 section 2.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DkimResult {
    /// There is no signature.
    None,
    /// The signature is valid.
    Pass,
    /// It is not.
    Fail,
    /// It is not accepted here, whether valid or not.
    Policy,
    /// It cannot be read, or says nothing.
    Neutral,
    /// Nobody could tell: the DNS did not answer, there was no time, or the message is too large to be verified.
    TempError,
    /// Its key does not exist or cannot be used.
    PermError,
}

impl DkimResult {
    /// The word of RFC 8601.
    pub fn as_str(self) -> &'static str {
        match self {
            DkimResult::None => "none",
            DkimResult::Pass => "pass",
            DkimResult::Fail => "fail",
            DkimResult::Policy => "policy",
            DkimResult::Neutral => "neutral",
            DkimResult::TempError => "temperror",
            DkimResult::PermError => "permerror",
        }
    }

    /// Of several results, the one that says most comes first.
    fn rank(self) -> u8 {
        match self {
            DkimResult::Pass => 0,
            DkimResult::TempError => 1,
            DkimResult::Fail => 2,
            DkimResult::Policy => 3,
            DkimResult::PermError => 4,
            DkimResult::Neutral => 5,
            DkimResult::None => 6,
        }
    }
}

/// Why a signature is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Never [`DkimResult::Pass`].
    pub result: DkimResult,
    /// For a comment.
    pub reason: &'static str,
}

impl Rejection {
    pub(crate) const fn new(result: DkimResult, reason: &'static str) -> Rejection {
        Rejection { result, reason }
    }
}

/// The result for one signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DkimCheck {
    /// The result.
    pub result: DkimResult,
    /// Why it is not [`DkimResult::Pass`].
    pub reason: Option<&'static str>,
    /// Which signature this is.
    pub label: SignatureLabel,
}

/// A signature field that was read.
pub(crate) struct FoundSignature {
    /// The number of its field.
    pub(crate) field: usize,
    pub(crate) label: SignatureLabel,
    pub(crate) signature: Result<MessageSignature, Rejection>,
}

/// Reads the signatures of a message. `now` is in seconds since 1970. Also returns how many
/// signatures are beyond the limit.
pub(crate) fn find_signatures(header: &MessageHeader, now: u64) -> (Vec<FoundSignature>, usize) {
    let name = FieldName::new(b"dkim-signature");
    let mut places = header.find(&name);
    let read = |field: usize| {
        let value = header.field(field).value;
        let (label, signature) = MessageSignature::parse(value, SignatureKind::Dkim);
        let signature = signature.and_then(|signature| signature.check_times(now).map(|()| signature));
        FoundSignature { field, label, signature }
    };
    let found = places.by_ref().take(SIGNATURES_MAX).map(read).collect();
    (found, places.count())
}

/// The result for the message: the best one of its signatures.
pub fn message_result(checks: &[DkimCheck]) -> DkimResult {
    checks.iter().map(|check| check.result).min_by_key(|result| result.rank()).unwrap_or(DkimResult::None)
}
