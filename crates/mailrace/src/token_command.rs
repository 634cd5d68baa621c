//! `mailrace token`: makes, lists and revokes the tokens of the HTTP API. They are in a file in the
//! folder of the server's data; a running server notices each change of it.

use std::io::Write;
use std::time::SystemTime;

use anyhow::Context;
use config::Config;
use control::columns::{Align, ColumnTable};
use control::request::ControlRequest;
use control::tokens::{RANDOM_OCTETS, StoredToken, TokenFile};
use mail::Timestamp;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::cli::{TokenCreateArgs, TokenListArgs};
use crate::control_client;
use crate::exit::{self, ExitError};
use crate::output::output;
use crate::stderr::print_stderr;

/// Makes a token, and prints it as the last line.
///
/// # Errors
///
/// The name is no word or taken, or the file cannot be written.
pub fn create(config: &Config, args: &TokenCreateArgs) -> anyhow::Result<()> {
    let file = TokenFile::in_data_dir(&config.data_dir);
    let mut random = [0; RANDOM_OCTETS];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let valid_for = args.expires.as_ref().map(|span| span.0.0);
    let invalid = |error: control::tokens::InvalidTokenName| ExitError { code: exit::USAGE, text: error.to_string() };
    let (token, text) =
        StoredToken::generate(random, args.role, args.name.as_deref(), now(), valid_for).map_err(invalid)?;
    let name = token.name.clone();
    file.add(token).with_context(|| in_file(&file))?.map_err(invalid)?;
    if !config.listeners.iter().any(|listener| listener.api) {
        print_stderr("mailrace: no listener has api = true: nobody answers to this token yet");
    }
    log_change(config, &ControlRequest::TokenCreated { name: name.clone(), role: args.role });
    print_stderr(format_args!("mailrace: the token {name} has the role {}; it is shown only now", args.role.name()));
    Ok(writeln!(output(), "{text}")?)
}

/// Prints all tokens, without their secrets.
///
/// # Errors
///
/// The file cannot be read.
pub fn list(config: &Config, args: &TokenListArgs) -> anyhow::Result<()> {
    let file = TokenFile::in_data_dir(&config.data_dir);
    let tokens = file.read().with_context(|| in_file(&file))?;
    let mut out = output();
    if args.json {
        for StoredToken { id, name, role, created, expires, .. } in &tokens {
            let [created, expires] = [Some(*created), *expires].map(|at| at.map(time_text));
            let object = serde_json::json!({
                "id": id, "name": name, "role": role.name(), "created": created, "expires": expires,
            });
            writeln!(out, "{object}")?;
        }
        return Ok(());
    }
    let columns = ["NAME", "ID", "ROLE", "CREATED", "EXPIRES"];
    let mut table = ColumnTable::new(&columns.map(|name| (name, Align::Left)));
    for token in &tokens {
        let expires = match token.expires {
            Some(end) if !token.is_valid_at(now()) => format!("{} (has expired)", time_text(end)),
            Some(end) => time_text(end),
            None => "never".to_owned(),
        };
        let [name, id] = [&token.name, &token.id].map(String::clone);
        table.row(vec![name, id, token.role.name().to_owned(), time_text(token.created), expires]);
    }
    table.lines().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

/// Revokes a token; the server refuses it from now on.
///
/// # Errors
///
/// There is no such token, or the file cannot be written.
pub fn revoke(config: &Config, name: &str) -> anyhow::Result<()> {
    let file = TokenFile::in_data_dir(&config.data_dir);
    match file.remove(name).with_context(|| in_file(&file))? {
        true => {
            log_change(config, &ControlRequest::TokenRevoked { name: name.to_owned() });
            Ok(())
        }
        false => Err(ExitError { code: exit::NEGATIVE, text: format!("no token has the name or ID {name:?}") }.into()),
    }
}

/// Has the running server log who has changed a token. The change itself needs no server.
fn log_change(config: &Config, change: &ControlRequest) {
    if let Err(error) = control_client::record(config, change) {
        print_stderr(format_args!("mailrace: the log of the server has no line about this: {error}"));
    }
}

fn in_file(file: &TokenFile) -> String {
    format!("the tokens in {}", file.path().display())
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

fn time_text(seconds: u64) -> String {
    Timestamp(seconds * 1000).to_rfc3339()
}
