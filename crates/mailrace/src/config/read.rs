//! From the TOML document to the finished form, section by section. What a value looks like is said in `key`;
//! here is said where it stands, what stands in for it, and how values of different places fit together.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use mail::Address;
use toml::Spanned;
use toml::de::DeTable;

use super::fault::Fault;
use super::key;
use super::path::{self, MaildirPath};
use super::section::{Choice, FaultList, Section, did_you_mean};
use super::{
    Admin, Bounce, Config, Dns, Domain, Durability, Flavor, Limits, LineEnds, Listener, Load, Log, LogFormat,
    LogTarget, Maildir, Pattern, Protocol, Queue, Relay, Retry, Route, SOCKET_PATH_OCTETS_MAX, Scheduler, Smtp,
    SmtpTransport, Spool, Table, TableKind, Transport, TransportKind,
};

const DATA_DIR: &str = "./mailrace-data";
const MAILDIR: &str = "maildir";

/// Reads the whole text; all faults come out, but none beyond the syntax where the syntax is at fault.
pub(super) fn config(text: &str, machine: &str) -> Result<Config, Vec<Fault>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(errors.iter().map(syntax).collect());
    }
    let faults = FaultList::default();
    let config = document_of(Section::document(document.into_inner(), &faults), machine);
    match faults.into_inner() {
        faults if faults.is_empty() => Ok(config),
        faults => Err(faults),
    }
}

fn syntax(error: &toml::de::Error) -> Fault {
    Fault::new(error.span().unwrap_or(0..0), "this is not TOML", error.message())
}

fn document_of(mut document: Section<'_, '_>, machine: &str) -> Config {
    let data_dir = document.placed("data_dir", &key::TEXT);
    let data_dir = data_dir.map_or_else(|| PathBuf::from(DATA_DIR), |dir| data_dir_of(&document, &dir));
    let hostname = document.take("hostname", &key::HOST);
    let limits = limits(&mut document);
    let (tables, table_names) = tables(&mut document, &data_dir);
    let (transports, transport_names) = transports(&mut document, &data_dir);
    document.later("route", "routes to fixed next hops are not built yet: mail is delivered to [[domain]]s only");
    document.later("load", "admission by load is not built yet: [limits] bound what is taken in");
    let hostname = hostname.or_else(|| key::host(machine)).unwrap_or_else(|| "localhost".into());
    let smtp_transport = SmtpTransport::new(Flavor::Smtp, hostname.clone());
    let kind = TransportKind::Smtp(Box::new(smtp_transport));
    let transports = transports.into_iter().chain([Transport { name: Transport::SMTP.into(), kind }]).collect();
    let mut queues = Queue::built_in().to_vec();
    queues[1] = queue(&mut document);
    queues[2].adopt = Some(super::Adopt::default());
    Config {
        hostname,
        routes: vec![Route { domain: Pattern::Any, transport: Transport::SMTP.into(), next_hop: None }],
        next_hops: Vec::new(),
        dns: Dns::default(),
        scheduler: Scheduler::default(),
        load: Load::default(),
        bounce: Bounce::default(),
        user: document.take("user", &key::TEXT).map(Into::into),
        allow_root: document.take("allow_root", &key::FLAG).unwrap_or(false),
        threads: document.take("threads", &key::COUNT_OR_ZERO).unwrap_or(0) as usize,
        listeners: listeners(&mut document),
        domains: domains(&mut document, &table_names, &transport_names),
        relay: relay(&mut document),
        smtp: smtp(&mut document),
        queues,
        spool: spool(&mut document, &data_dir, limits.spill_above),
        log: log(&mut document, &data_dir),
        admin: admin(&mut document, &data_dir),
        limits,
        tables,
        transports,
        data_dir,
    }
}

fn data_dir_of(document: &Section<'_, '_>, written: &Spanned<String>) -> PathBuf {
    if let Some(placeholder) = written.get_ref().find(['{', '}']) {
        let label = format!("found a brace at character {}, expected a path without placeholders", placeholder + 1);
        document.state(written.span(), "data_dir", "has a wrong value", label);
    }
    PathBuf::from(written.get_ref())
}

const PROTOCOL: Choice<Protocol> =
    Choice { built: &[("smtp", Protocol::Smtp), ("lmtp", Protocol::Lmtp)], later: &["submission", "pop3", "http"] };

fn listeners(document: &mut Section<'_, '_>) -> Vec<Listener> {
    let Some(sections) = document.sections("listener") else {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2525));
        return vec![Listener { protocol: Protocol::Smtp, address }];
    };
    let mut unique = Unique::default();
    sections.into_iter().filter_map(|section| listener(section, &mut unique)).collect()
}

fn listener(mut section: Section<'_, '_>, unique: &mut Unique) -> Option<Listener> {
    let protocol = section.required_choice("protocol", &PROTOCOL);
    let endpoint = section.required("address", &key::ENDPOINT)?;
    let place = endpoint.span();
    let Some(address) = endpoint.into_inner() else {
        section.state(place, "address", "is not built yet", "listening on unix sockets is not built yet".into());
        return None;
    };
    if address.port() != 0 {
        unique.claim(&section, "address", &address.to_string(), place);
    }
    Some(Listener { protocol: protocol?, address })
}

const TABLE_KIND: Choice<TableKind> =
    Choice { built: &[("text", TableKind::Text), ("cdb", TableKind::Cdb)], later: &["sqlite", "postgres", "ldap"] };

/// The tables, and the names of all that were meant, those with faults included.
fn tables(document: &mut Section<'_, '_>, data_dir: &Path) -> (Vec<Table>, Vec<String>) {
    let mut unique = Unique::default();
    let sections = document.sections("table").unwrap_or_default();
    let tables = sections.into_iter().filter_map(|section| table(section, data_dir, &mut unique)).collect();
    (tables, unique.names())
}

fn table(mut section: Section<'_, '_>, data_dir: &Path, unique: &mut Unique) -> Option<Table> {
    let name = section.required("name", &key::TEXT);
    if let Some(name) = &name {
        unique.claim(&section, "name", name.get_ref(), name.span());
    }
    let kind = section.required_choice("type", &TABLE_KIND);
    section.later("cache", "caches are for tables across a network, which are not built yet");
    let path = section.required("path", &key::TEXT);
    let path = path.and_then(|template| filled(&section, "path", &template, data_dir));
    Some(Table { name: name?.into_inner().into(), kind: kind?, path: path? })
}

fn domains(document: &mut Section<'_, '_>, tables: &[String], transports: &[String]) -> Vec<Domain> {
    let Some(sections) = document.sections("domain") else {
        return vec![Domain {
            name: "localhost".into(),
            mailboxes: None,
            aliases: None,
            hosts: None,
            transport: MAILDIR.into(),
            catch_all: None,
            delimiter: Some('+'),
        }];
    };
    let (mut unique, mut catch_alls) = (Unique::default(), Vec::new());
    let domain = |section| domain(section, tables, transports, &mut unique, &mut catch_alls);
    let domains = sections.into_iter().filter_map(domain).collect();
    let names = unique.names();
    for catch_all in catch_alls.iter().filter(|catch_all| !names.iter().any(|n| n == catch_all.get_ref().domain())) {
        let label = "nothing leads out of this server yet; expected an address at one of the [[domain]]s".into();
        document.state(catch_all.span(), "domain.catch_all", "asks for something that is not built yet", label);
    }
    domains
}

fn domain(
    mut section: Section<'_, '_>,
    tables: &[String],
    transports: &[String],
    unique: &mut Unique,
    catch_alls: &mut Vec<Spanned<Address>>,
) -> Option<Domain> {
    let name = section.required("name", &key::HOST);
    if let Some(name) = &name {
        unique.claim(&section, "name", name.get_ref(), name.span());
    }
    let mailboxes = named(&mut section, "mailboxes", "[[table]]", tables);
    let aliases = named(&mut section, "aliases", "[[table]]", tables);
    let transport = named(&mut section, "transport", "[transport.NAME]", transports).unwrap_or_else(|| MAILDIR.into());
    let catch_all = section.placed("catch_all", &key::ADDRESS);
    catch_alls.extend(catch_all.clone());
    let delimiter = section.take("delimiter", &key::DELIMITER).unwrap_or(Some('+'));
    let catch_all = catch_all.map(Spanned::into_inner);
    Some(Domain { name: name?.into_inner(), mailboxes, aliases, hosts: None, transport, catch_all, delimiter })
}

/// A name that some other section has to bear.
fn named(section: &mut Section<'_, '_>, key: &'static str, kind: &str, names: &[String]) -> Option<Box<str>> {
    let name = section.placed(key, &key::TEXT)?;
    if !names.contains(name.get_ref()) {
        let title = format!("there is no {kind} for `{key}`");
        let label = match names {
            [] => format!("found {:?}, and no {kind} at all", name.get_ref()),
            names => format!("found {:?}, expected one of: {}", name.get_ref(), names.join(", ")),
        };
        let help = did_you_mean(name.get_ref(), names.iter().map(String::as_str));
        section.state_fault(Fault::new(name.span(), title, label).with_help(help));
    }
    Some(name.into_inner().into())
}

const TRANSPORT_KIND: Choice<()> = Choice { built: &[(MAILDIR, ())], later: &["smtp", "lmtp"] };
const LINE_ENDS: Choice<LineEnds> = Choice { built: &[("crlf", LineEnds::Crlf), ("lf", LineEnds::Lf)], later: &[] };

/// The transports, `maildir` always among them, and the names of all that were meant.
fn transports(document: &mut Section<'_, '_>, data_dir: &Path) -> (Vec<Transport>, Vec<String>) {
    let mut names = vec![MAILDIR.to_owned()];
    let mut transports = Vec::new();
    for (name, section) in document.named_sections("transport") {
        let name = name.into_inner();
        transports.extend(transport(section, &name, data_dir));
        if name != MAILDIR {
            names.push(name);
        }
    }
    if !transports.iter().any(|transport| &*transport.name == MAILDIR) {
        let maildir = Maildir::under(data_dir).map(TransportKind::Maildir);
        transports.extend(maildir.map(|kind| Transport { name: MAILDIR.into(), kind }));
    }
    (transports, names)
}

fn transport(mut section: Section<'_, '_>, name: &str, data_dir: &Path) -> Option<Transport> {
    let kind = section.required_choice("type", &TRANSPORT_KIND);
    let line_ends = section.choice("line_ends", &LINE_ENDS).unwrap_or(LineEnds::Crlf);
    let path = match section.placed("path", &key::TEXT) {
        Some(template) => MaildirPath::parse(template.get_ref(), data_dir)
            .map_err(|matter| {
                let label = format!("{matter}; expected a path with {{data_dir}}, {{domain}} and {{local}}");
                section.state(template.span(), "path", "has a wrong value", label);
            })
            .ok(),
        None => MaildirPath::under(data_dir).ok(),
    };
    kind?;
    let kind = TransportKind::Maildir(Maildir { line_ends, ..Maildir::at(path?) });
    Some(Transport { name: name.into(), kind })
}

fn relay(document: &mut Section<'_, '_>) -> Relay {
    let networks = document.section("relay").and_then(|mut section| section.list("networks", &key::NETWORK));
    networks.map_or_else(Relay::default, |networks| Relay { networks: bare(networks) })
}

fn smtp(document: &mut Section<'_, '_>) -> Smtp {
    let section = document.section("smtp");
    let networks = section.and_then(|mut section| section.list("normalise_bare_newlines_from", &key::NETWORK));
    Smtp { normalise_bare_newlines_from: bare(networks.unwrap_or_default()) }
}

fn bare<T>(placed: Vec<Spanned<T>>) -> Vec<T> {
    placed.into_iter().map(Spanned::into_inner).collect()
}

fn limits(document: &mut Section<'_, '_>) -> Limits {
    let or = Limits::default();
    let Some(mut s) = document.section("limits") else { return or };
    let command_line = s.take("command_line", &key::COMMAND_LINE);
    Limits {
        command_line_octets_max: command_line.map_or(or.command_line_octets_max, |octets| octets as usize),
        commands_max: s.take("commands", &key::COUNT).unwrap_or(or.commands_max),
        errors_max: s.take("errors", &key::COUNT).unwrap_or(or.errors_max),
        recipients_max: s.take("recipients", &key::COUNT).map_or(or.recipients_max, |n| n as usize),
        expanded_recipients_max: s
            .take("expanded_recipients", &key::COUNT)
            .map_or(or.expanded_recipients_max, |n| n as usize),
        message_octets_max: s.take("message", &key::SIZE).unwrap_or(or.message_octets_max),
        header_octets_max: s.take("header", &key::SIZE).unwrap_or(or.header_octets_max),
        received_max: s.take("received", &key::COUNT).unwrap_or(or.received_max),
        session_time_max: s.take("session_time", &key::SPAN).unwrap_or(or.session_time_max),
        idle_time_max: s.take("idle_time", &key::SPAN).unwrap_or(or.idle_time_max),
        sessions_max: s.take("sessions", &key::COUNT).map_or(or.sessions_max, |n| n as usize),
        sessions_per_client_max: s
            .take("sessions_per_client", &key::COUNT)
            .map_or(or.sessions_per_client_max, |n| n as usize),
        body_memory_max: s.take("body_memory", &key::SIZE).unwrap_or(or.body_memory_max),
        spill_above: s.take("spill_above", &key::SPILL).unwrap_or(or.spill_above),
        message_wait_max: s.take("message_wait", &key::SPAN_OR_ZERO).unwrap_or(or.message_wait_max),
        connections_per_client: None,
        messages_per_client: None,
        backlog: s.take("backlog", &key::COUNT).unwrap_or(or.backlog),
    }
}

fn queue(document: &mut Section<'_, '_>) -> Queue {
    let mut unique = Unique::default();
    let sections = document.sections("queue").unwrap_or_default();
    let queues: Vec<Queue> = sections.into_iter().filter_map(|section| one_queue(section, &mut unique)).collect();
    queues.into_iter().next().unwrap_or_else(|| Queue::new(Queue::STANDARD))
}

fn one_queue(mut section: Section<'_, '_>, unique: &mut Unique) -> Option<Queue> {
    let name = section.required("name", &key::TEXT)?;
    unique.claim(&section, "name", name.get_ref(), name.span());
    if name.get_ref() != Queue::STANDARD {
        let label = format!("queues beside {:?} are not built yet", Queue::STANDARD);
        section.state(name.span(), "name", "asks for something that is not built yet", label);
        section.skip();
        return None;
    }
    section.later("domains", "queues of some domains are not built yet");
    section.later("adopt", "moving slow next hops to a queue of their own is not built yet");
    let or = Queue::new(Queue::STANDARD);
    Some(Queue {
        name: or.name,
        rules: or.rules,
        adopt: None,
        concurrency: section.take("concurrency", &key::COUNT_OR_ZERO).map_or(or.concurrency, |n| n as usize),
        retry: section.section("retry").map_or(or.retry, retry),
    })
}

fn retry(mut section: Section<'_, '_>) -> Retry {
    let or = Retry::default();
    let first = section.placed("first", &key::SPAN);
    let longest = section.take("longest", &key::SPAN).unwrap_or(or.longest);
    if let Some(first) = first.as_ref().filter(|first| *first.get_ref() > longest) {
        let label = format!("expected no more than `longest`, {longest:?}");
        section.state(first.span(), "first", "has a wrong value", label);
    }
    Retry {
        first: first.map_or(or.first.min(longest), Spanned::into_inner),
        factor: section.take("factor", &key::FACTOR).unwrap_or(or.factor),
        longest,
        jitter: section.take("jitter", &key::SHARE).unwrap_or(or.jitter),
        lifetime: section.take("lifetime", &key::SPAN).unwrap_or(or.lifetime),
    }
}

const DURABILITY: Choice<bool> = Choice { built: &[("commit", false), ("relaxed", true)], later: &[] };

fn spool(document: &mut Section<'_, '_>, data_dir: &Path, spill_above: u64) -> Spool {
    let or = Spool::under(data_dir);
    let Some(mut section) = document.section("spool") else { return or };
    let lanes = section.list("lanes", &key::TEXT).map(|lanes| lanes_of(&section, &lanes, data_dir));
    let segment = section.placed("segment", &key::SEGMENT);
    if let Some(segment) = segment.as_ref().filter(|segment| *segment.get_ref() / 4 < spill_above) {
        let label = format!("expected at least four times `limits.spill_above`, which is {spill_above} bytes");
        section.state(segment.span(), "segment", "has a wrong value", label);
    }
    Spool {
        lanes: lanes.unwrap_or(or.lanes),
        durability: durability(&mut section),
        segment_octets: segment.map_or(or.segment_octets, Spanned::into_inner),
        spare_segments: section.take("spare_segments", &key::COUNT_OR_ZERO).map_or(or.spare_segments, |n| n as usize),
        space_min: section.take("space_min", &key::SIZE).unwrap_or(or.space_min),
        inodes_min: section.take("inodes_min", &key::COUNT_OR_ZERO).map_or(or.inodes_min, u64::from),
    }
}

fn lanes_of(section: &Section<'_, '_>, lanes: &[Spanned<String>], data_dir: &Path) -> Vec<PathBuf> {
    if lanes.is_empty() {
        section.state(section.place(), "lanes", "is empty", "expected at least one folder".into());
    }
    let mut unique = Unique::default();
    let lane = |template: &Spanned<String>| {
        let lane = filled(section, "lanes", template, data_dir)?;
        unique.claim(section, "lanes", &lane.to_string_lossy(), template.span());
        Some(lane)
    };
    lanes.iter().filter_map(lane).collect()
}

fn durability(section: &mut Section<'_, '_>) -> Durability {
    let relaxed = section.choice("durability", &DURABILITY).unwrap_or(false);
    let sync_every = section.placed("sync_every", &key::SPAN);
    match sync_every {
        Some(every) if !relaxed => {
            let label = "expected only with durability = \"relaxed\"; \"commit\" syncs before every 250";
            section.state(every.span(), "sync_every", "means nothing here", label.into());
            Durability::Commit
        }
        _ if !relaxed => Durability::Commit,
        every => {
            Durability::Relaxed { sync_every: every.map_or(std::time::Duration::from_secs(1), Spanned::into_inner) }
        }
    }
}

const LOG_FORMAT: Choice<LogFormat> =
    Choice { built: &[("text", LogFormat::Text), ("json", LogFormat::Json)], later: &[] };

fn log(document: &mut Section<'_, '_>, data_dir: &Path) -> Log {
    let or = Log::default();
    let Some(mut section) = document.section("log") else { return or };
    let to = section.placed("to", &key::TEXT).filter(|to| to.get_ref() != "stderr");
    let file = to.and_then(|template| filled(&section, "to", &template, data_dir));
    Log {
        format: section.choice("format", &LOG_FORMAT).unwrap_or(or.format),
        to: file.map_or(or.to, LogTarget::File),
        queue: section.take("queue", &key::COUNT).map_or(or.queue, |n| n as usize),
    }
}

fn admin(document: &mut Section<'_, '_>, data_dir: &Path) -> Admin {
    let or = Admin { socket: data_dir.join("control.sock") };
    let Some(mut section) = document.section("admin") else { return or };
    let Some(template) = section.placed("socket", &key::TEXT) else { return or };
    let Some(socket) = filled(&section, "socket", &template, data_dir) else { return or };
    if socket.as_os_str().len() > SOCKET_PATH_OCTETS_MAX {
        let label = format!("expected a path of at most {SOCKET_PATH_OCTETS_MAX} bytes, as unix sockets have it");
        section.state(template.span(), "socket", "is too long", label);
    }
    Admin { socket }
}

/// A path with `{data_dir}` filled in.
fn filled(section: &Section<'_, '_>, key: &str, template: &Spanned<String>, data_dir: &Path) -> Option<PathBuf> {
    let filled = path::fill(template.get_ref(), data_dir);
    let state = |matter| {
        let label = format!("{matter}; expected a path, perhaps with {{data_dir}}");
        section.state(template.span(), key, "has a wrong value", label);
    };
    filled.map_err(state).ok()
}

/// Values that may be there once.
#[derive(Default)]
struct Unique {
    places: HashMap<String, Range<usize>>,
}

impl Unique {
    fn claim(&mut self, section: &Section<'_, '_>, key: &str, value: &str, place: Range<usize>) {
        if let Some(first) = self.places.get(value) {
            let title = format!("{value:?} is there twice");
            let fault = Fault::new(place, title, format!("expected another `{key}`")).with_earlier(first.clone());
            section.state_fault(fault);
        } else {
            self.places.insert(value.to_owned(), place);
        }
    }

    fn names(self) -> Vec<String> {
        let mut names: Vec<_> = self.places.into_iter().collect();
        names.sort_by_key(|(_, place)| place.start);
        names.into_iter().map(|(name, _)| name).collect()
    }
}
