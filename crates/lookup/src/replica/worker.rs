//! The thread of a replica: connects, follows or polls, and retries after failures. The pause
//! between attempts grows from 100 ms to 1.5 s, which is short enough for a server that returns and
//! cheap for one that does not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{self, Instant};

use super::Config;
use super::content::Content;
use super::copy::Copy;
use super::follow::{Follower, Offer, Trouble};
use super::removals::Removals;
use super::server::Server;
use super::shared::Shared;
use super::store::{SetAside, Store, StoreError};
use super::sys::{is_damage, is_spent};
use super::teller::Teller;
use crate::Events;
use crate::backend::Failure;
use crate::ldap::connection::Connector;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(1500);

/// The state of the thread.
pub(super) struct Worker {
    file: PathBuf,
    poll_every: Duration,
    removals_max: f64,
    content: Content,
    connector: Connector,
    shared: Arc<Shared>,
    teller: Teller,
}

impl Worker {
    pub(super) fn new(
        config: Config,
        content: Content,
        connector: Connector,
        shared: Arc<Shared>,
        events: Events,
    ) -> Self {
        let teller = Teller::new(&shared.name, events);
        let Config { file, poll_every, removals_max, .. } = config;
        Worker { file, poll_every, removals_max, content, connector, shared, teller }
    }

    /// Runs until it is stopped.
    pub(super) fn run(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let shared = self.shared.clone();
        match runtime {
            Ok(runtime) => runtime.block_on(async {
                tokio::select! {
                    () = shared.stopping.notified() => {}
                    () = self.work() => {}
                }
            }),
            Err(error) => self.teller.lost(&format!("cannot start: {error}")),
        }
        shared.set_lost(SystemTime::now());
    }

    async fn work(&mut self) {
        let mut removals = Removals::new(self.removals_max, Instant::now());
        let mut pause = PAUSE_MIN;
        loop {
            let began = self.shared.store().map(|store| Copy::new(store, removals, self.shared.stopped.clone()));
            match began {
                Some(Ok(mut copy)) => {
                    let trouble = self.follow_on(&mut copy, &mut pause).await;
                    removals = copy.into_removals();
                    self.handle_trouble(trouble);
                }
                Some(Err(error)) => {
                    removals = Removals::new(self.removals_max, Instant::now());
                    self.handle_trouble(Trouble::Store(error));
                }
                None => {
                    removals = Removals::new(self.removals_max, Instant::now());
                    self.open_anew();
                }
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Connects and follows until the file fails.
    async fn follow_on(&mut self, copy: &mut Copy, pause: &mut Duration) -> Trouble {
        loop {
            let before = copy.refreshes();
            let trouble = self.follow_once(copy).await;
            if copy.refreshes() != before {
                *pause = PAUSE_MIN;
            }
            copy.lost();
            self.shared.set_lost(SystemTime::now());
            let wait = match trouble {
                Ok(()) => self.poll_every,
                Err(Trouble::Failure(failure)) => {
                    self.teller.lost(&failure.to_string());
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
    async fn follow_once(&mut self, copy: &mut Copy) -> Result<(), Trouble> {
        let session = self.connector.connect().await?;
        let timeout = self.connector.servers().timeout;
        let server = Server::learn(&session, &self.content.attributes(), timeout).await?;
        let rules = self.content.rules(&server.schema).map_err(|attribute| {
            let unknown = format!("the schema has no supported equality rule for '{attribute}'");
            Failure::new(session.url().to_string(), unknown)
        })?;
        let (content, shared, teller) = (&self.content, &*self.shared, &mut self.teller);
        let mut follower = Follower { copy, content, shared, teller, timeout };
        if server.offers_sync {
            let Offer::None = follower.follow(&session, &server, &rules).await?;
        }
        follower.poll(&session, &server, &rules).await
    }

    /// Waits, but accepts removals meanwhile.
    async fn wait(&mut self, copy: &mut Copy, pause: Duration) -> Result<(), Trouble> {
        let until = Instant::now() + pause;
        let (content, shared, teller) = (&self.content, &*self.shared, &mut self.teller);
        let mut follower = Follower { copy, content, shared, teller, timeout: Duration::ZERO };
        loop {
            tokio::select! {
                () = time::sleep_until(until) => return Ok(()),
                () = shared.accepting.notified() => follower.accept()?,
            }
        }
    }

    fn handle_trouble(&mut self, trouble: Trouble) {
        self.shared.set_lost(SystemTime::now());
        let Trouble::Store(error) = trouble else { return };
        self.teller.lost(&format!("{}: {error}", self.file.display()));
        if is_damage(&error) {
            self.shared.drop_store();
            let aside = Store::set_aside(&self.file, error.to_string());
            self.tell_opened(aside.map(Some));
            self.open_anew();
        } else if is_spent(&error) {
            self.shared.drop_store();
            self.open_anew();
        }
    }

    fn open_anew(&mut self) {
        let opened = Store::open(&self.file, &self.content.identity(), &self.shared.answers);
        let opened = opened.map(|(store, aside)| {
            self.shared.set_store(Arc::new(store));
            aside
        });
        self.tell_opened(opened);
    }

    fn tell_opened(&mut self, opened: Result<Option<SetAside>, StoreError>) {
        match opened {
            Ok(None) => {}
            Ok(Some(aside)) => self.teller.damaged(aside.to_string()),
            Err(error) => self.teller.damaged(error.to_string()),
        }
    }
}
