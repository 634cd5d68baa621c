//! Following a server over one connection: its messages go through [`SyncOperation`], whose actions
//! change the [`ReplicaCopy`].
//!
//! Changes that arrive within 50 ms are committed together, so one disk sync serves a burst. To
//! detect a dead connection, the root DSE is read every 30 seconds on the same connection; if
//! neither its result nor any other message arrives within the operation timeout, the connection is
//! closed.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use tokio::time::{self, Instant, MissedTickBehavior};

use super::content::ReplicaContent;
use super::copy::{ClockReading, ReplicaCopy};
use super::event_reporter::EventReporter;
use super::server_info::{self, ServerInfo};
use super::shared::Shared;
use super::sync_messages;
use super::sync_operation::{REFRESH_REQUIRED, SyncAction, SyncOperation};
use crate::ber::Malformed;
use crate::connection::{LdapResponse, LdapSession, ResponseStream, SearchEntry};
use crate::schema::EqualityRule;
use lookup::backend::BackendFailure;

/// How long changes are collected before a commit.
const COMMIT_DELAY: Duration = Duration::from_millis(50);
/// Time between two checks whether the server is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two reviews of held removals.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);
/// Result codes of servers that do not offer the operation (RFC 4511 appendix A).
const UNAVAILABLE_CRITICAL_EXTENSION: u32 = 12;
const UNWILLING_TO_PERFORM: u32 = 53;

/// Why following ends.
#[derive(Debug)]
pub(super) enum FollowError {
    /// The server or the connection failed.
    Failure(BackendFailure),
    /// The file failed.
    Store(heed::Error),
}

impl From<BackendFailure> for FollowError {
    fn from(failure: BackendFailure) -> Self {
        FollowError::Failure(failure)
    }
}

impl From<heed::Error> for FollowError {
    fn from(error: heed::Error) -> Self {
        FollowError::Store(error)
    }
}

/// A limitation of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SyncSupport {
    /// The server does not offer the Sync Operation and must be polled.
    Unsupported,
}

/// How to continue after a message.
enum NextStep {
    Continue,
    Restart,
    Unsupported,
}

/// Follows one server.
pub(super) struct Follower<'a> {
    pub(super) copy: &'a mut ReplicaCopy,
    pub(super) content: &'a ReplicaContent,
    pub(super) shared: &'a Shared,
    pub(super) reporter: &'a mut EventReporter,
    /// The timeout of one operation.
    pub(super) timeout: Duration,
}

impl Follower<'_> {
    /// Follows until the connection or the server fails. Returns Ok only if the server does not
    /// offer the operation.
    pub(super) async fn follow(
        &mut self,
        session: &LdapSession,
        server: &ServerInfo,
        rules: &[EqualityRule],
    ) -> Result<SyncSupport, FollowError> {
        let responses_seen = Cell::new(0);
        let timeout = self.timeout;
        tokio::select! {
            failure = watch_liveness(session, timeout, &responses_seen) => Err(failure.into()),
            ended = self.run_operations(session, server, rules, &responses_seen) => ended,
        }
    }

    /// Runs one operation after another.
    async fn run_operations(
        &mut self,
        session: &LdapSession,
        server: &ServerInfo,
        rules: &[EqualityRule],
        heard: &Cell<u64>,
    ) -> Result<SyncSupport, FollowError> {
        loop {
            match self.run_operation(session, server, rules, heard).await? {
                NextStep::Unsupported => return Ok(SyncSupport::Unsupported),
                NextStep::Continue | NextStep::Restart => {
                    self.shared.set_lost(SystemTime::now());
                    self.copy.forget_cookie()?;
                }
            }
        }
    }

    async fn run_operation(
        &mut self,
        session: &LdapSession,
        server: &ServerInfo,
        rules: &[EqualityRule],
        heard: &Cell<u64>,
    ) -> Result<NextStep, FollowError> {
        let controls = [sync_messages::request(self.copy.cookie())];
        let mut operation = SyncOperation::new(self.copy.cookie().is_some());
        self.copy.begin_refresh(self.now())?;
        let names = self.content.attributes();
        let mut stream: ResponseStream = session.search(&self.content.search(&names, &controls))?;
        let mut commit_at = None;
        let mut review = time::interval(REVIEW_INTERVAL);
        review.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                response = stream.next() => {
                    let response = response?;
                    heard.set(heard.get() + 1);
                    match self.handle(session, response, &mut operation, server, rules)? {
                        NextStep::Continue => {}
                        next => return Ok(next),
                    }
                }
                () = time::sleep_until(commit_at.unwrap_or_else(Instant::now)), if commit_at.is_some() => {
                    commit_at = None;
                    self.commit()?;
                }
                () = self.shared.accepting.notified() => self.accept_removals()?,
                _ = review.tick() => self.release_harmless()?,
            }
            if commit_at.is_none() && operation.is_live() && self.copy.has_changes() {
                commit_at = Some(Instant::now() + COMMIT_DELAY);
            }
        }
    }

    fn handle(
        &mut self,
        session: &LdapSession,
        response: LdapResponse,
        operation: &mut SyncOperation,
        server: &ServerInfo,
        rules: &[EqualityRule],
    ) -> Result<NextStep, FollowError> {
        let malformed = |error: Malformed| BackendFailure::new(session.url().to_string(), error);
        match response {
            LdapResponse::Entry(entry) => {
                operation.handle_message(sync_messages::entry(&entry.controls).map_err(malformed)?);
                self.perform(operation, Some((&entry, &server.schema, rules)))
            }
            LdapResponse::Intermediate { oid, value } if *oid == *sync_messages::INFO => {
                operation.handle_message(sync_messages::info(&value).map_err(malformed)?);
                self.perform(operation, None)
            }
            LdapResponse::Done(done) => {
                operation.handle_message(sync_messages::done(done.code, &done.controls).map_err(malformed)?);
                match (self.perform(operation, None)?, done.code) {
                    (NextStep::Restart, REFRESH_REQUIRED) => Ok(NextStep::Restart),
                    // For example after the server was restored from a backup, so that the cookie
                    // is newer than its data.
                    (_, UNWILLING_TO_PERFORM) if self.copy.cookie().is_some() => Ok(NextStep::Restart),
                    (_, UNAVAILABLE_CRITICAL_EXTENSION | UNWILLING_TO_PERFORM) => Ok(NextStep::Unsupported),
                    _ => {
                        let ended = format!("the server ended the synchronization: {done}");
                        Err(BackendFailure::new(session.url().to_string(), ended).into())
                    }
                }
            }
            // Entries of other servers are not copied.
            LdapResponse::Reference(_) | LdapResponse::Intermediate { .. } => Ok(NextStep::Continue),
        }
    }

    /// Carries out all actions of the operation.
    fn perform(
        &mut self,
        operation: &mut SyncOperation,
        of: Option<(&SearchEntry, &crate::schema::Schema, &[EqualityRule])>,
    ) -> Result<NextStep, FollowError> {
        while let Some(action) = operation.poll_action() {
            match action {
                SyncAction::Put(uuid) => {
                    if let Some((entry, schema, rules)) = of {
                        let (keys, values) = self.content.read(entry, schema, rules);
                        self.copy.put(uuid, &keys, values.as_deref(), self.now())?;
                    }
                }
                SyncAction::Keep(uuid) => {
                    if !self.copy.confirm(uuid)? {
                        return Ok(NextStep::Restart);
                    }
                }
                SyncAction::Gone(uuid) => self.copy.mark_gone(uuid),
                SyncAction::GoneUnmentioned => self.copy.mark_unmentioned_gone(),
                SyncAction::Remove(uuid) => drop(self.copy.remove(uuid, self.now())?),
                SyncAction::RefreshDone(cookie) => {
                    self.finish_refresh(cookie)?;
                    self.shared.set_live(SystemTime::now());
                }
                SyncAction::Cookie(cookie) => self.copy.set_cookie(cookie),
                SyncAction::Restart => return Ok(NextStep::Restart),
                SyncAction::Ended(_) => {
                    if self.copy.has_changes() {
                        self.commit()?;
                    }
                }
            }
        }
        Ok(NextStep::Continue)
    }

    /// Ends a refresh.
    pub(super) fn finish_refresh(&mut self, cookie: Option<Vec<u8>>) -> Result<(), FollowError> {
        let Some(refreshed) = self.copy.finish_refresh(cookie, self.now())? else { return Ok(()) };
        // The held removals are not those that the operator saw.
        if self.shared.take_accepted().is_some() {
            self.reporter.forget_held();
        }
        self.shared.set_complete();
        self.shared.set_held_back(refreshed.held_back, SystemTime::now());
        if refreshed.held_back == 0 {
            self.shared.set_agreed(SystemTime::now());
        }
        let (entries, _) = self.copy.counts()?;
        self.reporter.refreshed(&refreshed, entries);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), FollowError> {
        self.copy.commit(self.now())?;
        self.report_held_back()
    }

    fn release_harmless(&mut self) -> Result<(), FollowError> {
        self.copy.release_harmless(self.now())?;
        self.report_held_back()
    }

    /// Carries out held removals if the operator accepted them. If there are more than the operator
    /// saw, reports them again.
    pub(super) fn accept_removals(&mut self) -> Result<(), FollowError> {
        let Some(seen) = self.shared.take_accepted() else { return Ok(()) };
        self.copy.accept_removals(seen, self.now())?;
        self.reporter.forget_held();
        self.report_held_back()
    }

    fn report_held_back(&mut self) -> Result<(), FollowError> {
        let held = self.copy.held_back();
        self.shared.set_held_back(held, SystemTime::now());
        let (entries, _) = self.copy.counts()?;
        self.reporter.held_back(held, entries);
        Ok(())
    }

    pub(super) fn now(&self) -> ClockReading {
        ClockReading { at: Instant::now(), wall: SystemTime::now() }
    }
}

/// Checks regularly whether the server responds. Returns when it does not.
async fn watch_liveness(session: &LdapSession, timeout: Duration, responses_seen: &Cell<u64>) -> BackendFailure {
    loop {
        time::sleep(LIVENESS_INTERVAL).await;
        let before = responses_seen.get();
        match time::timeout(timeout, server_info::root_dse(session)).await {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => return failure,
            // The result is delayed by other messages.
            Err(_) if responses_seen.get() != before => {}
            Err(_) => return BackendFailure::new(session.url().to_string(), "the server no longer responds"),
        }
    }
}
