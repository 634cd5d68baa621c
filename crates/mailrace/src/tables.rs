//! The tables of the configuration: opens them, each once for all users (the directory, the
//! classifier, the router, the control socket), and builds them (`mailrace table build`). Their
//! events go to the log.

mod events;
mod kept;
mod open;

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use lookup::{Events, Table, cdb};

use crate::config::{self, Config, TableKind};
use crate::exit::{self, Exit};
use crate::output::output;

pub use events::tell;
use kept::{Held, copy, stamps};
pub use open::directory;
use open::{failed, open};

/// All tables of a configuration, open.
#[derive(Clone, Default)]
pub struct Tables {
    /// In the order of the configuration.
    tables: Arc<[Held]>,
}

/// What tables are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The server, which owns the replica files and writes them.
    Serve,
    /// A command that queries or checks, perhaps beside a running server: nothing is written or
    /// kept up to date, and a replica is queried at its master.
    Ask,
}

/// Opens tables, each once, and the parts of a table before it.
pub struct Opener<'a> {
    config: &'a Config,
    purpose: Purpose,
    events: Events,
    /// The tables already open.
    before: Tables,
    opened: HashMap<&'a str, Held>,
}

impl Tables {
    /// Opens all tables for the server.
    ///
    /// # Errors
    ///
    /// The first table that cannot be used, with its own error.
    pub fn open(config: &Config, events: Events) -> Result<Tables, Exit> {
        Tables::default().changed(config, events)
    }

    /// Opens the tables of another configuration. Tables whose settings and files are unchanged
    /// stay open, with what they have in memory; the others are opened again.
    ///
    /// # Errors
    ///
    /// The first table that cannot be used, with its own error. The open tables are unchanged.
    pub fn changed(&self, config: &Config, events: Events) -> Result<Tables, Exit> {
        let mut opener = Opener { before: self.clone(), ..Opener::new(config, Purpose::Serve, events) };
        let tables = config.tables.iter().map(|table| opener.held(&table.name));
        Ok(Tables { tables: tables.collect::<Result<_, _>>()? })
    }

    /// Whether both have the same tables, in the same order.
    pub fn are(&self, others: &Tables) -> bool {
        let is_same = |(one, other): (&Held, &Held)| Arc::ptr_eq(&one.table, &other.table);
        self.tables.len() == others.tables.len() && self.tables.iter().zip(&*others.tables).all(is_same)
    }

    /// The table with this name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Table>> {
        self.tables.iter().map(|held| &held.table).find(|table| table.name() == name)
    }

    /// All tables with their types, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Table>)> {
        self.tables.iter().map(|held| (held.described.kind.word(), &held.table))
    }
}

impl<'a> Opener<'a> {
    /// Creates an opener with nothing opened yet.
    pub fn new(config: &'a Config, purpose: Purpose, events: Events) -> Self {
        Opener { config, purpose, events, before: Tables::default(), opened: HashMap::new() }
    }

    /// The table with this name; opens it if necessary. The configuration has checked that chains
    /// have no cycles.
    ///
    /// # Errors
    ///
    /// There is no such table, or it cannot be used, with its own error.
    pub fn table(&mut self, name: &str) -> Result<Arc<dyn Table>, Exit> {
        self.held(name).map(|held| held.table)
    }

    fn held(&mut self, name: &str) -> Result<Held, Exit> {
        if let Some(held) = self.opened.get(name) {
            return Ok(held.clone());
        }
        let config: &'a Config = self.config;
        let described = config.table(name).ok_or_else(|| no_such_table(config, name))?;
        let stamps = stamps(described);
        let same = self.before.tables.iter().find(|held| held.is(described, &stamps)).cloned();
        let held = match same {
            Some(same) if self.is_made_of_the_same(&same)? => same,
            _ => {
                self.copy_is_free(described)?;
                Held::new(described.clone(), open(described, self)?, stamps)
            }
        };
        self.opened.insert(&described.name, held.clone());
        Ok(held)
    }

    /// Whether its parts are still the same tables.
    fn is_made_of_the_same(&mut self, held: &Held) -> Result<bool, Exit> {
        let TableKind::Chain { tables } = &held.described.kind else { return Ok(true) };
        for name in tables {
            let part = self.table(name)?;
            if !self.before.find(name).is_some_and(|before| Arc::ptr_eq(before, &part)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The file of a replica belongs to the table that has it open.
    fn copy_is_free(&self, described: &config::Table) -> Result<(), Exit> {
        let Some(file) = copy(described) else { return Ok(()) };
        match self.before.tables.iter().find(|held| copy(&held.described) == Some(file)) {
            None => Ok(()),
            Some(_) => {
                let text = format!(
                    "table '{}': the settings of its replica have changed: this needs a restart",
                    described.name
                );
                Err(Exit { code: exit::NO, text })
            }
        }
    }

    /// The purpose of opening.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Receives the events of tables.
    pub fn events(&self) -> Events {
        self.events.clone()
    }
}

/// Builds the cdb table `cdb` from the text table `text`, and prints the number of keys.
pub fn build(text: &Path, cdb: &Path) -> anyhow::Result<()> {
    let keys = cdb::build(text, cdb).map_err(failed)?;
    writeln!(output(), "{}: {keys} {}", cdb.display(), if keys == 1 { "key" } else { "keys" })?;
    Ok(())
}

/// The error for an unknown table.
pub fn no_such_table(config: &Config, name: &str) -> Exit {
    let names: Vec<_> = config.tables.iter().map(|table| &*table.name).collect();
    let text = match names[..] {
        [] => format!("no such table: {name:?}; the configuration has no tables"),
        _ => format!("no such table: {name:?}, expected one of: {}", names.join(", ")),
    };
    Exit { code: exit::USAGE, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unchanged table keeps what it has in memory; a chain is rebuilt if one of its parts is.
    #[test]
    fn of_another_configuration_only_what_is_changed_is_opened() {
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
        let kept = |before: &Tables, after: &Tables| {
            let is_kept = |name: &&str| Arc::ptr_eq(before.find(name).unwrap(), after.find(name).unwrap());
            ["all", "people", "others", "rest"].into_iter().filter(is_kept).collect::<Vec<_>>()
        };
        let nobody = || -> Events { Arc::new(|_| {}) };
        let first = Tables::open(&config(""), nobody()).unwrap();
        let more = "[[table]]\nname = \"more\"\ntype = \"static\"\nvalues = [\"x\"]\n";
        let second = first.changed(&config(more), nobody()).unwrap();
        assert_eq!(kept(&first, &second), ["all", "people", "others", "rest"]);
        assert!(second.find("more").is_some() && !first.are(&second) && first.are(&first));
        std::fs::write(&people, "bob@example.org\ncarol@example.org\n").unwrap();
        let third = second.changed(&config(""), nobody()).unwrap();
        assert_eq!(kept(&second, &third), ["others", "rest"]);
    }

    #[test]
    fn a_table_is_opened_once_though_another_one_is_made_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("people");
        std::fs::write(&path, "bob@example.org\n").unwrap();
        let text = format!(
            "[[table]]\nname = \"all\"\ntype = \"chain\"\ntables = [\"people\"]\n\
             [[table]]\nname = \"people\"\ntype = \"text\"\npath = {path:?}\n"
        );
        let config = Config::parse(&text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let opened = Tables::open(&config, Arc::new(|_| {})).unwrap();
        let named: Vec<_> = opened.iter().map(|(kind, table)| (kind, table.name().to_owned())).collect();
        assert_eq!(named, [("chain", "all".to_owned()), ("text", "people".to_owned())]);
        assert!(opened.find("nobody").is_none());

        let mut opener = Opener::new(&config, Purpose::Ask, Arc::new(|_| {}));
        let people = opener.table("people").unwrap();
        // Opening it again would fail.
        std::fs::remove_file(&path).unwrap();
        assert!(opener.table("all").is_ok());
        assert!(Arc::ptr_eq(&people, &opener.table("people").unwrap()));
        let again = opened.changed(&config, Arc::new(|_| {}));
        assert!(again.is_err(), "the file is gone, which is a change");
        let missing = Tables::open(&config, Arc::new(|_| {})).err().map(|exit| exit.code);
        assert_eq!(missing, Some(exit::IO));
        assert_eq!(opener.table("nobody").err().map(|exit| exit.code), Some(exit::USAGE));
    }
}
