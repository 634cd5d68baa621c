//! Messages that contain a password: PLAIN (RFC 4616) and LOGIN (draft-murchison-sasl-login), and
//! the rules for user names and passwords.

use std::borrow::Cow;

use super::{PASSWORD_OCTETS_MAX, SaslRefusal, Secret, USER_OCTETS_MAX};

/// The challenges of LOGIN. Most clients ignore the text, but some expect exactly these.
pub(super) enum LoginPrompts {}

impl LoginPrompts {
    pub(super) const USER: &[u8] = b"Username:";
    pub(super) const PASSWORD: &[u8] = b"Password:";
}

/// The message of PLAIN.
pub(super) struct PlainMessage {
    pub(super) user: Box<str>,
    pub(super) password: Secret,
}

impl PlainMessage {
    /// `[authzid] NUL authcid NUL passwd` (RFC 4616 section 2).
    pub(super) fn read(message: &[u8]) -> Result<PlainMessage, SaslRefusal> {
        let mut parts = message.split(|&octet| octet == 0);
        let (Some(authzid), Some(user), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SaslRefusal::Malformed);
        };
        let user = prepare_user(user)?;
        let authzid = str::from_utf8(authzid).map_err(|_| SaslRefusal::Malformed)?;
        check_authzid(authzid, &user)?;
        Ok(PlainMessage { user, password: parse_password(password)? })
    }
}

/// Prepares a user name by SASLprep (RFC 4013).
pub(crate) fn prepare_user(octets: &[u8]) -> Result<Box<str>, SaslRefusal> {
    let text = str::from_utf8(octets).map_err(|_| SaslRefusal::Malformed)?;
    if text.len() > USER_OCTETS_MAX {
        return Err(SaslRefusal::TooLong);
    }
    let prepared: Cow<'_, str> = stringprep::saslprep(text).map_err(|_| SaslRefusal::InvalidText)?;
    match prepared.len() {
        0 => Err(SaslRefusal::InvalidText),
        // Preparing may make the name longer.
        1..=USER_OCTETS_MAX => Ok(prepared.into()),
        _ => Err(SaslRefusal::TooLong),
    }
}

/// Checks the authorization identity: clients can act only as themselves.
pub(super) fn check_authzid(authzid: &str, user: &str) -> Result<(), SaslRefusal> {
    // Lookup tables are not case-sensitive for user names.
    let is_own = || prepare_user(authzid.as_bytes()).is_ok_and(|prepared| prepared.eq_ignore_ascii_case(user));
    if authzid.is_empty() || is_own() { Ok(()) } else { Err(SaslRefusal::Authzid) }
}

/// Validates a password.
pub(crate) fn parse_password(octets: &[u8]) -> Result<Secret, SaslRefusal> {
    let text = str::from_utf8(octets).map_err(|_| SaslRefusal::Malformed)?;
    if text.len() > PASSWORD_OCTETS_MAX {
        return Err(SaslRefusal::TooLong);
    }
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(SaslRefusal::InvalidText);
    }
    Ok(Secret::new(text.to_owned()))
}
