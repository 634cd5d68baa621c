//! What a milter may send, and what is wrong with one that sends something else.

/// Octets of a frame that a milter may send, without its length. libmilter sends at most 64 KiB.
pub const FRAME_OCTETS_MAX: usize = 1 << 20;
/// The same for frames that are not about the end of a message.
pub const ANSWER_OCTETS_MAX: usize = 64 << 10;
/// The oldest version that a milter may speak.
pub const VERSION_MIN: u32 = 2;
/// The version that is offered, the newest.
pub const VERSION_MAX: u32 = 6;

/// Limits on what a milter may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MilterLimits {
    /// Changes of one message, without its body.
    pub edits_max: usize,
    /// Octets of these changes.
    pub edit_octets_max: usize,
    /// Octets of a new body.
    pub body_octets_max: u64,
}

impl Default for MilterLimits {
    fn default() -> Self {
        MilterLimits { edits_max: 1000, edit_octets_max: 1 << 20, body_octets_max: 50 << 20 }
    }
}

/// How a milter violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MilterViolation {
    /// Exceeds [`FRAME_OCTETS_MAX`] or [`ANSWER_OCTETS_MAX`].
    #[error("sent a frame of {0} octets, which is too long")]
    FrameTooLong(usize),
    /// A frame without a code.
    #[error("sent an empty frame")]
    EmptyFrame,
    /// A frame that no command asks for.
    #[error("sent {:?} unasked", char::from(*.0))]
    Unsolicited(u8),
    /// The answer to the offer has not the form of one.
    #[error("sent an invalid answer to the negotiation")]
    Negotiation,
    /// It speaks another version.
    #[error("speaks version {0}, expected {min} to {max}", min = VERSION_MIN, max = VERSION_MAX)]
    Version(u32),
    /// It uses what was not offered, or what it did not negotiate.
    #[error("uses an action or option that was not negotiated")]
    NotOffered,
    /// A change has not the form of one.
    #[error("sent an invalid change of the message")]
    EditData,
    /// Exceeds [`MilterLimits::edits_max`] or [`MilterLimits::edit_octets_max`].
    #[error("asks for too many changes")]
    TooManyEdits,
    /// Exceeds [`MilterLimits::body_octets_max`].
    #[error("sent a body that is too long")]
    BodyTooLong,
    /// The reply to the client is none.
    #[error("sent an invalid reply, expected 4xx or 5xx with a text")]
    Reply,
}
