//! `bench verify`: compares delivered copies with the ledger of acknowledged messages.
//!
//! Copies are searched in a tree of Maildirs, by POP3, or in the record of a sink. While some are
//! missing the search is repeated from the start for up to `--wait`. Lost, doubled and damaged
//! copies make the verdict bad. It is a fault if something cannot be read or the ledger is empty,
//! since the result would prove nothing.

mod held;
mod holding;
mod maildir;
mod post_office;
mod record;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::options::span;
use crate::pop3::{Accounts, Mailboxes};
use crate::{Acknowledged, Fault, Ownership, Target, Verdict, report};

pub(crate) use held::Held;
pub(crate) use holding::{Found, Holding, Place, Places};
pub(crate) use post_office::PostOffice;
pub(crate) use record::write_line as write_record_line;

/// The least time between two searches. After a longer search the pause is as long as the search.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Options of `bench verify`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Ledger written by `bench smtp --ledger`
    #[arg(long, value_name = "FILE")]
    pub ledger: PathBuf,
    /// Where to search for copies.
    #[command(flatten)]
    pub whereabouts: Whereabouts,
    /// Mailboxes to read by POP3.
    #[command(flatten)]
    pub mailboxes: Mailboxes,
    /// Owned POP3 servers.
    #[command(flatten)]
    pub ownership: Ownership,
    /// Search again for this long while messages are missing
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub wait: Option<Duration>,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Where to search for copies.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Whereabouts {
    /// Root of a tree of Maildirs of any depth
    #[arg(long, value_name = "DIR")]
    pub maildir: Option<PathBuf>,
    /// POP3 server; see --user and --users-file
    #[arg(long, value_name = "HOST:PORT")]
    pub pop3: Option<String>,
    /// Record written by `bench sink --record`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Compares copies with the ledger and prints the report.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    let acknowledged = Acknowledged::evidence(&options.ledger)?;
    let copies = Copies::of(options)?;
    let patience = Patience { wait: options.wait.unwrap_or_default(), calm: Duration::ZERO };
    let held = held_in_time(&acknowledged, &copies, patience)?;
    report::print(&held, options.json)?;
    Ok(held.verdict())
}

/// A source of copies.
pub(crate) trait Look {
    /// What its copies are stored by.
    fn places(&self) -> Places;

    /// Passes every copy to `holding`.
    fn look(&self, holding: &mut Holding<'_>) -> Result<(), Fault>;

    /// Pauses between two searches; a fault ends the search.
    fn rest(&self, span: Duration) -> Result<(), Fault> {
        thread::sleep(span);
        Ok(())
    }
}

/// How long to search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// The limit while messages are missing or new copies arrive.
    pub(crate) wait: Duration,
    /// How long no new copy may arrive before the search ends, once nothing is missing.
    pub(crate) calm: Duration,
}

/// Where `bench verify` searches.
#[derive(Clone, Debug)]
pub(crate) enum Copies {
    /// A tree of Maildirs.
    Maildirs(PathBuf),
    /// Mailboxes of a POP3 server.
    PostOffice(PostOffice),
    /// The record of a sink.
    Record(PathBuf),
}

impl Copies {
    fn of(options: &Options) -> Result<Copies, Fault> {
        match &options.whereabouts {
            Whereabouts { maildir: Some(root), pop3: None, record: None } => Ok(Copies::Maildirs(root.clone())),
            Whereabouts { pop3: Some(target), maildir: None, record: None } => {
                let target = Target::resolve(target, &options.ownership)?;
                Ok(Copies::PostOffice(PostOffice { target, accounts: Arc::new(Accounts::of(&options.mailboxes)?) }))
            }
            Whereabouts { record: Some(file), maildir: None, pop3: None } => Ok(Copies::Record(file.clone())),
            _ => Err(Fault::Usage("give one of --maildir, --pop3 and --record".into())),
        }
    }
}

impl Look for Copies {
    fn places(&self) -> Places {
        match self {
            Copies::Maildirs(_) | Copies::PostOffice(_) => Places::Mailboxes,
            Copies::Record(_) => Places::Recipients,
        }
    }

    fn look(&self, holding: &mut Holding<'_>) -> Result<(), Fault> {
        match self {
            Copies::Maildirs(root) => maildir::look(root, holding),
            Copies::PostOffice(office) => office.look(holding),
            Copies::Record(file) => record::look(file, holding),
        }
    }
}

/// Searches until nothing is missing and no new copies arrive, or the time limit; at least once.
pub(crate) fn held_in_time(acknowledged: &Acknowledged, copies: &impl Look, patience: Patience) -> Result<Held, Fault> {
    let begun = Instant::now();
    let (mut copies_before, mut grew) = (0, begun);
    loop {
        let looked = Instant::now();
        let mut holding = Holding::new(acknowledged, copies.places());
        copies.look(&mut holding)?;
        if holding.copies() != copies_before {
            (copies_before, grew) = (holding.copies(), Instant::now());
        }
        let is_calm = patience.calm.is_zero() || looked.saturating_duration_since(grew) >= patience.calm;
        let left = patience.wait.saturating_sub(begun.elapsed());
        if holding.is_complete() && is_calm || left.is_zero() {
            return Ok(holding.finish());
        }
        drop(holding);
        copies.rest(looked.elapsed().max(LOOK_EVERY).min(left))?;
    }
}
