//! The way of mail through the server, from the spool to its delivery: opens the spool, whose messages go into the
//! queues, starts the threads that deliver them, and claims the lanes in the cluster.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ::cluster::StartingNode;
use anyhow::Context;
use config::Config;
use delivery::pipe::LauncherSocket;
use dispatch::{
    self, Dispatcher, DispatcherConfig, DispatcherParts, LaneFence, OutcomeCounters, Queues, Redirects,
    SchedulerHandle, SchedulerReceiver,
};
use mail::{LogLevel, ServerLog};
use sender_auth::reports::ReportCollector;
use server_log::Log;
use spool::{CommitStepConfig, Disk, FolderDisk, LiveMessage, Spool};

use crate::cluster::{self, ClusterFence, RunningCluster};
use crate::server_parts::{self, ProcessLimits};
use crate::tls_reports;

/// What the message flow starts with, besides its configuration.
pub(crate) struct FlowInputs<'a> {
    pub(crate) limits: ProcessLimits,
    pub(crate) launcher: Option<LauncherSocket>,
    pub(crate) reports: Option<&'a ReportCollector>,
    pub(crate) redirects: Redirects,
    pub(crate) drain_only: bool,
    /// Stops the server in an orderly way.
    pub(crate) stop_server: Box<dyn Fn() + Send + Sync>,
}

/// The message flow, from the spool on.
pub(crate) struct StartedFlow {
    pub(crate) spool: Arc<Spool>,
    pub(crate) flow: Dispatcher,
    pub(crate) scheduler: SchedulerHandle,
    pub(crate) outcome_counters: Arc<OutcomeCounters>,
    pub(crate) cluster: Option<Arc<RunningCluster>>,
}

/// Opens the spool, whose messages go into the queues, starts the threads that deliver them, and claims
/// the lanes in the cluster.
pub(crate) fn start_flow(
    config: &Config,
    dispatcher: DispatcherConfig,
    queue_config: &queue::SchedulerConfig,
    inputs: FlowInputs<'_>,
    log: &Arc<Log>,
) -> anyhow::Result<StartedFlow> {
    let FlowInputs { limits, launcher, reports, redirects, drain_only, stop_server } = inputs;
    let joining = cluster::connect(config, drain_only, log)?;
    let outcome_counters = Arc::new(OutcomeCounters::default());
    let (scheduler, receiver): (SchedulerHandle, SchedulerReceiver) = dispatch::scheduler_channel();
    let mut queues = Queues::new(queue_config.clone(), server_parts::random());
    let mut admit = |message| dispatch::enqueue_recovered_message(&mut queues, &dispatcher.rules, &scheduler, message);
    let events = dispatch::spool_event_handler(scheduler.clone(), log.clone());
    let lanes = joining.as_ref().map_or_else(|| config.spool.lanes.clone(), StartingNode::lane_folders);
    let step = joining.as_ref().map(StartingNode::commit_step);
    let spool = Arc::new(open_spool(config, &lanes, events, step, &mut admit)?);
    let fields: [(&'static str, &dyn Display); 2] =
        [("messages", &queues.message_count()), ("recipients", &queues.recipient_count())];
    log.event(LogLevel::Info, "the spool is open", &fields);
    let parts = DispatcherParts {
        spool: spool.clone(),
        queues,
        config: dispatcher,
        smtp_threads: limits.threads,
        launcher,
        outcome_counters: outcome_counters.clone(),
        tls_sessions: tls_reports::session_log(config, reports),
        redirects,
        lane_fence: joining.as_ref().map(|node| Arc::new(ClusterFence(node.step())) as Arc<dyn LaneFence>),
        next_hop_sharing: joining.as_ref().map(cluster::next_hop_sharing),
        log: log.clone(),
    };
    let flow = Dispatcher::start(parts, scheduler.clone(), receiver)?;
    let cluster = joining.map(|node| RunningCluster::start(node, &spool, &scheduler, stop_server)).transpose()?;
    Ok(StartedFlow { spool, flow, scheduler, outcome_counters, cluster })
}

fn open_spool(
    config: &Config,
    lanes: &[PathBuf],
    events: impl Fn(spool::SpoolEvent) + Send + Sync + 'static,
    commit_step: Option<CommitStepConfig>,
    sink: &mut dyn FnMut(LiveMessage),
) -> anyhow::Result<Spool> {
    let open = |path| Ok(Arc::new(FolderDisk::open(path)?) as Arc<dyn Disk>);
    let lanes = lanes.iter().map(|path| {
        let lane: io::Result<Arc<dyn Disk>> = open(path);
        lane.with_context(|| format!("opening the lane {}", path.display()))
    });
    let settings = spool::Config {
        segment_bytes: config.spool.segment_octets,
        spare_segments: config.spool.spare_segments,
        durability: config.spool.durability,
        commit_step,
        events: Arc::new(events),
        ..spool::Config::default()
    };
    let lanes = lanes.collect::<anyhow::Result<Vec<_>>>()?;
    spool::open(lanes, settings, server_parts::random(), sink).context("opening the spool")
}
