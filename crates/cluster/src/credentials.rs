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
//!
//! A JWT says whose it is, so that a seed of another user is found without the servers. They refuse one that has
//! expired without a reason; it says that itself, too.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Auth, AuthError, ConnectOptions};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde::Deserialize;
use tokio::task::spawn_blocking;

const JWT_MARK: &str = "-----BEGIN NATS USER JWT-----";
const SEED_MARK: &str = "-----BEGIN USER NKEY SEED-----";
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
    /// A file of nsc whose JWT is damaged.
    #[error("its user JWT cannot be read: write it anew with nsc")]
    UnreadableJwt,
    /// A file of nsc with parts of two users.
    #[error("its seed is not that of the user whose JWT it has: write it anew with nsc")]
    OtherSeed,
    /// Anything else.
    #[error("expected a file of credentials from nsc, the seed of an NKey (SU...), USER:PASSWORD, or a token")]
    Unknown,
}

/// What a file has.
enum Credentials {
    User { jwt: String, key: KeyPair },
    NKey(KeyPair),
    Password { user: String, password: String },
    Token(String),
}

impl Credentials {
    fn parse(text: &str) -> Result<Credentials, CredentialsError> {
        if text.contains(JWT_MARK) {
            return user_of_nsc(text);
        }
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        if line.starts_with(SEED_PREFIX) && line.len() == SEED_CHARS && !line.contains(':') {
            return KeyPair::from_seed(line).map(Credentials::NKey).map_err(|_| CredentialsError::Unknown);
        }
        match line.split_once(':') {
            Some((user, password)) if !user.is_empty() && !password.is_empty() => {
                Ok(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
            }
            None if is_token(line) => Ok(Credentials::Token(line.to_owned())),
            _ => Err(CredentialsError::Unknown),
        }
    }

    /// The answer to a server that has sent `nonce`.
    fn answer(self, nonce: &[u8]) -> Result<Auth, nkeys::error::Error> {
        let mut auth = Auth::new();
        match self {
            Credentials::User { jwt, key } => (auth.jwt, auth.signature) = (Some(jwt), Some(key.sign(nonce)?)),
            Credentials::NKey(key) => (auth.nkey, auth.signature) = (Some(key.public_key()), Some(key.sign(nonce)?)),
            Credentials::Password { user, password } => (auth.username, auth.password) = (Some(user), Some(password)),
            Credentials::Token(token) => auth.token = Some(token),
        }
        Ok(auth)
    }
}

/// The options of a connection that answers servers with what the file at `path` has. It is read again whenever a
/// connection is opened: a JWT that expires is replaced while the node runs.
pub(crate) fn connect_options(path: &Path) -> Result<ConnectOptions, CredentialsError> {
    check_credentials(path)?;
    let path: Arc<Path> = path.into();
    Ok(ConnectOptions::with_auth_callback(move |nonce| {
        let path = path.clone();
        async move {
            let read = spawn_blocking(move || read(&path)).await.map_err(AuthError::new)?;
            read.map_err(AuthError::new)?.answer(&nonce).map_err(AuthError::new)
        }
    }))
}

fn read(path: &Path) -> Result<Credentials, CredentialsError> {
    Credentials::parse(&std::fs::read_to_string(path)?)
}

/// What a user JWT says (RFC 7519 section 4.1), as far as it matters here.
#[derive(Deserialize)]
struct UserClaims {
    /// The user: its public NKey.
    sub: String,
    /// In seconds since 1970. NATS writes 0, or nothing, for never.
    #[serde(default)]
    exp: u64,
}

fn user_of_nsc(text: &str) -> Result<Credentials, CredentialsError> {
    let seed = line_after(text, SEED_MARK).and_then(|seed| KeyPair::from_seed(seed).ok());
    let key = seed.ok_or(CredentialsError::Incomplete)?;
    let claims = user_claims(text).zip(line_after(text, JWT_MARK));
    let (claims, jwt) = claims.ok_or(CredentialsError::UnreadableJwt)?;
    match claims.sub == key.public_key() {
        true => Ok(Credentials::User { jwt: jwt.to_owned(), key }),
        false => Err(CredentialsError::OtherSeed),
    }
}

/// What the JWT in a file of nsc says. The servers check its signature.
fn user_claims(text: &str) -> Option<UserClaims> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(line_after(text, JWT_MARK)?.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}

fn line_after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.lines().skip_while(|line| !line.contains(mark)).nth(1).map(str::trim)
}

/// Whether the file at `path` has a user JWT that has expired at this time since 1970.
pub(crate) fn has_expired(path: &Path, now: Duration) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    user_claims(&text).is_some_and(|user| user.exp > 0 && Duration::from_secs(user.exp) <= now)
}

/// What begins like the seed of an NKey is one that is not complete.
fn is_token(line: &str) -> bool {
    !line.is_empty() && !line.starts_with(SEED_PREFIX) && !line.contains(char::is_whitespace)
}

/// Whether the file at `path` can be used; it is read again when a connection is opened.
pub fn check_credentials(path: &Path) -> Result<(), CredentialsError> {
    read(path).map(drop)
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

    /// A file of nsc, with a signature that only servers check.
    fn file_of_nsc(claims: &str, seed: &str) -> String {
        let claims = BASE64_URL_SAFE_NO_PAD.encode(claims);
        let jwt = format!("{JWT_MARK}\nhead.{claims}.signature\n------END NATS USER JWT------\n");
        format!("{jwt}\n{SEED_MARK}\n{seed}\n------END USER NKEY SEED------\n")
    }

    #[test]
    fn a_user_jwt_has_the_seed_of_its_user() {
        let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
        let claims = format!(r#"{{"sub":"{}"}}"#, user.public_key());
        check(&file_of_nsc(&claims, &user.seed().unwrap())).unwrap();
        let error = check(&file_of_nsc(&claims, &other.seed().unwrap())).unwrap_err();
        assert!(matches!(error, CredentialsError::OtherSeed));
        let error = check(&file_of_nsc("{}", &user.seed().unwrap())).unwrap_err();
        assert!(matches!(error, CredentialsError::UnreadableJwt));
    }

    #[test]
    fn a_jwt_expires_when_it_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        let expired = |claims: &str, now: u64| {
            std::fs::write(&path, file_of_nsc(claims, "")).unwrap();
            has_expired(&path, Duration::from_secs(now))
        };
        let claims = r#"{"sub":"U","exp":1000}"#;
        assert_eq!((expired(claims, 999), expired(claims, 1000)), (false, true));
        for never in [r#"{"sub":"U","exp":0}"#, r#"{"sub":"U"}"#] {
            assert!(!expired(never, 1000));
        }
        std::fs::write(&path, "node:password").unwrap();
        assert!(!has_expired(&path, Duration::MAX));
    }
}
