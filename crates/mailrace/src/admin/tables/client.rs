//! The commands about tables. A key is asked of the running server, so that its cache, its copies and its breaker speak;
//! where none runs the table is asked from here, and that is said.

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

/// `mailrace table get`: the values of `key`, one a line; on standard error who said so.
pub fn table_get(config: &Config, name: &str, key: &str) -> anyhow::Result<()> {
    if config.table(name).is_none() {
        return Err(tables::no_such_table(config, name).into());
    }
    let question = Question::TableGet { table: name.into(), key: key.into() };
    let (told, direct) = match put(&config.admin.socket, &question) {
        Ok(answer) => (serde_json::from_str(&answer).context("reading the server's answer")?, None),
        Err(Unasked::NoServer(error)) => (directly(config, name, key)?, Some(absence(&error))),
        // It has another configuration, which says nothing of the key.
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

/// What there is of the server may be at work, so nothing of its own is opened here.
fn directly(config: &Config, name: &str, key: &str) -> anyhow::Result<Told> {
    let table = Opener::new(config, Purpose::Ask, Arc::new(|_| {})).table(name)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    Ok(runtime.block_on(Told::ask(&*table, key)))
}

/// Why the server was not asked.
fn absence(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "no server runs".into(),
        _ => format!("the server cannot be asked ({error})"),
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
