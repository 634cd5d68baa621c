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
mod letter;
mod size;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use mail::Address;
use net::{Stop, Trust};
use protocol::smtp::Flavor;
use protocol::smtp::client::{self, Config, Credentials, Timeouts, Tls, Word};
use tokio::time::Instant;

use crate::engine::{self, Load, Run, Worker};
use crate::options::{LoadOptions, share};
use crate::order::Order;
use crate::pace::Ticket;
use crate::per_connection::PerConnection;
use crate::report::{self, Verdict};
use crate::stamp::RunId;
use crate::summary::Counted;
use crate::target::Target;
use crate::{Fault, Ledger, Summary};

use addresses::Addresses;
use connection::Connection;
use corpus::Corpus;
use letter::Letters;

pub use addresses::Pattern;
pub use size::Sizes;

/// Options of `bench smtp`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Server to send to; connections use several in turn
    #[arg(long, value_name = "HOST:PORT", required = true)]
    pub target: Vec<String>,
    /// What to send, and how.
    #[command(flatten)]
    pub sending: Sending,
}

/// All options except the targets.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Messages and protocol")]
pub struct Sending {
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Size of a body: N, MIN..MAX, or @FILE with lines "bytes weight"; 0 sends only a header
    #[arg(long, value_name = "BYTES", default_value = "6000")]
    pub size: Sizes,
    /// Send real messages: an mbox file, a Maildir, or a folder of .eml files
    #[arg(long, value_name = "PATH", conflicts_with = "size")]
    pub corpus: Option<PathBuf>,
    /// Recipient; {} is a number from 1 to --users; may be repeated
    #[arg(long, value_name = "PATTERN", default_value = "user{}@bench.test")]
    pub recipient: Vec<Pattern>,
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
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Order::Random)]
    pub order: Order,
    /// Sender, as --recipient; <> is the null sender
    #[arg(long, value_name = "PATTERN", default_value = "sender@bench.test")]
    pub sender: Vec<Sender>,
    /// Messages on one connection: all, N, or 1..N at random
    #[arg(long, value_name = "HOW_MANY", default_value = "all")]
    pub per_connection: PerConnection,
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
    pub auth: Option<Credentials>,
    /// Host name for EHLO
    #[arg(long, value_name = "NAME", default_value = "source.bench.test", value_parser = word)]
    pub helo: Word,
    /// Write acknowledged messages to this file, for `bench verify`
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// The amount of load.
    #[command(flatten)]
    pub load: LoadOptions,
}

/// Senders of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sender {
    /// `<>`, as in bounces.
    Null,
    /// Patterns, as for recipients.
    Pattern(Pattern),
}

impl FromStr for Sender {
    type Err = String;

    fn from_str(text: &str) -> Result<Sender, String> {
        if text == "<>" { Ok(Sender::Null) } else { text.parse().map(Sender::Pattern) }
    }
}

fn credentials(text: &str) -> Result<Credentials, String> {
    let (user, password) = text.split_once(':').ok_or("expected USER:PASSWORD")?;
    Credentials::new(user, password).map_err(|error| error.to_string())
}

fn word(text: &str) -> Result<Word, String> {
    Word::new(text).map_err(|error| error.to_string())
}

/// Runs the load and prints the summary.
pub fn run(options: &Options) -> Result<Verdict, Fault> {
    let summary = send(&options.target, &options.sending, None)?;
    report::print(&summary, options.sending.load.json)?;
    Ok(summary.verdict())
}

/// Runs the load until `told`; without it, shows progress and handles signals.
pub(crate) fn send(targets: &[String], sending: &Sending, told: Option<Stop>) -> Result<Summary, Fault> {
    let title = format!("{} {}", if sending.lmtp { "lmtp" } else { "smtp" }, targets.join(" "));
    let source = Arc::new(Source::new(targets, sending)?);
    let run = Run { title, options: &sending.load, count: sending.messages, told };
    let outcome = engine::run(run, &source);
    // An error of the ledger is the reason why the run ended, so it comes first.
    source.close()?;
    outcome
}

/// What all connections share.
struct Source {
    targets: Vec<Target>,
    local_count: usize,
    letters: Letters,
    senders: Vec<Option<Addresses>>,
    recipients: Addresses,
    recipients_per_message: usize,
    order: Order,
    per_connection: PerConnection,
    plain: Arc<Config>,
    secure: Arc<Config>,
    secure_share: f64,
    resumes: bool,
    trust: OnceLock<Trust>,
    ledger: Option<Ledger>,
}

impl Source {
    fn new(targets: &[String], sending: &Sending) -> Result<Source, Fault> {
        let targets = targets.iter().map(|name| Target::resolve(name, &sending.load.ownership));
        let targets: Vec<Target> = targets.collect::<Result<_, _>>()?;
        let run = RunId(fastrand::u64(..));
        let users = sending.users;
        let patterns = |patterns: Vec<Pattern>| Addresses::Patterns { patterns, users };
        let sender = |sender: &Sender| match sender {
            Sender::Null => None,
            Sender::Pattern(pattern) => Some(patterns(vec![pattern.clone()])),
        };
        let recipients = match &sending.recipients_from {
            Some(path) => Addresses::read(path)?,
            None => patterns(sending.recipient.clone()),
        };
        recipients.suffice_for(sending.recipients)?;
        let local_count = sending.load.local.len().max(1);
        if (sending.load.connections as usize) < targets.len() * local_count {
            let text =
                format!("--connections is less than targets ({}) times local addresses ({local_count})", targets.len());
            return Err(Fault::Usage(text));
        }
        let plain = config(sending);
        Ok(Source {
            targets,
            local_count,
            letters: match &sending.corpus {
                Some(path) => Letters::real(run, Corpus::read(path)?),
                None => Letters::made_up(run, sending.size.clone(), sending.load.seed),
            },
            senders: sending.sender.iter().map(sender).collect(),
            recipients,
            recipients_per_message: sending.recipients as usize,
            order: sending.order,
            per_connection: sending.per_connection,
            secure: Arc::new(Config { tls: Tls::Required, ..plain.clone() }),
            plain: Arc::new(plain),
            secure_share: sending.starttls,
            resumes: !sending.no_resumption,
            trust: OnceLock::new(),
            ledger: sending.ledger.as_deref().map(|path| Ledger::open(path, run)).transpose()?,
        })
    }

    /// Closes the ledger after all connections have ended.
    fn close(self: Arc<Self>) -> Result<(), Fault> {
        let source =
            Arc::into_inner(self).expect("the engine has joined all threads, so no connection holds a reference");
        source.ledger.map_or(Ok(()), Ledger::close)
    }

    fn sender(&self, random: &mut fastrand::Rng) -> Option<Address> {
        self.senders[random.usize(..self.senders.len())].as_ref().map(|addresses| addresses.draw(random))
    }

    fn recipients(&self, ticket: Ticket, random: &mut fastrand::Rng) -> Vec<Address> {
        match self.order {
            Order::Turn => self.recipients.take_turn(ticket.number, self.recipients_per_message),
            Order::Random => self.recipients.draw_distinct(self.recipients_per_message, random),
        }
    }

    fn target(&self, worker: &Worker) -> &Target {
        // Every target is used from every local address.
        &self.targets[worker.number / self.local_count % self.targets.len()]
    }

    /// The configuration of the next connection.
    fn config(&self, random: &mut fastrand::Rng) -> Arc<Config> {
        if random.f64() < self.secure_share { self.secure.clone() } else { self.plain.clone() }
    }

    fn trust(&self) -> &Trust {
        let trust = || if self.resumes { Trust::anyone() } else { Trust::anyone_without_resumption() };
        self.trust.get_or_init(trust)
    }
}

fn config(sending: &Sending) -> Config {
    Config {
        flavor: if sending.lmtp { Flavor::Lmtp } else { Flavor::Smtp },
        helo: sending.helo.clone(),
        tls: Tls::Never,
        credentials: sending.auth.clone(),
        pipelining: sending.pipelining,
        chunking: sending.bdat,
        timeouts: Timeouts::all(sending.load.timeout),
    }
}

impl Load for Source {
    const COUNTED: Counted = Counted { unit: "messages", part: "recipients", phases: connection::PHASES };

    async fn carry(self: Arc<Self>, mut worker: Worker) {
        let mut line = Line { source: self, connection: None, left: 0 };
        while let Some(ticket) = worker.next().await {
            line.send(&mut worker, ticket).await;
        }
        line.hang_up(&worker).await;
    }

    fn is_faulty(&self) -> bool {
        self.ledger.as_ref().is_some_and(Ledger::failed)
    }
}

/// One connection after another.
struct Line {
    source: Arc<Source>,
    connection: Option<Connection>,
    /// Messages that the connection may still carry.
    left: u64,
}

impl Line {
    /// Sends a message. Retries once on a new connection if an idle one was closed meanwhile.
    async fn send(&mut self, worker: &mut Worker, ticket: Ticket) {
        let source = self.source.clone();
        let sender = source.sender(&mut worker.random);
        let recipients = source.recipients(ticket, &mut worker.random);
        let letter = source.letters.letter(ticket.number, sender.as_ref(), &recipients[0], &mut worker.random);
        let used = self.connection.is_some();
        let mut outcome = self.try_send(worker, &letter, (&sender, &recipients)).await;
        if used && outcome.as_ref().is_err_and(|trouble| trouble.was_idle) {
            outcome = self.try_send(worker, &letter, (&sender, &recipients)).await;
        }
        match outcome {
            Ok(verdicts) => self.count(worker, ticket, &letter, &recipients, &verdicts),
            Err(trouble) => worker.gave_up(trouble.text).await,
        }
        if self.left == 0 {
            self.hang_up(worker).await;
        }
    }

    async fn try_send(
        &mut self,
        worker: &mut Worker,
        letter: &letter::Letter,
        (sender, recipients): (&Option<Address>, &[Address]),
    ) -> Result<Vec<client::Verdict>, connection::Trouble> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(worker).await?,
        };
        let (outcome, connection) = connection.deliver(worker, letter, sender, recipients).await;
        self.connection = connection;
        self.left = self.left.saturating_sub(1);
        outcome
    }

    async fn connect(&mut self, worker: &mut Worker) -> Result<Connection, connection::Trouble> {
        self.left = self.source.per_connection.draw(&mut worker.random);
        let config = self.source.config(&mut worker.random);
        Connection::open(self.source.target(worker), config, || self.source.trust(), worker).await
    }

    fn count(
        &self,
        worker: &Worker,
        ticket: Ticket,
        letter: &letter::Letter,
        recipients: &[Address],
        verdicts: &[client::Verdict],
    ) {
        let accepted = || {
            let pairs = recipients.iter().zip(verdicts);
            pairs.filter(|(_, verdict)| matches!(verdict, client::Verdict::Accepted(_))).map(|(to, _)| to.as_str())
        };
        let count = accepted().count() as u64;
        if let Some(ledger) = self.source.ledger.as_ref().filter(|_| count > 0) {
            ledger.acknowledged(ticket.number, accepted());
        }
        let mut tally = worker.tally();
        for verdict in verdicts {
            if let Some(text) = connection::complaint(verdict) {
                tally.error(text);
            }
        }
        let now = Instant::now();
        if count == 0 {
            return tally.failed(now);
        }
        tally.counts.parts += count;
        tally.counts.octets += letter.content().octets;
        tally.done(ticket.due, now);
    }

    async fn hang_up(&mut self, worker: &Worker) {
        if let Some(connection) = self.connection.take() {
            connection.quit(worker).await;
        }
    }
}
