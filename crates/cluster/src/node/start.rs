//! The start of a node, in two steps, between which the caller opens the spool:
//!
//! 1. [`StartingNode::connect`] waits for the servers, and asks of each lane on the disks who owns it.
//!    Lanes of others are set aside, before a message of them is read.
//! 2. [`StartingNode::start`] opens the adopted lanes too, and claims all lanes of the spool. When it
//!    returns, mail may be accepted and delivered.
//!
//! Without the servers it waits: nobody can say whose the lanes are.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mail::{LogLevel, ServerLog};
use parking_lot::Mutex;
use spool::{CommitStepConfig, FolderDisk, LaneId, LiveMessage, Spool};
use tokio::task::AbortHandle;
use tokio::time::{Duration, sleep};

use super::claim::{claim_own, is_closed, log_wait, newest_epoch, take_up, until_answered};
use super::closing;
use super::copies::{self, OpenedLane};
use super::figures::NodeCounters;
use super::folders::{AdoptedFolder, Aside, LaneFolders};
use super::sharing::{NodeMessages, NodeSharing};
use super::{AdmitMessages, ClusterNode, NodeError, NodeParts, NodeShared, RETRY_DELAY, millis_since_1970, watch};
use crate::lane::ownership::LaneOwnership;
use crate::thread::ClusterThread;
use crate::{ClusterConfig, ClusterStep, Connection, StreamError};

/// How long closing the spool waits for the servers.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// A node that is connected, and whose spool is not open yet.
pub struct StartingNode {
    thread: ClusterThread,
    connection: Connection,
    step: Arc<ClusterStep>,
    folders: LaneFolders,
    adopted: Vec<AdoptedFolder>,
    sharing: (NodeSharing, NodeMessages),
    name_keeper: AbortHandle,
    parts: NodeParts,
}

impl StartingNode {
    /// Waits for the servers, and sets lanes aside that are not this node's any more.
    ///
    /// # Errors
    ///
    /// The servers cannot be used as they are configured, or a folder cannot be read or moved.
    pub fn connect(parts: NodeParts) -> Result<StartingNode, NodeError> {
        let thread = ClusterThread::start().map_err(NodeError::Thread)?;
        let folders = LaneFolders::new(parts.lane_folders.clone());
        let (connection, name_keeper, adopted) = thread.handle().block_on(async {
            let connection = connect(&parts.config, &*parts.log).await?;
            let name_keeper = take_name(&connection, &parts).await?;
            set_up_shared(&connection, &parts).await?;
            let sorting = FolderSorting { connection: &connection, folders: &folders, parts: &parts };
            let adopted = sorting.run().await?;
            Ok::<_, NodeError>((connection, name_keeper, adopted))
        })?;
        let sharing = NodeSharing::new();
        Ok(StartingNode { thread, connection, step: Arc::default(), folders, adopted, sharing, name_keeper, parts })
    }

    /// The step that gives each batch its second copy.
    pub fn commit_step(&self) -> CommitStepConfig {
        CommitStepConfig {
            step: self.step.clone(),
            waiting_bytes_max: self.parts.config.waiting_bytes_max,
            close_wait: CLOSE_WAIT,
        }
    }

    /// Which lanes may be delivered from.
    pub fn step(&self) -> Arc<ClusterStep> {
        self.step.clone()
    }

    /// Takes what this node shares with others.
    pub fn sharing(&self) -> NodeSharing {
        self.sharing.0.clone()
    }

    /// Claims the lanes of the open spool, and begins to watch those of others. `admit` gets the
    /// messages of lanes that were adopted, before or later.
    ///
    /// # Errors
    ///
    /// An adopted lane cannot be opened, or a lane was lost meanwhile.
    pub fn start(self, spool: &Arc<Spool>, admit: AdmitMessages) -> Result<ClusterNode, NodeError> {
        let StartingNode { thread, connection, step, folders, adopted, sharing, name_keeper, parts } = self;
        let mut live_messages = Vec::new();
        for folder in &adopted {
            reopen(spool, &folder.path, &mut live_messages)?;
        }
        let shared = Arc::new(NodeShared {
            parts,
            folders,
            connection,
            step,
            spool: Arc::downgrade(spool),
            admit,
            started: millis_since_1970(),
            watched: Default::default(),
            adopting: Default::default(),
            adopted: Mutex::new(adopted.iter().map(|folder| folder.lane).collect()),
            counters: NodeCounters::default(),
            departures: Default::default(),
            name_keeper,
            node_messages: Mutex::new(Some(sharing.1)),
            stopping: Default::default(),
        });
        let own = shared.parts.lane_folders.iter();
        let paths: Vec<PathBuf> = own.chain(adopted.iter().map(|folder| &folder.path)).cloned().collect();
        thread.handle().block_on(async {
            for ((lane, epoch), path) in lane_epochs(spool, &adopted).into_iter().zip(paths) {
                let (handle, last) = claim_own(&shared, lane, epoch).await?;
                take_up(&shared, &handle);
                let opened = OpenedLane { lane, epoch, path, last };
                tokio::spawn(copies::compare(shared.clone(), handle, opened));
            }
            Ok::<_, NodeError>(())
        })?;
        (shared.admit)(live_messages);
        thread.handle().spawn(shared.clone().keep_entry());
        if shared.parts.adopts_lanes {
            thread.handle().spawn(watch::run(shared.clone()));
        }
        thread.handle().spawn(closing::run(shared.clone()));
        Ok(ClusterNode { thread, shared })
    }
}

/// The epochs of the own lanes, in the order of their folders, and then those of the adopted ones.
fn lane_epochs(spool: &Spool, adopted: &[AdoptedFolder]) -> Vec<(LaneId, u32)> {
    let all = spool.lane_epochs();
    let is_adopted = |lane: LaneId| adopted.iter().any(|folder| folder.lane == lane);
    let own = all.iter().copied().filter(|(lane, _)| !is_adopted(*lane));
    let others = adopted.iter().filter_map(|folder| all.iter().copied().find(|(lane, _)| *lane == folder.lane));
    own.chain(others).collect()
}

fn reopen(spool: &Arc<Spool>, path: &Path, live_messages: &mut Vec<LiveMessage>) -> Result<(), NodeError> {
    let failed = |error| NodeError::Folder { path: path.to_owned(), error };
    let disk = FolderDisk::open(path).map_err(|error| failed(error.into()))?;
    spool.adopt(Arc::new(disk), &mut |live| live_messages.push(live)).map(drop).map_err(failed)
}

/// Connects; tries again for as long as no server answers.
async fn connect(config: &ClusterConfig, log: &dyn ServerLog) -> Result<Connection, NodeError> {
    let mut has_waited = false;
    loop {
        match Connection::open(config).await {
            Ok(connection) => return Ok(connection),
            Err(error) if !error.is_temporary() => return Err(error.into()),
            Err(error) if !has_waited => log_wait(log, &error),
            Err(_) => {}
        }
        has_waited = true;
        sleep(RETRY_DELAY).await;
    }
}

/// Ends the start if another process has the name; answers those that want it from now on.
async fn take_name(connection: &Connection, parts: &NodeParts) -> Result<AbortHandle, NodeError> {
    if connection.is_name_taken().await {
        return Err(NodeError::NameTaken(parts.config.node.clone()));
    }
    let keeper = until_answered(&*parts.log, || connection.keep_name()).await;
    Ok(tokio::spawn(keeper).abort_handle())
}

/// Makes the streams that all nodes share, and tells which nodes have other settings.
async fn set_up_shared(connection: &Connection, parts: &NodeParts) -> Result<(), NodeError> {
    let set_up = async || match connection.set_up_shared().await {
        Err(StreamError::Unavailable(error)) => Err(error),
        set_up => Ok(set_up),
    };
    for stream in until_answered(&*parts.log, set_up).await? {
        parts.log.event(LogLevel::Info, "gave a shared stream the settings of this node", &[("stream", &stream)]);
    }
    // If they cannot be listed now, `mailrace cluster nodes` shows it later.
    let nodes = async { connection.nodes().await?.list().await }.await.unwrap_or_default();
    for (node, _) in nodes.iter().filter(|(_, entry)| entry.configuration != parts.configuration) {
        let text = "another node has a different configuration; use the same on all nodes";
        parts.log.event(LogLevel::Warning, text, &[("node", node)]);
    }
    Ok(())
}

/// Sorts the folders on the disks by who owns their lanes.
struct FolderSorting<'a> {
    connection: &'a Connection,
    folders: &'a LaneFolders,
    parts: &'a NodeParts,
}

impl FolderSorting<'_> {
    /// Returns the adopted lanes that are still this node's.
    async fn run(&self) -> Result<Vec<AdoptedFolder>, NodeError> {
        let (mut ours, mut lost) = (Vec::new(), Vec::new());
        for folder in self.folders.own().map_err(|error| self.failed(error))? {
            match self.ownership(folder.lane, folder.epoch).await {
                LaneOwnership::Ours => ours.push(folder),
                LaneOwnership::Gone(reason) => {
                    self.log_lost(folder.lane, &reason);
                    lost.push(folder);
                }
            }
        }
        // New lanes would get the numbers of the lost ones, so the spool begins anew. The lost ones
        // go last: while one is there, an interrupted start decides the same again.
        if !lost.is_empty() {
            for folder in ours {
                folder.set_aside(Aside::Adopted).map_err(|error| self.failed(error.into()))?;
            }
            for folder in lost {
                folder.set_aside(Aside::Fenced).map_err(|error| self.failed(error.into()))?;
            }
        }
        let adopted = self.adopted().await?;
        for path in self.folders.fenced().map_err(|error| self.failed(error.into()))? {
            let text = "a folder holds a lane that was taken over, maybe with mail that was never copied; remove it when nothing in it is needed";
            self.parts.log.event(LogLevel::Warning, text, &[("folder", &path.display())]);
        }
        Ok(adopted)
    }

    async fn adopted(&self) -> Result<Vec<AdoptedFolder>, NodeError> {
        let mut ours = Vec::new();
        for folder in self.folders.adopted().map_err(|error| self.failed(error.into()))? {
            if !folder.finished {
                // If the lane is still this node's, it is restored again.
                folder.remove().map_err(|error| self.failed(error.into()))?;
                continue;
            }
            let epoch = folder.epoch().map_err(|error| self.failed(error))?;
            match self.ownership(folder.lane, epoch).await {
                LaneOwnership::Ours => ours.push(folder),
                LaneOwnership::Gone(reason) => {
                    self.log_lost(folder.lane, &reason);
                    folder.fence().map_err(|error| self.failed(error))?;
                }
            }
        }
        Ok(ours)
    }

    async fn ownership(&self, lane: LaneId, epoch: u32) -> LaneOwnership {
        let stream = self.connection.lane_stream(lane);
        let newest = until_answered(&*self.parts.log, || newest_epoch(&stream)).await;
        let is_closed = match &newest {
            Some(_) => false,
            None => until_answered(&*self.parts.log, || is_closed(self.connection, lane)).await,
        };
        let newest = newest.as_ref().map(|newest| &newest.record);
        LaneOwnership::decide(&self.parts.config.node, epoch, newest, is_closed)
    }

    fn log_lost(&self, lane: LaneId, reason: &dyn Display) {
        let text = "a lane on this disk is not opened; its mail is delivered from its stream";
        self.parts.log.event(LogLevel::Warning, text, &[("lane", &lane), ("reason", reason)]);
    }

    fn failed(&self, error: spool::OpenError) -> NodeError {
        let path = self.parts.lane_folders.first().cloned().unwrap_or_default();
        NodeError::Folder { path, error }
    }
}
