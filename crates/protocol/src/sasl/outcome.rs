//! The result of an exchange, and the SMTP reply for it.

use mail::{EnhancedCode, Reply};

use super::DecodeError;

/// The result of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaslOutcome {
    /// The client is authenticated.
    Accepted {
        /// The user name in the spelling of the lookup table.
        user: Box<str>,
    },
    /// The client is not authenticated, and may try again.
    Refused(SaslRefusal),
}

/// Why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SaslRefusal {
    /// A message violates the mechanism.
    Malformed,
    /// The name or password exceeds its limit.
    TooLong,
    /// A line exceeds [`LINE_OCTETS_MAX`](super::LINE_OCTETS_MAX).
    LineTooLong,
    /// The name or password is empty or has forbidden characters (RFC 4013 section 2.3).
    InvalidText,
    /// Wrong password, wrong proof or unknown user; the client is not told which.
    Credentials,
    /// The client wants to act as another user.
    Authzid,
    /// The client requires channel binding (RFC 5802 section 6) or another unsupported feature.
    Unsupported,
    /// Too many failures before.
    Throttled,
    /// The password cannot be checked at present.
    Unavailable,
    /// The client cancelled (RFC 4954 section 4: `*`).
    Cancelled,
}

impl From<DecodeError> for SaslRefusal {
    fn from(error: DecodeError) -> SaslRefusal {
        match error {
            DecodeError::TooLong => SaslRefusal::LineTooLong,
            DecodeError::Malformed => SaslRefusal::Malformed,
            DecodeError::Cancelled => SaslRefusal::Cancelled,
        }
    }
}

impl SaslOutcome {
    /// The SMTP reply (RFC 4954 section 6).
    pub fn reply(&self) -> Reply {
        match self {
            SaslOutcome::Accepted { .. } => Reply::new(235, EnhancedCode(2, 7, 0), "Authentication successful"),
            SaslOutcome::Refused(refusal) => refusal.reply(),
        }
    }
}

impl SaslRefusal {
    /// The SMTP reply (RFC 4954 sections 4 and 6). After 535 clients ask the user for another
    /// password; after 454 they retry with the same one.
    pub fn reply(self) -> Reply {
        match self {
            SaslRefusal::Malformed => Reply::new(501, EnhancedCode(5, 5, 2), "Malformed authentication data"),
            SaslRefusal::LineTooLong => {
                Reply::new(500, EnhancedCode(5, 5, 6), "Authentication Exchange line is too long")
            }
            SaslRefusal::Cancelled => Reply::new(501, EnhancedCode(5, 7, 0), "Authentication cancelled"),
            SaslRefusal::Unsupported => {
                Reply::new(504, EnhancedCode(5, 5, 4), "Unsupported parameter of the mechanism")
            }
            SaslRefusal::Throttled => Reply::new(454, EnhancedCode(4, 7, 0), "Too many failures, try again later"),
            SaslRefusal::Unavailable => Reply::new(454, EnhancedCode(4, 7, 0), "Temporary authentication failure"),
            SaslRefusal::TooLong | SaslRefusal::InvalidText | SaslRefusal::Credentials | SaslRefusal::Authzid => {
                Reply::new(535, EnhancedCode(5, 7, 8), "Authentication credentials invalid")
            }
        }
    }
}
