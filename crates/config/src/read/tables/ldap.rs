//! Tables in LDAP directories: servers, login, search and the local copy.

use std::ops::Range;
use std::path::{Path, PathBuf};

use ldap::replica::{ReplicaConfig, ReplicaError};
use ldap::{GroupMembersConfig, LdapBindMethod, LdapConfig, LdapConnectionConfig, LdapUrl, SearchScope};
use toml::Spanned;

use super::{layers, optional_file, parse_value};
use crate::read::Unique;
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};
use crate::{LdapReplicaConfig, LdapTableConfig};

/// The limit of file systems, less what the store appends.
const FILE_NAME_OCTETS_MAX: usize = 200;
const SCOPE: Keywords<SearchScope> = Keywords {
    supported: &[("base", SearchScope::Base), ("one", SearchScope::One), ("sub", SearchScope::Sub)],
    planned: &[],
};
const SASL: Keywords<()> = Keywords { supported: &[("external", ())], planned: &[] };
/// Whether there is a local copy.
const MODE: Keywords<bool> = Keywords { supported: &[("direct", false), ("replica", true)], planned: &[] };

const URL: ValueKind<String> = ValueKind {
    expected: "a URL such as \"ldap://127.0.0.1:389\", \"ldaps://host\" or \"ldapi:///path\"",
    parse: value_kind::TEXT.parse,
};
const BASE: ValueKind<String> = ValueKind {
    expected: "the DN of an entry, such as \"ou=people,dc=example,dc=org\"",
    parse: value_kind::TEXT.parse,
};
const FILTER: ValueKind<String> =
    ValueKind { expected: "a filter such as \"(mail={key})\"", parse: value_kind::TEXT.parse };
const RESULT: ValueKind<String> = ValueKind {
    expected: "an attribute, or a template such as \"{mailMessageStore}/Maildir/\"",
    parse: value_kind::TEXT.parse,
};

pub(super) fn read_ldap_table(
    section: &mut Section<'_, '_>,
    name: Option<&Spanned<String>>,
    data_dir: &Path,
    files: &mut Unique,
) -> Option<LdapTableConfig> {
    let (servers, password_file) = servers(section, data_dir);
    let base = section.take_required("base", &BASE);
    let scope = section.choice("scope", &SCOPE).unwrap_or_default();
    let asked = ["filter", "members", "entries_max", "referrals"].map(|key| section.span_of(key));
    let filter =
        section.take_required("filter", &FILTER).and_then(|filter| parse_value(section, "filter", &FILTER, &filter));
    let results = section.one_or_list("result", &RESULT).unwrap_or_default();
    let results = results.iter().filter_map(|result| parse_value(section, "result", &RESULT, result)).collect();
    let members = members(section);
    let entries_max = section.take("entries_max", &ValueKind::COUNT);
    let values_max = section.take_or("values_max", &ValueKind::COUNT, LdapConfig::VALUES_MAX);
    let referrals = section.take_or("referrals", &value_kind::FLAG, false);
    let layers = layers::network_settings(section);
    let replica = replica(section, name, data_dir, files);
    let base = base?.into_inner().into();
    let directory = LdapConfig {
        servers: servers?,
        base,
        scope,
        filter: filter?,
        results,
        members,
        values_max,
        entries_max,
        referrals,
    };
    if replica.is_some() {
        check_replica_support(section, &directory, asked);
    }
    Some(LdapTableConfig { directory, password_file, lookup_settings: layers, replica })
}

/// Reports a search that a copy cannot answer. The spans are those of `filter`, `members`,
/// `entries_max` and `referrals`.
fn check_replica_support(
    section: &Section<'_, '_>,
    directory: &LdapConfig,
    [filter, members, entries_max, referrals]: [Range<usize>; 4],
) {
    if let Err(error) = ReplicaConfig::check_ldap_config(directory) {
        let (key, place) = match error {
            ReplicaError::Members => ("members", members),
            ReplicaError::EntriesMax => ("entries_max", entries_max),
            ReplicaError::Referrals => ("referrals", referrals),
            _ => ("filter", filter),
        };
        section.report(place, key, "does not work with mode = \"replica\"", error.to_string());
    }
}

/// How to connect, and the file with the password, which is not read yet.
fn servers(section: &mut Section<'_, '_>, data_dir: &Path) -> (Option<LdapConnectionConfig>, Option<PathBuf>) {
    section.report_if_missing("url", URL.expected);
    let urls = urls(section);
    let known = urls.as_deref().unwrap_or_default();
    let starttls = starttls(section, known);
    let ca_file = ca_file(section, known, starttls, data_dir);
    let (bind, password_file) = bind(section, known, data_dir);
    let connect_timeout =
        section.take_or("connect_timeout", &value_kind::DURATION, LdapConnectionConfig::CONNECT_TIMEOUT);
    let timeout = section.take_or("timeout", &value_kind::DURATION, LdapConnectionConfig::TIMEOUT);
    (urls.map(|urls| LdapConnectionConfig { urls, starttls, ca_file, bind, connect_timeout, timeout }), password_file)
}

/// None if one of them is invalid: then other keys cannot be checked against them.
fn urls(section: &mut Section<'_, '_>) -> Option<Vec<LdapUrl>> {
    let place = section.span_of("url");
    let urls = section.one_or_list("url", &URL)?;
    if urls.is_empty() {
        section.report(place, "url", "is empty", format!("expected at least one element, {}", URL.expected));
    }
    let mut unique = Unique::default();
    urls.iter().for_each(|url| unique.insert(section, "url", url.get_ref(), url.span()));
    let urls: Vec<Option<LdapUrl>> = urls.iter().map(|url| parse_value(section, "url", &URL, url)).collect();
    urls.into_iter().collect()
}

fn starttls(section: &mut Section<'_, '_>, urls: &[LdapUrl]) -> bool {
    let Some(starttls) = section.take_spanned("starttls", &value_kind::FLAG) else { return false };
    let wanted = *starttls.get_ref();
    let is_plain = |url: &LdapUrl| matches!(url, LdapUrl::Tcp { tls: false, .. });
    if let Some(other) = urls.iter().find(|url| wanted && !is_plain(url)) {
        let label = format!("expected only with ldap:// URLs, not with {other}");
        section.report(starttls.span(), "starttls", "is not allowed here", label);
    }
    wanted
}

fn ca_file(section: &mut Section<'_, '_>, urls: &[LdapUrl], starttls: bool, data_dir: &Path) -> Option<PathBuf> {
    let file = optional_file(section, "ca_file", data_dir)?;
    if !starttls && !urls.is_empty() && !urls.iter().any(|url| matches!(url, LdapUrl::Tcp { tls: true, .. })) {
        let label = "expected only with ldaps:// URLs or starttls = true".to_owned();
        section.report(file.span(), "ca_file", "is not allowed here", label);
    }
    Some(file.into_inner())
}

/// How to authenticate. A password in a file is left empty.
fn bind(section: &mut Section<'_, '_>, urls: &[LdapUrl], data_dir: &Path) -> (LdapBindMethod, Option<PathBuf>) {
    let dn = section.take_spanned("bind_dn", &value_kind::TEXT);
    let sasl = section.span_of("sasl");
    let external = section.choice("sasl", &SASL).is_some();
    let password = section.secret("password");
    let file = optional_file(section, "password_file", data_dir);
    if let (Some(_), Some(file)) = (&password, &file) {
        let label = "expected one of `password` and `password_file`, not both".to_owned();
        section.report(file.span(), "password_file", "conflicts with `password`", label);
    }
    let given =
        password.as_ref().map(|it| ("password", it.span())).or(file.as_ref().map(|it| ("password_file", it.span())));
    match (&dn, given) {
        (Some(dn), _) if external => {
            let label = "expected only without `sasl`, which authenticates by the connection".to_owned();
            section.report(dn.span(), "bind_dn", "is not allowed here", label);
        }
        (Some(dn), None) => {
            // RFC 4513 section 5.1.2: a bind with a name and no password is anonymous, and
            // succeeds.
            let label = "expected `password` or `password_file` too; without one, the bind is anonymous".to_owned();
            section.report(dn.span(), "bind_dn", "needs a password", label);
        }
        (None, Some((key, place))) => {
            section.report(place, key, "is not allowed here", "expected only with `bind_dn`".into())
        }
        _ => {}
    }
    if let Some(url) = urls.iter().find(|url| external && !matches!(url, LdapUrl::Unix { .. })) {
        let label = format!("expected only with ldapi:// URLs: {url} cannot authenticate by the connection");
        section.report(sasl, "sasl", "is not allowed here", label);
    }
    let bind = match dn {
        _ if external => LdapBindMethod::External,
        Some(dn) => {
            let password = password.map(Spanned::into_inner).unwrap_or_default();
            LdapBindMethod::Simple { dn: dn.into_inner().into(), password: password.into() }
        }
        None => LdapBindMethod::Anonymous,
    };
    (bind, file.map(Spanned::into_inner))
}

/// `members` and the keys that depend on it.
fn members(section: &mut Section<'_, '_>) -> Option<GroupMembersConfig> {
    let attributes = section.one_or_list("members", &value_kind::TEXT);
    let keys = ["members_depth", "leaf_result", "terminal_result"].map(|key| (key, section.span_of(key)));
    let depth = section.take_spanned("members_depth", &value_kind::NESTING_DEPTH);
    let leaf = section.one_or_list("leaf_result", &RESULT);
    let terminal = section.one_or_list("terminal_result", &RESULT);
    let given = [depth.is_some(), leaf.is_some(), terminal.is_some()];
    for (key, place) in keys.into_iter().zip(given).filter(|(_, given)| *given && attributes.is_none()).map(|it| it.0) {
        section.report(place, key, "is not allowed here", "expected only with `members`".into());
    }
    let results = |key, results: Option<Vec<Spanned<String>>>| {
        let results = results.unwrap_or_default();
        results.iter().filter_map(|result| parse_value(section, key, &RESULT, result)).collect()
    };
    let (leaf_results, terminal_results) = (results("leaf_result", leaf), results("terminal_result", terminal));
    let depth_max = depth.map_or(GroupMembersConfig::DEPTH_MAX, Spanned::into_inner);
    let attributes = attributes?.into_iter().map(|name| name.into_inner().into()).collect();
    Some(GroupMembersConfig { attributes, leaf_results, terminal_results, depth_max })
}

fn replica(
    section: &mut Section<'_, '_>,
    name: Option<&Spanned<String>>,
    data_dir: &Path,
    files: &mut Unique,
) -> Option<LdapReplicaConfig> {
    let wanted = section.choice("mode", &MODE).unwrap_or(false);
    let place = section.span_of("replica");
    let settings = section.section("replica");
    if !wanted {
        if let Some(mut settings) = settings {
            section.report(place, "replica", "is not allowed here", "expected only with mode = \"replica\"".into());
            settings.skip_rest();
        }
        return None;
    }
    let Some(mut settings) = settings else {
        let file = default_file(section, name?, data_dir, files);
        return Some(LdapReplicaConfig {
            file,
            poll_every: ReplicaConfig::POLL_INTERVAL,
            removals_max: ReplicaConfig::REMOVALS_MAX,
        });
    };
    let file = match optional_file(&mut settings, "file", data_dir) {
        Some(file) => {
            files.insert(&settings, "file", &file.get_ref().to_string_lossy(), file.span());
            file.into_inner()
        }
        None => default_file(section, name?, data_dir, files),
    };
    Some(LdapReplicaConfig {
        file,
        poll_every: settings.take_or("poll", &value_kind::DURATION, ReplicaConfig::POLL_INTERVAL),
        removals_max: settings.take_or("removals_max", &value_kind::FRACTION, ReplicaConfig::REMOVALS_MAX),
    })
}

/// The default file, named after the table. The table's name must be a valid file name.
fn default_file(section: &Section<'_, '_>, name: &Spanned<String>, data_dir: &Path, files: &mut Unique) -> PathBuf {
    let text = name.get_ref().as_str();
    if text.contains(['/', '\0']) || text == "." || text == ".." || text.len() > FILE_NAME_OCTETS_MAX {
        let label =
            "expected a name that is a valid file name, or another file: replica = { file = \"...\" }".to_owned();
        section.report(name.span(), "name", "is not a valid file name", label);
    }
    let file = data_dir.join("tables").join(text);
    files.insert(section, "replica.file", &file.to_string_lossy(), name.span());
    file
}
