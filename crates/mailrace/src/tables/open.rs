//! From a table of the configuration to the table itself. Whatever cannot be used is told with its own error, and with
//! the exit code that says whose fault it is.

use std::error::Error;
use std::io;
use std::sync::Arc;

use lookup::Table;
use lookup::cdb::Cdb;
use lookup::text::Text;

use super::Opener;
use crate::config::{self, TableKind};
use crate::exit::{self, Exit};

/// Opens a table as the configuration has it. Those that it is made of come from `opener`, who opens each once.
pub(super) fn open(table: &config::Table, _opener: &mut Opener<'_>) -> Result<Arc<dyn Table>, Exit> {
    match table.kind {
        TableKind::Text => {
            Text::load(&table.name, &table.path).map(|it| Arc::new(it) as Arc<dyn Table>).map_err(failed)
        }
        TableKind::Cdb => Cdb::open(&table.name, &table.path).map(|it| Arc::new(it) as Arc<dyn Table>).map_err(failed),
    }
}

/// Errors of tables tell their causes themselves, so their text is all there is to say.
pub(super) fn failed(error: impl Error) -> Exit {
    let unread = error.source().is_some_and(|source| source.is::<io::Error>());
    Exit { code: if unread { exit::IO } else { exit::DATA }, text: error.to_string() }
}
