//! Connects the node of a cluster with the rest of the server: it fences deliveries, answers operators,
//! and ends the process when one of its lanes was taken over.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use cluster::{ClusterNode, ClusterStep, NodeParts, StartingNode};
use config::Config;
use control::{ClusterOperator, LaneReport, NodeReport};
use dispatch::{LaneFence, SchedulerHandle};
use mail::{LogLevel, ServerLog};
use parking_lot::Mutex;
use server_log::Log;
use spool::{LaneId, Spool};

use crate::{exit, server_parts};

/// How long the process waits, before it ends, for its last lines of the log to be written.
const LOG_TIME: Duration = Duration::from_millis(200);

/// Connects to the cluster, if there is one; waits for its servers. A server that only drains its queue
/// takes over nothing.
///
/// # Errors
///
/// The servers or the folders of the lanes cannot be used.
pub fn connect(config: &Config, drain_only: bool, log: &Arc<Log>) -> anyhow::Result<Option<StartingNode>> {
    let Some(settings) = &config.cluster else { return Ok(None) };
    let report = log.clone();
    let parts = NodeParts {
        config: settings.clone(),
        lane_folders: config.spool.lanes.clone(),
        segment_bytes: config.spool.segment_octets,
        close_lanes_after: ClusterNode::CLOSE_LANES_AFTER,
        adopts_lanes: !drain_only,
        version: env!("CARGO_PKG_VERSION").into(),
        configuration: digest(config),
        on_lane_lost: Box::new(move |lane, reason| end_process(&report, lane, reason)),
        random: server_parts::random,
        log: log.clone(),
    };
    StartingNode::connect(parts).map(Some).context("joining the cluster")
}

/// What is delivered and accepted from now on may be another node's: nothing more is written, and the next
/// start decides. A second process could not do worse than a kill, which loses nothing.
fn end_process(log: &Log, lane: LaneId, reason: &str) {
    let text = "a lane is no longer this node's: the server ends, and has to be started again";
    log.event(LogLevel::Error, text, &[("lane", &lane), ("reason", &reason)]);
    std::thread::sleep(LOG_TIME);
    process::exit(i32::from(exit::LANE_LOST));
}

/// The same on nodes with the same settings, except those that name the node.
fn digest(config: &Config) -> String {
    let mut compared = config.clone();
    compared.cluster = None;
    compared.hostname = Default::default();
    let mut hasher = DefaultHasher::new();
    format!("{compared:?}").hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Asks the cluster whether mail of a lane may be delivered now.
pub struct ClusterFence(pub Arc<ClusterStep>);

impl LaneFence for ClusterFence {
    fn may_attempt(&self, lane: LaneId) -> bool {
        self.0.may_deliver(lane)
    }
}

/// The node of a running server.
pub struct RunningCluster {
    /// None once it has stopped.
    node: Mutex<Option<ClusterNode>>,
    hands_over: AtomicBool,
    /// Stops the server.
    stop_server: Box<dyn Fn() + Send + Sync>,
}

impl RunningCluster {
    /// Claims the lanes of the spool. From now on they may be delivered.
    ///
    /// # Errors
    ///
    /// A lane was lost meanwhile, or cannot be opened.
    pub fn start(
        node: StartingNode,
        spool: &Arc<Spool>,
        scheduler: &SchedulerHandle,
        stop_server: Box<dyn Fn() + Send + Sync>,
    ) -> anyhow::Result<Arc<RunningCluster>> {
        let scheduler = Mutex::new(scheduler.clone());
        let node = node.start(spool, Box::new(move |messages| scheduler.lock().admit(messages)))?;
        Ok(Arc::new(RunningCluster { node: Mutex::new(Some(node)), hands_over: AtomicBool::new(false), stop_server }))
    }

    /// Leaves the cluster, after the spool was closed.
    pub fn stop(&self) {
        if let Some(node) = self.node.lock().take() {
            node.stop(self.hands_over.load(Relaxed));
        }
    }
}

impl ClusterOperator for RunningCluster {
    fn lanes(&self) -> Vec<LaneReport> {
        self.node.lock().iter().flat_map(ClusterNode::lanes).map(lane_report).collect()
    }

    fn nodes(&self) -> Result<Vec<NodeReport>, String> {
        let node = self.node.lock();
        let Some(node) = &*node else { return Err("the server is stopping".into()) };
        let nodes = node.nodes().map_err(|error| error.to_string())?;
        let report = |(name, entry): (cluster::NodeName, cluster::NodeEntry)| NodeReport {
            here: name == *node.name(),
            node: name.to_string(),
            version: entry.version,
            started: entry.started,
            configuration: entry.configuration,
            lanes: entry.lanes,
        };
        Ok(nodes.into_iter().map(report).collect())
    }

    fn drain(&self) {
        self.hands_over.store(true, Relaxed);
        (self.stop_server)();
    }
}

fn lane_report(lane: cluster::LaneReport) -> LaneReport {
    let status = lane.status;
    LaneReport {
        lane: lane.lane.to_string(),
        role: if status.is_some() { "owner" } else { "watched" },
        epoch: status.and_then(|status| Some(status.claimed?.0)),
        sequence: status.map(|status| status.confirmed_sequence),
        messages: status.map(|status| status.live_messages),
        bytes_waiting: status.map(|status| status.waiting_bytes),
        lease_ms: status.map(|status| u64::try_from(status.lease_left.as_millis()).unwrap_or(u64::MAX)),
    }
}
