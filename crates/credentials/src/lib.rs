//! Authentication: checks passwords against a table of hashes, by binding to an LDAP server as the
//! user, or by asking Dovecot.
//!
//! Sessions call [`CredentialChecker::verify_password`] on their own threads, which compute
//! nothing. A few threads compute hashes from a bounded queue, and one thread waits for LDAP binds or
//! for Dovecot.
//! A full queue gives [`LoginResult::Unavailable`], so password guessing slows down logins but not
//! mail.
//!
//! | step                             | cost           | result                                                         |
//! |----------------------------------|----------------|----------------------------------------------------------------|
//! | 1. password empty, with NUL or too long; user name with extra white space | none | Refused: LDAP servers accept empty passwords (RFC 4513 section 5.1.2) |
//! | 2. the [`Throttle`]              | a microsecond  | Throttled                                                      |
//! | 3. the same login succeeded within the last minute | a microsecond | Accepted                                   |
//! | 4. table lookup                  | a cache lookup | Unavailable if the table is                                    |
//! | 5. the same client failed with this password and the entry is the same | a microsecond | the same result        |
//! | 6. the hash, the bind, or Dovecot | milliseconds   | Accepted or Refused; Unusable for a bad entry; Unavailable, but counted as a failure, if the server gives no clear result |
//!
//! Unknown users, locked users and users with a bad entry take as long as others: a hash like that
//! of some real user is computed, always the same one for a name. With LDAP the delay is that of
//! the last failed bind. An old password stays valid until step 3 forgets it
//! ([`CredentialCheckerSettings::recent_ttl`]); a new one is valid as soon as the table has it,
//! because step 5 depends on the stored entry. Failed binds are not cached, because the stored
//! password is not visible.
//!
//! The throttle and the caches know a login by the name that the client gave. Dovecot may return another
//! name, and that is the user from then on.

mod binder;
mod crypt;
mod dovecot;
pub mod generate;
mod password;
mod recent;
mod sasl;
mod scram;
#[cfg(test)]
mod tests;
mod throttle;
mod unknown_user_hashes;
mod workers;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mail::ScramKeys;
use parking_lot::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

use ldap::{LdapConfig, LdapConfigError};
use lookup::{LookupAnswer, Table, fold_key};

pub use password::{
    ARGON2_MEMORY_KIB_MAX, ARGON2_WORK_MAX, BCRYPT_COST_MAX, HASHES_MAX, HashComputationError, PASSWORD_OCTETS_MAX,
    SCRAM_ITERATIONS_MAX, SHA_CRYPT_ROUNDS_MAX, StoredPassword, StoredPasswordError,
};
pub use sasl::{ScramChallenge, UNKNOWN_CLIENT, finish_proof, login_event};
pub use throttle::{LoginAttempt, LoginAttemptOutcome, Throttle, ThrottleLimit, ThrottleSettings};

use binder::{LdapBinder, PasswordCheck};
use dovecot::DovecotChecker;
use recent::{Fingerprint, RecentFailures, RecentSuccesses};
use unknown_user_hashes::UnknownUserHashes;
use workers::HashWorkers;

/// The longest user name, in octets.
pub const USER_OCTETS_MAX: usize = 320;
/// The hash computed for unknown users before any real one was seen: made like
/// [`generate::hash_argon2id`], with zeroes.
const FIRST_UNKNOWN_USER_HASH: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// How long a failed login is cached. The entry in the table is part of the cache key, so a changed
/// password is not affected. A client that repeats a wrong password, which the throttle allows,
/// costs one hash in this time.
const WRONG_TTL: Duration = Duration::from_secs(60);
/// Failed logins in the cache, 150 octets each: more than a few threads can compute within the TTL.
const WRONG_ENTRIES_MAX: usize = 16_384;
/// Octets of a salt made for a user.
const SALT_OCTETS: usize = 16;

/// How passwords are checked.
pub enum CredentialSource {
    /// Against stored passwords in a table keyed by user; see [`StoredPassword`].
    Table(Arc<dyn Table>),
    /// By an LDAP bind with the DN of the only entry that the filter finds. Ignores `results` and
    /// `members`.
    Ldap(Box<LdapConfig>),
    /// By Dovecot's authentication server at this unix socket.
    Dovecot(PathBuf),
}

/// Settings of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialCheckerSettings {
    /// Threads that compute hashes.
    pub threads: usize,
    /// Passwords that may wait for a hash thread or for the LDAP server.
    pub waiting_max: usize,
    /// Concurrent binds.
    pub bind_concurrency: usize,
    /// Limits for failed logins.
    pub throttle: ThrottleSettings,
    /// How long a successful login is cached; an old password stays valid that long after a change.
    /// Zero disables the cache.
    pub recent_ttl: Duration,
    /// Successful logins in the cache, 200 octets each.
    pub recent_entries: usize,
    /// Whether to offer SCRAM. Clients prefer it to PLAIN and do not fall back when it fails, so
    /// every user needs SCRAM keys or a plain-text password; users with other hashes could not log
    /// in.
    pub scram: bool,
    /// SCRAM iterations for passwords stored in plain text.
    pub scram_iterations: u32,
}

impl Default for CredentialCheckerSettings {
    /// Half of the processors.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        CredentialCheckerSettings {
            threads: (processors / 2).max(1),
            waiting_max: 256,
            bind_concurrency: 16,
            throttle: ThrottleSettings::default(),
            recent_ttl: Duration::from_secs(60),
            recent_entries: 16_384,
            scram: false,
            scram_iterations: generate::SCRAM_ITERATIONS,
        }
    }
}

/// The result of checking a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginResult {
    /// The password is right.
    Accepted {
        /// The user's name as a table key; with Dovecot, the name that it returns.
        user: Box<str>,
    },
    /// The password is wrong or the user does not exist (535 5.7.8).
    Refused,
    /// The user's entry is unusable; the reason, for the log. The client gets the reply for a wrong
    /// password (535 5.7.8), so that it does not learn which users exist.
    Unusable(String),
    /// Too many failures; the password was not checked (454 4.7.0).
    Throttled,
    /// No result; the reason, for the log (454 4.7.0). Counts as a failure if the password was
    /// checked.
    Unavailable(String),
}

/// The result of looking up SCRAM keys.
#[derive(Debug)]
pub enum ScramLookupResult {
    /// The user has keys.
    Found {
        /// The user's name as a table key.
        user: Box<str>,
        /// The keys.
        keys: ScramKeys,
        /// The attempt; report the result of the proof to it.
        pending: PendingLogin,
    },
    /// The user does not exist or has no password that works with SCRAM.
    Unknown {
        /// The iterations to pretend: those of some real user.
        iterations: u32,
        /// Why the entry is unusable, for the log; None if it is fine.
        unusable: Option<String>,
        /// The attempt; drop it at the end of the exchange.
        pending: PendingLogin,
    },
    /// Too many failures (454 4.7.0).
    Throttled,
    /// No result; the reason, for the log (454 4.7.0).
    Unavailable(String),
}

/// Whether a login that another host decides may be attempted.
#[derive(Debug)]
pub enum RemoteLoginAdmission {
    /// It may.
    Admitted {
        /// The user's name as a table key.
        user: Box<str>,
        /// The attempt; report the result to it.
        pending: PendingLogin,
    },
    /// No user has such a name.
    Refused,
    /// Too many failures before.
    Throttled,
}

/// Counters of authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CredentialStats {
    /// Successful logins, by password or SCRAM.
    pub accepted: u64,
    /// Successful logins found in the cache.
    pub remembered: u64,
    /// Failed logins, by password or SCRAM.
    pub refused: u64,
    /// Wrong passwords found in the cache.
    pub repeated: u64,
    /// Logins that the throttle refused.
    pub throttled: u64,
    /// Logins without a result.
    pub unavailable: u64,
    /// Passwords waiting for a hash thread.
    pub waiting: u64,
}

/// Why authentication cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CheckerStartError {
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The LDAP configuration cannot work.
    #[error(transparent)]
    Ldap(#[from] LdapConfigError),
}

/// Checks logins. Clones share their state.
#[derive(Clone)]
pub struct CredentialChecker(Arc<Shared>);

struct Shared {
    source: SourceState,
    workers: HashWorkers,
    /// Shared with successors, like `started` and `counters`.
    throttle: Arc<Mutex<Throttle>>,
    recent_successes: Mutex<RecentSuccesses>,
    recent_failures: Mutex<RecentFailures>,
    unknown_user_hashes: Mutex<UnknownUserHashes>,
    secret: [u8; 32],
    offers_scram: bool,
    scram_iterations: u32,
    started: Instant,
    counters: Arc<Counters>,
    /// Counts failures on other servers, too.
    failed_logins: Arc<OnceLock<Arc<dyn FailedLogins>>>,
}

/// Takes the logins that have failed here, to count them on other servers. It must not wait.
pub trait FailedLogins: Send + Sync {
    /// A login of this user has failed.
    fn report(&self, user: &str, client: IpAddr);
}

enum SourceState {
    Table(Arc<dyn Table>),
    Ldap(LdapBinder),
    Dovecot(DovecotChecker),
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

impl CredentialChecker {
    /// Starts the threads. `secret` is 32 random octets from a cryptographic source, the same that
    /// SASL exchanges use. It keys the caches and generates salts.
    pub fn new(
        source: CredentialSource,
        settings: CredentialCheckerSettings,
        secret: [u8; 32],
    ) -> Result<CredentialChecker, CheckerStartError> {
        CredentialChecker::start(source, settings, secret, None)
    }

    /// Creates a successor with the same secret for a new configuration. Counters continue; with
    /// `keeps_throttle` so does the throttle, with its old settings. The caches start empty,
    /// because passwords may have changed. Logins still running here count for both.
    pub fn create_successor(
        &self,
        source: CredentialSource,
        settings: CredentialCheckerSettings,
        keeps_throttle: bool,
    ) -> Result<CredentialChecker, CheckerStartError> {
        CredentialChecker::start(source, settings, self.0.secret, Some((&*self.0, keeps_throttle)))
    }

    fn start(
        source: CredentialSource,
        settings: CredentialCheckerSettings,
        secret: [u8; 32],
        before: Option<(&Shared, bool)>,
    ) -> Result<CredentialChecker, CheckerStartError> {
        let source = match source {
            CredentialSource::Table(table) => SourceState::Table(table),
            CredentialSource::Ldap(config) => {
                SourceState::Ldap(LdapBinder::start(*config, settings.bind_concurrency, settings.waiting_max)?)
            }
            CredentialSource::Dovecot(socket) => {
                SourceState::Dovecot(DovecotChecker::start(socket, settings.waiting_max)?)
            }
        };
        let first_hash =
            StoredPassword::parse(FIRST_UNKNOWN_USER_HASH).expect("FIRST_UNKNOWN_USER_HASH is a valid stored password");
        let (recent_key, wrong_key) = (scram::hmac(&secret, b"recent"), scram::hmac(&secret, b"wrong"));
        let throttle = before.filter(|(_, keeps)| *keeps).map(|(before, _)| before.throttle.clone());
        Ok(CredentialChecker(Arc::new(Shared {
            source,
            workers: HashWorkers::start(settings.threads, settings.waiting_max)?,
            throttle: throttle.unwrap_or_else(|| Arc::new(Mutex::new(Throttle::new(settings.throttle)))),
            recent_successes: Mutex::new(RecentSuccesses::new(
                recent_key,
                settings.recent_ttl,
                settings.recent_entries,
            )),
            recent_failures: Mutex::new(RecentFailures::new(wrong_key, WRONG_TTL, WRONG_ENTRIES_MAX)),
            unknown_user_hashes: Mutex::new(UnknownUserHashes::new(first_hash)),
            secret,
            offers_scram: settings.scram,
            scram_iterations: settings.scram_iterations.min(SCRAM_ITERATIONS_MAX),
            started: before.map_or_else(Instant::now, |(before, _)| before.started),
            counters: before.map(|(before, _)| before.counters.clone()).unwrap_or_default(),
            failed_logins: before.map(|(before, _)| before.failed_logins.clone()).unwrap_or_default(),
        })))
    }

    /// Checks a password. Counts as a failure if dropped before the end.
    pub async fn verify_password(&self, user: &str, password: &str, client: IpAddr) -> LoginResult {
        let verdict = self.check_login(user, password, client).await;
        let counters = &self.0.counters;
        let counter = match &verdict {
            LoginResult::Accepted { .. } => &counters.accepted,
            LoginResult::Refused | LoginResult::Unusable(_) => &counters.refused,
            LoginResult::Throttled => &counters.throttled,
            LoginResult::Unavailable(_) => &counters.unavailable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        verdict
    }

    /// Looks up the user's keys for SCRAM.
    pub async fn find_scram_keys(&self, user: &str, client: IpAddr) -> ScramLookupResult {
        let user = fold_key(user);
        let Some(pending) = self.admit(&user, client) else {
            self.0.counters.throttled.fetch_add(1, Ordering::Relaxed);
            return ScramLookupResult::Throttled;
        };
        let unusable = match self.0.scram_keys(&user).await {
            ScramKeyLookup::Found(keys) => {
                return ScramLookupResult::Found { user: user.into(), keys, pending: pending.charge() };
            }
            ScramKeyLookup::None => None,
            ScramKeyLookup::Unusable(why) => Some(why),
            ScramKeyLookup::Unavailable(why) => {
                pending.end(LoginAttemptOutcome::NotChecked);
                self.0.counters.unavailable.fetch_add(1, Ordering::Relaxed);
                return ScramLookupResult::Unavailable(why);
            }
        };
        ScramLookupResult::Unknown {
            iterations: self.0.unknown_user_iterations(&user),
            unusable,
            pending: pending.charge(),
        }
    }

    /// Admits a login that another host decides. Nothing is looked up.
    pub fn admit_remote_login(&self, user: &str, client: IpAddr) -> RemoteLoginAdmission {
        let user = fold_key(user);
        let counters = &self.0.counters;
        if !is_valid_user_name(&user) {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return RemoteLoginAdmission::Refused;
        }
        match self.admit(&user, client) {
            Some(pending) => RemoteLoginAdmission::Admitted { user: user.into(), pending },
            None => {
                counters.throttled.fetch_add(1, Ordering::Relaxed);
                RemoteLoginAdmission::Throttled
            }
        }
    }

    /// Whether to offer SCRAM: it is enabled ([`CredentialCheckerSettings::scram`]) and there is a
    /// table. LDAP binds and Dovecot give no keys.
    pub fn can_scram(&self) -> bool {
        self.0.offers_scram && matches!(self.0.source, SourceState::Table(_))
    }

    /// A warning for the operator about the stored passwords seen so far, such as plain-text ones.
    pub fn weak_password_warning(&self) -> Option<&'static str> {
        self.0.unknown_user_hashes.lock().warning()
    }

    /// The counters.
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

    async fn check_login(&self, user: &str, password: &str, client: IpAddr) -> LoginResult {
        let user = fold_key(user);
        if !password::is_acceptable(password) || !is_valid_user_name(&user) {
            return LoginResult::Refused;
        }
        let Some(pending) = self.admit(&user, client) else { return LoginResult::Throttled };
        let shared = &self.0;
        let remembered = shared.recent_successes.lock().find(shared.now(), &user, password);
        if let Some(user) = remembered {
            shared.counters.remembered.fetch_add(1, Ordering::Relaxed);
            pending.end(LoginAttemptOutcome::Succeeded);
            return LoginResult::Accepted { user };
        }
        let (found, wrong): (_, fn(u64) -> LoginAttemptOutcome) = match &shared.source {
            SourceState::Table(table) => {
                (shared.verify_with_table(&**table, &user, password, client).await, LoginAttemptOutcome::WrongPassword)
            }
            SourceState::Ldap(binder) => (binder.verify(&user, password).await, LoginAttemptOutcome::WrongCostly),
            SourceState::Dovecot(checker) => {
                (checker.verify(&user, password, client).await, LoginAttemptOutcome::WrongCostly)
            }
        };
        let fingerprint = || shared.recent_successes.lock().short_fingerprint(&user, password);
        let accept = |name: &str, pending: PendingLogin| {
            shared.recent_successes.lock().add(shared.now(), &user, password, name);
            pending.end(LoginAttemptOutcome::Succeeded);
            LoginResult::Accepted { user: name.into() }
        };
        match with_valid_name(found) {
            PasswordCheck::Right => accept(&user, pending),
            PasswordCheck::RightFor(name) => accept(&name, pending),
            PasswordCheck::Wrong => {
                pending.end(wrong(fingerprint()));
                LoginResult::Refused
            }
            PasswordCheck::Unusable(why) => {
                pending.end(wrong(fingerprint()));
                LoginResult::Unusable(why)
            }
            // The password may be right. Without a mark as costly, repeating it until the server
            // works again stays free.
            PasswordCheck::Inconclusive(why) => {
                pending.end(LoginAttemptOutcome::WrongPassword(fingerprint()));
                LoginResult::Unavailable(why)
            }
            PasswordCheck::NotChecked(why) => {
                pending.end(LoginAttemptOutcome::NotChecked);
                LoginResult::Unavailable(why)
            }
        }
    }

    fn admit(&self, user: &str, client: IpAddr) -> Option<PendingLogin> {
        let attempt = self.0.throttle.lock().admit_attempt(self.0.now(), user, client)?;
        let reported = self.0.failed_logins.get().map(|_| (user.into(), client));
        Some(PendingLogin { shared: self.0.clone(), attempt: Some(attempt), reported })
    }

    /// Reports failures to other servers from now on, also those of successors. Only the first call counts.
    pub fn share_failures(&self, failed_logins: Arc<dyn FailedLogins>) {
        // A second one would be the same.
        let _ = self.0.failed_logins.set(failed_logins);
    }

    /// Counts a login that has failed on another server.
    pub fn count_failure_elsewhere(&self, user: &str, client: IpAddr) {
        self.0.throttle.lock().count_failure_elsewhere(self.0.now(), user, client);
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The table's entry for a user and its fingerprint, or why the table is unavailable.
    async fn user_entry(&self, table: &dyn Table, user: &str) -> Result<(UserEntry, Fingerprint), String> {
        let name = table.name();
        let fingerprint = |values: &[String]| self.recent_failures.lock().entry_fingerprint(values);
        match table.lookup(&[user]).await.pop() {
            Some(LookupAnswer::Found(values)) => {
                let values = Zeroizing::new(values);
                let entry = match StoredPassword::parse_all(&values) {
                    Ok(stored) => {
                        self.unknown_user_hashes.lock().observe(&stored);
                        UserEntry::Usable(stored)
                    }
                    Err(StoredPasswordError::Locked) => UserEntry::NoUser,
                    Err(error) => UserEntry::Unusable(format!("table '{name}', user '{user}': {error}")),
                };
                Ok((entry, fingerprint(&values)))
            }
            Some(LookupAnswer::NotFound) => Ok((UserEntry::NoUser, fingerprint(&[]))),
            Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => Err(why),
            None => Err(format!("table '{name}': no answer")),
        }
    }

    /// The hashes to compute for a user without usable entry.
    fn unknown_user_hashes(&self, user: &str) -> Vec<StoredPassword> {
        self.unknown_user_hashes.lock().hashes(&self.secret, user)
    }

    /// The SCRAM iterations to pretend for a user without keys.
    fn unknown_user_iterations(&self, user: &str) -> u32 {
        let seen = self.unknown_user_hashes.lock().iterations(&self.secret, user, self.scram_iterations);
        seen.unwrap_or(self.scram_iterations)
    }

    async fn verify_with_table(&self, table: &dyn Table, user: &str, password: &str, client: IpAddr) -> PasswordCheck {
        let (entry, fingerprint) = match self.user_entry(table, user).await {
            Ok(entry) => entry,
            Err(why) => return PasswordCheck::NotChecked(why),
        };
        let (stored, otherwise) = match entry {
            UserEntry::Usable(stored) => (stored, None),
            UserEntry::NoUser => (self.unknown_user_hashes(user), Some(PasswordCheck::Wrong)),
            UserEntry::Unusable(why) => (self.unknown_user_hashes(user), Some(PasswordCheck::Unusable(why))),
        };
        let fingerprint =
            self.recent_failures.lock().fingerprint(throttle::client_network(client), user, &fingerprint, password);
        if self.recent_failures.lock().has(self.now(), &fingerprint) {
            self.counters.repeated.fetch_add(1, Ordering::Relaxed);
            return otherwise.unwrap_or(PasswordCheck::Wrong);
        }
        let password = Zeroizing::new(password.to_owned());
        let found = match (self.workers.run(move || StoredPassword::verify_any(&stored, &password)).await, otherwise) {
            (Ok(Ok(true)), None) => return PasswordCheck::Right,
            (Ok(Ok(_)), otherwise) => otherwise.unwrap_or(PasswordCheck::Wrong),
            (Ok(Err(error)), _) => return PasswordCheck::NotChecked(error.to_string()),
            (Err(full), _) => return PasswordCheck::NotChecked(full.to_string()),
        };
        self.recent_failures.lock().add(self.now(), fingerprint);
        found
    }

    async fn scram_keys(&self, user: &str) -> ScramKeyLookup {
        let SourceState::Table(table) = &self.source else { return ScramKeyLookup::None };
        let entry = match is_valid_user_name(user) {
            true => self.user_entry(&**table, user).await.map(|(entry, _)| entry),
            false => Ok(UserEntry::NoUser),
        };
        let (stored, otherwise) = match entry {
            Ok(UserEntry::Usable(stored)) => (stored, None),
            Ok(UserEntry::NoUser) => (self.unknown_user_hashes(user), Some(ScramKeyLookup::None)),
            Ok(UserEntry::Unusable(why)) => (self.unknown_user_hashes(user), Some(ScramKeyLookup::Unusable(why))),
            Err(why) => return ScramKeyLookup::Unavailable(why),
        };
        let salt = scram::hmac(&self.secret, &[b"scram salt\0", user.as_bytes()].concat());
        let iterations = self.scram_iterations;
        let make = move || stored.iter().find_map(|stored| stored.scram_keys(&salt[..SALT_OCTETS], iterations));
        match (self.workers.run(make).await, otherwise) {
            (Err(full), _) => ScramKeyLookup::Unavailable(full.to_string()),
            (Ok(_), Some(otherwise)) => otherwise,
            (Ok(Some(keys)), None) => ScramKeyLookup::Found(keys),
            (Ok(None), None) => ScramKeyLookup::None,
        }
    }
}

/// The table's entry for a user.
enum UserEntry {
    /// Stored passwords, at least one.
    Usable(Vec<StoredPassword>),
    /// The user does not exist or is locked.
    NoUser,
    /// The entry is unusable; the reason.
    Unusable(String),
}

/// The result of looking up SCRAM keys.
enum ScramKeyLookup {
    Found(ScramKeys),
    /// The user does not exist or has no password that works with SCRAM.
    None,
    /// The entry is unusable; the reason.
    Unusable(String),
    /// The table is unavailable; the reason.
    Unavailable(String),
}

/// A login attempt in progress. Counts as failed if dropped.
pub struct PendingLogin {
    shared: Arc<Shared>,
    attempt: Option<LoginAttempt>,
    /// Who tries, if failures are reported.
    reported: Option<(Box<str>, IpAddr)>,
}

impl PendingLogin {
    /// The proof was right.
    pub fn record_success(self) {
        self.shared.counters.accepted.fetch_add(1, Ordering::Relaxed);
        self.end(LoginAttemptOutcome::Succeeded);
    }

    /// The proof was wrong.
    pub fn record_failure(self) {
        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        self.end(LoginAttemptOutcome::Failed);
    }

    /// Neither: there is no result, and it does not count.
    pub fn record_unavailable(self) {
        self.shared.counters.unavailable.fetch_add(1, Ordering::Relaxed);
        self.end(LoginAttemptOutcome::NotChecked);
    }

    /// Charges the attempt now, because from here the client decides whether and when it ends.
    fn charge(mut self) -> PendingLogin {
        if let Some(attempt) = &mut self.attempt {
            self.shared.throttle.lock().count_as_failed(self.shared.now(), attempt);
        }
        self
    }

    fn end(mut self, end: LoginAttemptOutcome) {
        self.settle(end);
    }

    fn settle(&mut self, end: LoginAttemptOutcome) {
        let Some(attempt) = self.attempt.take() else { return };
        let has_failed = self.shared.throttle.lock().finish_attempt(self.shared.now(), attempt, end);
        if has_failed && let (Some((user, client)), Some(others)) = (&self.reported, self.shared.failed_logins.get()) {
            others.report(user, *client);
        }
    }
}

impl Drop for PendingLogin {
    fn drop(&mut self) {
        self.settle(LoginAttemptOutcome::Failed);
    }
}

impl fmt::Debug for PendingLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

/// The result with the returned name as a table key. A name that no user can have is an unusable entry.
fn with_valid_name(found: PasswordCheck) -> PasswordCheck {
    let PasswordCheck::RightFor(name) = found else { return found };
    let folded = fold_key(&name);
    match is_valid_user_name(&folded) {
        true => PasswordCheck::RightFor(folded.into()),
        false => PasswordCheck::Unusable(format!("Dovecot returns an invalid user name: {name:?}")),
    }
}

/// Whether this can be a user name. LDAP servers ignore leading, trailing and repeated white space,
/// so a name with it would evade the throttle.
fn is_valid_user_name(user: &str) -> bool {
    let is_spelled_once = || {
        let mut was_space = true;
        let is_lone = |character: char| !(std::mem::replace(&mut was_space, character.is_whitespace()) && was_space);
        user.chars().all(is_lone) && !was_space
    };
    (1..=USER_OCTETS_MAX).contains(&user.len()) && !user.chars().any(char::is_control) && is_spelled_once()
}
