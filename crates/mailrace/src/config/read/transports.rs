//! `[transport.NAME]`: the two built-in transports, and added ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::{filled, named, waits};
use crate::config::key::{self, Kind};
use crate::config::section::{Choice, Section};
use crate::config::transport::SENDFILE_ABOVE;
use crate::config::{
    Concurrency, Families, Flavor, LineEnds, Maildir, MaildirPath, Places, Probe, Quota, QuotaFull, SmtpTransport,
    Timeouts, Tls, Transport, TransportKind,
};

/// The valid transports, and the names of all, including those with errors.
pub(super) struct Transports {
    pub(super) sound: Vec<Transport>,
    pub(super) names: Vec<String>,
}

impl Transports {
    /// The transport of that name, if it is valid.
    pub(super) fn find(&self, name: &str) -> Option<&Transport> {
        self.sound.iter().find(|transport| &*transport.name == name)
    }
}

/// The value of the key `type`.
#[derive(Clone, Copy)]
enum Type {
    Maildir,
    Network(Flavor),
}

const SMTP: (&str, Type) = ("smtp", Type::Network(Flavor::Smtp));
const LMTP: (&str, Type) = ("lmtp", Type::Network(Flavor::Lmtp));
const MAILDIR: (&str, Type) = ("maildir", Type::Maildir);
const ANY_TYPE: Choice<Type> = Choice { built: &[MAILDIR, SMTP, LMTP], later: &[] };
const ONLY_SMTP: Choice<Type> = Choice { built: &[SMTP], later: &[] };
const ONLY_MAILDIR: Choice<Type> = Choice { built: &[MAILDIR], later: &[] };

pub(super) fn transports(
    document: &mut Section<'_, '_>,
    tables: &[String],
    data_dir: &Path,
    hostname: &str,
) -> Transports {
    let (names, mut sound) = (vec![Transport::MAILDIR.to_owned(), Transport::SMTP.to_owned()], Vec::new());
    sound.push(Transport { name: Transport::MAILDIR.into(), kind: TransportKind::Maildir(Maildir::under(data_dir)) });
    let smtp = SmtpTransport::new(Flavor::Smtp, hostname.into());
    sound.push(Transport { name: Transport::SMTP.into(), kind: TransportKind::Smtp(Box::new(smtp)) });
    let mut transports = Transports { sound, names };
    for (name, section) in document.named_sections("transport") {
        let name = name.into_inner();
        let kind = kind(section, &name, tables, data_dir, hostname);
        match (transports.sound.iter_mut().find(|transport| *transport.name == *name), kind) {
            (Some(built_in), Some(kind)) => built_in.kind = kind,
            (None, Some(kind)) => transports.sound.push(Transport { name: (*name).into(), kind }),
            (_, None) => {}
        }
        if !transports.names.contains(&name) {
            transports.names.push(name);
        }
    }
    transports
}

/// None if the type is invalid: then the other keys cannot be checked.
fn kind(
    mut section: Section<'_, '_>,
    name: &str,
    tables: &[String],
    data_dir: &Path,
    hostname: &str,
) -> Option<TransportKind> {
    let kind = match name {
        Transport::MAILDIR => section.choice("type", &ONLY_MAILDIR).unwrap_or(Type::Maildir),
        Transport::SMTP => section.choice("type", &ONLY_SMTP).unwrap_or(Type::Network(Flavor::Smtp)),
        _ => section.required_choice("type", &ANY_TYPE).or_else(|| {
            section.skip();
            None
        })?,
    };
    Some(match kind {
        Type::Maildir => TransportKind::Maildir(maildir(section, tables, data_dir)),
        Type::Network(flavor) => TransportKind::Smtp(Box::new(smtp(section, flavor, hostname))),
    })
}

const LINE_ENDS: Choice<LineEnds> = Choice { built: &[("crlf", LineEnds::Crlf), ("lf", LineEnds::Lf)], later: &[] };

fn maildir(mut section: Section<'_, '_>, tables: &[String], data_dir: &Path) -> Maildir {
    let or = Maildir::under(data_dir);
    let path = section.placed("path", &key::TEXT).and_then(|template| {
        let state = |matter| {
            let label = format!("{matter}; expected a path with {{data_dir}}, {{domain}} and {{local}}");
            section.state(template.span(), "path", "has an invalid value", label);
        };
        MaildirPath::parse(template.get_ref(), data_dir).map_err(state).ok()
    });
    let places = places(&mut section, tables, data_dir);
    let line_ends = section.choice("line_ends", &LINE_ENDS).unwrap_or(or.line_ends);
    let quota = quota(&mut section, tables);
    let (concurrency, latency_target) = match section.section("concurrency") {
        None => (or.concurrency, or.latency_target),
        Some(mut numbers) => {
            let most = numbers.take_or("most", &Kind::COUNT, or.concurrency.most);
            let target = numbers.take_or("target", &key::SPAN, or.latency_target);
            (concurrency(numbers, Concurrency { most, ..or.concurrency }, "most"), target)
        }
    };
    Maildir { path: path.unwrap_or(or.path), places, line_ends, quota, concurrency, latency_target }
}

/// The table of mailbox folders, and the folder that contains them all.
fn places(section: &mut Section<'_, '_>, tables: &[String], data_dir: &Path) -> Option<Places> {
    let table = named(section, "places", "[[table]]", tables);
    let root = section.placed("root", &key::TEXT);
    if let (None, Some(root)) = (&table, &root) {
        let label = "expected `places` too, a table of mailbox folders".to_owned();
        section.state(root.span(), "root", "is not allowed here", label);
    }
    let root = root.and_then(|template| filled(section, "root", &template, data_dir));
    Some(Places { table: table?.into_inner().into(), root: root.unwrap_or_else(|| data_dir.join("mail")) })
}

const QUOTA_FULL: Choice<QuotaFull> =
    Choice { built: &[("defer", QuotaFull::Defer), ("refuse", QuotaFull::Refuse)], later: &[] };

/// The size limits of mailboxes, if there are any.
fn quota(section: &mut Section<'_, '_>, tables: &[String]) -> Option<Quota> {
    let limits = section.section("quota").map(|mut limits| {
        let bytes = limits.take_or("bytes", &key::SIZE, 0);
        (bytes, limits.take_or("messages", &Kind::COUNT_OR_ZERO, 0))
    });
    let table = named(section, "quota_table", "[[table]]", tables).map(|table| table.into_inner().into());
    let place = section.place_of("quota_full");
    let full = section.choice("quota_full", &QUOTA_FULL);
    if limits.is_none() && table.is_none() {
        if full.is_some() {
            let label = "expected `quota` or `quota_table` too".to_owned();
            section.state(place, "quota_full", "is not allowed here", label);
        }
        return None;
    }
    let (bytes, messages) = limits.unwrap_or_default();
    Some(Quota { bytes, messages, table, full: full.unwrap_or(QuotaFull::Defer) })
}

/// Reads `concurrency`. `or.most` is already known; `most` is the name of its key.
fn concurrency(mut section: Section<'_, '_>, or: Concurrency, most: &str) -> Concurrency {
    let start = section.placed("start", &Kind::COUNT);
    if let Some(start) = start.as_ref().filter(|start| *start.get_ref() > or.most) {
        let label = format!("expected no more than `{most}`, {}", or.most);
        section.state(start.span(), "start", "has an invalid value", label);
    }
    Concurrency {
        start: start.map_or(or.start, |start| start.into_inner()).min(or.most),
        most: or.most,
        grow: section.take_or("grow", &key::GROWTH, or.grow),
        shrink: section.take_or("shrink", &key::SHARE, or.shrink),
    }
}

const TLS: Choice<Tls> =
    Choice { built: &[("never", Tls::Never), ("offered", Tls::Offered), ("required", Tls::Required)], later: &[] };
const FAMILIES: Choice<Families> =
    Choice { built: &[("ipv4", Families::V4), ("ipv6", Families::V6), ("both", Families::Both)], later: &[] };

fn smtp(mut s: Section<'_, '_>, flavor: Flavor, hostname: &str) -> SmtpTransport {
    let or = SmtpTransport::new(flavor, hostname.into());
    let (source_v4, source_v6) = sources(&mut s);
    SmtpTransport {
        flavor,
        next_hop: s.take("next_hop", &key::NEXT_HOP),
        port: s.take_or("port", &key::PORT, or.port),
        source_v4,
        source_v6,
        helo: s.take_or("helo", &key::HOST, or.helo),
        tls: s.choice("tls", &TLS).unwrap_or(or.tls),
        pipelining: s.take_or("pipelining", &key::FLAG, or.pipelining),
        chunking: s.take_or("chunking", &key::FLAG, or.chunking),
        sendfile_above: sendfile(&mut s),
        families: s.choice("families", &FAMILIES).unwrap_or(or.families),
        concurrency: connections(&mut s, or.concurrency),
        rate: s.take("rate", &key::RATE),
        messages_per_connection_max: s.take_or("messages_per_connection", &Kind::COUNT, or.messages_per_connection_max),
        recipients_per_message_max: s.take_or("recipients_per_message", &Kind::COUNT, or.recipients_per_message_max),
        addresses_tried_max: s.take_or("addresses_tried", &Kind::COUNT, or.addresses_tried_max),
        idle_time_max: s.take_or("idle", &key::SPAN_OR_ZERO, or.idle_time_max),
        idle_connections_max: s.take_or("idle_connections", &Kind::COUNT_OR_ZERO, or.idle_connections_max),
        probe: s.section("probe").map_or(or.probe, probe),
        timeouts: s.section("timeouts").map_or(or.timeouts, timeouts),
    }
}

fn connections(section: &mut Section<'_, '_>, or: Concurrency) -> Concurrency {
    let most = section.take_or("connections", &Kind::COUNT, or.most);
    let or = Concurrency { start: or.start.min(most), most, ..or };
    match section.section("concurrency") {
        Some(numbers) => concurrency(numbers, or, "connections"),
        None => or,
    }
}

/// The local addresses, at most one per family.
fn sources(section: &mut Section<'_, '_>) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let (mut v4, mut v6) = (None, None);
    for source in section.list("source", &key::IP_ADDRESS).unwrap_or_default() {
        let earlier = match *source.get_ref() {
            IpAddr::V4(address) => v4.replace(address).map(|_| "IPv4"),
            IpAddr::V6(address) => v6.replace(address).map(|_| "IPv6"),
        };
        if let Some(family) = earlier {
            let label = format!("expected at most one {family} address");
            section.state(source.span(), "source", "has too many addresses", label);
        }
    }
    (v4, v6)
}

fn sendfile(section: &mut Section<'_, '_>) -> Option<u64> {
    let wanted = section.take_or("sendfile", &key::FLAG, true);
    let above = section.placed("sendfile_above", &key::SIZE);
    if let (false, Some(above)) = (wanted, &above) {
        let label = "expected only with sendfile = true".to_owned();
        section.state(above.span(), "sendfile_above", "is not allowed here", label);
    }
    wanted.then(|| above.map_or(SENDFILE_ABOVE, |above| above.into_inner()))
}

fn probe(mut section: Section<'_, '_>) -> Probe {
    let or = Probe::default();
    let (first, longest) = waits(&mut section, or.first, or.longest);
    Probe {
        failures: section.take_or("failures", &Kind::COUNT, or.failures),
        first,
        factor: section.take_or("factor", &key::FACTOR, or.factor),
        longest,
    }
}

fn timeouts(mut section: Section<'_, '_>) -> Timeouts {
    let or = Timeouts::default();
    Timeouts {
        connect: section.take_or("connect", &key::SPAN, or.connect),
        banner: section.take_or("banner", &key::SPAN, or.banner),
        command: section.take_or("command", &key::SPAN, or.command),
        data: section.take_or("data", &key::SPAN, or.data),
        block: section.take_or("block", &key::SPAN, or.block),
        message: section.take_or("message", &key::SPAN, or.message),
    }
}
