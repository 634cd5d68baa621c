//! From the TOML document to the validated configuration, section by section. `value_kind` defines
//! what a value looks like; this module knows the sections, their defaults, and how settings depend
//! on each other.

mod access;
mod acme;
mod auth;
mod cluster;
mod content;
mod domains;
mod external;
mod greylist;
mod limits;
mod message_routes;
mod pipe;
mod queues;
mod rate_limits;
mod relay_auth;
mod reports;
mod retrieval;
mod rewrite;
mod route_target;
mod routing;
mod sender_auth;
mod signing;
mod srs;
mod storage;
mod tables;
mod tls;
mod transport_tls;
mod transports;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use intake::GreetingPolicy;
use mail::Networks;
use protocol::TlsMode;
use toml::Spanned;
use toml::de::DeTable;

use super::error::{ConfigError, ConfigErrors};
use super::hint::did_you_mean;
use super::section::{Diagnostics, Keywords, Section};
use super::value_kind::{self, ValueKind};
use super::{
    Config, HttpServerSettings, ListenerProtocol, ListenerSettings, NulPolicy, Pop3Settings, RelaySettings,
    SmtpServerSettings, path, secret,
};

const DATA_DIR: &str = "./mailrace-data";

/// Parses the whole text and reports all errors together, but only the first if the text is not
/// TOML.
pub(super) fn config(text: &str, origin: &str, machine: &str) -> Result<Config, ConfigErrors> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let faults = errors.iter().map(syntax_error).collect();
        return Err(ConfigErrors::new(origin, text, faults, &secret::likely_secret_spans(text)));
    }
    let document = document.into_inner();
    let diagnostics = Diagnostics { secrets: secret::secret_spans(&document).into(), ..Diagnostics::default() };
    let config = read_document(Section::document(document, &diagnostics), machine);
    match diagnostics.errors.into_inner() {
        faults if faults.is_empty() => Ok(config),
        faults => Err(ConfigErrors::new(origin, text, faults, &diagnostics.secrets.into_inner())),
    }
}

fn syntax_error(error: &toml::de::Error) -> ConfigError {
    ConfigError::new(error.span().unwrap_or(0..0), "this is not TOML", error.message())
}

fn read_document(mut document: Section<'_, '_>, machine: &str) -> Config {
    let data_dir = data_dir(&mut document);
    let hostname = hostname(&mut document, machine);
    let limits = limits::limits(&mut document);
    let mut load = limits::load(&mut document);
    let (tables, table_names) = tables::tables(&mut document, &data_dir);
    let (dns, missing_addresses) = routing::dns(&mut document);
    let transports = transports::transports(&mut document, &table_names, &data_dir, &hostname, dns.query.validating);
    let acme = acme::acme(&mut document, &data_dir);
    let (certificates, has_certificate) = tls::certificates(&mut document, &data_dir, acme.as_ref());
    let (auth, logins) = auth::auth(&mut document, &tables, &table_names);
    let (domains, domain_tables) = domains::domains(&mut document, &table_names, &transports);
    let (http, pop3) = (retrieval::http(&mut document), retrieval::pop3(&mut document));
    let has_acme = acme.is_some();
    let inputs = ListenerInputs { has_certificate, has_acme, logins, http: &http, pop3: &pop3, data_dir: &data_dir };
    let listeners = listeners(&mut document, &inputs);
    acme.iter().for_each(|section| acme::check_listeners(&document, section, &certificates, &listeners));
    let queues = queues::queues(&mut document, &table_names);
    let sender_auth = sender_auth::verification(&mut document, &queues);
    let (routes, message_routes) = routing::routes(&mut document, &table_names, &transports, &domains);
    let spool = storage::spool(&mut document, &data_dir, limits.spill_above, &mut load.limits);
    Config {
        user: document.take("user", &value_kind::TEXT).map(Into::into),
        allow_root: document.take_or("allow_root", &value_kind::FLAG, false),
        threads: document.take_or("threads", &ValueKind::COUNT_OR_ZERO, 0),
        auth,
        tls: tls::server(&mut document),
        content_filter: routing::content_filter(&mut document, &transports),
        routes,
        message_routes,
        next_hops: routing::next_hops(&mut document),
        dns,
        missing_addresses,
        relay: relay(&mut document),
        access: access::rules(&mut document, &table_names, &listeners, &sender_auth),
        content: content::rules(&mut document, &table_names, &transports.names, &listeners, &queues),
        rewrite: rewrite::rewriting(&mut document, &table_names),
        bcc: rewrite::copies(&mut document, &table_names),
        milters: external::milters(&mut document, &listeners),
        policy_services: external::policy_services(&mut document, &listeners),
        rate_limits: rate_limits::limits(&mut document, &listeners),
        greylist: greylist::greylist(&mut document, &listeners, &data_dir),
        sender_auth,
        reports: reports::reports(&mut document),
        smtp: smtp(&mut document),
        pop3,
        proxy: retrieval::proxy(&mut document, &data_dir, &listeners),
        listeners,
        http,
        queues,
        scheduler: queues::scheduler(&mut document),
        bounce: limits::bounce(&mut document),
        signing: signing::signing(&mut document, &table_names, &data_dir),
        srs: srs::srs(&mut document, &hostname, &data_dir),
        cluster: cluster::cluster(&mut document, machine, &data_dir, spool.durability),
        spool,
        log: storage::log(&mut document, &data_dir),
        admin: storage::admin(&mut document, &data_dir),
        api: retrieval::api(&mut document),
        load,
        limits,
        certificates,
        acme: acme.and_then(|section| section.settings),
        tables,
        domains,
        domain_tables,
        transports: transports.valid,
        hostname,
        origin: document.take("origin", &value_kind::HOST),
        data_dir,
    }
}

fn hostname(document: &mut Section<'_, '_>, machine: &str) -> Box<str> {
    let hostname = document.take("hostname", &value_kind::HOST).or_else(|| value_kind::host(machine));
    hostname.unwrap_or_else(|| "localhost".into())
}

fn data_dir(document: &mut Section<'_, '_>) -> PathBuf {
    let Some(written) = document.take_spanned("data_dir", &value_kind::TEXT) else { return PathBuf::from(DATA_DIR) };
    if let Some(placeholder) = written.get_ref().find(['{', '}']) {
        let label = format!("found a brace at character {}, expected a path without placeholders", placeholder + 1);
        document.report(written.span(), "data_dir", "has an invalid value", label);
    }
    PathBuf::from(written.get_ref())
}

const PROTOCOL: Keywords<ListenerProtocol> = Keywords { supported: ListenerProtocol::NAMES, planned: &[] };

/// What listeners need to know of other sections.
struct ListenerInputs<'a> {
    has_certificate: bool,
    /// Whether certificate authorities may ask: a listener may serve nothing but the answers.
    has_acme: bool,
    logins: auth::AuthContext,
    http: &'a HttpServerSettings,
    pop3: &'a Pop3Settings,
    data_dir: &'a Path,
}

fn listeners(document: &mut Section<'_, '_>, inputs: &ListenerInputs<'_>) -> Vec<ListenerSettings> {
    let Some(sections) = document.sections("listener") else {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2525));
        let tls = if inputs.has_certificate { TlsMode::Offered } else { TlsMode::Never };
        let (auth, require_auth) = (false, false);
        return vec![ListenerSettings {
            protocol: ListenerProtocol::Smtp,
            address,
            tls,
            auth,
            require_auth,
            from_content_filter: false,
            proxies: Networks::default(),
            greeting: GreetingPolicy::default(),
            sendfile: true,
            http: None,
            api: false,
        }];
    };
    let mut unique = Unique::default();
    sections.into_iter().filter_map(|section| listener(section, inputs, &mut unique)).collect()
}

fn listener(
    mut section: Section<'_, '_>,
    inputs: &ListenerInputs<'_>,
    unique: &mut Unique,
) -> Option<ListenerSettings> {
    let of_protocol = section.span_of("protocol");
    let protocol = section.take_required_choice("protocol", &PROTOCOL);
    let of_api = section.span_of("api");
    let api = retrieval::serves_api(&mut section, protocol);
    let serves_mailboxes = !api && retrieval::serves_mailboxes(&mut section, protocol);
    let tls = tls::listener(&mut section, protocol, inputs.has_certificate);
    let (auth, require_auth) = auth::listener(&mut section, protocol, serves_mailboxes, tls, inputs.logins);
    let sendfile = retrieval::sendfile(&mut section, protocol);
    let http = (protocol == Some(ListenerProtocol::Http) && !api)
        .then(|| retrieval::http_listener(&mut section, serves_mailboxes, require_auth, sendfile, inputs))
        .flatten();
    let from_content_filter = from_content_filter(&mut section, protocol);
    let proxies = networks(&mut section, "proxy_from").unwrap_or_default();
    let greeting = greeting(&mut section, protocol, tls);
    let endpoint = section.take_required("address", &value_kind::ENDPOINT)?;
    let place = endpoint.span();
    let Some(address) = endpoint.into_inner() else {
        section.report(
            place,
            "address",
            "is not supported yet",
            "listening on unix sockets is not supported yet".into(),
        );
        return None;
    };
    if protocol == Some(ListenerProtocol::Submission) && tls == TlsMode::Never && !address.ip().is_loopback() {
        let label = "expected a [[certificate]], or a loopback address such as 127.0.0.1".to_owned();
        section.report(of_protocol, "protocol", "needs TLS on addresses that other hosts can reach", label);
    }
    if api && tls == TlsMode::Never && !address.ip().is_loopback() {
        let label =
            "expected tls = \"implicit\" and a [[certificate]], or a loopback address such as 127.0.0.1".to_owned();
        section.report(of_api, "api", "needs TLS on addresses that other hosts can reach", label);
    }
    if address.port() != 0 {
        unique.insert(&section, "address", &address.to_string(), place);
    }
    Some(ListenerSettings {
        protocol: protocol?,
        address,
        tls,
        auth,
        require_auth,
        from_content_filter,
        proxies,
        greeting,
        sendfile,
        http,
        api,
    })
}

/// Whether the content filter sends mail back to this listener.
fn from_content_filter(section: &mut Section<'_, '_>, protocol: Option<ListenerProtocol>) -> bool {
    let place = section.span_of("from_content_filter");
    let wanted = section.take_or("from_content_filter", &value_kind::FLAG, false);
    let takes_mail = matches!(protocol, None | Some(ListenerProtocol::Smtp | ListenerProtocol::Lmtp));
    if wanted && !takes_mail {
        let label = "expected only with protocol = \"smtp\" or \"lmtp\"".to_owned();
        section.report(place, "from_content_filter", "is not allowed here", label);
    }
    wanted
}

/// What clients must do before the greeting. With TLS from the first byte, they have to talk first.
fn greeting(section: &mut Section<'_, '_>, protocol: Option<ListenerProtocol>, tls: TlsMode) -> GreetingPolicy {
    if protocol.is_none_or(ListenerProtocol::is_retrieval) || tls == TlsMode::Implicit {
        let why = "expected only where mail is received, and not with tls = \"implicit\"";
        ["greeting_delay", "greeting_exempt", "early_talkers"].into_iter().for_each(|key| section.reject(key, why));
        return GreetingPolicy::default();
    }
    let defaults = GreetingPolicy::default();
    GreetingPolicy {
        delay: section.take("greeting_delay", &value_kind::GREETING_DELAY),
        exempt: networks(section, "greeting_exempt").unwrap_or(defaults.exempt),
        refuses_early_talkers: section
            .choice("early_talkers", &EARLY_TALKERS)
            .unwrap_or(defaults.refuses_early_talkers),
    }
}

const EARLY_TALKERS: Keywords<bool> = Keywords { supported: &[("refuse", true), ("accept", false)], planned: &[] };

/// The name of another section.
fn take_reference(
    section: &mut Section<'_, '_>,
    key: &'static str,
    kind: &str,
    names: &[String],
) -> Option<Spanned<String>> {
    let name = section.take_spanned(key, &value_kind::TEXT)?;
    check_known_name(section, key, &name, kind, names);
    Some(name)
}

/// Reports a name under `key` that no section has.
fn check_known_name(section: &Section<'_, '_>, key: &str, name: &Spanned<String>, kind: &str, names: &[String]) {
    if !names.contains(name.get_ref()) {
        let title = format!("unknown {kind} in `{key}`");
        let label = match names {
            [] => format!("found {:?}, but there is no {kind}", name.get_ref()),
            names => format!("found {:?}, expected one of: {}", name.get_ref(), names.join(", ")),
        };
        let help = did_you_mean(name.get_ref(), names.iter().map(String::as_str));
        section.report_error(ConfigError::new(name.span(), title, label).with_help(help));
    }
}

fn relay(document: &mut Section<'_, '_>) -> RelaySettings {
    let defaults = RelaySettings::default();
    let Some(mut section) = document.section("relay") else { return defaults };
    RelaySettings {
        networks: networks(&mut section, "networks").unwrap_or(defaults.networks),
        is_deferred: section.choice("others", &RELAY_OTHERS).unwrap_or(defaults.is_deferred),
    }
}

const RELAY_OTHERS: Keywords<bool> = Keywords { supported: &[("refuse", false), ("defer", true)], planned: &[] };

const NUL: Keywords<NulPolicy> = Keywords {
    supported: &[("keep", NulPolicy::Keep), ("strip", NulPolicy::Strip), ("refuse", NulPolicy::Refuse)],
    planned: &[],
};

fn smtp(document: &mut Section<'_, '_>) -> SmtpServerSettings {
    let defaults = SmtpServerSettings::default();
    let Some(mut section) = document.section("smtp") else { return defaults };
    let mut networks = |key| networks(&mut section, key).unwrap_or_default();
    SmtpServerSettings {
        normalise_bare_newlines_from: networks("normalise_bare_newlines_from"),
        xclient_from: networks("xclient_from"),
        strict_addresses: section.take_or("strict_addresses", &value_kind::FLAG, defaults.strict_addresses),
        nul: section.choice("nul", &NUL).unwrap_or(defaults.nul),
        enforces_sync: section.take_or("enforce_sync", &value_kind::FLAG, defaults.enforces_sync),
    }
}

fn networks(section: &mut Section<'_, '_>, key: &'static str) -> Option<Networks> {
    section.list(key, &value_kind::NETWORK).map(|list| unspanned(list).into())
}

fn unspanned<T>(placed: Vec<Spanned<T>>) -> Vec<T> {
    placed.into_iter().map(Spanned::into_inner).collect()
}

/// `first` and `longest` of growing waits; `first` must not exceed `longest`.
fn read_waits(section: &mut Section<'_, '_>, first: Duration, longest: Duration) -> (Duration, Duration) {
    let longest = section.take_or("longest", &value_kind::DURATION, longest);
    let written = section.take_spanned("first", &value_kind::DURATION);
    if let Some(written) = written.as_ref().filter(|written| *written.get_ref() > longest) {
        let label = format!("expected no more than `longest`, {longest:?}");
        section.report(written.span(), "first", "has an invalid value", label);
    }
    (written.map_or(first.min(longest), Spanned::into_inner), longest)
}

/// A path with `{data_dir}` replaced.
fn fill_path(section: &Section<'_, '_>, key: &str, template: &Spanned<String>, data_dir: &Path) -> Option<PathBuf> {
    let filled = path::fill_data_dir(template.get_ref(), data_dir);
    let state = |matter| {
        let label = format!("{matter}; expected a path, optionally with {{data_dir}}");
        section.report(template.span(), key, "has an invalid value", label);
    };
    filled.map_err(state).ok()
}

/// Values that may appear only once.
#[derive(Default)]
struct Unique {
    first_spans: HashMap<String, Range<usize>>,
}

impl Unique {
    fn insert(&mut self, section: &Section<'_, '_>, key: &str, value: &str, place: Range<usize>) {
        if let Some(first) = self.first_spans.get(value) {
            let title = format!("{value:?} appears twice");
            let fault = ConfigError::new(place, title, format!("expected another `{key}`")).with_earlier(first.clone());
            section.report_error(fault);
        } else {
            self.first_spans.insert(value.to_owned(), place);
        }
    }

    fn is_empty(&self) -> bool {
        self.first_spans.is_empty()
    }

    fn names(self) -> Vec<String> {
        let mut names: Vec<_> = self.first_spans.into_iter().collect();
        names.sort_by_key(|(_, place)| place.start);
        names.into_iter().map(|(name, _)| name).collect()
    }
}
