//! The source: `bench smtp`. Sends recognizable messages over many connections and counts the
//! replies. In a closed loop a connection sends as soon as it has its reply. In an open loop each
//! message has a scheduled time, and its latency counts from then, so that a stall of the server is
//! visible.
//!
//! Acknowledged messages are written to the ledger, if there is one; a ledger that fails ends the
//! run.

mod addresses;
mod connection;
mod corpus;
mod message;
mod size;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use mail::Address;
use net::{StopReceiver, TlsClient};
use protocol::smtp::MailProtocol;
use protocol::smtp::client::{self, CommandArgument, SmtpClientConfig, SmtpCredentials, Timeouts, TlsPolicy};
use tokio::time::Instant;

use crate::engine::{self, LoadRun, Worker, Workload};
use crate::options::{LoadOptions, share};
use crate::order::SelectionOrder;
use crate::pacer::Ticket;
use crate::per_connection::MessagesPerConnection;
use crate::report::{self, RunVerdict};
use crate::stamp::RunId;
use crate::summary::LoadLabels;
use crate::target::TargetServer;
use crate::{BenchError, LedgerWriter, LoadSummary};

use addresses::AddressPool;
use connection::SmtpConnection;
use corpus::Corpus;
use message::MessageGenerator;

pub use addresses::AddressTemplate;
pub use size::BodySizeDistribution;

/// Options of `bench smtp`.
#[derive(Clone, Debug, clap::Args)]
pub struct SmtpOptions {
    /// Server to send to; connections use several in turn
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub target: Vec<String>,
    /// What to send, and how.
    #[command(flatten)]
    pub send_options: SendOptions,
}

/// All options except the targets.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Messages and protocol")]
pub struct SendOptions {
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Size of a body: N, MIN..MAX, or @FILE with lines "bytes weight"; 0 sends only a header
    #[arg(long, value_name = "BYTES", default_value = "6000")]
    pub size: BodySizeDistribution,
    /// Send real messages: an mbox file, a Maildir, or a folder of .eml files
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub corpus: Option<PathBuf>,
    /// Recipient; {} is a number from 1 to --users; may be repeated
    #[arg(long, value_name = "PATTERN", default_value = "user{}@bench.test")]
    pub recipient: Vec<AddressTemplate>,
    /// Number of users of a pattern
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub users: u64,
    /// File with one recipient address on each line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipient", "users"])]
    pub recipients_from: Option<PathBuf>,
    /// Recipients of each message
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub recipients: u32,
    /// Order in which recipients are used
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = SelectionOrder::Random)]
    pub order: SelectionOrder,
    /// Sender, as --recipient; <> is the null sender
    #[arg(long, value_name = "PATTERN", default_value = "sender@bench.test")]
    pub sender: Vec<SenderTemplate>,
    /// Messages on one connection: all, N, or 1..N at random
    #[arg(long, value_name = "HOW_MANY", default_value = "all")]
    pub per_connection: MessagesPerConnection,
    /// Send commands in groups if the server offers PIPELINING (RFC 2920)
    #[arg(long)]
    pub pipelining: bool,
    /// Send messages with BDAT if the server offers CHUNKING (RFC 3030)
    #[arg(long)]
    pub bdat: bool,
    /// Speak LMTP (RFC 2033)
    #[arg(long)]
    pub lmtp: bool,
    /// Share of connections that use STARTTLS; the server's certificate is not checked
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = share)]
    pub starttls: f64,
    /// Do not resume TLS sessions: do a full handshake on each connection
    #[arg(long)]
    pub no_resumption: bool,
    /// Log in (RFC 4954)
    #[arg(long, value_name = "USER:PASSWORD", value_parser = credentials)]
    pub auth: Option<SmtpCredentials>,
    /// Host name for EHLO
    #[arg(long, value_name = "NAME", default_value = "source.bench.test", value_parser = word)]
    pub helo: CommandArgument,
    /// Write acknowledged messages to this file, for `bench verify`
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// The amount of load.
    #[command(flatten)]
    pub load: LoadOptions,
}

/// Senders of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderTemplate {
    /// `<>`, as in bounces.
    Null,
    /// Patterns, as for recipients.
    Pattern(AddressTemplate),
}

impl FromStr for SenderTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<SenderTemplate, String> {
        if text == "<>" { Ok(SenderTemplate::Null) } else { text.parse().map(SenderTemplate::Pattern) }
    }
}

fn credentials(text: &str) -> Result<SmtpCredentials, String> {
    let (user, password) = text.split_once(':').ok_or("expected USER:PASSWORD")?;
    SmtpCredentials::new(user, password).map_err(|error| error.to_string())
}

fn word(text: &str) -> Result<CommandArgument, String> {
    CommandArgument::new(text).map_err(|error| error.to_string())
}

/// Runs the load and prints the summary.
pub fn run(options: &SmtpOptions) -> Result<RunVerdict, BenchError> {
    let summary = send(&options.target, &options.send_options, None)?;
    report::print(&summary, options.send_options.load.json)?;
    Ok(summary.verdict())
}

/// Runs the load until `stop`; without it, shows progress and handles signals.
pub(crate) fn send(
    targets: &[String],
    options: &SendOptions,
    stop: Option<StopReceiver>,
) -> Result<LoadSummary, BenchError> {
    let title = format!("{} {}", if options.lmtp { "lmtp" } else { "smtp" }, targets.join(" "));
    let load = Arc::new(SmtpLoad::new(targets, options)?);
    let run = LoadRun { title, options: &options.load, count: options.messages, stop };
    let outcome = engine::run(run, &load);
    // An error of the ledger is the reason why the run ended, so it comes first.
    load.close()?;
    outcome
}

/// What all connections share.
struct SmtpLoad {
    targets: Vec<TargetServer>,
    local_count: usize,
    messages: MessageGenerator,
    senders: Vec<Option<AddressPool>>,
    recipients: AddressPool,
    recipients_per_message: usize,
    order: SelectionOrder,
    per_connection: MessagesPerConnection,
    plain_config: Arc<SmtpClientConfig>,
    tls_config: Arc<SmtpClientConfig>,
    tls_share: f64,
    resumes_tls_sessions: bool,
    trust: OnceLock<TlsClient>,
    ledger: Option<LedgerWriter>,
}

impl SmtpLoad {
    fn new(targets: &[String], options: &SendOptions) -> Result<SmtpLoad, BenchError> {
        let targets = targets.iter().map(|name| TargetServer::resolve(name, &options.load.ownership));
        let targets: Vec<TargetServer> = targets.collect::<Result<_, _>>()?;
        let run = RunId(fastrand::u64(..));
        let users = options.users;
        let patterns = |patterns: Vec<AddressTemplate>| AddressPool::Patterns { patterns, users };
        let sender = |sender: &SenderTemplate| match sender {
            SenderTemplate::Null => None,
            SenderTemplate::Pattern(pattern) => Some(patterns(vec![pattern.clone()])),
        };
        let recipients = match &options.recipients_from {
            Some(path) => AddressPool::read(path)?,
            None => patterns(options.recipient.clone()),
        };
        recipients.check_distinct(options.recipients)?;
        let local_count = options.load.local.len().max(1);
        if (options.load.connections as usize) < targets.len() * local_count {
            let text =
                format!("--connections is less than targets ({}) times local addresses ({local_count})", targets.len());
            return Err(BenchError::Usage(text));
        }
        let plain = client_config(options);
        Ok(SmtpLoad {
            targets,
            local_count,
            messages: match &options.corpus {
                Some(path) => MessageGenerator::real(run, Corpus::read(path)?),
                None => MessageGenerator::synthetic(run, options.size.clone(), options.load.seed),
            },
            senders: options.sender.iter().map(sender).collect(),
            recipients,
            recipients_per_message: options.recipients as usize,
            order: options.order,
            per_connection: options.per_connection,
            tls_config: Arc::new(SmtpClientConfig { tls: TlsPolicy::Required, ..plain.clone() }),
            plain_config: Arc::new(plain),
            tls_share: options.starttls,
            resumes_tls_sessions: !options.no_resumption,
            trust: OnceLock::new(),
            ledger: options.ledger.as_deref().map(|path| LedgerWriter::open(path, run)).transpose()?,
        })
    }

    /// Closes the ledger after all connections have ended.
    fn close(self: Arc<Self>) -> Result<(), BenchError> {
        let source =
            Arc::into_inner(self).expect("the engine has joined all threads, so no connection holds a reference");
        source.ledger.map_or(Ok(()), LedgerWriter::close)
    }

    fn sender(&self, random: &mut fastrand::Rng) -> Option<Address> {
        self.senders[random.usize(..self.senders.len())].as_ref().map(|addresses| addresses.draw(random))
    }

    fn recipients(&self, ticket: Ticket, random: &mut fastrand::Rng) -> Vec<Address> {
        match self.order {
            SelectionOrder::Turn => self.recipients.addresses_of_message(ticket.number, self.recipients_per_message),
            SelectionOrder::Random => self.recipients.draw_distinct(self.recipients_per_message, random),
        }
    }

    fn target(&self, worker: &Worker) -> &TargetServer {
        // Every target is used from every local address.
        &self.targets[worker.number / self.local_count % self.targets.len()]
    }

    /// The configuration of the next connection.
    fn next_config(&self, random: &mut fastrand::Rng) -> Arc<SmtpClientConfig> {
        if random.f64() < self.tls_share { self.tls_config.clone() } else { self.plain_config.clone() }
    }

    fn trust(&self) -> &TlsClient {
        let trust = || {
            if self.resumes_tls_sessions { TlsClient::unverified() } else { TlsClient::unverified_without_resumption() }
        };
        self.trust.get_or_init(trust)
    }
}

fn client_config(options: &SendOptions) -> SmtpClientConfig {
    SmtpClientConfig {
        flavor: if options.lmtp { MailProtocol::Lmtp } else { MailProtocol::Smtp },
        helo: options.helo.clone(),
        tls: TlsPolicy::Never,
        credentials: options.auth.clone(),
        pipelining: options.pipelining,
        chunking: options.bdat,
        xforward: false,
        timeouts: Timeouts::uniform(options.load.timeout),
    }
}

impl Workload for SmtpLoad {
    const LABELS: LoadLabels = LoadLabels { unit: "messages", part: "recipients", phases: connection::PHASES };

    async fn run_connection(self: Arc<Self>, mut worker: Worker) {
        let mut slot = ConnectionSlot { load: self, connection: None, messages_left: 0 };
        while let Some(ticket) = worker.next().await {
            slot.send(&mut worker, ticket).await;
        }
        slot.quit(&worker).await;
    }

    fn has_failed(&self) -> bool {
        self.ledger.as_ref().is_some_and(LedgerWriter::has_failed)
    }
}

/// One connection after another.
struct ConnectionSlot {
    load: Arc<SmtpLoad>,
    connection: Option<SmtpConnection>,
    /// Messages that the connection may still carry.
    messages_left: u64,
}

impl ConnectionSlot {
    /// Sends a message. Retries once on a new connection if an idle one was closed meanwhile.
    async fn send(&mut self, worker: &mut Worker, ticket: Ticket) {
        let source = self.load.clone();
        let sender = source.sender(&mut worker.random);
        let recipients = source.recipients(ticket, &mut worker.random);
        let message = source.messages.generate(ticket.number, sender.as_ref(), &recipients[0], &mut worker.random);
        let used = self.connection.is_some();
        let mut outcome = self.send_once(worker, &message, (&sender, &recipients)).await;
        if used && outcome.as_ref().is_err_and(|trouble| trouble.was_idle) {
            outcome = self.send_once(worker, &message, (&sender, &recipients)).await;
        }
        match outcome {
            Ok(verdicts) => self.count(worker, ticket, &message, &recipients, &verdicts),
            Err(trouble) => worker.fail_ticket(trouble.text).await,
        }
        if self.messages_left == 0 {
            self.quit(worker).await;
        }
    }

    async fn send_once(
        &mut self,
        worker: &mut Worker,
        message: &message::OutgoingMessage,
        (sender, recipients): (&Option<Address>, &[Address]),
    ) -> Result<Vec<client::RecipientOutcome>, connection::DeliveryError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(worker).await?,
        };
        let (outcome, connection) = connection.deliver(worker, message, sender, recipients).await;
        self.connection = connection;
        self.messages_left = self.messages_left.saturating_sub(1);
        outcome
    }

    async fn connect(&mut self, worker: &mut Worker) -> Result<SmtpConnection, connection::DeliveryError> {
        self.messages_left = self.load.per_connection.draw(&mut worker.random);
        let config = self.load.next_config(&mut worker.random);
        SmtpConnection::open(self.load.target(worker), config, || self.load.trust(), worker).await
    }

    fn count(
        &self,
        worker: &Worker,
        ticket: Ticket,
        message: &message::OutgoingMessage,
        recipients: &[Address],
        verdicts: &[client::RecipientOutcome],
    ) {
        let accepted = || {
            let pairs = recipients.iter().zip(verdicts);
            pairs
                .filter(|(_, verdict)| matches!(verdict, client::RecipientOutcome::Accepted(_)))
                .map(|(to, _)| to.as_str())
        };
        let count = accepted().count() as u64;
        if let Some(ledger) = self.load.ledger.as_ref().filter(|_| count > 0) {
            ledger.record(ticket.number, accepted());
        }
        let mut tally = worker.tally.lock();
        for verdict in verdicts {
            if let Some(text) = connection::recipient_error(verdict) {
                tally.record_error(text);
            }
        }
        let now = Instant::now();
        if count == 0 {
            return tally.record_failed(now);
        }
        tally.counts.parts += count;
        tally.counts.octets += message.content().octets;
        tally.record_done(ticket.due, now);
    }

    async fn quit(&mut self, worker: &Worker) {
        if let Some(connection) = self.connection.take() {
            connection.quit(worker).await;
        }
    }
}
