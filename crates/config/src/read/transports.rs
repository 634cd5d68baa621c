//! `[transport.NAME]`: the two built-in transports, and added ones. `pipe.rs` reads those of programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use delivery::remote::{ConnectionConfig, EightBitPolicy};
use dns::AddressFamilies;
use mailbox::LineEnds;
use mailbox::quota::{OverQuotaAction, QuotaLimits};
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{SmtpClientConfig, Timeouts};
use queue::{ConcurrencyFeedback, ConcurrencyPolicy, NextHopLimits, ProbePolicy, SharedConcurrency};
use route::{EndpointOptions, TlsDemand};

use super::pipe::pipe;
use super::relay_auth::relay_auth;
use super::transport_tls::transport_tls;
use super::{fill_path, read_waits, take_reference};
use crate::section::{Keywords, Section};
use crate::transport::helo_argument;
use crate::value_kind::{self, ValueKind};
use crate::{
    MailboxPathTableSettings, MaildirPathTemplate, MaildirTransportSettings, QuotaSettings, SmtpTransportSettings,
    TransportKind, TransportSettings,
};

/// The valid transports, and the names of all, including those with errors.
pub(super) struct TransportSections {
    pub(super) valid: Vec<TransportSettings>,
    pub(super) names: Vec<String>,
    /// Where `auth` of the built-in transport for SMTP is set, which routes need not name.
    pub(super) smtp_auth: Range<usize>,
}

impl TransportSections {
    /// The transport of that name, if it is valid.
    pub(super) fn find(&self, name: &str) -> Option<&TransportSettings> {
        self.valid.iter().find(|transport| &*transport.name == name)
    }
}

/// The value of the key `type`.
#[derive(Clone, Copy)]
enum Type {
    Maildir,
    Network(MailProtocol),
    Pipe,
    Discard,
    Error,
}

const SMTP: (&str, Type) = ("smtp", Type::Network(MailProtocol::Smtp));
const LMTP: (&str, Type) = ("lmtp", Type::Network(MailProtocol::Lmtp));
const MAILDIR: (&str, Type) = ("maildir", Type::Maildir);
const PIPE: (&str, Type) = ("pipe", Type::Pipe);
const DISCARD: (&str, Type) = ("discard", Type::Discard);
const ERROR: (&str, Type) = ("error", Type::Error);
const ANY_TYPE: Keywords<Type> = Keywords { supported: &[MAILDIR, SMTP, LMTP, PIPE, DISCARD, ERROR], planned: &[] };
const ONLY_SMTP: Keywords<Type> = Keywords { supported: &[SMTP], planned: &[] };
const ONLY_MAILDIR: Keywords<Type> = Keywords { supported: &[MAILDIR], planned: &[] };

pub(super) fn transports(
    document: &mut Section<'_, '_>,
    tables: &[String],
    data_dir: &Path,
    hostname: &str,
    validating: bool,
) -> TransportSections {
    let (names, mut sound) =
        (vec![TransportSettings::MAILDIR.to_owned(), TransportSettings::SMTP.to_owned()], Vec::new());
    sound.push(TransportSettings {
        name: TransportSettings::MAILDIR.into(),
        kind: TransportKind::Maildir(MaildirTransportSettings::with_data_dir(data_dir)),
    });
    let mut smtp = SmtpTransportSettings::new(MailProtocol::Smtp, hostname);
    if validating {
        smtp.tls.demand = TlsDemand::Dane;
    }
    sound.push(TransportSettings { name: TransportSettings::SMTP.into(), kind: TransportKind::Smtp(Box::new(smtp)) });
    let mut transports = TransportSections { valid: sound, names, smtp_auth: 0..0 };
    let context = TransportContext { tables, data_dir, hostname, validating };
    for (name, section) in document.named_sections("transport") {
        let name = name.into_inner();
        if name == TransportSettings::SMTP {
            transports.smtp_auth = section.span_of("auth");
        }
        let kind = transport_kind(section, &name, context);
        match (transports.valid.iter_mut().find(|transport| *transport.name == *name), kind) {
            (Some(built_in), Some(kind)) => built_in.kind = kind,
            (None, Some(kind)) => transports.valid.push(TransportSettings { name: (*name).into(), kind }),
            (_, None) => {}
        }
        if !transports.names.contains(&name) {
            transports.names.push(name);
        }
    }
    transports
}

/// What transports need to know of other settings.
#[derive(Clone, Copy)]
struct TransportContext<'a> {
    tables: &'a [String],
    data_dir: &'a Path,
    hostname: &'a str,
    /// The name servers validate with DNSSEC.
    validating: bool,
}

/// None if the type is invalid: then the other keys cannot be checked.
fn transport_kind(mut section: Section<'_, '_>, name: &str, context: TransportContext<'_>) -> Option<TransportKind> {
    let kind = match name {
        TransportSettings::MAILDIR => section.choice("type", &ONLY_MAILDIR).unwrap_or(Type::Maildir),
        TransportSettings::SMTP => section.choice("type", &ONLY_SMTP).unwrap_or(Type::Network(MailProtocol::Smtp)),
        _ => section.take_required_choice("type", &ANY_TYPE).or_else(|| {
            section.skip_rest();
            None
        })?,
    };
    Some(match kind {
        Type::Maildir => TransportKind::Maildir(maildir(section, context.tables, context.data_dir)),
        Type::Network(flavor) => TransportKind::Smtp(Box::new(smtp(section, flavor, context))),
        Type::Pipe => TransportKind::Pipe(Box::new(pipe(section, context.data_dir))),
        Type::Discard => TransportKind::Discard,
        Type::Error => {
            TransportKind::Error { reply: section.take_required("reply", &value_kind::FAILURE_REPLY)?.into_inner() }
        }
    })
}

const LINE_ENDS: Keywords<LineEnds> =
    Keywords { supported: &[("crlf", LineEnds::Crlf), ("lf", LineEnds::Lf)], planned: &[] };

fn maildir(mut section: Section<'_, '_>, tables: &[String], data_dir: &Path) -> MaildirTransportSettings {
    let defaults = MaildirTransportSettings::with_data_dir(data_dir);
    let path = section.take_spanned("path", &value_kind::TEXT).and_then(|template| {
        let state = |matter| {
            let label = format!("{matter}; expected a path with {{data_dir}}, {{domain}} and {{local}}");
            section.report(template.span(), "path", "has an invalid value", label);
        };
        MaildirPathTemplate::parse(template.get_ref(), data_dir).map_err(state).ok()
    });
    let places = mailbox_places(&mut section, tables, data_dir);
    let line_ends = section.choice("line_ends", &LINE_ENDS).unwrap_or(defaults.line_ends);
    let quota = quota(&mut section, tables);
    let concurrency = match section.section("concurrency") {
        None => defaults.concurrency,
        Some(mut numbers) => {
            let max = numbers.take_or("most", &ValueKind::COUNT, defaults.concurrency.max);
            let target = numbers.take("target", &value_kind::DURATION);
            let adapt = target.map_or(defaults.concurrency.adapt, |target| ConcurrencyFeedback::ByLatency { target });
            concurrency(numbers, ConcurrencyPolicy { max, adapt, ..defaults.concurrency }, "most")
        }
    };
    MaildirTransportSettings { path: path.unwrap_or(defaults.path), places, line_ends, quota, concurrency }
}

/// The table of mailbox folders, and the folder that contains them all.
fn mailbox_places(
    section: &mut Section<'_, '_>,
    tables: &[String],
    data_dir: &Path,
) -> Option<MailboxPathTableSettings> {
    let table = take_reference(section, "places", "[[table]]", tables);
    let root = section.take_spanned("root", &value_kind::TEXT);
    if let (None, Some(root)) = (&table, &root) {
        let label = "expected `places` too, a table of mailbox folders".to_owned();
        section.report(root.span(), "root", "is not allowed here", label);
    }
    let root = root.and_then(|template| fill_path(section, "root", &template, data_dir));
    Some(MailboxPathTableSettings {
        table: table?.into_inner().into(),
        root: root.unwrap_or_else(|| data_dir.join("mail")),
    })
}

const QUOTA_FULL: Keywords<OverQuotaAction> =
    Keywords { supported: &[("defer", OverQuotaAction::Defer), ("refuse", OverQuotaAction::Refuse)], planned: &[] };

/// The size limits of mailboxes, if there are any.
fn quota(section: &mut Section<'_, '_>, tables: &[String]) -> Option<QuotaSettings> {
    let defaults = QuotaLimits::default();
    let limits = section.section("quota").map(|mut limits| QuotaLimits {
        bytes: limits.take_or("bytes", &value_kind::SIZE, defaults.bytes),
        messages: limits.take_or("messages", &ValueKind::COUNT_OR_ZERO, defaults.messages),
    });
    let table = take_reference(section, "quota_table", "[[table]]", tables).map(|table| table.into_inner().into());
    let place = section.span_of("quota_full");
    let full = section.choice("quota_full", &QUOTA_FULL);
    if limits.is_none() && table.is_none() {
        if full.is_some() {
            let label = "expected `quota` or `quota_table` too".to_owned();
            section.report(place, "quota_full", "is not allowed here", label);
        }
        return None;
    }
    Some(QuotaSettings { limits: limits.unwrap_or(defaults), table, full: full.unwrap_or_default() })
}

/// Reads `concurrency`. `defaults.max` is already known; `most` is the name of its key.
fn concurrency(mut section: Section<'_, '_>, defaults: ConcurrencyPolicy, most: &str) -> ConcurrencyPolicy {
    let start = section.take_spanned("start", &ValueKind::COUNT);
    if let Some(start) = start.as_ref().filter(|start| *start.get_ref() > defaults.max) {
        let label = format!("expected no more than `{most}`, {}", defaults.max);
        section.report(start.span(), "start", "has an invalid value", label);
    }
    ConcurrencyPolicy {
        start: start.map_or(defaults.start, |start| start.into_inner()).min(defaults.max),
        grow: section.take_or("grow", &value_kind::NON_NEGATIVE, defaults.grow),
        shrink: section.take_or("shrink", &value_kind::FRACTION, defaults.shrink),
        ..defaults
    }
}

const EIGHT_BIT: Keywords<EightBitPolicy> = Keywords {
    supported: &[
        ("convert", EightBitPolicy::Convert),
        ("send", EightBitPolicy::Send),
        ("bounce", EightBitPolicy::Bounce),
    ],
    planned: &[],
};
const FAMILIES: Keywords<AddressFamilies> = Keywords {
    supported: &[("ipv4", AddressFamilies::V4), ("ipv6", AddressFamilies::V6), ("both", AddressFamilies::Both)],
    planned: &[],
};

fn smtp(mut section: Section<'_, '_>, flavor: MailProtocol, context: TransportContext<'_>) -> SmtpTransportSettings {
    let defaults = SmtpTransportSettings::new(flavor, context.hostname);
    let tls = transport_tls(&mut section, flavor, context.validating, context.data_dir);
    let (timeouts, connect_timeout) = match section.section("timeouts") {
        None => (defaults.client.timeouts, defaults.connections.connect_timeout),
        Some(section) => timeouts(section, defaults.client.timeouts, defaults.connections.connect_timeout),
    };
    let client = SmtpClientConfig { timeouts, tls: tls.policy, ..defaults.client };
    let client = client_config(&mut section, client);
    let connections = connection_config(&mut section, ConnectionConfig { connect_timeout, ..defaults.connections });
    SmtpTransportSettings {
        next_hop: section.take("next_hop", &value_kind::NEXT_HOP),
        endpoints: EndpointOptions {
            port: section.take_or("port", &value_kind::PORT, defaults.endpoints.port),
            families: section.choice("families", &FAMILIES).unwrap_or(defaults.endpoints.families),
            ..defaults.endpoints
        },
        auth: relay_auth(&mut section, &tls, context.tables, context.data_dir),
        generic: take_reference(&mut section, "generic", "[[table]]", context.tables)
            .map(|table| table.into_inner().into()),
        client,
        tls: tls.options,
        tls_ca_file: tls.ca_file,
        limits: next_hop_limits(&mut section, defaults.limits, connections.idle_time_max),
        connections,
    }
}

fn client_config(section: &mut Section<'_, '_>, defaults: SmtpClientConfig) -> SmtpClientConfig {
    SmtpClientConfig {
        helo: section.take("helo", &value_kind::HOST).map_or(defaults.helo, |host| helo_argument(&host)),
        pipelining: section.take_or("pipelining", &value_kind::FLAG, defaults.pipelining),
        chunking: section.take_or("chunking", &value_kind::FLAG, defaults.chunking),
        xforward: section.take_or("xforward", &value_kind::FLAG, defaults.xforward),
        ..defaults
    }
}

fn connection_config(section: &mut Section<'_, '_>, defaults: ConnectionConfig) -> ConnectionConfig {
    let (source_v4, source_v6) = sources(section);
    ConnectionConfig {
        source_v4,
        source_v6,
        implicit_tls: section.take("implicit_tls", &value_kind::FLAG),
        idle_time_max: section.take_or("idle", &value_kind::DURATION_OR_ZERO, defaults.idle_time_max),
        idle_connections_max: section.take_or(
            "idle_connections",
            &ValueKind::COUNT_OR_ZERO,
            defaults.idle_connections_max,
        ),
        sendfile_above: sendfile(section, defaults.sendfile_above),
        messages_per_connection_max: section.take_or(
            "messages_per_connection",
            &ValueKind::COUNT,
            defaults.messages_per_connection_max,
        ),
        addresses_tried_max: section.take_or("addresses_tried", &ValueKind::COUNT, defaults.addresses_tried_max),
        eight_bit: section.choice("eight_bit", &EIGHT_BIT).unwrap_or(defaults.eight_bit),
        ..defaults
    }
}

fn next_hop_limits(section: &mut Section<'_, '_>, defaults: NextHopLimits, idle: Duration) -> NextHopLimits {
    let recipients = section.take("recipients_per_message", &ValueKind::COUNT);
    let most = section.take("connections", &ValueKind::COUNT);
    let shared = most.filter(|most| *most != defaults.concurrency.max);
    NextHopLimits {
        concurrency: connection_concurrency(section, most, defaults.concurrency),
        rate: section.take("rate", &value_kind::RATE),
        is_rate_shared: defaults.is_rate_shared,
        // A cluster counts only what the operator has set, and the default may be written out.
        shared_concurrency: shared.map(|_| SharedConcurrency { idle }),
        probe: section.section("probe").map_or(defaults.probe, probe),
        recipients_per_attempt_max: recipients.or(defaults.recipients_per_attempt_max),
    }
}

fn connection_concurrency(
    section: &mut Section<'_, '_>,
    most: Option<usize>,
    defaults: ConcurrencyPolicy,
) -> ConcurrencyPolicy {
    let most = most.unwrap_or(defaults.max);
    let defaults = ConcurrencyPolicy { start: defaults.start.min(most), max: most, ..defaults };
    match section.section("concurrency") {
        Some(numbers) => concurrency(numbers, defaults, "connections"),
        None => defaults,
    }
}

/// The local addresses, at most one per family.
fn sources(section: &mut Section<'_, '_>) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let (mut v4, mut v6) = (None, None);
    for source in section.list("source", &value_kind::IP_ADDRESS).unwrap_or_default() {
        let earlier = match *source.get_ref() {
            IpAddr::V4(address) => v4.replace(address).map(|_| "IPv4"),
            IpAddr::V6(address) => v6.replace(address).map(|_| "IPv6"),
        };
        if let Some(family) = earlier {
            let label = format!("expected at most one {family} address");
            section.report(source.span(), "source", "has too many addresses", label);
        }
    }
    (v4, v6)
}

fn sendfile(section: &mut Section<'_, '_>, default: Option<u64>) -> Option<u64> {
    let wanted = section.take_or("sendfile", &value_kind::FLAG, true);
    let above = section.take_spanned("sendfile_above", &value_kind::SIZE);
    if let (false, Some(above)) = (wanted, &above) {
        let label = "expected only with sendfile = true".to_owned();
        section.report(above.span(), "sendfile_above", "is not allowed here", label);
    }
    above.map(|above| above.into_inner()).or(default).filter(|_| wanted)
}

fn probe(mut section: Section<'_, '_>) -> ProbePolicy {
    let defaults = ProbePolicy::default();
    let (first, longest) = read_waits(&mut section, defaults.first, defaults.longest);
    ProbePolicy {
        failures: section.take_or("failures", &ValueKind::COUNT, defaults.failures),
        first,
        factor: section.take_or("factor", &value_kind::FACTOR, defaults.factor),
        longest,
    }
}

/// The time limits of replies, and of connecting to one address.
fn timeouts(mut section: Section<'_, '_>, defaults: Timeouts, connect: Duration) -> (Timeouts, Duration) {
    let timeouts = Timeouts {
        banner: section.take_or("banner", &value_kind::DURATION, defaults.banner),
        command: section.take_or("command", &value_kind::DURATION, defaults.command),
        data: section.take_or("data", &value_kind::DURATION, defaults.data),
        block: section.take_or("block", &value_kind::DURATION, defaults.block),
        message: section.take_or("message", &value_kind::DURATION, defaults.message),
    };
    (timeouts, section.take_or("connect", &value_kind::DURATION, connect))
}
