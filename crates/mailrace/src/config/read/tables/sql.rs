//! Tables in SQL databases.

use std::path::Path;
use std::time::Duration;

use lookup::sqlite;
use toml::Spanned;

use super::{file, layers, parsed, path};
use crate::config::key::{self, Kind};
use crate::config::section::Section;
use crate::config::{Postgres, Sqlite};

/// The default time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The default time limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Placeholders for the key in SQLite queries; one of them is enough.
const SQLITE_KEYS: [&str; 3] = [":key", ":local", ":domain"];
/// The placeholder for the keys in PostgreSQL queries.
const POSTGRES_KEYS: [&str; 1] = ["$1"];

const URL: Kind<String> =
    Kind { expected: "a URL such as \"postgres://user@host:5432/database\", or libpq settings", read: key::TEXT.read };
const QUERY: Kind<String> = Kind { expected: "a query", read: key::TEXT.read };

pub(super) fn sqlite(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<Sqlite> {
    let path = path(section, data_dir);
    let query = query(section, &SQLITE_KEYS);
    let timeout = section.take_or("timeout", &key::SPAN, TIMEOUT);
    // A local file is so fast that a cache gains nothing, and it is never out of date.
    let layers = layers::settings(section, false);
    Some(Sqlite { database: sqlite::Config { path: path?, query: query?, timeout }, layers })
}

pub(super) fn postgres(section: &mut Section<'_, '_>, data_dir: &Path) -> Option<Postgres> {
    let url = section.required("url", &URL).and_then(|url| parsed(section, "url", &URL, &url));
    let query = query(section, &POSTGRES_KEYS);
    let password_file = file(section, "password_file", data_dir).map(Spanned::into_inner);
    let ca_file = file(section, "ca_file", data_dir).map(Spanned::into_inner);
    let timeout = section.take_or("timeout", &key::SPAN, TIMEOUT);
    let connect_timeout = section.take_or("connect_timeout", &key::SPAN, CONNECT_TIMEOUT);
    let layers = layers::network_settings(section);
    Some(Postgres { url: url?, password_file, ca_file, query: query?, timeout, connect_timeout, layers })
}

/// A query with at least one of these placeholders; without one, every key would get the same
/// result.
fn query(section: &mut Section<'_, '_>, keys: &[&str]) -> Option<Box<str>> {
    let query = section.required("query", &QUERY)?;
    if !keys.iter().any(|key| query.get_ref().contains(key)) {
        let label = format!("expected a query with {}", keys.join(" or "));
        section.state(query.span(), "query", "does not contain the key", label);
    }
    Some(query.into_inner().into())
}
