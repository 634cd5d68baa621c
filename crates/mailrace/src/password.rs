//! `mailrace password`: hashes a password from the terminal or standard input for a table.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::ensure;
use clap::ValueEnum;
use credentials::generate;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::exit::{self, ExitError};
use crate::output::output;

/// Password hash schemes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Scheme {
    /// For PLAIN and LOGIN; the hardest to guess
    Argon2id,
    /// Also for SCRAM-SHA-256
    #[value(name = "scram-sha-256")]
    ScramSha256,
}

/// Reads a password and prints its hash.
pub fn run(scheme: Scheme) -> anyhow::Result<()> {
    let password = if io::stdin().is_terminal() { prompt_twice()? } else { read_line()? };
    let mut salt = [0; generate::SALT_OCTETS];
    getrandom(&mut salt, GetRandomFlags::empty())?;
    let stored = match scheme {
        Scheme::Argon2id => generate::hash_argon2id(&password, salt),
        Scheme::ScramSha256 => generate::hash_scram_sha_256(&password, salt),
    };
    let stored = stored.map_err(|unfit| ExitError { code: exit::DATA, text: unfit.to_string() })?;
    Ok(writeln!(output(), "{stored}")?)
}

/// Asks twice, because the password is not shown.
fn prompt_twice() -> anyhow::Result<String> {
    let silence = EchoOff::begin()?;
    let first = prompt("Password: ")?;
    let second = prompt("Repeat password: ")?;
    drop(silence);
    ensure!(first == second, ExitError { code: exit::DATA, text: "the passwords do not match".into() });
    Ok(first)
}

fn prompt(prompt: &str) -> io::Result<String> {
    let mut terminal = io::stderr();
    write!(terminal, "{prompt}")?;
    terminal.flush()?;
    let line = read_line();
    writeln!(terminal)?;
    line
}

/// A line without its line end.
fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

/// Turns off the terminal's echo until it is dropped.
struct EchoOff(Termios);

impl EchoOff {
    fn begin() -> io::Result<EchoOff> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(EchoOff(before))
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // If the terminal is gone, there is no echo to restore.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
