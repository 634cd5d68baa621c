//! Tokens, which are not taken here: clients are told so in the form that they wait for, or they hang or ask their user
//! for a password again and again.

use super::{Mechanism, Refusal};

/// A client's message with a token (RFC 7628 section 3.1).
pub(super) enum Token {}

impl Token {
    /// Checks the form of a message: key-value pairs parted by `^A`, of which one is `auth`. The token is not looked at.
    pub(super) fn check(mechanism: Mechanism, message: &[u8]) -> Result<(), Refusal> {
        let pairs = match mechanism {
            // The header is that of GS2 (RFC 5801 section 4), which ends before the first ^A.
            Mechanism::OAuthBearer => {
                let header_end = message.iter().position(|&octet| octet == 1).ok_or(Refusal::Malformed)?;
                match message.first() {
                    Some(b'n' | b'y') => &message[header_end + 1..],
                    Some(b'p') => return Err(Refusal::Unsupported),
                    _ => return Err(Refusal::Malformed),
                }
            }
            _ => message,
        };
        let is_ended = pairs.ends_with(b"\x01\x01");
        let has_token = pairs.split(|&octet| octet == 1).any(|pair| pair.starts_with(b"auth="));
        if is_ended && has_token { Ok(()) } else { Err(Refusal::Malformed) }
    }

    /// Why it fails, in JSON (RFC 7628 section 3.2.2; Google's documents of XOAUTH2 have the status as a number of HTTP).
    pub(super) fn failure(mechanism: Mechanism) -> &'static [u8] {
        match mechanism {
            Mechanism::OAuthBearer => br#"{"status":"invalid_token"}"#,
            _ => br#"{"status":"401","schemes":"bearer"}"#,
        }
    }
}
