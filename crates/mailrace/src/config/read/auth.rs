//! `[auth]`, and its effect on listeners.

use lookup::credentials::{Bound, Settings, ThrottleSettings};
use toml::Spanned;

use super::{bare, known, named};
use crate::config::key::{self, Kind};
use crate::config::section::Section;
use crate::config::{Auth, AuthSource, ListenerTls, Mechanism, Network, Protocol, Table, TableKind};

/// What listeners need to know about `[auth]`.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// The section exists, valid or not.
    is_there: bool,
    clear_text: bool,
}

const MECHANISM: Kind<Mechanism> =
    Kind { expected: "\"PLAIN\", \"LOGIN\" or \"SCRAM-SHA-256\"", read: |v| Mechanism::from_name(v.as_str()?) };

/// The default mechanisms, in the order that old clients expect. SCRAM is not a default: clients
/// prefer it and do not fall back, so users whose password is stored as another hash could not log
/// in.
const PASSWORD_MECHANISMS: [Mechanism; 2] = [Mechanism::Plain, Mechanism::Login];

pub(super) fn auth(document: &mut Section<'_, '_>, tables: &[Table], names: &[String]) -> (Option<Auth>, Known) {
    let Some(mut section) = document.section("auth") else { return (None, Known::default()) };
    let source = source(&mut section, tables, names);
    let mechanisms = mechanisms(&mut section, source.as_ref());
    let scram = mechanisms.contains(&Mechanism::ScramSha256);
    let senders = named(&mut section, "senders", "table", names).map(|name| name.into_inner().into());
    let clear_text = section.take_or("clear_text", &key::FLAG, false);
    let trace_users = section.take_or("trace_users", &key::FLAG, false);
    let (checking, shared_clients) = checking(&mut section, scram);
    let known = Known { is_there: true, clear_text };
    let sound = |source| Auth { source, mechanisms, senders, clear_text, trace_users, checking, shared_clients };
    (source.map(sound), known)
}

fn source(section: &mut Section<'_, '_>, tables: &[Table], names: &[String]) -> Option<AuthSource> {
    let bind = section.placed("bind", &key::TEXT);
    if let Some(name) = bind {
        section.refuse("passwords", "expected either `passwords` or `bind`");
        known(section, "bind", &name, "table", names);
        if let Some(table) = tables.iter().find(|table| *table.name == **name.get_ref())
            && !matches!(table.kind, TableKind::Ldap(_))
        {
            let label = format!("found one of type {:?}, expected one of type \"ldap\"", table.kind.word());
            section.state(name.span(), "bind", "needs a table of type ldap", label);
        }
        return Some(AuthSource::Bind(name.into_inner().into()));
    }
    section.demand("passwords", "the name of a table, or `bind` with the name of a table of type ldap");
    named(section, "passwords", "table", names).map(|name| AuthSource::Passwords(name.into_inner().into()))
}

fn mechanisms(section: &mut Section<'_, '_>, source: Option<&AuthSource>) -> Vec<Mechanism> {
    let binds = matches!(source, Some(AuthSource::Bind(_)));
    let place = section.place_of("mechanisms");
    let Some(written) = section.list("mechanisms", &MECHANISM) else { return PASSWORD_MECHANISMS.into() };
    if written.is_empty() {
        section.state(place, "mechanisms", "is empty", format!("expected at least one of {}", MECHANISM.expected));
    }
    if let Some(scram) = written.iter().find(|it| binds && *it.get_ref() == Mechanism::ScramSha256) {
        let label = "binding to a directory gives no keys for SCRAM; expected \"PLAIN\" or \"LOGIN\"".to_owned();
        section.state(scram.span(), "mechanisms", "has a mechanism that does not work with `bind`", label);
    }
    let mut mechanisms: Vec<Mechanism> = Vec::new();
    for mechanism in written.into_iter().map(Spanned::into_inner) {
        if !mechanisms.contains(&mechanism) {
            mechanisms.push(mechanism);
        }
    }
    mechanisms
}

fn checking(section: &mut Section<'_, '_>, scram: bool) -> (Settings, Vec<Network>) {
    let or = Settings::default();
    let threads = match section.take_or("threads", &Kind::COUNT_OR_ZERO, 0) {
        0 => or.threads,
        count => count,
    };
    let waiting_max = section.take_or("waiting", &Kind::COUNT, or.waiting_max);
    let recent_ttl = section.take_or("remember", &key::SPAN_OR_ZERO, or.recent_ttl);
    let (throttle, shared_clients) = section.section("throttle").map_or_else(Default::default, throttle);
    (Settings { threads, waiting_max, recent_ttl, throttle, scram, ..or }, shared_clients)
}

fn throttle(mut section: Section<'_, '_>) -> (ThrottleSettings, Vec<Network>) {
    let or = ThrottleSettings::default();
    let shared_clients = section.list("shared_clients", &key::NETWORK).map(bare).unwrap_or_default();
    let settings = ThrottleSettings {
        window: section.take_or("window", &key::SPAN, or.window),
        pair: bound(&mut section, "pair", or.pair),
        client: bound(&mut section, "client", or.client),
        user: bound(&mut section, "user", or.user),
        known_for: section.take_or("known_for", &key::SPAN, or.known_for),
        pair_at_once: section.take_or("pair_at_once", &Kind::COUNT, or.pair_at_once),
        client_at_once: section.take_or("client_at_once", &Kind::COUNT, or.client_at_once),
        places: section.take_or("places", &Kind::COUNT, or.places),
        ..or
    };
    (settings, shared_clients)
}

fn bound(section: &mut Section<'_, '_>, key: &'static str, or: Bound) -> Bound {
    let Some(mut section) = section.section(key) else { return or };
    let delay_max = section.take_or("longest", &key::SPAN, or.delay_max);
    Bound {
        failures: section.take_or("failures", &Kind::COUNT, or.failures),
        delay: section.take_or("delay", &key::SPAN, or.delay.min(delay_max)),
        delay_max,
    }
}

/// Whether clients of a listener may log in, and whether they must.
pub(super) fn listener(
    section: &mut Section<'_, '_>,
    protocol: Option<Protocol>,
    tls: ListenerTls,
    known: Known,
) -> (bool, bool) {
    let is_submission = protocol == Some(Protocol::Submission);
    let place = [section.place_of("auth"), section.place_of("require_auth"), section.place_of("protocol")];
    let [of_auth, of_required, of_protocol] = place;
    let written = section.take("auth", &key::FLAG);
    let auth = written.unwrap_or(is_submission);
    let required = section.take("require_auth", &key::FLAG);
    if required == Some(true) && !auth {
        section.state(of_required, "require_auth", "is not allowed here", "expected only with auth = true".into());
    }
    let (place, key) = if written.is_some() { (of_auth, "auth") } else { (of_protocol, "protocol") };
    if auth && !known.is_there {
        let label = "expected a section [auth]".into();
        section.state(place, key, "needs an [auth] section", label);
    } else if auth && tls == ListenerTls::None && !known.clear_text {
        let label =
            "expected TLS and a [[certificate]], or clear_text = true in [auth]: otherwise nobody can log in".into();
        section.state(place, key, "needs TLS", label);
    }
    (auth, auth && required.unwrap_or(is_submission))
}
