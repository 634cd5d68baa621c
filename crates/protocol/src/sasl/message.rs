//! Messages that contain a password: PLAIN (RFC 4616) and LOGIN (draft-murchison-sasl-login), and
//! the rules for user names and passwords.

use std::borrow::Cow;

use super::{PASSWORD_OCTETS_MAX, Refusal, Secret, USER_OCTETS_MAX};

/// The challenges of LOGIN. Most clients ignore the text, but some expect exactly these.
pub(super) enum Login {}

impl Login {
    pub(super) const USER: &[u8] = b"Username:";
    pub(super) const PASSWORD: &[u8] = b"Password:";
}

/// The message of PLAIN.
pub(super) struct Plain {
    pub(super) user: Box<str>,
    pub(super) password: Secret,
}

impl Plain {
    /// `[authzid] NUL authcid NUL passwd` (RFC 4616 section 2).
    pub(super) fn read(message: &[u8]) -> Result<Plain, Refusal> {
        let mut parts = message.split(|&octet| octet == 0);
        let (Some(authzid), Some(user), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refusal::Malformed);
        };
        let user = name(user)?;
        let authzid = str::from_utf8(authzid).map_err(|_| Refusal::Malformed)?;
        check_authzid(authzid, &user)?;
        Ok(Plain { user, password: password_from(password)? })
    }
}

/// Prepares a user name by SASLprep (RFC 4013).
pub(super) fn name(octets: &[u8]) -> Result<Box<str>, Refusal> {
    let text = str::from_utf8(octets).map_err(|_| Refusal::Malformed)?;
    if text.len() > USER_OCTETS_MAX {
        return Err(Refusal::TooLong);
    }
    let prepared: Cow<'_, str> = stringprep::saslprep(text).map_err(|_| Refusal::Unprepared)?;
    match prepared.len() {
        0 => Err(Refusal::Unprepared),
        // Preparing may make the name longer.
        1..=USER_OCTETS_MAX => Ok(prepared.into()),
        _ => Err(Refusal::TooLong),
    }
}

/// Checks the authorization identity: clients can act only as themselves.
pub(super) fn check_authzid(authzid: &str, user: &str) -> Result<(), Refusal> {
    // Lookup tables are not case-sensitive for user names.
    let is_own = || name(authzid.as_bytes()).is_ok_and(|prepared| prepared.eq_ignore_ascii_case(user));
    if authzid.is_empty() || is_own() { Ok(()) } else { Err(Refusal::Authzid) }
}

/// Validates a password.
pub(super) fn password_from(octets: &[u8]) -> Result<Secret, Refusal> {
    let text = str::from_utf8(octets).map_err(|_| Refusal::Malformed)?;
    if text.len() > PASSWORD_OCTETS_MAX {
        return Err(Refusal::TooLong);
    }
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Refusal::Unprepared);
    }
    Ok(Secret::new(text.to_owned()))
}
