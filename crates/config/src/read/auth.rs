//! `[auth]`, and its effect on listeners.

use credentials::{CredentialCheckerSettings, ThrottleLimit, ThrottleSettings};
use protocol::TlsMode;
use toml::Spanned;

use super::{check_known_name, networks, take_reference};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{AuthBackend, AuthSettings, ListenerProtocol, Mechanism, TableConfig, TableKind};

/// What listeners need to know about `[auth]`.
#[derive(Clone, Copy, Default)]
pub(super) struct AuthContext {
    /// The section exists, valid or not.
    is_configured: bool,
    /// Passwords may be sent without TLS.
    pub(super) clear_text: bool,
}

const MECHANISM: ValueKind<Mechanism> =
    ValueKind { expected: "\"PLAIN\", \"LOGIN\" or \"SCRAM-SHA-256\"", parse: |v| Mechanism::from_name(v.as_str()?) };

/// The default mechanisms, in the order that old clients expect. SCRAM is not a default: clients
/// prefer it and do not fall back, so users whose password is stored as another hash could not log
/// in.
const PASSWORD_MECHANISMS: [Mechanism; 2] = [Mechanism::Plain, Mechanism::Login];

pub(super) fn auth(
    document: &mut Section<'_, '_>,
    tables: &[TableConfig],
    names: &[String],
) -> (Option<AuthSettings>, AuthContext) {
    let Some(mut section) = document.section("auth") else { return (None, AuthContext::default()) };
    let source = source(&mut section, tables, names);
    let mechanisms = mechanisms(&mut section, source.as_ref());
    let scram = mechanisms.contains(&Mechanism::ScramSha256);
    let senders = take_reference(&mut section, "senders", "table", names).map(|name| name.into_inner().into());
    let clear_text = section.take_or("clear_text", &value_kind::FLAG, false);
    let trace_users = section.take_or("trace_users", &value_kind::FLAG, false);
    let checking = verification(&mut section, scram);
    let known = AuthContext { is_configured: true, clear_text };
    let sound = |source| AuthSettings { source, mechanisms, senders, clear_text, trace_users, verification: checking };
    (source.map(sound), known)
}

fn source(section: &mut Section<'_, '_>, tables: &[TableConfig], names: &[String]) -> Option<AuthBackend> {
    if let Some(socket) = section.take("dovecot", &value_kind::UNIX_SOCKET) {
        for key in ["passwords", "bind"] {
            section.reject(key, "expected only one of `passwords`, `bind` and `dovecot`");
        }
        return Some(AuthBackend::Dovecot(socket));
    }
    let bind = section.take_spanned("bind", &value_kind::TEXT);
    if let Some(name) = bind {
        section.reject("passwords", "expected either `passwords` or `bind`");
        check_known_name(section, "bind", &name, "table", names);
        if let Some(table) = tables.iter().find(|table| *table.name == **name.get_ref())
            && !matches!(table.kind, TableKind::Ldap(_))
        {
            let label = format!("found one of type {:?}, expected one of type \"ldap\"", table.kind.type_name());
            section.report(name.span(), "bind", "needs a table of type ldap", label);
        }
        return Some(AuthBackend::Bind(name.into_inner().into()));
    }
    section.report_if_missing("passwords", "the name of a table, or `bind` with the name of a table of type ldap");
    take_reference(section, "passwords", "table", names).map(|name| AuthBackend::Passwords(name.into_inner().into()))
}

fn mechanisms(section: &mut Section<'_, '_>, source: Option<&AuthBackend>) -> Vec<Mechanism> {
    let binds = matches!(source, Some(AuthBackend::Bind(_) | AuthBackend::Dovecot(_)));
    let place = section.span_of("mechanisms");
    let Some(written) = section.list("mechanisms", &MECHANISM) else { return PASSWORD_MECHANISMS.into() };
    if written.is_empty() {
        section.report(place, "mechanisms", "is empty", format!("expected at least one of {}", MECHANISM.expected));
    }
    if let Some(scram) = written.iter().find(|it| binds && *it.get_ref() == Mechanism::ScramSha256) {
        let label = "a directory and Dovecot give no keys for SCRAM; expected \"PLAIN\" or \"LOGIN\"".to_owned();
        section.report(
            scram.span(),
            "mechanisms",
            "has a mechanism that does not work with `bind` or `dovecot`",
            label,
        );
    }
    let mut mechanisms: Vec<Mechanism> = Vec::new();
    for mechanism in written.into_iter().map(Spanned::into_inner) {
        if !mechanisms.contains(&mechanism) {
            mechanisms.push(mechanism);
        }
    }
    mechanisms
}

fn verification(section: &mut Section<'_, '_>, scram: bool) -> CredentialCheckerSettings {
    let defaults = CredentialCheckerSettings::default();
    let threads = match section.take_or("threads", &ValueKind::COUNT_OR_ZERO, 0) {
        0 => defaults.threads,
        count => count,
    };
    let waiting_max = section.take_or("waiting", &ValueKind::COUNT, defaults.waiting_max);
    let recent_ttl = section.take_or("remember", &value_kind::DURATION_OR_ZERO, defaults.recent_ttl);
    let throttle = section.section("throttle").map_or_else(Default::default, throttle);
    CredentialCheckerSettings { threads, waiting_max, recent_ttl, throttle, scram, ..defaults }
}

fn throttle(mut section: Section<'_, '_>) -> ThrottleSettings {
    let defaults = ThrottleSettings::default();
    ThrottleSettings {
        shared_clients: networks(&mut section, "shared_clients").unwrap_or(defaults.shared_clients),
        window: section.take_or("window", &value_kind::DURATION, defaults.window),
        pair: read_bound(&mut section, "pair", defaults.pair),
        client: read_bound(&mut section, "client", defaults.client),
        user: read_bound(&mut section, "user", defaults.user),
        known_for: section.take_or("known_for", &value_kind::DURATION, defaults.known_for),
        pair_concurrency: section.take_or("pair_at_once", &ValueKind::COUNT, defaults.pair_concurrency),
        client_concurrency: section.take_or("client_at_once", &ValueKind::COUNT, defaults.client_concurrency),
        counters_max: section.take_or("places", &ValueKind::COUNT, defaults.counters_max),
    }
}

fn read_bound(section: &mut Section<'_, '_>, key: &'static str, default: ThrottleLimit) -> ThrottleLimit {
    let Some(mut section) = section.section(key) else { return default };
    let delay_max = section.take_or("longest", &value_kind::DURATION, default.delay_max);
    ThrottleLimit {
        failures: section.take_or("failures", &ValueKind::COUNT, default.failures),
        delay: section.take_or("delay", &value_kind::DURATION, default.delay.min(delay_max)),
        delay_max,
    }
}

/// Whether clients of a listener may log in, and whether they must.
pub(super) fn listener(
    section: &mut Section<'_, '_>,
    protocol: Option<ListenerProtocol>,
    serves_mailboxes: bool,
    tls: TlsMode,
    known: AuthContext,
) -> (bool, bool) {
    // Without logins these would be useless.
    let needs_logins = serves_mailboxes
        || !matches!(protocol, None | Some(ListenerProtocol::Smtp | ListenerProtocol::Lmtp | ListenerProtocol::Http));
    let place = [section.span_of("auth"), section.span_of("require_auth"), section.span_of("protocol")];
    let [of_auth, of_required, of_protocol] = place;
    let written = section.take("auth", &value_kind::FLAG);
    let auth = written.unwrap_or(needs_logins);
    let required = section.take("require_auth", &value_kind::FLAG);
    for (flag, place, key) in [(written, &of_auth, "auth"), (required, &of_required, "require_auth")] {
        if serves_mailboxes && flag == Some(false) {
            let label = "expected true: a mailbox is for its user only".to_owned();
            section.report(place.clone(), key, "has an invalid value", label);
        }
    }
    if required == Some(true) && !auth {
        section.report(of_required, "require_auth", "is not allowed here", "expected only with auth = true".into());
    }
    let (place, key) = if written.is_some() { (of_auth, "auth") } else { (of_protocol, "protocol") };
    if auth && !known.is_configured {
        let label = "expected a section [auth]".into();
        section.report(place, key, "needs an [auth] section", label);
    } else if auth && tls == TlsMode::Never && !known.clear_text {
        let label =
            "expected TLS and a [[certificate]], or clear_text = true in [auth]: otherwise nobody can log in".into();
        section.report(place, key, "needs TLS", label);
    }
    // A login that is not required would protect no file.
    let is_required = required.unwrap_or(needs_logins || protocol == Some(ListenerProtocol::Http));
    (auth, auth && is_required)
}
