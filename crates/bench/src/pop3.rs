//! `bench pop3`: simulates users who read their mail. Each ticket is a session with one mailbox:
//! connect, log in, list, fetch messages, delete messages, quit. Each message with a stamp is
//! checked, so that damaged mail is found during the measurement. A session is done when QUIT is
//! answered.

mod accounts;
mod session;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;

use net::TlsClient;
use tokio::time::Instant;

use crate::dial::{DialPhases, dial_secured};
use crate::engine::{self, LoadRun, Worker, Workload};
use crate::options::share;
use crate::order::SelectionOrder;
use crate::report::{self, RunVerdict};
use crate::summary::LoadLabels;
use crate::tally::normalize_reply;
use crate::{BenchError, LoadOptions, LoadSummary, TargetServer};

use session::{Pop3Error, Pop3Session};

pub use accounts::Pop3AccountOptions;
pub(crate) use accounts::{Account, Accounts};
pub(crate) use walk::walk;

const PHASES: &[&str] = &["connect", "TLS", "banner", "login", "list", "retr", "dele", "quit"];
const DIAL_PHASES: DialPhases = DialPhases { connect: 0, tls: 1 };
const BANNER: usize = 2;
const LOGIN: usize = 3;
const LIST: usize = 4;
const RETR: usize = 5;
const DELE: usize = 6;
const QUIT: usize = 7;

/// Options of `bench pop3`.
#[derive(Clone, Debug, clap::Args)]
pub struct Pop3Options {
    /// Server to read from; connections use several in turn
    #[arg(long = "target", value_name = "HOST:PORT", required = true)]
    pub targets: Vec<String>,
    /// Use TLS from the first byte, as on port 995; any certificate is accepted
    #[arg(long)]
    pub tls: bool,
    /// The mailboxes to read.
    #[command(flatten)]
    pub mailboxes: Pop3AccountOptions,
    /// Order in which mailboxes are read
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = SelectionOrder::Turn)]
    pub order: SelectionOrder,
    /// The amount of load.
    #[command(flatten)]
    pub load: LoadOptions,
    /// End after this many sessions
    #[arg(long, value_name = "N")]
    pub sessions: Option<u64>,
    /// Share of messages to fetch
    #[arg(long, value_name = "PERCENT", default_value = "100%", value_parser = share)]
    pub retrieve: f64,
    /// Share of messages to delete
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = share)]
    pub delete: f64,
}

/// Runs the load and prints the summary.
pub fn run(options: &Pop3Options) -> Result<RunVerdict, BenchError> {
    let summary = run_load(options)?;
    report::print(&summary, options.load.json)?;
    Ok(summary.verdict())
}

fn run_load(options: &Pop3Options) -> Result<LoadSummary, BenchError> {
    let targets = options.targets.iter().map(|name| TargetServer::resolve(name, &options.load.ownership));
    let load = Pop3Load {
        targets: targets.collect::<Result<_, _>>()?,
        accounts: Accounts::from_options(&options.mailboxes)?,
        tls: options.tls.then(TlsClient::unverified),
        order: options.order,
        retrieve_share: options.retrieve,
        delete_share: options.delete,
    };
    let title = format!("pop3 {}", options.targets.join(" "));
    engine::run(LoadRun { title, options: &options.load, count: options.sessions, stop: None }, &Arc::new(load))
}

/// What all connections share.
struct Pop3Load {
    targets: Vec<TargetServer>,
    accounts: Accounts,
    /// None: in clear text.
    tls: Option<TlsClient>,
    order: SelectionOrder,
    retrieve_share: f64,
    delete_share: f64,
}

impl Workload for Pop3Load {
    const LABELS: LoadLabels = LoadLabels { unit: "sessions", part: "messages", phases: PHASES };

    async fn run_connection(self: Arc<Self>, mut worker: Worker) {
        while let Some(ticket) = worker.next().await {
            let account = self.accounts.account(self.order.choose(ticket, &mut worker.random, self.accounts.len()));
            match self.run_session(&mut worker, &account).await {
                Ok(()) => worker.tally.lock().record_done(ticket.due, Instant::now()),
                Err(text) => worker.fail_ticket(text).await,
            }
        }
    }
}

impl Pop3Load {
    /// Runs one session. After a refusal the connection is closed without QUIT, so that no deletion
    /// is committed. The error is a text for the list of errors.
    async fn run_session(&self, worker: &mut Worker, account: &Account) -> Result<(), String> {
        let target = &self.targets[worker.number % self.targets.len()];
        let connection = dial_secured(target, self.tls.as_ref(), worker, DIAL_PHASES).await?;
        let mut session = Pop3Session::new(connection, worker.timeout);
        self.read_mailbox(worker, &mut session, account).await.map_err(|trouble| match trouble {
            Pop3Error::Refused(text) => normalize_reply(&text),
            Pop3Error::Broken(text) => text,
        })
    }

    async fn read_mailbox(
        &self,
        worker: &mut Worker,
        session: &mut Pop3Session,
        account: &Account,
    ) -> Result<(), Pop3Error> {
        timed(worker, BANNER, session.banner()).await?;
        timed(worker, LOGIN, session.log_in(account)).await?;
        let messages = timed(worker, LIST, session.list()).await?;
        for number in 1..=messages {
            if worker.random.f64() < self.retrieve_share {
                let message = timed(worker, RETR, session.retrieve(number)).await?;
                let mut tally = worker.tally.lock();
                tally.counts.parts += 1;
                tally.counts.octets += message.octets;
                if message.seen.is_some_and(|seen| !seen.sound) {
                    tally.record_error("a message is damaged".to_owned());
                }
            }
            if worker.random.f64() < self.delete_share {
                timed(worker, DELE, session.delete(number)).await?;
            }
        }
        timed(worker, QUIT, session.quit()).await
    }
}

/// Runs a step and records its time.
async fn timed<T>(
    worker: &Worker,
    phase: usize,
    step: impl Future<Output = Result<T, Pop3Error>>,
) -> Result<T, Pop3Error> {
    let begun = Instant::now();
    let outcome = step.await?;
    worker.tally.lock().record_phase(phase, begun.elapsed());
    Ok(outcome)
}
