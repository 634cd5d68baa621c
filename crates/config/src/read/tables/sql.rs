//! Tables in SQL databases.

use std::path::Path;
use std::time::Duration;

use lookup::mysql::MysqlQuery;
use lookup::sqlite;
use toml::Spanned;

use super::{layers, optional_file, parse_value, path};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{MysqlTableConfig, PostgresTableConfig, SqliteTableConfig};

/// The default time limit of a request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// The default time limit of a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Placeholders for the key in SQLite queries; one of them is enough.
const SQLITE_KEYS: [&str; 4] = [":key", ":local", ":domain", ":label"];
/// The placeholder for the keys in PostgreSQL queries.
const POSTGRES_KEYS: [&str; 1] = ["$1"];

const URL: ValueKind<String> = ValueKind {
    expected: "a URL such as \"postgres://user@host:5432/database\", or libpq settings",
    parse: value_kind::TEXT.parse,
};
const MYSQL_URL: ValueKind<String> =
    ValueKind { expected: "a URL such as \"mysql://user@host:3306/database\"", parse: value_kind::TEXT.parse };
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

pub(super) fn mysql(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<MysqlTableConfig> {
    let url = section.take_required("url", &MYSQL_URL);
    let url = url.and_then(|url| parse_value(section, "url", &MYSQL_URL, &url));
    let query = section.take_required("query", &QUERY);
    let query = query.and_then(|query| parse_value::<MysqlQuery>(section, "query", &QUERY, &query));
    let password_file = optional_file(section, "password_file", data_dir).map(Spanned::into_inner);
    let ca_file = optional_file(section, "ca_file", data_dir).map(Spanned::into_inner);
    let timeout = section.take_or("timeout", &value_kind::DURATION, TIMEOUT);
    let connect_timeout = section.take_or("connect_timeout", &value_kind::DURATION, CONNECT_TIMEOUT);
    let lookup_settings = layers::network_settings(section);
    Some(MysqlTableConfig {
        url: url?,
        password_file,
        ca_file,
        query: query?,
        timeout,
        connect_timeout,
        lookup_settings,
    })
}

/// A query with at least one of these placeholders; without one, every key would get the same
/// result.
fn query(section: &mut Section<'_, '_>, keys: &[&str]) -> Option<Box<str>> {
    let query = section.take_required("query", &QUERY)?;
    if !keys.iter().any(|key| query.get_ref().contains(key)) {
        let label = format!("expected a query with {}", keys.join(" or ").replace(":label", ":label1 to :label9"));
        section.report(query.span(), "query", "does not contain the key", label);
    }
    Some(query.into_inner().into())
}
