//! Translates the configuration into the settings of each part: queues, rules, routes, transports.
//! The configuration has already checked every value and name. Of the system, only its own
//! addresses are read.

mod access;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use delivery::bounce::{Cap, CapLimits};
use delivery::local::WhenFull;
use delivery::remote;
use intake::{Domains, Networks};
use lookup::directory::{self, Directory};
use mail::Address;
use net::{Acceptor, AcceptorError, Trust};
use nix::ifaddrs::getifaddrs;
use protocol::sasl;
use protocol::smtp::Flavor;
use protocol::smtp::client::{self, Word};
use protocol::smtp::server as smtp;
use queue::{Adapt, QueueNumber};

use crate::config::{
    self, Config, Families, LineEnds, ListenerTls, Network, Pattern, Queue, QuotaFull, SmtpTransport, Tls,
    TransportKind,
};
use crate::flow::{Exception, Fleet, Notices, PlaceTable, Places, Rules, Ship, Transport};
use crate::quota::{Allowance, Counter};
use crate::tables::Tables;

pub use access::{Lists, access};

/// Recipients per attempt if no next hop has another limit.
const RECIPIENTS_PER_ATTEMPT: usize = 100;

/// The limits of a client's session.
pub fn session_limits(config: &Config) -> smtp::Limits {
    let limits = &config.limits;
    smtp::Limits {
        command_line_octets_max: limits.command_line_octets_max,
        commands_max: limits.commands_max,
        errors_max: limits.errors_max,
        failed_logins_max: limits.failed_logins_max,
        recipients_max: limits.recipients_max,
        message_octets_max: limits.message_octets_max,
        header_octets_max: limits.header_octets_max,
        received_max: limits.received_max,
        session_time_max: limits.session_time_max,
        idle_time_max: limits.idle_time_max,
        data_rate_min: limits.data_rate_min,
        data_rate_window: limits.data_rate_window,
    }
}

/// What sessions accept beyond RFC 5321.
pub fn session_tolerance(config: &Config) -> smtp::Tolerance {
    smtp::Tolerance {
        strict_addresses: config.smtp.strict_addresses,
        origin: Some(origin(config)),
        nul: config.smtp.nul,
        enforces_sync: config.smtp.enforces_sync,
    }
}

/// The TLS acceptor for clients, if any listener uses TLS. Reads the certificates.
pub fn acceptor(config: &Config) -> Result<Option<Acceptor>, AcceptorError> {
    if !has_tls(config) {
        return Ok(None);
    }
    let files = config.certificates.iter().map(config::Certificate::files).collect();
    Acceptor::new(files, config.tls.version_min, config.tls.handshake_time_max).map(Some)
}

/// Whether any listener uses TLS.
pub fn has_tls(config: &Config) -> bool {
    config.listeners.iter().any(|listener| listener.tls != ListenerTls::None)
}

/// How the sessions of a listener use TLS.
pub fn session_tls(listener: &config::Listener) -> smtp::Tls {
    match listener.tls {
        ListenerTls::None => smtp::Tls::Never,
        ListenerTls::Starttls => smtp::Tls::Offered,
        ListenerTls::Required => smtp::Tls::Required,
        ListenerTls::Implicit => smtp::Tls::Implicit,
    }
}

/// Tells whether an address is in one of these networks.
pub fn networks(networks: &[Network]) -> Networks {
    let networks = networks.to_vec();
    Arc::new(move |address: IpAddr| networks.iter().any(|network| network.contains(address)))
}

/// The login settings of a listener's sessions. `secret` is the server's own.
pub fn session_auth(config: &Config, listener: &config::Listener, secret: [u8; 32]) -> Option<smtp::Auth> {
    let auth = config.auth.as_ref().filter(|_| listener.auth)?;
    Some(smtp::Auth {
        mechanisms: auth.mechanisms.as_slice().into(),
        clear_text: auth.clear_text,
        required: listener.require_auth,
        exchanges: sasl::Config { secret },
    })
}

/// The address of `<postmaster>`: at the server's hostname if that is one of our domains, else at
/// the first domain.
pub fn postmaster(config: &Config) -> anyhow::Result<Address> {
    let domain = own_domain(config);
    Address::new("postmaster", domain).with_context(|| format!("the postmaster of {domain}"))
}

/// The domain for addresses without one.
pub fn origin(config: &Config) -> Box<str> {
    config.origin.clone().unwrap_or_else(|| own_domain(config).into())
}

/// The domain with the hostname, else the first domain.
fn own_domain(config: &Config) -> &str {
    let own = config.domains.iter().find(|domain| domain.name == config.hostname).or(config.domains.first());
    own.map_or(&*config.hostname, |domain| &*domain.name)
}

/// The domains that routes name. A route with a next hop of its own covers every domain that it
/// matches.
pub fn routed(config: &Config) -> Domains {
    let routes = config.routes.clone();
    Arc::new(move |domain: &str| {
        let route = routes.iter().find(|route| route.pattern.fits(domain));
        route.is_some_and(|route| {
            matches!(route.pattern, Pattern::Exact(_) | Pattern::Literal(_)) || route.next_hop.is_some()
        })
    })
}

/// The load limits.
pub fn load_limits(config: &Config) -> load::Limits {
    let load = &config.load;
    load::Limits {
        queue_only_above: load.queue_only_above,
        no_delivery_above: load.no_delivery_above,
        refuse_above: load.refuse_above,
        cpu_pressure_max: load.cpu_pressure_max,
        memory_pressure_max: load.memory_pressure_max,
        io_pressure_max: load.io_pressure_max,
        memory_min: load.memory_min,
        space_min: config.spool.space_min,
        inodes_min: config.spool.inodes_min,
        margin: load.margin,
    }
}

/// The queues.
pub fn queues(config: &Config) -> queue::Config {
    let usual = config.transports.iter().filter_map(smtp_of).map(|smtp| smtp.recipients_per_message_max);
    let exceptional = config.next_hops.iter().filter_map(|peer| peer.recipients_per_message_max);
    // A next hop's limit counts only as far as its queue allows.
    let recipients = usual.chain(exceptional).fold(RECIPIENTS_PER_ATTEMPT, usize::max);
    queue::Config {
        queues: config.queues.iter().map(|queue| one_queue(queue, recipients)).collect(),
        unrecorded_max: config.scheduler.unrecorded_max,
        mailing_above: config.scheduler.mailing_above,
        letters_share: config.scheduler.letters_share,
    }
}

/// The queues of a configuration that follows another one. Queues keep their numbers: removed
/// queues keep their places, and new ones come last. None if there are more queues than numbers.
pub fn queues_after(config: &Config, before: &queue::Config) -> Option<queue::Config> {
    let after = queues(config);
    let mut rest = after.queues;
    let successor = |old: &queue::QueueConfig| match rest.iter().position(|queue| queue.name == old.name) {
        Some(place) => rest.remove(place),
        None => queue::QueueConfig { adopts: None, retired: true, ..old.clone() },
    };
    let kept: Vec<_> = before.queues.iter().map(successor).collect();
    let all: Vec<_> = kept.into_iter().chain(rest).collect();
    (all.len() <= usize::from(u16::MAX)).then_some(queue::Config { queues: all, ..after })
}

fn one_queue(queue: &Queue, recipients_per_attempt_max: usize) -> queue::QueueConfig {
    let retry = &queue.retry;
    queue::QueueConfig {
        name: queue.name.clone(),
        concurrency: queue.concurrency,
        retry: queue::Retry {
            first: retry.first,
            factor: retry.factor,
            longest: retry.longest,
            jitter: retry.jitter,
            lifetime: retry.lifetime,
        },
        recipients_per_attempt_max,
        adopts: queue.adopt.as_ref().map(|adopt| queue::Adopt {
            failures: adopt.failures,
            slower_than: adopt.slower_than,
            release_after: adopt.release_after,
            per_next_hop: adopt.per_next_hop,
        }),
        retired: false,
    }
}

/// The most connections to other hosts, with this many delivery threads.
pub fn connections(config: &Config, carriers: usize) -> usize {
    let slots: usize = config.queues.iter().filter(|queue| &*queue.name != Queue::LOCAL).map(|q| q.concurrency).sum();
    let waiting = config.transports.iter().filter_map(smtp_of).map(|smtp| smtp.idle_connections_max).max().unwrap_or(0);
    slots + carriers * waiting
}

/// The rules that choose queues; `queues` have their numbers.
pub fn rules(config: &Config, tables: &Tables, queues: &queue::Config) -> Rules {
    let number_of = |name: &str| (0..).map(QueueNumber).zip(&queues.queues).find(|(_, queue)| &*queue.name == name);
    let number_of = |name: &str| number_of(name).map(|(number, _)| number);
    let numbered = || config.queues.iter().filter_map(|queue| Some((number_of(&queue.name)?, queue)));
    let is_maildir = |domain: &&config::Domain| config.transport(&domain.transport).is_some_and(|t| t.is_maildir());
    let local = config.domains.iter().filter(is_maildir).map(|domain| domain.name.clone()).collect();
    let each = |(number, queue): (QueueNumber, &Queue)| (number, queue.rules.clone());
    let rules = || numbered().map(each);
    Rules {
        headers: rules().flat_map(|(n, rules)| rules.headers.into_iter().map(move |rule| (rule, n))).collect(),
        senders: rules().flat_map(|(n, rules)| rules.senders.into_iter().map(move |rule| (rule, n))).collect(),
        sender_tables: rules().filter_map(|(n, rules)| Some((tables.find(&rules.sender_table?)?.clone(), n))).collect(),
        clients: rules().flat_map(|(n, rules)| rules.clients.into_iter().map(move |rule| (rule, n))).collect(),
        domains: rules().flat_map(|(n, rules)| rules.domains.into_iter().map(move |rule| (rule, n))).collect(),
        local: (local, number_of(Queue::LOCAL).expect("every configuration has this queue")),
        standard: number_of(Queue::STANDARD).expect("every configuration has this queue"),
        configured: config.domains.iter().map(|domain| domain.name.clone()).collect(),
        tabled: !config.domain_tables.is_empty(),
        shared: config.domains.iter().filter(|domain| domain.hosts.is_some()).map(pattern).collect(),
        verp: config.bounce.verp.iter().map(|sender| sender.as_str().to_lowercase().into()).collect(),
    }
}

/// The routing.
pub fn routes(config: &Config) -> route::Config {
    let home = |domain: &config::Domain| route::Home {
        transport: domain.transport.clone(),
        next_hop: config.transport(&domain.transport).and_then(config::Transport::next_hop).cloned(),
    };
    let tabled =
        |table: &config::DomainTable| route::DomainTable { names: table.names.clone(), home: home(&table.settings) };
    let reach = |transport: &config::Transport| {
        let smtp = smtp_of(transport)?;
        Some((transport.name.clone(), reach(smtp)))
    };
    route::Config {
        own_addresses: own_addresses(config),
        own_ports: config.listeners.iter().map(|listener| listener.address.port()).collect(),
        dns: dns(&config.dns),
        domains: config.domains.iter().map(|domain| (domain.name.clone(), home(domain))).collect(),
        domain_tables: config.domain_tables.iter().map(tabled).collect(),
        rules: config.routes.clone(),
        reaches: config.transports.iter().filter_map(reach).collect(),
        ..route::Config::new(&config.hostname)
    }
}

/// A domain in the form used to compare names. A name that DNS does not allow is compared
/// literally.
fn pattern(domain: &config::Domain) -> Pattern {
    domain.name.parse().unwrap_or_else(|_| Pattern::Exact(domain.name.clone()))
}

/// The addresses of this host, except loopback, to detect mail loops. A listener on all addresses
/// of a family has all addresses of the machine; if they cannot be read, loops are still detected
/// by name.
fn own_addresses(config: &Config) -> Vec<IpAddr> {
    let listened: Vec<IpAddr> = config.listeners.iter().map(|listener| listener.address.ip()).collect();
    let is_meant =
        |address: &IpAddr| listened.iter().any(|own| own.is_unspecified() && own.is_ipv4() == address.is_ipv4());
    let interfaces = getifaddrs().into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    });
    let all = interfaces.filter(is_meant).chain(listened.iter().copied());
    all.filter(|address| !address.is_unspecified() && !address.is_loopback()).collect()
}

fn dns(dns: &config::Dns) -> route::Dns {
    route::Dns {
        servers: dns.servers.clone(),
        timeout: dns.timeout,
        attempts: dns.attempts,
        cache_entries: dns.cache_entries as u64,
        ttl_max: dns.ttl_max,
        negative_ttl_max: dns.negative_ttl_max,
        no_address_lookups: dns.no_address_lookups,
        no_address_time: dns.no_address_time,
        ..route::Dns::default()
    }
}

fn reach(smtp: &SmtpTransport) -> route::Reach {
    route::Reach {
        port: smtp.port,
        families: match smtp.families {
            Families::V4 => route::Families::V4,
            Families::V6 => route::Families::V6,
            Families::Both => route::Families::Both,
        },
        ..route::Reach::default()
    }
}

/// The transports.
pub fn fleet(config: &Config) -> anyhow::Result<Fleet> {
    let slower_than = config.queues.iter().find_map(|queue| queue.adopt.as_ref()).map(|adopt| adopt.slower_than);
    let ship = |transport: &config::Transport| {
        let ship = match &transport.kind {
            TransportKind::Maildir(maildir) => {
                let adapt = Adapt::ByLatency { target: maildir.latency_target };
                Ship { remote: None, limits: limits(&maildir.concurrency, adapt) }
            }
            TransportKind::Smtp(smtp) => remote_ship(smtp, slower_than.unwrap_or(Duration::MAX))?,
        };
        Ok((transport.name.clone(), ship))
    };
    Ok(Fleet {
        ships: config.transports.iter().map(ship).collect::<anyhow::Result<_>>()?,
        exceptions: config.next_hops.iter().map(exception).collect(),
    })
}

fn remote_ship(smtp: &SmtpTransport, slower_than: Duration) -> anyhow::Result<Ship> {
    let flavor = match smtp.flavor {
        config::Flavor::Smtp => Flavor::Smtp,
        config::Flavor::Lmtp => Flavor::Lmtp,
    };
    let helo = Word::new(&smtp.helo).context("the name for EHLO")?;
    let tls = match smtp.tls {
        Tls::Never => client::Tls::Never,
        Tls::Offered => client::Tls::Offered,
        Tls::Required => client::Tls::Required,
    };
    let times = &smtp.timeouts;
    let client = client::Config {
        tls,
        pipelining: smtp.pipelining,
        chunking: smtp.chunking,
        timeouts: client::Timeouts {
            banner: times.banner,
            command: times.command,
            data: times.data,
            block: times.block,
            message: times.message,
        },
        ..client::Config::new(flavor, helo)
    };
    let remote = remote::Config {
        client: Arc::new(client),
        // If TLS is required, any certificate is accepted: certificates are not verified yet.
        trust: Some(Trust::anyone()),
        source_v4: smtp.source_v4,
        source_v6: smtp.source_v6,
        connect_timeout: times.connect,
        idle_time_max: smtp.idle_time_max,
        idle_connections_max: smtp.idle_connections_max,
        sendfile_above: smtp.sendfile_above,
        slower_than,
        messages_per_connection_max: smtp.messages_per_connection_max,
        addresses_tried_max: smtp.addresses_tried_max,
    };
    let limits = queue::Limits {
        rate: smtp.rate.map(rate),
        probe: queue::Probe {
            failures: smtp.probe.failures,
            first: smtp.probe.first,
            factor: smtp.probe.factor,
            longest: smtp.probe.longest,
        },
        recipients_per_attempt_max: Some(smtp.recipients_per_message_max),
        ..limits(&smtp.concurrency, Adapt::ByAnswers)
    };
    Ok(Ship { remote: Some(Arc::new(remote)), limits })
}

fn limits(concurrency: &config::Concurrency, adapt: Adapt) -> queue::Limits {
    let &config::Concurrency { start, most, grow, shrink } = concurrency;
    queue::Limits { concurrency: queue::Concurrency { start, most, grow, shrink, adapt }, ..queue::Limits::default() }
}

fn exception(peer: &config::NextHop) -> Exception {
    let host = peer.host.clone();
    Exception {
        is_for: Arc::new(move |name| host.fits(name)),
        connections: peer.connections_max,
        rate: peer.rate.map(rate),
        messages_per_connection: peer.messages_per_connection_max,
        recipients_per_message: peer.recipients_per_message_max,
    }
}

fn rate(rate: config::Rate) -> queue::Rate {
    queue::Rate { messages: rate.count, per: rate.per }
}

/// Counts mailboxes, if any has a quota: the one in use, or a new one.
pub fn counter(config: &Config, before: Option<&Counter>) -> io::Result<Option<Counter>> {
    let has_quota = config.transports.iter().filter_map(maildir_of).any(|maildir| maildir.quota.is_some());
    match before {
        _ if !has_quota => Ok(None),
        Some(same) => Ok(Some(same.clone())),
        None => Counter::start().map(Some),
    }
}

/// The local transports. With a quota there is a counter.
pub fn maildirs(config: &Config, tables: &Tables, counter: Option<&Counter>) -> Vec<Transport> {
    let maildirs = config.transports.iter().filter_map(|transport| Some((&transport.name, maildir_of(transport)?)));
    maildirs.map(|(name, maildir)| one_maildir(name, maildir, tables, counter)).collect()
}

fn one_maildir(name: &str, maildir: &config::Maildir, tables: &Tables, counter: Option<&Counter>) -> Transport {
    Transport {
        name: name.into(),
        places: places(maildir, tables),
        line_ends: match maildir.line_ends {
            LineEnds::Crlf => mailbox::LineEnds::Crlf,
            LineEnds::Lf => mailbox::LineEnds::Lf,
        },
        allowance: maildir.quota.as_ref().zip(counter).map(|(quota, counter)| allowance(quota, tables, counter).into()),
    }
}

fn places(maildir: &config::Maildir, tables: &Tables) -> Places {
    let path = maildir.path.clone();
    let table = |places: &config::Places| {
        Some(PlaceTable { table: tables.find(&places.table)?.clone(), root: places.root.clone() })
    };
    Places {
        folders: Arc::new(move |address: &Address| path.folder(address.domain(), &address.mailbox_name())),
        table: maildir.places.as_ref().and_then(table),
    }
}

fn allowance(quota: &config::Quota, tables: &Tables, counter: &Counter) -> Allowance {
    Allowance {
        usual: mailbox::quota::Limits { bytes: quota.bytes, messages: quota.messages },
        table: quota.table.as_ref().and_then(|name| tables.find(name)).cloned(),
        when_full: match quota.full {
            QuotaFull::Defer => WhenFull::Defer,
            QuotaFull::Refuse => WhenFull::Refuse,
        },
        counter: counter.clone(),
    }
}

/// The folders whose disks need free space: the lanes, and `data_dir`.
pub fn disks(config: &Config) -> Vec<PathBuf> {
    config.spool.lanes.iter().chain([&config.data_dir]).cloned().collect()
}

/// The settings for notices. `seed` keeps outsiders from finding senders that share a bucket.
pub fn notices(config: &Config, seed: u64) -> Notices {
    let limits = |rate: config::Rate| CapLimits { letters: rate.count, per: rate.per, ..CapLimits::default() };
    Notices {
        delay_after: config.bounce.delay_notice_after,
        double_bounces_to: config.bounce.double_bounces_to.clone(),
        cap: config.bounce.per_sender.map(|rate| Cap::new(limits(rate), seed)),
    }
}

/// The directory: our domains, aliases and mailboxes.
pub fn directory(config: &Config, tables: &Tables) -> Directory {
    let table = |name: &Option<Box<str>>| name.as_ref().and_then(|name| tables.find(name)).cloned();
    let domain = |domain: &config::Domain| directory::Domain {
        name: domain.name.clone(),
        mailboxes: table(&domain.mailboxes),
        aliases: table(&domain.aliases),
        hosts: table(&domain.hosts),
        catch_all: domain.catch_all.clone(),
        delimiter: domain.delimiter,
        transport: domain.transport.clone(),
        is_final: config.transport(&domain.transport).is_some_and(|transport| transport.is_maildir()),
    };
    let tabled = |group: &config::DomainTable| {
        let names = tables.find(&group.names)?.clone();
        Some(directory::DomainTable { names, settings: domain(&group.settings) })
    };
    let domains = config.domains.iter().map(domain).collect();
    Directory::new(domains, directory::Limits::default())
        .with_tables(config.domain_tables.iter().filter_map(tabled).collect())
        .on_host(&config.hostname)
}

fn maildir_of(transport: &config::Transport) -> Option<&config::Maildir> {
    match &transport.kind {
        TransportKind::Maildir(maildir) => Some(maildir),
        TransportKind::Smtp(_) => None,
    }
}

fn smtp_of(transport: &config::Transport) -> Option<&SmtpTransport> {
    match &transport.kind {
        TransportKind::Smtp(smtp) => Some(smtp),
        TransportKind::Maildir(_) => None,
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
        let shown = |queues: &queue::Config| -> Vec<String> {
            let shown = |queue: &queue::QueueConfig| format!("{}{}", queue.name, if queue.retired { "-" } else { "" });
            queues.queues.iter().skip(3).map(shown).collect()
        };
        let first = queues(&of(&["a", "b"]));
        assert_eq!(shown(&first), ["a", "b"]);
        let second = queues_after(&of(&["c", "b"]), &first).unwrap();
        assert_eq!(shown(&second), ["a-", "b", "c"]);
        let third = queues_after(&of(&["a"]), &second).unwrap();
        assert_eq!(shown(&third), ["a", "b-", "c-"]);
        let rules = rules(&of(&["a"]), &Tables::default(), &third);
        assert_eq!((rules.standard, rules.local.1), (QueueNumber(1), QueueNumber(0)));
    }

    #[test]
    fn an_attempt_may_have_as_many_recipients_as_the_most_that_any_next_hop_takes() {
        let of = |text: &str| {
            let config = Config::parse(text, "text", "host.example").unwrap();
            queues(&config).queues.iter().map(|queue| queue.recipients_per_attempt_max).max()
        };
        let next_hop = "[[next_hop]]\nhost = \"big.example\"\nrecipients_per_message = ";
        assert_eq!(of(""), Some(100));
        assert_eq!(of(&format!("{next_hop}50\n")), Some(100));
        assert_eq!(of(&format!("{next_hop}500\n")), Some(500));
        assert_eq!(of("[transport.smtp]\nrecipients_per_message = 300\n"), Some(300));
    }
}
