//! Replaces the configuration of a running server.
//!
//! The configuration is held in a few places. Each holds all of its part as one value that is never
//! modified, only replaced:
//!
//! | part | holds | replaced by |
//! |---|---|---|
//! | workers | the listeners, each with its service: the intake context, the protocol's settings, the TLS acceptor | each new connection uses the current one |
//! | scheduler | queues, rules, local deliverers; through it the classifier, the route resolver, the DSN sender and the SMTP deliverers | a message |
//! | control socket | tables, the explainer, the intake context | new connections use the new handler |
//! | drop folder scanner | the intake context | its next scan |
//! | load monitor | limits | a message |
//!
//! A reload has two steps. The first reads and checks the new configuration and *builds*
//! everything: it opens tables, reads certificates, binds addresses and starts threads, while
//! nothing uses them. Only this step can fail, and then everything is dropped and the server
//! continues unchanged. The second step replaces the values, and cannot fail.
//!
//! A session keeps the context that it began with; a delivery keeps its deliverer, hosts and
//! connection. What is unchanged is not rebuilt: tables and DNS lists keep their caches, sockets
//! their waiting clients, the router its DNS cache. Counters (sessions, rates, refusals, access
//! rules, failed logins) continue.
//!
//! Settings that folders, threads or the process depend on cannot be replaced: a configuration that
//! changes them is refused as a whole, with the keys ([`config_diff`]).

mod config_diff;

use std::fmt::Display;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use config::{self, Config, ConfigSource, LoadedConfig};
use control::api::Api;
use control::{AdaptiveValue, AddressExplainer, ControlHandler, ControlServer, ReloadAnswer, SharedControlState};
use dispatch::{Dispatcher, DispatcherDifference};
use filter::access::AccessRules;
use intake::drop_folder::DropFolderScanner;
use intake::{CommitNotifier, IntakeContext};
use lookup::Table;
use lookup::directory::RecipientDirectory;
use mail::{LogLevel, ServerLog};
use mailbox::quota::UsageCounter;
use mta_sts::PolicyCache;
use net::{BoundListener, InheritedSockets, ListenerSocket, SessionWorkers, TlsServer, session_runtime};
use tokio::runtime::Runtime;

use crate::certificates::{self, RunningCertificates};
use crate::cluster::RunningCluster;
use crate::exit::{self, ExitError, FormattedError};
use crate::from_config::DnsblLists;
use crate::intake_context::{self, IntakeContextParts};
use crate::listeners::{self, SessionParts};
use crate::logins::{self, ServerSecret};
use crate::report_sender::{ReportContext, RunningReports};
use crate::retrieval_parts::RetrievalParts;
use crate::sender_parts::SenderParts;
use crate::server_parts::{self, PreviousParts, ProcessLimits, ServerParts};
use crate::signing::SigningParts;
use crate::tables::{self, OpenTables};
use crate::{check, from_config};
use server_log::Log;

use config_diff::{ConfigDifference, differences, is_same_tls, routes_differ};

/// How often to check whether removed tables are still in use.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The running server: the parts that a reload replaces.
pub struct RunningServer {
    /// The server takes nothing in, whatever configuration is loaded.
    pub drain_only: bool,
    /// The configuration in force.
    pub loaded: LoadedConfig,
    /// What the process allows.
    pub limits: ProcessLimits,
    /// The tables in use.
    pub tables: OpenTables,
    /// The DNS lists in use.
    pub dnsbl_lists: DnsblLists,
    /// All queues since the start, by number.
    pub queues: queue::SchedulerConfig,
    /// The access rules in use.
    pub access_rules: Option<Arc<AccessRules>>,
    /// Counts mailboxes, if any has a quota.
    pub quota_counter: Option<UsageCounter>,
    /// The MTA-STS policies of other domains.
    pub sts_policies: Option<Arc<PolicyCache>>,
    /// What verifies, signs and rewrites senders.
    pub senders: SenderParts,
    /// Counts and sends reports to the owners of other domains, if any are sent.
    pub reports: Option<RunningReports>,
    /// What sessions use.
    pub intake: Arc<IntakeContext>,
    /// What sessions of retrieval use.
    pub retrieval: RetrievalParts,
    /// For each worker, what passes commit results to its thread.
    pub commit_notifiers: Box<[CommitNotifier]>,
    /// The threads that run sessions.
    pub workers: SessionWorkers,
    /// The message flow.
    pub flow: Dispatcher,
    /// The control socket.
    pub control_server: ControlServer,
    /// What its handlers share.
    pub control_context: SharedControlState,
    /// What the listeners of the API share.
    pub api: Api,
    /// The node of the cluster; None: the server belongs to none.
    pub cluster: Option<Arc<RunningCluster>>,
    /// The drop folder scanner; None if the server only drains its queue.
    pub drop_scanner: Option<DropFolderScanner>,
    /// The load monitor.
    pub gauges: load::LoadMonitorThread,
    /// What obtains and reloads certificates.
    pub certificates: RunningCertificates,
    /// The log.
    pub log: Arc<Log>,
}

/// Everything that the second step needs.
struct PreparedReload {
    loaded: LoadedConfig,
    tables: OpenTables,
    dnsbl_lists: DnsblLists,
    queues: queue::SchedulerConfig,
    access_rules: Option<Arc<AccessRules>>,
    quota_counter: Option<UsageCounter>,
    sts_policies: Option<Arc<PolicyCache>>,
    senders: SenderParts,
    policy: IntakeContextParts,
    retrieval: RetrievalParts,
    sockets: Vec<Arc<ListenerSocket>>,
    secret: Option<ServerSecret>,
    acceptor: Option<Arc<TlsServer>>,
    change: dispatch::PreparedChange,
    explainer: AddressExplainer,
    chosen: Vec<AdaptiveValue>,
    drop_runtime: Runtime,
    report_context: Option<ReportContext>,
}

impl RunningServer {
    /// Reloads the configuration, or refuses it and continues unchanged. Both are logged.
    pub fn reload(&mut self) -> ReloadAnswer {
        match self.try_reload() {
            Ok(changes) => {
                let event = "reloaded the configuration";
                self.log.event(LogLevel::Info, event, &[("outcome", &changes.join("; "))]);
                ReloadAnswer::InForce { source: self.loaded.source.to_string(), changes }
            }
            Err(error) => {
                let FormattedError { code: exit_code, text: errors } = FormattedError::from_error(&error);
                let text_in_short = one_line(&errors);
                let event = "the configuration is refused; the old one stays in force";
                self.log.event(LogLevel::Error, event, &[("error", &text_in_short)]);
                ReloadAnswer::Refused { exit_code, errors }
            }
        }
    }

    fn try_reload(&mut self) -> anyhow::Result<Vec<String>> {
        let file = match &self.loaded.source {
            ConfigSource::File(path) => Some(path.as_path()),
            ConfigSource::BuiltIn => None,
        };
        let loaded = config::load(file)?;
        let mut doubts = config::check_certificates(&loaded, SystemTime::now())?;
        doubts.extend(config::check_secret_files(&loaded)?);
        let differences = differences(&self.loaded.config, &loaded.config);
        refuse_what_needs_a_restart(&differences)?;
        let tables = self.tables.reopen_changed(&loaded.config, tables::table_event_logger(self.log.clone()))?;
        doubts.iter().for_each(|doubt| self.log.event(LogLevel::Warning, doubt, &[]));
        if differences.is_empty() && self.tables.is_same(&tables) {
            let changes = self.senders.reload_files(&loaded.config, &self.tables)?;
            let acceptor = self.certificates.watch.current().acceptor;
            let has_fresh = acceptor.is_some_and(|acceptor| certificates::reload_now(&acceptor, &self.log));
            self.loaded = loaded;
            let mut report: Vec<String> = Vec::new();
            report.extend(has_fresh.then(|| "certificates".into()));
            report.extend(changes);
            if report.is_empty() {
                report.push("nothing has changed".into());
            }
            return Ok(report);
        }
        let mut report = vec![summary(&differences, &self.tables, &tables)];
        report.extend(doubts);
        report.extend(check::startup_warnings(&loaded.config));
        let next = self.prepare(loaded, tables)?;
        let sessions = server_parts::session_limits(&next.loaded.config, self.limits)?;
        self.commit(next);
        server_parts::log_config_warnings(&self.loaded.config, sessions, &self.log);
        Ok(report)
    }

    /// Builds everything for the next configuration beside the one in force.
    fn prepare(&self, loaded: LoadedConfig, tables: OpenTables) -> anyhow::Result<PreparedReload> {
        let (old, new) = (&self.loaded.config, &loaded.config);
        let before = PreviousParts {
            config: old,
            tables: &self.tables,
            dnsbl_lists: &self.dnsbl_lists,
            queues: &self.queues,
            access_rules: self.access_rules.as_deref(),
            quota_counter: self.quota_counter.as_ref(),
            sts_policies: self.sts_policies.as_ref(),
            senders: &self.senders,
            intake: &self.intake,
            retrieval: &self.retrieval,
        };
        let secret = logins::load_or_create_secret(new)?;
        let collector = self.reports.as_ref().map(|reports| &reports.collector);
        let parts = ServerParts::build(new, tables, secret, self.limits, Some(&before), collector, &self.log)?;
        let ServerParts {
            tables,
            dnsbl_lists,
            queues,
            access_rules,
            quota_counter,
            sts_policies,
            senders,
            dispatcher,
            intake,
            retrieval,
            explainer,
            chosen,
        } = parts;
        let report_context = self.report_context(new, &intake.directory, &senders.signing)?;
        let acceptor = match self.certificates.watch.current().acceptor {
            Some(same) if is_same_tls(old, new) && from_config::has_tls(new) => Some(same),
            _ => from_config::load_tls_acceptor(new, &self.certificates.challenges)?,
        };
        let (open, inherited) = (self.workers.listeners(), InheritedSockets::default());
        let sockets = match self.drain_only {
            true => Vec::new(),
            false => listeners::open_sockets(new, &open, inherited, self.limits.threads)?,
        };
        sockets.iter().try_for_each(|socket| socket.listen()).context("listening")?;
        let drop_runtime = session_runtime().context("the drop")?;
        let difference = DispatcherDifference {
            routes: routes_differ(old, new) || !self.tables.is_same(&tables),
            notice_limit: old.bounce.per_sender != new.bounce.per_sender,
        };
        let change = self.flow.prepare_change(queues.clone(), dispatcher, difference)?;
        Ok(PreparedReload {
            loaded,
            tables,
            dnsbl_lists,
            queues,
            access_rules,
            quota_counter,
            sts_policies,
            senders,
            policy: intake,
            retrieval,
            sockets,
            secret,
            acceptor,
            change,
            explainer,
            chosen,
            drop_runtime,
            report_context,
        })
    }

    /// What sends reports next, if any are sent.
    fn report_context(
        &self,
        new: &Config,
        directory: &Arc<RecipientDirectory>,
        signing: &SigningParts,
    ) -> anyhow::Result<Option<ReportContext>> {
        match self.reports {
            Some(_) => from_config::report_context(new, directory.clone(), signing, &self.log).map(Some),
            None => Ok(None),
        }
    }

    /// Switches to the next configuration; nothing here can fail. Listeners come last, since their
    /// mail goes to the new queues.
    fn commit(&mut self, next: PreparedReload) {
        let PreparedReload {
            loaded,
            tables,
            dnsbl_lists: lists,
            queues,
            access_rules,
            quota_counter,
            sts_policies,
            senders,
            policy,
            mut retrieval,
            sockets,
            secret,
            acceptor,
            change,
            explainer,
            chosen,
            drop_runtime,
            report_context,
        } = next;
        let config = &loaded.config;
        retrieval.continue_from(&self.retrieval);
        self.flow.apply_change(change);
        if let (Some(reports), Some(context)) = (&self.reports, report_context) {
            reports.sender.reconfigure(context);
        }
        self.gauges.reconfigure(config.load.limits.clone(), config.load.every);
        let intake = Arc::new(intake_context::reload(&self.intake, config, policy));
        self.certificates.reconfigure(acceptor.clone(), config, self.drain_only);
        self.cluster.iter().for_each(|cluster| cluster.take_configuration(config, &intake));
        let context = self.control_context.clone();
        let rules = access_rules.clone();
        let parts = from_config::control_parts(&loaded, explainer, intake.clone(), &retrieval, rules, &tables, &lists);
        let certificates = self.certificates.control_parts();
        let parts = server_parts::with_counters(parts, chosen, &senders, self.reports.as_ref(), certificates);
        self.control_server.set_handler(ControlHandler::new(parts, context));
        if let Some(scanner) = &self.drop_scanner {
            let signing = &senders.signing;
            scanner.reconfigure(server_parts::drop_folder_config(config, &intake, signing, &self.log, drop_runtime));
        }
        let commit_notifiers = &self.commit_notifiers;
        let parts = SessionParts {
            intake: &intake,
            retrieval: &retrieval,
            api: &self.api,
            certificates: &self.certificates,
            secret,
            commit_notifiers,
        };
        let listeners = parts.listeners(config, sockets);
        if config.limits.backlog != self.loaded.config.limits.backlog {
            listeners.iter().for_each(|listener| self.set_backlog(listener, config.limits.backlog));
        }
        if let Some(acceptor) = &acceptor {
            // They have been checked; if one was damaged since, the old one stays, and this is
            // logged.
            certificates::reload_now(acceptor, &self.log);
        }
        let before = self.workers.listeners();
        let is_new = |listener: &&BoundListener| !before.iter().any(|old| old.shares_socket(listener));
        listeners.iter().filter(is_new).for_each(listeners::announce);
        // Closing listeners are waited for; this reference must not keep them open.
        drop(before);
        self.workers.set_listeners(listeners);
        drop_when_unused(self.tables.iter().map(|(_, table)| table), |table| {
            tables.iter().any(|(_, new)| Arc::ptr_eq(new, table))
        });
        drop_when_unused(self.dnsbl_lists.iter(), |list| lists.iter().any(|new| Arc::ptr_eq(new, list)));
        (self.loaded, self.tables, self.dnsbl_lists, self.queues) = (loaded, tables, lists, queues);
        (self.access_rules, self.quota_counter) = (access_rules, quota_counter);
        (self.senders, self.sts_policies) = (senders, sts_policies);
        (self.intake, self.retrieval) = (intake, retrieval);
    }

    fn set_backlog(&self, listener: &BoundListener, backlog: u32) {
        if let Err(error) = listener.socket().set_backlog(backlog) {
            let fields: &[(&'static str, &dyn Display)] =
                &[("address", &listener.socket().address()), ("error", &error)];
            self.log.event(LogLevel::Warning, "cannot change the backlog of a listener", fields);
        }
    }
}

fn refuse_what_needs_a_restart(differences: &[ConfigDifference]) -> Result<(), ExitError> {
    let keys: Vec<_> = differences.iter().filter(|it| it.needs_restart).map(|it| it.key).collect();
    match keys[..] {
        [] => Ok(()),
        _ => Err(ExitError { code: exit::NEGATIVE, text: format!("needs a restart: {}", keys.join(", ")) }),
    }
}

/// What has changed, for people.
fn summary(differences: &[ConfigDifference], old: &OpenTables, new: &OpenTables) -> String {
    let keys = differences.iter().map(|it| it.key.to_owned());
    let is_new = |table: &&Arc<dyn Table>| !old.find(table.name()).is_some_and(|before| Arc::ptr_eq(before, table));
    let opened = new.iter().map(|(_, table)| table).filter(is_new);
    let opened = opened.map(|table| format!("opened table {:?}", table.name()));
    keys.chain(opened).collect::<Vec<_>>().join(", ")
}

/// The first two lines of an error page in one line, for the log.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(2).collect::<Vec<_>>().join(" ").trim_start_matches("mailrace: ").into()
}

/// Drops removed tables after their last user, on a thread that may wait for theirs: the last user
/// may be a session, whose thread may not wait.
fn drop_when_unused<'a>(old: impl Iterator<Item = &'a Arc<dyn Table>>, stays: impl Fn(&Arc<dyn Table>) -> bool) {
    let mut gone: Vec<Arc<dyn Table>> = old.filter(|table| !stays(table)).cloned().collect();
    if gone.is_empty() {
        return;
    }
    let wait = move || {
        while !gone.is_empty() {
            thread::sleep(RELEASE_POLL_INTERVAL);
            gone.retain(|table| Arc::strong_count(table) > 1);
        }
    };
    // Without that thread, they end with their last user.
    drop(thread::Builder::new().name("table-close".into()).spawn(wait));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_restart_is_refused_with_its_keys() {
        let difference = |key, needs_restart| ConfigDifference { key, needs_restart };
        assert!(refuse_what_needs_a_restart(&[difference("[limits]", false)]).is_ok());
        let all = [difference("data_dir", true), difference("[limits]", false), difference("[spool] lanes", true)];
        let refused = refuse_what_needs_a_restart(&all).unwrap_err();
        assert_eq!((refused.code, &*refused.text), (exit::NEGATIVE, "needs a restart: data_dir, [spool] lanes"));
    }

    #[test]
    fn the_log_has_a_page_in_a_line() {
        let page = "error: `x` is not known\n  --> /etc/mailrace/mailrace.toml:3:1\n   |\n";
        assert_eq!(one_line(page), "error: `x` is not known --> /etc/mailrace/mailrace.toml:3:1");
        assert_eq!(one_line("mailrace: needs a restart: user"), "needs a restart: user");
    }
}
