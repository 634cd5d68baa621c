//! Following a server over one connection: its messages go through [`Refresh`], whose actions
//! change the [`Copy`].
//!
//! Changes that arrive within 50 ms are committed together, so one disk sync serves a burst. To
//! detect a dead connection, the root DSE is read every 30 seconds on the same connection; if
//! neither its result nor any other message arrives within the operation timeout, the connection is
//! closed.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use tokio::time::{self, Instant, MissedTickBehavior};

use super::content::Content;
use super::copy::{Copy, Now};
use super::refresh::{Act, REFRESH_REQUIRED, Refresh};
use super::server::{self, Server};
use super::shared::Shared;
use super::sync;
use super::teller::Teller;
use crate::backend::Failure;
use crate::ldap::ber::Malformed;
use crate::ldap::connection::{Entry, Response, Session, Stream};
use crate::ldap::schema::Rule;

/// How long changes are collected before a commit.
const GATHER: Duration = Duration::from_millis(50);
/// Time between two checks whether the server is alive.
const PULSE: Duration = Duration::from_secs(30);
/// Time between two reviews of held removals.
const REVIEW: Duration = Duration::from_secs(10);
/// Result codes of servers that do not offer the operation (RFC 4511 appendix A).
const UNAVAILABLE_CRITICAL_EXTENSION: u32 = 12;
const UNWILLING_TO_PERFORM: u32 = 53;

/// Why following ends.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server or the connection failed.
    Failure(Failure),
    /// The file failed.
    Store(heed::Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::Failure(failure)
    }
}

impl From<heed::Error> for Trouble {
    fn from(error: heed::Error) -> Self {
        Trouble::Store(error)
    }
}

/// A limitation of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// The server does not offer the Sync Operation and must be polled.
    None,
}

/// How to continue after a message.
enum Next {
    Go,
    Restart,
    Unoffered,
}

/// Follows one server.
pub(super) struct Follower<'a> {
    pub(super) copy: &'a mut Copy,
    pub(super) content: &'a Content,
    pub(super) shared: &'a Shared,
    pub(super) teller: &'a mut Teller,
    /// The timeout of one operation.
    pub(super) timeout: Duration,
}

impl Follower<'_> {
    /// Follows until the connection or the server fails. Returns Ok only if the server does not
    /// offer the operation.
    pub(super) async fn follow(
        &mut self,
        session: &Session,
        server: &Server,
        rules: &[Rule],
    ) -> Result<Offer, Trouble> {
        let heard = Cell::new(0);
        let timeout = self.timeout;
        tokio::select! {
            failure = pulse(session, timeout, &heard) => Err(failure.into()),
            ended = self.operations(session, server, rules, &heard) => ended,
        }
    }

    /// Runs one operation after another.
    async fn operations(
        &mut self,
        session: &Session,
        server: &Server,
        rules: &[Rule],
        heard: &Cell<u64>,
    ) -> Result<Offer, Trouble> {
        loop {
            match self.operation(session, server, rules, heard).await? {
                Next::Unoffered => return Ok(Offer::None),
                Next::Go | Next::Restart => {
                    self.shared.set_lost(SystemTime::now());
                    self.copy.forget_cookie()?;
                }
            }
        }
    }

    async fn operation(
        &mut self,
        session: &Session,
        server: &Server,
        rules: &[Rule],
        heard: &Cell<u64>,
    ) -> Result<Next, Trouble> {
        let controls = [sync::request(self.copy.cookie())];
        let mut refresh = Refresh::new(self.copy.cookie().is_some());
        self.copy.begin(self.now())?;
        let names = self.content.attributes();
        let mut stream: Stream = session.search(&self.content.search(&names, &controls))?;
        let mut commit_at = None;
        let mut review = time::interval(REVIEW);
        review.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                response = stream.next() => {
                    let response = response?;
                    heard.set(heard.get() + 1);
                    match self.handle(session, response, &mut refresh, server, rules)? {
                        Next::Go => {}
                        next => return Ok(next),
                    }
                }
                () = time::sleep_until(commit_at.unwrap_or_else(Instant::now)), if commit_at.is_some() => {
                    commit_at = None;
                    self.commit()?;
                }
                () = self.shared.accepting.notified() => self.accept()?,
                _ = review.tick() => self.review()?,
            }
            if commit_at.is_none() && refresh.is_live() && self.copy.has_changes() {
                commit_at = Some(Instant::now() + GATHER);
            }
        }
    }

    fn handle(
        &mut self,
        session: &Session,
        response: Response,
        refresh: &mut Refresh,
        server: &Server,
        rules: &[Rule],
    ) -> Result<Next, Trouble> {
        let malformed = |error: Malformed| Failure::new(session.url().to_string(), error);
        match response {
            Response::Entry(entry) => {
                refresh.handle_message(sync::entry(&entry.controls).map_err(malformed)?);
                self.act(refresh, Some((&entry, &server.schema, rules)))
            }
            Response::Intermediate { oid, value } if *oid == *sync::INFO => {
                refresh.handle_message(sync::info(&value).map_err(malformed)?);
                self.act(refresh, None)
            }
            Response::Done(done) => {
                refresh.handle_message(sync::done(done.code, &done.controls).map_err(malformed)?);
                match (self.act(refresh, None)?, done.code) {
                    (Next::Restart, REFRESH_REQUIRED) => Ok(Next::Restart),
                    // For example after the server was restored from a backup, so that the cookie
                    // is newer than its data.
                    (_, UNWILLING_TO_PERFORM) if self.copy.cookie().is_some() => Ok(Next::Restart),
                    (_, UNAVAILABLE_CRITICAL_EXTENSION | UNWILLING_TO_PERFORM) => Ok(Next::Unoffered),
                    _ => {
                        let ended = format!("the server ended the synchronization: {done}");
                        Err(Failure::new(session.url().to_string(), ended).into())
                    }
                }
            }
            // Entries of other servers are not copied.
            Response::Reference(_) | Response::Intermediate { .. } => Ok(Next::Go),
        }
    }

    /// Carries out all actions of the operation.
    fn act(
        &mut self,
        refresh: &mut Refresh,
        of: Option<(&Entry, &crate::ldap::schema::Schema, &[Rule])>,
    ) -> Result<Next, Trouble> {
        while let Some(act) = refresh.poll_act() {
            match act {
                Act::Put(uuid) => {
                    if let Some((entry, schema, rules)) = of {
                        let (keys, values) = self.content.read(entry, schema, rules);
                        self.copy.put(uuid, &keys, values.as_deref(), self.now())?;
                    }
                }
                Act::Keep(uuid) => {
                    if !self.copy.keep(uuid)? {
                        return Ok(Next::Restart);
                    }
                }
                Act::Gone(uuid) => self.copy.gone(uuid),
                Act::GoneUnmentioned => self.copy.gone_unmentioned(),
                Act::Remove(uuid) => drop(self.copy.remove(uuid, self.now())?),
                Act::Agreed(cookie) => {
                    self.agreed(cookie)?;
                    self.shared.set_live(SystemTime::now());
                }
                Act::Cookie(cookie) => self.copy.covered(cookie),
                Act::Restart => return Ok(Next::Restart),
                Act::Ended(_) => {
                    if self.copy.has_changes() {
                        self.commit()?;
                    }
                }
            }
        }
        Ok(Next::Go)
    }

    /// Ends a refresh.
    pub(super) fn agreed(&mut self, cookie: Option<Vec<u8>>) -> Result<(), Trouble> {
        let Some(refreshed) = self.copy.agreed(cookie, self.now())? else { return Ok(()) };
        // The held removals are not those that the operator saw.
        if self.shared.take_accepted().is_some() {
            self.teller.forget_held();
        }
        self.shared.set_complete();
        self.shared.set_held(refreshed.held, SystemTime::now());
        if refreshed.held == 0 {
            self.shared.set_agreed(SystemTime::now());
        }
        let (entries, _) = self.copy.counts()?;
        self.teller.refreshed(&refreshed, entries);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Trouble> {
        self.copy.commit(self.now())?;
        self.tell_held()
    }

    fn review(&mut self) -> Result<(), Trouble> {
        self.copy.review(self.now())?;
        self.tell_held()
    }

    /// Carries out held removals if the operator accepted them. If there are more than the operator
    /// saw, reports them again.
    pub(super) fn accept(&mut self) -> Result<(), Trouble> {
        let Some(seen) = self.shared.take_accepted() else { return Ok(()) };
        self.copy.accept(seen, self.now())?;
        self.teller.forget_held();
        self.tell_held()
    }

    fn tell_held(&mut self) -> Result<(), Trouble> {
        let held = self.copy.held();
        self.shared.set_held(held, SystemTime::now());
        let (entries, _) = self.copy.counts()?;
        self.teller.held(held, entries);
        Ok(())
    }

    pub(super) fn now(&self) -> Now {
        Now { at: Instant::now(), wall: SystemTime::now() }
    }
}

/// Checks regularly whether the server responds. Returns when it does not.
async fn pulse(session: &Session, timeout: Duration, heard: &Cell<u64>) -> Failure {
    loop {
        time::sleep(PULSE).await;
        let before = heard.get();
        match time::timeout(timeout, server::root(session)).await {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => return failure,
            // The result is delayed by other messages.
            Err(_) if heard.get() != before => {}
            Err(_) => return Failure::new(session.url().to_string(), "the server no longer responds"),
        }
    }
}
