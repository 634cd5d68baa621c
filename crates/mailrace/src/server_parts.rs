//! What a configuration is made into: built for the start and for a reload alike, before anything
//! uses it. Building is the part that can fail. It keeps what is in use and has not changed: tables
//! and DNS lists with their caches, the queues' numbers, the counters of failed logins.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use anyhow::Context;
use config::{Config, ListenerSettings};
use control::{AdaptiveValue, AddressExplainer, Bounds, ControlParts};
use dispatch::{ClassifierRules, DispatcherConfig, NoticeConfig};
use filter::ClientNames;
use filter::access::{AccessCheck, AccessRules};
use filter::limits::RateLimits;
use intake::drop_folder::{self, DropFolderConfig, DropSubmitter};
use intake::{IntakeContext, LoginPolicy};
use lookup::directory::RecipientDirectory;
use mail::{LogLevel, OperatorLog, QuotaCheck, ServerLog};
use mailbox::quota::UsageCounter;
use mta_sts::PolicyCache;
use sender_auth::reports::ReportCollector;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::drop_notices::DropNoticeComposer;
use crate::exit::{self, ExitError};
use crate::from_config::{self, DnsHostNames, DnsblLists};
use crate::intake_context::IntakeContextParts;
use crate::logins::{self, PreviousCredentialChecker, ServerSecret};
use crate::mailbox_locator::DirectoryMailboxLocator;
use crate::privileges::SessionLimits;
use crate::report_sender::RunningReports;
use crate::retrieval_parts::RetrievalParts;
use crate::sender_parts::SenderParts;
use crate::signing::SigningParts;
use crate::tables::{self, OpenTables};
use crate::{check, privileges};
use server_log::Log;

/// The parts of a server that depend on its configuration.
pub struct ServerParts {
    /// The tables.
    pub tables: OpenTables,
    /// The DNS lists.
    pub dnsbl_lists: DnsblLists,
    /// All queues since the start, by number.
    pub queues: queue::SchedulerConfig,
    /// The access rules.
    pub access_rules: Option<Arc<AccessRules>>,
    /// Counts mailboxes, if any has a quota.
    pub quota_counter: Option<UsageCounter>,
    /// The MTA-STS policies of other domains, if any transport asks for them.
    pub sts_policies: Option<Arc<PolicyCache>>,
    /// What verifies, signs and rewrites senders.
    pub senders: SenderParts,
    /// What happens to messages after their commit.
    pub dispatcher: DispatcherConfig,
    /// What sessions use.
    pub intake: IntakeContextParts,
    /// What sessions of retrieval use.
    pub retrieval: RetrievalParts,
    /// Explains where mail goes.
    pub explainer: AddressExplainer,
    /// What was chosen in place of the configuration.
    pub chosen: Vec<AdaptiveValue>,
}

/// The configuration in force and what it was made into.
pub struct PreviousParts<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Its tables.
    pub tables: &'a OpenTables,
    /// Its DNS lists.
    pub dnsbl_lists: &'a DnsblLists,
    /// All queues since the start.
    pub queues: &'a queue::SchedulerConfig,
    /// Its access rules.
    pub access_rules: Option<&'a AccessRules>,
    /// Its counter of mailboxes.
    pub quota_counter: Option<&'a UsageCounter>,
    /// Its MTA-STS policies of other domains.
    pub sts_policies: Option<&'a Arc<PolicyCache>>,
    /// What verifies, signs and rewrites senders for it.
    pub senders: &'a SenderParts,
    /// What its sessions use.
    pub intake: &'a IntakeContext,
    /// Its parts of retrieval.
    pub retrieval: &'a RetrievalParts,
}

/// What the process allows, whatever the configuration.
#[derive(Clone, Copy)]
pub struct ProcessLimits {
    /// Open files.
    pub files: u64,
    /// Threads that run sessions; as many deliver to other hosts.
    pub threads: usize,
}

impl ServerParts {
    /// Builds the parts for a configuration whose tables are open. With `before`, keeps what has
    /// not changed.
    ///
    /// # Errors
    ///
    /// A setting cannot be used on this system, or there were too many queues since the start.
    pub fn build(
        config: &Config,
        tables: OpenTables,
        secret: Option<ServerSecret>,
        limits: ProcessLimits,
        before: Option<&PreviousParts<'_>>,
        reports: Option<&ReportCollector>,
        log: &Arc<Log>,
    ) -> anyhow::Result<ServerParts> {
        let queues = queues(config, before)?;
        let dnsbl_lists = dnsbl_lists(config, before, log)?;
        let srs = from_config::srs_rewriter(config, before.and_then(|before| before.senders.srs.as_deref()))?;
        let rules = || from_config::classifier_rules(config, &tables, &queues, srs.as_ref());
        let directory = Arc::new(from_config::recipient_directory(config, &tables, srs.as_ref()));
        let quota_counter = from_config::quota_counter(config, before.and_then(|before| before.quota_counter));
        let quota_counter = quota_counter.context("starting")?;
        let sts_policies = from_config::sts_policies(config, before.and_then(|before| before.sts_policies), log);
        let router = from_config::routing_config(config, sts_policies.as_ref());
        let signing = SigningParts::build(config, &tables, before.map(|before| &before.senders.signing))?;
        let notice_signer = signing.notice_signer(config, Arc::new(from_config::throttled_log(log.clone())));
        let notices = from_config::notice_config(config, random(), notice_signer);
        let counter = quota_counter.as_ref();
        let dispatcher =
            dispatcher_config(config, &tables, directory.clone(), rules(), router.clone(), counter, notices);
        let quotas = from_config::quota_checker(&dispatcher.local_transports, &directory, log).map(Arc::new);
        let auth_before = before.and_then(|before| Some((before.config, before.senders.auth.as_deref()?)));
        let auth = from_config::sender_auth(config, auth_before, reports)?;
        let problems = || Arc::new(from_config::throttled_log(log.clone())) as Arc<dyn OperatorLog>;
        let names = Arc::new(DnsHostNames::open(config, auth.as_ref())?);
        let access_rules = from_config::compile_access_rules(config, &tables, &dnsbl_lists, &names);
        let rules_before = before.and_then(|before| before.access_rules);
        let access_rules = access_rules.map(|rules| Arc::new(rules.with_counters_from(rules_before)));
        let access_check = access_check(access_rules.as_ref(), &directory, problems());
        let names = names as Arc<dyn ClientNames>;
        let external_filters = from_config::external_filters(config, access_check.as_ref(), &names, &problems());
        let intake_before = before.map(|before| before.intake);
        let limits_before = intake_before.and_then(|before| before.rate_limits.as_deref());
        let greylist_before = intake_before.and_then(|before| before.greylist.as_ref());
        let rewriter = from_config::address_rewriter(config, &tables, &directory);
        let content_checks = from_config::content_checks(config, &tables, rewriter.as_ref(), &directory, &problems())?;
        let sessions = session_limits(config, limits)?;
        let intake = IntakeContextParts {
            directory: directory.clone(),
            postmaster: from_config::postmaster_address(config)?,
            access_rules: access_rules.clone(),
            sender_auth: auth.clone(),
            rate_limits: RateLimits::new(&config.rate_limits, limits_before).map(Arc::new),
            greylist: from_config::greylist_file(config, greylist_before, problems())?,
            external_filters,
            content_checks,
            rewriter,
            signing: signing.clone(),
            logins: logins(config, &tables, secret, before)?,
            quota: quotas.clone().map(|quotas| quotas as Arc<dyn QuotaCheck>),
            sessions_max: sessions.receiving,
        };
        let mailboxes = DirectoryMailboxLocator::new(
            from_config::origin_domain(config),
            directory.clone(),
            &dispatcher.local_transports,
        );
        let before_retrieval = before.map(|before| (before.config, before.retrieval));
        let retrieval =
            RetrievalParts::build(config, Arc::new(mailboxes), sessions.reading, before_retrieval, problems)?;
        let explainer = from_config::address_explainer(config, &tables, directory, rules(), router, quotas);
        Ok(ServerParts {
            tables,
            dnsbl_lists,
            queues,
            access_rules,
            quota_counter,
            sts_policies,
            senders: SenderParts { auth, signing, srs },
            dispatcher,
            intake,
            retrieval,
            explainer,
            chosen: chosen_values(config, limits, sessions),
        })
    }
}

/// The access rules for policy services, which may name their classes.
fn access_check(
    rules: Option<&Arc<AccessRules>>,
    directory: &Arc<RecipientDirectory>,
    log: Arc<dyn OperatorLog>,
) -> Option<Arc<AccessCheck>> {
    rules.map(|rules| Arc::new(AccessCheck { rules: rules.clone(), directory: directory.clone(), log }))
}

/// Concurrent sessions, as far as file descriptors allow.
pub fn session_limits(config: &Config, limits: ProcessLimits) -> anyhow::Result<SessionLimits> {
    let outbound = from_config::outbound_connections_max(config, limits.threads);
    Ok(privileges::limit_sessions_by_files(configured_sessions(config), outbound, limits.files)?)
}

/// The sessions that the configuration allows.
fn configured_sessions(config: &Config) -> SessionLimits {
    let has_readers = config.listeners.iter().any(ListenerSettings::is_for_readers);
    SessionLimits {
        receiving: config.limits.connections.sessions_max,
        reading: if has_readers { config.limits.reading_sessions_max } else { 0 },
    }
}

/// What the process decides at its start or reload, with the reason.
fn chosen_values(config: &Config, limits: ProcessLimits, sessions: SessionLimits) -> Vec<AdaptiveValue> {
    let configured = configured_sessions(config);
    let files = limits.files;
    let session_limit = |name, possible: usize, configured: usize| AdaptiveValue {
        name,
        subject: String::new(),
        value: possible.into(),
        bounds: Bounds::new(privileges::SESSIONS_MIN.min(configured as u64), configured, configured),
        why: match possible < configured {
            true => format!("the limit on open files (RLIMIT_NOFILE), {files}, allows no more"),
            false => format!("the limit on open files (RLIMIT_NOFILE), {files}, allows all that are configured"),
        },
    };
    let threads = (config.threads == 0).then(|| AdaptiveValue {
        name: "threads",
        subject: String::new(),
        value: limits.threads.into(),
        bounds: Bounds::new(1, Value::Null, 0),
        why: "half the number of processors at the start, since the configuration says 0".to_owned(),
    });
    let reading = session_limit("limits.reading_sessions", sessions.reading, configured.reading);
    let receiving = session_limit("limits.sessions", sessions.receiving, configured.receiving);
    [receiving].into_iter().chain((configured.reading > 0).then_some(reading)).chain(threads).collect()
}

/// Logs warnings about settings that are valid, but that the operator should know of.
pub fn log_config_warnings(config: &Config, sessions: SessionLimits, log: &Log) {
    let configured = configured_sessions(config);
    let limits = [
        ("limits.sessions", configured.receiving, sessions.receiving),
        ("limits.reading_sessions", configured.reading, sessions.reading),
    ];
    for (name, allowed, possible) in limits {
        if possible < allowed {
            let text = format!("{name} exceeds what the limit on open files (RLIMIT_NOFILE) allows");
            log.event(LogLevel::Warning, &text, &[("limit", &allowed), ("sessions", &possible)]);
        }
    }
    check::startup_warnings(config).iter().for_each(|caution| log.event(LogLevel::Warning, caution, &[]));
}

/// A random number that outsiders cannot guess.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Adds what was chosen in place of the configuration, the counters that the metrics show, the sender of
/// reports, and the certificates.
pub fn with_counters(
    parts: ControlParts,
    chosen: Vec<AdaptiveValue>,
    senders: &SenderParts,
    reports: Option<&RunningReports>,
    certificates: control::CertificateParts,
) -> ControlParts {
    ControlParts {
        chosen,
        sender_auth: senders.auth.as_ref().map(|check| check.state.counters.clone()),
        signatures: senders.signing.counters_if_signing(),
        srs: senders.srs.as_ref().map(|srs| srs.counters().clone()),
        reports: reports.map(RunningReports::control_parts),
        certificates,
        ..parts
    }
}

/// The settings of the drop folder. Lookups run on this runtime.
pub fn drop_folder_config(
    config: &Config,
    intake: &Arc<IntakeContext>,
    signing: &SigningParts,
    log: &Arc<Log>,
    runtime: Runtime,
) -> DropFolderConfig {
    let notices = DropNoticeComposer {
        hostname: config.hostname.clone(),
        double_bounces_to: config.bounce.double_bounces_to.clone(),
        nul: config.smtp.nul,
        signer: signing.notice_signer(config, intake.operator_log.clone()),
    };
    let submitter = DropSubmitter {
        intake: intake.clone(),
        runtime,
        spill_above: config.limits.spill_above,
        received_max: config.limits.session.received_max,
        nul: config.smtp.nul,
        notices: Box::new(notices),
    };
    DropFolderConfig {
        folder: drop_folder::drop_folder_path(&config.data_dir),
        rejected: drop_folder::rejected_folder_path(&config.data_dir),
        message_octets_max: config.limits.session.message_octets_max,
        submitter,
        log: log.clone(),
    }
}

fn queues(config: &Config, before: Option<&PreviousParts<'_>>) -> Result<queue::SchedulerConfig, ExitError> {
    let Some(before) = before else { return Ok(from_config::scheduler_config(config)) };
    from_config::updated_scheduler_config(config, before.queues).ok_or_else(|| ExitError {
        code: exit::NEGATIVE,
        text: "too many queues since the start: this needs a restart".into(),
    })
}

fn dnsbl_lists(config: &Config, before: Option<&PreviousParts<'_>>, log: &Arc<Log>) -> anyhow::Result<DnsblLists> {
    let events = tables::table_event_logger(log.clone());
    match before {
        Some(before) => before.dnsbl_lists.reopen_changed(config, &events),
        None => DnsblLists::open(config, &events),
    }
}

/// The credential checker: the one in use, if nothing about it has changed.
fn logins(
    config: &Config,
    tables: &OpenTables,
    secret: Option<ServerSecret>,
    before: Option<&PreviousParts<'_>>,
) -> anyhow::Result<Option<LoginPolicy>> {
    let before = before.and_then(|before| {
        let (auth, logins) = before.config.auth.as_ref().zip(before.intake.logins.as_ref())?;
        Some(PreviousCredentialChecker { auth, tables: before.tables, credentials: &logins.credentials })
    });
    logins::open_credential_checker(config, tables, secret, before)
}

fn dispatcher_config(
    config: &Config,
    tables: &OpenTables,
    directory: Arc<RecipientDirectory>,
    rules: ClassifierRules,
    router: route::Config,
    quota_counter: Option<&UsageCounter>,
    notices: NoticeConfig,
) -> DispatcherConfig {
    DispatcherConfig {
        transports: from_config::transports(config, tables, &directory),
        directory,
        tables: tables.iter().map(|(_, table)| table.clone()).collect(),
        rules: Arc::new(rules),
        router,
        local_transports: from_config::local_transports(config, tables, quota_counter),
        notices,
        hostname: config.hostname.clone(),
    }
}
