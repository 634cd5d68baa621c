//! From the TOML document to the validated configuration, section by section. `key` defines what a
//! value looks like; this module knows the sections, their defaults, and how settings depend on
//! each other.

mod access;
mod auth;
mod bounds;
mod domains;
mod queues;
mod routing;
mod storage;
mod tables;
mod tls;
mod transports;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::DeTable;

use super::fault::{Fault, Faults};
use super::hint::did_you_mean;
use super::key::{self, Kind};
use super::section::{Choice, Findings, Section};
use super::{Config, Listener, ListenerTls, NulPolicy, Protocol, Relay, Smtp, path, secret};

const DATA_DIR: &str = "./mailrace-data";

/// Parses the whole text and reports all errors together, but only the first if the text is not
/// TOML.
pub(super) fn config(text: &str, origin: &str, machine: &str) -> Result<Config, Faults> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let faults = errors.iter().map(syntax).collect();
        return Err(Faults::new(origin, text, faults, &secret::likely_places(text)));
    }
    let document = document.into_inner();
    let findings = Findings { secrets: secret::places(&document).into(), ..Findings::default() };
    let config = document_of(Section::document(document, &findings), machine);
    match findings.faults.into_inner() {
        faults if faults.is_empty() => Ok(config),
        faults => Err(Faults::new(origin, text, faults, &findings.secrets.into_inner())),
    }
}

fn syntax(error: &toml::de::Error) -> Fault {
    Fault::new(error.span().unwrap_or(0..0), "this is not TOML", error.message())
}

fn document_of(mut document: Section<'_, '_>, machine: &str) -> Config {
    let data_dir = document.placed("data_dir", &key::TEXT);
    let data_dir = data_dir.map_or_else(|| PathBuf::from(DATA_DIR), |dir| data_dir_of(&document, &dir));
    let hostname = document.take("hostname", &key::HOST).or_else(|| key::host(machine));
    let hostname = hostname.unwrap_or_else(|| "localhost".into());
    let origin = document.take("origin", &key::HOST);
    let limits = bounds::limits(&mut document);
    let (tables, table_names) = tables::tables(&mut document, &data_dir);
    let transports = transports::transports(&mut document, &table_names, &data_dir, &hostname);
    let (certificates, has_certificate) = tls::certificates(&mut document, &data_dir);
    let (auth, logins) = auth::auth(&mut document, &tables, &table_names);
    let (domains, domain_tables) = domains::domains(&mut document, &table_names, &transports);
    Config {
        user: document.take("user", &key::TEXT).map(Into::into),
        allow_root: document.take_or("allow_root", &key::FLAG, false),
        threads: document.take_or("threads", &Kind::COUNT_OR_ZERO, 0),
        listeners: listeners(&mut document, has_certificate, logins),
        auth,
        tls: tls::server(&mut document),
        routes: routing::routes(&mut document, &table_names, &transports, &domains),
        next_hops: routing::next_hops(&mut document),
        dns: routing::dns(&mut document),
        access: access::rules(&mut document, &table_names),
        relay: relay(&mut document),
        smtp: smtp(&mut document),
        queues: queues::queues(&mut document, &table_names),
        scheduler: queues::scheduler(&mut document),
        load: bounds::load(&mut document),
        bounce: bounds::bounce(&mut document),
        spool: storage::spool(&mut document, &data_dir, limits.spill_above),
        log: storage::log(&mut document, &data_dir),
        admin: storage::admin(&mut document, &data_dir),
        limits,
        certificates,
        tables,
        domains,
        domain_tables,
        transports: transports.sound,
        hostname,
        origin,
        data_dir,
    }
}

fn data_dir_of(document: &Section<'_, '_>, written: &Spanned<String>) -> PathBuf {
    if let Some(placeholder) = written.get_ref().find(['{', '}']) {
        let label = format!("found a brace at character {}, expected a path without placeholders", placeholder + 1);
        document.state(written.span(), "data_dir", "has an invalid value", label);
    }
    PathBuf::from(written.get_ref())
}

const PROTOCOL: Choice<Protocol> = Choice {
    built: &[("smtp", Protocol::Smtp), ("lmtp", Protocol::Lmtp), ("submission", Protocol::Submission)],
    later: &["pop3", "http"],
};

fn listeners(document: &mut Section<'_, '_>, has_certificate: bool, logins: auth::Known) -> Vec<Listener> {
    let Some(sections) = document.sections("listener") else {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2525));
        let tls = if has_certificate { ListenerTls::Starttls } else { ListenerTls::None };
        let (auth, require_auth) = (false, false);
        return vec![Listener { protocol: Protocol::Smtp, address, tls, auth, require_auth, proxies: Vec::new() }];
    };
    let mut unique = Unique::default();
    sections.into_iter().filter_map(|section| listener(section, has_certificate, logins, &mut unique)).collect()
}

fn listener(
    mut section: Section<'_, '_>,
    has_certificate: bool,
    logins: auth::Known,
    unique: &mut Unique,
) -> Option<Listener> {
    let of_protocol = section.place_of("protocol");
    let protocol = section.required_choice("protocol", &PROTOCOL);
    let tls = tls::listener(&mut section, has_certificate);
    let (auth, require_auth) = auth::listener(&mut section, protocol, tls, logins);
    let proxies = bare(section.list("proxy_from", &key::NETWORK).unwrap_or_default());
    let endpoint = section.required("address", &key::ENDPOINT)?;
    let place = endpoint.span();
    let Some(address) = endpoint.into_inner() else {
        section.state(
            place,
            "address",
            "is not supported yet",
            "listening on unix sockets is not supported yet".into(),
        );
        return None;
    };
    if protocol == Some(Protocol::Submission) && tls == ListenerTls::None && !address.ip().is_loopback() {
        let label = "expected a [[certificate]], or a loopback address such as 127.0.0.1".to_owned();
        section.state(of_protocol, "protocol", "needs TLS on addresses that other hosts can reach", label);
    }
    if address.port() != 0 {
        unique.claim(&section, "address", &address.to_string(), place);
    }
    Some(Listener { protocol: protocol?, address, tls, auth, require_auth, proxies })
}

/// The name of another section.
fn named(section: &mut Section<'_, '_>, key: &'static str, kind: &str, names: &[String]) -> Option<Spanned<String>> {
    let name = section.placed(key, &key::TEXT)?;
    known(section, key, &name, kind, names);
    Some(name)
}

/// Reports a name under `key` that no section has.
fn known(section: &Section<'_, '_>, key: &str, name: &Spanned<String>, kind: &str, names: &[String]) {
    if !names.contains(name.get_ref()) {
        let title = format!("unknown {kind} in `{key}`");
        let label = match names {
            [] => format!("found {:?}, but there is no {kind}", name.get_ref()),
            names => format!("found {:?}, expected one of: {}", name.get_ref(), names.join(", ")),
        };
        let help = did_you_mean(name.get_ref(), names.iter().map(String::as_str));
        section.state_fault(Fault::new(name.span(), title, label).with_help(help));
    }
}

fn relay(document: &mut Section<'_, '_>) -> Relay {
    let or = Relay::default();
    let Some(mut section) = document.section("relay") else { return or };
    Relay {
        networks: section.list("networks", &key::NETWORK).map_or(or.networks, bare),
        is_deferred: section.choice("others", &RELAY_OTHERS).unwrap_or(or.is_deferred),
    }
}

const RELAY_OTHERS: Choice<bool> = Choice { built: &[("refuse", false), ("defer", true)], later: &[] };

const NUL: Choice<NulPolicy> = Choice {
    built: &[("keep", NulPolicy::Keep), ("strip", NulPolicy::Strip), ("refuse", NulPolicy::Refuse)],
    later: &[],
};

fn smtp(document: &mut Section<'_, '_>) -> Smtp {
    let or = Smtp::default();
    let Some(mut section) = document.section("smtp") else { return or };
    let mut networks = |key| bare(section.list(key, &key::NETWORK).unwrap_or_default());
    Smtp {
        normalise_bare_newlines_from: networks("normalise_bare_newlines_from"),
        xclient_from: networks("xclient_from"),
        strict_addresses: section.take_or("strict_addresses", &key::FLAG, or.strict_addresses),
        nul: section.choice("nul", &NUL).unwrap_or(or.nul),
        enforces_sync: section.take_or("enforce_sync", &key::FLAG, or.enforces_sync),
    }
}

fn bare<T>(placed: Vec<Spanned<T>>) -> Vec<T> {
    placed.into_iter().map(Spanned::into_inner).collect()
}

/// `first` and `longest` of growing waits; `first` must not exceed `longest`.
fn waits(section: &mut Section<'_, '_>, first: Duration, longest: Duration) -> (Duration, Duration) {
    let longest = section.take_or("longest", &key::SPAN, longest);
    let written = section.placed("first", &key::SPAN);
    if let Some(written) = written.as_ref().filter(|written| *written.get_ref() > longest) {
        let label = format!("expected no more than `longest`, {longest:?}");
        section.state(written.span(), "first", "has an invalid value", label);
    }
    (written.map_or(first.min(longest), Spanned::into_inner), longest)
}

/// A path with `{data_dir}` replaced.
fn filled(section: &Section<'_, '_>, key: &str, template: &Spanned<String>, data_dir: &Path) -> Option<PathBuf> {
    let filled = path::fill(template.get_ref(), data_dir);
    let state = |matter| {
        let label = format!("{matter}; expected a path, optionally with {{data_dir}}");
        section.state(template.span(), key, "has an invalid value", label);
    };
    filled.map_err(state).ok()
}

/// Values that may appear only once.
#[derive(Default)]
struct Unique {
    places: HashMap<String, Range<usize>>,
}

impl Unique {
    fn claim(&mut self, section: &Section<'_, '_>, key: &str, value: &str, place: Range<usize>) {
        if let Some(first) = self.places.get(value) {
            let title = format!("{value:?} appears twice");
            let fault = Fault::new(place, title, format!("expected another `{key}`")).with_earlier(first.clone());
            section.state_fault(fault);
        } else {
            self.places.insert(value.to_owned(), place);
        }
    }

    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn names(self) -> Vec<String> {
        let mut names: Vec<_> = self.places.into_iter().collect();
        names.sort_by_key(|(_, place)| place.start);
        names.into_iter().map(|(name, _)| name).collect()
    }
}
