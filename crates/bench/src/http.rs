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

use crate::engine::{self, LoadRun, Worker, Workload};
use crate::order::SelectionOrder;
use crate::pacer::Ticket;
use crate::per_connection::MessagesPerConnection;
use crate::report::{self, RunVerdict};
use crate::summary::LoadLabels;
use crate::{BenchError, LoadOptions, LoadSummary};

use exchange::{FetchError, HttpConnection, HttpResponse, PHASES};
use page::Page;
use sweep::{Sweep, SweepStep};

/// Options of `bench http`.
#[derive(Clone, Debug, clap::Args)]
pub struct HttpOptions {
    /// URL of a page; may be repeated
    #[arg(long = "target", value_name = "URL", required_unless_present = "urls")]
    pub targets: Vec<String>,
    /// File with one URL on each line
    #[arg(long, value_name = "FILE")]
    pub urls: Option<PathBuf>,
    /// Order in which pages are requested
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = SelectionOrder::Turn)]
    pub order: SelectionOrder,
    /// The amount of load.
    #[command(flatten)]
    pub load: LoadOptions,
    /// End after this many requests
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Requests on one connection: all, N, or 1..N at random
    #[arg(long, value_name = "HOW_MANY", default_value = "all")]
    pub per_connection: MessagesPerConnection,
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
pub fn run(options: &HttpOptions) -> Result<RunVerdict, BenchError> {
    if options.sweep.is_empty() {
        let summary = run_load(options, &options.load)?;
        report::print(&summary, options.load.json)?;
        return Ok(summary.verdict());
    }
    let sweep = sweep(options)?;
    report::print(&sweep, options.load.json)?;
    Ok(sweep.verdict())
}

fn sweep(options: &HttpOptions) -> Result<Sweep, BenchError> {
    if options.requests.is_none() && options.load.duration.is_none() {
        return Err(BenchError::Usage("--sweep needs --requests or --duration".to_owned()));
    }
    let mut steps = Vec::new();
    for &connections in &options.sweep {
        let load = LoadOptions { connections, ..options.load.clone() };
        let summary = run_load(options, &load)?;
        let stopped = summary.stopped;
        steps.push(SweepStep::new(connections, summary));
        if stopped {
            break;
        }
    }
    Ok(Sweep { steps })
}

fn run_load(options: &HttpOptions, load: &LoadOptions) -> Result<LoadSummary, BenchError> {
    let pages = page::read_pages(options, &load.ownership)?;
    let title = match &pages[..] {
        [page] => format!("http {}", page.url),
        [first, ..] => format!("http {} and {} more", first.url, pages.len() - 1),
        [] => return Err(BenchError::Usage("no pages: give --target or --urls".to_owned())),
    };
    let http_load = HttpLoad {
        pages,
        order: options.order,
        per_connection: options.per_connection,
        is_checked: !options.no_check && !options.head,
    };
    engine::run(LoadRun { title, options: load, count: options.requests, stop: None }, &Arc::new(http_load))
}

impl HttpOptions {
    fn method(&self) -> Method {
        if self.head { Method::Head } else { Method::Get }
    }
}

/// What all connections share.
struct HttpLoad {
    /// Not empty.
    pages: Vec<Page>,
    order: SelectionOrder,
    per_connection: MessagesPerConnection,
    is_checked: bool,
}

impl Workload for HttpLoad {
    const LABELS: LoadLabels = LoadLabels { unit: "requests", part: "pages compared", phases: PHASES };

    async fn run_connection(self: Arc<Self>, mut worker: Worker) {
        let mut slot = ConnectionSlot { load: self, connection: None };
        while let Some(ticket) = worker.next().await {
            slot.request(&mut worker, ticket).await;
        }
    }
}

/// One connection after another.
struct ConnectionSlot {
    load: Arc<HttpLoad>,
    connection: Option<HttpConnection>,
}

impl ConnectionSlot {
    /// Requests one page and checks the response.
    async fn request(&mut self, worker: &mut Worker, ticket: Ticket) {
        let http_load = self.load.clone();
        let page = &http_load.pages[http_load.order.choose(ticket, &mut worker.random, http_load.pages.len())];
        match self.fetch(worker, page).await {
            Ok(answer) => http_load.count_response(worker, ticket, page, &answer),
            Err(trouble) => worker.fail_ticket(trouble.text).await,
        }
    }

    /// Requests the page on the current connection or a new one. A server may close an idle
    /// connection at any time; a request that was sent meanwhile is repeated (RFC 9112 section
    /// 9.3.1).
    async fn fetch(&mut self, worker: &mut Worker, page: &Page) -> Result<HttpResponse, FetchError> {
        let kept = self.connection.take().filter(|connection| connection.connects_to(page));
        if let Some(connection) = kept {
            match self.fetch_over(connection, worker, page).await {
                Err(trouble) if trouble.was_idle => {}
                outcome => return outcome,
            }
        }
        let requests = self.load.per_connection.draw(&mut worker.random);
        let connection = HttpConnection::open(page, requests, worker).await?;
        self.fetch_over(connection, worker, page).await
    }

    async fn fetch_over(
        &mut self,
        mut connection: HttpConnection,
        worker: &Worker,
        page: &Page,
    ) -> Result<HttpResponse, FetchError> {
        let outcome = connection.fetch_page(worker, page, self.load.is_checked).await;
        self.connection = Some(connection).filter(HttpConnection::is_reusable);
        outcome
    }
}

impl HttpLoad {
    fn count_response(&self, worker: &Worker, ticket: Ticket, page: &Page, answer: &HttpResponse) {
        let is_same = !self.is_checked || answer.status != 200 || page.matches_first(answer.digest);
        let mut tally = worker.tally.lock();
        answer.record_times(&mut tally);
        if answer.status == 200 && is_same {
            tally.counts.octets += answer.octets;
            tally.counts.parts += u64::from(self.is_checked);
            return tally.record_done(ticket.due, answer.whole_at);
        }
        tally.record_error(match is_same {
            false => format!("{}: the content differs from the first response", page.url),
            true => format!("status {}", answer.status),
        });
        tally.record_failed(answer.whole_at);
    }
}
