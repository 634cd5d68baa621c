//! Who may log in: checks passwords against a table of hashes, or by binding to a directory as the user.
//!
//! [`Credentials::verify`] is asked by sessions on their own threads and computes nothing there: hashes are computed by a
//! few threads with a bounded line before them, binds are made by a thread that waits for the directory. When the line is
//! full the answer is [`Verdict::Unavailable`], so that an attack with passwords costs those who log in, and never mail.
//!
//! | step                             | cost           | then                                                           |
//! |----------------------------------|----------------|----------------------------------------------------------------|
//! | 1. empty, with NUL, or too long; a name with white space at an end or doubled | none | Refused: a directory would let an empty one in (RFC 4513 section 5.1.2) |
//! | 2. the [`Throttle`]              | a microsecond  | Throttled                                                      |
//! | 3. succeeded within a minute     | a microsecond  | Accepted                                                       |
//! | 4. the table                     | its cache's    | Unavailable, where it cannot say                               |
//! | 5. wrong a moment ago, from the same client, while the table said the same | a microsecond | as it was then |
//! | 6. the hash, or the bind         | milliseconds   | Accepted or Refused; Unavailable and counted as wrong where the entry is of no use, or the directory does not say |
//!
//! A user who does not exist, is locked or has an entry of no use costs the same as one who can log in: a hash is computed
//! as the last user had one that was there.
//! By LDAP it is the time that the last wrong password took. A password that was changed goes on being accepted for as long
//! as step 3 remembers it, which [`Settings::recent_ttl`] bounds; the new one is taken as soon as the table has it, whatever
//! step 5 remembers, which holds for users who do not exist as for those who do. Of a bind nothing is remembered but success:
//! what a directory has stored does not show, and one that was changed must be taken.

mod binder;
mod crypt;
pub mod make;
mod password;
mod recent;
mod scram;
#[cfg(test)]
mod tests;
mod throttle;
mod workers;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mail::ScramKeys;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::ldap::{self, LdapError};
use crate::{Answer, Table, fold};

pub use password::{
    ARGON2_MEMORY_KIB_MAX, ARGON2_WORK_MAX, BCRYPT_COST_MAX, HASHES_MAX, PASSWORD_OCTETS_MAX, SCRAM_ITERATIONS_MAX,
    SHA_CRYPT_ROUNDS_MAX, Stored, StoredError, VerifyError,
};
pub use throttle::{Attempt, Bound, End, Networks, Throttle, ThrottleSettings};

use binder::{Binder, Found};
use recent::{Mark, Recent, Wrong};
use workers::Workers;

/// The longest name of a user, in octets.
pub const USER_OCTETS_MAX: usize = 320;
/// What is computed for users who do not exist, before one was seen who does: as [`make::argon2id`] makes them, of zeroes.
const DECOY: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// How long a password that was wrong is known for that. It is never wrongly so, since what was stored then is a part of what
/// is known; but a client that brings a wrong one over and over, which the throttle lets pass, costs one hash in this time.
const WRONG_TTL: Duration = Duration::from_secs(60);
/// Passwords of which that is known, 150 octets each: more than a few threads compute in the time.
const WRONG_ENTRIES_MAX: usize = 16_384;
/// Octets of a salt that is made for a user.
const SALT_OCTETS: usize = 16;

/// Where passwords are checked.
pub enum Source {
    /// By a table whose values are stored passwords, keyed by user: see [`Stored`].
    Table(Arc<dyn Table>),
    /// By a bind as the user: the DN is the one entry that the filter finds. What results and members say is not asked.
    Ldap(Box<ldap::Config>),
}

/// What checking is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Threads that compute hashes.
    pub threads: usize,
    /// Passwords that wait for one of them, or for the directory.
    pub waiting_max: usize,
    /// Binds that are under way at once.
    pub binds_at_once: usize,
    /// Who is listened to.
    pub throttle: ThrottleSettings,
    /// How long a success is remembered, and thereby how long a password goes on after it was changed. Zero: not at all.
    pub recent_ttl: Duration,
    /// Successes that are remembered, 200 octets each.
    pub recent_entries: usize,
    /// Whether SCRAM is offered. Clients prefer it to PLAIN and do not turn to that when it fails, so that all users must
    /// have keys of SCRAM or be stored in the clear: who has another hash could not log in.
    pub scram: bool,
    /// Iterations of SCRAM for a password that is stored in the clear.
    pub scram_iterations: u32,
}

impl Default for Settings {
    /// Half of the processors.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Settings {
            threads: (processors / 2).max(1),
            waiting_max: 256,
            binds_at_once: 16,
            throttle: ThrottleSettings::default(),
            recent_ttl: Duration::from_secs(60),
            recent_entries: 16_384,
            scram: false,
            scram_iterations: make::SCRAM_ITERATIONS,
        }
    }
}

/// What became of a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is right.
    Accepted {
        /// Who that is: the name in the form of the table's keys.
        user: Box<str>,
    },
    /// It is wrong, or nobody has that name (535 5.7.8).
    Refused,
    /// Too many were wrong; it was not looked at (454 4.7.0).
    Throttled,
    /// It cannot be said now; why, for the log (454 4.7.0). Where it was looked at it counts as wrong all the same.
    Unavailable(String),
}

/// What is there for SCRAM.
#[derive(Debug)]
pub enum Scram {
    /// The keys of the user.
    Found {
        /// Who that is: the name in the form of the table's keys.
        user: Box<str>,
        /// What is stored.
        keys: ScramKeys,
        /// To be told when the proof was right.
        pending: Pending,
    },
    /// Nobody has that name, or nothing is stored that SCRAM could use: hashes other than its own.
    Unknown {
        /// To be dropped when the exchange is over.
        pending: Pending,
    },
    /// Too many were wrong (454 4.7.0).
    Throttled,
    /// It cannot be said now; why, for the log (454 4.7.0).
    Unavailable(String),
}

/// A reading of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CredentialStats {
    /// Accepted, by password or by proof.
    pub accepted: u64,
    /// Those of them that were remembered.
    pub remembered: u64,
    /// Refused, by password or by proof.
    pub refused: u64,
    /// Passwords that were not computed, since they had been wrong a moment ago.
    pub repeated: u64,
    /// Not looked at.
    pub throttled: u64,
    /// Of which nothing could be said.
    pub unavailable: u64,
    /// That wait for a thread now.
    pub waiting: u64,
}

/// Nothing can be checked so.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The directory cannot be asked so.
    #[error(transparent)]
    Ldap(#[from] LdapError),
}

/// Checks who logs in. A handle: clones share all.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

struct Shared {
    source: Kind,
    workers: Workers,
    /// Those who follow on others share this, which counts from when the first of them began, and what is counted.
    throttle: Arc<Mutex<Throttle>>,
    recent: Mutex<Recent>,
    wrong: Mutex<Wrong>,
    usual: Mutex<Usual>,
    secret: [u8; 32],
    offers_scram: bool,
    scram_iterations: u32,
    began: Instant,
    counters: Arc<Counters>,
}

enum Kind {
    Table(Arc<dyn Table>),
    Ldap(Binder),
}

/// What stored passwords are like.
struct Usual {
    decoy: Stored,
    warning: Option<&'static str>,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    remembered: AtomicU64,
    refused: AtomicU64,
    repeated: AtomicU64,
    throttled: AtomicU64,
    unavailable: AtomicU64,
}

impl Credentials {
    /// Starts the threads. `secret` is 32 octets of cryptographic randomness, the same that exchanges of SASL are given:
    /// it keys what is remembered, and makes salts.
    pub fn new(source: Source, settings: Settings, secret: [u8; 32]) -> Result<Credentials, CredentialsError> {
        Credentials::start(source, settings, secret, None)
    }

    /// Others that replace these, with the same secret: what was counted goes on, and with `keeps_throttle` so does who is
    /// not listened to, by the settings of the throttle that there is. Of passwords nothing is remembered: they may have
    /// been changed. Whoever is still being checked here counts for both.
    pub fn following(
        &self,
        source: Source,
        settings: Settings,
        keeps_throttle: bool,
    ) -> Result<Credentials, CredentialsError> {
        Credentials::start(source, settings, self.0.secret, Some((&*self.0, keeps_throttle)))
    }

    fn start(
        source: Source,
        settings: Settings,
        secret: [u8; 32],
        before: Option<(&Shared, bool)>,
    ) -> Result<Credentials, CredentialsError> {
        let source = match source {
            Source::Table(table) => Kind::Table(table),
            Source::Ldap(config) => Kind::Ldap(Binder::start(*config, settings.binds_at_once, settings.waiting_max)?),
        };
        let decoy = Stored::read(DECOY).expect("the decoy is a stored password");
        let (recent_key, wrong_key) = (scram::hmac(&secret, b"recent"), scram::hmac(&secret, b"wrong"));
        let throttle = before.filter(|(_, keeps)| *keeps).map(|(before, _)| before.throttle.clone());
        Ok(Credentials(Arc::new(Shared {
            source,
            workers: Workers::start(settings.threads, settings.waiting_max)?,
            throttle: throttle.unwrap_or_else(|| Arc::new(Mutex::new(Throttle::new(settings.throttle)))),
            recent: Mutex::new(Recent::new(recent_key, settings.recent_ttl, settings.recent_entries)),
            wrong: Mutex::new(Wrong::new(wrong_key, WRONG_TTL, WRONG_ENTRIES_MAX)),
            usual: Mutex::new(Usual { decoy, warning: None }),
            secret,
            offers_scram: settings.scram,
            scram_iterations: settings.scram_iterations.min(SCRAM_ITERATIONS_MAX),
            began: before.map_or_else(Instant::now, |(before, _)| before.began),
            counters: before.map(|(before, _)| before.counters.clone()).unwrap_or_default(),
        })))
    }

    /// Whether this is the user's password. Given up before the end it counts as wrong.
    pub async fn verify(&self, user: &str, password: &str, client: IpAddr) -> Verdict {
        let verdict = self.verdict(user, password, client).await;
        let counters = &self.0.counters;
        let counter = match &verdict {
            Verdict::Accepted { .. } => &counters.accepted,
            Verdict::Refused => &counters.refused,
            Verdict::Throttled => &counters.throttled,
            Verdict::Unavailable(_) => &counters.unavailable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        verdict
    }

    /// What is stored of the user's password for SCRAM.
    pub async fn scram(&self, user: &str, client: IpAddr) -> Scram {
        let user = fold(user);
        let Some(pending) = self.admit(&user, client) else {
            self.0.counters.throttled.fetch_add(1, Ordering::Relaxed);
            return Scram::Throttled;
        };
        let (why, end) = match self.0.scram_keys(&user).await {
            Keys::Found(keys) => return Scram::Found { user: user.into(), keys, pending: pending.charged() },
            Keys::None => return Scram::Unknown { pending: pending.charged() },
            Keys::Unproven(why) => (why, End::Failed),
            Keys::Unknowable(why) => (why, End::Void),
        };
        pending.end(end);
        self.0.counters.unavailable.fetch_add(1, Ordering::Relaxed);
        Scram::Unavailable(why)
    }

    /// Whether SCRAM is to be offered: it was set so ([`Settings::scram`]), and can succeed for anyone: a directory that
    /// is bound to shows no keys.
    pub fn can_scram(&self) -> bool {
        self.0.offers_scram && matches!(self.0.source, Kind::Table(_))
    }

    /// What the operator should be told of the stored passwords that were seen: that some are in the clear.
    pub fn warning(&self) -> Option<&'static str> {
        lock(&self.0.usual).warning
    }

    /// What was counted.
    pub fn stats(&self) -> CredentialStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        CredentialStats {
            accepted: read(&counters.accepted),
            remembered: read(&counters.remembered),
            refused: read(&counters.refused),
            repeated: read(&counters.repeated),
            throttled: read(&counters.throttled),
            unavailable: read(&counters.unavailable),
            waiting: self.0.workers.waiting() as u64,
        }
    }

    async fn verdict(&self, user: &str, password: &str, client: IpAddr) -> Verdict {
        let user = fold(user);
        if !password::is_possible(password) || !is_name(&user) {
            return Verdict::Refused;
        }
        let Some(pending) = self.admit(&user, client) else { return Verdict::Throttled };
        let shared = &self.0;
        let remembered = lock(&shared.recent).find(shared.now(), &user, password);
        if let Some(user) = remembered {
            shared.counters.remembered.fetch_add(1, Ordering::Relaxed);
            pending.end(End::Succeeded);
            return Verdict::Accepted { user };
        }
        let found = match &shared.source {
            Kind::Table(table) => shared.verify_by(&**table, &user, password, client).await,
            Kind::Ldap(binder) => binder.verify(&user, password).await,
        };
        let wrong = || End::Wrong(lock(&shared.recent).short_mark(&user, password));
        match found {
            Found::Right => {
                lock(&shared.recent).add(shared.now(), &user, password, &user);
                pending.end(End::Succeeded);
                Verdict::Accepted { user: user.into() }
            }
            Found::Wrong => {
                pending.end(wrong());
                Verdict::Refused
            }
            Found::Unproven(why) => {
                pending.end(wrong());
                Verdict::Unavailable(why)
            }
            Found::Unknowable(why) => {
                pending.end(End::Void);
                Verdict::Unavailable(why)
            }
        }
    }

    fn admit(&self, user: &str, client: IpAddr) -> Option<Pending> {
        let attempt = lock(&self.0.throttle).admit(self.0.now(), user, client)?;
        Some(Pending { shared: self.0.clone(), attempt: Some(attempt) })
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// What the table says of a user, and the mark of that; an error is that it cannot say.
    async fn entry(&self, table: &dyn Table, user: &str) -> Result<(Entry, Mark), String> {
        let name = table.name();
        let mark = |values: &[String]| lock(&self.wrong).entry(values);
        match table.lookup(&[user]).await.pop() {
            Some(Answer::Found(values)) => {
                let values = Zeroizing::new(values);
                let entry = match Stored::read_all(&values) {
                    Ok(stored) => {
                        self.take_note(&stored);
                        Entry::Usable(stored)
                    }
                    Err(StoredError::Locked) => Entry::Nobody,
                    Err(error) => Entry::Unusable(format!("table '{name}', user '{user}': {error}")),
                };
                Ok((entry, mark(&values)))
            }
            Some(Answer::NotFound) => Ok((Entry::Nobody, mark(&[]))),
            Some(Answer::Unavailable(why) | Answer::Unconfirmed(why)) => Err(why),
            None => Err(format!("table '{name}': no answer")),
        }
    }

    fn take_note(&self, stored: &[Stored]) {
        let mut usual = lock(&self.usual);
        if let Some(last) = stored.last() {
            usual.decoy = last.decoy();
        }
        if let Some(warning) = stored.iter().find_map(Stored::warning) {
            usual.warning = Some(warning);
        }
    }

    /// What is computed where there is nothing to find.
    fn decoy(&self) -> Vec<Stored> {
        vec![lock(&self.usual).decoy.clone()]
    }

    async fn verify_by(&self, table: &dyn Table, user: &str, password: &str, client: IpAddr) -> Found {
        let (entry, mark) = match self.entry(table, user).await {
            Ok(entry) => entry,
            Err(why) => return Found::Unknowable(why),
        };
        let (stored, otherwise) = match entry {
            Entry::Usable(stored) => (stored, None),
            Entry::Nobody => (self.decoy(), Some(Found::Wrong)),
            Entry::Unusable(why) => (self.decoy(), Some(Found::Unproven(why))),
        };
        let mark = lock(&self.wrong).mark(throttle::network(client), user, &mark, password);
        if lock(&self.wrong).has(self.now(), &mark) {
            self.counters.repeated.fetch_add(1, Ordering::Relaxed);
            return otherwise.unwrap_or(Found::Wrong);
        }
        let password = Zeroizing::new(password.to_owned());
        let found = match (self.workers.run(move || Stored::verify_any(&stored, &password)).await, otherwise) {
            (Ok(Ok(true)), None) => return Found::Right,
            (Ok(Ok(_)), otherwise) => otherwise.unwrap_or(Found::Wrong),
            (Ok(Err(error)), _) => return Found::Unknowable(error.to_string()),
            (Err(full), _) => return Found::Unknowable(full.to_string()),
        };
        lock(&self.wrong).add(self.now(), mark);
        found
    }

    async fn scram_keys(&self, user: &str) -> Keys {
        let Kind::Table(table) = &self.source else { return Keys::None };
        let entry = match is_name(user) {
            true => self.entry(&**table, user).await.map(|(entry, _)| entry),
            false => Ok(Entry::Nobody),
        };
        let (stored, otherwise) = match entry {
            Ok(Entry::Usable(stored)) => (stored, None),
            Ok(Entry::Nobody) => (self.decoy(), Some(Keys::None)),
            Ok(Entry::Unusable(why)) => (self.decoy(), Some(Keys::Unproven(why))),
            Err(why) => return Keys::Unknowable(why),
        };
        let salt = scram::hmac(&self.secret, &[b"scram salt\0", user.as_bytes()].concat());
        let iterations = self.scram_iterations;
        let make = move || stored.iter().find_map(|stored| stored.scram_keys(&salt[..SALT_OCTETS], iterations));
        match (self.workers.run(make).await, otherwise) {
            (Err(full), _) => Keys::Unknowable(full.to_string()),
            (Ok(_), Some(otherwise)) => otherwise,
            (Ok(Some(keys)), None) => Keys::Found(keys),
            (Ok(None), None) => Keys::None,
        }
    }
}

/// What a table says of a user.
enum Entry {
    /// What is stored, one at the least.
    Usable(Vec<Stored>),
    /// Nobody has that name, or who has it is locked.
    Nobody,
    /// What is there can be no password of anyone; why.
    Unusable(String),
}

/// What is there for SCRAM.
enum Keys {
    Found(ScramKeys),
    /// Nobody, or nothing.
    None,
    /// What is there is of no use; why.
    Unproven(String),
    /// The table cannot say; why.
    Unknowable(String),
}

/// An attempt that is under way. Dropped, it has failed.
pub struct Pending {
    shared: Arc<Shared>,
    attempt: Option<Attempt>,
}

impl Pending {
    /// The proof was right.
    pub fn succeeded(self) {
        self.shared.counters.accepted.fetch_add(1, Ordering::Relaxed);
        self.end(End::Succeeded);
    }

    /// The proof was wrong.
    pub fn failed(self) {
        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        self.end(End::Failed);
    }

    /// From here on the client has it in its hand when, and whether, this ends.
    fn charged(mut self) -> Pending {
        if let Some(attempt) = &mut self.attempt {
            lock(&self.shared.throttle).charge(self.shared.now(), attempt);
        }
        self
    }

    fn end(mut self, end: End) {
        self.settle(end);
    }

    fn settle(&mut self, end: End) {
        if let Some(attempt) = self.attempt.take() {
            lock(&self.shared.throttle).settle(self.shared.now(), attempt, end);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.settle(End::Failed);
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

/// Whether anybody could be called so. White space at either end or doubled is none that directories see: so spelled the
/// same user would be listened to anew each time.
fn is_name(user: &str) -> bool {
    let is_spelled_once = || {
        let mut was_space = true;
        let is_lone = |character: char| !(std::mem::replace(&mut was_space, character.is_whitespace()) && was_space);
        user.chars().all(is_lone) && !was_space
    };
    (1..=USER_OCTETS_MAX).contains(&user.len()) && !user.chars().any(char::is_control) && is_spelled_once()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
