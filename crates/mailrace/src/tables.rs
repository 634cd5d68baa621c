//! The tables of the configuration: opens them, each once for all users (the directory, the
//! classifier, the router, the control socket), and builds them (`mailrace table build`). Their
//! events go to the log.

mod events;
mod open;
mod open_table;

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use lookup::{Table, TableEventHandler, cdb};

use crate::exit::{self, ExitError};
use crate::output::output;
use config::{self, Config, TableKind};

pub use events::table_event_logger;
use open::{failed, open};
pub use open::{ldap_config_with_password, read_password};
use open_table::{OpenTable, file_stamps, replica_file};

/// All tables of a configuration, open.
#[derive(Clone, Default)]
pub struct OpenTables {
    /// In the order of the configuration.
    tables: Arc<[OpenTable]>,
}

/// What tables are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablePurpose {
    /// The server, which owns the replica files and writes them.
    Serve,
    /// A command that queries or checks, perhaps beside a running server: nothing is written or
    /// kept up to date, and a replica is queried at its master.
    Query,
}

/// Opens tables, each once, and the parts of a table before it.
pub struct TableOpener<'a> {
    config: &'a Config,
    purpose: TablePurpose,
    events: TableEventHandler,
    /// The tables already open.
    previous: OpenTables,
    opened: HashMap<&'a str, OpenTable>,
}

impl OpenTables {
    /// Opens all tables for the server.
    ///
    /// # Errors
    ///
    /// The first table that cannot be used, with its own error.
    pub fn open(config: &Config, events: TableEventHandler) -> Result<OpenTables, ExitError> {
        OpenTables::default().reopen_changed(config, events)
    }

    /// Opens the tables of another configuration. Tables whose settings and files are unchanged
    /// stay open, with what they have in memory; the others are opened again.
    ///
    /// # Errors
    ///
    /// The first table that cannot be used, with its own error. The open tables are unchanged.
    pub fn reopen_changed(&self, config: &Config, events: TableEventHandler) -> Result<OpenTables, ExitError> {
        let mut opener =
            TableOpener { previous: self.clone(), ..TableOpener::new(config, TablePurpose::Serve, events) };
        let tables = config.tables.iter().map(|table| opener.open_table(&table.name));
        Ok(OpenTables { tables: tables.collect::<Result<_, _>>()? })
    }

    /// Whether both have the same tables, in the same order.
    pub fn is_same(&self, others: &OpenTables) -> bool {
        let is_same = |(one, other): (&OpenTable, &OpenTable)| Arc::ptr_eq(&one.table, &other.table);
        self.tables.len() == others.tables.len() && self.tables.iter().zip(&*others.tables).all(is_same)
    }

    /// The table with this name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Table>> {
        self.tables.iter().map(|open_table| &open_table.table).find(|table| table.name() == name)
    }

    /// All tables with their types, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Table>)> {
        self.tables.iter().map(|open_table| (open_table.config.kind.type_name(), &open_table.table))
    }
}

impl<'a> TableOpener<'a> {
    /// Creates an opener with nothing opened yet.
    pub fn new(config: &'a Config, purpose: TablePurpose, events: TableEventHandler) -> Self {
        TableOpener { config, purpose, events, previous: OpenTables::default(), opened: HashMap::new() }
    }

    /// The table with this name; opens it if necessary. The configuration has checked that chains
    /// have no cycles.
    ///
    /// # Errors
    ///
    /// There is no such table, or it cannot be used, with its own error.
    pub fn get_or_open(&mut self, name: &str) -> Result<Arc<dyn Table>, ExitError> {
        self.open_table(name).map(|open_table| open_table.table)
    }

    fn open_table(&mut self, name: &str) -> Result<OpenTable, ExitError> {
        if let Some(open_table) = self.opened.get(name) {
            return Ok(open_table.clone());
        }
        let config: &'a Config = self.config;
        let table_config = config.table(name).ok_or_else(|| no_such_table(config, name))?;
        let stamps = file_stamps(table_config);
        let same = self.previous.tables.iter().find(|open_table| open_table.is_current(table_config, &stamps)).cloned();
        let open_table = match same {
            Some(same) if self.has_same_parts(&same)? => same,
            _ => {
                self.check_replica_is_free(table_config)?;
                OpenTable::new(table_config.clone(), open(table_config, self)?, stamps)
            }
        };
        self.opened.insert(&table_config.name, open_table.clone());
        Ok(open_table)
    }

    /// Whether its parts are still the same tables.
    fn has_same_parts(&mut self, open_table: &OpenTable) -> Result<bool, ExitError> {
        let TableKind::Chain { tables } = &open_table.config.kind else { return Ok(true) };
        for name in tables {
            let part = self.get_or_open(name)?;
            if !self.previous.find(name).is_some_and(|before| Arc::ptr_eq(before, &part)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The file of a replica belongs to the table that has it open.
    fn check_replica_is_free(&self, table_config: &config::TableConfig) -> Result<(), ExitError> {
        let Some(file) = replica_file(table_config) else { return Ok(()) };
        match self.previous.tables.iter().find(|open_table| replica_file(&open_table.config) == Some(file)) {
            None => Ok(()),
            Some(_) => {
                let text = format!(
                    "table '{}': the settings of its replica have changed: this needs a restart",
                    table_config.name
                );
                Err(ExitError { code: exit::NEGATIVE, text })
            }
        }
    }

    /// The purpose of opening.
    pub fn purpose(&self) -> TablePurpose {
        self.purpose
    }

    /// Receives the events of tables.
    pub fn event_handler(&self) -> TableEventHandler {
        self.events.clone()
    }
}

/// Builds the cdb table `cdb` from the text table `text`, and prints the number of keys.
pub fn build_cdb(text: &Path, cdb: &Path) -> anyhow::Result<()> {
    let keys = cdb::build(text, cdb).map_err(failed)?;
    writeln!(output(), "{}: {keys} {}", cdb.display(), if keys == 1 { "key" } else { "keys" })?;
    Ok(())
}

/// The error for an unknown table.
pub fn no_such_table(config: &Config, name: &str) -> ExitError {
    let names: Vec<_> = config.tables.iter().map(|table| &*table.name).collect();
    let text = match names[..] {
        [] => format!("no such table: {name:?}; the configuration has no tables"),
        _ => format!("no such table: {name:?}, expected one of: {}", names.join(", ")),
    };
    ExitError { code: exit::USAGE, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unchanged table keeps what it has in memory; a chain is rebuilt if one of its parts is.
    #[test]
    fn a_reload_reopens_only_changed_tables() {
        let folder = tempfile::tempdir().unwrap();
        let (people, others) = (folder.path().join("people"), folder.path().join("others"));
        let text = |more: &str| {
            format!(
                "[[table]]\nname = \"all\"\ntype = \"chain\"\ntables = [\"people\", \"rest\"]\n\
                 [[table]]\nname = \"people\"\ntype = \"text\"\npath = {people:?}\n\
                 [[table]]\nname = \"others\"\ntype = \"text\"\npath = {others:?}\n\
                 [[table]]\nname = \"rest\"\ntype = \"static\"\nvalues = [\"rest@example.org\"]\n{more}"
            )
        };
        [&people, &others].into_iter().for_each(|path| std::fs::write(path, "bob@example.org\n").unwrap());
        let config =
            |more: &str| Config::parse(&text(more), "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let kept = |before: &OpenTables, after: &OpenTables| {
            let is_kept = |name: &&str| Arc::ptr_eq(before.find(name).unwrap(), after.find(name).unwrap());
            ["all", "people", "others", "rest"].into_iter().filter(is_kept).collect::<Vec<_>>()
        };
        let nobody = || -> TableEventHandler { Arc::new(|_| {}) };
        let first = OpenTables::open(&config(""), nobody()).unwrap();
        let more = "[[table]]\nname = \"more\"\ntype = \"static\"\nvalues = [\"x\"]\n";
        let second = first.reopen_changed(&config(more), nobody()).unwrap();
        assert_eq!(kept(&first, &second), ["all", "people", "others", "rest"]);
        assert!(second.find("more").is_some() && !first.is_same(&second) && first.is_same(&first));
        std::fs::write(&people, "bob@example.org\ncarol@example.org\n").unwrap();
        let third = second.reopen_changed(&config(""), nobody()).unwrap();
        assert_eq!(kept(&second, &third), ["others", "rest"]);
    }

    #[test]
    fn a_shared_table_is_opened_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("people");
        std::fs::write(&path, "bob@example.org\n").unwrap();
        let text = format!(
            "[[table]]\nname = \"all\"\ntype = \"chain\"\ntables = [\"people\"]\n\
             [[table]]\nname = \"people\"\ntype = \"text\"\npath = {path:?}\n"
        );
        let config = Config::parse(&text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let opened = OpenTables::open(&config, Arc::new(|_| {})).unwrap();
        let named: Vec<_> = opened.iter().map(|(kind, table)| (kind, table.name().to_owned())).collect();
        assert_eq!(named, [("chain", "all".to_owned()), ("text", "people".to_owned())]);
        assert!(opened.find("nobody").is_none());

        let mut opener = TableOpener::new(&config, TablePurpose::Query, Arc::new(|_| {}));
        let people = opener.get_or_open("people").unwrap();
        // Opening it again would fail.
        std::fs::remove_file(&path).unwrap();
        assert!(opener.get_or_open("all").is_ok());
        assert!(Arc::ptr_eq(&people, &opener.get_or_open("people").unwrap()));
        let again = opened.reopen_changed(&config, Arc::new(|_| {}));
        assert!(again.is_err(), "the file is gone, which is a change");
        let missing = OpenTables::open(&config, Arc::new(|_| {})).err().map(|exit| exit.code);
        assert_eq!(missing, Some(exit::IO));
        assert_eq!(opener.get_or_open("nobody").err().map(|exit| exit.code), Some(exit::USAGE));
    }
}
