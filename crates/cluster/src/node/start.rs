//! The start of a node, in two steps, between which the caller opens the spool:
//!
//! 1. [`StartingNode::connect`] waits for the servers, and asks of each lane on the disks who owns it.
//!    Lanes of others are set aside, before a message of them is read.
//! 2. [`StartingNode::start`] opens the adopted lanes too, and claims all lanes of the spool. When it
//!    returns, mail may be accepted and delivered.
//!
//! Without the servers nobody can say whose the lanes are. A node whose mail needs its second copy waits for
//! them. Another one waits a moment, and then starts with a new local lane alone (see `local_mail`). It does
//! the rest when the servers answer, on the running spool: lanes of before are opened when they are claimed.
//! Servers may fail at any time of a start, so each of these waits has a limit: for a server, while the node joins,
//! and while it claims lanes that are open already. New mail then comes into a local lane, too.

mod sorting;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mail::LogLevel;
use parking_lot::Mutex;
use spool::{CommitStepConfig, FolderDisk, LaneId, LiveMessage, Spool};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, sleep, timeout};

pub(super) use self::sorting::NameKeeper;
use self::sorting::{JoinedNode, OwnedFolder};
use super::claim::{OpenLane, claim_own, log_wait, take_up};
use super::figures::NodeCounters;
use super::folders::LaneFolders;
use super::local_mail::{self, LOCAL_LANES_MAX, LocalMail, new_lane_id};
use super::sharing::{NodeMessages, NodeSharing};
use super::{AdmitMessages, ClusterNode, NodeError, NodeParts, NodeShared, RETRY_DELAY, millis_since_1970, watch};
use super::{closing, connection_report, copies, fenced_mail};
use crate::thread::ClusterThread;
use crate::{ClusterStep, Connection};

/// How long closing the spool waits for the servers.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// How long a node waits for the servers that can start without them.
const START_WAIT: Duration = Duration::from_secs(5);
/// How long such a node waits until it has joined servers that answered.
const JOIN_WAIT: Duration = Duration::from_secs(10);
/// How long such a node waits until its lanes are claimed.
const CLAIM_WAIT: Duration = Duration::from_secs(10);
/// The pause before a node tries again to join.
const JOIN_RETRY_DELAY: Duration = Duration::from_secs(5);

const STARTS_ALONE: &str =
    "no NATS server answers: mail is accepted into a new lane without a second copy, and mail accepted earlier waits";

const CLAIMS_LATER: &str =
    "the NATS servers do not answer any more: lanes are claimed later, and mail accepted earlier waits";

/// A node whose spool is not open yet.
pub struct StartingNode {
    thread: ClusterThread,
    connection: Connection,
    step: Arc<ClusterStep>,
    folders: LaneFolders,
    state: StartState,
    sharing: (NodeSharing, NodeMessages),
    parts: NodeParts,
}

enum StartState {
    Joined(JoinedNode),
    /// No server answers: the folder of a new lane.
    Alone(PathBuf),
}

impl StartingNode {
    /// Waits for the servers, and sets lanes aside that are not this node's any more. Without servers, a node
    /// that requires no copies goes on alone.
    ///
    /// # Errors
    ///
    /// The servers cannot be used as they are configured, or a folder cannot be read or moved.
    pub fn connect(parts: NodeParts) -> Result<StartingNode, NodeError> {
        let thread = ClusterThread::start().map_err(NodeError::Thread)?;
        let folders = LaneFolders::new(parts.lane_folders.clone());
        let (connection, state) = thread.handle().block_on(connect_or_begin_alone(&parts, &folders))?;
        let sharing = NodeSharing::new();
        Ok(StartingNode { thread, connection, step: Arc::default(), folders, state, sharing, parts })
    }

    /// The folders that the spool has to open as its own.
    pub fn lane_folders(&self) -> Vec<PathBuf> {
        match &self.state {
            StartState::Joined(_) => self.parts.lane_folders.clone(),
            StartState::Alone(path) => vec![path.clone()],
        }
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
        let StartingNode { thread, connection, step, folders, state, sharing, parts } = self;
        let own: Vec<LaneId> = spool.lane_epochs().into_iter().map(|(lane, _)| lane).collect();
        let shared = Arc::new(NodeShared {
            configuration: Mutex::new(parts.configuration.clone()),
            parts,
            folders,
            connection,
            step,
            spool: Arc::downgrade(spool),
            admit,
            started: millis_since_1970(),
            watched: Default::default(),
            adopting: Default::default(),
            adopted: Default::default(),
            local_mail: LocalMail::default(),
            counters: NodeCounters::default(),
            departures: Default::default(),
            slots: Default::default(),
            name_keeper: Mutex::default(),
            node_messages: Mutex::new(Some(sharing.1)),
            stopping: Default::default(),
        });
        match state {
            StartState::Joined(joined) => start_joined(&thread, &shared, spool, joined, own)?,
            StartState::Alone(path) => {
                own.into_iter().for_each(|lane| shared.add_local(lane, path.clone()));
                thread.handle().spawn(join_later(shared.clone()));
            }
        }
        thread.handle().spawn(connection_report::run(shared.clone()));
        if !shared.parts.config.requires_copies {
            thread.handle().spawn(local_mail::run(shared.clone()));
        }
        Ok(ClusterNode { thread, shared, next_hop_sharing: Mutex::default() })
    }
}

async fn connect_or_begin_alone(
    parts: &NodeParts,
    folders: &LaneFolders,
) -> Result<(Connection, StartState), NodeError> {
    if !may_begin_alone(parts, folders)? {
        let connection = connect(parts).await?;
        let joined = JoinedNode::join(&connection, folders, parts, &[]).await?;
        return Ok((connection, StartState::Joined(joined)));
    }
    let Ok(connected) = timeout(START_WAIT, connect(parts)).await else { return begin_alone(parts, folders).await };
    let connection = connected?;
    match timeout(JOIN_WAIT, JoinedNode::join(&connection, folders, parts, &[])).await {
        Ok(joined) => Ok((connection, StartState::Joined(joined?))),
        Err(_) => begin_alone(parts, folders).await,
    }
}

/// A node that is started again and again without servers does not fill its disks with lanes.
fn may_begin_alone(parts: &NodeParts, folders: &LaneFolders) -> Result<bool, NodeError> {
    let count = folders.local_count().map_err(|error| folder_error(parts, error.into()))?;
    Ok(!parts.config.requires_copies && count < LOCAL_LANES_MAX)
}

async fn begin_alone(parts: &NodeParts, folders: &LaneFolders) -> Result<(Connection, StartState), NodeError> {
    let connection = Connection::open_later(&parts.config).await?;
    let lane = new_lane_id((parts.random)());
    let path = folders.create_local(lane, parts.segment_bytes, (parts.random)())?;
    parts.log.event(LogLevel::Warning, STARTS_ALONE, &[("lane", &lane)]);
    Ok((connection, StartState::Alone(path)))
}

/// Connects; tries again for as long as no server answers.
async fn connect(parts: &NodeParts) -> Result<Connection, NodeError> {
    let mut has_waited = false;
    loop {
        match Connection::open(&parts.config).await {
            Ok(connection) => return Ok(connection),
            Err(error) if !error.is_temporary() => return Err(error.into()),
            Err(error) if !has_waited => log_wait(&*parts.log, &error),
            Err(_) => {}
        }
        has_waited = true;
        sleep(RETRY_DELAY).await;
    }
}

/// Opens the adopted lanes, and claims all lanes of the spool. `own` are those of its own folders.
fn start_joined(
    thread: &ClusterThread,
    shared: &Arc<NodeShared>,
    spool: &Arc<Spool>,
    joined: JoinedNode,
    own: Vec<LaneId>,
) -> Result<(), NodeError> {
    let mut live_messages = Vec::new();
    for folder in &joined.adopted {
        reopen(spool, &folder.path, &mut live_messages)?;
    }
    *shared.adopted.lock() = joined.adopted.iter().map(|folder| folder.lane).collect();
    let lanes = open_lanes(shared, spool, &joined);
    *shared.name_keeper.lock() = Some(joined.name_keeper);
    let (tell, told) = oneshot::channel();
    let claiming = shared.clone();
    thread.handle().spawn(async move {
        let claimed = claim_all(&claiming, lanes, live_messages, own).await;
        // Nobody waits for it any more if it took too long.
        if let Err(Err((lane, error))) = tell.send(claimed) {
            claiming.report_lost(lane, &error.to_string());
        }
    });
    thread.handle().block_on(wait_for_claims(shared, told))
}

/// Waits for the end of the claims. A node that requires no copies goes on before it, if that takes too long.
async fn wait_for_claims(
    shared: &NodeShared,
    told: oneshot::Receiver<Result<(), (LaneId, NodeError)>>,
) -> Result<(), NodeError> {
    let ended = match shared.parts.config.requires_copies {
        true => told.await,
        false => match timeout(CLAIM_WAIT, told).await {
            Ok(ended) => ended,
            Err(_) => {
                shared.log(LogLevel::Warning, CLAIMS_LATER, &[("node", &shared.parts.config.node)]);
                return Ok(());
            }
        },
    };
    match ended {
        Ok(claimed) => claimed.map_err(|(_, error)| error),
        Err(_) => Err(NodeError::Thread(io::Error::other("the claim of the lanes was interrupted"))),
    }
}

/// All lanes of the spool: the own ones, in the order of their folders, and the adopted ones.
fn open_lanes(shared: &NodeShared, spool: &Spool, joined: &JoinedNode) -> Vec<OpenLane> {
    let JoinedNode { own, adopted, .. } = joined;
    let paths = shared.parts.lane_folders.iter().chain(adopted.iter().map(|folder| &folder.path));
    let is_copied = |path: &Path| {
        let own = own.iter().find(|folder| folder.path == path).map(|folder| folder.is_copied);
        own.or_else(|| adopted.iter().find(|folder| folder.path == path).map(|folder| folder.is_copied))
    };
    let open = |((lane, epoch), path): ((LaneId, u32), &PathBuf)| match is_copied(path) {
        Some(is_copied) => OpenLane::reopened(lane, epoch, path.clone(), is_copied),
        // A folder without a lane was empty: nothing of it has to be copied.
        None => OpenLane::new(lane, epoch, path.clone()),
    };
    lane_epochs(spool, adopted).into_iter().zip(paths).map(open).collect()
}

/// Claims open lanes, and then begins with the rest.
async fn claim_all(
    shared: &Arc<NodeShared>,
    lanes: Vec<OpenLane>,
    live_messages: Vec<LiveMessage>,
    own: Vec<LaneId>,
) -> Result<(), (LaneId, NodeError)> {
    for open in lanes {
        let lane = open.lane;
        take_lane(shared, open).await.map_err(|error| (lane, error))?;
    }
    (shared.admit)(live_messages);
    shared.local_mail.set_own(own);
    start_tasks(shared);
    Ok(())
}

/// Claims an open lane, and begins to compare it with its stream.
async fn take_lane(shared: &Arc<NodeShared>, mut open: OpenLane) -> Result<(), NodeError> {
    let (handle, last) = claim_own(shared, &mut open).await?;
    take_up(shared, &handle);
    tokio::spawn(copies::compare(shared.clone(), handle, open, last));
    Ok(())
}

/// What a node does that has joined.
fn start_tasks(shared: &Arc<NodeShared>) {
    tokio::spawn(shared.clone().keep_entry());
    if shared.parts.adopts_lanes {
        tokio::spawn(watch::run(shared.clone()));
    }
    tokio::spawn(closing::run(shared.clone()));
    tokio::spawn(fenced_mail::run(shared.clone()));
}

/// Joins when the servers answer.
async fn join_later(shared: Arc<NodeShared>) {
    let JoinedNode { name_keeper, own, adopted } = join_when_possible(&shared).await;
    *shared.name_keeper.lock() = Some(name_keeper);
    let own: Vec<(LaneId, PathBuf, bool)> =
        own.into_iter().map(|folder| (folder.lane, folder.path, folder.is_copied)).collect();
    let others = adopted.into_iter().map(|folder| (folder.lane, folder.path, folder.is_copied));
    for (lane, path, is_copied) in own.iter().cloned().chain(others) {
        let is_own = own.iter().any(|(own, ..)| *own == lane);
        if !is_own {
            shared.adopted.lock().insert(lane);
        }
        if let Err(error) = open_and_take(&shared, lane, path, is_copied).await {
            // What has been opened of it cannot be closed; the next start decides.
            return shared.report_lost(lane, &error.to_string());
        }
    }
    shared.local_mail.set_own(own.into_iter().map(|(lane, ..)| lane).collect());
    start_tasks(&shared);
    shared.log(LogLevel::Info, "joined the cluster", &[("node", &shared.parts.config.node)]);
}

async fn join_when_possible(shared: &NodeShared) -> JoinedNode {
    let mut logged = None;
    loop {
        let delay = match shared.connection.check_server().await {
            Ok(()) => {
                let open = shared.step.local_lanes();
                match JoinedNode::join(&shared.connection, &shared.folders, &shared.parts, &open).await {
                    Ok(joined) => return joined,
                    Err(error) => log_join_failure(shared, &error.to_string(), &mut logged),
                }
                JOIN_RETRY_DELAY
            }
            Err(error) => {
                if !error.is_temporary() {
                    log_join_failure(shared, &error.to_string(), &mut logged);
                }
                RETRY_DELAY
            }
        };
        sleep(delay).await;
    }
}

/// Logs it when it is another one than before.
fn log_join_failure(shared: &NodeShared, error: &str, logged: &mut Option<String>) {
    if logged.as_deref() != Some(error) {
        let text = "cannot join the cluster; trying again. Mail accepted earlier waits";
        shared.log(LogLevel::Error, text, &[("error", &error)]);
        *logged = Some(error.to_owned());
    }
}

/// Opens a lane of before in the running spool, claims it, and hands its mail on.
async fn open_and_take(
    shared: &Arc<NodeShared>,
    lane: LaneId,
    path: PathBuf,
    is_copied: bool,
) -> Result<(), NodeError> {
    let (spool, opened_path) = (shared.spool.clone(), path.clone());
    let opening = spawn_blocking(move || {
        let Some(spool) = spool.upgrade() else { return Ok(None) };
        let mut live_messages = Vec::new();
        reopen(&spool, &opened_path, &mut live_messages)?;
        let epoch = spool.lane_epochs().into_iter().find(|(open, _)| *open == lane).map(|(_, epoch)| epoch);
        Ok::<_, NodeError>(epoch.map(|epoch| (epoch, live_messages)))
    });
    // Without a result, the server is stopping.
    let Ok(opened) = opening.await else { return Ok(()) };
    let Some((epoch, live_messages)) = opened? else { return Ok(()) };
    take_lane(shared, OpenLane::reopened(lane, epoch, path, is_copied)).await?;
    if !shared.stopping.load(Relaxed) {
        (shared.admit)(live_messages);
    }
    Ok(())
}

fn folder_error(parts: &NodeParts, error: spool::OpenError) -> NodeError {
    let path = parts.lane_folders.first().cloned().unwrap_or_default();
    NodeError::Folder { path, error }
}

/// The epochs of the own lanes, in the order of their folders, and then those of the adopted ones.
fn lane_epochs(spool: &Spool, adopted: &[OwnedFolder]) -> Vec<(LaneId, u32)> {
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
