//! The thread of a replica: connects, follows or polls, and retries after failures. The pause
//! between attempts grows from 100 ms to 1.5 s, which is short enough for a server that returns and
//! cheap for one that does not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{self, Instant};

use super::ReplicaConfig;
use super::content::ReplicaContent;
use super::copy::ReplicaCopy;
use super::event_reporter::EventReporter;
use super::follow::{FollowError, Follower, SyncSupport};
use super::removal_limit::RemovalLimit;
use super::server_info::ServerInfo;
use super::shared::Shared;
use super::store::{CopyStore, SetAsideFile, StoreError};
use super::sys::{is_damage, needs_reopen};
use crate::connection::Connector;
use lookup::TableEventHandler;
use lookup::backend::BackendFailure;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(1500);

/// The state of the thread.
pub(super) struct ReplicaWorker {
    file: PathBuf,
    poll_interval: Duration,
    removals_max: f64,
    content: ReplicaContent,
    connector: Connector,
    shared: Arc<Shared>,
    reporter: EventReporter,
}

impl ReplicaWorker {
    pub(super) fn new(
        config: ReplicaConfig,
        content: ReplicaContent,
        connector: Connector,
        shared: Arc<Shared>,
        events: TableEventHandler,
    ) -> Self {
        let reporter = EventReporter::new(&shared.name, events);
        let ReplicaConfig { file, poll_interval: poll_every, removals_max, .. } = config;
        ReplicaWorker { file, poll_interval: poll_every, removals_max, content, connector, shared, reporter }
    }

    /// Runs until it is stopped.
    pub(super) fn run(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let shared = self.shared.clone();
        match runtime {
            Ok(runtime) => runtime.block_on(async {
                tokio::select! {
                    () = shared.stopping.notified() => {}
                    () = self.run_until_stopped() => {}
                }
            }),
            Err(error) => self.reporter.lost(&format!("cannot start: {error}")),
        }
        shared.set_lost(SystemTime::now());
    }

    async fn run_until_stopped(&mut self) {
        let mut removals = RemovalLimit::new(self.removals_max, Instant::now());
        let mut pause = PAUSE_MIN;
        loop {
            let began = self.shared.store().map(|store| ReplicaCopy::new(store, removals, self.shared.stopped.clone()));
            match began {
                Some(Ok(mut copy)) => {
                    let trouble = self.follow_until_store_fails(&mut copy, &mut pause).await;
                    removals = copy.into_removals();
                    self.handle_error(trouble);
                }
                Some(Err(error)) => {
                    removals = RemovalLimit::new(self.removals_max, Instant::now());
                    self.handle_error(FollowError::Store(error));
                }
                None => {
                    removals = RemovalLimit::new(self.removals_max, Instant::now());
                    self.reopen_store();
                }
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Connects and follows until the file fails.
    async fn follow_until_store_fails(&mut self, copy: &mut ReplicaCopy, pause: &mut Duration) -> FollowError {
        loop {
            let before = copy.refreshes();
            let trouble = self.follow_once(copy).await;
            if copy.refreshes() != before {
                *pause = PAUSE_MIN;
            }
            copy.disconnected();
            self.shared.set_lost(SystemTime::now());
            let wait = match trouble {
                Ok(()) => self.poll_interval,
                Err(FollowError::Failure(failure)) => {
                    self.reporter.lost(&failure.to_string());
                    let wait = *pause;
                    *pause = (*pause * 2).min(PAUSE_MAX);
                    wait
                }
                Err(trouble) => return trouble,
            };
            if let Err(trouble) = self.wait(copy, wait).await {
                return trouble;
            }
        }
    }

    /// Runs one connection. Ok means that the server was polled and is to be polled again.
    async fn follow_once(&mut self, copy: &mut ReplicaCopy) -> Result<(), FollowError> {
        let session = self.connector.connect().await?;
        let timeout = self.connector.servers().timeout;
        let server = ServerInfo::read(&session, &self.content.attributes(), timeout).await?;
        let rules = self.content.rules(&server.schema).map_err(|attribute| {
            let unknown = format!("the schema has no supported equality rule for '{attribute}'");
            BackendFailure::new(session.url().to_string(), unknown)
        })?;
        let (content, shared, reporter) = (&self.content, &*self.shared, &mut self.reporter);
        let mut follower = Follower { copy, content, shared, reporter, timeout };
        if server.offers_sync {
            let SyncSupport::Unsupported = follower.follow(&session, &server, &rules).await?;
        }
        follower.poll(&session, &server, &rules).await
    }

    /// Waits, but accepts removals meanwhile.
    async fn wait(&mut self, copy: &mut ReplicaCopy, pause: Duration) -> Result<(), FollowError> {
        let until = Instant::now() + pause;
        let (content, shared, reporter) = (&self.content, &*self.shared, &mut self.reporter);
        let mut follower = Follower { copy, content, shared, reporter, timeout: Duration::ZERO };
        loop {
            tokio::select! {
                () = time::sleep_until(until) => return Ok(()),
                () = shared.accepting.notified() => follower.accept_removals()?,
            }
        }
    }

    fn handle_error(&mut self, trouble: FollowError) {
        self.shared.set_lost(SystemTime::now());
        let FollowError::Store(error) = trouble else { return };
        self.reporter.lost(&format!("{}: {error}", self.file.display()));
        if is_damage(&error) {
            self.shared.drop_store();
            let aside = CopyStore::set_aside(&self.file, error.to_string());
            self.report_opened(aside.map(Some));
            self.reopen_store();
        } else if needs_reopen(&error) {
            self.shared.drop_store();
            self.reopen_store();
        }
    }

    fn reopen_store(&mut self) {
        let opened = CopyStore::open(&self.file, &self.content.identity(), &self.shared.answers);
        let opened = opened.map(|(store, aside)| {
            self.shared.set_store(Arc::new(store));
            aside
        });
        self.report_opened(opened);
    }

    fn report_opened(&mut self, opened: Result<Option<SetAsideFile>, StoreError>) {
        match opened {
            Ok(None) => {}
            Ok(Some(aside)) => self.reporter.damaged(aside.to_string()),
            Err(error) => self.reporter.damaged(error.to_string()),
        }
    }
}
