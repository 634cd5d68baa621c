//! Translates the configuration into the settings of each part: queues, rules, routes, transports.
//! The configuration has already checked every value and name. Of the system, only its own
//! addresses are read.

mod access;
mod content_checks;
mod external_filters;
mod generic;
mod greylist;
mod host_names;
mod reports;
mod sender_auth;
mod srs;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use control::api::ApiSettings;
use control::{AddressExplainer, ConfigDocument, ControlParts, ControlTables};
use delivery::bounce::{NoticeLimiter, NoticeLimits, NoticeSigner};
use delivery::pipe::PipeConfig;
use delivery::remote::{GenericRewriter, RemoteDeliveryConfig};
use filter::access::AccessRules;
use filter::content::ContentAction;
use intake::{DomainMatcher, IntakeContext, ThrottledLog};
use lookup::directory::{self, RecipientDirectory};
use mail::{Address, LogLevel, OperatorLog, SenderRewriter, ServerLog};
use mta_sts::{FetchConfig, PolicyCache};
use net::{CertificateSource, ChallengeStore, TlsClient, TlsServer, TrustedRoots};
use nix::ifaddrs::getifaddrs;
use protocol::sasl;
use protocol::smtp::MailProtocol;
use protocol::smtp::server as smtp;
use queue::{NextHopLimits, QueueNumber};

use crate::message_log;
use crate::relay_logins::relay_logins;
use crate::retrieval_parts::RetrievalParts;
use crate::tables::OpenTables;
use ::route::RouteKey;
use ::sender_auth::srs::SrsRewriter;
use config::{self, Config, DomainPattern, LoadedConfig, QueueSettings, SmtpTransportSettings, TransportKind};
use dispatch::{
    ClassifierRules, LocalTransport, MessageRoute, MessageRoutes, NoticeConfig, TransportConfig, TransportMethod,
    TransportTraits, Transports,
};
use mailbox::quota::{MailboxQuotaChecker, QuotaTransport, TransportQuota, UsageCounter};
use mailbox::{MailboxPathResolver, MailboxPathTable};
use server_log::Log;

pub use self::reports::{report_collector, report_context};
pub use self::sender_auth::sender_auth;
pub use self::srs::{reload_srs_secrets, rewritten_senders, srs_rewriter};
pub use access::{DnsblLists, compile_access_rules};
pub use content_checks::{address_rewriter, content_checks};
pub use external_filters::external_filters;
use generic::generic_rewriter;
pub use greylist::{greylist_check, greylist_file};
pub use host_names::DnsHostNames;

/// What sessions accept beyond RFC 5321.
pub fn session_tolerance(config: &Config) -> smtp::TolerancePolicy {
    smtp::TolerancePolicy {
        strict_addresses: config.smtp.strict_addresses,
        origin: Some(origin_domain(config)),
        nul: config.smtp.nul,
        enforces_sync: config.smtp.enforces_sync,
    }
}

/// The TLS acceptor for clients, if any listener uses TLS. Reads the certificates; a placeholder stands
/// for those that are to be obtained.
pub fn load_tls_acceptor(config: &Config, challenges: &Arc<ChallengeStore>) -> anyhow::Result<Option<Arc<TlsServer>>> {
    if !has_tls(config) {
        return Ok(None);
    }
    let source = |certificate: &config::CertificateSettings| -> anyhow::Result<CertificateSource> {
        let placeholder = certificate.obtained_for.as_ref().map(acme::placeholder).transpose()?;
        Ok(CertificateSource { files: certificate.files.clone(), placeholder })
    };
    let sources = config.certificates.iter().map(source).collect::<anyhow::Result<Vec<_>>>()?;
    let tls_server = TlsServer::new(sources, config.tls.version_min, config.tls.handshake_timeout)?;
    Ok(Some(Arc::new(tls_server.with_challenges(challenges.clone())?)))
}

/// Whether any listener uses TLS.
pub fn has_tls(config: &Config) -> bool {
    config.listeners.iter().any(|listener| listener.tls != protocol::TlsMode::Never)
}

/// The login settings of a listener's sessions. `secret` is the server's own.
pub fn session_auth(
    config: &Config,
    listener: &config::ListenerSettings,
    secret: [u8; 32],
) -> Option<smtp::AuthConfig> {
    let auth = config.auth.as_ref().filter(|_| listener.auth)?;
    Some(smtp::AuthConfig {
        mechanisms: auth.mechanisms.as_slice().into(),
        clear_text: auth.clear_text,
        required: listener.require_auth,
        sasl: sasl::SaslConfig { secret },
    })
}

/// The address of `<postmaster>`: at the server's hostname if that is one of our domains, else at
/// the first domain.
pub fn postmaster_address(config: &Config) -> anyhow::Result<Address> {
    let domain = own_domain(config);
    Address::new("postmaster", domain).with_context(|| format!("the postmaster of {domain}"))
}

/// The domain for addresses without one.
pub fn origin_domain(config: &Config) -> Box<str> {
    config.origin.clone().unwrap_or_else(|| own_domain(config).into())
}

/// The domain with the hostname, else the first domain.
fn own_domain(config: &Config) -> &str {
    let own = config.domains.iter().find(|domain| domain.name == config.hostname).or(config.domains.first());
    own.map_or(&*config.hostname, |domain| &*domain.name)
}

/// The domains that routes name. A route with a next hop of its own covers every domain that it
/// matches.
pub fn routed_domains(config: &Config) -> DomainMatcher {
    let routes = config.routes.clone();
    Arc::new(move |domain: &str| {
        let route = routes.iter().find(|route| route.pattern.matches(domain));
        route.is_some_and(|route| {
            matches!(route.pattern, DomainPattern::Exact(_) | DomainPattern::Literal(_)) || route.next_hop.is_some()
        })
    })
}

/// The queues.
pub fn scheduler_config(config: &Config) -> queue::SchedulerConfig {
    let usual = config
        .transports
        .iter()
        .filter_map(config::TransportSettings::smtp)
        .filter_map(|smtp| smtp.limits.recipients_per_attempt_max);
    let exceptional = config.next_hops.iter().filter_map(|peer| peer.recipients_per_message);
    // A next hop's limit counts only as far as its queue allows.
    let default = queue::QueueConfig::default().recipients_per_attempt_max;
    let recipients = usual.chain(exceptional).fold(default, usize::max);
    queue::SchedulerConfig {
        queues: config.queues.iter().map(|queue| queue_config(queue, recipients)).collect(),
        policy: config.scheduler.clone(),
    }
}

/// The queues of a configuration that follows another one. Queues keep their numbers: removed
/// queues keep their places, and new ones come last. None if there are more queues than numbers.
pub fn updated_scheduler_config(config: &Config, before: &queue::SchedulerConfig) -> Option<queue::SchedulerConfig> {
    let after = scheduler_config(config);
    let mut rest = after.queues;
    let successor = |old: &queue::QueueConfig| match rest.iter().position(|queue| queue.name == old.name) {
        Some(place) => rest.remove(place),
        None => queue::QueueConfig { adopts: None, retired: true, ..old.clone() },
    };
    let kept: Vec<_> = before.queues.iter().map(successor).collect();
    let all: Vec<_> = kept.into_iter().chain(rest).collect();
    (all.len() <= usize::from(u16::MAX)).then_some(queue::SchedulerConfig { queues: all, ..after })
}

fn queue_config(queue: &QueueSettings, recipients_per_attempt_max: usize) -> queue::QueueConfig {
    queue::QueueConfig {
        name: queue.name.clone(),
        concurrency: queue.concurrency,
        retry: queue.retry.clone(),
        recipients_per_attempt_max,
        adopts: queue.adopt.clone(),
        retired: false,
    }
}

/// The most connections to other hosts, milters and policy services, with this many delivery threads.
pub fn outbound_connections_max(config: &Config, smtp_threads: usize) -> usize {
    let slots: usize =
        config.queues.iter().filter(|queue| &*queue.name != QueueSettings::LOCAL).map(|q| q.concurrency).sum();
    let waiting = config
        .transports
        .iter()
        .filter_map(config::TransportSettings::smtp)
        .map(|smtp| smtp.connections.idle_connections_max)
        .max()
        .unwrap_or(0);
    let milters: usize = config.milters.iter().map(|milter| milter.connections_max).sum();
    let services: usize = config.policy_services.iter().map(|service| service.connections_max).sum();
    slots + smtp_threads * waiting + milters + services
}

/// The rules that choose queues, which have their numbers in `queues`, and what rewrites senders.
pub fn classifier_rules(
    config: &Config,
    tables: &OpenTables,
    queues: &queue::SchedulerConfig,
    srs: Option<&Arc<SrsRewriter>>,
) -> ClassifierRules {
    let number_of = |name: &str| (0..).map(QueueNumber).zip(&queues.queues).find(|(_, queue)| &*queue.name == name);
    let number_of = |name: &str| number_of(name).map(|(number, _)| number);
    let numbered = || config.queues.iter().filter_map(|queue| Some((number_of(&queue.name)?, queue)));
    let is_maildir =
        |domain: &&config::DomainSettings| config.transport(&domain.transport).is_some_and(|t| t.is_maildir());
    let local = config.domains.iter().filter(is_maildir).map(|domain| domain.name.clone()).collect();
    let each = |(number, queue): (QueueNumber, &QueueSettings)| (number, queue.rules.clone());
    let rules = || numbered().map(each);
    let by_content = config.content.iter().filter_map(|rule| match &rule.action {
        ContentAction::Queue(name) => Some(&**name),
        _ => None,
    });
    let named = by_content.chain(config.sender_auth.actions.queues());
    ClassifierRules {
        chosen: named.filter_map(|name| Some((name.into(), number_of(name)?))).collect(),
        headers: rules().flat_map(|(n, rules)| rules.headers.into_iter().map(move |rule| (rule, n))).collect(),
        senders: rules().flat_map(|(n, rules)| rules.senders.into_iter().map(move |rule| (rule, n))).collect(),
        sender_tables: rules().filter_map(|(n, rules)| Some((tables.find(&rules.sender_table?)?.clone(), n))).collect(),
        clients: rules().flat_map(|(n, rules)| rules.clients.into_iter().map(move |rule| (rule, n))).collect(),
        domains: rules().flat_map(|(n, rules)| rules.domains.into_iter().map(move |rule| (rule, n))).collect(),
        local: (local, number_of(QueueSettings::LOCAL).expect("every configuration has this queue")),
        default_queue: number_of(QueueSettings::STANDARD).expect("every configuration has this queue"),
        configured_domains: config.domains.iter().map(|domain| domain.name.clone()).collect(),
        has_domain_tables: !config.domain_tables.is_empty(),
        shared_domains: config.domains.iter().filter(|domain| domain.hosts.is_some()).map(pattern).collect(),
        verp_senders: config.bounce.verp.iter().map(|sender| sender.as_str().to_lowercase().into()).collect(),
        sender_rewriter: srs.map(|srs| srs.clone() as Arc<dyn SenderRewriter>),
        routes: message_routes(config, tables),
        content_filter: config.content_filter.as_deref().map(|transport| RouteKey::new(transport, None)),
        has_chosen_filters: may_choose_filters(config),
    }
}

/// Whether a check can choose a content filter for a message: a policy service, a table of access rules
/// (`FILTER`), or a content rule.
fn may_choose_filters(config: &Config) -> bool {
    !config.policy_services.is_empty()
        || config.access.iter().any(|rule| rule.chooses_filters)
        || config.content.iter().any(|rule| matches!(rule.action, ContentAction::Filter(_)))
}

/// The routes by more than the domain, with the tables and the transports that they need.
fn message_routes(config: &Config, tables: &OpenTables) -> MessageRoutes {
    let named = config.message_routes.iter().filter_map(|route| match route {
        MessageRoute::RecipientTable(table) | MessageRoute::SenderTable(table) => Some(table),
        MessageRoute::Address { .. } | MessageRoute::Sender { .. } => None,
    });
    let traits = |transport: &config::TransportSettings| TransportTraits {
        by_mx: transport.smtp().is_some_and(|smtp| smtp.client.flavor == MailProtocol::Smtp),
        is_maildir: transport.is_maildir(),
    };
    MessageRoutes {
        routes: config.message_routes.clone(),
        tables: named.filter_map(|name| Some((name.clone(), tables.find(name)?.clone()))).collect(),
        transports: config.transports.iter().map(|transport| (transport.name.clone(), traits(transport))).collect(),
    }
}

/// The routing, with the MTA-STS policies of other domains.
pub fn routing_config(config: &Config, sts_policies: Option<&Arc<PolicyCache>>) -> route::Config {
    let domain_route = |domain: &config::DomainSettings| route::DomainRoute {
        transport: domain.transport.clone(),
        next_hop: config.transport(&domain.transport).and_then(config::TransportSettings::next_hop).cloned(),
    };
    let tabled = |table: &config::DomainTableSettings| route::DomainTableRoute {
        table: table.names.clone(),
        route: domain_route(&table.settings),
    };
    let transports = || config.transports.iter();
    let with_hosts = transports().filter(|transport| !transport.is_hostless());
    let endpoint_options = |transport: &config::TransportSettings| {
        let options = transport.smtp().map(|smtp| smtp.endpoints).unwrap_or_default();
        (transport.name.clone(), options)
    };
    let tls_options =
        |transport: &config::TransportSettings| Some((transport.name.clone(), transport.smtp()?.tls.clone()));
    let next_hop =
        |transport: &config::TransportSettings| Some((transport.name.clone(), transport.next_hop()?.clone()));
    route::Config {
        own_addresses: own_addresses(config),
        own_ports: config.listeners.iter().map(|listener| listener.address.port()).collect(),
        resolver: config.dns.clone(),
        missing_addresses: config.missing_addresses,
        domains: config.domains.iter().map(|domain| (domain.name.clone(), domain_route(domain))).collect(),
        domain_tables: config.domain_tables.iter().map(tabled).collect(),
        rules: config.routes.clone(),
        hostless_transports: transports().filter(|it| it.is_hostless()).map(|it| it.name.clone()).collect(),
        transport_next_hops: transports().filter_map(next_hop).collect(),
        endpoint_options: with_hosts.map(endpoint_options).collect(),
        tls_options: transports().filter_map(tls_options).collect(),
        sts_policies: sts_policies.cloned(),
        ..route::Config::new(&config.hostname)
    }
}

/// A domain in the form used to compare names. A name that DNS does not allow is compared
/// literally.
fn pattern(domain: &config::DomainSettings) -> DomainPattern {
    domain.name.parse().unwrap_or_else(|_| DomainPattern::Exact(domain.name.clone()))
}

/// The addresses of this host, except loopback, to detect mail loops. A listener on all addresses
/// of a family has all addresses of the machine; if they cannot be read, loops are still detected
/// by name.
fn own_addresses(config: &Config) -> Vec<IpAddr> {
    let listened: Vec<IpAddr> = config.listeners.iter().map(|listener| listener.address.ip()).collect();
    let is_own_family =
        |address: &IpAddr| listened.iter().any(|own| own.is_unspecified() && own.is_ipv4() == address.is_ipv4());
    let interfaces = getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    let all = interfaces.filter(is_own_family).chain(listened.iter().copied());
    all.filter(|address| !address.is_unspecified() && !address.is_loopback()).collect()
}

/// The transports. The directory belongs to the same configuration.
pub fn transports(config: &Config, tables: &OpenTables, directory: &Arc<RecipientDirectory>) -> Transports {
    let slower_than = config.queues.iter().find_map(|queue| queue.adopt.as_ref()).map(|adopt| adopt.slower_than);
    let system_roots = TrustedRoots::of_system();
    let transport_config = |transport: &config::TransportSettings| {
        let transport_config = match &transport.kind {
            TransportKind::Maildir(maildir) => {
                let concurrency = maildir.concurrency.clone();
                let limits = NextHopLimits { concurrency, ..NextHopLimits::default() };
                TransportConfig { method: TransportMethod::Maildir, limits }
            }
            TransportKind::Pipe(pipe) => pipe_transport_config(&transport.name, pipe),
            TransportKind::Discard => {
                TransportConfig { method: TransportMethod::Discard, limits: NextHopLimits::default() }
            }
            // The router answers with its reply.
            TransportKind::Error { .. } => return None,
            TransportKind::Smtp(smtp) => {
                let slow_after = slower_than.unwrap_or(Duration::MAX);
                let generic = generic_rewriter(config, smtp, tables, directory);
                let mut transport = smtp_transport_config(smtp, tables, slow_after, &system_roots, generic);
                // All nodes of a cluster deliver to the same next hops.
                transport.limits.is_rate_shared = config.cluster.is_some();
                transport.limits.shared_concurrency =
                    transport.limits.shared_concurrency.filter(|_| config.cluster.is_some());
                transport
            }
        };
        Some((transport.name.clone(), transport_config))
    };
    Transports {
        by_name: config.transports.iter().filter_map(transport_config).collect(),
        overrides: config.next_hops.clone(),
    }
}

fn smtp_transport_config(
    smtp: &SmtpTransportSettings,
    tables: &OpenTables,
    slow_after: Duration,
    system_roots: &TrustedRoots,
    generic: Option<Arc<dyn GenericRewriter>>,
) -> TransportConfig {
    let remote = RemoteDeliveryConfig {
        client: Arc::new(smtp.client.clone()),
        tls_client: Some(TlsClient::unverified()),
        trusted_roots: smtp.tls_ca_file.as_deref().map_or_else(|| system_roots.clone(), TrustedRoots::in_file),
        connections: smtp.connections.clone(),
        logins: smtp.auth.as_ref().map(|auth| relay_logins(auth, tables)),
        generic,
        slow_after,
    };
    TransportConfig { method: TransportMethod::Remote(Arc::new(remote)), limits: smtp.limits.clone() }
}

fn pipe_transport_config(name: &str, pipe: &config::PipeTransportSettings) -> TransportConfig {
    let pipe_config = PipeConfig {
        transport: name.into(),
        fields: pipe.fields,
        line_ends: pipe.line_ends,
        time_max: pipe.time_max,
        output_octets_max: pipe.output_octets_max,
    };
    TransportConfig { method: TransportMethod::Program(Arc::new(pipe_config)), limits: pipe.limits.clone() }
}

/// The MTA-STS policies, if any transport asks for them: those in use, or those in their folder.
pub fn sts_policies(config: &Config, before: Option<&Arc<PolicyCache>>, log: &Arc<Log>) -> Option<Arc<PolicyCache>> {
    let is_wanted = config.transports.iter().filter_map(config::TransportSettings::smtp).any(|smtp| smtp.tls.mta_sts);
    let new = || {
        let problems = Arc::new(throttled_log(log.clone()));
        Arc::new(PolicyCache::new(&config.data_dir.join("mta-sts"), FetchConfig::default(), problems))
    };
    is_wanted.then(|| before.cloned().unwrap_or_else(new))
}

/// Counts mailboxes, if any has a quota: the one in use, or a new one.
pub fn quota_counter(config: &Config, before: Option<&UsageCounter>) -> io::Result<Option<UsageCounter>> {
    let has_quota =
        config.transports.iter().filter_map(config::TransportSettings::maildir).any(|maildir| maildir.quota.is_some());
    match before {
        _ if !has_quota => Ok(None),
        Some(same) => Ok(Some(same.clone())),
        None => UsageCounter::start().map(Some),
    }
}

/// The local transports. With a quota there is a counter.
pub fn local_transports(config: &Config, tables: &OpenTables, counter: Option<&UsageCounter>) -> Vec<LocalTransport> {
    let maildirs = config.transports.iter().filter_map(|transport| Some((&transport.name, transport.maildir()?)));
    maildirs.map(|(name, maildir)| local_transport(config, (name, maildir), tables, counter)).collect()
}

/// A log of problems with clients, as warnings, at most one a second.
pub fn throttled_log(log: Arc<Log>) -> ThrottledLog {
    ThrottledLog::new(move |what, left_out| log.event(LogLevel::Warning, what, &[("left_out", &left_out)]))
}

/// Checks the quotas of mailboxes at RCPT; None if no transport has a quota.
pub fn quota_checker(
    transports: &[LocalTransport],
    directory: &Arc<RecipientDirectory>,
    log: &Arc<Log>,
) -> Option<MailboxQuotaChecker> {
    let with_quota = |transport: &LocalTransport| {
        let (name, mailbox_paths) = (transport.name.clone(), transport.mailbox_paths.clone());
        Some(QuotaTransport { name, mailbox_paths, quota: transport.quota.clone()? })
    };
    let log = throttled_log(log.clone());
    let log = Box::new(move |text: fmt::Arguments<'_>| log.log_line(text));
    MailboxQuotaChecker::new(transports.iter().filter_map(with_quota), directory, log)
}

fn local_transport(
    config: &Config,
    (name, maildir): (&str, &config::MaildirTransportSettings),
    tables: &OpenTables,
    counter: Option<&UsageCounter>,
) -> LocalTransport {
    LocalTransport {
        name: name.into(),
        mailbox_paths: mailbox_paths(maildir, tables, has_wildcard_mailboxes(config, name)),
        line_ends: maildir.line_ends,
        quota: maildir
            .quota
            .as_ref()
            .zip(counter)
            .map(|(quota, counter)| transport_quota(quota, tables, counter).into()),
    }
}

/// Whether a domain of this transport has a wildcard mailbox, whose path may be in the table of paths.
fn has_wildcard_mailboxes(config: &Config, transport: &str) -> bool {
    let mut domains = config.domains.iter().chain(config.domain_tables.iter().map(|table| &table.settings));
    domains.any(|domain| domain.wildcard_mailbox && *domain.transport == *transport)
}

fn mailbox_paths(
    maildir: &config::MaildirTransportSettings,
    tables: &OpenTables,
    has_wildcards: bool,
) -> MailboxPathResolver {
    let path = maildir.path.clone();
    let table = |places: &config::MailboxPathTableSettings| {
        Some(MailboxPathTable { table: tables.find(&places.table)?.clone(), root: places.root.clone(), has_wildcards })
    };
    MailboxPathResolver {
        pattern: Arc::new(move |address: &Address| path.expand(address.domain(), &address.unquoted_local_part())),
        table: maildir.places.as_ref().and_then(table),
    }
}

fn transport_quota(quota: &config::QuotaSettings, tables: &OpenTables, counter: &UsageCounter) -> TransportQuota {
    TransportQuota {
        default_limits: quota.limits,
        table: quota.table.as_ref().and_then(|name| tables.find(name)).cloned(),
        when_full: quota.full,
        counter: counter.clone(),
    }
}

/// The folders whose disks need free space: the lanes, and `data_dir`.
pub fn monitored_folders(config: &Config) -> Vec<PathBuf> {
    config.spool.lanes.iter().chain([&config.data_dir]).cloned().collect()
}

/// The settings for notices. `seed` keeps outsiders from finding senders that share a bucket.
pub fn notice_config(config: &Config, seed: u64, signer: Option<Arc<dyn NoticeSigner>>) -> NoticeConfig {
    let limits = |per_sender| NoticeLimits { per_sender, ..NoticeLimits::default() };
    NoticeConfig {
        delay_after: config.bounce.delay_notice_after,
        double_bounces_to: config.bounce.double_bounces_to.clone(),
        limit: config.bounce.per_sender.map(|rate| NoticeLimiter::new(limits(rate), seed)),
        signer,
    }
}

/// The directory: our domains, aliases and mailboxes.
pub fn recipient_directory(config: &Config, tables: &OpenTables, srs: Option<&Arc<SrsRewriter>>) -> RecipientDirectory {
    let table = |name: &Option<Box<str>>| name.as_ref().and_then(|name| tables.find(name)).cloned();
    let domain = |domain: &config::DomainSettings| directory::LocalDomain {
        name: domain.name.clone(),
        mailboxes: table(&domain.mailboxes),
        wildcard_mailbox: domain.wildcard_mailbox,
        aliases: table(&domain.aliases),
        hosts: table(&domain.hosts),
        catch_all: domain.catch_all.clone(),
        delimiter: domain.delimiter,
        transport: domain.transport.clone(),
        is_final: config.transport(&domain.transport).is_some_and(|transport| transport.is_maildir()),
    };
    let tabled = |group: &config::DomainTableSettings| {
        let names = tables.find(&group.names)?.clone();
        Some(directory::LocalDomainTable { names, settings: domain(&group.settings) })
    };
    let domains = config.domains.iter().map(domain).collect();
    RecipientDirectory::new(domains, directory::AliasLimits::default())
        .with_domain_tables(config.domain_tables.iter().filter_map(tabled).collect())
        .with_hostname(&config.hostname)
        .with_sender_rewriter(srs.map(|srs| srs.clone() as Arc<dyn SenderRewriter>))
}

/// Explains where mail for an address goes; `rules` and `quotas` belong to the same configuration.
pub fn address_explainer(
    config: &Config,
    tables: &OpenTables,
    directory: Arc<RecipientDirectory>,
    rules: ClassifierRules,
    router_config: route::Config,
    quotas: Option<Arc<MailboxQuotaChecker>>,
) -> AddressExplainer {
    AddressExplainer {
        transports: transports(config, tables, &directory),
        directory,
        rules,
        rewritten_senders: rewritten_senders(config),
        tables: tables.iter().map(|(_, table)| table.clone()).collect(),
        router_config,
        quotas,
    }
}

/// What the control socket needs.
pub fn control_parts(
    loaded: &LoadedConfig,
    explainer: AddressExplainer,
    intake: Arc<IntakeContext>,
    retrieval: &RetrievalParts,
    access_rules: Option<Arc<AccessRules>>,
    tables: &OpenTables,
    lists: &DnsblLists,
) -> ControlParts {
    let tables = ControlTables {
        tables: tables.iter().map(|(kind, table)| (kind, table.clone())).collect(),
        dnsbl_lists: lists.iter().cloned().collect(),
    };
    let config = &loaded.config;
    ControlParts {
        explainer,
        intake,
        retrieval: retrieval.monitor(),
        access_rules,
        sender_auth: None,
        tables,
        relaxed_durability: config.spool.durability != spool::Durability::Commit,
        config: ConfigDocument { source: loaded.source.to_string(), text: config::without_secrets(&loaded.text) },
        message_log: message_log::of(&config.log),
        metrics_next_hops_max: config.api.metrics_next_hops_max,
        chosen: Vec::new(),
        signatures: None,
        srs: None,
        reports: None,
        certificates: control::CertificateParts::default(),
    }
}

/// The settings of the API, whose times are those of all HTTP.
pub fn api_settings(config: &Config) -> ApiSettings {
    let own_names = [config.hostname.to_ascii_lowercase().into()];
    ApiSettings {
        hosts: config.api.hosts.iter().map(|host| host.to_ascii_lowercase().into()).chain(own_names).collect(),
        connections_max: config.api.connections_max,
        page_entries_max: config.api.page_entries_max,
        limits: config.http.limits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_their_numbers() {
        let of = |names: &[&str]| {
            let text: String = names.iter().map(|name| format!("[[queue]]\nname = {name:?}\n")).collect();
            Config::parse(&text, "text", "host.example").unwrap()
        };
        let shown = |queues: &queue::SchedulerConfig| -> Vec<String> {
            let shown = |queue: &queue::QueueConfig| format!("{}{}", queue.name, if queue.retired { "-" } else { "" });
            queues.queues.iter().skip(3).map(shown).collect()
        };
        let first = scheduler_config(&of(&["a", "b"]));
        assert_eq!(shown(&first), ["a", "b"]);
        let second = updated_scheduler_config(&of(&["c", "b"]), &first).unwrap();
        assert_eq!(shown(&second), ["a-", "b", "c"]);
        let third = updated_scheduler_config(&of(&["a"]), &second).unwrap();
        assert_eq!(shown(&third), ["a", "b-", "c-"]);
        let rules = classifier_rules(&of(&["a"]), &OpenTables::default(), &third, None);
        assert_eq!((rules.default_queue, rules.local.1), (QueueNumber(1), QueueNumber(0)));
    }

    #[test]
    fn attempt_size_follows_the_largest_next_hop_limit() {
        let of = |text: &str| {
            let config = Config::parse(text, "text", "host.example").unwrap();
            scheduler_config(&config).queues.iter().map(|queue| queue.recipients_per_attempt_max).max()
        };
        let next_hop = "[[next_hop]]\nhost = \"big.example\"\nrecipients_per_message = ";
        assert_eq!(of(""), Some(100));
        assert_eq!(of(&format!("{next_hop}50\n")), Some(100));
        assert_eq!(of(&format!("{next_hop}500\n")), Some(500));
        assert_eq!(of("[transport.smtp]\nrecipients_per_message = 300\n"), Some(300));
    }
}
