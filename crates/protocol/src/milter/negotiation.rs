//! The negotiation: the server offers a version, actions and options; the milter answers with those
//! that it uses. It can use nothing that was not offered.

use super::command::MilterStep;
use super::frame::push_frame;
use super::limits::{MilterViolation, VERSION_MAX, VERSION_MIN};
use super::macros::RequestedMacros;

/// The code of the command and of its answer.
pub(super) const NEGOTIATE: u8 = b'O';

const OFFERED_ACTIONS: u32 = 0x1ff;
/// All steps and their "no reply" bits, skipping, refused recipients, white space before values.
const OFFERED_OPTIONS: u32 = 0x001f_ffff;
/// The milter may end a series of commands of the same kind.
const SKIP: u32 = 0x400;
/// The milter wants recipients that were refused.
const REFUSED_RECIPIENTS: u32 = 0x800;
/// Values of fields begin right after the colon.
const LEADING_SPACE: u32 = 0x10_0000;

/// What a milter may ask for at the end of a message, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MilterActions(u32);

impl MilterActions {
    /// Add and insert header fields.
    pub const ADD_FIELDS: MilterActions = MilterActions(0x1);
    /// Replace the body.
    pub const REPLACE_BODY: MilterActions = MilterActions(0x2);
    /// Add recipients.
    pub const ADD_RECIPIENTS: MilterActions = MilterActions(0x4);
    /// Remove recipients.
    pub const REMOVE_RECIPIENTS: MilterActions = MilterActions(0x8);
    /// Change and remove header fields.
    pub const CHANGE_FIELDS: MilterActions = MilterActions(0x10);
    /// Hold the message.
    pub const QUARANTINE: MilterActions = MilterActions(0x20);
    /// Change the sender.
    pub const CHANGE_SENDER: MilterActions = MilterActions(0x40);
    /// Add recipients with ESMTP parameters.
    pub const ADD_RECIPIENTS_WITH_PARAMETERS: MilterActions = MilterActions(0x80);

    /// Whether all of the others are among these.
    pub fn contains(self, others: MilterActions) -> bool {
        self.0 & others.0 == others.0
    }
}

/// What was agreed.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    version: u32,
    pub(super) actions: MilterActions,
    options: u32,
    pub(super) macros: RequestedMacros,
}

/// Appends the offer.
pub(super) fn push_offer(out: &mut Vec<u8>) {
    push_frame(out, NEGOTIATE, |out| {
        for word in [VERSION_MAX, OFFERED_ACTIONS, OFFERED_OPTIONS] {
            out.extend_from_slice(&word.to_be_bytes());
        }
    });
}

impl Agreement {
    /// Reads the milter's answer.
    pub(super) fn parse(data: &[u8]) -> Result<Agreement, MilterViolation> {
        let (words, requests) = data.split_first_chunk::<12>().ok_or(MilterViolation::Negotiation)?;
        let word = |at: usize| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let (version, actions, options) = (word(0), word(4), word(8));
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(MilterViolation::Version(version));
        }
        if actions & !OFFERED_ACTIONS != 0 || options & !OFFERED_OPTIONS != 0 {
            return Err(MilterViolation::NotOffered);
        }
        let macros = RequestedMacros::parse(requests)?;
        Ok(Agreement { version, actions: MilterActions(actions), options, macros })
    }

    pub(super) fn wants(&self, step: MilterStep) -> bool {
        self.version >= step.version_min() && self.options & step.unwanted_bit() == 0
    }

    pub(super) fn answers(&self, step: MilterStep) -> bool {
        self.options & step.unanswered_bit() == 0
    }

    pub(super) fn may_skip(&self) -> bool {
        self.options & SKIP != 0
    }

    pub(super) fn wants_refused_recipients(&self) -> bool {
        self.options & REFUSED_RECIPIENTS != 0
    }

    pub(super) fn wants_leading_space(&self) -> bool {
        self.options & LEADING_SPACE != 0
    }

    /// Whether the connection can serve another session: the command for it is as old as version 6
    /// of the protocol.
    pub(super) fn can_be_reused(&self) -> bool {
        self.version >= 6
    }

    /// Whether the milter knows commands without answers, which are as old.
    pub(super) fn can_leave_unanswered(&self) -> bool {
        self.version >= 6
    }
}
