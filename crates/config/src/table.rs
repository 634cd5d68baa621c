//! Lookup tables: plain data, in the types of the lookup crate where it has such types. A password
//! in a file of its own is not included; it is read when the table is opened.

use std::path::PathBuf;
use std::time::Duration;

use ldap::LdapConfig;
use lookup::conversion::ConversionRules;
use lookup::layers::BackendSettings;
use lookup::{mysql, postgres, redis, sqlite};

/// A lookup table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableConfig {
    /// Its name.
    pub name: Box<str>,
    /// The source of its answers.
    pub kind: TableKind,
    /// What is done to its keys and values.
    pub conversion: ConversionRules,
}

/// The source of a table's answers.
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
    /// Regular expressions and their values, read into memory.
    Regexp {
        /// The file.
        path: PathBuf,
    },
    /// The same values for every key.
    Static {
        /// The values.
        values: Vec<String>,
    },
    /// Lookups of its keys fail.
    Unavailable {
        /// The reason, for the log.
        reason: String,
        /// A text table with the keys; None: all keys.
        path: Option<PathBuf>,
    },
    /// Other tables, searched one after the other.
    Chain {
        /// Their names: at least one, all different, without loops.
        tables: Vec<Box<str>>,
    },
    /// An SQLite database.
    Sqlite(Box<SqliteTableConfig>),
    /// A PostgreSQL server.
    Postgres(Box<PostgresTableConfig>),
    /// A MySQL or MariaDB server.
    Mysql(Box<MysqlTableConfig>),
    /// A Redis server.
    Redis(Box<RedisTableConfig>),
    /// An LDAP server.
    Ldap(Box<LdapTableConfig>),
}

impl TableKind {
    /// Its type in the configuration.
    pub fn type_name(&self) -> &'static str {
        match self {
            TableKind::Text { .. } => "text",
            TableKind::Cdb { .. } => "cdb",
            TableKind::Regexp { .. } => "regexp",
            TableKind::Static { .. } => "static",
            TableKind::Unavailable { .. } => "unavailable",
            TableKind::Chain { .. } => "chain",
            TableKind::Sqlite(_) => "sqlite",
            TableKind::Postgres(_) => "postgres",
            TableKind::Mysql(_) => "mysql",
            TableKind::Redis(_) => "redis",
            TableKind::Ldap(_) => "ldap",
        }
    }

    /// The file with the password of a server.
    pub fn password_file(&self) -> Option<&PathBuf> {
        match self {
            TableKind::Postgres(postgres) => postgres.password_file.as_ref(),
            TableKind::Mysql(mysql) => mysql.password_file.as_ref(),
            TableKind::Redis(redis) => redis.password_file.as_ref(),
            TableKind::Ldap(ldap) => ldap.password_file.as_ref(),
            _ => None,
        }
    }
}

/// A table in an SQLite database.
#[derive(Clone, Debug, PartialEq)]
pub struct SqliteTableConfig {
    /// The database and the query.
    pub database: sqlite::SqliteConfig,
    /// The cache and the time limit in front of it.
    pub lookup_settings: BackendSettings,
}

/// A table in a PostgreSQL database.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresTableConfig {
    /// The address of the server.
    pub url: postgres::PostgresUrl,
    /// The file with the password; None if the URL has it, or if the server needs none.
    pub password_file: Option<PathBuf>,
    /// CA certificates in PEM that may sign the server's. None: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The query, which contains `$1`.
    pub query: Box<str>,
    /// The time limit of one request.
    pub timeout: Duration,
    /// The time limit of a connection to one address of one host.
    pub connect_timeout: Duration,
    /// The cache and the limits in front of it. Each concurrent request has its own connection.
    pub lookup_settings: BackendSettings,
}

/// A table in a MySQL or MariaDB database.
#[derive(Clone, Debug, PartialEq)]
pub struct MysqlTableConfig {
    /// The servers.
    pub url: mysql::MysqlUrl,
    /// The file with the password; None if the URL has it, or if the server needs none.
    pub password_file: Option<PathBuf>,
    /// CA certificates in PEM that may sign the server's. None: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The query for one key.
    pub query: mysql::MysqlQuery,
    /// The time limit of one request.
    pub timeout: Duration,
    /// The time limit of a connection to one address of one host.
    pub connect_timeout: Duration,
    /// The cache and the limits in front of it. Each concurrent request has its own connection.
    pub lookup_settings: BackendSettings,
}

/// A table in Redis.
#[derive(Clone, Debug, PartialEq)]
pub struct RedisTableConfig {
    /// The servers.
    pub url: redis::RedisUrl,
    /// The file with the password; None if the URL has it, or if the server needs none.
    pub password_file: Option<PathBuf>,
    /// CA certificates in PEM that may sign the server's. None: those of the system.
    pub ca_file: Option<PathBuf>,
    /// What is asked for a key.
    pub command: redis::RedisCommand,
    /// The time limit of one request.
    pub timeout: Duration,
    /// The time limit of a connection to one address of one host.
    pub connect_timeout: Duration,
    /// The cache and the limits in front of it. Each concurrent request has its own connection.
    pub lookup_settings: BackendSettings,
}

/// A table in an LDAP directory.
#[derive(Clone, Debug, PartialEq)]
pub struct LdapTableConfig {
    /// The servers and the search. With a `password_file`, the password in it is empty.
    pub directory: LdapConfig,
    /// The file with the password.
    pub password_file: Option<PathBuf>,
    /// The cache and the limits in front of the directory. With a local copy, they apply until it
    /// is complete.
    pub lookup_settings: BackendSettings,
    /// The local copy; None: every lookup goes to the directory.
    pub replica: Option<LdapReplicaConfig>,
}

/// A local copy of the entries that a table can find.
#[derive(Clone, Debug, PartialEq)]
pub struct LdapReplicaConfig {
    /// Its file, which no other table uses.
    pub file: PathBuf,
    /// How often to fetch everything from a server that does not report changes.
    pub poll_every: Duration,
    /// The fraction of the entries, from 0 to 1, that may disappear within an hour without the
    /// operator's consent.
    pub removals_max: f64,
}
