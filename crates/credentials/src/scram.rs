//! Derives SCRAM-SHA-256 keys from passwords (RFC 5802 section 3, RFC 7677).

use hmac::{Hmac, KeyInit, Mac};
use mail::ScramKeys;
use sha2::{Digest, Sha256};

/// The keys of a password after SASLprep (RFC 5802 section 2.2). If SASLprep fails or leaves
/// nothing, the password is used unchanged, as clients do. Iterations of 0 count as 1.
pub(super) fn keys(password: &str, salt: &[u8], iterations: u32) -> ScramKeys {
    let prepared = stringprep::saslprep(password).ok().filter(|prepared| !prepared.is_empty());
    let prepared = prepared.unwrap_or(password.into());
    let mut salted = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(prepared.as_bytes(), salt, iterations.max(1), &mut salted);
    let stored_key = Sha256::digest(hmac(&salted, b"Client Key")).into();
    ScramKeys { salt: salt.into(), iterations, stored_key, server_key: hmac(&salted, b"Server Key") }
}

/// HMAC-SHA-256.
pub(super) fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}
