//! Checks passwords by binding to a directory as the user (RFC 4513 section 5.1).
//!
//! A thread of its own waits for the directory. The DN is searched on connections that are bound as the configuration
//! says; users are bound on other connections, which are used for that alone: one that is bound as somebody else must
//! never be searched on. An entry that the filter finds must be the only one.
//!
//! Directories take more spellings for the same than we do: case, spaces, some of them accents. So that each user is known
//! to the throttle and to others by one, an entry is the user's only where a value that the filter compares is the name.
//! Where such values are not shown, or the filter compares parts of names, a name must be printable ASCII;
//! and one that is found under any domain must have none.
//!
//! | the server ends the bind with                                                | what that means            |
//! |------------------------------------------------------------------------------|----------------------------|
//! | success (0)                                                                  | the password is right      |
//! | invalidCredentials (49), noSuchObject (32)                                   | it is wrong                |
//! | constraintViolation (19), inappropriateAuthentication (48), insufficientAccessRights (50), unwillingToPerform (53) | the user may not log in: locked, or without a password |
//! | anything else, or nothing in time                                            | it cannot be said, and counts as wrong: a directory that holds its answer back must not make guesses free |
//!
//! A bind that was sent is not sent again.
//!
//! For a user who is not there nobody is bound; the answer waits as long as the last bind with a wrong password took.

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

/// A domain that nobody has (RFC 6761 section 6.4).
const NOWHERE: &str = "nobody.invalid";

/// What was found out about a password.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is the user's.
    Right,
    /// It is not, or there is no such user.
    Wrong,
    /// It cannot be anybody's: what is there for the user is of no use; why.
    Unusable(String),
    /// It was looked at and was not found to be right; why that cannot be said.
    Unproven(String),
    /// It was not looked at; why.
    Unknowable(String),
}

/// Asks the thread.
pub(super) struct Binder {
    questions: mpsc::Sender<Question>,
}

struct Question {
    user: Box<str>,
    password: Zeroizing<String>,
    answer: oneshot::Sender<Found>,
}

impl Binder {
    /// Starts the thread, which ends with this handle. Connects to nobody yet.
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

    /// Whether this is the user's password.
    pub(super) async fn verify(&self, user: &str, password: &str) -> Found {
        let (answer, answered) = oneshot::channel();
        let question = Question { user: user.into(), password: Zeroizing::new(password.to_owned()), answer };
        if self.questions.try_send(question).is_err() {
            return Found::Unknowable("too many passwords wait to be checked".to_owned());
        }
        answered.await.unwrap_or_else(|_| Found::Unknowable("the thread that binds has ended".to_owned()))
    }
}

/// What the thread has.
struct Desk {
    config: Config,
    searching: Connections,
    binding: Connections,
    /// How long the last bind with a wrong password took.
    wrong_takes: Cell<Duration>,
}

impl Desk {
    async fn work(self, mut asked: mpsc::Receiver<Question>, at_once: usize) {
        let (desk, places) = (Rc::new(self), Arc::new(Semaphore::new(at_once)));
        while let Some(Question { user, password, answer }) = asked.recv().await {
            let place = places.clone().acquire_owned().await;
            // Nobody waits for it any more.
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
        // From here on it is sent: the session is open, and its task runs on this thread.
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

    /// As late as a bind with a wrong password would have told.
    async fn delayed(&self, found: Found) -> Found {
        tokio::time::sleep(self.wrong_takes.get()).await;
        found
    }

    /// The one entry that is this user's.
    async fn dn_of(&self, session: &Session, user: &str) -> Result<Named, Failure> {
        let found = self.find(session, user, user).await?;
        // What shows no names may be found by less than the name: under a domain that nobody has it must not be there.
        if let (Named::Entry(dn), None, Some((local, _))) =
            (&found, self.config.filter.key_attributes(), user.rsplit_once('@'))
            && !matches!(self.find(session, user, &format!("{local}@{NOWHERE}")).await?, Named::Nobody)
        {
            let what = format!("the filter finds user '{user}' under any domain: '{dn}'");
            return Ok(Named::unclear(session, what));
        }
        Ok(found)
    }

    /// The one entry that the filter finds by this key for the user.
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
                    return unclear(format!("entry '{dn}' does not show whether user '{user}' is spelled so"));
                }
                Response::Entry(entry) if dn.is_some() => {
                    let (one, other) = (dn.unwrap_or_default(), entry.dn());
                    return unclear(format!("user '{user}' is two entries: '{one}' and '{other}'"));
                }
                Response::Entry(entry) => dn = Some(entry.dn().to_owned()),
                Response::Done(done) if done.code == SUCCESS => {
                    // An entry without a name would be bound to as nobody.
                    let dn = dn.filter(|dn: &String| !dn.is_empty());
                    return Ok(dn.map_or(Named::Nobody, Named::Entry));
                }
                Response::Done(done) if done.code == SIZE_LIMIT_EXCEEDED && dn.is_some() => {
                    return unclear(format!("user '{user}' is more than one entry"));
                }
                Response::Done(done) => {
                    return Err(Failure::new(session.url().to_string(), format!("search of user '{user}': {done}")));
                }
                Response::Reference(_) | Response::Intermediate { .. } => {}
            }
        }
    }
}

/// Who is called so.
enum Named {
    Nobody,
    /// The one who has this DN.
    Entry(String),
    /// There is no telling who; why.
    Unclear(String),
}

impl Named {
    fn unclear(session: &Session, what: String) -> Named {
        Named::Unclear(Failure::new(session.url().to_string(), what).to_string())
    }
}

/// Whether an entry is that of a user.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Likeness {
    /// It is.
    Same,
    /// All that the filter compares shows, and is spelled otherwise.
    Other,
    /// What the filter found does not show, and the name could be spelled otherwise.
    Unknown,
}

/// Whether the entry has the name among its values of these attributes, which are all that was asked for.
fn likeness(entry: &Entry, attributes: &[&str], user: &str) -> Likeness {
    let mut shown = vec![false; attributes.len()];
    for (name, values) in entry.attributes() {
        // By another name of the attribute or with options it may be a part of the values only.
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

/// Connections that wait to be used again, and how to get more.
struct Connections {
    connector: Connector,
    idle_max: usize,
    idle: RefCell<Vec<Session>>,
}

impl Connections {
    fn new(connector: Connector, idle_max: usize) -> Connections {
        Connections { connector, idle_max, idle: RefCell::default() }
    }

    /// Does it on a connection that waits, and once more on a fresh one where that had been closed meanwhile.
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

    /// One that is open, also after what has come for it was read.
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

    /// Only one that did what it should: on another something may still be under way.
    fn keep(&self, session: Session) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.idle_max && !session.is_closed() {
            idle.push(session);
        }
    }
}
