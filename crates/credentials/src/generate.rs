//! Generates stored passwords.

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::password::{PASSWORD_OCTETS_MAX, is_acceptable};
use super::scram;

/// Argon2id memory in KiB, passes and lanes, from OWASP's Password Storage Cheat Sheet.
const ARGON2ID: (u32, u32, u32) = (19 * 1024, 2, 1);
const HASH_OCTETS: usize = 32;
/// Octets of a salt (RFC 9106 section 3.1).
pub const SALT_OCTETS: usize = 16;
/// The default SCRAM iterations (RFC 7677 section 4).
pub const SCRAM_ITERATIONS: u32 = 4096;

/// A password that no client could log in with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unusable password: it needs 1 to {PASSWORD_OCTETS_MAX} octets, no control characters, and some text left by SASLprep"
)]
pub struct UnusablePassword;

/// `{ARGON2ID}$argon2id$...`. The salt must be random, from a cryptographic source.
pub fn hash_argon2id(password: &str, salt: [u8; SALT_OCTETS]) -> Result<String, UnusablePassword> {
    check(password)?;
    let (memory, passes, lanes) = ARGON2ID;
    let params = Params::new(memory, passes, lanes, Some(HASH_OCTETS)).expect("OWASP's parameters are valid");
    let mut hash = [0; HASH_OCTETS];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(password.as_bytes(), &salt, &mut hash)
        .expect("a checked password, a salt of 16 octets and 19 MiB of memory suffice");
    let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
    Ok(format!("{{ARGON2ID}}$argon2id$v=19$m={memory},t={passes},p={lanes}${salt}${hash}"))
}

/// `{SCRAM-SHA-256}4096,...`, which works with PLAIN, LOGIN and SCRAM. The salt must be random,
/// from a cryptographic source.
pub fn hash_scram_sha_256(password: &str, salt: [u8; SALT_OCTETS]) -> Result<String, UnusablePassword> {
    check(password)?;
    let keys = scram::keys(password, &salt, SCRAM_ITERATIONS);
    let [salt, stored, server] = [&*keys.salt, &keys.stored_key, &keys.server_key].map(|part| STANDARD.encode(part));
    Ok(format!("{{SCRAM-SHA-256}}{SCRAM_ITERATIONS},{salt},{stored},{server}"))
}

fn check(password: &str) -> Result<(), UnusablePassword> {
    let is_empty = stringprep::saslprep(password).is_ok_and(|prepared| prepared.is_empty());
    let is_fit = is_acceptable(password) && !password.chars().any(char::is_control) && !is_empty;
    if is_fit { Ok(()) } else { Err(UnusablePassword) }
}
