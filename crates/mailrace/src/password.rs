//! `mailrace password`: a password, from the terminal or the standard input, in the form that tables keep.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::ensure;
use clap::ValueEnum;
use lookup::credentials::make;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::exit::{self, Exit};
use crate::output::output;

/// Forms in which a password can be stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Scheme {
    /// For PLAIN and LOGIN; the costliest to guess
    Argon2id,
    /// For SCRAM-SHA-256 too
    #[value(name = "scram-sha-256")]
    ScramSha256,
}

/// Reads a password and prints its stored form.
pub fn run(scheme: Scheme) -> anyhow::Result<()> {
    let password = if io::stdin().is_terminal() { ask()? } else { line()? };
    let mut salt = [0; make::SALT_OCTETS];
    getrandom(&mut salt, GetRandomFlags::empty())?;
    let stored = match scheme {
        Scheme::Argon2id => make::argon2id(&password, salt),
        Scheme::ScramSha256 => make::scram_sha_256(&password, salt),
    };
    let stored = stored.map_err(|unfit| Exit { code: exit::DATA, text: unfit.to_string() })?;
    Ok(writeln!(output(), "{stored}")?)
}

/// Twice, since nobody sees what he types.
fn ask() -> anyhow::Result<String> {
    let silence = Silence::begin()?;
    let first = prompted("Password: ")?;
    let second = prompted("Once more: ")?;
    drop(silence);
    ensure!(first == second, Exit { code: exit::DATA, text: "these are two different passwords".into() });
    Ok(first)
}

fn prompted(prompt: &str) -> io::Result<String> {
    let mut terminal = io::stderr();
    write!(terminal, "{prompt}")?;
    terminal.flush()?;
    let line = line();
    writeln!(terminal)?;
    line
}

/// A line without its end.
fn line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

/// The terminal shows nothing of what is typed, as long as this lives.
struct Silence(Termios);

impl Silence {
    fn begin() -> io::Result<Silence> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Silence(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // Where the terminal is gone nothing is left to be shown.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
