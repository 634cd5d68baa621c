//! What can be looked up, as the text describes it: plain data, the rooms' own where they have it. A password that is in
//! a file of its own is not part of it; it is read when the table is opened.

use std::path::PathBuf;
use std::time::Duration;

use lookup::layers::Settings;
use lookup::{ldap, postgres, sqlite};

/// Something that can be looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name.
    pub name: Box<str>,
    /// Where its answers come from.
    pub kind: TableKind,
}

/// Where a table's answers come from.
#[derive(Clone, Debug, PartialEq)]
pub enum TableKind {
    /// Lines of `key value`, read into memory.
    Text {
        /// The file.
        path: PathBuf,
    },
    /// D. J. Bernstein's constant database.
    Cdb {
        /// The file.
        path: PathBuf,
    },
    /// Regular expressions and what they answer, read into memory.
    Regexp {
        /// The file.
        path: PathBuf,
    },
    /// The same values for every key.
    Static {
        /// The values.
        values: Vec<String>,
    },
    /// No answer to its keys.
    Unavailable {
        /// Why, for the log.
        reason: String,
        /// A text table with the keys; without it all.
        path: Option<PathBuf>,
    },
    /// Other tables, one after the other.
    Chain {
        /// Their names, at least one and none twice. Each is that of a table that does not lead back here.
        tables: Vec<Box<str>>,
    },
    /// A file of SQLite's.
    Sqlite(Box<Sqlite>),
    /// A PostgreSQL server.
    Postgres(Box<Postgres>),
    /// A directory server.
    Ldap(Box<Ldap>),
}

impl TableKind {
    /// What the text calls it.
    pub fn word(&self) -> &'static str {
        match self {
            TableKind::Text { .. } => "text",
            TableKind::Cdb { .. } => "cdb",
            TableKind::Regexp { .. } => "regexp",
            TableKind::Static { .. } => "static",
            TableKind::Unavailable { .. } => "unavailable",
            TableKind::Chain { .. } => "chain",
            TableKind::Sqlite(_) => "sqlite",
            TableKind::Postgres(_) => "postgres",
            TableKind::Ldap(_) => "ldap",
        }
    }
}

/// A table in an SQLite database.
#[derive(Clone, Debug, PartialEq)]
pub struct Sqlite {
    /// What is asked.
    pub database: sqlite::Config,
    /// What stands before it.
    pub layers: Settings,
}

/// A table in a PostgreSQL database.
#[derive(Clone, Debug, PartialEq)]
pub struct Postgres {
    /// Where the server is.
    pub url: postgres::Url,
    /// The file with the password; none where the URL has it, or the server wants none.
    pub password_file: Option<PathBuf>,
    /// Certificates in PEM of those who may vouch for the server. None: whom the system trusts.
    pub ca_file: Option<PathBuf>,
    /// What is asked; has `$1`.
    pub query: Box<str>,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long a connection may take to one address of one host.
    pub connect_timeout: Duration,
    /// What stands before it. Each request under way has a connection of its own.
    pub layers: Settings,
}

/// A table in a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Ldap {
    /// Who is asked what. Where there is a `password_file`, the password in here is empty.
    pub directory: ldap::Config,
    /// The file with the password.
    pub password_file: Option<PathBuf>,
    /// What stands before the directory: where there is a local copy, while that is not complete.
    pub layers: Settings,
    /// The local copy; None: every question goes to the directory.
    pub replica: Option<Replica>,
}

/// A local copy of what a table is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Where it is kept; no other table's.
    pub file: PathBuf,
    /// How often everything is fetched from a server that does not tell of changes.
    pub poll_every: Duration,
    /// The share of entries, from 0 to 1, that may go within an hour without the operator's consent.
    pub removals_max: f64,
}
