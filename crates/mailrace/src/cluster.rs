//! Connects the node of a cluster with the rest of the server: it fences deliveries, answers operators,
//! and ends the process when one of its lanes was taken over.

mod figures;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use cluster::departures::Departures;
use cluster::slots::SlotUse;
use cluster::{
    ClusterNode, ClusterStep, GivenBack, LaneRole, NodeName, NodeParts, NodeSharing, SharingCallbacks, StartingNode,
};
use config::Config;
use control::{ClusterFigures, ClusterOperator, CurrentHandler, LaneReport, NodeReplies, NodeReport, NodeSilence};
use credentials::FailedLogins;
use dispatch::{LaneFence, NextHopSharing, SchedulerHandle};
use filter::limits::{Quantity, SharedUsage};
use intake::IntakeContext;
use mail::{LogLevel, ServerLog};
use parking_lot::{Mutex, RwLock};
use queue::{SlotReport, SlotUsage};
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
    let text = "another node owns a lane of this node; the server stops: start it again";
    log.event(LogLevel::Error, text, &[("lane", &lane), ("reason", &reason)]);
    std::thread::sleep(LOG_TIME);
    process::exit(i32::from(exit::LANE_LOST));
}

/// The same on nodes with the same settings, except those that name the node.
fn digest(config: &Config) -> String {
    let mut compared = config.clone();
    if let (Some(cluster), Ok(any)) = (&mut compared.cluster, "any".parse()) {
        cluster.node = any;
    }
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

/// Passes what queues and logins share on to the other nodes.
struct ClusterSharing(NodeSharing);

impl FailedLogins for ClusterSharing {
    fn report(&self, user: &str, client: IpAddr) {
        self.0.announce_failed_login(user, client);
    }
}

impl SharedUsage for ClusterSharing {
    fn count(&self, limit: &str, quantity: Quantity, key: [u8; 16], cost: u64) {
        self.0.count_usage(limit, quantity.name(), u128::from_be_bytes(key), cost);
    }
}

impl NextHopSharing for ClusterSharing {
    fn request_departures(&self, next_hop: &str, interval: Duration, count: u32) {
        self.0.request_departures(next_hop, interval, count);
    }

    fn report_slots(&self, report: SlotReport) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let SlotUsage { limit, wanted, held, granted } = report.usage;
        let (limit, wanted, held, granted) = (number(limit), number(wanted), number(held), number(granted));
        self.0.report_slots(report.next_hop, SlotUse { limit, wanted, held, granted });
    }

    fn announce_lame(&self, next_hop: &str) {
        self.0.announce_lame(next_hop);
    }
}

/// What the queues of a node share with the others.
pub fn next_hop_sharing(node: &StartingNode) -> Arc<dyn NextHopSharing> {
    Arc::new(ClusterSharing(node.sharing()))
}

/// Passes on what other nodes say: to the queues, and to the throttle of logins once there is a handler.
fn sharing_callbacks(scheduler: &SchedulerHandle, handler: &Arc<OnceLock<CurrentHandler>>) -> SharingCallbacks {
    // A handle of the scheduler is used by one thread at a time.
    let [granted, slots, lame] = [(); 3].map(|()| Mutex::new(scheduler.clone()));
    let (of_logins, of_limits) = (handler.clone(), handler.clone());
    SharingCallbacks {
        grant: Box::new(move |next_hop, departures| {
            let Departures { first_in, interval, count } = departures;
            granted.lock().grant_departures(next_hop, first_in, interval, count);
        }),
        grant_slots: Box::new(move |next_hop, count| slots.lock().grant_slots(next_hop, count as usize)),
        report_lame: Box::new(move |next_hop| lame.lock().report_lame_elsewhere(next_hop)),
        count_failed_login: Box::new(move |user, client| {
            of_logins.get().into_iter().for_each(|handler| handler.count_failed_login(user, client));
        }),
        count_usage: Box::new(move |used| {
            if let (Some(handler), Ok(key)) = (of_limits.get(), u128::from_str_radix(&used.key, 16)) {
                handler.count_limit_use(&used.limit, &used.quantity, key.to_be_bytes(), used.cost);
            }
        }),
    }
}

/// The node of a running server.
pub struct RunningCluster {
    name: NodeName,
    /// None once it has stopped. Requests to other nodes wait with it, so they must not exclude each other.
    node: RwLock<Option<ClusterNode>>,
    hands_over: AtomicBool,
    sharing: NodeSharing,
    /// Answers other nodes, once it is there.
    handler: Arc<OnceLock<CurrentHandler>>,
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
        let admitting = Mutex::new(scheduler.clone());
        let (sharing, handler) = (node.sharing(), Arc::default());
        let node = node.start(spool, Box::new(move |messages| admitting.lock().admit(messages)))?;
        node.share(sharing_callbacks(scheduler, &handler));
        Ok(Arc::new(RunningCluster {
            name: node.name().clone(),
            node: RwLock::new(Some(node)),
            hands_over: AtomicBool::new(false),
            sharing,
            handler,
            stop_server,
        }))
    }

    /// Answers what operators ask through other nodes, and counts logins that have failed there, from now
    /// on. Called once.
    pub fn serve_others(&self, handler: CurrentHandler) {
        // It is not set twice.
        let _ = self.handler.set(handler.clone());
        if let Some(node) = &*self.node.read() {
            node.serve_requests(Arc::new(move |question| handler.answer_node(question)));
        }
    }

    /// Goes by a configuration that was loaded since the start, and shows the other nodes its digest.
    pub fn take_configuration(&self, config: &Config, intake: &IntakeContext) {
        self.share_limits(intake);
        self.node.read().iter().for_each(|node| node.set_configuration(digest(config)));
    }

    /// Tells the other nodes which logins fail, and which allowances are used.
    pub fn share_limits(&self, intake: &IntakeContext) {
        if let Some(limits) = &intake.rate_limits {
            limits.share_usage(Arc::new(ClusterSharing(self.sharing.clone())));
        }
        if let Some(logins) = &intake.logins {
            logins.credentials.share_failures(Arc::new(ClusterSharing(self.sharing.clone())));
        }
    }

    /// Leaves the cluster, after the spool was closed. Others may connect to the next hops of this server at once
    /// if its own connections `are_closed`.
    pub fn stop(&self, are_closed: bool) {
        if let Some(node) = self.node.write().take() {
            node.stop(GivenBack { lanes: self.hands_over.load(Relaxed), slots: are_closed });
        }
    }
}

impl RunningCluster {
    fn running<T>(&self, request: impl FnOnce(&ClusterNode) -> Result<T, String>) -> Result<T, String> {
        match &*self.node.read() {
            Some(node) => request(node),
            None => Err("the server is stopping".into()),
        }
    }
}

impl ClusterOperator for RunningCluster {
    fn lanes(&self) -> Vec<LaneReport> {
        self.node.read().iter().flat_map(ClusterNode::lanes).map(lane_report).collect()
    }

    fn problems(&self) -> Vec<String> {
        self.node.read().iter().flat_map(ClusterNode::problems).collect()
    }

    fn nodes(&self) -> Result<Vec<NodeReport>, String> {
        let nodes = self.running(|node| node.nodes().map_err(|error| error.to_string()))?;
        let report = |(name, entry): (NodeName, cluster::NodeEntry)| NodeReport {
            here: name == self.name,
            node: name.to_string(),
            version: entry.version,
            started: entry.started,
            configuration: entry.configuration,
            lanes: entry.lanes,
        };
        Ok(nodes.into_iter().map(report).collect())
    }

    fn adopt(&self, lane: &str) -> Result<(), String> {
        self.running(|node| node.adopt(lane).map_err(|error| error.to_string()))
    }

    fn forget(&self, target: &str, force: bool) -> Result<usize, String> {
        let forget = |node: &ClusterNode| node.forget(target, force).map_err(|error| error.to_string());
        self.running(forget).map(|lanes| lanes.len())
    }

    fn ask(&self, node: Option<&str>, question: &[u8]) -> Result<NodeReplies, String> {
        let name: Option<NodeName> = node.map(str::parse).transpose().map_err(|error| format!("{error}"))?;
        let answers = self.running(|node| node.ask(name, question).map_err(|error| error.to_string()))?;
        let reply = |(node, answer): (NodeName, Result<_, cluster::AskError>)| {
            (node.to_string(), answer.map(Into::into).map_err(silence))
        };
        Ok(answers.into_iter().map(reply).collect())
    }

    fn node(&self) -> String {
        self.name.to_string()
    }

    fn figures(&self) -> ClusterFigures {
        self.node.read().as_ref().map_or_else(ClusterFigures::default, |node| figures::of_node(&node.figures()))
    }

    fn drain(&self) {
        self.hands_over.store(true, Relaxed);
        (self.stop_server)();
    }
}

fn silence(error: cluster::AskError) -> NodeSilence {
    let text = error.to_string();
    match error {
        cluster::AskError::Absent(_) | cluster::AskError::Silent(..) => NodeSilence::NotBegun(text),
        cluster::AskError::Unfinished(..) => NodeSilence::Unfinished(text),
    }
}

fn lane_report(lane: cluster::LaneReport) -> LaneReport {
    let status = lane.status;
    LaneReport {
        lane: lane.lane.to_string(),
        role: match lane.role {
            LaneRole::Own => "owner",
            LaneRole::Adopted => "adopted",
            LaneRole::Local => "local",
            LaneRole::Watched => "watched",
        },
        epoch: status.and_then(|status| Some(status.claimed?.0)),
        sequence: status.map(|status| status.confirmed_sequence),
        messages: status.map(|status| status.live_messages),
        bytes_waiting: status.map(|status| status.waiting_bytes),
        lease_ms: status.map(|status| u64::try_from(status.lease_left.as_millis()).unwrap_or(u64::MAX)),
    }
}
