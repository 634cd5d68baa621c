//! `bench http`: requests pages from a server, as fast as the connections can or at a fixed rate,
//! and checks the replies.
//!
//! A request is done if the status is 200, the length is as announced, and the content equals the
//! first content of the same page; anything else is an error with its text. `--sweep` repeats the
//! load with different numbers of connections.

mod exchange;
mod page;
mod sweep;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use protocol::http::Method;

use crate::engine::{self, Load, Run, Worker};
use crate::order::Order;
use crate::pace::Ticket;
use crate::per_connection::PerConnection;
use crate::report::{self, Verdict};
use crate::summary::Counted;
use crate::{Fault, LoadOptions, Summary};

use exchange::{Answer, Connection, PHASES, Trouble};
use page::Page;
use sweep::{Step, Sweep};

/// Options of `bench http`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// URL of a page; may be repeated
    #[arg(long = "target", value_name = "URL", required_unless_present = "urls")]
    pub targets: Vec<String>,
    /// File with one URL on each line
    #[arg(long, value_name = "FILE")]
    pub urls: Option<PathBuf>,
    /// Order in which pages are requested
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Order::Turn)]
    pub order: Order,
    /// The amount of load.
    #[command(flatten)]
    pub load: LoadOptions,
    /// End after this many requests
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Requests on one connection: all, N, or 1..N at random
    #[arg(long, value_name = "HOW_MANY", default_value = "all")]
    pub per_connection: PerConnection,
    /// Send HEAD requests
    #[arg(long)]
    pub head: bool,
    /// Do not compare the content of a page with its first content
    #[arg(long)]
    pub no_check: bool,
    /// Run once with each of these numbers of connections
    #[arg(long, value_name = "N,N...", value_delimiter = ',', conflicts_with = "connections",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub sweep: Vec<u32>,
}

/// Runs the load and prints the report.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    if options.sweep.is_empty() {
        let summary = ask(options, &options.load)?;
        report::print(&summary, options.load.json)?;
        return Ok(summary.verdict());
    }
    let sweep = sweep(options)?;
    report::print(&sweep, options.load.json)?;
    Ok(sweep.verdict())
}

fn sweep(options: &Options) -> Result<Sweep, Fault> {
    if options.requests.is_none() && options.load.duration.is_none() {
        return Err(Fault::Usage("--sweep needs --requests or --duration".to_owned()));
    }
    let mut steps = Vec::new();
    for &connections in &options.sweep {
        let load = LoadOptions { connections, ..options.load.clone() };
        let summary = ask(options, &load)?;
        let stopped = summary.stopped;
        steps.push(Step::new(connections, summary));
        if stopped {
            break;
        }
    }
    Ok(Sweep { steps })
}

fn ask(options: &Options, load: &LoadOptions) -> Result<Summary, Fault> {
    let pages = page::all(options, &load.ownership)?;
    let title = match &pages[..] {
        [page] => format!("http {}", page.url),
        [first, ..] => format!("http {} and {} more", first.url, pages.len() - 1),
        [] => return Err(Fault::Usage("no pages: give --target or --urls".to_owned())),
    };
    let asking = Asking {
        pages,
        order: options.order,
        per_connection: options.per_connection,
        is_checked: !options.no_check && !options.head,
    };
    engine::run(Run { title, options: load, count: options.requests, told: None }, &Arc::new(asking))
}

impl Options {
    fn method(&self) -> Method {
        if self.head { Method::Head } else { Method::Get }
    }
}

/// What all connections share.
struct Asking {
    /// Not empty.
    pages: Vec<Page>,
    order: Order,
    per_connection: PerConnection,
    is_checked: bool,
}

impl Load for Asking {
    const COUNTED: Counted = Counted { unit: "requests", part: "pages compared", phases: PHASES };

    async fn carry(self: Arc<Self>, mut worker: Worker) {
        let mut line = Line { asking: self, connection: None };
        while let Some(ticket) = worker.next().await {
            line.ask(&mut worker, ticket).await;
        }
    }
}

/// One connection after another.
struct Line {
    asking: Arc<Asking>,
    connection: Option<Connection>,
}

impl Line {
    /// Requests one page and checks the response.
    async fn ask(&mut self, worker: &mut Worker, ticket: Ticket) {
        let asking = self.asking.clone();
        let page = &asking.pages[asking.order.choose(ticket, &mut worker.random, asking.pages.len())];
        match self.fetch(worker, page).await {
            Ok(answer) => asking.count(worker, ticket, page, &answer),
            Err(trouble) => worker.gave_up(trouble.text).await,
        }
    }

    /// Requests the page on the current connection or a new one. A server may close an idle
    /// connection at any time; a request that was sent meanwhile is repeated (RFC 9112 section
    /// 9.3.1).
    async fn fetch(&mut self, worker: &mut Worker, page: &Page) -> Result<Answer, Trouble> {
        let kept = self.connection.take().filter(|connection| connection.leads_to(page));
        if let Some(connection) = kept {
            match self.fetch_over(connection, worker, page).await {
                Err(trouble) if trouble.was_idle => {}
                outcome => return outcome,
            }
        }
        let requests = self.asking.per_connection.draw(&mut worker.random);
        let connection = Connection::open(page, requests, worker).await?;
        self.fetch_over(connection, worker, page).await
    }

    async fn fetch_over(
        &mut self,
        mut connection: Connection,
        worker: &Worker,
        page: &Page,
    ) -> Result<Answer, Trouble> {
        let outcome = connection.fetch(worker, page, self.asking.is_checked).await;
        self.connection = Some(connection).filter(Connection::is_kept);
        outcome
    }
}

impl Asking {
    fn count(&self, worker: &Worker, ticket: Ticket, page: &Page, answer: &Answer) {
        let is_same = !self.is_checked || answer.status != 200 || page.is_as_first(answer.digest);
        let mut tally = worker.tally();
        answer.note_times(&mut tally);
        if answer.status == 200 && is_same {
            tally.counts.octets += answer.octets;
            tally.counts.parts += u64::from(self.is_checked);
            return tally.done(ticket.due, answer.whole_at);
        }
        tally.error(match is_same {
            false => format!("{}: the content differs from the first response", page.url),
            true => format!("status {}", answer.status),
        });
        tally.failed(answer.whole_at);
    }
}
