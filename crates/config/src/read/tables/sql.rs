//! Tables in SQL databases.

use std::path::Path;
use std::time::Duration;

use lookup::sqlite;
use toml::Spanned;

use super::{layers, optional_file, parse_value, path};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{PostgresTableConfig, SqliteTableConfig};

/// The default time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The default time limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Placeholders for the key in SQLite queries; one of them is enough.
const SQLITE_KEYS: [&str; 3] = [":key", ":local", ":domain"];
/// The placeholder for the keys in PostgreSQL queries.
const POSTGRES_KEYS: [&str; 1] = ["$1"];

const URL: ValueKind<String> = ValueKind {
    expected: "a URL such as \"postgres://user@host:5432/database\", or libpq settings",
    parse: value_kind::TEXT.parse,
};
const QUERY: ValueKind<String> = ValueKind { expected: "a query", parse: value_kind::TEXT.parse };

pub(super) fn sqlite(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<SqliteTableConfig> {
    let path = path(section, data_dir);
    let query = query(section, &SQLITE_KEYS);
    let timeout = section.take_or("timeout", &value_kind::DURATION, TIMEOUT);
    // A local file is so fast that a cache gains nothing, and it is never out of date.
    let layers = layers::read_layer_settings(section, false);
    Some(SqliteTableConfig {
        database: sqlite::SqliteConfig { path: path?, query: query?, timeout },
        lookup_settings: layers,
    })
}

pub(super) fn postgres(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<PostgresTableConfig> {
    let url = section.take_required("url", &URL).and_then(|url| parse_value(section, "url", &URL, &url));
    let query = query(section, &POSTGRES_KEYS);
    let password_file = optional_file(section, "password_file", data_dir).map(Spanned::into_inner);
    let ca_file = optional_file(section, "ca_file", data_dir).map(Spanned::into_inner);
    let timeout = section.take_or("timeout", &value_kind::DURATION, TIMEOUT);
    let connect_timeout = section.take_or("connect_timeout", &value_kind::DURATION, CONNECT_TIMEOUT);
    let layers = layers::network_settings(section);
    Some(PostgresTableConfig {
        url: url?,
        password_file,
        ca_file,
        query: query?,
        timeout,
        connect_timeout,
        lookup_settings: layers,
    })
}

/// A query with at least one of these placeholders; without one, every key would get the same
/// result.
fn query(section: &mut Section<'_, '_>, keys: &[&str]) -> Option<Box<str>> {
    let query = section.take_required("query", &QUERY)?;
    if !keys.iter().any(|key| query.get_ref().contains(key)) {
        let label = format!("expected a query with {}", keys.join(" or "));
        section.report(query.span(), "query", "does not contain the key", label);
    }
    Some(query.into_inner().into())
}
