//! The table commands. A lookup goes to the running server, to include its cache, replica and
//! breaker; without a server, the table is queried directly, and the output says so.

use std::io;
use std::sync::Arc;

use anyhow::Context;
use serde_json::Value;

use control::request::ControlRequest;
use control::tables::{LookupReport, ReportedAnswer};
use control::tables_text;

use super::{ControlClientError, print, request_text, rows, try_request_text};
use crate::cli::TableStatsArgs;
use crate::exit::{self, ExitError};
use crate::stderr::print_stderr;
use crate::tables::{self, TableOpener, TablePurpose};
use config::Config;

/// `mailrace table get`: prints the values of `key`, one per line; standard error says which layer
/// answered.
pub fn table_get(config: &Config, name: &str, key: &str) -> anyhow::Result<()> {
    if config.table(name).is_none() {
        return Err(tables::no_such_table(config, name).into());
    }
    let request = ControlRequest::TableGet { table: name.into(), key: key.into() };
    let (report, direct) = match try_request_text(&config.admin.socket, &request) {
        Ok(answer) => (serde_json::from_str(&answer).context("reading the server's answer")?, None),
        Err(ControlClientError::NoServer(error)) => {
            (lookup_directly(config, name, key)?, Some(no_server_reason(&error)))
        }
        // The server's configuration differs, so its answer says nothing about the key.
        Err(ControlClientError::Failed(no)) if no.code == exit::NEGATIVE => {
            return Err(ExitError { code: exit::USAGE, text: format!("the running server: {}", no.text) }.into());
        }
        Err(ControlClientError::Failed(other)) => return Err(other.into()),
    };
    print_stderr(tables_text::lookup_line(name, &report, direct.as_deref()));
    match report.answer {
        ReportedAnswer::Found(values) => print(values),
        ReportedAnswer::Unavailable(why) => Err(ExitError { code: exit::UNAVAILABLE, text: why }.into()),
        ReportedAnswer::NotFound => {
            Err(ExitError { code: exit::NEGATIVE, text: format!("{key:?} is not in the table {name:?}") }.into())
        }
    }
}

/// The server's own files may be in use, so nothing of them is opened.
fn lookup_directly(config: &Config, name: &str, key: &str) -> anyhow::Result<LookupReport> {
    let table = TableOpener::new(config, TablePurpose::Query, Arc::new(|_| {})).get_or_open(name)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    Ok(runtime.block_on(LookupReport::lookup(&*table, key)))
}

/// Why the server was not asked.
fn no_server_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "no running server".into(),
        _ => format!("cannot ask the server ({error})"),
    }
}

/// `mailrace table stats`.
pub fn table_stats(config: &Config, args: &TableStatsArgs) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::TableStats { table: args.name.clone() })?;
    if args.json {
        return print(answer.lines());
    }
    let rows = rows::<Value>(&answer)?;
    print(tables_text::stats_table(&rows))
}

/// `mailrace table accept`.
pub fn accept_table_removals(config: &Config, name: &str) -> anyhow::Result<()> {
    request_text(&config.admin.socket, &ControlRequest::TableAccept { table: name.into() }).map(drop)
}
