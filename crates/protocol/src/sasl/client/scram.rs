//! The client's messages of SCRAM-SHA-256 (RFC 5802 section 7, RFC 7677).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use stringprep::saslprep;
use subtle::ConstantTimeEq;

use super::SaslViolation;
use crate::sasl::scram::hmac;
use crate::sasl::{Nonce, Secret};

/// Iterations that a server must demand (RFC 7677 section 4). With fewer, an attacker who pretends to be
/// the server could test passwords against the proof too quickly.
pub const SCRAM_ITERATIONS_MIN: u32 = 4096;
/// Iterations that a server may demand. A hundred thousand take some 50 milliseconds of a processor.
pub const SCRAM_ITERATIONS_MAX: u32 = 100_000;

/// No channel binding, and no other identity.
const HEADER: &str = "n,,";

/// The state before the server's first message.
pub(super) struct ScramClient {
    password: Secret,
    nonce: Box<str>,
    /// `client-first-message-bare`.
    first: String,
}

impl ScramClient {
    pub(super) fn new(user: &str, password: Secret, nonce: &Nonce) -> ScramClient {
        let name = saslprep(user).unwrap_or(user.into()).replace('=', "=3D").replace(',', "=2C");
        ScramClient { password, nonce: nonce.as_str().into(), first: format!("n={name},r={}", nonce.as_str()) }
    }

    pub(super) fn first_message(&self) -> Vec<u8> {
        [HEADER, &self.first].concat().into_bytes()
    }

    /// What `client-final-message` takes to compute.
    pub(super) fn begin_answer(self, challenge: &[u8]) -> Result<ScramWork, SaslViolation> {
        let server_first = str::from_utf8(challenge).map_err(|_| SaslViolation::Challenge)?;
        let ServerFirst { nonce, salt, iterations } = ServerFirst::parse(server_first, &self.nonce)?;
        let without_proof = format!("c={},r={nonce}", STANDARD.encode(HEADER));
        let messages = format!("{},{server_first},{without_proof}", self.first);
        Ok(ScramWork { password: self.password, salt, iterations, messages, without_proof })
    }
}

/// The computation of a proof: up to [`SCRAM_ITERATIONS_MAX`] iterations, so not for a thread on which
/// others wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramWork {
    password: Secret,
    salt: Vec<u8>,
    iterations: u32,
    /// `AuthMessage` of RFC 5802 section 3.
    messages: String,
    /// `client-final-message-without-proof`.
    without_proof: String,
}

/// The result of a [`ScramWork`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramProof {
    /// `client-final-message`.
    pub(super) response: Vec<u8>,
    pub(super) server: ServerProof,
}

impl ScramWork {
    /// Computes the proof (RFC 5802 section 3).
    pub fn compute(self) -> ScramProof {
        let messages = [self.messages.as_bytes()];
        let salted = salted_password(&self.password, &self.salt, self.iterations);
        let client_key = hmac(&salted, &[b"Client Key"]);
        let mut proof = hmac(&Sha256::digest(client_key), &messages);
        proof.iter_mut().zip(client_key).for_each(|(octet, key)| *octet ^= key);
        let server_key = hmac(&salted, &[b"Server Key"]);
        let response = format!("{},p={}", self.without_proof, STANDARD.encode(proof)).into_bytes();
        ScramProof { response, server: ServerProof(hmac(&server_key, &messages)) }
    }
}

/// What the server must prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerProof([u8; 32]);

impl ServerProof {
    /// `server-final-message`.
    pub(super) fn is_proved_by(&self, message: &[u8]) -> bool {
        let verifier = message.strip_prefix(b"v=").unwrap_or_default();
        let verifier = verifier.split(|octet| *octet == b',').next().unwrap_or_default();
        STANDARD.decode(verifier).is_ok_and(|verifier| bool::from(verifier.as_slice().ct_eq(&self.0)))
    }
}

/// `server-first-message`.
struct ServerFirst<'a> {
    nonce: &'a str,
    salt: Vec<u8>,
    iterations: u32,
}

impl<'a> ServerFirst<'a> {
    /// The nonce begins with ours and is longer. A mandatory extension (`m=`) is not supported.
    fn parse(text: &'a str, our_nonce: &str) -> Result<ServerFirst<'a>, SaslViolation> {
        let mut fields = text.split(',');
        let mut field = |prefix: &str| fields.next().and_then(|field| field.strip_prefix(prefix));
        let (Some(nonce), Some(salt), Some(iterations)) = (field("r="), field("s="), field("i=")) else {
            return Err(SaslViolation::Challenge);
        };
        let is_extended = nonce.strip_prefix(our_nonce).is_some_and(|theirs| !theirs.is_empty());
        let salt = STANDARD.decode(salt).ok().filter(|salt| is_extended && !salt.is_empty());
        let (Some(salt), Ok(iterations)) = (salt, iterations.parse::<u32>()) else {
            return Err(SaslViolation::Challenge);
        };
        match iterations {
            SCRAM_ITERATIONS_MIN..=SCRAM_ITERATIONS_MAX => Ok(ServerFirst { nonce, salt, iterations }),
            _ => Err(SaslViolation::Iterations),
        }
    }
}

/// `Hi` of RFC 5802 section 2.2, which is PBKDF2 with one block.
fn salted_password(password: &Secret, salt: &[u8], iterations: u32) -> [u8; 32] {
    let prepared = saslprep(password.reveal()).unwrap_or(password.reveal().into());
    let keyed = Hmac::<Sha256>::new_from_slice(prepared.as_bytes()).expect("HMAC accepts keys of any length");
    let step = |octets: &[u8]| -> [u8; 32] { keyed.clone().chain_update(octets).finalize().into_bytes().into() };
    let mut last = step(&[salt, &1_u32.to_be_bytes()].concat());
    let mut salted = last;
    for _ in 1..iterations {
        last = step(&last);
        salted.iter_mut().zip(last).for_each(|(octet, other)| *octet ^= other);
    }
    salted
}
