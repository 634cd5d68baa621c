//! The result of an exchange, and the SMTP reply for it.

use mail::{Enhanced, Reply};

/// The result of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client is authenticated.
    Accepted {
        /// The user name in the spelling of the lookup table.
        user: Box<str>,
    },
    /// The client is not authenticated, and may try again.
    Refused(Refusal),
}

/// Why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A message violates the mechanism.
    Malformed,
    /// The name or password exceeds its limit.
    TooLong,
    /// A line exceeds [`LINE_OCTETS_MAX`](super::LINE_OCTETS_MAX).
    LineTooLong,
    /// The name or password is empty or has forbidden characters (RFC 4013 section 2.3).
    Unprepared,
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

impl Outcome {
    /// The SMTP reply (RFC 4954 section 6).
    pub fn reply(&self) -> Reply {
        match self {
            Outcome::Accepted { .. } => Reply::new(235, Enhanced(2, 7, 0), "Authentication successful"),
            Outcome::Refused(refusal) => refusal.reply(),
        }
    }
}

impl Refusal {
    /// The SMTP reply (RFC 4954 sections 4 and 6). After 535 clients ask the user for another
    /// password; after 454 they retry with the same one.
    pub fn reply(self) -> Reply {
        match self {
            Refusal::Malformed => Reply::new(501, Enhanced(5, 5, 2), "Malformed authentication data"),
            Refusal::LineTooLong => Reply::new(500, Enhanced(5, 5, 6), "Authentication Exchange line is too long"),
            Refusal::Cancelled => Reply::new(501, Enhanced(5, 7, 0), "Authentication cancelled"),
            Refusal::Unsupported => Reply::new(504, Enhanced(5, 5, 4), "Unsupported parameter of the mechanism"),
            Refusal::Throttled => Reply::new(454, Enhanced(4, 7, 0), "Too many failures, try again later"),
            Refusal::Unavailable => Reply::new(454, Enhanced(4, 7, 0), "Temporary authentication failure"),
            Refusal::TooLong | Refusal::Unprepared | Refusal::Credentials | Refusal::Authzid => {
                Reply::new(535, Enhanced(5, 7, 8), "Authentication credentials invalid")
            }
        }
    }
}
