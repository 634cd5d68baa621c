//! Tables of the configuration: opening them, making them (`mailrace table build`) and asking them
//! (`mailrace table get`).

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use lookup::cdb::{self, Cdb};
use lookup::text::Text;
use lookup::{Answer, Table};

use crate::config::{self, Config, TableKind};
use crate::exit::{self, Exit};

/// Opens a table as the configuration has it.
pub fn open(table: &config::Table) -> Result<Arc<dyn Table>, Exit> {
    match table.kind {
        TableKind::Text => {
            Text::load(&table.name, &table.path).map(|it| Arc::new(it) as Arc<dyn Table>).map_err(failed)
        }
        TableKind::Cdb => Cdb::open(&table.name, &table.path).map(|it| Arc::new(it) as Arc<dyn Table>).map_err(failed),
    }
}

/// Makes the cdb table `cdb` of the text table `text`, and says how many keys it has.
pub fn build(text: &Path, cdb: &Path) -> anyhow::Result<()> {
    let keys = cdb::build(text, cdb).map_err(failed)?;
    writeln!(io::stdout(), "{}: {keys} {}", cdb.display(), if keys == 1 { "key" } else { "keys" })?;
    Ok(())
}

/// Writes the values of `key` in the table `name`, one a line.
pub fn get(config: &Config, name: &str, key: &str) -> anyhow::Result<()> {
    let table = open(config.table(name).ok_or_else(|| no_such_table(config, name))?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().context("starting a runtime")?;
    match runtime.block_on(table.lookup(&[key])).into_iter().next() {
        Some(Answer::Found(values)) => Ok(values.iter().try_for_each(|value| writeln!(io::stdout(), "{value}"))?),
        Some(Answer::Unavailable(why)) => Err(Exit { code: exit::UNAVAILABLE, text: why }.into()),
        Some(Answer::NotFound) | None => {
            Err(Exit { code: exit::NO, text: format!("{key:?} is not in the table {name:?}") }.into())
        }
    }
}

fn no_such_table(config: &Config, name: &str) -> Exit {
    let names: Vec<_> = config.tables.iter().map(|table| &*table.name).collect();
    let text = match names[..] {
        [] => format!("there is no table {name:?}: the configuration has no tables"),
        _ => format!("there is no table {name:?}, expected one of: {}", names.join(", ")),
    };
    Exit { code: exit::USAGE, text }
}

/// Errors of tables tell their causes themselves, so their text is all there is to say.
fn failed(error: impl Error) -> Exit {
    let unread = error.source().is_some_and(|source| source.is::<io::Error>());
    Exit { code: if unread { exit::IO } else { exit::DATA }, text: error.to_string() }
}
