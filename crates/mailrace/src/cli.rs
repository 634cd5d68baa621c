//! The command line and its help, which clap makes from this file.

mod acme;
mod bench;
mod cluster;
mod dkim;
mod queue;
mod reports;
mod tune;
mod tune_runs;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use mail::{Address, QueueId};

use crate::log_summary;
use crate::password::Scheme;
use control::text::{DurationArg, SerdeAsText};
use control::tokens::Role;

pub use acme::AcmeCommand;
pub use bench::{BenchCommand, BenchCompareArgs, BenchReportArgs};
pub use cluster::{ClusterCommand, NodeArgs};
pub use dkim::{DkimAlgorithm, DkimCommand, DkimGenerateArgs, DkimKeyBits};
pub use queue::{
    PausedNameArgs, QueueActionArgs, QueueCommand, QueueHistoryArgs, QueueListArgs, QueuePauseArgs, QueueRedirectArgs,
    QueueShowArgs, RedirectedNameArgs,
};
pub use reports::ReportsCommand;
pub use tune::{TuneApplyArgs, TuneCheckArgs, TuneCommand, TuneRevertArgs};
pub use tune_runs::{MeasuredFigure, TuneMeasureArgs, TuneRunArgs, TuneSearchArgs};

/// The end of the help.
const AFTER_HELP: &str = "\
The configuration is the file given by --config, else ./mailrace.toml, else
/etc/mailrace/mailrace.toml, else a built-in one: it listens on 127.0.0.1:2525,
stores everything in ./mailrace-data, and accepts mail for any address at localhost.

Exit codes:
   0  success
   1  the answer is no: no such key, queue, message, table or token; the spool is damaged;
      a reload requires a restart; `dkim check` finds a record that does not fit;
      `dns --check` finds a difference; `tune check` has findings; `tune apply` or
      `tune revert` refuses; `tune measure` or `tune search` could not decide; an aim of
      `bench compare` is missed; a figure of `bench report` is worse than before
   2  mail for an address would bounce (sendmail -bv)
   3  mail is left in the queue (serve --drain-only)
   4  another node has taken over a lane of this one (serve)
  64  wrong command line
  65  invalid data, such as an error in a text table
  69  the server does not answer, or a table lookup failed
  70  any other error
  74  reading or writing failed
  75  a message was not accepted; try again later
  77  missing permission, or refused to run as root
  78  errors in the configuration

If the output is a pipe that is closed early, as in `mailrace queue list | head`, the exit
code is 0.";

/// The help of `mailrace inject`, whose options clap does not parse.
const INJECT_HELP: &str = "\
Options of sendmail:
  -t               read recipients from To, Cc and Bcc, in addition to the arguments
  -i, -oi          a line with a single dot does not end the message
  -f, -r ADDRESS   the envelope sender; '' or '<>' is the null sender
  -F NAME          the sender's full name, for messages without a From field
  -B TYPE          7BIT or 8BITMIME
  -N WHEN          when to send reports: never, or some of success,failure,delay
  -R WHAT          what to return in reports: full or hdrs
  -V ENVID         the envelope ID for reports
  -v               print what was done
  -C FILE          the configuration file (default /etc/mailrace/mailrace.toml, and no other)
  -bm              read a message (default)
  -bs              speak SMTP on standard input and output
  -bS              read SMTP commands without replying; only the exit code shows errors
  -bp              list the queue, like mailq
  -bv              check whether mail for each recipient would be delivered; exit code 0: all,
                   2: not all, 1: unknown at present
  -q               retry waiting mail now; -qIQUEUE-ID: only this message,
                   -qRNAME: only this destination
  -bi              print what alias tables need, like newaliases
  -A -G -L -O -X -U -e -h -m -n -o -p  are accepted and ignored
Many messages:
  --mbox FILE      all messages in an mbox file
  --folder DIR     all files in a folder, and in new/ and cur/ in it

The program does the same when it is called sendmail, mailq or newaliases.";

/// A mail server built for throughput.
#[derive(Debug, Parser)]
#[command(name = "mailrace", version, about, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// The configuration file
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses a command line, including the name of the program.
    ///
    /// # Errors
    ///
    /// The command line asks for help or the version, or has an error.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let cli = Cli::try_parse_from(words)?;
        match &cli.command {
            Command::Explain(ExplainArgs { target: ExplainTarget::Message(_), sender, client, .. })
                if sender.is_some() || client.is_some() =>
            {
                let text = "--sender and --client require an address, not a queue ID";
                Err(Cli::command().error(ErrorKind::ArgumentConflict, text))
            }
            Command::Dkim(DkimCommand::Generate(options))
                if options.bits.is_some() && options.algorithm == DkimAlgorithm::Ed25519 =>
            {
                let text = "--bits is for RSA; keys of ed25519 have one size";
                Err(Cli::command().error(ErrorKind::ArgumentConflict, text))
            }
            _ => Ok(cli),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Receive, store and deliver mail until stopped
    Serve(ServeArgs),
    /// Report all errors in the configuration
    ///
    /// It also warns about likely mistakes: rules that never match, files with secrets that
    /// everyone can read, and unix sockets of next hops and tables on which nothing listens.
    Check,
    /// Make the running server read its configuration again
    Reload,
    /// Accept no mail, deliver what can be delivered, and stop the running server
    ///
    /// Clients are told to come again later, and /readyz of the API says that the server is not ready.
    /// It stops as soon as nothing else can be delivered before the time is over. What is left is
    /// delivered after the next start.
    Drain {
        /// How long deliveries may take: 30s, 10m; by default five minutes
        #[arg(long, value_name = "SPAN")]
        within: Option<SerdeAsText<DurationArg>>,
    },
    /// Build and query lookup tables
    #[command(subcommand)]
    Table(TableCommand),
    /// Inspect and change the queue
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Explain how mail to an address would be delivered, or why a message waits
    Explain(ExplainArgs),
    /// Print the DNS records that a domain should have
    Dns(DnsArgs),
    /// Show the system load and the limits that apply
    Load,
    /// Inspect the spool of a stopped server
    #[command(subcommand)]
    Spool(SpoolCommand),
    /// Show the metrics of the running server, and what it adapts itself
    Status {
        /// Print one JSON object for each server
        #[arg(long)]
        json: bool,
        /// The node to ask
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Analyze log files
    #[command(subcommand)]
    Log(LogCommand),
    /// Hash a password for a table, read from the terminal or standard input
    Password {
        /// The hash scheme
        #[arg(long, default_value = "argon2id")]
        scheme: Scheme,
    },
    /// Make, show and check keys for DKIM signatures
    #[command(subcommand)]
    Dkim(DkimCommand),
    /// Show and send what is reported to the owners of other domains
    #[command(subcommand)]
    Reports(ReportsCommand),
    /// Show and renew the certificates that the server obtains itself
    #[command(subcommand)]
    Acme(AcmeCommand),
    /// Show and drain a cluster of servers
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Make, list and revoke tokens for the HTTP API
    #[command(subcommand)]
    Token(TokenCommand),
    /// Inject a message from standard input, like `sendmail`
    #[command(after_help = INJECT_HELP)]
    Inject {
        /// The options below, and recipients
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
        words: Vec<OsString>,
    },
    /// Convert the configuration of another mail server
    #[command(subcommand)]
    Import(ImportCommand),
    /// Load-test any mail server and verify its replies
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Check what decides how fast and how safely mail is stored
    #[command(subcommand)]
    Tune(TuneCommand),
    /// Write the manual pages of all commands and of the configuration file to a folder
    Man {
        /// The folder; it is created if it does not exist
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print a shell completion script
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Commands for tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token, and print it as the last line
    ///
    /// It is shown only now: the server keeps a hash of it, in api-tokens.json in its data folder. A
    /// running server accepts it at once.
    Create(TokenCreateArgs),
    /// List the tokens, without their secrets
    List(TokenListArgs),
    /// Revoke a token; a running server refuses it at once
    Revoke {
        /// Its name or ID
        name: String,
    },
}

/// Options of `token create`.
#[derive(Args, Debug)]
pub struct TokenCreateArgs {
    /// What its owner may do
    #[arg(long)]
    pub role: Role,
    /// What to call it, in the list and in the log; by default its ID
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long it is valid: 12h, 30d; by default until it is revoked
    #[arg(long, value_name = "SPAN")]
    pub expires: Option<SerdeAsText<DurationArg>>,
}

/// Options of `token list`.
#[derive(Args, Debug)]
pub struct TokenListArgs {
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// Options of `dns`.
#[derive(Args, Debug)]
pub struct DnsArgs {
    /// The domain whose mail this server receives
    pub domain: String,
    /// Compare them with what is published
    ///
    /// DKIM keys must belong to the private ones. SPF, DMARC, MTA-STS and TLSRPT may say other things
    /// than the proposed records: what receivers would ignore is a fault, and SPF must pass for mail
    /// from this server. MTA-STS, TLSRPT and TLSA may be missing.
    #[arg(long)]
    pub check: bool,
}

/// Options of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Accept no mail, and end when the queue is empty
    ///
    /// No listener is opened, inherited sockets are closed, and mail of local programs stays in the
    /// drop folder. What is in the queue is delivered as usual, with all retries and notices. The
    /// exit code is 0 only if the queue is empty. It is 3 if mail is left: only held messages, or
    /// any after SIGTERM or SIGINT.
    #[arg(long)]
    pub drain_only: bool,
}

/// Shells with completion scripts.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[expect(missing_docs, reason = "each is the shell of its name, and a doc comment would be its help")]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Mail servers whose configuration can be imported.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Convert main.cf, master.cf and their tables; Postfix's files are not changed
    ///
    /// The exit code is 0 if all mail is handled as by Postfix. Otherwise it is 1, and the
    /// differences are listed at the top of the new file and on the terminal; the file is written
    /// in both cases. Mail that cannot be handled as by Postfix is deferred (4xx) rather than
    /// refused or lost.
    Postfix {
        /// The folder of main.cf, such as /etc/postfix or a copy of it
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The file to write, with tables in mailrace-tables beside it. Without it, the text is
        /// only printed
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The folder in which the server will find the new file, such as /etc/mailrace on another
        /// machine. Default: that of FILE
        #[arg(long, value_name = "DIR")]
        installed_in: Option<PathBuf>,
        /// Replace existing files
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Convert an Exim configuration and the files that it names; Exim's files are not changed
    ///
    /// If Exim is installed, it reads the file itself, with its macros and includes. The exit code is 0
    /// if all mail is handled as by Exim. Otherwise it is 1, and the differences are listed at the top of
    /// the new file and on the terminal; the file is written in both cases. Mail that cannot be handled as
    /// by Exim is deferred or refused rather than accepted or relayed.
    Exim {
        /// The configuration, or Debian's update-exim4.conf.conf. Default: the one that Exim uses
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// The file to write, with tables in mailrace-tables beside it. Without it, the text is
        /// only printed
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The folder in which the server will find the new file, such as /etc/mailrace on another
        /// machine. Default: that of the output
        #[arg(long, value_name = "DIR")]
        installed_in: Option<PathBuf>,
        /// Replace existing files
        #[arg(long, requires = "output")]
        force: bool,
    },
}

/// Commands for tables.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Compile a text table into a cdb table, replacing it atomically
    Build {
        /// Lines of "key value, value"; '#' starts a comment
        text: PathBuf,
        /// The file to write
        cdb: PathBuf,
    },
    /// Look up a key, in the running server or, without one, directly in the table
    Get {
        /// The table's name in the configuration
        name: String,
        /// The key
        key: String,
    },
    /// Show the lookup counts, latencies and state of each table
    ///
    /// HITS% is the share of keys found in the cache. P50 and P99 are percentiles of the time of
    /// backend requests, accurate to a factor of two.
    Stats(TableStatsArgs),
    /// Accept the removals that the copy of a directory holds back
    Accept {
        /// The table's name in the configuration
        name: String,
    },
}

/// Options of `table stats`.
#[derive(Args, Debug)]
pub struct TableStatsArgs {
    /// Only this table
    pub name: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// Options of `explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// An address, or the queue ID of a message
    #[arg(value_name = "ADDRESS|QUEUE-ID")]
    pub target: ExplainTarget,
    /// Assume mail from this sender, which may use another queue
    #[arg(long, value_name = "ADDRESS")]
    pub sender: Option<Address>,
    /// Assume mail from this client, and show its access rules
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// Assume that the client uses this HELO name
    #[arg(long, value_name = "NAME", requires = "client")]
    pub helo: Option<String>,
    /// The node to ask
    #[command(flatten)]
    pub node: NodeArgs,
}

/// What to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainTarget {
    /// How mail to this address would be delivered.
    Address(Address),
    /// What this message waits for.
    Message(QueueId),
}

impl FromStr for ExplainTarget {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.contains('@') {
            true => ExplainTarget::Address(text.parse()?),
            false => ExplainTarget::Message(text.parse()?),
        })
    }
}

/// Commands for logs.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Summarize messages, delays, refusals and failures, and the top senders, clients and
    /// destinations
    Summary(log_summary::Options),
}

/// Commands for the spool.
#[derive(Debug, Subcommand)]
pub enum SpoolCommand {
    /// Show the segments and their live records
    Inspect(LaneArgs),
    /// Read everything and check every checksum
    Verify(LaneArgs),
}

/// A lane of a spool.
#[derive(Args, Debug)]
pub struct LaneArgs {
    /// The folder of one lane, instead of all lanes in the configuration
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub lane: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_and_a_client_are_asked_for_with_an_address_alone() {
        let read = |line: &str| Cli::read(line.split(' ').map(OsString::from));
        assert!(read("mailrace explain bob@a.example --sender carol@b.example").is_ok());
        assert!(read("mailrace explain 7-0-1").is_ok());
        for option in ["--sender carol@b.example", "--client 192.0.2.1"] {
            let told = read(&format!("mailrace explain 7-0-1 {option}")).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::ArgumentConflict);
            assert!(told.to_string().contains("--sender and --client require an address"), "{told}");
        }
    }
}
