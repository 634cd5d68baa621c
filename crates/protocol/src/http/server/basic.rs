//! The credentials of Basic authentication (RFC 7617).

use std::fmt;

use memchr::memchr;

use crate::sasl::{PASSWORD_OCTETS_MAX, Secret, USER_OCTETS_MAX, decode, parse_password, prepare_user};

/// What a client gave in Authorization.
#[derive(Clone, PartialEq, Eq)]
pub struct BasicCredentials {
    /// The user name, prepared like that of a SASL exchange.
    pub user: Box<str>,
    /// The password.
    pub password: Secret,
}

impl fmt::Debug for BasicCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Parses a value of Authorization; None for another scheme, and for what is not a user name and a
/// password.
pub(super) fn parse(value: &[u8]) -> Option<BasicCredentials> {
    const SCHEME: &[u8] = b"Basic ";
    let (scheme, encoded) = value.split_at_checked(SCHEME.len())?;
    let encoded = encoded.trim_ascii();
    if !scheme.eq_ignore_ascii_case(SCHEME) || encoded.len() > (USER_OCTETS_MAX + PASSWORD_OCTETS_MAX + 1) * 2 {
        return None;
    }
    let octets = decode(encoded).ok()?;
    let colon = memchr(b':', &octets)?;
    let user = prepare_user(&octets[..colon]).ok()?;
    let password = parse_password(&octets[colon + 1..]).ok()?;
    Some(BasicCredentials { user, password })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_a_user_and_a_password() {
        let found = parse(b"basic  QWxhZGRpbjpvcGVuOiBzZXNhbWU= ").unwrap();
        assert_eq!((&*found.user, found.password.reveal()), ("Aladdin", "open: sesame"));
        assert!(!format!("{found:?}").contains("sesame"));
        // Without a password, without a user, without a colon, with a control character, not base64,
        // of another scheme.
        for value in ["Basic YTo=", "Basic OmI=", "Basic YWI=", "Basic YToHYg==", "Basic !", "Basic", "Bearer YTpi"] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
        assert_eq!(parse(format!("Basic {}", "YTpi".repeat(1000)).as_bytes()), None);
    }
}
