//! What a driver gets of a request that takes its content, beside what all drivers get.

use crate::sasl::Secret;

/// The longest bearer token; longer ones count as none.
const TOKEN_OCTETS_MAX: usize = 256;

/// The content of a request, and the fields that decide whether it is processed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestContent {
    /// Host, with its port, as received; None in HTTP/1.0.
    pub host: Option<Box<str>>,
    /// The bearer token of Authorization (RFC 6750 section 2.1).
    pub bearer_token: Option<Secret>,
    /// Content-Type, as received.
    pub content_type: Option<Box<str>>,
    /// The content, without its transfer coding.
    pub octets: Vec<u8>,
}

/// Parses a value of Authorization; None for another scheme, and for what is no token: visible ASCII.
pub(super) fn parse_bearer(value: &[u8]) -> Option<Secret> {
    const SCHEME: &[u8] = b"Bearer ";
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let token = token.trim_ascii();
    let is_token = (1..=TOKEN_OCTETS_MAX).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
    if !scheme.eq_ignore_ascii_case(SCHEME) || !is_token {
        return None;
    }
    Some(Secret::new(str::from_utf8(token).ok()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_visible_ascii() {
        let found = |value: &str| parse_bearer(value.as_bytes()).map(|token| token.reveal().to_owned());
        assert_eq!(found("bearer  abc.DEF_1 ").as_deref(), Some("abc.DEF_1"));
        let long = format!("Bearer {}", "x".repeat(TOKEN_OCTETS_MAX + 1));
        for value in ["Bearer", "Bearer ", "Bearer a b", "Bearer \u{e4}", "Basic YTpi", &long] {
            assert_eq!(found(value), None, "{value}");
        }
        assert!(found(&long[..long.len() - 1]).is_some());
    }
}
