//! Passwords as they are stored: the forms that other servers and directories write, read once and then checked.
//!
//! | form                                                | what                                   | proves by SCRAM |
//! |-----------------------------------------------------|----------------------------------------|-----------------|
//! | `$argon2id$v=19$m=19456,t=2,p=1$...` (`argon2i` too) | RFC 9106; also after `{ARGON2ID}` and the like | no      |
//! | `$2b$12$...`, `$2y$`, `$2a$`                        | bcrypt; also after `{BLF-CRYPT}`       | no              |
//! | `$6$...`, `$5$...`                                  | crypt(3) with SHA-512 or SHA-256; also after `{SHA512-CRYPT}`, `{SHA256-CRYPT}` | no |
//! | `{SSHA}`, `{SSHA256}`, `{SSHA512}`                  | one round of SHA with a salt: weak     | no              |
//! | `{SCRAM-SHA-256}4096,salt,stored,server`            | RFC 7677, as Dovecot writes it         | yes             |
//! | `{PLAIN}`, `{CLEARTEXT}`                            | the password itself: whoever reads the table has it | yes |
//!
//! `{CRYPT}` stands before any of those that begin with `$`. Whatever says more than the limits here allow is no stored
//! password but an error: checking one must not take all memory or minutes of a processor because of one line of a table.

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

/// The longest password that is looked at, in octets: the work of some hashes grows with it.
pub const PASSWORD_OCTETS_MAX: usize = 512;
/// The most memory that Argon2 may take, in KiB.
pub const ARGON2_MEMORY_KIB_MAX: u32 = 256 * 1024;
/// The most work of Argon2: memory in KiB times passes.
pub const ARGON2_WORK_MAX: u64 = 1024 * 1024;
/// The highest cost of bcrypt: about a second.
pub const BCRYPT_COST_MAX: u32 = 14;
/// The lowest cost of bcrypt.
const BCRYPT_COST_MIN: u32 = 4;
/// The most rounds of crypt(3) with SHA.
pub const SHA_CRYPT_ROUNDS_MAX: u32 = 1_000_000;
/// The most iterations of SCRAM.
pub const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;
/// The longest text of a stored password, in octets.
const STORED_OCTETS_MAX: usize = 2048;
/// The longest salt and the longest hash, in octets.
const PART_OCTETS_MAX: usize = 128;
/// The shortest hash, in octets: RFC 9106 allows four, which is no proof of anything.
const ARGON2_HASH_OCTETS_MIN: usize = 16;

/// A text is no stored password, or one that costs too much to check. Nothing of a secret is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    /// Neither `{SCHEME}` nor `$id$` stands before it.
    #[error(
        "a stored password without a scheme, or of one that is not known: expected {{ARGON2ID}}, $2b$, $6$ or the like \
         before it"
    )]
    NoScheme,
    /// Its scheme is one that others have. Any other text there may be a part of a password, and is not shown.
    #[error("a stored password of the scheme {0}, which is not read here")]
    UnknownScheme(&'static str),
    /// It is locked: `!` or `*` stands where the hash would begin, as in shadow(5), with a scheme before it or none.
    #[error("a stored password that is locked")]
    Locked,
    /// It is not as its scheme has it.
    #[error("a stored password that is not as {0} has it")]
    Malformed(&'static str),
    /// Checking it would cost too much.
    #[error("a stored password that would cost too much: {what} of {scheme} may be {max} at most, and is {found}")]
    TooCostly {
        /// Which scheme.
        scheme: &'static str,
        /// Which of its parameters.
        what: &'static str,
        /// What it may be.
        max: u64,
        /// What it is.
        found: u64,
    },
    /// The entry has no stored password, or more than are looked at.
    #[error("{0} stored passwords: expected 1 to {HASHES_MAX}")]
    Count(usize),
}

/// Schemes of others, as they stand in braces.
const FOREIGN_NAMED: [&str; 29] = [
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
/// Schemes of others, as crypt(3) and the like have them.
const FOREIGN_CRYPT: [&str; 20] = [
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

/// There is no telling whether a password is right: what its scheme takes is not there, which is memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} could not be computed: is there no memory?")]
pub struct VerifyError(&'static str);

/// Stored passwords of one user: each one that fails costs its time.
pub const HASHES_MAX: usize = 4;

/// A password as it is stored. `Debug` shows its scheme only.
#[derive(Clone)]
pub struct Stored(Scheme);

#[derive(Clone)]
enum Scheme {
    Argon2(Box<Argon>),
    Bcrypt(Box<str>),
    ShaCrypt { is_wide: bool, rounds: u32, salt: Box<str>, hash: Box<str> },
    Salted { digest: Salted, hash: Box<[u8]>, salt: Box<[u8]> },
    Scram(Box<ScramKeys>),
    Plain(Zeroizing<String>),
}

#[derive(Clone)]
struct Argon {
    algorithm: Algorithm,
    version: Version,
    params: Params,
    salt: Box<[u8]>,
    hash: Box<[u8]>,
}

/// What checking a stored password costs: its scheme, and the numbers that it is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    scheme: &'static str,
    numbers: [u32; 3],
}

impl Cost {
    /// No two are the same.
    pub(super) fn octets(&self) -> Vec<u8> {
        let numbers = self.numbers.iter().flat_map(|number| number.to_be_bytes());
        self.scheme.bytes().chain([0]).chain(numbers).collect()
    }
}

#[derive(Clone, Copy)]
enum Salted {
    Sha1,
    Sha256,
    Sha512,
}

impl Stored {
    /// Reads one.
    pub fn read(text: &str) -> Result<Stored, StoredError> {
        let text = text.trim();
        if text.len() > STORED_OCTETS_MAX {
            return Err(too_costly("a text", "the length in octets", STORED_OCTETS_MAX as u64, text.len() as u64));
        }
        if is_locked(text) {
            return Err(StoredError::Locked);
        }
        let Some(named) = text.strip_prefix('{') else { return crypted(text).map(Stored) };
        let (name, rest) = named.split_once('}').ok_or(StoredError::NoScheme)?;
        let salted = |digest, name, octets| salted(rest, digest, name, octets);
        let scheme = match &*name.to_ascii_uppercase() {
            "PLAIN" | "CLEARTEXT" if rest.is_empty() => return Err(StoredError::Malformed("PLAIN")),
            "PLAIN" | "CLEARTEXT" => Scheme::Plain(Zeroizing::new(rest.to_owned())),
            "SSHA" => salted(Salted::Sha1, "SSHA", 20)?,
            "SSHA256" => salted(Salted::Sha256, "SSHA256", 32)?,
            "SSHA512" => salted(Salted::Sha512, "SSHA512", 64)?,
            "SCRAM-SHA-256" => Scheme::Scram(scram_keys(rest)?.into()),
            "CRYPT" => crypted(rest)?,
            "ARGON2" | "ARGON2I" | "ARGON2ID" if rest.starts_with("$argon2") => crypted(rest)?,
            "ARGON2" | "ARGON2I" | "ARGON2ID" => return Err(StoredError::Malformed("Argon2")),
            "BLF-CRYPT" if rest.starts_with("$2") => crypted(rest)?,
            "BLF-CRYPT" => return Err(StoredError::Malformed("bcrypt")),
            "SHA512-CRYPT" if rest.starts_with("$6$") => crypted(rest)?,
            "SHA256-CRYPT" if rest.starts_with("$5$") => crypted(rest)?,
            "SHA512-CRYPT" | "SHA256-CRYPT" => return Err(StoredError::Malformed("SHA-crypt")),
            name => return Err(foreign(&FOREIGN_NAMED, &format!("{{{name}}}"))),
        };
        Ok(Stored(scheme))
    }

    /// Reads those of one user, as the values of a table have them: a value that begins with neither `{` nor `$` goes on
    /// with the one before it where that is of Argon2 or SCRAM, since tables part their values at commas, which these have
    /// in them. Anything else that is parted so is an error. If the first is locked, so is the user.
    pub fn read_all(values: &[String]) -> Result<Vec<Stored>, StoredError> {
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
            return Err(StoredError::NoScheme);
        }
        if !(1..=HASHES_MAX).contains(&texts.len()) {
            return Err(StoredError::Count(texts.len()));
        }
        texts.iter().map(|text| Stored::read(text)).collect()
    }

    /// Whether this is the password. Takes the time that the scheme takes, up to a second; an empty one, one with NUL in
    /// it and one that is too long are wrong without it. What is compared in the end is compared in constant time.
    pub fn verify(&self, password: &str) -> Result<bool, VerifyError> {
        if !is_possible(password) {
            return Ok(false);
        }
        let octets = password.as_bytes();
        let is_right = match &self.0 {
            Scheme::Argon2(argon) => argon.verify(octets).map_err(|_| VerifyError(self.scheme()))?,
            Scheme::Bcrypt(text) => bcrypt::verify(octets, text).map_err(|_| VerifyError(self.scheme()))?,
            Scheme::ShaCrypt { is_wide, rounds, salt, hash } => {
                crypt::sha_crypt(*is_wide, octets, salt, *rounds).as_bytes().ct_eq(hash.as_bytes()).into()
            }
            Scheme::Salted { digest, hash, salt } => digest.of(octets, salt).ct_eq(hash).into(),
            Scheme::Scram(keys) => {
                let made = scram::keys(password, &keys.salt, keys.iterations);
                (made.stored_key.ct_eq(&keys.stored_key) & made.server_key.ct_eq(&keys.server_key)).into()
            }
            Scheme::Plain(plain) => plain.as_bytes().ct_eq(octets).into(),
        };
        Ok(is_right)
    }

    /// Whether it is one of these. Each of them is computed until one is right; where none is, an error counts.
    pub(super) fn verify_any(all: &[Stored], password: &str) -> Result<bool, VerifyError> {
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

    /// The keys of SCRAM, where they are stored or can be made. For a password in the clear they are made with this salt
    /// and as many iterations, which takes milliseconds.
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
            Scheme::ShaCrypt { is_wide: true, .. } => "SHA512-CRYPT",
            Scheme::ShaCrypt { .. } => "SHA256-CRYPT",
            Scheme::Salted { digest: Salted::Sha1, .. } => "SSHA",
            Scheme::Salted { digest: Salted::Sha256, .. } => "SSHA256",
            Scheme::Salted { digest: Salted::Sha512, .. } => "SSHA512",
            Scheme::Scram(_) => "SCRAM-SHA-256",
            Scheme::Plain(_) => "PLAIN",
        }
    }

    /// What the operator should be told of it: a password in the clear, or as good as that.
    pub fn warning(&self) -> Option<&'static str> {
        match &self.0 {
            Scheme::Plain(_) => Some("passwords are stored in the clear: whoever reads the table has them all"),
            Scheme::Salted { .. } => Some("passwords are stored as one round of SHA: whoever has the table finds most"),
            _ => None,
        }
    }

    /// What checking it costs: of two that are the same, the same.
    pub(super) fn cost(&self) -> Cost {
        let numbers = match &self.0 {
            Scheme::Argon2(argon) => [argon.params.m_cost(), argon.params.t_cost(), argon.params.p_cost()],
            // `$2b$12$`.
            Scheme::Bcrypt(text) => {
                [text.split('$').nth(2).and_then(|cost| cost.parse().ok()).unwrap_or_default(), 0, 0]
            }
            Scheme::ShaCrypt { rounds, .. } => [*rounds, 0, 0],
            Scheme::Scram(keys) => [keys.iterations, 0, 0],
            Scheme::Salted { .. } | Scheme::Plain(_) => [0; 3],
        };
        Cost { scheme: self.scheme(), numbers }
    }

    /// The iterations of the keys of SCRAM, where there are or can be any.
    pub(super) fn scram_iterations(&self, of_clear_text: u32) -> Option<u32> {
        match &self.0 {
            Scheme::Scram(keys) => Some(keys.iterations),
            Scheme::Plain(_) => Some(of_clear_text),
            _ => None,
        }
    }

    /// One of the same cost that nobody's password fits: what is computed for users who do not exist.
    pub(super) fn decoy(&self) -> Stored {
        match &self.0 {
            Scheme::Plain(_) => Stored(Scheme::Plain(Zeroizing::new("\0".to_owned()))),
            other => Stored(other.clone()),
        }
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stored({})", self.scheme())
    }
}

impl Argon {
    fn verify(&self, password: &[u8]) -> Result<bool, argon2::Error> {
        let argon = Argon2::new(self.algorithm, self.version, self.params.clone());
        let mut made = vec![0; self.hash.len()];
        // It fails where there is no memory.
        argon.hash_password_into(password, &self.salt, &mut made)?;
        Ok(made.ct_eq(&self.hash).into())
    }
}

impl Salted {
    fn of(self, password: &[u8], salt: &[u8]) -> Vec<u8> {
        match self {
            Salted::Sha1 => Sha1::new().chain_update(password).chain_update(salt).finalize().to_vec(),
            Salted::Sha256 => Sha256::new().chain_update(password).chain_update(salt).finalize().to_vec(),
            Salted::Sha512 => Sha512::new().chain_update(password).chain_update(salt).finalize().to_vec(),
        }
    }
}

/// Whether anybody could have it.
pub(super) fn is_possible(password: &str) -> bool {
    (1..=PASSWORD_OCTETS_MAX).contains(&password.len()) && !password.contains('\0')
}

/// That a scheme is not read here.
fn foreign(known: &[&'static str], scheme: &str) -> StoredError {
    known
        .iter()
        .find(|known| **known == scheme)
        .map_or(StoredError::NoScheme, |known| StoredError::UnknownScheme(known))
}

/// Whether `!` or `*` stands where a hash would. A password in the clear may begin so.
fn is_locked(text: &str) -> bool {
    let is_clear = |name: &str| ["PLAIN", "CLEARTEXT"].iter().any(|clear| clear.eq_ignore_ascii_case(name));
    let hash = match text.strip_prefix('{').and_then(|named| named.split_once('}')) {
        Some((name, _)) if is_clear(name) => return false,
        Some((_, hash)) => hash,
        None => text,
    };
    hash.starts_with(['!', '*'])
}

/// Whether what follows it at a comma may belong to it.
fn has_commas(text: &str) -> bool {
    let text = text.trim_start().to_ascii_uppercase();
    ["{SCRAM-SHA-256}", "{ARGON2", "$ARGON2", "{CRYPT}$ARGON2"].iter().any(|start| text.starts_with(start))
}

fn too_costly(scheme: &'static str, what: &'static str, max: u64, found: u64) -> StoredError {
    StoredError::TooCostly { scheme, what, max, found }
}

/// Modular crypt format: `$id$...`.
fn crypted(text: &str) -> Result<Scheme, StoredError> {
    let id = text.strip_prefix('$').and_then(|rest| rest.split_once('$')).ok_or(StoredError::NoScheme)?.0;
    match id {
        "argon2id" => argon2(text, Algorithm::Argon2id),
        "argon2i" => argon2(text, Algorithm::Argon2i),
        "2a" | "2b" | "2y" => bcrypt_of(text),
        "5" | "6" => sha_crypt(text),
        id => Err(foreign(&FOREIGN_CRYPT, &format!("${id}$"))),
    }
}

/// `$argon2id$v=19$m=65536,t=3,p=4$salt$hash`.
fn argon2(text: &str, algorithm: Algorithm) -> Result<Scheme, StoredError> {
    const NAME: &str = "Argon2";
    let malformed = || StoredError::Malformed(NAME);
    let mut parts: Vec<&str> = text.split('$').skip(2).collect();
    let version = match parts.first().and_then(|part| part.strip_prefix("v=")) {
        Some("19") => Version::V0x13,
        Some("16") => Version::V0x10,
        Some(_) => return Err(malformed()),
        // Before version 1.3 of the form it was not written.
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
        return Err(too_costly(NAME, "the memory in KiB", ARGON2_MEMORY_KIB_MAX.into(), memory.into()));
    }
    let work = u64::from(memory) * u64::from(passes);
    if work > ARGON2_WORK_MAX {
        return Err(too_costly(NAME, "the memory in KiB times the passes", ARGON2_WORK_MAX, work));
    }
    let part = |text| STANDARD_NO_PAD.decode(text).ok().filter(|octets| octets.len() <= PART_OCTETS_MAX);
    let (salt, hash) = part(salt).zip(part(hash)).ok_or_else(malformed)?;
    let params = Params::new(memory, passes, lanes, Some(hash.len())).map_err(|_| malformed())?;
    if salt.len() < argon2::MIN_SALT_LEN || hash.len() < ARGON2_HASH_OCTETS_MIN {
        return Err(malformed());
    }
    Ok(Scheme::Argon2(Box::new(Argon { algorithm, version, params, salt: salt.into(), hash: hash.into() })))
}

fn bcrypt_of(text: &str) -> Result<Scheme, StoredError> {
    const NAME: &str = "bcrypt";
    let parts: bcrypt::HashParts = text.parse().map_err(|_| StoredError::Malformed(NAME))?;
    let cost = parts.get_cost();
    if cost > BCRYPT_COST_MAX {
        return Err(too_costly(NAME, "the cost", BCRYPT_COST_MAX.into(), cost.into()));
    }
    if cost < BCRYPT_COST_MIN { Err(StoredError::Malformed(NAME)) } else { Ok(Scheme::Bcrypt(text.into())) }
}

/// `$6$rounds=5000$salt$hash`; the rounds may be left out.
fn sha_crypt(text: &str) -> Result<Scheme, StoredError> {
    const NAME: &str = "SHA-crypt";
    let malformed = || StoredError::Malformed(NAME);
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
        return Err(too_costly(NAME, "the rounds", SHA_CRYPT_ROUNDS_MAX.into(), rounds.into()));
    }
    let (Some(salt), Some(hash), None) = (parts.next(), parts.next(), parts.next()) else { return Err(malformed()) };
    let is_whole = hash.len() == crypt::hash_octets(is_wide) && rounds >= sha_crypt::Params::ROUNDS_MIN;
    if !is_whole || salt.len() > crypt::SALT_OCTETS_MAX {
        return Err(malformed());
    }
    Ok(Scheme::ShaCrypt { is_wide, rounds, salt: salt.into(), hash: hash.into() })
}

/// The digest and then the salt, in base64.
fn salted(text: &str, digest: Salted, name: &'static str, octets: usize) -> Result<Scheme, StoredError> {
    let malformed = || StoredError::Malformed(name);
    let whole = STANDARD.decode(text).map_err(|_| malformed())?;
    let (hash, salt) = whole.split_at_checked(octets).ok_or_else(malformed)?;
    if salt.len() > PART_OCTETS_MAX {
        return Err(malformed());
    }
    Ok(Scheme::Salted { digest, hash: hash.into(), salt: salt.into() })
}

/// `iterations,salt,StoredKey,ServerKey`, the last three in base64.
fn scram_keys(text: &str) -> Result<ScramKeys, StoredError> {
    const NAME: &str = "SCRAM-SHA-256";
    let malformed = || StoredError::Malformed(NAME);
    let parts: Vec<&str> = text.split(',').collect();
    let [iterations, salt, stored_key, server_key] = parts[..] else { return Err(malformed()) };
    let iterations: u32 = iterations.parse().map_err(|_| malformed())?;
    if iterations > SCRAM_ITERATIONS_MAX {
        return Err(too_costly(NAME, "the iterations", SCRAM_ITERATIONS_MAX.into(), iterations.into()));
    }
    let salt = STANDARD.decode(salt).ok().filter(|salt| (1..=PART_OCTETS_MAX).contains(&salt.len()));
    let key = |text| STANDARD.decode(text).ok().and_then(|key| key.try_into().ok()).ok_or_else(malformed);
    let (Some(salt), 1..) = (salt, iterations) else { return Err(malformed()) };
    Ok(ScramKeys { salt: salt.into(), iterations, stored_key: key(stored_key)?, server_key: key(server_key)? })
}
