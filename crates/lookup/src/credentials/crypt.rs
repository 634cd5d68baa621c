//! crypt(3) with SHA-256 and SHA-512: the text of a hash, as the C libraries write it (Drepper, "Unix crypt using SHA-256
//! and SHA-512").

use sha_crypt::Params;

/// The longest salt, in octets; crypt(3) cuts off what is beyond 16.
pub(super) const SALT_OCTETS_MAX: usize = 64;

const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The length of the text of a hash.
pub(super) fn hash_octets(is_wide: bool) -> usize {
    if is_wide { 86 } else { 43 }
}

/// The text of the hash alone, without the salt. `is_wide` is SHA-512. Rounds out of bounds are the usual 5000, which
/// whoever reads a stored hash has refused before.
pub(super) fn sha_crypt(is_wide: bool, password: &[u8], salt: &str, rounds: u32) -> String {
    let params = Params::new(rounds).unwrap_or_default();
    let mut text = String::with_capacity(hash_octets(is_wide));
    if is_wide {
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

/// So many characters of 24 bits, the lowest bits first.
fn push(text: &mut String, octets: [u8; 3], characters: usize) {
    let mut bits = octets.iter().fold(0, |bits, &octet| bits << 8 | usize::from(octet));
    for _ in 0..characters {
        text.push(ALPHABET[bits % 64].into());
        bits /= 64;
    }
}
