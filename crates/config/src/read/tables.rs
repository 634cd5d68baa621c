//! `[[table]]`: lookup tables. The key `type` determines which other keys are allowed.

mod chains;
mod conversion;
mod layers;
mod ldap;
mod redis;
mod sql;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;

use super::{Unique, fill_path, unspanned};
use crate::error::ConfigError;
use crate::section::{Keywords, Section, quoted_choices};
use crate::value_kind::{self, ValueKind};
use crate::{TableConfig, TableKind, secret};

/// More tables are probably a mistake; each network table has a thread.
const TABLES_MAX: usize = 1000;

/// The value of the key `type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    Cdb,
    Regexp,
    Static,
    Unavailable,
    Chain,
    Sqlite,
    Postgres,
    Mysql,
    Redis,
    Ldap,
}

const TYPE: Keywords<Type> = Keywords {
    supported: &[
        ("text", Type::Text),
        ("cdb", Type::Cdb),
        ("regexp", Type::Regexp),
        ("static", Type::Static),
        ("unavailable", Type::Unavailable),
        ("chain", Type::Chain),
        ("sqlite", Type::Sqlite),
        ("postgres", Type::Postgres),
        ("mysql", Type::Mysql),
        ("redis", Type::Redis),
        ("ldap", Type::Ldap),
    ],
    planned: &[],
};

/// All keys but `name` and `type`, with the types that have them.
const KEYS: [(&str, &[Type]); 39] = {
    use Type::*;
    [
        ("path", &[Text, Cdb, Regexp, Sqlite, Unavailable]),
        ("values", &[Static]),
        ("reason", &[Unavailable]),
        ("tables", &[Chain]),
        ("query", &[Sqlite, Postgres, Mysql]),
        ("command", &[Redis]),
        ("key", &[Redis]),
        ("field", &[Redis]),
        ("timeout", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("wait", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("breaker", &[Postgres, Mysql, Redis, Ldap]),
        ("cache", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("url", &[Postgres, Mysql, Redis, Ldap]),
        ("password", &[Ldap]),
        ("password_file", &[Postgres, Mysql, Redis, Ldap]),
        ("ca_file", &[Postgres, Mysql, Redis, Ldap]),
        ("connect_timeout", &[Postgres, Mysql, Redis, Ldap]),
        ("batch", &[Postgres, Mysql, Redis, Ldap]),
        ("concurrency", &[Postgres, Mysql, Redis, Ldap]),
        ("match_subdomains", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("domains", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("separator", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("result_format", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("values_max", &[Sqlite, Postgres, Mysql, Redis, Ldap]),
        ("starttls", &[Ldap]),
        ("bind_dn", &[Ldap]),
        ("sasl", &[Ldap]),
        ("base", &[Ldap]),
        ("scope", &[Ldap]),
        ("filter", &[Ldap]),
        ("result", &[Ldap]),
        ("leaf_result", &[Ldap]),
        ("terminal_result", &[Ldap]),
        ("members", &[Ldap]),
        ("members_depth", &[Ldap]),
        ("entries_max", &[Ldap]),
        ("referrals", &[Ldap]),
        ("mode", &[Ldap]),
        ("replica", &[Ldap]),
    ]
};

const NAME: ValueKind<String> = ValueKind { expected: "the name of a table", parse: value_kind::TEXT.parse };

/// What only one table may have.
#[derive(Default)]
struct SeenTables {
    names: Unique,
    /// The files of local copies.
    files: Unique,
}

/// The valid tables, and the names of all tables, including those with errors.
pub(super) fn tables(document: &mut Section<'_, '_>, data_dir: &Path) -> (Vec<TableConfig>, Vec<String>) {
    let (mut seen, mut chains, mut tables) = (SeenTables::default(), Vec::new(), Vec::new());
    let sections = document.sections("table").unwrap_or_default();
    if let Some(beyond) = sections.get(TABLES_MAX) {
        let label = format!("expected at most {TABLES_MAX}");
        document.report_error(ConfigError::new(beyond.span(), "too many tables", label));
    }
    for section in sections.into_iter().take(TABLES_MAX) {
        tables.extend(table(section, data_dir, &mut seen, &mut chains));
    }
    let names = seen.names.names();
    chains::check(document, &chains, &names);
    (tables, names)
}

fn table(
    mut section: Section<'_, '_>,
    data_dir: &Path,
    seen: &mut SeenTables,
    chains: &mut Vec<chains::ChainLinks>,
) -> Option<TableConfig> {
    section.hide_unknown_values();
    let name = section.take_required("name", &value_kind::TEXT);
    if let Some(name) = &name {
        seen.names.insert(&section, "name", name.get_ref(), name.span());
    }
    let Some(of_type) = section.take_required_choice("type", &TYPE) else {
        // The other keys cannot be checked.
        section.skip_rest();
        return None;
    };
    reject_keys_of_other_types(&mut section, of_type);
    let kind = match of_type {
        Type::Text => path(&mut section, data_dir).map(|path| TableKind::Text { path }),
        Type::Cdb => path(&mut section, data_dir).map(|path| TableKind::Cdb { path }),
        Type::Regexp => path(&mut section, data_dir).map(|path| TableKind::Regexp { path }),
        Type::Static => {
            required_list(&mut section, "values", &value_kind::TEXT).map(|v| TableKind::Static { values: unspanned(v) })
        }
        Type::Unavailable => unavailable(&mut section, data_dir),
        Type::Chain => chain(&mut section, name.as_ref(), chains),
        Type::Sqlite => sql::sqlite(&mut section, data_dir).map(|it| TableKind::Sqlite(Box::new(it))),
        Type::Postgres => sql::postgres(&mut section, data_dir).map(|it| TableKind::Postgres(Box::new(it))),
        Type::Mysql => sql::mysql(&mut section, data_dir).map(|it| TableKind::Mysql(Box::new(it))),
        Type::Redis => redis::redis(&mut section, data_dir).map(|it| TableKind::Redis(Box::new(it))),
        Type::Ldap => {
            let table = ldap::read_ldap_table(&mut section, name.as_ref(), data_dir, &mut seen.files);
            table.map(|it| TableKind::Ldap(Box::new(it)))
        }
    };
    let conversion = conversion::conversion_rules(&mut section, of_type);
    Some(TableConfig { name: name?.into_inner().into(), kind: kind?, conversion })
}

/// Reports keys that belong to other types.
fn reject_keys_of_other_types(section: &mut Section<'_, '_>, of_type: Type) {
    for (key, types) in KEYS.iter().filter(|(_, types)| !types.contains(&of_type)) {
        let words = TYPE.supported.iter().filter(|(_, of_type)| types.contains(of_type)).map(|(word, _)| *word);
        section.reject(key, &format!("expected only in tables of type {}", quoted_choices(words)));
    }
}

fn path(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<PathBuf> {
    let path = section.take_required("path", &value_kind::TEXT)?;
    fill_path(section, "path", &path, data_dir)
}

fn unavailable(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<TableKind> {
    let path = optional_file(section, "path", data_dir).map(Spanned::into_inner);
    let reason = section.take_required("reason", &value_kind::TEXT)?.into_inner();
    Some(TableKind::Unavailable { reason, path })
}

/// An optional file.
fn optional_file(section: &mut Section<'_, '_>, key: &'static str, data_dir: &Path) -> Option<Spanned<PathBuf>> {
    let template = section.take_spanned(key, &value_kind::TEXT)?;
    fill_path(section, key, &template, data_dir).map(|path| Spanned::new(template.span(), path))
}

fn chain(
    section: &mut Section<'_, '_>,
    name: Option<&Spanned<String>>,
    chains: &mut Vec<chains::ChainLinks>,
) -> Option<TableKind> {
    let tables = required_list(section, "tables", &NAME)?;
    let mut unique = Unique::default();
    tables.iter().for_each(|table| unique.insert(section, "tables", table.get_ref(), table.span()));
    let names = tables.iter().map(|table| table.get_ref().as_str().into()).collect();
    if let Some(name) = name {
        chains.push(chains::ChainLinks { from: name.get_ref().clone(), to: tables });
    }
    Some(TableKind::Chain { tables: names })
}

/// A mandatory list that is not empty.
fn required_list<T>(section: &mut Section<'_, '_>, key: &'static str, kind: &ValueKind<T>) -> Option<Vec<Spanned<T>>> {
    section.report_if_missing(key, &format!("a list, each element {}", kind.expected));
    let place = section.span_of(key);
    let list = section.list(key, kind)?;
    if list.is_empty() {
        section.report(place, key, "is empty", format!("expected at least one element, {}", kind.expected));
    }
    Some(list)
}

/// A string in a notation that reports its own errors; they are not shown if the string contains a
/// password.
fn parse_value<T: FromStr<Err: Display>>(
    section: &Section<'_, '_>,
    key: &str,
    kind: &ValueKind<String>,
    text: &Spanned<String>,
) -> Option<T> {
    let state = |error: T::Err| {
        let label = match secret::has_password(text.get_ref()) {
            true => format!("not shown because it contains a password; expected {}", kind.expected),
            false => error.to_string(),
        };
        section.report(text.span(), key, "has an invalid value", label);
    };
    text.get_ref().parse().map_err(state).ok()
}
