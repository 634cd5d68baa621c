//! ARC (RFC 8617): the chain of those who passed a message on, and what they found when it came.
//!
//! A chain is valid as a whole or not at all: sets numbered from 1 without a gap, at most
//! [`SETS_MAX`], each sealed by the one who added it, and the newest signature over the message still
//! valid. Nothing is looked up for a chain that is wrong in itself.

mod results_field;
mod set;

use crate::dkim::key::PublicKey;
use crate::dkim::verify;
use crate::message_header::MessageHeader;

pub(crate) use results_field::says_dmarc_passed;
pub(crate) use set::{ArcSet, find_chain};

/// The most sets of a chain (RFC 8617 section 5.1.1.2 allows instances up to 50).
pub const SETS_MAX: usize = 50;

/// What the check of a chain says (RFC 8617 section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArcResult {
    /// There is no chain.
    None,
    /// The chain is valid.
    Pass,
    /// It is not.
    Fail,
    /// Nobody could tell: the DNS did not answer, there was no time, or the message is too large to be
    /// verified.
    TempError,
}

impl ArcResult {
    /// The word in Authentication-Results.
    pub fn as_str(self) -> &'static str {
        match self {
            ArcResult::None => "none",
            ArcResult::Pass => "pass",
            ArcResult::Fail => "fail",
            ArcResult::TempError => "temperror",
        }
    }
}

/// The result for a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArcCheck {
    /// The result.
    pub result: ArcResult,
    /// Why it is not [`ArcResult::Pass`].
    pub reason: Option<&'static str>,
    /// The domain of each seal, the oldest first.
    pub sealers: Vec<Box<str>>,
    /// The domains of the keys for which there was no answer.
    pub unanswered: Vec<Box<str>>,
}

/// Whether each seal whose key is there is valid, the newest first. `keys` has the key of each set;
/// None: there was no answer for it.
pub(crate) fn seals_are_valid(header: &MessageHeader, sets: &[ArcSet], keys: &[Option<PublicKey>]) -> bool {
    let mut sealed = Vec::with_capacity(4096);
    // What each seal covers begins with all that the seals before it cover.
    let mut ends = Vec::with_capacity(sets.len());
    for set in sets {
        set.push_without_seal(header, &mut sealed);
        ends.push(sealed.len());
        set.push_seal(header, &mut sealed);
    }
    sets.iter().zip(keys).zip(ends).rev().all(|((set, key), end)| {
        let Some(key) = key else { return true };
        let mut bytes = sealed[..end].to_vec();
        set.push_unsigned_seal(header, &mut bytes);
        verify::is_valid(key, &bytes, &set.seal.octets)
    })
}
