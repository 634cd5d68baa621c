//! How an exchange ends, and what SMTP says of it.

use mail::{Enhanced, Reply};

/// How an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The client is this user.
    Accepted {
        /// Who, in the spelling of the table.
        user: Box<str>,
    },
    /// It is nobody, and may try again.
    Refused(Refusal),
}

/// Why a client is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// What it sent is not what the mechanism has.
    Malformed,
    /// The name or the password is beyond the limits.
    TooLong,
    /// A line is ([`LINE_OCTETS_MAX`](super::LINE_OCTETS_MAX)).
    LineTooLong,
    /// The name, or the password, has characters that neither may have (RFC 4013 section 2.3), or is empty.
    Unprepared,
    /// Wrong password, wrong proof or unknown user; which of them is not told.
    Credentials,
    /// It wants to act as somebody else.
    Authzid,
    /// It wants the channel bound (RFC 5802 section 6), or something else that is not spoken here.
    Unsupported,
    /// Too many were wrong before.
    Throttled,
    /// It cannot be said now.
    Unavailable,
    /// The client gave up (RFC 4954 section 4: `*`).
    Cancelled,
}

impl Outcome {
    /// What SMTP answers (RFC 4954 section 6).
    pub fn reply(&self) -> Reply {
        match self {
            Outcome::Accepted { .. } => Reply::new(235, Enhanced(2, 7, 0), "Authentication successful"),
            Outcome::Refused(refusal) => refusal.reply(),
        }
    }
}

impl Refusal {
    /// What SMTP answers (RFC 4954 sections 4 and 6). Clients take 535 for a wrong password and ask for another one, and
    /// try the same one again after 454.
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
