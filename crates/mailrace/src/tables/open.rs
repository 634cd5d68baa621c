//! Opens a table of the configuration. An error keeps the table's own text, with an exit code that
//! tells its cause.
//!
//! No server is contacted: one that is down does not prevent the start.

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ldap::replica::{LdapReplica, ReplicaConfig};
use ldap::{Ldap, LdapBindMethod, LdapConfig};
use lookup::backend::Backend;
use lookup::cdb::Cdb;
use lookup::chain::ChainedTable;
use lookup::fixed::StaticTable;
use lookup::layers::{BackendSettings, BackendTable};
use lookup::mysql::{Mysql, MysqlConfig};
use lookup::postgres::{self, Postgres};
use lookup::redis::{Redis, RedisConfig};
use lookup::regexp::RegexpTable;
use lookup::sqlite::Sqlite;
use lookup::text::TextTable;
use lookup::unavailable::UnavailableTable;
use lookup::{Table, TableEventHandler};

use super::{TableOpener, TablePurpose};
use crate::exit::{self, ExitError};
use config::{self, TableKind};

/// Opens a table. Its parts come from `opener`, which opens each once.
pub(super) fn open(table: &config::TableConfig, opener: &mut TableOpener<'_>) -> Result<Arc<dyn Table>, ExitError> {
    Ok(table.conversion.apply(open_source(table, opener)?))
}

/// Opens the source of a table's answers.
fn open_source(table: &config::TableConfig, opener: &mut TableOpener<'_>) -> Result<Arc<dyn Table>, ExitError> {
    let name = &*table.name;
    match &table.kind {
        TableKind::Text { path } => boxed(TextTable::load(name, path)),
        TableKind::Cdb { path } => boxed(Cdb::open(name, path)),
        TableKind::Regexp { path } => boxed(RegexpTable::load(name, path)),
        TableKind::Static { values } => Ok(Arc::new(StaticTable::new(name, values.clone()))),
        TableKind::Unavailable { reason, path } => {
            let keys = path.as_ref().map(|path| TextTable::load(name, path)).transpose();
            boxed(keys.map(|keys| UnavailableTable::new(name, reason, keys)))
        }
        TableKind::Chain { tables } => {
            let tables = tables.iter().map(|table| opener.get_or_open(table));
            Ok(Arc::new(ChainedTable::new(name, tables.collect::<Result<_, _>>()?)))
        }
        TableKind::Sqlite(sqlite) => Ok(Arc::new(layered(
            name,
            Sqlite::new(sqlite.database.clone()),
            sqlite.lookup_settings,
            opener.event_handler(),
        )?)),
        TableKind::Postgres(postgres) => open_postgres(name, postgres, opener.event_handler()),
        TableKind::Mysql(mysql) => open_mysql(name, mysql, opener.event_handler()),
        TableKind::Redis(redis) => open_redis(name, redis, opener.event_handler()),
        TableKind::Ldap(ldap) => open_ldap(name, ldap, opener),
    }
}

fn open_postgres(
    name: &str,
    table: &config::PostgresTableConfig,
    events: TableEventHandler,
) -> Result<Arc<dyn Table>, ExitError> {
    let config = postgres::PostgresConfig {
        url: table.url.clone(),
        password: table.password_file.as_deref().map(read_password).transpose()?,
        ca_file: table.ca_file.clone(),
        query: table.query.clone(),
        timeout: table.timeout,
        connect_timeout: table.connect_timeout,
        connections: table.lookup_settings.concurrency,
    };
    let backend = Postgres::new(config).map_err(|error| with_table_name(name, error))?;
    Ok(Arc::new(layered(name, backend, table.lookup_settings, events)?))
}

fn open_mysql(
    name: &str,
    table: &config::MysqlTableConfig,
    events: TableEventHandler,
) -> Result<Arc<dyn Table>, ExitError> {
    let config = MysqlConfig {
        url: table.url.clone(),
        password: table.password_file.as_deref().map(read_password).transpose()?,
        ca_file: table.ca_file.clone(),
        query: table.query.clone(),
        timeout: table.timeout,
        connect_timeout: table.connect_timeout,
        connections: table.lookup_settings.concurrency,
    };
    let backend = Mysql::new(config).map_err(|error| with_table_name(name, error))?;
    Ok(Arc::new(layered(name, backend, table.lookup_settings, events)?))
}

fn open_redis(
    name: &str,
    table: &config::RedisTableConfig,
    events: TableEventHandler,
) -> Result<Arc<dyn Table>, ExitError> {
    let config = RedisConfig {
        url: table.url.clone(),
        password: table.password_file.as_deref().map(read_password).transpose()?,
        ca_file: table.ca_file.clone(),
        command: table.command.clone(),
        timeout: table.timeout,
        connect_timeout: table.connect_timeout,
        connections: table.lookup_settings.concurrency,
    };
    let backend = Redis::new(config).map_err(|error| with_table_name(name, error))?;
    Ok(Arc::new(layered(name, backend, table.lookup_settings, events)?))
}

fn open_ldap(
    name: &str,
    table: &config::LdapTableConfig,
    opener: &TableOpener<'_>,
) -> Result<Arc<dyn Table>, ExitError> {
    let config = ldap_config_with_password(table)?;
    let backend =
        Ldap::new(config.clone(), table.lookup_settings.concurrency).map_err(|error| with_table_name(name, error))?;
    let direct = layered(name, backend, table.lookup_settings, opener.event_handler())?;
    match &table.replica {
        Some(copy) if opener.purpose() == TablePurpose::Serve => {
            let config = ReplicaConfig {
                ldap: config,
                file: copy.file.clone(),
                poll_interval: copy.poll_every,
                removals_max: copy.removals_max,
            };
            let copy = LdapReplica::start(name, config, Arc::new(direct), opener.event_handler());
            Ok(Arc::new(copy.map_err(|error| with_table_name(name, error))?))
        }
        _ => Ok(Arc::new(direct)),
    }
}

/// The LDAP settings, with the password from its file.
pub fn ldap_config_with_password(table: &config::LdapTableConfig) -> Result<LdapConfig, ExitError> {
    let mut config = table.directory.clone();
    if let (Some(file), LdapBindMethod::Simple { password: empty, .. }) =
        (&table.password_file, &mut config.servers.bind)
    {
        *empty = read_password(file)?;
    }
    Ok(config)
}

fn layered(
    name: &str,
    backend: impl Backend,
    settings: BackendSettings,
    events: TableEventHandler,
) -> Result<BackendTable, ExitError> {
    BackendTable::start(name, backend, settings, events)
        .map_err(|error| ExitError { code: exit::IO, text: format!("table '{name}': starting its thread: {error}") })
}

/// The password in a file: the whole text without its last line end.
pub fn read_password(file: &Path) -> Result<Box<str>, ExitError> {
    let fault = |code, what: &dyn Display| ExitError { code, text: format!("{}: {what}", file.display()) };
    let text = fs::read(file).map_err(|error| fault(exit::IO, &error))?;
    let text = String::from_utf8(text).map_err(|_| fault(exit::DATA, &"the password is not UTF-8"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    match line.strip_suffix('\r').unwrap_or(line) {
        "" => Err(fault(exit::DATA, &"it contains no password")),
        password => Ok(password.into()),
    }
}

fn boxed<T: Table + 'static>(opened: Result<T, impl Error>) -> Result<Arc<dyn Table>, ExitError> {
    opened.map(|table| Arc::new(table) as Arc<dyn Table>).map_err(failed)
}

/// Names the table in an error that does not.
fn with_table_name(name: &str, error: impl Error) -> ExitError {
    let ExitError { code, text } = failed(error);
    ExitError { code, text: format!("table '{name}': {text}") }
}

/// Errors of tables include their causes, so their text is complete.
pub(super) fn failed(error: impl Error) -> ExitError {
    let unread = error.source().is_some_and(|source| source.is::<io::Error>());
    ExitError { code: if unread { exit::IO } else { exit::DATA }, text: error.to_string() }
}

#[cfg(test)]
mod tests {
    use lookup::LookupAnswer;

    use super::*;
    use config::Config;

    /// A configuration with one table of each type, in a folder.
    fn every_type(folder: &Path) -> Config {
        let text = "[[table]]\nname = \"all\"\ntype = \"chain\"\ntables = [\"people\", \"hops\", \"rest\"]\n\
             [[table]]\nname = \"people\"\ntype = \"text\"\npath = \"{data_dir}/people\"\n\
             [[table]]\nname = \"hops\"\ntype = \"regexp\"\npath = \"{data_dir}/hops\"\n\
             [[table]]\nname = \"rest\"\ntype = \"static\"\nvalues = [\"rest@example.org\"]\n\
             [[table]]\nname = \"cdb\"\ntype = \"cdb\"\npath = \"{data_dir}/cdb\"\n\
             [[table]]\nname = \"sqlite\"\ntype = \"sqlite\"\npath = \"{data_dir}/db\"\nquery = \"SELECT :key\"\n\
             [[table]]\nname = \"postgres\"\ntype = \"postgres\"\nurl = \"host=127.0.0.1 port=1\"\n\
             password_file = \"{data_dir}/password\"\nquery = \"SELECT $1\"\n\
             [[table]]\nname = \"mysql\"\ntype = \"mysql\"\nurl = \"mysql://127.0.0.1:1\"\n\
             password_file = \"{data_dir}/password\"\nquery = \"SELECT :key\"\nvalues_max = 1\n\
             [[table]]\nname = \"redis\"\ntype = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n\
             password_file = \"{data_dir}/password\"\nkey = \"{key}\"\n\
             [[table]]\nname = \"copy\"\ntype = \"ldap\"\nurl = \"ldap://127.0.0.1:1\"\nbase = \"dc=org\"\n\
             bind_dn = \"cn=mail\"\npassword_file = \"{data_dir}/password\"\nfilter = \"(mail={key})\"\nmode = \"replica\"\n";
        std::fs::write(folder.join("people"), "bob@example.org robert@example.org\n").unwrap();
        std::fs::write(folder.join("hops"), "/^sales-/ sales@example.org\n").unwrap();
        std::fs::write(folder.join("password"), "secret\n").unwrap();
        lookup::cdb::build(&folder.join("people"), &folder.join("cdb")).unwrap();
        let text = format!("data_dir = {:?}\n{text}", folder.display().to_string());
        Config::parse(&text, "text", "host.example").unwrap()
    }

    fn opener(config: &Config, purpose: TablePurpose) -> TableOpener<'_> {
        TableOpener::new(config, purpose, Arc::new(|_| {}))
    }

    #[tokio::test]
    async fn a_chain_may_use_tables_defined_later() {
        let folder = tempfile::tempdir().unwrap();
        let config = every_type(folder.path());
        let chain = opener(&config, TablePurpose::Query).get_or_open("all").unwrap();
        let answers = chain.lookup(&["bob@example.org", "sales-de@example.org", "carol@example.org"]).await;
        let found = |value: &str| LookupAnswer::Found(vec![value.to_owned()]);
        assert_eq!(answers, ["robert@example.org", "sales@example.org", "rest@example.org"].map(found));
    }

    #[test]
    fn every_type_opens_and_only_the_server_makes_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let config = every_type(folder.path());
        for (purpose, makes) in [(TablePurpose::Query, false), (TablePurpose::Serve, true)] {
            let mut opener = opener(&config, purpose);
            for table in &config.tables {
                assert_eq!(
                    opener.get_or_open(&table.name).map(|opened| opened.name().to_owned()).unwrap(),
                    *table.name
                );
            }
            assert_eq!(folder.path().join("tables/copy").exists(), makes, "{purpose:?}");
        }
    }

    #[test]
    fn a_password_is_a_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for (written, read) in [("a b", "a b"), ("a b\n", "a b"), ("a b\r\n", "a b"), (" \n\n", " \n")] {
            std::fs::write(&file, written).unwrap();
            assert_eq!(read_password(&file).as_deref().ok(), Some(read), "{written:?}");
        }
        for written in [&b""[..], b"\n", b"\r\n", b"\xff\n"] {
            std::fs::write(&file, written).unwrap();
            let refused = read_password(&file).unwrap_err();
            assert!(refused.code == exit::DATA && refused.text.contains("password"), "{written:?}: {refused}");
        }
    }

    #[test]
    fn a_missing_password_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let config = every_type(folder.path());
        let file = folder.path().join("password");
        std::fs::remove_file(&file).unwrap();
        for name in ["postgres", "mysql", "redis", "copy"] {
            let refused = opener(&config, TablePurpose::Serve).get_or_open(name).err().unwrap();
            assert_eq!(refused.code, exit::IO);
            assert!(refused.text.contains(file.to_str().unwrap()), "{refused}");
        }
    }
}
