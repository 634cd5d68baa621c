//! The operator's view of the running server: the control socket, and the HTTP API ([`api`]), which has
//! the same answers.
//!
//! On the control socket, a request is one line:
//! a word, followed by a JSON object if it has parameters. The answer ends with a line `done`; with
//! `no: ` and the reason if the request is refused; or with `failed: ` and the reason. An answer
//! without such a line was truncated, and is discarded.
//!
//! | request | answer |
//! |---|---|
//! | `count {FILTER}` | a number: queued recipients. If messages cannot be read, a last row says how many ([`unreadable_row`]); also in lists and summaries |
//! | `list {FILTER}` | a JSON object for each queued recipient |
//! | `summary {"by": "destination", "filter": {FILTER}}` | an object for each destination, queue, sender or next hop |
//! | `hold`, `release`, `retry`, `remove`, `bounce` `{"filter": {FILTER}, "dry_run": false}` | a number: recipients selected; if some were left out, a line with their number |
//! | `pause {"target": {"queue": NAME}, "for": "2h"}` | an object: the pause. Also for a `next_hop` or a `destination` |
//! | `resume {"target": {"queue": NAME}}` | nothing |
//! | `pauses` | an object for each pause in force |
//! | `redirect {"from": {"next_hop": NAME}, "to": NEXT-HOP, "transport": NAME}` | nothing. Also for a `destination` |
//! | `end-redirect {"from": {"next_hop": NAME}}` | nothing |
//! | `redirects` | an object for each redirect in force |
//! | `explain-address {"address": ADDRESS, "sender": ADDRESS, "client": IP, "helo": NAME}` | an object: the findings ([`explanation`]) |
//! | `explain-message {"id": QUEUE-ID}` | an object: the findings |
//! | `verify {"address": ADDRESS}` | an object: verdict and reason |
//! | `show {"id": QUEUE-ID}` | an object for the message, and one for each recipient |
//! | `content {"id": QUEUE-ID, "from": 0}` | an object with the number of bytes and the total size; the bytes, and a line end |
//! | `table-get {"table": NAME, "key": KEY}` | an object: the table's answer, the layer that gave it, and the time it took |
//! | `table-stats {"table": NAME}` | an object for each table, or for this table |
//! | `table-accept {"table": NAME}` | nothing |
//! | `load` | an object: gauges, limits and refusals |
//! | `adaptive` | an object for each value that the server adapts itself |
//! | `status` | an object for each metric, with its samples |
//! | `reports-show` | an object for each report that is being counted |
//! | `reports-send {"domain": DOMAIN}` | an object for each report and destination: what became of it |
//! | `acme-status` | an object for each certificate that the server obtains |
//! | `acme-renew {"name": NAME}` | a number: certificates for which the next attempt comes now |
//! | `cluster-status` | an object for each lane of the cluster |
//! | `cluster-nodes` | an object for each node that is alive |
//! | `cluster-adopt {"lane": LANE}` | nothing; the server takes the lane over |
//! | `cluster-forget {"target": NAME, "force": true}` | a number: lanes that were given up with the node or lane |
//! | `nodes {"node": NAME, "request": {REQUEST}}` | an object for each node: its answer to the request, or why there is none |
//! | `cluster-drain` | nothing; the server hands its lanes over and stops |
//! | `history {"id": QUEUE-ID}` | an object: what the log has about the message |
//! | `drain {"within": "5m"}` | nothing; the server takes no mail, delivers for that time, and stops |
//! | `reload` | an object: what has changed, or why the configuration is refused |

pub mod act_report;
mod adaptive;
pub mod adaptive_text;
pub mod api;
mod certificates;
pub mod certificates_text;
mod cluster;
pub mod cluster_text;
pub mod columns;
mod current_handler;
mod explain;
pub mod explanation;
pub mod explanation_text;
mod handler;
mod history;
mod lanes;
mod line_answer;
pub mod list;
mod live;
pub mod load;
pub mod load_text;
mod message;
pub mod message_history;
pub mod message_text;
mod metrics;
pub mod metrics_text;
pub mod nodes;
mod oldest;
mod overview;
mod pages;
mod pattern;
pub mod pauses;
pub mod pauses_text;
pub mod process;
mod recipient_filter;
pub mod redirects;
pub mod redirects_text;
mod reload_request;
mod reports;
pub mod reports_text;
pub mod request;
#[cfg(test)]
pub(crate) mod sample;
mod selection;
mod server;
mod state_file;
mod stored_messages;
mod summary;
pub mod summary_text;
pub mod tables;
pub mod tables_text;
pub mod text;
pub mod tokens;
mod trouble;
pub mod unreadable_row;
mod wait;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use filter::access::AccessRules;
use intake::IntakeContext;

use dispatch::{OutcomeCounters, SchedulerHandle};
use lookup::Table;
use mail::ServerLog;
use retrieval::RetrievalMonitor;
use sender_auth::VerdictCounters;
use sender_auth::signing::SigningCounters;
use sender_auth::srs::SrsCounters;

pub use adaptive::{AdaptiveValue, Bounds};
pub use certificates::CertificateParts;
pub use cluster::{ClusterFigures, ClusterOperator, LaneReport, NodeReplies, NodeReport, NodeSilence};
pub use current_handler::CurrentHandler;
pub use explain::AddressExplainer;
pub use handler::ControlHandler;
pub use live::LiveMonitor;
pub use message_history::{MessageHistory, MessageLog, MessageLogEvent};
pub use metrics::{MetricFamily, MetricKind, MetricSample, MetricValue};
pub use pattern::{AddressPattern, DestinationPattern, InvalidPattern, SubstringPattern};
pub use process::{ConfigChecker, ConfigDocument, ConfigVerdict, DrainSender};
pub use recipient_filter::RecipientFilter;
pub use redirects::RedirectStore;
pub use reload_request::{ReloadAnswer, ReloadRequest, ReloadSender};
pub use reports::{ReportOperator, ReportParts, SentReport};
pub use server::ControlServer;

/// The longest request, with its line end.
pub const REQUEST_OCTETS_MAX: u64 = 64 * 1024;

/// The tables that operators can ask about.
#[derive(Clone, Default)]
pub struct ControlTables {
    /// The tables of the configuration, each with its type.
    pub tables: Vec<(&'static str, Arc<dyn Table>)>,
    /// The DNS lists, each named after its zone.
    pub dnsbl_lists: Vec<Arc<dyn Table>>,
}

impl ControlTables {
    /// The table with this name.
    fn find(&self, name: &str) -> Option<&Arc<dyn Table>> {
        self.tables.iter().map(|(_, table)| table).find(|table| table.name() == name)
    }

    /// All tables and DNS lists, with their types. A table hides a DNS list with the same name.
    fn all(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn Table>)> {
        let lists = self.dnsbl_lists.iter().filter(|list| self.find(list.name()).is_none());
        self.tables.iter().map(|(kind, table)| (*kind, table)).chain(lists.map(|list| ("dnsbl", list)))
    }
}

/// What a handler needs of one configuration.
pub struct ControlParts {
    /// Explains where mail for an address goes.
    pub explainer: AddressExplainer,
    /// What sessions use.
    pub intake: Arc<IntakeContext>,
    /// Sessions and counters of retrieval.
    pub retrieval: RetrievalMonitor,
    /// The access rules.
    pub access_rules: Option<Arc<AccessRules>>,
    /// What was found about the senders of mail; None if nothing is checked.
    pub sender_auth: Option<Arc<VerdictCounters>>,
    /// The tables.
    pub tables: ControlTables,
    /// A 250 does not wait for the disk.
    pub relaxed_durability: bool,
    /// The configuration, without secrets.
    pub config: ConfigDocument,
    /// Next hops with metrics of their own.
    pub metrics_next_hops_max: usize,
    /// Finds messages in the log; None: the server cannot read its log.
    pub message_log: Option<Arc<dyn MessageLog>>,
    /// What the server has chosen at its start or reload.
    pub chosen: Vec<AdaptiveValue>,
    /// The DKIM signatures that were made; None: there are no keys.
    pub signatures: Option<Arc<SigningCounters>>,
    /// The senders of forwarded mail; None: they are not rewritten.
    pub srs: Option<Arc<SrsCounters>>,
    /// The sender of reports; None: no reports are sent.
    pub reports: Option<ReportParts>,
    /// The certificates of the listeners.
    pub certificates: CertificateParts,
}

impl ControlHandler {
    /// A handler for one configuration.
    pub fn new(parts: ControlParts, shared: SharedControlState) -> ControlHandler {
        ControlHandler { parts, shared }
    }
}

/// What all handlers share, whatever their configuration.
#[derive(Clone)]
pub struct SharedControlState {
    /// The queues.
    pub scheduler: SchedulerHandle,
    /// Operator actions are logged here.
    pub log: Arc<dyn ServerLog>,
    /// Counters of outcomes.
    pub outcome_counters: Arc<OutcomeCounters>,
    /// Where reload requests go.
    pub reload_sender: ReloadSender,
    /// Checks configurations.
    pub config_checker: ConfigChecker,
    /// Where the order to drain goes.
    pub drain_sender: DrainSender,
    /// Where mail is redirected to.
    pub redirects: Arc<RedirectStore>,
    /// The cluster; None: the server belongs to none.
    pub cluster: Option<Arc<dyn ClusterOperator>>,
    /// Set when handlers are to stop.
    pub stopping: Arc<AtomicBool>,
    /// The history, and the readers of events.
    pub live: Arc<LiveMonitor>,
}
