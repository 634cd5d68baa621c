//! SHA-256 and SHA-512 crypt(3), with the text encoding of the C libraries (Drepper, "Unix crypt
//! using SHA-256 and SHA-512").

use sha_crypt::Params;

/// The longest salt, in octets; crypt(3) uses the first 16.
pub(super) const SALT_OCTETS_MAX: usize = 64;

const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The length of an encoded hash.
pub(super) fn hash_octets(is_sha512: bool) -> usize {
    if is_sha512 { 86 } else { 43 }
}

/// The encoded hash without salt and prefix; `is_sha512` selects SHA-512. Rounds out of range mean
/// the default of 5000; the parser rejects them earlier.
pub(super) fn sha_crypt(is_sha512: bool, password: &[u8], salt: &str, rounds: u32) -> String {
    let params = Params::new(rounds).unwrap_or_default();
    let mut text = String::with_capacity(hash_octets(is_sha512));
    if is_sha512 {
        let hash = sha_crypt::sha512_crypt(password, salt.as_bytes(), params);
        let mut turn = [0, 21, 42];
        for _ in 0..21 {
            push(&mut text, turn.map(|place| hash[place]), 4);
            turn = [turn[1] + 1, turn[2] + 1, turn[0] + 1];
        }
        push(&mut text, [0, 0, hash[63]], 2);
    } else {
        let hash = sha_crypt::sha256_crypt(password, salt.as_bytes(), params);
        let mut turn = [0, 10, 20];
        for _ in 0..10 {
            push(&mut text, turn.map(|place| hash[place]), 4);
            turn = [turn[2] + 1, turn[0] + 1, turn[1] + 1];
        }
        push(&mut text, [0, hash[31], hash[30]], 3);
    }
    text
}

/// Encodes 24 bits as this number of characters, lowest bits first.
fn push(text: &mut String, octets: [u8; 3], characters: usize) {
    let mut bits = octets.iter().fold(0, |bits, &octet| bits << 8 | usize::from(octet));
    for _ in 0..characters {
        text.push(ALPHABET[bits % 64].into());
        bits /= 64;
    }
}
