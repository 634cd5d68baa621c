//! The tokens of the HTTP API: what one is, the file that keeps their hashes, and the check of a token
//! that a client sends. A token is `mailrace_ID_SECRET`, with 256 random bits in the secret; only who
//! made it has it. The file is replaced as a whole, and the server notices that it was.
//!
//! | token | the client gets |
//! |---|---|
//! | of the file, not expired | what its role allows |
//! | any other | 401 |
//! | any other, after too many of them ([`credentials::Throttle`]) | 429 |
//! | any, while the file cannot be read | 503 |

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::ValueEnum;
use credentials::{LoginAttemptOutcome, Throttle, ThrottleSettings};
use mail::Timestamp;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

use crate::state_file;

/// The name of the file, in the folder of the server's data.
pub const TOKEN_FILE: &str = "api-tokens.json";
/// Random octets that a token is made from.
pub const RANDOM_OCTETS: usize = ID_OCTETS + SECRET_OCTETS;
const ID_OCTETS: usize = 6;
const SECRET_OCTETS: usize = 32;
const PREFIX: &str = "mailrace_";
/// Characters of a name.
const NAME_CHARACTERS_MAX: usize = 64;

/// What the owner of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// See metrics, queues and envelopes, but no content of messages or tables
    Read,
    /// Also read messages and tables, and change what the operator can change
    Operate,
}

impl Role {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
        }
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredToken {
    /// The part of the token that is no secret.
    pub id: String,
    /// What the operator calls it.
    pub name: String,
    /// What its owner may do.
    pub role: Role,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it ends to be valid; None: never.
    pub expires: Option<u64>,
    /// SHA-256 of the secret, in hexadecimal digits.
    sha256: String,
}

/// Why a token cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTokenName {
    /// It has other characters, or too many.
    #[error("a name has 1 to {NAME_CHARACTERS_MAX} letters, digits, dots, hyphens and underscores")]
    Characters,
    /// Another token has it.
    #[error("there is a token {0:?}: revoke it first, or give another name")]
    Taken(String),
}

impl StoredToken {
    /// A new token, and the text that its owner sends. Without a name, it is called by its id.
    ///
    /// # Errors
    ///
    /// The name has other characters than a word.
    pub fn generate(
        random: [u8; RANDOM_OCTETS],
        role: Role,
        name: Option<&str>,
        now: Timestamp,
        valid_for: Option<Duration>,
    ) -> Result<(StoredToken, String), InvalidTokenName> {
        let id = hexadecimal(&random[..ID_OCTETS]);
        let secret = URL_SAFE_NO_PAD.encode(&random[ID_OCTETS..]);
        let name = name.unwrap_or(&id);
        let is_word = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
        if name.is_empty() || name.len() > NAME_CHARACTERS_MAX || !name.chars().all(is_word) {
            return Err(InvalidTokenName::Characters);
        }
        let expires = valid_for.map(|span| now.seconds().saturating_add(span.as_secs()));
        let text = format!("{PREFIX}{id}_{secret}");
        let (name, created, sha256) = (name.to_owned(), now.seconds(), hash(&secret));
        Ok((StoredToken { id, name, role, created, expires, sha256 }, text))
    }

    /// Whether it is valid at this time.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now.seconds() < end)
    }
}

/// The id and the secret of a token that a client sent; empty if it is none.
fn id_and_secret(text: &str) -> (&str, &str) {
    text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).unwrap_or_default()
}

/// Whether the secret is that of the stored token and this one is valid. It takes as long without a stored token.
fn is_accepted(stored: Option<&StoredToken>, secret: &str, now: Timestamp) -> bool {
    let expected = stored.map_or("", |token| &token.sha256);
    let is_right: bool = hash(secret).as_bytes().ct_eq(expected.as_bytes()).into();
    is_right && !secret.is_empty() && stored.is_some_and(|token| token.is_valid_at(now))
}

/// The tokens in the content of a file.
fn read_content(content: &[u8]) -> serde_json::Result<Vec<StoredToken>> {
    serde_json::from_slice(content)
}

/// For fuzzing: whether a file with this content accepts a token.
#[doc(hidden)]
pub fn file_accepts(content: &[u8], text: &str, now: Timestamp) -> bool {
    let (id, secret) = id_and_secret(text);
    let tokens = read_content(content).unwrap_or_default();
    is_accepted(tokens.iter().find(|token| token.id == id), secret, now)
}

fn hash(secret: &str) -> String {
    hexadecimal(&Sha256::digest(secret.as_bytes()))
}

fn hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// The file of tokens. It belongs to the owner of its folder, and nobody else can read it.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
}

impl TokenFile {
    /// The file in the folder of the server's data.
    pub fn in_data_dir(folder: &Path) -> TokenFile {
        TokenFile { path: folder.join(TOKEN_FILE) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tokens; none if there is no file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or was not written by this program.
    pub fn read(&self) -> io::Result<Vec<StoredToken>> {
        match fs::read(&self.path) {
            Ok(content) => Ok(read_content(&content)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Adds a token. Two programs at once do not lose a change of one another.
    ///
    /// # Errors
    ///
    /// The name is taken (the inner error), or the file cannot be read or written.
    pub fn add(&self, token: StoredToken) -> io::Result<Result<(), InvalidTokenName>> {
        let _lock = self.lock()?;
        let mut tokens = self.read()?;
        if tokens.iter().any(|other| other.name == token.name) {
            return Ok(Err(InvalidTokenName::Taken(token.name)));
        }
        tokens.push(token);
        self.write(&tokens).map(Ok)
    }

    /// Removes the token with this name or id; false if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        let _lock = self.lock()?;
        let mut tokens = self.read()?;
        let before = tokens.len();
        tokens.retain(|token| token.name != name && token.id != name);
        if tokens.len() == before {
            return Ok(false);
        }
        self.write(&tokens).map(|()| true)
    }

    /// Locks the folder until the file is closed.
    fn lock(&self) -> io::Result<File> {
        let folder = File::open(state_file::folder(&self.path))?;
        flock(&folder, FlockOperation::LockExclusive)?;
        Ok(folder)
    }

    /// A token that was revoked does not come back after a power failure.
    fn write(&self, tokens: &[StoredToken]) -> io::Result<()> {
        Ok(state_file::replace(&self.path, &serde_json::to_vec_pretty(tokens)?)?)
    }
}

/// The owner of a token that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenOwner {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// Why a token is not accepted.
#[derive(Debug)]
pub(crate) enum TokenRefusal {
    /// It is none of the file, or has expired. Holds the id if there is such a token.
    Wrong { id: String },
    /// There were too many wrong ones.
    Throttled,
    /// The file cannot be read.
    Unavailable(io::Error),
}

/// Checks tokens.
#[derive(Debug)]
pub(crate) struct TokenChecker {
    file: TokenFile,
    known: Mutex<KnownTokens>,
    throttle: Mutex<Throttle>,
    /// For fingerprints of wrong tokens.
    hasher: RandomState,
}

/// The content of the file, and the version that it is from.
#[derive(Debug, Default)]
struct KnownTokens {
    version: Option<(u64, i64, i64, u64)>,
    tokens: Vec<StoredToken>,
}

impl TokenChecker {
    pub(crate) fn new(file: TokenFile) -> TokenChecker {
        let throttle = Mutex::new(Throttle::new(ThrottleSettings::default()));
        TokenChecker { file, known: Mutex::default(), throttle, hasher: RandomState::new() }
    }

    /// The owner of a token. A right one is accepted however many wrong ones there were: nobody can
    /// guess it, and nobody can lock out its owner. Wrong ones are counted by client, and by the id
    /// that they name. `steady` is the time of a clock that never goes back.
    pub(crate) fn check(
        &self,
        text: &str,
        client: IpAddr,
        steady: Duration,
        now: Timestamp,
    ) -> Result<TokenOwner, TokenRefusal> {
        let (id, secret) = id_and_secret(text);
        let stored = self.find(id).map_err(TokenRefusal::Unavailable)?;
        let is_accepted = is_accepted(stored.as_ref(), secret, now);
        if let Some(token) = stored.as_ref().filter(|_| is_accepted) {
            return Ok(TokenOwner { name: token.name.clone(), role: token.role });
        }
        Err(self.refuse(text, stored.map(|token| token.id).unwrap_or_default(), client, steady))
    }

    /// Counts a wrong token, which names this id if that exists.
    fn refuse(&self, text: &str, id: String, client: IpAddr, steady: Duration) -> TokenRefusal {
        let mut throttle = self.throttle.lock();
        let Some(attempt) = throttle.admit_attempt(steady, &id, client) else { return TokenRefusal::Throttled };
        let outcome = LoginAttemptOutcome::WrongPassword(self.hasher.hash_one(text));
        throttle.finish_attempt(steady, attempt, outcome);
        TokenRefusal::Wrong { id }
    }

    /// The token with this id, from the file as it is now.
    fn find(&self, id: &str) -> io::Result<Option<StoredToken>> {
        let version = match fs::metadata(self.file.path()) {
            Ok(it) => Some((it.ino(), it.mtime(), it.mtime_nsec(), it.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut known = self.known.lock();
        if known.version != version {
            *known = KnownTokens { version, tokens: self.file.read()? };
        }
        Ok(known.tokens.iter().find(|token| token.id == id).cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NOW: Timestamp = Timestamp(1_795_196_776_000);
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn token(octet: u8, role: Role, name: Option<&str>) -> (StoredToken, String) {
        StoredToken::generate([octet; RANDOM_OCTETS], role, name, NOW, Some(Duration::from_secs(60))).unwrap()
    }

    #[test]
    fn a_token_is_valid_until_it_expires_or_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::in_data_dir(folder.path());
        let checker = TokenChecker::new(file.clone());
        let check = |text: &str, now| checker.check(text, CLIENT, Duration::from_secs(1), now).ok();
        let (stored, text) = token(7, Role::Read, Some("grafana"));
        assert_eq!(check(&text, NOW), None);
        file.add(stored).unwrap().unwrap();
        let owner = TokenOwner { name: "grafana".to_owned(), role: Role::Read };
        assert_eq!(check(&text, NOW), Some(owner));
        assert_eq!(check(&text, NOW + Duration::from_secs(60)), None);
        assert_eq!(check(&text[..text.len() - 1], NOW), None);
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(file.path()).unwrap().contains(text.rsplit('_').next().unwrap()));
        assert!(file.remove("grafana").unwrap() && !file.remove("grafana").unwrap());
        assert_eq!(check(&text, NOW), None);
    }

    #[test]
    fn a_name_is_a_word_that_only_one_token_has() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::in_data_dir(folder.path());
        file.add(token(1, Role::Read, Some("a.b-c_d")).0).unwrap().unwrap();
        let taken = file.add(token(2, Role::Operate, Some("a.b-c_d")).0).unwrap();
        assert_eq!(taken, Err(InvalidTokenName::Taken("a.b-c_d".to_owned())));
        for name in ["", "a b", "a\n", "ä", &"x".repeat(65)] {
            let made = StoredToken::generate([0; RANDOM_OCTETS], Role::Read, Some(name), NOW, None);
            assert_eq!(made.unwrap_err(), InvalidTokenName::Characters, "{name:?}");
        }
    }

    #[test]
    fn guesses_are_slowed_down_and_do_not_lock_out_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::in_data_dir(folder.path());
        let (stored, text) = token(7, Role::Operate, None);
        file.add(stored).unwrap().unwrap();
        let checker = TokenChecker::new(file);
        let guess = |number: u32| {
            let text = format!("mailrace_{number:012x}_{}", "x".repeat(43));
            checker.check(&text, CLIENT, Duration::from_secs(1), NOW)
        };
        assert!(checker.check(&text, CLIENT, Duration::from_secs(1), NOW).is_ok());
        let throttled = (0..20).filter(|number| matches!(guess(*number), Err(TokenRefusal::Throttled))).count();
        assert!(throttled >= 10, "{throttled}");
        assert!(checker.check(&text, CLIENT, Duration::from_secs(1), NOW).is_ok());
    }

    /// The id is no secret, and clients behind a proxy have one address.
    #[test]
    fn guesses_about_an_id_do_not_lock_out_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::in_data_dir(folder.path());
        let (stored, text) = token(7, Role::Operate, None);
        file.add(stored).unwrap().unwrap();
        let checker = TokenChecker::new(file);
        let check = |text: &str| checker.check(text, CLIENT, Duration::from_secs(1), NOW);
        let guesses = (0..20).map(|number| check(&format!("{}{number}", &text[..text.len() - 2])));
        let throttled = guesses.filter(|refused| matches!(refused, Err(TokenRefusal::Throttled))).count();
        assert!(throttled >= 10, "{throttled}");
        assert!(check(&text).is_ok());
    }

    /// The user of the server owns the folder, and root writes there.
    #[test]
    fn a_link_in_the_folder_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::in_data_dir(folder.path());
        let (other, new) = (folder.path().join("shadow"), file.path().with_extension("new"));
        fs::write(&other, "secrets").unwrap();
        std::os::unix::fs::symlink(&other, &new).unwrap();
        file.add(token(1, Role::Read, None).0).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "secrets");
        assert!(fs::symlink_metadata(file.path()).unwrap().is_file());
        fs::write(&new, "left by a crash").unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        file.add(token(2, Role::Read, None).0).unwrap().unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(file.read().unwrap().len(), 2);
    }

    #[test]
    fn a_file_that_is_not_ours_lets_nobody_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = TokenFile::in_data_dir(folder.path());
        fs::write(file.path(), "[{}]").unwrap();
        let checker = TokenChecker::new(file);
        let refused = checker.check("mailrace_a_b", CLIENT, Duration::ZERO, NOW);
        assert!(matches!(refused, Err(TokenRefusal::Unavailable(_))), "{refused:?}");
    }

    #[test]
    fn the_content_of_a_file_accepts_its_own_tokens_until_they_expire() {
        let span = Some(Duration::from_secs(10));
        let (stored, text) = StoredToken::generate([7; RANDOM_OCTETS], Role::Read, None, NOW, span).unwrap();
        let content = serde_json::to_vec(&[stored]).unwrap();
        assert!(file_accepts(&content, &text, NOW));
        assert!(!file_accepts(&content, &text, NOW + Duration::from_secs(10)));
        for wrong in ["", "mailrace_", "mailrace__", &text[..text.len() - 1], &text["mailrace_".len()..]] {
            assert!(!file_accepts(&content, wrong, NOW), "{wrong}");
        }
        assert!(!file_accepts(b"[{}]", &text, NOW) && !file_accepts(b"", "", NOW));
        // What is no token has neither an id nor a secret, and a file with such an entry does not let it in.
        let empty = StoredToken { id: String::new(), sha256: hash(""), ..token(1, Role::Read, Some("x")).0 };
        assert!(!file_accepts(&serde_json::to_vec(&[empty]).unwrap(), "", NOW));
    }
}
