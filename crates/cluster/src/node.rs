//! The life of a node: which lanes it owns, and how it takes over those of others.
//!
//! | when | what a node does with a lane |
//! |---|---|
//! | it starts with the lane on its disk, and the newest epoch is its own, or there is no stream | claims it, compares the stream with the disk, goes on |
//! | it starts with the lane on its disk, and another node has a newer epoch | sets it aside, with its other lanes; the spool begins with a new id |
//! | another node's lane is not renewed for the lease and a margin | claims it, restores it from its stream, delivers |
//! | a lane that it took over has been finished for a while | closes it, and deletes its stream |
//! | another node claims one of its lanes | ends the process, so that the next start decides |
//! | no server answers, and mail requires no copies | accepts into a new local lane, which is copied later |
//!
//! The disk is only read after the stream has said that it may be. Nothing here decides whether a
//! lease is valid: that is [`crate::lane`], with the records of the stream.

mod adoption;
mod body_check;
mod claim;
mod closing;
mod connection_report;
mod copies;
mod fenced_mail;
mod figures;
mod folders;
mod forgetting;
mod local_mail;
mod lost_mail;
mod replay;
mod requests;
mod sharing;
mod sharing_callbacks;
mod slots;
mod start;
mod usage;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, join_all};
use mail::{LogLevel, ServerLog};
use parking_lot::Mutex;
use spool::{LaneId, LiveMessage, Spool};
use tokio::time::{sleep, timeout};

use crate::thread::ClusterThread;
use crate::{
    ClusterConfig, ClusterStep, Connection, LaneEnd, LaneHandle, LaneStatus, NodeEntry, NodeName, NodesBucket,
    OpenError, StreamError, WRITE_INTERVAL, control_subject,
};

pub use adoption::AdoptError;
use figures::NodeCounters;
pub use figures::NodeFigures;
use folders::LaneFolders;
pub use forgetting::ForgetError;
use local_mail::LocalMail;
pub use requests::{AnswerRequest, NodeAnswers};
pub use sharing::NodeSharing;
use sharing::{DepartureCounters, NextHopSharing, NodeMessages};
pub use sharing_callbacks::{CountFailedLogin, GrantDepartures, GrantSlots, SharingCallbacks};
use slots::SlotCounters;
pub use start::StartingNode;
pub use usage::LimitUse;

/// How long a stop waits for the records that hand lanes over.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the servers may take for a request that a caller waits for, or for an entry.
const ASK_TIME_MAX: Duration = Duration::from_secs(5);
/// The pause before a request that has failed is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The pause before a lane, or mail that a disk has lost, is restored again after a failure.
const RESTORE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The nodes are counted once for this many writes of an entry.
const WRITES_PER_COUNT: u64 = 2;

/// Called with a lane, and the reason why it is this node's no more.
pub type LaneLostCallback = Box<dyn Fn(LaneId, &str) + Send + Sync>;

/// What a node starts with.
pub struct NodeParts {
    /// Its settings.
    pub config: ClusterConfig,
    /// The folders of its own lanes.
    pub lane_folders: Vec<PathBuf>,
    /// The size of a segment of a lane that is restored.
    pub segment_bytes: u64,
    /// How long a lane that was taken over has to be finished before it is closed: usually
    /// [`ClusterNode::CLOSE_LANES_AFTER`].
    pub close_lanes_after: Duration,
    /// Whether it takes over the lanes of others. A server that only drains its queue does not.
    pub adopts_lanes: bool,
    /// The version of Mailrace.
    pub version: String,
    /// A digest of its configuration, which is compared with that of other nodes.
    pub configuration: String,
    /// Called when a lane is this node's no more: the process has to end, since what it has in
    /// memory may be out of date.
    pub on_lane_lost: LaneLostCallback,
    /// Makes an unpredictable number.
    pub random: fn() -> u64,
    /// The log.
    pub log: Arc<dyn ServerLog>,
}

/// Takes the messages of lanes that are ready to be delivered.
pub type AdmitMessages = Box<dyn Fn(Vec<LiveMessage>) + Send + Sync>;

/// Why a node cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A thread cannot be started.
    #[error("cannot start the threads of the cluster: {0}")]
    Thread(std::io::Error),
    /// The servers cannot be used as they are configured.
    #[error("{0}")]
    Connection(#[from] OpenError),
    /// A new lane cannot be made.
    #[error("cannot make a lane for mail without a second copy: {0}")]
    NewLane(#[from] spool::RestoreError),
    /// A stream cannot be used.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// A folder cannot be read or moved.
    #[error("{}: {error}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What went wrong.
        error: spool::OpenError,
    },
    /// Two processes would be the same node.
    #[error("another process is node {0} of this cluster: give each node a name of its own (`cluster.node`)")]
    NameTaken(NodeName),
    /// Another node was faster.
    #[error("lane {lane} was taken over by another node ({reason}) during the start: start again")]
    LaneLost {
        /// The lane.
        lane: LaneId,
        /// What is known.
        reason: String,
    },
}

/// A node that takes part.
pub struct ClusterNode {
    thread: ClusterThread,
    shared: Arc<NodeShared>,
    next_hop_sharing: Mutex<Option<NextHopSharing>>,
}

/// What a node gives back when it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Its lanes: others need not wait until the lease is over.
    pub lanes: bool,
    /// Its slots of shared next hops. Only if no connection to them is open any more.
    pub slots: bool,
}

/// What the tasks of a node share.
struct NodeShared {
    parts: NodeParts,
    folders: LaneFolders,
    connection: Connection,
    step: Arc<ClusterStep>,
    /// The spool is closed by its last user, who must not be a task.
    spool: Weak<Spool>,
    admit: AdmitMessages,
    /// When the process was started, in milliseconds since 1970.
    started: u64,
    watched: Mutex<BTreeMap<LaneId, watch::WatchedLane>>,
    /// Lanes that are being claimed or restored.
    adopting: Mutex<BTreeSet<LaneId>>,
    /// Owned lanes that were another node's before.
    adopted: Mutex<BTreeSet<LaneId>>,
    local_mail: LocalMail,
    /// The digest of the configuration in force.
    configuration: Mutex<String>,
    counters: NodeCounters,
    departures: DepartureCounters,
    slots: SlotCounters,
    /// Answers other processes with the name of this node, once it has joined.
    name_keeper: Mutex<Option<start::NameKeeper>>,
    /// What was said before somebody listens.
    node_messages: Mutex<Option<NodeMessages>>,
    /// The spool is closed: a lane that is lost now is no concern of this process.
    stopping: AtomicBool,
}

/// A lane, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneReport {
    /// The lane.
    pub lane: LaneId,
    /// What it is to this node.
    pub role: LaneRole,
    /// Its figures, if this node owns it and it has a stream.
    pub status: Option<LaneStatus>,
}

/// What a lane is to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneRole {
    /// It owns the lane.
    Own,
    /// It owns the lane, and has taken it over, or gives it no new mail.
    Adopted,
    /// It has made the lane, whose mail has no second copy.
    Local,
    /// Another node owns it.
    Watched,
}

impl ClusterNode {
    /// A lane that was taken over and has no mail is closed after this time. It is long, so that all
    /// servers of the streams have seen before who owns the lane.
    pub const CLOSE_LANES_AFTER: Duration = Duration::from_secs(600);

    /// The lanes that this node owns, and those that it watches.
    pub fn lanes(&self) -> Vec<LaneReport> {
        let owned = self.shared.step.lanes();
        let adopted = self.shared.adopted.lock().clone();
        let report = |handle: &LaneHandle| {
            let lane = handle.lane();
            let role = if adopted.contains(&lane) { LaneRole::Adopted } else { LaneRole::Own };
            LaneReport { lane, role, status: Some(handle.status()) }
        };
        let mut reports: Vec<LaneReport> = owned.iter().map(report).collect();
        let watched: Vec<LaneId> = self.shared.watched.lock().keys().copied().collect();
        let is_owned = |lane: &LaneId| owned.iter().any(|handle| handle.lane() == *lane);
        let others = watched.into_iter().filter(|lane| !is_owned(lane) && !self.shared.step.is_local(*lane));
        reports.extend(others.map(|lane| LaneReport { lane, role: LaneRole::Watched, status: None }));
        let local = self.shared.step.local_lanes().into_iter();
        reports.extend(local.map(|lane| LaneReport { lane, role: LaneRole::Local, status: None }));
        reports.sort_by_key(|report| report.lane);
        reports
    }

    /// The nodes that are alive.
    ///
    /// # Errors
    ///
    /// The servers do not answer.
    pub fn nodes(&self) -> Result<Vec<(NodeName, NodeEntry)>, StreamError> {
        let connection = self.shared.connection.clone();
        let list = async move { connection.nodes().await?.list().await };
        let late = |_| StreamError::Unavailable("no answer in time".into());
        self.thread.handle().block_on(async { timeout(ASK_TIME_MAX, list).await.map_err(late)? })
    }

    /// What an operator has to mend now: streams for which there are too few servers, or too little room on them.
    /// And a server that is too old.
    pub fn problems(&self) -> Vec<String> {
        let connection = &self.shared.connection;
        let too_old = connection.unusable_server().map(|error| error.to_string());
        connection.missing_places().into_iter().chain(too_old).collect()
    }

    /// The name of this node.
    pub fn name(&self) -> &NodeName {
        &self.shared.parts.config.node
    }

    /// Takes the digest of a configuration that was loaded since; others see it with the next entry.
    pub fn set_configuration(&self, digest: String) {
        *self.shared.configuration.lock() = digest;
    }

    /// Stops, after the spool was closed.
    pub fn stop(self, given_back: GivenBack) {
        let ClusterNode { thread, shared, next_hop_sharing } = self;
        shared.stopping.store(true, Relaxed);
        drop(shared.name_keeper.lock().take());
        thread.handle().block_on(async {
            let lanes = if given_back.lanes { shared.step.lanes() } else { Vec::new() };
            let slots = next_hop_sharing.into_inner().filter(|_| given_back.slots);
            let released = join_all(lanes.iter().map(LaneHandle::release));
            let slots_free = async {
                if let Some(sharing) = slots {
                    sharing.stop().await;
                }
            };
            // What is not given back in time is free when the lease is over.
            drop(timeout(RELEASE_TIME_MAX, join(released, slots_free)).await);
            drop(timeout(RELEASE_TIME_MAX, shared.leave()).await);
        });
    }
}

impl NodeShared {
    /// Writes the entry of this node, for ever. An attempt that hangs is given up while the last entry still lasts.
    async fn keep_entry(self: Arc<Self>) {
        let mut bucket = None;
        for write in 0_u64.. {
            let written = self.write_entry(bucket.take(), write.is_multiple_of(WRITES_PER_COUNT));
            // The bucket is in the memory of the servers: after a failure, they may have lost it.
            bucket = timeout(ASK_TIME_MAX, written).await.ok().and_then(Result::ok);
            sleep(WRITE_INTERVAL).await;
        }
    }

    /// Returns the bucket, which is opened if there is none yet. An entry that is missing only means that others do not
    /// see this node in a list.
    async fn write_entry(&self, bucket: Option<NodesBucket>, counts_nodes: bool) -> Result<NodesBucket, StreamError> {
        let nodes = match bucket {
            Some(nodes) => nodes,
            None => self.connection.nodes().await?,
        };
        let begin = Instant::now();
        nodes.write(&self.parts.config.node, &self.entry()).await?;
        self.counters.set_round_trip(begin.elapsed());
        if counts_nodes {
            self.counters.set_nodes(nodes.list().await?.len());
        }
        Ok(nodes)
    }

    /// Tells blocking threads when to end.
    fn stopping_check(self: &Arc<Self>) -> Box<dyn Fn() -> bool + Send> {
        let shared = self.clone();
        Box::new(move || shared.stopping.load(Relaxed))
    }

    /// Whether the spool is open and stays so for now. Once it is not, it never is again. An error of what is read
    /// from it says nothing about mail then.
    fn is_open(&self) -> bool {
        !self.stopping.load(Relaxed) && self.spool.strong_count() > 0
    }

    /// Whether this node has the lane, or is taking it over.
    fn owns(&self, lane: LaneId) -> bool {
        let is_adopting = || self.adopting.lock().contains(&lane);
        self.step.lane(lane).is_some() || self.step.is_local(lane) || is_adopting()
    }

    fn entry(&self) -> NodeEntry {
        let config = &self.parts.config;
        NodeEntry {
            version: self.parts.version.clone(),
            started: self.started,
            configuration: self.configuration.lock().clone(),
            lanes: self.step.lanes().iter().map(|handle| handle.lane().to_string()).collect(),
            control_subject: control_subject(&config.name, &config.node),
        }
    }

    async fn leave(&self) {
        if let Ok(nodes) = self.connection.nodes().await {
            // It is gone after some seconds in any case.
            drop(nodes.remove(&self.parts.config.node).await);
        }
        self.connection.close().await;
    }

    fn log(&self, level: LogLevel, text: &str, fields: &[(&'static str, &dyn Display)]) {
        self.parts.log.event(level, text, fields);
    }

    /// Waits until the lane is this node's no more, and reports it.
    async fn report_loss(self: Arc<Self>, handle: LaneHandle) {
        let end = handle.ended().await;
        if end != LaneEnd::Released {
            self.report_lost(handle.lane(), &end.to_string());
        }
    }

    /// A lane of this process is lost, which ends it.
    fn report_lost(&self, lane: LaneId, reason: &str) {
        if !self.stopping.load(Relaxed) {
            (self.parts.on_lane_lost)(lane, reason);
        }
    }
}

fn millis_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
