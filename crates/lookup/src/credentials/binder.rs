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

use super::CredentialsError;
use crate::backend::Failure;
use crate::fold;
use crate::ldap::connection::{Connector, Entry, Response, Search, Session};
use crate::ldap::schema::{Rule, is_plain};
use crate::ldap::{Bind, Config, Servers};

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
pub(super) enum Found {
    /// The password is right.
    Right,
    /// The password is wrong or the user does not exist.
    Wrong,
    /// The user's entry is unusable; the reason.
    Unusable(String),
    /// The password was checked without a clear result; the reason.
    Unproven(String),
    /// The password was not checked; the reason.
    Unknowable(String),
}

/// A handle to the thread.
pub(super) struct Binder {
    questions: mpsc::Sender<Question>,
}

struct Question {
    user: Box<str>,
    password: Zeroizing<String>,
    answer: oneshot::Sender<Found>,
}

impl Binder {
    /// Starts the thread, which ends with this handle. Does not connect yet.
    pub(super) fn start(config: Config, at_once: usize, waiting_max: usize) -> Result<Binder, CredentialsError> {
        let (questions, asked) = mpsc::channel(waiting_max.max(1));
        let anonymous = Servers { bind: Bind::Anonymous, ..config.servers.clone() };
        let searching = Connections::new(Connector::new(config.servers.clone())?, at_once);
        let binding = Connections::new(Connector::new(anonymous)?, at_once);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("binder".to_owned()).spawn(move || {
            let desk = Desk { config, searching, binding, wrong_takes: Cell::default() };
            LocalSet::new().block_on(&runtime, desk.work(asked, at_once.max(1)));
        })?;
        Ok(Binder { questions })
    }

    /// Checks the user's password.
    pub(super) async fn verify(&self, user: &str, password: &str) -> Found {
        let (answer, answered) = oneshot::channel();
        let question = Question { user: user.into(), password: Zeroizing::new(password.to_owned()), answer };
        if self.questions.try_send(question).is_err() {
            return Found::Unknowable("too many passwords are waiting to be checked".to_owned());
        }
        answered.await.unwrap_or_else(|_| Found::Unknowable("the bind thread has ended".to_owned()))
    }
}

/// The state of the thread.
struct Desk {
    config: Config,
    searching: Connections,
    binding: Connections,
    /// Duration of the last failed bind.
    wrong_takes: Cell<Duration>,
}

impl Desk {
    async fn work(self, mut asked: mpsc::Receiver<Question>, at_once: usize) {
        let (desk, places) = (Rc::new(self), Arc::new(Semaphore::new(at_once)));
        while let Some(Question { user, password, answer }) = asked.recv().await {
            let place = places.clone().acquire_owned().await;
            // The caller has gone away.
            if answer.is_closed() {
                continue;
            }
            let desk = desk.clone();
            tokio::task::spawn_local(async move {
                let found = desk.check(&user, &password).await;
                let _ = answer.send(found.unwrap_or_else(|failure| Found::Unknowable(failure.to_string())));
                drop(place);
            });
        }
    }

    async fn check(&self, user: &str, password: &str) -> Result<Found, Failure> {
        let dn = match self.searching.with(async |session| self.dn_of(session, user).await).await? {
            Named::Entry(dn) => dn,
            Named::Nobody => return Ok(self.delayed(Found::Wrong).await),
            Named::Unclear(why) => return Ok(self.delayed(Found::Unusable(why)).await),
        };
        let session = self.binding.open_one().await?;
        let began = Instant::now();
        // From here on the bind is sent: the session is open, and its task runs on this thread.
        let done = match self.binding.in_time(&session, &mut async |session| session.bind(&dn, password).await).await {
            Ok(done) => done,
            Err(failure) => return Ok(Found::Unproven(failure.to_string())),
        };
        self.binding.keep(session);
        match done.code {
            SUCCESS => Ok(Found::Right),
            INVALID_CREDENTIALS
            | NO_SUCH_OBJECT
            | CONSTRAINT_VIOLATION
            | INAPPROPRIATE_AUTHENTICATION
            | INSUFFICIENT_ACCESS_RIGHTS
            | UNWILLING_TO_PERFORM => {
                self.wrong_takes.set(began.elapsed());
                Ok(Found::Wrong)
            }
            _ => Ok(Found::Unproven(format!("bind as '{dn}': {done}"))),
        }
    }

    /// Delays a result by the duration of the last failed bind.
    async fn delayed(&self, found: Found) -> Found {
        tokio::time::sleep(self.wrong_takes.get()).await;
        found
    }

    /// The only entry of this user.
    async fn dn_of(&self, session: &Session, user: &str) -> Result<Named, Failure> {
        let found = self.find(session, user, user).await?;
        // If values are not visible, the filter may match less than the full name. Then an unused
        // domain must find nothing.
        if let (Named::Entry(dn), None, Some((local, _))) =
            (&found, self.config.filter.key_attributes(), user.rsplit_once('@'))
            && !matches!(self.find(session, user, &format!("{local}@{NOWHERE}")).await?, Named::Nobody)
        {
            let what = format!("the filter finds user '{user}' in any domain: '{dn}'");
            return Ok(Named::unclear(session, what));
        }
        Ok(found)
    }

    /// The only entry that the filter finds with this key and that belongs to the user.
    async fn find(&self, session: &Session, user: &str, key: &str) -> Result<Named, Failure> {
        let unclear = |what: String| Ok(Named::unclear(session, what));
        let Some(filter) = self.config.filter.one(key) else { return Ok(Named::Nobody) };
        let (base, scope) = (&*self.config.base, self.config.scope);
        let attributes = self.config.filter.key_attributes().unwrap_or_default();
        let mut stream =
            session.search(&Search { base, scope, filter: &filter, attributes: &attributes, controls: &[] })?;
        let mut dn = None;
        loop {
            match stream.next().await? {
                Response::Entry(entry) if likeness(&entry, &attributes, user) == Likeness::Other => {}
                Response::Entry(entry) if likeness(&entry, &attributes, user) == Likeness::Unknown => {
                    let dn = entry.dn();
                    return unclear(format!("entry '{dn}' does not show how user '{user}' is spelled"));
                }
                Response::Entry(entry) if dn.is_some() => {
                    let (one, other) = (dn.unwrap_or_default(), entry.dn());
                    return unclear(format!("user '{user}' has two entries: '{one}' and '{other}'"));
                }
                Response::Entry(entry) => dn = Some(entry.dn().to_owned()),
                Response::Done(done) if done.code == SUCCESS => {
                    // A bind with an empty DN would be anonymous.
                    let dn = dn.filter(|dn: &String| !dn.is_empty());
                    return Ok(dn.map_or(Named::Nobody, Named::Entry));
                }
                Response::Done(done) if done.code == SIZE_LIMIT_EXCEEDED && dn.is_some() => {
                    return unclear(format!("user '{user}' has more than one entry"));
                }
                Response::Done(done) => {
                    return Err(Failure::new(session.url().to_string(), format!("search for user '{user}': {done}")));
                }
                Response::Reference(_) | Response::Intermediate { .. } => {}
            }
        }
    }
}

/// The result of searching a user.
enum Named {
    Nobody,
    /// The DN of the entry.
    Entry(String),
    /// Ambiguous; the reason.
    Unclear(String),
}

impl Named {
    fn unclear(session: &Session, what: String) -> Named {
        Named::Unclear(Failure::new(session.url().to_string(), what).to_string())
    }
}

/// Whether an entry belongs to a user.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Likeness {
    /// It does.
    Same,
    /// All compared values are visible and differ.
    Other,
    /// Not all compared values are visible, and the name may be spelled differently.
    Unknown,
}

/// Compares the user name with the entry's values of these attributes, the only ones requested.
fn likeness(entry: &Entry, attributes: &[&str], user: &str) -> Likeness {
    let mut shown = vec![false; attributes.len()];
    for (name, values) in entry.attributes() {
        // Under another name or with options only some of the values may be visible.
        if let Some(place) = attributes.iter().position(|attribute| attribute.eq_ignore_ascii_case(name)) {
            shown[place] = true;
        }
        let mut texts = values.filter_map(|value| str::from_utf8(value).ok());
        if texts.any(|text| Rule::Exact.form(&fold(text)) == user) {
            return Likeness::Same;
        }
    }
    match is_plain(user.as_bytes()) {
        _ if !shown.is_empty() && !shown.contains(&false) => Likeness::Other,
        true => Likeness::Same,
        false => Likeness::Unknown,
    }
}

/// A pool of idle connections.
struct Connections {
    connector: Connector,
    idle_max: usize,
    idle: RefCell<Vec<Session>>,
}

impl Connections {
    fn new(connector: Connector, idle_max: usize) -> Connections {
        Connections { connector, idle_max, idle: RefCell::default() }
    }

    /// Runs `act` on an idle connection, and again on a new one if the connection turns out to be
    /// closed.
    async fn with<T>(&self, mut act: impl AsyncFnMut(&Session) -> Result<T, Failure>) -> Result<T, Failure> {
        if let Some(session) = self.take() {
            match self.in_time(&session, &mut act).await {
                Err(_) if session.is_closed() => {}
                ended => return ended.inspect(|_| self.keep(session)),
            }
        }
        let session = self.connector.connect().await?;
        self.in_time(&session, &mut act).await.inspect(|_| self.keep(session))
    }

    /// An open connection, checked after pending data was read.
    async fn open_one(&self) -> Result<Session, Failure> {
        tokio::task::yield_now().await;
        let session = match self.take() {
            Some(session) => session,
            None => self.connector.connect().await?,
        };
        match session.is_closed() {
            false => Ok(session),
            true => Err(Failure::new(session.url().to_string(), "closed before the bind")),
        }
    }

    async fn in_time<T>(
        &self,
        session: &Session,
        act: &mut impl AsyncFnMut(&Session) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let timed_out = |_| Failure::new(session.url().to_string(), "timed out");
        tokio::time::timeout(self.connector.servers().timeout, act(session)).await.map_err(timed_out)?
    }

    fn take(&self) -> Option<Session> {
        let mut idle = self.idle.borrow_mut();
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    /// Only for connections that worked; on others an operation may still be running.
    fn keep(&self, session: Session) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.idle_max && !session.is_closed() {
            idle.push(session);
        }
    }
}
