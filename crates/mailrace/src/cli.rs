//! The command line: what can be asked of the binary, and what its exit codes mean. The help is made of this file.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What the exit codes mean; also the end of the help.
const AFTER_HELP: &str = "\
The configuration is the file named by --config, else ./mailrace.toml, else
/etc/mailrace/mailrace.toml, else a built-in one: listen on 127.0.0.1:2525,
keep everything under ./mailrace-data, take mail for anyone at localhost.

Exit codes:
   0  done
   1  done, and the answer is no: the key is not in the table, the spool has damage
  64  the command line is wrong
  65  the data is wrong: a table's text has a fault
  69  the server does not answer
  70  something else failed
  74  reading or writing failed
  77  a right is missing, or there are too many: refused to serve as root
  78  the configuration has faults";

/// A mail server built for throughput.
#[derive(Debug, Parser)]
#[command(name = "mailrace", version, about, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// The configuration file
    #[arg(short, long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take mail, keep it and deliver it, until told to stop
    Serve,
    /// Tell all that is wrong with the configuration, and change nothing
    Check,
    /// Make tables, and look things up in them
    #[command(subcommand)]
    Table(TableCommand),
    /// See what waits to be delivered
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Look into the spool of a server that does not run
    #[command(subcommand)]
    Spool(SpoolCommand),
    /// Show the metrics of the running server
    Status,
    /// Put any mail server under load, and hold it to what it answered
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// What the laboratory can do.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Send mail: as fast as the server takes it, or so much a second
    Smtp(Box<bench::smtp::Options>),
    /// Take mail and keep none; or look at each message, or play a lame server
    Sink(bench::sink::Options),
    /// Hold what arrived against what was answered 250: lost, doubled, damaged
    Verify(bench::verify::Options),
    /// Kill a server at random under load, again and again, and hold it to its 250s
    Crash(Box<bench::crash::Options>),
    /// Read mailboxes by POP3
    Pop3(Box<bench::pop3::Options>),
    /// Fetch pages by HTTP
    Http(Box<bench::http::Options>),
    /// Work on files as mail systems do, or append to a log as a spool does
    Files(bench::files::Options),
    /// Say what one reading of a load gauge costs
    Load(bench::gauges::Options),
}

/// What can be done with tables.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Make a cdb table of a text table, all at once: nobody sees half of it
    Build {
        /// Lines of "key value, value"; '#' begins a comment
        text: PathBuf,
        /// The file to make or to replace
        cdb: PathBuf,
    },
    /// Look a key up, as the server would
    Get {
        /// The table's name in the configuration
        name: String,
        /// What to look up
        key: String,
    },
}

/// What can be asked of the queue.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List the messages that wait, and for whom
    List(QueueList),
}

/// How to list the queue.
#[derive(Args, Debug)]
pub struct QueueList {
    /// Only say how many there are
    #[arg(long)]
    pub count: bool,
    /// As JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// What can be done with a spool.
#[derive(Debug, Subcommand)]
pub enum SpoolCommand {
    /// Show the segments and what lives in them
    Inspect(Lane),
    /// Read everything and check every checksum
    Verify(Lane),
}

/// Which spool.
#[derive(Args, Debug)]
pub struct Lane {
    /// The folder of one lane, instead of all lanes of the configuration
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub lane: Option<PathBuf>,
}
