//! Tables of the configuration: opening them, each once, for all who ask (the directory, the sorter, the navigator, the
//! control socket), and making them (`mailrace table build`). What they have to tell goes to the log.

mod events;
mod open;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use lookup::{Events, Stats, Table, cdb};

use crate::config::Config;
use crate::exit::{self, Exit};

pub use events::tell;
pub use open::directory;
use open::{failed, open};

/// All tables of a configuration, open.
#[derive(Clone, Default)]
pub struct Tables {
    /// In the order of the configuration, each with what it is called there.
    tables: Vec<(&'static str, Arc<dyn Table>)>,
}

/// What tables are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The server, to which they belong: what has a file of its own here writes it.
    Serve,
    /// Somebody who asks or checks, perhaps beside a running server: nothing is written, nothing is kept up to date, and
    /// what has a copy here is asked where the original is.
    Ask,
}

/// Opens tables, each once, those of which another one is made before it.
pub struct Opener<'a> {
    config: &'a Config,
    purpose: Purpose,
    events: Events,
    opened: HashMap<&'a str, Arc<dyn Table>>,
}

impl Tables {
    /// Opens all tables for the server.
    ///
    /// # Errors
    ///
    /// The first one that cannot be used, in its own words.
    pub fn open(config: &Config, events: Events) -> Result<Tables, Exit> {
        let mut opener = Opener::new(config, Purpose::Serve, events);
        let tables = config.tables.iter().map(|table| Ok((table.kind.word(), opener.table(&table.name)?)));
        Ok(Tables { tables: tables.collect::<Result<_, _>>()? })
    }

    /// The table of this name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Table>> {
        self.tables.iter().map(|(_, table)| table).find(|table| table.name() == name)
    }

    /// What those of them count that do, by name.
    pub fn counts(&self) -> Vec<(Box<str>, Stats)> {
        self.tables.iter().filter_map(|(_, table)| Some((table.name().into(), table.stats()?))).collect()
    }

    /// All of them with their types, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Table>)> {
        self.tables.iter().map(|(kind, table)| (*kind, table))
    }
}

impl<'a> Opener<'a> {
    /// Has opened nothing yet.
    pub fn new(config: &'a Config, purpose: Purpose, events: Events) -> Self {
        Opener { config, purpose, events, opened: HashMap::new() }
    }

    /// The table of this name, which is opened if nobody asked for it before. That tables are not made of each other in a
    /// circle is the configuration's to know.
    ///
    /// # Errors
    ///
    /// There is none of this name, or it cannot be used, in its own words.
    pub fn table(&mut self, name: &str) -> Result<Arc<dyn Table>, Exit> {
        if let Some(table) = self.opened.get(name) {
            return Ok(table.clone());
        }
        let config: &'a Config = self.config;
        let described = config.table(name).ok_or_else(|| no_such_table(config, name))?;
        let table = open(described, self)?;
        self.opened.insert(&described.name, table.clone());
        Ok(table)
    }

    /// What for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Who is told what happens to a table.
    pub fn events(&self) -> Events {
        self.events.clone()
    }
}

/// Makes the cdb table `cdb` of the text table `text`, and says how many keys it has.
pub fn build(text: &Path, cdb: &Path) -> anyhow::Result<()> {
    let keys = cdb::build(text, cdb).map_err(failed)?;
    writeln!(io::stdout(), "{}: {keys} {}", cdb.display(), if keys == 1 { "key" } else { "keys" })?;
    Ok(())
}

/// What is told to somebody who asks for another one.
pub fn no_such_table(config: &Config, name: &str) -> Exit {
    let names: Vec<_> = config.tables.iter().map(|table| &*table.name).collect();
    let text = match names[..] {
        [] => format!("there is no table {name:?}: the configuration has no tables"),
        _ => format!("there is no table {name:?}, expected one of: {}", names.join(", ")),
    };
    Exit { code: exit::USAGE, text }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(opened.find("nobody").is_none() && opened.counts().is_empty());

        let mut opener = Opener::new(&config, Purpose::Ask, Arc::new(|_| {}));
        let people = opener.table("people").unwrap();
        // Whoever opened it again would not find it.
        std::fs::remove_file(&path).unwrap();
        assert!(opener.table("all").is_ok());
        assert!(Arc::ptr_eq(&people, &opener.table("people").unwrap()));
        let missing = Tables::open(&config, Arc::new(|_| {})).err().map(|exit| exit.code);
        assert_eq!(missing, Some(exit::IO));
        assert_eq!(opener.table("nobody").err().map(|exit| exit.code), Some(exit::USAGE));
    }
}
