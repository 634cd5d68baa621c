//! The table commands. A lookup goes to the running server, to include its cache, replica and
//! breaker; without a server, the table is queried directly, and the output says so.

use std::io;
use std::sync::Arc;

use anyhow::Context;
use serde_json::Value;

use super::super::client::{Unasked, ask, print, put};
use super::super::question::Question;
use super::{Said, Told, show};
use crate::cli::TableStats;
use crate::config::Config;
use crate::exit::{self, Exit};
use crate::say::say;
use crate::tables::{self, Opener, Purpose};

/// `mailrace table get`: prints the values of `key`, one per line; standard error says which layer
/// answered.
pub fn table_get(config: &Config, name: &str, key: &str) -> anyhow::Result<()> {
    if config.table(name).is_none() {
        return Err(tables::no_such_table(config, name).into());
    }
    let question = Question::TableGet { table: name.into(), key: key.into() };
    let (told, direct) = match put(&config.admin.socket, &question) {
        Ok(answer) => (serde_json::from_str(&answer).context("reading the server's answer")?, None),
        Err(Unasked::NoServer(error)) => (directly(config, name, key)?, Some(absence(&error))),
        // The server's configuration differs, so its answer says nothing about the key.
        Err(Unasked::Exit(no)) if no.code == exit::NO => {
            return Err(Exit { code: exit::USAGE, text: format!("the running server: {}", no.text) }.into());
        }
        Err(Unasked::Exit(other)) => return Err(other.into()),
    };
    say(show::sentence(name, &told, direct.as_deref()));
    match told.answer {
        Said::Found(values) => print(values),
        Said::Unavailable(why) => Err(Exit { code: exit::UNAVAILABLE, text: why }.into()),
        Said::NotFound => Err(Exit { code: exit::NO, text: format!("{key:?} is not in the table {name:?}") }.into()),
    }
}

/// The server's own files may be in use, so nothing of them is opened.
fn directly(config: &Config, name: &str, key: &str) -> anyhow::Result<Told> {
    let table = Opener::new(config, Purpose::Ask, Arc::new(|_| {})).table(name)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    Ok(runtime.block_on(Told::ask(&*table, key)))
}

/// Why the server was not asked.
fn absence(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "no running server".into(),
        _ => format!("cannot ask the server ({error})"),
    }
}

/// `mailrace table stats`.
pub fn table_stats(config: &Config, how: &TableStats) -> anyhow::Result<()> {
    let answer = ask(&config.admin.socket, &Question::TableStats { table: how.name.clone() })?;
    if how.json {
        return print(answer.lines());
    }
    let rows = answer.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    print(show::stats(&rows))
}

/// `mailrace table accept`.
pub fn table_accept(config: &Config, name: &str) -> anyhow::Result<()> {
    ask(&config.admin.socket, &Question::TableAccept { table: name.into() }).map(drop)
}
