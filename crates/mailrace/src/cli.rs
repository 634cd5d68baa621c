//! The command line: what can be asked of the binary, and what its exit codes mean. The help is made of this file.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use mail::{Address, QueueId};

use crate::admin::{By, Filter};
use crate::log_summary;
use crate::password::Scheme;

/// What the exit codes mean; also the end of the help.
const AFTER_HELP: &str = "\
The configuration is the file named by --config, else ./mailrace.toml, else
/etc/mailrace/mailrace.toml, else a built-in one: listen on 127.0.0.1:2525,
keep everything under ./mailrace-data, take mail for anyone at localhost.

Exit codes:
   0  done
   1  done, and the answer is no: the key is not in the table, the spool has damage,
      there is no such queue, message or table, a reload needs a restart
   2  mail for an address would come back (sendmail -bv)
  64  the command line is wrong
  65  the data is wrong: a table's text has a fault
  69  the server does not answer, or a table cannot say
  70  something else failed
  74  reading or writing failed
  75  a message was not kept; the same may succeed later
  77  a right is missing, or there are too many: refused to serve as root
  78  the configuration has faults

Where the reader of the output has gone, as in `mailrace queue list | head`, the command ends
with 0.";

/// What can be said to `mailrace inject`, whose options are not read by clap.
const INJECT_HELP: &str = "\
As sendmail has them:
  -t               recipients are those of To, Cc and Bcc, and those that are named
  -i, -oi          a lone dot does not end the message
  -f, -r ADDRESS   the envelope sender; '' or '<>' is the null sender
  -F NAME          the name of the sender, for a message that has no From
  -B TYPE          7BIT or 8BITMIME
  -N WHEN          reports: never, or some of success,failure,delay
  -R WHAT          what reports bring back: full or hdrs
  -V ENVID         what reports call the message
  -v               tell what was done
  -C FILE          the configuration file (default /etc/mailrace/mailrace.toml, and no other)
  -bm              take a message (default)
  -bs              speak SMTP on the standard input and output
  -bS              take commands of SMTP, and answer by the exit code alone
  -bp              list the queue, as mailq does
  -bv              say of each recipient whether mail would be delivered; exit code 0, 2 where it
                   would not, 1 where that cannot be said now
  -q               try now what waits for a later attempt; -qIQUEUE-ID of this message,
                   -qRNAME for this destination
  -bi              say what there is to do for tables of aliases, as newaliases does
  -A -G -L -O -X -U -e -h -m -n -o -p  are accepted and of no effect
Many messages at once:
  --mbox FILE      all messages of a mailbox file
  --folder DIR     each file of a folder, and of new/ and cur/ in it

By the name sendmail, mailq or newaliases the program is these.";

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

impl Cli {
    /// Reads the words of a command line, of which the first one is the binary's name.
    ///
    /// # Errors
    ///
    /// What was asked for is help or the version; or an option is wrong, or would be of no effect.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let cli = Cli::try_parse_from(words)?;
        match &cli.command {
            Command::Explain(Explain { target: Target::Message(_), sender, client, .. })
                if sender.is_some() || client.is_some() =>
            {
                let text = "--sender and --client go with an address: a message that waits has come from somebody";
                Err(Cli::command().error(ErrorKind::ArgumentConflict, text))
            }
            _ => Ok(cli),
        }
    }
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take mail, keep it and deliver it, until told to stop
    Serve,
    /// Tell all that is wrong with the configuration, and change nothing
    ///
    /// It warns of what is no fault but may be a mistake: rules that can never match, files with secrets that everyone can
    /// read, Unix sockets of next hops and tables on which nobody listens.
    Check,
    /// Have the running server read its configuration again, and go by it from then on
    Reload,
    /// Make tables, and look things up in them
    #[command(subcommand)]
    Table(TableCommand),
    /// See what waits to be delivered, and decide about it
    #[command(subcommand)]
    Queue(QueueCommand),
    /// Say how mail for an address would go, or what holds a message
    Explain(Explain),
    /// Show the load: gauges, limits, and what is in force
    Load,
    /// Look into the spool of a server that does not run
    #[command(subcommand)]
    Spool(SpoolCommand),
    /// Show the metrics of the running server
    Status,
    /// Evaluate the log
    #[command(subcommand)]
    Log(LogCommand),
    /// Print what a table of passwords keeps of a password, which is read from the terminal or the standard input
    Password {
        /// In which form
        #[arg(long, default_value = "argon2id")]
        scheme: Scheme,
    },
    /// Take a message from the standard input, as `sendmail` does
    #[command(after_help = INJECT_HELP)]
    Inject {
        /// The options and recipients below
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
        words: Vec<OsString>,
    },
    /// Read another mail server's configuration, and write it as ours
    #[command(subcommand)]
    Import(ImportCommand),
    /// Put any mail server under load, and hold it to what it answered
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Write the manual pages of all commands and of the configuration file into a folder
    Man {
        /// The folder; it is made where it is missing
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print what a shell needs to complete this command line
    Completions {
        /// Whose completion
        shell: Shell,
    },
}

/// Shells whose completion can be printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[expect(missing_docs, reason = "each is the shell of its name, and what stands here would be help")]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Whose configuration can be read.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// Read main.cf, master.cf and the tables that they name; Postfix's files stay as they are
    ///
    /// The exit code is 0 where all mail is treated as by Postfix, and 1 where some is not: what happens to it stands in the
    /// head of the new file and on the terminal, and the file is written nevertheless. Mail that cannot be treated as by
    /// Postfix is put off (4xx) rather than refused or lost.
    Postfix {
        /// The folder of main.cf, such as /etc/postfix or a copy of it
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Where to write, with the tables beside it in mailrace-tables; without it only the text is shown
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace files that are there already
        #[arg(long, requires = "output")]
        force: bool,
    },
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
    /// Look a key up: the running server says what it knows; without one the table is asked directly
    Get {
        /// The table's name in the configuration
        name: String,
        /// What to look up
        key: String,
    },
    /// Show how often and how fast each table answers, and what state it is in
    ///
    /// HITS% is the share of keys that the cache answered. P50 and P99 are times of requests to the backend: one in two,
    /// and 99 in 100, took no longer; they are told to a factor of two.
    Stats(TableStats),
    /// Let the copy of a directory go through with the removals that it held back
    Accept {
        /// The table's name in the configuration
        name: String,
    },
}

/// How to show what tables count.
#[derive(Args, Debug)]
pub struct TableStats {
    /// Only this table
    pub name: Option<String>,
    /// As JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// What can be asked of the queue, and done to it.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List the messages that wait, and for whom
    List(QueueList),
    /// Show a message: its envelope, recipients, what they wait for, and its header
    Show(QueueShow),
    /// Keep recipients until they are released
    Hold(QueueAct),
    /// Undo that: they are due now
    Release(QueueAct),
    /// Try recipients now who wait for a later attempt
    Retry(QueueAct),
    /// Take recipients away; nobody is told
    Remove(QueueAct),
    /// Give recipients up; their senders are told
    Bounce(QueueAct),
    /// Let nothing leave a queue, until it is resumed or the server starts again
    Pause(QueueName),
    /// Undo that
    Resume(QueueName),
}

/// How to list the queue.
#[derive(Args, Debug)]
pub struct QueueList {
    /// Sum them up by destination, next-hop, queue or sender
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    pub by: Option<By>,
    /// Show how old they are instead of what they wait for
    #[arg(long, requires = "by")]
    pub ages: bool,
    /// Only say how many recipients there are
    #[arg(long, conflicts_with = "by")]
    pub count: bool,
    /// As JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Whom to list
    #[command(flatten, next_help_heading = FILTER)]
    pub filter: Filter,
}

/// Which message to show, and what of it.
#[derive(Args, Debug)]
pub struct QueueShow {
    /// The message, as `mailrace queue list` names it
    #[arg(value_name = "QUEUE-ID")]
    pub id: QueueId,
    /// Only its header, byte for byte
    #[arg(long, conflicts_with_all = ["message", "json"])]
    pub header: bool,
    /// The whole message, byte for byte; to a terminal, control characters are escaped
    #[arg(long, conflicts_with = "json")]
    pub message: bool,
    /// As JSON, one object
    #[arg(long)]
    pub json: bool,
}

/// Whom to do it to. Nobody is meant by saying nothing.
#[derive(Args, Debug)]
pub struct QueueAct {
    /// All recipients; else at least one filter is needed
    #[arg(long, conflicts_with = "Filter")]
    pub all: bool,
    /// Only say how many it would be
    #[arg(long)]
    pub dry_run: bool,
    /// Who is meant
    #[command(flatten, next_help_heading = FILTER)]
    pub filter: Filter,
}

/// The heading of filters.
const FILTER: &str = "Filters, of which all must hold";

/// Which queue.
#[derive(Args, Debug)]
pub struct QueueName {
    /// Its name in the configuration
    pub name: String,
}

/// What to explain.
#[derive(Args, Debug)]
pub struct Explain {
    /// An address, or the queue id of a message
    #[arg(value_name = "ADDRESS|QUEUE-ID")]
    pub target: Target,
    /// As mail from this sender, whose queue may be another one
    #[arg(long, value_name = "ADDRESS")]
    pub sender: Option<Address>,
    /// As mail from this client: what access rules say of it
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// As from a client that calls itself so
    #[arg(long, value_name = "NAME", requires = "client")]
    pub helo: Option<String>,
}

/// Something to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// How mail for it would go.
    Address(Address),
    /// How it stands with it.
    Message(QueueId),
}

impl FromStr for Target {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.contains('@') {
            true => Target::Address(text.parse()?),
            false => Target::Message(text.parse()?),
        })
    }
}

/// What can be done with a log.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Count messages, delays, refusals and failures in log files, and show the largest senders, clients and destinations
    Summary(log_summary::Options),
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
            assert!(told.to_string().contains("--sender and --client go with an address"), "{told}");
        }
    }
}
