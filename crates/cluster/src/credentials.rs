//! What a server asks for before it serves a node, from a file of its own.
//!
//! | content of the file | what it is |
//! |---|---|
//! | `-----BEGIN NATS USER JWT-----` and a seed | a file of credentials, as `nsc` writes it |
//! | `SU...` (58 characters) | the seed of an NKey |
//! | `USER:PASSWORD` | a user and its password |
//! | one word without a colon that does not begin with `SU` | a token |
//!
//! Only the first line with a character counts in the last three. No text of the file gets into errors.

use std::path::Path;

use async_nats::ConnectOptions;

const JWT_MARK: &str = "-----BEGIN NATS USER JWT-----";
const SEED_PREFIX: &str = "SU";
const SEED_CHARS: usize = 58;

/// Why a file of credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot read it: {0}")]
    Unreadable(#[from] std::io::Error),
    /// A file of `nsc` that is not complete.
    #[error("it has a user JWT, but no seed that belongs to it: write it anew with nsc")]
    Incomplete,
    /// Anything else.
    #[error("expected a file of credentials from nsc, the seed of an NKey (SU...), USER:PASSWORD, or a token")]
    Unknown,
}

/// Adds to `options` what the file at `path` has.
pub(crate) fn add_credentials(options: ConnectOptions, path: &Path) -> Result<ConnectOptions, CredentialsError> {
    let text = std::fs::read_to_string(path)?;
    if text.contains(JWT_MARK) {
        return options.credentials(&text).map_err(|_| CredentialsError::Incomplete);
    }
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    if line.starts_with(SEED_PREFIX) && line.len() == SEED_CHARS && !line.contains(':') {
        return Ok(options.nkey(line.to_owned()));
    }
    match line.split_once(':') {
        Some((user, password)) if !user.is_empty() && !password.is_empty() => {
            Ok(options.user_and_password(user.to_owned(), password.to_owned()))
        }
        None if is_token(line) => Ok(options.token(line.to_owned())),
        _ => Err(CredentialsError::Unknown),
    }
}

/// What begins like the seed of an NKey is one that is not complete.
fn is_token(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(SEED_PREFIX) && !line.contains(char::is_whitespace)
}

/// Whether the file at `path` can be used; it is read again when the connection is opened.
pub fn check_credentials(path: &Path) -> Result<(), CredentialsError> {
    add_credentials(ConnectOptions::new(), path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), CredentialsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        std::fs::write(&path, text).unwrap();
        check_credentials(&path)
    }

    #[test]
    fn a_file_has_a_seed_a_token_or_a_user_and_its_password() {
        check("\nSUACH75SWCM5D2JMJM6EKLR2WDARVGZT4QC6LX3AGHSWOMVAKERABBBRWM\n").unwrap();
        check("mailrace:a:long password\n").unwrap();
        check("s3cr3t\n").unwrap();
        for text in ["", "SUACH75", "mailrace:", ":password", "two words"] {
            assert!(matches!(check(text), Err(CredentialsError::Unknown)), "{text}");
        }
    }

    #[test]
    fn a_user_jwt_needs_its_seed() {
        let error = check("-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n").unwrap_err();
        assert!(matches!(error, CredentialsError::Incomplete));
    }
}
