//! `[pop3]`, `[http]`, `[api]`, `[proxy]`, and what listeners of these protocols serve.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use mailbox::maildrop::{MaildropSettings, UidFormat};
use protocol::http::server::HttpServerLimits;
use protocol::pop3::server::Pop3Limits;
use retrieval::http::{ContentSettings, FileCacheSettings, FileSettings, HttpSettings, MailboxLimits, MailboxSettings};
use retrieval::proxy::{BackendAddress, BackendLimits, MasterUserForm};

use super::{ListenerInputs, fill_path, unspanned};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};
use crate::{
    ApiSettings, BackendAccountSettings, BackendTlsMode, HttpServerSettings, ListenerProtocol, ListenerSettings,
    Pop3Settings, ProxySettings,
};

const UID_FORMAT: ValueKind<UidFormat> = ValueKind {
    expected: "the variables of Dovecot's pop3_uidl_format, as in \"%08Xu%08Xv\"",
    parse: |v| v.as_str()?.parse().ok(),
};

const BACKEND_ADDRESS: ValueKind<BackendAddress> = ValueKind {
    expected: "a host and a port, as in \"127.0.0.1:1143\"",
    parse: |v| BackendAddress::parse(v.as_str()?, 0).ok().filter(|address| address.port != 0),
};

const BACKEND_TLS: Keywords<BackendTlsMode> = Keywords {
    supported: &[
        ("none", BackendTlsMode::Never),
        ("starttls", BackendTlsMode::StartTls),
        ("implicit", BackendTlsMode::Implicit),
    ],
    planned: &[],
};

pub(super) fn pop3(document: &mut Section<'_, '_>) -> Pop3Settings {
    let Pop3Settings { limits, maildrop } = Pop3Settings::default();
    let Some(mut s) = document.section("pop3") else { return Pop3Settings { limits, maildrop } };
    Pop3Settings {
        limits: Pop3Limits {
            login_time_max: s.take_or("login_time", &value_kind::DURATION, limits.login_time_max),
            idle_time_max: s.take_or("idle_time", &value_kind::DURATION, limits.idle_time_max),
            session_time_max: s.take_or("session_time", &value_kind::DURATION, limits.session_time_max),
            commands_max: s.take_or("commands", &ValueKind::COUNT, limits.commands_max),
            errors_max: s.take_or("errors", &ValueKind::COUNT, limits.errors_max),
            failed_logins_max: s.take_or("failed_logins", &ValueKind::COUNT, limits.failed_logins_max),
            ..limits
        },
        maildrop: MaildropSettings {
            uid_format: s.take_or("uid_format", &UID_FORMAT, maildrop.uid_format),
            lock_timeout: s.take_or("lock_timeout", &value_kind::DURATION, maildrop.lock_timeout),
            lock_file: s.take_or("lock_file", &value_kind::FLAG, maildrop.lock_file),
            sync_deletions: s.take_or("sync_deletions", &value_kind::FLAG, maildrop.sync_deletions),
        },
    }
}

pub(super) fn http(document: &mut Section<'_, '_>) -> HttpServerSettings {
    let HttpServerSettings { limits, cache, mailboxes } = HttpServerSettings::default();
    let Some(mut s) = document.section("http") else { return HttpServerSettings { limits, cache, mailboxes } };
    HttpServerSettings {
        limits: HttpServerLimits {
            head_time_max: s.take_or("head_time", &value_kind::DURATION, limits.head_time_max),
            idle_time_max: s.take_or("idle_time", &value_kind::DURATION, limits.idle_time_max),
            send_time_max: s.take_or("send_time", &value_kind::DURATION, limits.send_time_max),
            requests_max: s.take_or("requests", &ValueKind::COUNT, limits.requests_max),
            ..limits
        },
        cache: FileCacheSettings {
            time: s.take_or("cache_time", &value_kind::DURATION, cache.time),
            entries_max: s.take_or("cache_files", &ValueKind::COUNT_OR_ZERO, cache.entries_max),
            octets_max: s.take("cache_memory", &value_kind::SIZE).map_or(cache.octets_max, |octets| octets as usize),
        },
        mailboxes: MailboxLimits {
            message_octets_max: s.take_or("message_size", &value_kind::LOADED_SIZE, mailboxes.message_octets_max),
            memory_octets_max: s
                .take("message_memory", &value_kind::SIZE)
                .map_or(mailboxes.memory_octets_max, |octets| octets as usize),
            parts_max: s.take_or("parts", &ValueKind::COUNT, mailboxes.parts_max),
            head_octets_max: s.take_or("head_size", &value_kind::HEAD_SIZE, mailboxes.head_octets_max),
            listing_time: s.take_or("listing_time", &value_kind::DURATION_OR_ZERO, mailboxes.listing_time),
        },
    }
}

pub(super) fn api(document: &mut Section<'_, '_>) -> ApiSettings {
    let defaults = ApiSettings::default();
    let Some(mut s) = document.section("api") else { return defaults };
    ApiSettings {
        hosts: s.list("hosts", &value_kind::HOST).map_or(defaults.hosts, unspanned),
        connections_max: s.take_or("connections", &ValueKind::COUNT, defaults.connections_max),
        page_entries_max: s.take_or("page", &ValueKind::COUNT, defaults.page_entries_max),
        metrics_next_hops_max: s.take_or("next_hop_metrics", &ValueKind::COUNT_OR_ZERO, defaults.metrics_next_hops_max),
    }
}

/// Whether a listener serves the API. It has tokens instead of logins, and nothing else to set.
pub(super) fn serves_api(section: &mut Section<'_, '_>, protocol: Option<ListenerProtocol>) -> bool {
    let serves_api = protocol == Some(ListenerProtocol::Http) && section.take_or("api", &value_kind::FLAG, false);
    if serves_api {
        for key in ["files", "mailboxes", "index", "listing", "realm", "sendfile", "auth", "require_auth"] {
            section.reject(key, "expected only without `api`");
        }
    }
    serves_api
}

/// Whether a listener may use sendfile.
pub(super) fn sendfile(section: &mut Section<'_, '_>, protocol: Option<ListenerProtocol>) -> bool {
    let may_choose = matches!(protocol, Some(ListenerProtocol::Pop3 | ListenerProtocol::Http));
    !may_choose || section.take_or("sendfile", &value_kind::FLAG, true)
}

/// Whether a listener serves mailboxes by HTTP, so that users must log in.
pub(super) fn serves_mailboxes(section: &mut Section<'_, '_>, protocol: Option<ListenerProtocol>) -> bool {
    protocol == Some(ListenerProtocol::Http) && section.take_or("mailboxes", &value_kind::FLAG, false)
}

/// What a listener serves by HTTP: files, or mailboxes.
pub(super) fn http_listener(
    section: &mut Section<'_, '_>,
    serves_mailboxes: bool,
    requires_login: bool,
    sendfile: bool,
    inputs: &ListenerInputs<'_>,
) -> Option<Box<HttpSettings>> {
    let content = if serves_mailboxes {
        for key in ["files", "index", "listing"] {
            section.reject(key, "expected only without `mailboxes`");
        }
        let (lock_timeout, limits) = (inputs.pop3.maildrop.lock_timeout, inputs.http.mailboxes);
        Some(ContentSettings::Mailboxes(MailboxSettings { lock_timeout, limits }))
    } else if inputs.has_acme && !section.has("files") {
        for key in ["index", "listing", "realm"] {
            section.reject(key, "expected only with `files` or `mailboxes`");
        }
        Some(ContentSettings::Nothing)
    } else {
        files(section, requires_login, inputs).map(ContentSettings::Files)
    };
    let realm = section.take("realm", &value_kind::TEXT);
    let defaults = HttpSettings::new(content?);
    Some(Box::new(HttpSettings {
        sendfile,
        realm: realm.map_or(defaults.realm, Into::into),
        clear_text_logins: inputs.logins.clear_text,
        limits: inputs.http.limits,
        ..defaults
    }))
}

fn files(section: &mut Section<'_, '_>, requires_login: bool, inputs: &ListenerInputs<'_>) -> Option<FileSettings> {
    section.report_if_missing("files", "the folder to serve, mailboxes = true, or api = true");
    let folder = section.take_spanned("files", &value_kind::TEXT);
    let folder = folder.and_then(|folder| fill_path(section, "files", &folder, inputs.data_dir));
    let index = section.list("index", &value_kind::TEXT);
    let lists_folders = section.take_or("listing", &value_kind::FLAG, false);
    let defaults = FileSettings::new(folder?);
    Some(FileSettings {
        index: index.map_or(defaults.index, |names| unspanned(names).into_iter().map(Into::into).collect()),
        lists_folders,
        requires_login,
        cache: inputs.http.cache,
        ..defaults
    })
}

pub(super) fn proxy(document: &mut Section<'_, '_>, data_dir: &Path, listeners: &[ListenerSettings]) -> ProxySettings {
    let defaults = ProxySettings::default();
    let Some(mut s) = document.section("proxy") else { return defaults };
    let backends = defaults.backends;
    ProxySettings {
        pop3_port: s.take_or("pop3_port", &value_kind::PORT, defaults.pop3_port),
        imap_port: s.take_or("imap_port", &value_kind::PORT, defaults.imap_port),
        tls: s.choice("tls", &BACKEND_TLS).unwrap_or(defaults.tls),
        account: account(&mut s, data_dir),
        local_pop3: local_backend(&mut s, "local_pop3", listeners, ListenerProtocol::Pop3Proxy),
        local_imap: local_backend(&mut s, "local_imap", listeners, ListenerProtocol::ImapProxy),
        tells_client_address: s.take_or("tell_client_address", &value_kind::FLAG, defaults.tells_client_address),
        idle_time_max: s.take_or("idle_time", &value_kind::DURATION, defaults.idle_time_max),
        backends: BackendLimits {
            connect_time_max: s.take_or("connect_timeout", &value_kind::DURATION, backends.connect_time_max),
            login_time_max: s.take_or("login_timeout", &value_kind::DURATION, backends.login_time_max),
            connects_max: s.take_or("connects", &ValueKind::COUNT, backends.connects_max),
            hosts_max: s.take_or("hosts", &ValueKind::COUNT, backends.hosts_max),
        },
    }
}

/// Where mailboxes on this host are served, which must not be the proxy itself.
fn local_backend(
    section: &mut Section<'_, '_>,
    key: &'static str,
    listeners: &[ListenerSettings],
    proxy: ListenerProtocol,
) -> Option<BackendAddress> {
    let backend = section.take_spanned(key, &BACKEND_ADDRESS)?;
    let leads_to = |listener: &&ListenerSettings| {
        let BackendAddress { host, port } = backend.get_ref();
        let ip = if **host == *"localhost" { Ok(IpAddr::from(Ipv4Addr::LOCALHOST)) } else { host.parse() };
        let own = listener.address;
        let is_own_ip = |ip: IpAddr| ip == own.ip() || (own.ip().is_unspecified() && ip.is_loopback());
        listener.protocol == proxy && own.port() == *port && ip.is_ok_and(is_own_ip)
    };
    if let Some(listener) = listeners.iter().find(leads_to) {
        let label = format!("found the proxy's own listener {}, expected another server", listener.address);
        section.report(backend.span(), key, "leads back to the proxy", label);
    }
    Some(backend.into_inner())
}

/// Who logs in at the hosts: a master user if there is one, else the user.
fn account(section: &mut Section<'_, '_>, data_dir: &Path) -> BackendAccountSettings {
    let verifies = section.take_or("verify", &value_kind::FLAG, true);
    let Some(user) = section.take("master_user", &value_kind::TEXT) else {
        section.reject("master_password_file", "expected only with `master_user`");
        section.reject("master_separator", "expected only with `master_user`");
        return if verifies { BackendAccountSettings::User } else { BackendAccountSettings::UserUnchecked };
    };
    let file = section.take_required("master_password_file", &value_kind::TEXT);
    let password_file = file.and_then(|file| fill_path(section, "master_password_file", &file, data_dir));
    let separator = section.take("master_separator", &value_kind::DELIMITER).flatten();
    BackendAccountSettings::Master {
        user: user.into(),
        password_file: password_file.unwrap_or_default(),
        form: separator.map_or(MasterUserForm::Authzid, MasterUserForm::Separator),
    }
}
