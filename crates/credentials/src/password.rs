//! Stored passwords in the formats of other servers and directories, parsed once and then checked.
//!
//! | format                                              | scheme                                 | SCRAM           |
//! |-----------------------------------------------------|----------------------------------------|-----------------|
//! | `$argon2id$v=19$m=19456,t=2,p=1$...`, also `$argon2i$` | RFC 9106; also after `{ARGON2ID}`, `{ARGON2I}`, `{ARGON2}` | no |
//! | `$2b$12$...`, `$2y$`, `$2a$`                        | bcrypt; also after `{BLF-CRYPT}`       | no              |
//! | `$6$...`, `$5$...`                                  | crypt(3) with SHA-512 or SHA-256; also after `{SHA512-CRYPT}`, `{SHA256-CRYPT}` | no |
//! | `{SSHA}`, `{SSHA256}`, `{SSHA512}`                  | one round of salted SHA: weak          | no              |
//! | `{SCRAM-SHA-256}4096,salt,stored,server`            | RFC 7677, as Dovecot writes it         | yes             |
//! | `{PLAIN}`, `{CLEARTEXT}`                            | the password in plain text             | yes             |
//!
//! `{CRYPT}` may precede any of those that begin with `$`. Parameters beyond the limits below are
//! an error, so that one line of a table cannot use up memory or minutes of CPU time.

#[cfg(test)]
#[path = "password_tests.rs"]
mod tests;

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use mail::ScramKeys;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{crypt, scram};

/// The longest password that is checked, in octets. The work of some hashes grows with it.
pub const PASSWORD_OCTETS_MAX: usize = 512;
/// The maximum memory for Argon2, in KiB.
pub const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1024;
/// The maximum work for Argon2: memory in KiB times passes.
pub const ARGON2_WORK_MAX: u64 = 1024 * 1024;
/// The maximum cost for bcrypt, about a second.
pub const BCRYPT_COST_MAX: u32 = 14;
/// The minimum cost for bcrypt.
const BCRYPT_COST_MIN: u32 = 4;
/// The maximum rounds for SHA crypt(3).
pub const SHA_CRYPT_ROUNDS_MAX: u32 = 1_000_000;
/// The maximum iterations for SCRAM.
pub const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;
/// The longest stored password, in octets.
const STORED_OCTETS_MAX: usize = 2048;
/// The longest salt or hash, in octets.
const PART_OCTETS_MAX: usize = 128;
/// The shortest Argon2 hash, in octets. RFC 9106 allows four, which would be insecure.
const ARGON2_HASH_OCTETS_MIN: usize = 16;

/// Why a text is not a usable stored password. Contains no part of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredPasswordError {
    /// Neither `{SCHEME}` nor `$id$` at the beginning.
    #[error("stored password without a known scheme: expected a prefix such as {{ARGON2ID}}, $2b$ or $6$")]
    NoScheme,
    /// A known but unsupported scheme. Unknown names are not shown, because they may be part of a
    /// password.
    #[error("unsupported password scheme {0}")]
    UnknownScheme(&'static str),
    /// Locked: `!` or `*` in place of the hash, as in shadow(5), with or without a scheme.
    #[error("locked password")]
    Locked,
    /// The text does not match the format of its scheme.
    #[error("malformed stored password: {0}")]
    Malformed(&'static str),
    /// Checking the password would cost too much.
    #[error("stored password too costly to check: {scheme} {what} is {found}, at most {max} allowed")]
    TooCostly {
        /// The scheme.
        scheme: &'static str,
        /// The parameter.
        what: &'static str,
        /// Its maximum.
        max: u64,
        /// Its value.
        found: u64,
    },
    /// The entry has no stored password, or too many.
    #[error("{0} stored passwords: expected 1 to {HASHES_MAX}")]
    Count(usize),
}

/// Unsupported schemes in braces.
const UNSUPPORTED_SCHEMES: [&str; 29] = [
    "{CLEAR}",
    "{CRAM-MD5}",
    "{DES-CRYPT}",
    "{DIGEST-MD5}",
    "{HMAC-MD5}",
    "{LANMAN}",
    "{LDAP-MD5}",
    "{LM}",
    "{MD5}",
    "{MD5-CRYPT}",
    "{NT}",
    "{NTLM}",
    "{OTP}",
    "{PBKDF2}",
    "{PBKDF2-SHA1}",
    "{PBKDF2-SHA256}",
    "{PBKDF2-SHA512}",
    "{PKCS5S2}",
    "{PLAIN-MD4}",
    "{PLAIN-MD5}",
    "{SASL}",
    "{SCRAM-SHA-1}",
    "{SCRAM-SHA-512}",
    "{SHA}",
    "{SHA1}",
    "{SHA256}",
    "{SHA384}",
    "{SHA512}",
    "{SMD5}",
];
/// Unsupported schemes of crypt(3) and similar formats.
const UNSUPPORTED_CRYPT_IDS: [&str; 20] = [
    "$1$",
    "$2$",
    "$2x$",
    "$3$",
    "$7$",
    "$8$",
    "$H$",
    "$P$",
    "$S$",
    "$apr1$",
    "$argon2d$",
    "$bcrypt-sha256$",
    "$gy$",
    "$md5$",
    "$pbkdf2$",
    "$pbkdf2-sha256$",
    "$pbkdf2-sha512$",
    "$scrypt$",
    "$sha1$",
    "$y$",
];

/// The hash could not be computed, for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot compute {0}: out of memory?")]
pub struct HashComputationError(&'static str);

/// The maximum number of stored passwords per user. Each that does not match costs its time.
pub const HASHES_MAX: usize = 4;

/// A stored password. `Debug` shows only its scheme.
#[derive(Clone)]
pub struct StoredPassword(Scheme);

#[derive(Clone)]
enum Scheme {
    Argon2(Box<Argon2Hash>),
    Bcrypt(Box<str>),
    ShaCrypt { is_sha512: bool, rounds: u32, salt: Box<str>, hash: Box<str> },
    Salted { digest: SaltedDigest, hash: Box<[u8]>, salt: Box<[u8]> },
    Scram(Box<ScramKeys>),
    Plain(Zeroizing<String>),
}

#[derive(Clone)]
struct Argon2Hash {
    algorithm: Algorithm,
    version: Version,
    params: Params,
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

/// The cost of checking a stored password: its scheme and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    scheme: &'static str,
    numbers: [u32; 3],
}

impl Cost {
    /// A unique encoding.
    pub(super) fn octets(&self) -> Vec<u8> {
        let numbers = self.numbers.iter().flat_map(|number| number.to_be_bytes());
        self.scheme.bytes().chain([0]).chain(numbers).collect()
    }
}

#[derive(Clone, Copy)]
enum SaltedDigest {
    Sha1,
    Sha256,
    Sha512,
}

impl StoredPassword {
    /// Parses a stored password.
    pub fn parse(text: &str) -> Result<StoredPassword, StoredPasswordError> {
        let text = text.trim();
        if text.len() > STORED_OCTETS_MAX {
            return Err(too_costly("text", "length in octets", STORED_OCTETS_MAX as u64, text.len() as u64));
        }
        if is_locked(text) {
            return Err(StoredPasswordError::Locked);
        }
        let Some(named) = text.strip_prefix('{') else { return parse_crypt(text).map(StoredPassword) };
        let (name, rest) = named.split_once('}').ok_or(StoredPasswordError::NoScheme)?;
        let salted = |digest, name, octets| parse_salted(rest, digest, name, octets);
        let scheme = match &*name.to_ascii_uppercase() {
            "PLAIN" | "CLEARTEXT" if rest.is_empty() => return Err(StoredPasswordError::Malformed("PLAIN")),
            "PLAIN" | "CLEARTEXT" => Scheme::Plain(Zeroizing::new(rest.to_owned())),
            "SSHA" => salted(SaltedDigest::Sha1, "SSHA", 20)?,
            "SSHA256" => salted(SaltedDigest::Sha256, "SSHA256", 32)?,
            "SSHA512" => salted(SaltedDigest::Sha512, "SSHA512", 64)?,
            "SCRAM-SHA-256" => Scheme::Scram(parse_scram_keys(rest)?.into()),
            "CRYPT" => parse_crypt(rest)?,
            "ARGON2" | "ARGON2I" | "ARGON2ID" if rest.starts_with("$argon2") => parse_crypt(rest)?,
            "ARGON2" | "ARGON2I" | "ARGON2ID" => return Err(StoredPasswordError::Malformed("Argon2")),
            "BLF-CRYPT" if rest.starts_with("$2") => parse_crypt(rest)?,
            "BLF-CRYPT" => return Err(StoredPasswordError::Malformed("bcrypt")),
            "SHA512-CRYPT" if rest.starts_with("$6$") => parse_crypt(rest)?,
            "SHA256-CRYPT" if rest.starts_with("$5$") => parse_crypt(rest)?,
            "SHA512-CRYPT" | "SHA256-CRYPT" => return Err(StoredPasswordError::Malformed("SHA-crypt")),
            name => return Err(unsupported_scheme(&UNSUPPORTED_SCHEMES, &format!("{{{name}}}"))),
        };
        Ok(StoredPassword(scheme))
    }

    /// Parses the passwords of one user from the values of a table. Tables split values at commas,
    /// which Argon2 and SCRAM formats contain, so a value without `{` or `$` continues such a
    /// password; after any other it is an error. If the first password is locked, so is the user.
    pub fn parse_all(values: &[String]) -> Result<Vec<StoredPassword>, StoredPasswordError> {
        let mut texts: Vec<Zeroizing<String>> = Vec::new();
        for value in values {
            match texts.last_mut() {
                Some(text) if !value.starts_with(['{', '$']) && has_commas(text) => {
                    text.push(',');
                    text.push_str(value);
                }
                _ => texts.push(Zeroizing::new(value.clone())),
            }
        }
        if texts.iter().skip(1).any(|text| is_locked(text.trim())) {
            return Err(StoredPasswordError::NoScheme);
        }
        if !(1..=HASHES_MAX).contains(&texts.len()) {
            return Err(StoredPasswordError::Count(texts.len()));
        }
        texts.iter().map(|text| StoredPassword::parse(text)).collect()
    }

    /// Checks a password. Takes as long as the scheme does, up to a second; a password that is
    /// empty, too long or contains NUL fails without computing. The final comparison takes constant
    /// time.
    pub fn verify(&self, password: &str) -> Result<bool, HashComputationError> {
        if !is_acceptable(password) {
            return Ok(false);
        }
        let octets = password.as_bytes();
        let is_right = match &self.0 {
            Scheme::Argon2(argon) => argon.verify(octets).map_err(|_| HashComputationError(self.scheme()))?,
            Scheme::Bcrypt(text) => bcrypt::verify(octets, text).map_err(|_| HashComputationError(self.scheme()))?,
            Scheme::ShaCrypt { is_sha512: is_wide, rounds, salt, hash } => {
                crypt::sha_crypt(*is_wide, octets, salt, *rounds).as_bytes().ct_eq(hash.as_bytes()).into()
            }
            Scheme::Salted { digest, hash, salt } => digest.hash(octets, salt).ct_eq(hash).into(),
            Scheme::Scram(keys) => {
                let made = scram::keys(password, &keys.salt, keys.iterations);
                (made.stored_key.ct_eq(&keys.stored_key) & made.server_key.ct_eq(&keys.server_key)).into()
            }
            Scheme::Plain(plain) => plain.as_bytes().ct_eq(octets).into(),
        };
        Ok(is_right)
    }

    /// Checks a password against several stored ones until one matches. If none does, an error
    /// takes precedence.
    pub(super) fn verify_any(all: &[StoredPassword], password: &str) -> Result<bool, HashComputationError> {
        let mut ended = Ok(false);
        for stored in all {
            match stored.verify(password) {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(error) => ended = Err(error),
            }
        }
        ended
    }

    /// The SCRAM keys, if stored or derivable. For a plain-text password they are derived with this
    /// salt and these iterations, which takes milliseconds.
    pub fn scram_keys(&self, salt: &[u8], iterations: u32) -> Option<ScramKeys> {
        match &self.0 {
            Scheme::Scram(keys) => Some((**keys).clone()),
            Scheme::Plain(plain) => Some(scram::keys(plain, salt, iterations)),
            _ => None,
        }
    }

    /// The name of the scheme.
    pub fn scheme(&self) -> &'static str {
        match &self.0 {
            Scheme::Argon2(_) => "Argon2",
            Scheme::Bcrypt(_) => "bcrypt",
            Scheme::ShaCrypt { is_sha512: true, .. } => "SHA512-CRYPT",
            Scheme::ShaCrypt { .. } => "SHA256-CRYPT",
            Scheme::Salted { digest: SaltedDigest::Sha1, .. } => "SSHA",
            Scheme::Salted { digest: SaltedDigest::Sha256, .. } => "SSHA256",
            Scheme::Salted { digest: SaltedDigest::Sha512, .. } => "SSHA512",
            Scheme::Scram(_) => "SCRAM-SHA-256",
            Scheme::Plain(_) => "PLAIN",
        }
    }

    /// A warning for the operator about a plain-text or weakly hashed password.
    pub fn weak_password_warning(&self) -> Option<&'static str> {
        match &self.0 {
            Scheme::Plain(_) => Some("passwords are stored in plain text: anyone who can read the table knows them"),
            Scheme::Salted { .. } => {
                Some("passwords are stored as one round of SHA: anyone with the table can guess most")
            }
            _ => None,
        }
    }

    /// The cost of checking it; equal for equal scheme and parameters.
    pub(super) fn cost(&self) -> Cost {
        let numbers = match &self.0 {
            Scheme::Argon2(argon) => [argon.params.m_cost(), argon.params.t_cost(), argon.params.p_cost()],
            // For example `$2b$12$`.
            Scheme::Bcrypt(text) => {
                [text.split('$').nth(2).and_then(|cost| cost.parse().ok()).unwrap_or_default(), 0, 0]
            }
            Scheme::ShaCrypt { rounds, .. } => [*rounds, 0, 0],
            Scheme::Scram(keys) => [keys.iterations, 0, 0],
            Scheme::Salted { .. } | Scheme::Plain(_) => [0; 3],
        };
        Cost { scheme: self.scheme(), numbers }
    }

    /// The iterations of its SCRAM keys, if it can have any.
    pub(super) fn scram_iterations(&self, of_clear_text: u32) -> Option<u32> {
        match &self.0 {
            Scheme::Scram(keys) => Some(keys.iterations),
            Scheme::Plain(_) => Some(of_clear_text),
            _ => None,
        }
    }

    /// A hash of the same cost that matches no password, to compute for unknown users.
    pub(super) fn unmatched(&self) -> StoredPassword {
        match &self.0 {
            Scheme::Plain(_) => StoredPassword(Scheme::Plain(Zeroizing::new("\0".to_owned()))),
            other => StoredPassword(other.clone()),
        }
    }
}

impl fmt::Debug for StoredPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({})", self.scheme())
    }
}

impl Argon2Hash {
    fn verify(&self, password: &[u8]) -> Result<bool, argon2::Error> {
        let argon = Argon2::new(self.algorithm, self.version, self.params.clone());
        let mut made = vec![0; self.hash.len()];
        // Fails if memory runs out.
        argon.hash_password_into(password, &self.salt, &mut made)?;
        Ok(made.ct_eq(&self.hash).into())
    }
}

impl SaltedDigest {
    fn hash(self, password: &[u8], salt: &[u8]) -> Vec<u8> {
        match self {
            SaltedDigest::Sha1 => Sha1::new().chain_update(password).chain_update(salt).finalize().to_vec(),
            SaltedDigest::Sha256 => Sha256::new().chain_update(password).chain_update(salt).finalize().to_vec(),
            SaltedDigest::Sha512 => Sha512::new().chain_update(password).chain_update(salt).finalize().to_vec(),
        }
    }
}

/// Whether any user could have this password.
pub(super) fn is_acceptable(password: &str) -> bool {
    (1..=PASSWORD_OCTETS_MAX).contains(&password.len()) && !password.contains('\0')
}

/// The error for an unknown or unsupported scheme.
fn unsupported_scheme(known: &[&'static str], scheme: &str) -> StoredPasswordError {
    known
        .iter()
        .find(|known| **known == scheme)
        .map_or(StoredPasswordError::NoScheme, |known| StoredPasswordError::UnknownScheme(known))
}

/// Whether `!` or `*` is in place of a hash. A plain-text password may begin so.
fn is_locked(text: &str) -> bool {
    let is_clear = |name: &str| ["PLAIN", "CLEARTEXT"].iter().any(|clear| clear.eq_ignore_ascii_case(name));
    let hash = match text.strip_prefix('{').and_then(|named| named.split_once('}')) {
        Some((name, _)) if is_clear(name) => return false,
        Some((_, hash)) => hash,
        None => text,
    };
    hash.starts_with(['!', '*'])
}

/// Whether the text after a comma may belong to it.
fn has_commas(text: &str) -> bool {
    let text = text.trim_start().to_ascii_uppercase();
    ["{SCRAM-SHA-256}", "{ARGON2", "$ARGON2", "{CRYPT}$ARGON2"].iter().any(|start| text.starts_with(start))
}

fn too_costly(scheme: &'static str, what: &'static str, max: u64, found: u64) -> StoredPasswordError {
    StoredPasswordError::TooCostly { scheme, what, max, found }
}

/// Modular crypt format: `$id$...`.
fn parse_crypt(text: &str) -> Result<Scheme, StoredPasswordError> {
    let id = text.strip_prefix('$').and_then(|rest| rest.split_once('$')).ok_or(StoredPasswordError::NoScheme)?.0;
    match id {
        "argon2id" => parse_argon2(text, Algorithm::Argon2id),
        "argon2i" => parse_argon2(text, Algorithm::Argon2i),
        "2a" | "2b" | "2y" => parse_bcrypt(text),
        "5" | "6" => parse_sha_crypt(text),
        id => Err(unsupported_scheme(&UNSUPPORTED_CRYPT_IDS, &format!("${id}$"))),
    }
}

/// `$argon2id$v=19$m=65536,t=3,p=4$salt$hash`.
fn parse_argon2(text: &str, algorithm: Algorithm) -> Result<Scheme, StoredPasswordError> {
    const NAME: &str = "Argon2";
    let malformed = || StoredPasswordError::Malformed(NAME);
    let mut parts: Vec<&str> = text.split('$').skip(2).collect();
    let version = match parts.first().and_then(|part| part.strip_prefix("v=")) {
        Some("19") => Version::V0x13,
        Some("16") => Version::V0x10,
        Some(_) => return Err(malformed()),
        // Version 1.0 had no version field.
        None => {
            parts.insert(0, "");
            Version::V0x10
        }
    };
    let [_, costs, salt, hash] = parts[..] else { return Err(malformed()) };
    let mut numbers =
        costs.split(',').zip(["m=", "t=", "p="]).map(|(cost, name)| cost.strip_prefix(name)?.parse().ok());
    let mut number = || numbers.next().flatten().ok_or_else(malformed);
    let (memory, passes, lanes): (u32, u32, u32) = (number()?, number()?, number()?);
    if costs.split(',').count() != 3 {
        return Err(malformed());
    }
    if memory > ARGON2_MEMORY_KIB_MAX {
        return Err(too_costly(NAME, "memory in KiB", ARGON2_MEMORY_KIB_MAX.into(), memory.into()));
    }
    let work = u64::from(memory) * u64::from(passes);
    if work > ARGON2_WORK_MAX {
        return Err(too_costly(NAME, "memory in KiB times passes", ARGON2_WORK_MAX, work));
    }
    let part = |text| STANDARD_NO_PAD.decode(text).ok().filter(|octets| octets.len() <= PART_OCTETS_MAX);
    let (salt, hash) = part(salt).zip(part(hash)).ok_or_else(malformed)?;
    let params = Params::new(memory, passes, lanes, Some(hash.len())).map_err(|_| malformed())?;
    if salt.len() < argon2::MIN_SALT_LEN || hash.len() < ARGON2_HASH_OCTETS_MIN {
        return Err(malformed());
    }
    Ok(Scheme::Argon2(Box::new(Argon2Hash { algorithm, version, params, salt: salt.into(), hash: hash.into() })))
}

fn parse_bcrypt(text: &str) -> Result<Scheme, StoredPasswordError> {
    const NAME: &str = "bcrypt";
    let parts: bcrypt::HashParts = text.parse().map_err(|_| StoredPasswordError::Malformed(NAME))?;
    let cost = parts.get_cost();
    if cost > BCRYPT_COST_MAX {
        return Err(too_costly(NAME, "cost", BCRYPT_COST_MAX.into(), cost.into()));
    }
    if cost < BCRYPT_COST_MIN { Err(StoredPasswordError::Malformed(NAME)) } else { Ok(Scheme::Bcrypt(text.into())) }
}

/// `$6$rounds=5000$salt$hash`; the rounds are optional.
fn parse_sha_crypt(text: &str) -> Result<Scheme, StoredPasswordError> {
    const NAME: &str = "SHA-crypt";
    let malformed = || StoredPasswordError::Malformed(NAME);
    let is_wide = text.starts_with("$6$");
    let mut parts = text[3..].split('$').peekable();
    let rounds = match parts.peek().and_then(|part| part.strip_prefix("rounds=")) {
        Some(rounds) => {
            parts.next();
            rounds.parse().map_err(|_| malformed())?
        }
        None => sha_crypt::Params::RECOMMENDED_ROUNDS,
    };
    if rounds > SHA_CRYPT_ROUNDS_MAX {
        return Err(too_costly(NAME, "rounds", SHA_CRYPT_ROUNDS_MAX.into(), rounds.into()));
    }
    let (Some(salt), Some(hash), None) = (parts.next(), parts.next(), parts.next()) else { return Err(malformed()) };
    let is_whole = hash.len() == crypt::hash_octets(is_wide) && rounds >= sha_crypt::Params::ROUNDS_MIN;
    if !is_whole || salt.len() > crypt::SALT_OCTETS_MAX {
        return Err(malformed());
    }
    Ok(Scheme::ShaCrypt { is_sha512: is_wide, rounds, salt: salt.into(), hash: hash.into() })
}

/// Digest and salt together, in base64.
fn parse_salted(
    text: &str,
    digest: SaltedDigest,
    name: &'static str,
    octets: usize,
) -> Result<Scheme, StoredPasswordError> {
    let malformed = || StoredPasswordError::Malformed(name);
    let whole = STANDARD.decode(text).map_err(|_| malformed())?;
    let (hash, salt) = whole.split_at_checked(octets).ok_or_else(malformed)?;
    if salt.len() > PART_OCTETS_MAX {
        return Err(malformed());
    }
    Ok(Scheme::Salted { digest, hash: hash.into(), salt: salt.into() })
}

/// `iterations,salt,StoredKey,ServerKey`, the last three in base64.
fn parse_scram_keys(text: &str) -> Result<ScramKeys, StoredPasswordError> {
    const NAME: &str = "SCRAM-SHA-256";
    let malformed = || StoredPasswordError::Malformed(NAME);
    let parts: Vec<&str> = text.split(',').collect();
    let [iterations, salt, stored_key, server_key] = parts[..] else { return Err(malformed()) };
    let iterations: u32 = iterations.parse().map_err(|_| malformed())?;
    if iterations > SCRAM_ITERATIONS_MAX {
        return Err(too_costly(NAME, "iterations", SCRAM_ITERATIONS_MAX.into(), iterations.into()));
    }
    let salt = STANDARD.decode(salt).ok().filter(|salt| (1..=PART_OCTETS_MAX).contains(&salt.len()));
    let key = |text| STANDARD.decode(text).ok().and_then(|key| key.try_into().ok()).ok_or_else(malformed);
    let (Some(salt), 1..) = (salt, iterations) else { return Err(malformed()) };
    Ok(ScramKeys { salt: salt.into(), iterations, stored_key: key(stored_key)?, server_key: key(server_key)? })
}
