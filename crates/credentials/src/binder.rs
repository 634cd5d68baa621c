//! Checks passwords by LDAP binds as the user (RFC 4513 section 5.1), on a thread of its own.
//!
//! Searches use connections bound as configured. User binds use separate connections, which are
//! never searched on, because they are bound as someone else. The filter must find exactly one
//! entry.
//!
//! LDAP servers ignore more differences in spelling than we do: case, spaces, some accents. To give
//! each user one name, an entry belongs to the user only if a value that the filter compares equals
//! the name. If these values are not readable, or the filter compares parts of the name, the name
//! must be printable ASCII and must not be found in an unused domain.
//!
//! | result of the bind                                                           | meaning                    |
//! |------------------------------------------------------------------------------|----------------------------|
//! | success (0)                                                                  | right password             |
//! | invalidCredentials (49), noSuchObject (32)                                   | wrong password             |
//! | constraintViolation (19), inappropriateAuthentication (48), insufficientAccessRights (50), unwillingToPerform (53) | the user may not log in: locked, or without password |
//! | anything else, or a timeout                                                  | unavailable, and a failure: a server that gives no result must not make guesses free |
//!
//! A bind is never retried. For an unknown user there is no bind; the answer takes as long as the
//! last failed bind.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::CheckerStartError;
use ldap::{
    Connector, EqualityRule, LdapBindMethod, LdapConfig, LdapConnectionConfig, LdapResponse, LdapSession, SearchEntry,
    SearchRequest, is_printable_ascii,
};
use lookup::backend::BackendFailure;
use lookup::fold_key;

const SUCCESS: u32 = 0;
const SIZE_LIMIT_EXCEEDED: u32 = 4;
const CONSTRAINT_VIOLATION: u32 = 19;
const NO_SUCH_OBJECT: u32 = 32;
const INAPPROPRIATE_AUTHENTICATION: u32 = 48;
const INVALID_CREDENTIALS: u32 = 49;
const INSUFFICIENT_ACCESS_RIGHTS: u32 = 50;
const UNWILLING_TO_PERFORM: u32 = 53;

/// A domain that does not exist (RFC 6761 section 6.4).
const NOWHERE: &str = "nobody.invalid";

/// The result of checking a password.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PasswordCheck {
    /// The password is right.
    Right,
    /// The password is right, and the user has this name: that in the login stands for it.
    RightFor(Box<str>),
    /// The password is wrong or the user does not exist.
    Wrong,
    /// The user's entry is unusable; the reason.
    Unusable(String),
    /// The password was checked without a clear result; the reason.
    Inconclusive(String),
    /// The password was not checked; the reason.
    NotChecked(String),
}

/// A handle to the thread.
pub(super) struct LdapBinder {
    requests: mpsc::Sender<BindRequest>,
}

struct BindRequest {
    user: Box<str>,
    password: Zeroizing<String>,
    answer: oneshot::Sender<PasswordCheck>,
}

impl LdapBinder {
    /// Starts the thread, which ends with this handle. Does not connect yet.
    pub(super) fn start(
        config: LdapConfig,
        at_once: usize,
        waiting_max: usize,
    ) -> Result<LdapBinder, CheckerStartError> {
        let (questions, asked) = mpsc::channel(waiting_max.max(1));
        let anonymous = LdapConnectionConfig { bind: LdapBindMethod::Anonymous, ..config.servers.clone() };
        let searching = SessionPool::new(Connector::new(config.servers.clone())?, at_once);
        let binding = SessionPool::new(Connector::new(anonymous)?, at_once);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("binder".to_owned()).spawn(move || {
            let worker = BindWorker {
                config,
                search_sessions: searching,
                bind_sessions: binding,
                wrong_bind_time: Cell::default(),
            };
            LocalSet::new().block_on(&runtime, worker.run(asked, at_once.max(1)));
        })?;
        Ok(LdapBinder { requests: questions })
    }

    /// Checks the user's password.
    pub(super) async fn verify(&self, user: &str, password: &str) -> PasswordCheck {
        let (answer, answered) = oneshot::channel();
        let request = BindRequest { user: user.into(), password: Zeroizing::new(password.to_owned()), answer };
        if self.requests.try_send(request).is_err() {
            return PasswordCheck::NotChecked("too many passwords are waiting to be checked".to_owned());
        }
        answered.await.unwrap_or_else(|_| PasswordCheck::NotChecked("the bind thread has ended".to_owned()))
    }
}

/// The state of the thread.
struct BindWorker {
    config: LdapConfig,
    search_sessions: SessionPool,
    bind_sessions: SessionPool,
    /// Duration of the last failed bind.
    wrong_bind_time: Cell<Duration>,
}

impl BindWorker {
    async fn run(self, mut asked: mpsc::Receiver<BindRequest>, at_once: usize) {
        let (worker, permits) = (Rc::new(self), Arc::new(Semaphore::new(at_once)));
        while let Some(BindRequest { user, password, answer }) = asked.recv().await {
            let permit = permits.clone().acquire_owned().await;
            // The caller has gone away.
            if answer.is_closed() {
                continue;
            }
            let worker = worker.clone();
            tokio::task::spawn_local(async move {
                let found = worker.check(&user, &password).await;
                let _ = answer.send(found.unwrap_or_else(|failure| PasswordCheck::NotChecked(failure.to_string())));
                drop(permit);
            });
        }
    }

    async fn check(&self, user: &str, password: &str) -> Result<PasswordCheck, BackendFailure> {
        let dn = match self.search_sessions.with(async |session| self.find_dn(session, user).await).await? {
            DnLookup::Entry(dn) => dn,
            DnLookup::NotFound => return Ok(self.delayed(PasswordCheck::Wrong).await),
            DnLookup::Ambiguous(why) => return Ok(self.delayed(PasswordCheck::Unusable(why)).await),
        };
        let session = self.bind_sessions.open_session().await?;
        let began = Instant::now();
        // From here on the bind is sent: the session is open, and its task runs on this thread.
        let done =
            match self.bind_sessions.in_time(&session, &mut async |session| session.bind(&dn, password).await).await {
                Ok(done) => done,
                Err(failure) => return Ok(PasswordCheck::Inconclusive(failure.to_string())),
            };
        self.bind_sessions.put_back(session);
        match done.code {
            SUCCESS => Ok(PasswordCheck::Right),
            INVALID_CREDENTIALS
            | NO_SUCH_OBJECT
            | CONSTRAINT_VIOLATION
            | INAPPROPRIATE_AUTHENTICATION
            | INSUFFICIENT_ACCESS_RIGHTS
            | UNWILLING_TO_PERFORM => {
                self.wrong_bind_time.set(began.elapsed());
                Ok(PasswordCheck::Wrong)
            }
            _ => Ok(PasswordCheck::Inconclusive(format!("bind as '{dn}': {done}"))),
        }
    }

    /// Delays a result by the duration of the last failed bind.
    async fn delayed(&self, found: PasswordCheck) -> PasswordCheck {
        tokio::time::sleep(self.wrong_bind_time.get()).await;
        found
    }

    /// The only entry of this user.
    async fn find_dn(&self, session: &LdapSession, user: &str) -> Result<DnLookup, BackendFailure> {
        let found = self.find(session, user, user).await?;
        // If values are not visible, the filter may match less than the full name. Then an unused
        // domain must find nothing.
        if let (DnLookup::Entry(dn), None, Some((local, _))) =
            (&found, self.config.filter.key_attributes(), user.rsplit_once('@'))
            && !matches!(self.find(session, user, &format!("{local}@{NOWHERE}")).await?, DnLookup::NotFound)
        {
            let what = format!("the filter finds user '{user}' in any domain: '{dn}'");
            return Ok(DnLookup::ambiguous(session, what));
        }
        Ok(found)
    }

    /// The only entry that the filter finds with this key and that belongs to the user.
    async fn find(&self, session: &LdapSession, user: &str, key: &str) -> Result<DnLookup, BackendFailure> {
        let ambiguous = |what: String| Ok(DnLookup::ambiguous(session, what));
        let Some(filter) = self.config.filter.for_key(key) else { return Ok(DnLookup::NotFound) };
        let (base, scope) = (&*self.config.base, self.config.scope);
        let attributes = self.config.filter.key_attributes().unwrap_or_default();
        let mut stream =
            session.search(&SearchRequest { base, scope, filter: &filter, attributes: &attributes, controls: &[] })?;
        let mut dn = None;
        loop {
            match stream.next().await? {
                LdapResponse::Entry(entry) if name_match(&entry, &attributes, user) == NameMatch::Other => {}
                LdapResponse::Entry(entry) if name_match(&entry, &attributes, user) == NameMatch::Unknown => {
                    let dn = entry.dn();
                    return ambiguous(format!("entry '{dn}' does not show how user '{user}' is spelled"));
                }
                LdapResponse::Entry(entry) if dn.is_some() => {
                    let (one, other) = (dn.unwrap_or_default(), entry.dn());
                    return ambiguous(format!("user '{user}' has two entries: '{one}' and '{other}'"));
                }
                LdapResponse::Entry(entry) => dn = Some(entry.dn().to_owned()),
                LdapResponse::Done(done) if done.code == SUCCESS => {
                    // A bind with an empty DN would be anonymous.
                    let dn = dn.filter(|dn: &String| !dn.is_empty());
                    return Ok(dn.map_or(DnLookup::NotFound, DnLookup::Entry));
                }
                LdapResponse::Done(done) if done.code == SIZE_LIMIT_EXCEEDED && dn.is_some() => {
                    return ambiguous(format!("user '{user}' has more than one entry"));
                }
                LdapResponse::Done(done) => {
                    return Err(BackendFailure::new(
                        session.url().to_string(),
                        format!("search for user '{user}': {done}"),
                    ));
                }
                LdapResponse::Reference(_) | LdapResponse::Intermediate { .. } => {}
            }
        }
    }
}

/// The result of searching a user.
enum DnLookup {
    NotFound,
    /// The DN of the entry.
    Entry(String),
    /// Ambiguous; the reason.
    Ambiguous(String),
}

impl DnLookup {
    fn ambiguous(session: &LdapSession, what: String) -> DnLookup {
        DnLookup::Ambiguous(BackendFailure::new(session.url().to_string(), what).to_string())
    }
}

/// Whether an entry belongs to a user.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameMatch {
    /// It does.
    Same,
    /// All compared values are visible and differ.
    Other,
    /// Not all compared values are visible, and the name may be spelled differently.
    Unknown,
}

/// Compares the user name with the entry's values of these attributes, the only ones requested.
fn name_match(entry: &SearchEntry, attributes: &[&str], user: &str) -> NameMatch {
    let mut shown = vec![false; attributes.len()];
    for (name, values) in entry.attributes() {
        // Under another name or with options only some of the values may be visible.
        if let Some(place) = attributes.iter().position(|attribute| attribute.eq_ignore_ascii_case(name)) {
            shown[place] = true;
        }
        let mut texts = values.filter_map(|value| str::from_utf8(value).ok());
        if texts.any(|text| EqualityRule::Exact.normalize(&fold_key(text)) == user) {
            return NameMatch::Same;
        }
    }
    match is_printable_ascii(user.as_bytes()) {
        _ if !shown.is_empty() && !shown.contains(&false) => NameMatch::Other,
        true => NameMatch::Same,
        false => NameMatch::Unknown,
    }
}

/// A pool of idle connections.
struct SessionPool {
    connector: Connector,
    idle_max: usize,
    idle: RefCell<Vec<LdapSession>>,
}

impl SessionPool {
    fn new(connector: Connector, idle_max: usize) -> SessionPool {
        SessionPool { connector, idle_max, idle: RefCell::default() }
    }

    /// Runs `act` on an idle connection, and again on a new one if the connection turns out to be
    /// closed.
    async fn with<T>(
        &self,
        mut act: impl AsyncFnMut(&LdapSession) -> Result<T, BackendFailure>,
    ) -> Result<T, BackendFailure> {
        if let Some(session) = self.take() {
            match self.in_time(&session, &mut act).await {
                Err(_) if session.is_closed() => {}
                ended => return ended.inspect(|_| self.put_back(session)),
            }
        }
        let session = self.connector.connect().await?;
        self.in_time(&session, &mut act).await.inspect(|_| self.put_back(session))
    }

    /// An open connection, checked after pending data was read.
    async fn open_session(&self) -> Result<LdapSession, BackendFailure> {
        tokio::task::yield_now().await;
        let session = match self.take() {
            Some(session) => session,
            None => self.connector.connect().await?,
        };
        match session.is_closed() {
            false => Ok(session),
            true => Err(BackendFailure::new(session.url().to_string(), "closed before the bind")),
        }
    }

    async fn in_time<T>(
        &self,
        session: &LdapSession,
        act: &mut impl AsyncFnMut(&LdapSession) -> Result<T, BackendFailure>,
    ) -> Result<T, BackendFailure> {
        let timed_out = |_| BackendFailure::new(session.url().to_string(), "timed out");
        tokio::time::timeout(self.connector.servers().timeout, act(session)).await.map_err(timed_out)?
    }

    fn take(&self) -> Option<LdapSession> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    /// Only for connections that worked; on others an operation may still be running.
    fn put_back(&self, session: LdapSession) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.idle_max && !session.is_closed() {
            idle.push(session);
        }
    }
}
