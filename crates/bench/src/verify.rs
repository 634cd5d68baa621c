//! `bench verify`: what arrived is held against the ledger of what was answered 250.
//!
//! Copies are looked for in a tree of Maildirs, by POP3 or in the record of a sink, as often as `--wait` allows while
//! some are missing, each time from the start. Lost, doubled and damaged ones make the verdict bad. What cannot be read
//! at all is a fault, and so is a ledger with nothing in it: a proof with holes is none.

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

/// The least time between two looks; a look that takes longer is followed by a rest of its own length.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What `bench verify` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What was answered 250, as `bench smtp --ledger` wrote it
    #[arg(long, value_name = "FILE")]
    pub ledger: PathBuf,
    /// Where what arrived is
    #[command(flatten)]
    pub whereabouts: Whereabouts,
    /// Whose mailboxes POP3 is to read.
    #[command(flatten)]
    pub mailboxes: Mailboxes,
    /// Whose the POP3 server is.
    #[command(flatten)]
    pub ownership: Ownership,
    /// Look again for so long while something is missing, for it may be on its way
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub wait: Option<Duration>,
    /// The report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Where the copies are.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct Whereabouts {
    /// A tree of Maildirs, of any depth
    #[arg(long, value_name = "DIR")]
    pub maildir: Option<PathBuf>,
    /// A POP3 server, whose mailboxes --user or --users-file names
    #[arg(long, value_name = "HOST:PORT")]
    pub pop3: Option<String>,
    /// What `bench sink --record` wrote
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Holds what arrived against the ledger, and prints what came of it.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    let acknowledged = Acknowledged::evidence(&options.ledger)?;
    let copies = Copies::of(options)?;
    let patience = Patience { wait: options.wait.unwrap_or_default(), calm: Duration::ZERO };
    let held = held_in_time(&acknowledged, &copies, patience)?;
    report::print(&held, options.json)?;
    Ok(held.verdict())
}

/// Where copies can be looked for.
pub(crate) trait Look {
    /// What their places are.
    fn places(&self) -> Places;

    /// Finds all that there are.
    fn look(&self, holding: &mut Holding<'_>) -> Result<(), Fault>;

    /// Waits between two looks; a fault ends the search.
    fn rest(&self, span: Duration) -> Result<(), Fault> {
        thread::sleep(span);
        Ok(())
    }
}

/// How long copies are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    /// At the most, while something is missing or the calm has not lasted.
    pub(crate) wait: Duration,
    /// Without a new copy, when nothing is missing.
    pub(crate) calm: Duration,
}

/// Where `bench verify` looks.
#[derive(Clone, Debug)]
pub(crate) enum Copies {
    /// A tree of Maildirs.
    Maildirs(PathBuf),
    /// Mailboxes that a POP3 server gives out.
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
            _ => Err(Fault::Usage("one of --maildir, --pop3 and --record says where to look".into())),
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

/// Looks until nothing is missing and there was calm, at the most so long, and at least once.
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
