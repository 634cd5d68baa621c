//! `bench verify`: compares delivered copies with the ledger of acknowledged messages.
//!
//! Copies are searched in a tree of Maildirs, by POP3, or in the record of a sink. While some are
//! missing the search is repeated from the start for up to `--wait`. Lost, doubled and damaged
//! copies make the verdict bad. It is a fault if something cannot be read or the ledger is empty,
//! since the result would prove nothing.

mod comparer;
mod comparison;
mod maildir;
mod pop3_mailboxes;
mod record;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::options::span;
use crate::pop3::{Accounts, Pop3AccountOptions};
use crate::{AcknowledgedMessages, BenchError, OwnedTargetOptions, RunVerdict, TargetServer, report};

pub(crate) use comparer::{Comparer, CopyPlace, FoundCopy, PlaceKind};
pub(crate) use comparison::Comparison;
pub(crate) use pop3_mailboxes::Pop3Mailboxes;
pub(crate) use record::write_line as write_record_line;

/// The least time between two searches. After a longer search the pause is as long as the search.
const SCAN_INTERVAL_MIN: Duration = Duration::from_millis(500);

/// Options of `bench verify`.
#[derive(Clone, Debug, clap::Args)]
pub struct VerifyOptions {
    /// Ledger written by `bench smtp --ledger`
    #[arg(long, value_name = "FILE")]
    pub ledger: PathBuf,
    /// Where to search for copies.
    #[command(flatten)]
    pub source: DeliveredMailOptions,
    /// Mailboxes to read by POP3.
    #[command(flatten)]
    pub mailboxes: Pop3AccountOptions,
    /// Owned POP3 servers.
    #[command(flatten)]
    pub ownership: OwnedTargetOptions,
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
pub struct DeliveredMailOptions {
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
pub fn run(options: &VerifyOptions) -> Result<RunVerdict, BenchError> {
    let acknowledged = AcknowledgedMessages::read_nonempty(&options.ledger)?;
    let copies = CopyLocation::from_options(options)?;
    let wait_limits = WaitLimits { wait: options.wait.unwrap_or_default(), quiet: Duration::ZERO };
    let comparison = compare_until_complete(&acknowledged, &copies, wait_limits)?;
    report::print(&comparison, options.json)?;
    Ok(comparison.verdict())
}

/// A source of copies.
pub(crate) trait CopySource {
    /// What its copies are stored by.
    fn place_kind(&self) -> PlaceKind;

    /// Passes every copy to `comparer`.
    fn scan(&self, comparer: &mut Comparer<'_>) -> Result<(), BenchError>;

    /// Pauses between two searches; a fault ends the search.
    fn pause(&self, span: Duration) -> Result<(), BenchError> {
        thread::sleep(span);
        Ok(())
    }
}

/// How long to search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitLimits {
    /// The limit while messages are missing or new copies arrive.
    pub(crate) wait: Duration,
    /// How long no new copy may arrive before the search ends, once nothing is missing.
    pub(crate) quiet: Duration,
}

/// Where `bench verify` searches.
#[derive(Clone, Debug)]
pub(crate) enum CopyLocation {
    /// A tree of Maildirs.
    Maildirs(PathBuf),
    /// Mailboxes of a POP3 server.
    Pop3(Pop3Mailboxes),
    /// The record of a sink.
    Record(PathBuf),
}

impl CopyLocation {
    fn from_options(options: &VerifyOptions) -> Result<CopyLocation, BenchError> {
        match &options.source {
            DeliveredMailOptions { maildir: Some(root), pop3: None, record: None } => {
                Ok(CopyLocation::Maildirs(root.clone()))
            }
            DeliveredMailOptions { pop3: Some(target), maildir: None, record: None } => {
                let target = TargetServer::resolve(target, &options.ownership)?;
                Ok(CopyLocation::Pop3(Pop3Mailboxes {
                    target,
                    accounts: Arc::new(Accounts::from_options(&options.mailboxes)?),
                }))
            }
            DeliveredMailOptions { record: Some(file), maildir: None, pop3: None } => {
                Ok(CopyLocation::Record(file.clone()))
            }
            _ => Err(BenchError::Usage("give one of --maildir, --pop3 and --record".into())),
        }
    }
}

impl CopySource for CopyLocation {
    fn place_kind(&self) -> PlaceKind {
        match self {
            CopyLocation::Maildirs(_) | CopyLocation::Pop3(_) => PlaceKind::Mailboxes,
            CopyLocation::Record(_) => PlaceKind::Recipients,
        }
    }

    fn scan(&self, comparer: &mut Comparer<'_>) -> Result<(), BenchError> {
        match self {
            CopyLocation::Maildirs(root) => maildir::scan(root, comparer),
            CopyLocation::Pop3(mailboxes) => mailboxes.scan(comparer),
            CopyLocation::Record(file) => record::scan(file, comparer),
        }
    }
}

/// Searches until nothing is missing and no new copies arrive, or the time limit; at least once.
pub(crate) fn compare_until_complete(
    acknowledged: &AcknowledgedMessages,
    copies: &impl CopySource,
    wait_limits: WaitLimits,
) -> Result<Comparison, BenchError> {
    let begun = Instant::now();
    let (mut copies_before, mut last_new_copy_at) = (0, begun);
    loop {
        let scan_began = Instant::now();
        let mut comparer = Comparer::new(acknowledged, copies.place_kind());
        copies.scan(&mut comparer)?;
        if comparer.copies() != copies_before {
            (copies_before, last_new_copy_at) = (comparer.copies(), Instant::now());
        }
        let is_quiet =
            wait_limits.quiet.is_zero() || scan_began.saturating_duration_since(last_new_copy_at) >= wait_limits.quiet;
        let left = wait_limits.wait.saturating_sub(begun.elapsed());
        if comparer.is_complete() && is_quiet || left.is_zero() {
            return Ok(comparer.finish());
        }
        drop(comparer);
        copies.pause(scan_began.elapsed().max(SCAN_INTERVAL_MIN).min(left))?;
    }
}
