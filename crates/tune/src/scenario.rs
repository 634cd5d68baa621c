//! The scenarios of `tune measure` and `tune search`: what the server does in a run, and the load that makes it do so.
//!
//! Each run has a server of its own, with the operator's limits, queues and storage settings, an empty spool on the
//! operator's disk, and a free port. The load is `mailrace bench`, from the same program.

mod configuration;
mod delivery;
mod sink_report;
mod trial;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

pub use trial::{QueueCounter, RunSettings, ServerTrial};

/// The mailboxes, and the recipients, of scenarios that do not name their own.
const USERS: u64 = 200;
/// The domain of the recipients.
const DOMAIN: &str = "bench.test";

/// What the server does in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// It accepts mail, many messages over each connection, and delivers none.
    AcceptMany,
    /// The same with one message over each connection.
    AcceptOne,
    /// It accepts mail and delivers it to Maildirs.
    DeliverMaildir,
    /// It accepts mail and sends it to a sink on this machine.
    Relay,
    /// It accepts mail for the operator's domains, whose recipients it looks up in the operator's tables.
    Lookup,
    /// It serves small files by HTTP.
    ReadHttp,
}

/// The words of the command line.
const NAMES: [(&str, Scenario); 6] = [
    ("accept-many", Scenario::AcceptMany),
    ("accept-one", Scenario::AcceptOne),
    ("deliver-maildir", Scenario::DeliverMaildir),
    ("relay", Scenario::Relay),
    ("lookup", Scenario::Lookup),
    ("read-http", Scenario::ReadHttp),
];

impl Scenario {
    /// Singular of what is counted.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Scenario::ReadHttp => "page",
            _ => "message",
        }
    }

    /// The protocol of the listener that gets the load.
    fn protocol(self) -> &'static str {
        match self {
            Scenario::ReadHttp => "http",
            _ => "smtp",
        }
    }

    /// Whether a run lasts until what was accepted is delivered.
    fn delivers(self) -> bool {
        matches!(self, Scenario::DeliverMaildir | Scenario::Relay)
    }

    /// The words after `mailrace` that put a server under load. Files that the load reads are in `folder`.
    fn load(self, port: u16, load: &Load<'_>, folder: &Path) -> Vec<String> {
        let mut words: Vec<String> = match self {
            Scenario::ReadHttp => vec!["bench".into(), "http".into(), "--urls".into(), path_text(load.urls)],
            _ => ["bench", "smtp", "--target"]
                .map(str::to_owned)
                .into_iter()
                .chain([format!("127.0.0.1:{port}")])
                .collect(),
        };
        let options = [
            ("--connections", load.connections.to_string()),
            ("--duration", format!("{}ms", load.time.as_millis())),
            ("--disk", path_text(folder)),
        ];
        let timeout = load.timeout.map(|time| ("--timeout", format!("{}ms", time.as_millis())));
        words.extend(options.into_iter().chain(timeout).flat_map(|(name, value)| [name.to_owned(), value]));
        words.push("--json".to_owned());
        match (self, load.recipients_from) {
            (Scenario::ReadHttp, _) => {}
            (_, Some(file)) => words.extend(["--recipients-from".to_owned(), path_text(file)]),
            (_, None) => {
                let recipients = ["--recipient".to_owned(), format!("user{{}}@{DOMAIN}")];
                words.extend(recipients.into_iter().chain(["--users".to_owned(), USERS.to_string()]));
            }
        }
        if self == Scenario::AcceptOne {
            words.extend(["--per-connection", "1"].map(str::to_owned));
        }
        words
    }
}

/// The load of one run.
struct Load<'a> {
    connections: u64,
    time: Duration,
    timeout: Option<Duration>,
    recipients_from: Option<&'a Path>,
    /// The list of pages, for HTTP.
    urls: &'a Path,
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Scenario, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text).map(|(_, scenario)| *scenario);
        found.ok_or_else(|| format!("expected one of: {}", NAMES.map(|(name, _)| name).join(", ")))
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, scenario)| scenario == self).map_or("", |(name, _)| *name);
        f.write_str(name)
    }
}
