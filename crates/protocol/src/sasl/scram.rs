//! SCRAM-SHA-256 without channel binding: messages and proofs (RFC 5802, RFC 7677).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use mail::ScramKeys;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::message;
use super::{SaslConfig, SaslRefusal};

/// Octets of a client's nonce.
const NONCE_OCTETS_MAX: usize = 256;
/// Octets of the salt for unknown users; a common length.
const SALT_OCTETS: usize = 16;

/// The server's part of the nonce of one exchange. It makes an intercepted proof useless.
#[derive(Clone, PartialEq, Eq)]
pub struct Nonce(Box<str>);

impl Nonce {
    /// Octets of randomness in a nonce.
    pub const OCTETS: usize = 18;

    /// From cryptographically secure random octets, fresh for each exchange.
    pub fn from_random(octets: [u8; Nonce::OCTETS]) -> Nonce {
        Nonce(STANDARD.encode(octets).into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    #[cfg(test)]
    pub(super) fn from_text(text: &str) -> Nonce {
        Nonce(text.into())
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(..)")
    }
}

/// `client-first-message` (RFC 5802 section 7).
pub(super) struct ClientFirst {
    pub(super) user: Box<str>,
    header: Box<str>,
    bare: Box<str>,
    nonce: Box<str>,
}

impl ClientFirst {
    pub(super) fn read(octets: &[u8]) -> Result<ClientFirst, SaslRefusal> {
        let text = str::from_utf8(octets).map_err(|_| SaslRefusal::Malformed)?;
        let mut parts = text.splitn(3, ',');
        let (Some(flag), Some(authzid), Some(bare)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(SaslRefusal::Malformed);
        };
        match flag {
            // `y`: the client supports channel binding and thinks that we do not, which is correct.
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(SaslRefusal::Unsupported),
            _ => return Err(SaslRefusal::Malformed),
        }
        // A mandatory extension; none is supported.
        if bare.starts_with("m=") {
            return Err(SaslRefusal::Unsupported);
        }
        let mut fields = bare.split(',');
        let user = fields.next().and_then(|field| field.strip_prefix("n=")).ok_or(SaslRefusal::Malformed)?;
        let nonce = fields.next().and_then(|field| field.strip_prefix("r=")).ok_or(SaslRefusal::Malformed)?;
        if !is_nonce(nonce) || !fields.all(is_extension) {
            return Err(SaslRefusal::Malformed);
        }
        let user = message::prepare_user(unescape(user)?.as_bytes())?;
        if !authzid.is_empty() {
            let wanted = authzid.strip_prefix("a=").ok_or(SaslRefusal::Malformed)?;
            message::check_authzid(&unescape(wanted)?, &user)?;
        }
        let header = &text[..text.len() - bare.len()];
        Ok(ClientFirst { user, header: header.into(), bare: bare.into(), nonce: nonce.into() })
    }
}

/// The state between the server's first message and the client's proof.
pub(super) struct ScramExchange {
    user: Box<str>,
    keys: ScramKeys,
    /// Whether the user exists; if not, every proof fails.
    is_known: bool,
    header: Box<str>,
    nonce: Box<str>,
    /// `client-first-message-bare "," server-first-message`.
    messages: String,
}

impl ScramExchange {
    /// For a known user, with the stored keys and the name in the spelling of the lookup table.
    pub(super) fn known(first: ClientFirst, nonce: &Nonce, user: Box<str>, keys: ScramKeys) -> ScramExchange {
        ScramExchange::new(first, nonce, user, keys, true)
    }

    /// For an unknown user: with a stable salt, and keys for which no proof exists.
    pub(super) fn unknown(first: ClientFirst, nonce: &Nonce, config: &SaslConfig, iterations: u32) -> ScramExchange {
        // Lookup tables are not case-sensitive for user names, so names that differ in case get the
        // same salt.
        let user = first.user.to_lowercase();
        let made_up = |what: &[u8]| hmac(&config.secret, &[what, b"\0", user.as_bytes()]);
        let keys = ScramKeys {
            salt: made_up(b"salt")[..SALT_OCTETS].into(),
            iterations,
            stored_key: made_up(b"stored key"),
            server_key: made_up(b"server key"),
        };
        let user = first.user.clone();
        ScramExchange::new(first, nonce, user, keys, false)
    }

    fn new(first: ClientFirst, nonce: &Nonce, user: Box<str>, keys: ScramKeys, is_known: bool) -> ScramExchange {
        let nonce = [&first.nonce, &*nonce.0].concat();
        let challenge = format!("r={nonce},s={},i={}", STANDARD.encode(&keys.salt), keys.iterations);
        let messages = format!("{},{challenge}", first.bare);
        ScramExchange { user, keys, is_known, header: first.header, nonce: nonce.into(), messages }
    }

    /// `server-first-message`.
    pub(super) fn challenge(&self) -> &[u8] {
        let challenge = self.messages.rfind(",r=").map_or(0, |place| place + 1);
        &self.messages.as_bytes()[challenge..]
    }

    #[cfg(test)]
    pub(super) fn forget_user(&mut self) {
        self.is_known = false;
    }

    /// Verifies `client-final-message`; returns `server-final-message` and the user name.
    pub(super) fn prove(self, octets: &[u8]) -> Result<(Box<[u8]>, Box<str>), SaslRefusal> {
        let text = str::from_utf8(octets).map_err(|_| SaslRefusal::Malformed)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(SaslRefusal::Malformed)?;
        let mut fields = without_proof.split(',');
        let binding = fields.next().and_then(|field| field.strip_prefix("c=")).ok_or(SaslRefusal::Malformed)?;
        let nonce = fields.next().and_then(|field| field.strip_prefix("r=")).ok_or(SaslRefusal::Malformed)?;
        let proof = STANDARD.decode(proof).ok().and_then(|proof| <[u8; 32]>::try_from(proof).ok());
        let (true, Some(proof)) = (fields.all(is_extension), proof) else { return Err(SaslRefusal::Malformed) };
        // The header is repeated, so that an attacker cannot have changed it (RFC 5802 section 6).
        if STANDARD.encode(&*self.header) != binding || *self.nonce != *nonce {
            return Err(SaslRefusal::Credentials);
        }
        let messages = [self.messages.as_bytes(), b",", without_proof.as_bytes()];
        let mut client_key = hmac(&self.keys.stored_key, &messages);
        client_key.iter_mut().zip(proof).for_each(|(octet, proof)| *octet ^= proof);
        let is_right = Sha256::digest(client_key).as_slice().ct_eq(&self.keys.stored_key);
        let signature = hmac(&self.keys.server_key, &messages);
        if !(bool::from(is_right) && self.is_known) {
            return Err(SaslRefusal::Credentials);
        }
        Ok((format!("v={}", STANDARD.encode(signature)).into_bytes().into(), self.user))
    }
}

pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// `printable` without the comma (RFC 5802 section 7).
fn is_nonce(text: &str) -> bool {
    (1..=NONCE_OCTETS_MAX).contains(&text.len()) && text.bytes().all(|octet| octet.is_ascii_graphic() && octet != b',')
}

/// An optional extension: a letter, `=` and a value.
fn is_extension(field: &str) -> bool {
    matches!(field.as_bytes(), [letter, b'=', _, ..] if letter.is_ascii_alphabetic() && *letter != b'm')
}

/// Decodes `saslname`: `=2C` is a comma, `=3D` is an equals sign, other escapes are invalid (RFC
/// 5802 section 5.1).
fn unescape(name: &str) -> Result<String, SaslRefusal> {
    let mut pieces = name.split('=');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (letter, rest) = match piece {
            _ if piece.starts_with("2C") => (',', &piece[2..]),
            _ if piece.starts_with("3D") => ('=', &piece[2..]),
            _ => return Err(SaslRefusal::Malformed),
        };
        text.push(letter);
        text.push_str(rest);
    }
    Ok(text)
}
