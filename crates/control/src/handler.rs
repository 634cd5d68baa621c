//! Handles requests. What concerns the queues is done in short visits to the scheduler's thread;
//! messages, the directory and the DNS are read on the handler's own thread, which may wait.
//! Actions run the same way, are logged with who asked for them and their result, and change nothing
//! but what they name. The control socket and the HTTP API are two ways to the same functions.

mod acts;
mod explain;
mod pauses;
mod process;
mod recipients;
mod redirects;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use ::load::AllowedClients;
use dispatch::Queues;
use filter::access::AccessRules;
use intake::ResourceRefusal;
use mail::{Body, LogLevel, QueueId, Timestamp};
use queue::OperatorAction;
use sender_auth::srs::SrsCounters;
use serde::Serialize;
use serde_json::Value;
use spool::SpooledMessage;

use self::acts::UnfinishedAct;
use super::adaptive::{self, AdaptiveValue};
use super::certificates::{AcmeCertificateRow, CertificateStatus};
use super::explain::MessageState;
use super::lanes::{self, LaneStatus};
use super::load::{self, LoadStatus};
use super::message::{self, MessageDetails};
use super::recipient_filter::UnknownQueue;
use super::reports;
use super::request::{ControlRequest, InvalidRequest};
use super::summary::{self, DestinationStatus, NextHopStatus, QueueStatus};
use super::tables::{self, LookupReport, TableStatus};
use super::text::{SerdeAsText, plural};
use super::trouble;
use super::wait::unless_stopping;
use crate::history::ServerCounters;
use crate::metrics::{self, MetricFamily, MetricsSnapshot, QueueMetrics, SignatureCounts};
use crate::reload_request::{ReloadAnswer, ReloadRequest};
use crate::state_file::NotSynced;
use crate::{ClusterOperator, ControlParts, MessageHistory, ReportParts, SharedControlState};

/// How long an act waits for room in the log: less than other nodes of a cluster wait for its answer.
const AUDIT_WAIT_MAX: Duration = Duration::from_secs(2);
/// The message of the log lines about acts.
const OPERATOR_ACTION: &str = "operator action";

/// Handles requests.
pub struct ControlHandler {
    pub(super) parts: ControlParts,
    pub(super) shared: SharedControlState,
}

/// Why there is no answer, or only part of one.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    #[error("the server is stopping")]
    Stopping,
    /// An act would be in no log.
    #[error("nothing was done: the log has no room for a line about it; see the disk of the log, or try again")]
    LogFull,
    #[error("invalid request: {0}")]
    InvalidRequest(#[from] InvalidRequest),
    /// The request is valid, and refused.
    #[error("{0}")]
    Refused(String),
    /// What the request is about is not there.
    #[error("{0}")]
    NotFound(String),
    /// It is done, and may not be kept.
    #[error(transparent)]
    NotKept(NotSynced),
    /// An act was not done in full.
    #[error(transparent)]
    Unfinished(#[from] UnfinishedAct),
    /// The answer cannot be written, or a part of it cannot be made.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<UnknownQueue> for ControlError {
    fn from(error: UnknownQueue) -> Self {
        ControlError::Refused(error.to_string())
    }
}

pub(super) type ControlResult<T> = Result<T, ControlError>;

impl ControlHandler {
    /// The flag that stops the handlers.
    pub(super) fn stopping(&self) -> Arc<AtomicBool> {
        self.shared.stopping.clone()
    }

    /// Handles one request on the control socket; `caller` says who made it, for the log.
    pub(super) fn handle(&self, line: &str, caller: &str, out: &mut impl Write) -> ControlResult<()> {
        match line.parse()? {
            ControlRequest::Count(filter) => self.write_count(filter, out)?,
            ControlRequest::List(filter) => self.list(filter, out)?,
            ControlRequest::ListOldest { limit, filter } => self.list_oldest(limit, filter, out)?,
            ControlRequest::Summary { by, filter } => self.write_summary(by, filter, out)?,
            ControlRequest::Hold(order) => self.act(caller, OperatorAction::Hold, order)?.write(out)?,
            ControlRequest::Release(order) => self.act(caller, OperatorAction::Release, order)?.write(out)?,
            ControlRequest::Retry(order) => self.act(caller, OperatorAction::Retry, order)?.write(out)?,
            ControlRequest::Remove(order) => self.act(caller, OperatorAction::Remove, order)?.write(out)?,
            ControlRequest::Bounce(order) => self.act(caller, OperatorAction::Bounce, order)?.write(out)?,
            ControlRequest::Pause(request) => write_rows(&[self.pause(caller, request)?], out)?,
            ControlRequest::Resume(request) => self.resume(caller, request)?,
            ControlRequest::Pauses => write_rows(&self.pauses()?, out)?,
            ControlRequest::Redirect(request) => self.redirect(caller, request)?,
            ControlRequest::EndRedirect(request) => self.end_redirect(caller, request)?,
            ControlRequest::Redirects => write_rows(&self.redirects(), out)?,
            ControlRequest::ExplainAddress { address, sender, client, helo } => {
                let sender = sender.map(|sender| sender.0);
                let client = client.map(|client| (client, helo.as_deref()));
                write_rows(&[self.explain_address(&address.0, sender, client)?], out)?;
            }
            ControlRequest::ExplainMessage { id } => write_rows(&[self.explain_message(id.0)?], out)?,
            ControlRequest::Verify { address } => write_rows(&[self.verify(&address.0)?], out)?,
            ControlRequest::Show { id } => message::write_message(&self.message(id.0)?, out)?,
            ref order @ ControlRequest::Content { ref id, from } => {
                let stored = self.logged_as_done(caller, order, || self.stored(id.0))?;
                message::write_content(&stored.body, from, out)?;
            }
            ControlRequest::History { id } => write_rows(&[self.history(id.0)?], out)?,
            ControlRequest::TableGet { table, key } => self.table_get(&table, &key)?.write(out)?,
            ControlRequest::TableStats { table } => write_rows(&self.table_stats(table.as_deref())?, out)?,
            ControlRequest::TableAccept { table } => self.accept_table_removals(caller, table)?,
            ControlRequest::ReportsShow => write_rows(&self.pending_reports()?, out)?,
            ControlRequest::ReportsSend { domain } => write_rows(&self.send_reports(caller, domain)?, out)?,
            ControlRequest::AcmeStatus => write_rows(&self.acme_certificates()?, out)?,
            ControlRequest::AcmeRenew { name } => writeln!(out, "{}", self.renew_certificates(caller, name)?)?,
            ControlRequest::ClusterStatus => {
                write_rows(&self.cluster()?.lanes(), out)?;
                let problems = self.cluster()?.problems().into_iter();
                write_rows(
                    &problems.map(|problem| serde_json::json!({ "problem": problem })).collect::<Vec<_>>(),
                    out,
                )?;
            }
            ControlRequest::ClusterNodes => {
                let nodes = self.cluster()?.nodes().map_err(ControlError::Refused)?;
                write_rows(&nodes, out)?;
            }
            ControlRequest::ClusterDrain => self.drain_node(caller)?,
            ControlRequest::ClusterAdopt { lane } => self.adopt_lane(caller, lane)?,
            ControlRequest::ClusterForget { target, force } => {
                writeln!(out, "{}", self.forget_in_cluster(caller, target, force)?)?;
            }
            ControlRequest::Nodes { node, request } => {
                write_rows(&self.ask_nodes(caller, node.as_deref(), &request)?, out)?;
            }
            order @ (ControlRequest::TokenCreated { .. } | ControlRequest::TokenRevoked { .. }) => {
                self.logged_as_done(caller, &order, || Ok(()))?;
            }
            ControlRequest::Drain(request) => self.drain(caller, request)?,
            ControlRequest::Reload => write_rows(&[self.reload(caller)?], out)?,
            ControlRequest::Load => write_rows(&[self.load_status()], out)?,
            ControlRequest::Adaptive => write_rows(&self.adaptive_values()?, out)?,
            ControlRequest::Status => write_rows(&self.metrics()?, out)?,
        }
        Ok(())
    }

    /// The certificates of the listeners.
    pub(super) fn certificates(&self) -> Vec<CertificateStatus> {
        self.parts.certificates.statuses(SystemTime::now())
    }

    pub(super) fn acme_certificates(&self) -> ControlResult<Vec<AcmeCertificateRow>> {
        match self.parts.certificates.acme_rows() {
            rows if rows.is_empty() => {
                Err(ControlError::Refused("the server obtains no certificates: see [acme] in the configuration".into()))
            }
            rows => Ok(rows),
        }
    }

    pub(super) fn renew_certificates(&self, caller: &str, name: Option<String>) -> ControlResult<usize> {
        let order = ControlRequest::AcmeRenew { name: name.clone() };
        self.logged(
            caller,
            &order,
            |count| plural(*count, "certificate"),
            || {
                self.acme_certificates()?;
                let renewer = self.parts.certificates.renewer.as_ref();
                match renewer.map_or(0, |renewer| renewer.renew(name.as_deref())) {
                    0 => Err(ControlError::Refused("the server obtains no certificate for this name".into())),
                    count => Ok(count),
                }
            },
        )
    }

    pub(super) fn cluster(&self) -> ControlResult<&dyn ClusterOperator> {
        let none = || ControlError::Refused("the server belongs to no cluster: [cluster] is not configured".into());
        self.shared.cluster.as_deref().ok_or_else(none)
    }

    pub(super) fn drain_node(&self, caller: &str) -> ControlResult<()> {
        let cluster = self.cluster()?;
        let drain = || {
            cluster.drain();
            Ok(())
        };
        self.logged(caller, &ControlRequest::ClusterDrain, |()| "stopping".into(), drain)
    }

    pub(super) fn adopt_lane(&self, caller: &str, lane: String) -> ControlResult<()> {
        let cluster = self.cluster()?;
        let order = ControlRequest::ClusterAdopt { lane: lane.clone() };
        let adopt = || cluster.adopt(&lane).map_err(ControlError::Refused);
        self.logged(caller, &order, |()| "taken over".into(), adopt)
    }

    fn forget_in_cluster(&self, caller: &str, target: String, force: bool) -> ControlResult<usize> {
        let cluster = self.cluster()?;
        let order = ControlRequest::ClusterForget { target: target.clone(), force };
        let forget = || cluster.forget(&target, force).map_err(ControlError::Refused);
        self.logged(caller, &order, |lanes| format!("{lanes} lanes given up"), forget)
    }

    pub(super) fn with_queues<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Queues) -> T + Send + 'static,
    ) -> ControlResult<T> {
        self.shared.scheduler.with_queues(request).ok_or(ControlError::Stopping)
    }

    /// Reading a million messages takes long; shutdown does not wait for it.
    fn check_stopping(&self) -> ControlResult<()> {
        if self.shared.stopping.load(Relaxed) { Err(ControlError::Stopping) } else { Ok(()) }
    }

    /// All queues.
    pub(super) fn queues(&self) -> ControlResult<Vec<QueueStatus>> {
        self.with_queues(|queues| summary::queue_statuses(queues))
    }

    /// At most `limit` next hops, by name, after this one.
    pub(super) fn next_hops(&self, after: Option<String>, limit: usize) -> ControlResult<Vec<NextHopStatus>> {
        self.with_queues(move |queues| summary::next_hops_after(queues, after.as_deref(), limit, now()))
    }

    /// At most `limit` next hops, those in trouble first.
    pub(super) fn troubled_next_hops(&self, limit: usize) -> ControlResult<Vec<NextHopStatus>> {
        self.with_queues(move |queues| trouble::troubled_next_hops(queues, limit, now()))
    }

    /// At most `limit` destinations, those with the most recipients first.
    pub(super) fn largest_destinations(&self, limit: usize) -> ControlResult<Vec<DestinationStatus>> {
        self.with_queues(move |queues| summary::largest_destinations(queues, limit, now()))
    }

    /// At most `limit` destinations, by name and queue, after this one.
    pub(super) fn destinations(
        &self,
        after: Option<(String, String)>,
        limit: usize,
    ) -> ControlResult<Vec<DestinationStatus>> {
        self.with_queues(move |queues| {
            let after = after.as_ref().map(|(name, queue)| (&**name, &**queue));
            summary::destinations_after(queues, after, limit, now())
        })
    }

    /// Does what the log must say, and logs who asked for it and the result. If the log has no room, nothing
    /// is done.
    fn logged<T>(
        &self,
        caller: &str,
        order: &ControlRequest,
        describe: impl FnOnce(&T) -> String,
        act: impl FnOnce() -> ControlResult<T>,
    ) -> ControlResult<T> {
        if !order.is_audited() {
            return act();
        }
        if !self.shared.log.wait_for_room(AUDIT_WAIT_MAX) {
            return Err(ControlError::LogFull);
        }
        let result = act();
        let text = result.as_ref().map_or_else(|error| format!("failed: {error}"), describe);
        self.log_order(LogLevel::Info, caller, order, &text);
        if order.is_change() {
            self.shared.live.overview.forget();
            self.shared.live.report_action(caller, &order.to_string(), &text);
        }
        result
    }

    /// The same for what has no result but that it is done.
    fn logged_as_done<T>(
        &self,
        caller: &str,
        order: &ControlRequest,
        act: impl FnOnce() -> ControlResult<T>,
    ) -> ControlResult<T> {
        self.logged(caller, order, |_| "done".to_owned(), act)
    }

    /// Logs what somebody may not do, and why.
    pub(super) fn log_refused_order(&self, caller: &str, order: &str, reason: &str) {
        self.log_order(LogLevel::Warning, caller, &order, &format!("refused: {reason}"));
    }

    fn log_order(&self, level: LogLevel, caller: &str, order: &dyn std::fmt::Display, result: &str) {
        let fields: [(&'static str, &dyn std::fmt::Display); 3] =
            [("by", &caller), ("order", order), ("result", &result)];
        match level {
            LogLevel::Info => self.shared.log.audit(level, OPERATOR_ACTION, &fields),
            // What strangers try may be dropped, so that they cannot fill the memory.
            _ => self.shared.log.event(level, OPERATOR_ACTION, &fields),
        }
    }

    /// A message, as it is stored and as it waits.
    pub(super) fn message(&self, id: QueueId) -> ControlResult<MessageDetails> {
        let message_state = self.with_queues(move |queues| MessageState::of(queues, id, now()))?;
        Ok(message::details(&message_state, &self.stored(id)?, now()))
    }

    /// The bytes of a message, and when it was accepted. The log says who has read it.
    pub(super) fn message_body(&self, caller: &str, id: QueueId) -> ControlResult<(Body, Timestamp)> {
        let order = ControlRequest::Content { id: SerdeAsText(id), from: 0 };
        let stored = self.logged_as_done(caller, &order, || self.stored(id))?;
        Ok((stored.body, stored.envelope.accepted_at))
    }

    /// What the log has about a message.
    pub(super) fn history(&self, id: QueueId) -> ControlResult<MessageHistory> {
        let none = "the log is written to standard error, where the server cannot read it: see [log] to";
        let log = self.parts.message_log.as_ref().ok_or_else(|| ControlError::Refused(none.into()))?;
        let history = log.history(id)?;
        match history.events.is_empty() {
            true => Err(ControlError::NotFound(format!("the log has nothing about {id}, as far as it was searched"))),
            false => Ok(history),
        }
    }

    fn stored(&self, id: QueueId) -> ControlResult<SpooledMessage> {
        self.parts.intake.spool.message(id).map_err(|error| match error {
            spool::ReadError::Unknown => ControlError::NotFound(format!(
                "no message {id} in the queue: it is finished or never existed; see the log for its history"
            )),
            error => ControlError::Refused(format!("cannot read {id}: {error}")),
        })
    }

    fn table(&self, name: &str) -> ControlResult<&Arc<dyn lookup::Table>> {
        self.parts.tables.find(name).ok_or_else(|| ControlError::NotFound(format!("no such table: {name:?}")))
    }

    /// Looks a key up in a table.
    pub(super) fn table_get(&self, name: &str, key: &str) -> ControlResult<LookupReport> {
        let table = self.table(name)?;
        unless_stopping(&self.shared.stopping, LookupReport::lookup(&**table, key))?.ok_or(ControlError::Stopping)
    }

    /// All tables, or this one.
    pub(super) fn table_stats(&self, name: Option<&str>) -> ControlResult<Vec<TableStatus>> {
        let tables = self.parts.tables.all().filter(|(_, table)| name.is_none_or(|name| name == table.name()));
        let rows: Vec<_> =
            tables.map(|(kind, table)| tables::table_status(table.name(), kind, table.stats().as_ref())).collect();
        match name {
            Some(name) if rows.is_empty() => self.table(name).map(|_| rows),
            _ => Ok(rows),
        }
    }

    /// Lets a replica apply the removals that it held back.
    pub(super) fn accept_table_removals(&self, caller: &str, table: String) -> ControlResult<()> {
        let order = ControlRequest::TableAccept { table: table.clone() };
        self.logged_as_done(caller, &order, || match self.table(&table)?.accept_removals() {
            true => Ok(()),
            false => Err(ControlError::Refused(format!("table {table:?} has no removals held back"))),
        })
    }

    fn reports(&self) -> ControlResult<&ReportParts> {
        let refused = || ControlError::Refused("no reports are sent: see [reports] in the configuration".into());
        self.parts.reports.as_ref().ok_or_else(refused)
    }

    pub(super) fn pending_reports(&self) -> ControlResult<Vec<Value>> {
        let pending = self.reports()?.operator.pending().ok_or(ControlError::Stopping)?;
        Ok(pending.iter().map(reports::summary_json).collect())
    }

    pub(super) fn send_reports(&self, caller: &str, domain: String) -> ControlResult<Vec<Value>> {
        let order = ControlRequest::ReportsSend { domain: domain.clone() };
        self.logged_as_done(caller, &order, || {
            let sent = self.reports()?.operator.send_now(&domain).ok_or(ControlError::Stopping)?;
            if sent.is_empty() {
                return Err(ControlError::Refused(format!("nothing was counted about {domain:?}")));
            }
            Ok(sent.iter().map(reports::sent_json).collect())
        })
    }

    /// The main thread reloads, one request at a time.
    pub(super) fn reload(&self, caller: &str) -> ControlResult<ReloadAnswer> {
        let describe = |answer: &ReloadAnswer| match answer {
            ReloadAnswer::InForce { .. } => "done".to_owned(),
            ReloadAnswer::Refused { exit_code, .. } => format!("refused with exit code {exit_code}"),
        };
        self.logged(caller, &ControlRequest::Reload, describe, || {
            let (reload_request, reply_receiver) = ReloadRequest::new();
            self.shared.reload_sender.send(reload_request).map_err(|_| ControlError::Stopping)?;
            reply_receiver.recv().map_err(|_| ControlError::Stopping)
        })
    }

    /// The load of the machine, and what it has led to.
    pub(super) fn load_status(&self) -> LoadStatus {
        load::load_status(&self.parts.intake.load.report(), &self.parts.intake.refusals, now())
    }

    /// The lanes of the spool.
    pub(super) fn lanes(&self) -> Vec<LaneStatus> {
        let lanes = self.parts.intake.spool.lane_stats();
        lanes.iter().map(|(lane, stats)| lanes::lane_status(*lane, stats)).collect()
    }

    /// All metrics.
    pub(super) fn metrics(&self) -> ControlResult<Vec<MetricFamily>> {
        Ok(metrics::families(&self.metrics_snapshot(self.parts.metrics_next_hops_max)?))
    }

    /// Why the server should get no mail at present; None: it is ready.
    pub(super) fn unreadiness(&self) -> Option<&'static str> {
        let restrictions = self.parts.intake.load.restrictions();
        if self.shared.stopping.load(Relaxed) {
            Some("the server is stopping")
        } else if restrictions.intake == AllowedClients::None {
            Some("the server is draining its queue")
        } else if restrictions.intake == AllowedClients::ReservedOnly {
            Some("the load of the machine is too high")
        } else {
            restrictions.shortage.map(|_| "memory or disk space is short")
        }
    }

    /// The values that the server adapts itself.
    pub(super) fn adaptive_values(&self) -> ControlResult<Vec<Value>> {
        let intake = &self.parts.intake;
        let batching = intake.spool.batching();
        let maildir_batches = self.shared.outcome_counters.maildir_batches();
        let mut values = adaptive::of_spool(&batching);
        values.extend(self.with_queues(|queues| adaptive::of_next_hops(queues))?);
        values.push(adaptive::of_maildir_batches(&maildir_batches));
        let tables = self.parts.tables.all().filter_map(|(_, it)| Some((it.name().to_owned(), it.stats()?)));
        values.extend(tables.filter_map(|(name, stats)| adaptive::of_table(&name, &stats)));
        values.extend(adaptive::of_load(&intake.load.report()));
        Ok(values.iter().chain(&self.parts.chosen).map(AdaptiveValue::to_json).collect())
    }

    /// The counters for the history.
    pub(super) fn counters(&self) -> ControlResult<ServerCounters> {
        let spool = &self.parts.intake.spool;
        let accepted_at = |id| Some(spool.message(id).ok()?.envelope.accepted_at);
        let oldest = spool.first_ids().into_iter().filter_map(accepted_at).min();
        Ok(ServerCounters::read(&self.metrics_snapshot(0)?, oldest, now()))
    }

    fn metrics_snapshot(&self, next_hops_max: usize) -> ControlResult<MetricsSnapshot> {
        Ok(MetricsSnapshot {
            sessions: self.parts.intake.connection_limiter.session_count(),
            retrieval: self.parts.retrieval.stats(),
            queues: self.with_queues(move |queues| QueueMetrics::read(queues, next_hops_max))?,
            listeners: self.parts.intake.listeners.counts(),
            transports: self.shared.outcome_counters.by_transport(),
            outcomes: self.shared.outcome_counters.by_outcome(),
            relayed_by_proof: self.shared.outcome_counters.relayed_by_proof(),
            notices_dropped: self.shared.outcome_counters.notices_dropped(),
            refusals: ResourceRefusal::ALL
                .map(|refusal| (refusal.name(), self.parts.intake.refusals.count_of(refusal)))
                .into(),
            access: self
                .parts
                .access_rules
                .iter()
                .flat_map(|rules| rules.match_counts())
                .map(|(rule, count)| (rule.into(), count))
                .collect(),
            delayed_greetings: self.parts.intake.greeting_delays.waiting(),
            early_talkers: self.parts.intake.greeting_delays.early_talkers(),
            rate_limits: self.parts.intake.rate_limits.iter().flat_map(|limits| limits.stats()).collect(),
            greylist: self.parts.intake.greylist.as_ref().map(|greylist| greylist.memory().stats()),
            signatures: self.parts.signatures.as_deref().map(SignatureCounts::read),
            srs: self.parts.srs.as_deref().map(SrsCounters::by_result),
            lists_unanswered: self.parts.access_rules.as_deref().map_or(0, AccessRules::unanswered_dnsbl_queries),
            sender_auth: self.parts.sender_auth.clone(),
            reports: self.parts.reports.as_ref().map(|reports| reports.counters.clone()),
            handshakes: self.parts.intake.tls_handshakes.counts(),
            certificates: self.certificates(),
            logins: self.parts.intake.logins.as_ref().map(|logins| logins.credentials.stats()),
            load: self.parts.intake.load.report(),
            log_lines_dropped: self.shared.log.lines_dropped(),
            relaxed_durability: self.parts.relaxed_durability,
            commit_micros: self.parts.intake.commit_micros.read(),
            spool: self.parts.intake.spool.stats(),
            cluster: self.shared.cluster.as_ref().map(|cluster| cluster.figures()),
            tables: self.parts.tables.all().filter_map(|(_, it)| Some((it.name().into(), it.stats()?))).collect(),
        })
    }
}

fn write_rows(rows: &[impl Serialize], out: &mut impl Write) -> io::Result<()> {
    rows.iter().try_for_each(|row| writeln!(out, "{}", serde_json::to_string(row)?))
}

pub(super) fn now() -> Timestamp {
    SystemTime::now().into()
}
