//! The commands for the queue.

use clap::{Args, Subcommand};
use control::RecipientFilter;
use control::pauses::PausedName;
use control::redirects::RedirectedName;
use control::request::SummaryKey;
use control::text::{DurationArg, SerdeAsText};
use mail::QueueId;

use super::cluster::NodeArgs;

/// The exit codes of results that are not whole.
const QUEUE_LIST_CODES: &str = "\
The exit code is 69 if a node of a cluster does not answer, and 74 if messages are left out because
they cannot be read.";

/// Commands for the queue.
#[derive(Debug, Subcommand)]
pub enum QueueCommand {
    /// List queued messages and their recipients
    #[command(after_help = QUEUE_LIST_CODES)]
    List(QueueListArgs),
    /// Show a message: envelope, recipients, what they wait for, and header
    Show(QueueShowArgs),
    /// Show what happened to a message, also after it is finished
    ///
    /// The server searches the end of its log, up to 64 MiB, and the log before the last rotation if it
    /// is beside it with the suffix .1.
    History(QueueHistoryArgs),
    /// Hold recipients until they are released
    Hold(QueueActionArgs),
    /// Release held recipients; they are due now
    Release(QueueActionArgs),
    /// Retry waiting recipients now
    Retry(QueueActionArgs),
    /// Remove recipients without a bounce
    Remove(QueueActionArgs),
    /// Bounce recipients to their senders
    Bounce(QueueActionArgs),
    /// Stop deliveries from a queue, to a next hop or to a destination
    ///
    /// It ends after the time of --for, when it is resumed, or when the server restarts. Attempts in
    /// progress continue, and mail is still accepted.
    Pause(QueuePauseArgs),
    /// Resume what is paused
    Resume(PausedNameArgs),
    /// Redirect the mail for a next hop or a destination to another next hop
    ///
    /// It concerns mail that is queued and mail that comes later, until the redirect is ended with --end;
    /// a restart keeps it. Mail that was redirected once is not redirected again.
    Redirect(QueueRedirectArgs),
    /// List what is redirected
    Redirects {
        /// Print JSON, one object per line
        #[arg(long)]
        json: bool,
    },
    /// List what is paused
    Pauses {
        /// Print JSON, one object per line
        #[arg(long)]
        json: bool,
    },
}

/// Options of `queue list`.
#[derive(Args, Debug)]
pub struct QueueListArgs {
    /// Group by destination, next-hop, queue or sender
    #[arg(long, value_name = "WHAT", hide_possible_values = true)]
    pub by: Option<SummaryKey>,
    /// Show ages instead of what recipients wait for
    #[arg(long, requires = "by")]
    pub ages: bool,
    /// Only print the number of recipients
    #[arg(long, conflicts_with = "by")]
    pub count: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
    /// The node to ask
    #[command(flatten)]
    pub node: NodeArgs,
    /// The recipients to list
    #[command(flatten, next_help_heading = FILTER_HEADING)]
    pub filter: RecipientFilter,
}

/// Options of `queue show`.
#[derive(Args, Debug)]
pub struct QueueShowArgs {
    /// The queue ID, as in `mailrace queue list`
    #[arg(value_name = "QUEUE-ID")]
    pub id: QueueId,
    /// Only the header, byte for byte
    #[arg(long, conflicts_with_all = ["message", "json"])]
    pub header: bool,
    /// The whole message, byte for byte; to a terminal, control characters are escaped
    #[arg(long, conflicts_with = "json")]
    pub message: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `queue history`.
#[derive(Args, Debug)]
pub struct QueueHistoryArgs {
    /// The queue ID, as in `mailrace queue list` and in the log
    #[arg(value_name = "QUEUE-ID")]
    pub id: QueueId,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The recipients of an action. Without options there are none.
#[derive(Args, Debug)]
pub struct QueueActionArgs {
    /// All recipients; otherwise at least one filter is required
    #[arg(long, conflicts_with = "RecipientFilter")]
    pub all: bool,
    /// Only print how many recipients would be affected
    #[arg(long)]
    pub dry_run: bool,
    /// The node that acts
    #[command(flatten)]
    pub node: NodeArgs,
    /// The recipients
    #[command(flatten, next_help_heading = FILTER_HEADING)]
    pub filter: RecipientFilter,
}

/// The heading of the filter options.
const FILTER_HEADING: &str = "Filters (all must match)";

/// What is paused or resumed.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct PausedNameArgs {
    /// A queue, by its name in the configuration
    #[arg(value_name = "QUEUE")]
    pub queue: Option<String>,
    /// A next hop, as in `mailrace queue list --by next-hop`
    #[arg(long, value_name = "NAME")]
    pub next_hop: Option<String>,
    /// A destination, in all queues
    #[arg(long, value_name = "NAME")]
    pub destination: Option<String>,
}

impl PausedNameArgs {
    /// The name that is given; clap lets exactly one pass.
    pub fn name(&self) -> Option<PausedName> {
        let queue = self.queue.clone().map(PausedName::Queue);
        let next_hop = self.next_hop.clone().map(PausedName::NextHop);
        queue.or(next_hop).or_else(|| self.destination.clone().map(PausedName::Destination))
    }
}

/// Options of `queue pause`.
#[derive(Args, Debug)]
pub struct QueuePauseArgs {
    /// What to pause
    #[command(flatten)]
    pub target: PausedNameArgs,
    /// How long: 90s, 30m, 2h
    #[arg(long = "for", value_name = "SPAN")]
    pub duration: Option<SerdeAsText<DurationArg>>,
}

/// What is redirected.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct RedirectedNameArgs {
    /// A next hop, as in `mailrace queue list --by next-hop`
    #[arg(long, value_name = "NAME")]
    pub next_hop: Option<String>,
    /// A destination, in all queues
    #[arg(long, value_name = "NAME")]
    pub destination: Option<String>,
}

impl RedirectedNameArgs {
    /// The name that is given; clap lets exactly one pass.
    pub fn name(&self) -> Option<RedirectedName> {
        let next_hop = self.next_hop.clone().map(RedirectedName::NextHop);
        next_hop.or_else(|| self.destination.clone().map(RedirectedName::Destination))
    }
}

/// Options of `queue redirect`.
#[derive(Args, Debug)]
pub struct QueueRedirectArgs {
    /// What to redirect
    #[command(flatten)]
    pub source: RedirectedNameArgs,
    /// Where it goes: HOST:PORT, [ADDRESS]:PORT, mx:DOMAIN or unix:/PATH
    #[arg(long, value_name = "NEXT-HOP", required_unless_present = "end")]
    pub to: Option<String>,
    /// The transport, of type smtp or lmtp; by default smtp
    #[arg(long, value_name = "NAME", requires = "to")]
    pub transport: Option<String>,
    /// End the redirect
    #[arg(long, conflicts_with = "to")]
    pub end: bool,
}
