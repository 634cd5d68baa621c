//! The control socket: the running server answers requests of the operator. A request is one line:
//! a word, followed by a JSON object if it has parameters. The answer ends with a line `done`; with
//! `no: ` and the reason if the request is refused; or with `failed: ` and the reason. An answer
//! without such a line was truncated, and is discarded.
//!
//! | request | answer |
//! |---|---|
//! | `count {FILTER}` | a number: queued recipients |
//! | `list {FILTER}` | a JSON object for each queued recipient |
//! | `summary {"by": "destination", "filter": {FILTER}}` | an object for each destination, queue, sender or next hop |
//! | `hold`, `release`, `retry`, `remove`, `bounce` `{"filter": {FILTER}, "dry_run": false}` | a number: recipients selected |
//! | `pause`, `resume` `{"queue": NAME}` | nothing |
//! | `explain-address {"address": ADDRESS, "sender": ADDRESS, "client": IP, "helo": NAME}` | text |
//! | `explain-message {"id": QUEUE-ID}` | text |
//! | `verify {"address": ADDRESS}` | an object: verdict and reason |
//! | `show {"id": QUEUE-ID}` | an object for the message, and one for each recipient |
//! | `content {"id": QUEUE-ID, "from": 0}` | an object with the number of bytes and the total size; the bytes, and a line end |
//! | `table-get {"table": NAME, "key": KEY}` | an object: the table's answer, the layer that gave it, and the time it took |
//! | `table-stats {"table": NAME}` | an object for each table, or for this table |
//! | `table-accept {"table": NAME}` | nothing |
//! | `load` | gauges, limits and refusals, as text |
//! | `status` | metrics in the Prometheus text format |
//! | `reload` | an object: the command's exit code and its output |

mod client;
mod explain;
mod filter;
mod handler;
mod list;
mod load;
mod mailq;
mod message;
mod pattern;
mod request;
#[cfg(test)]
pub(crate) mod sample;
mod selection;
mod server;
mod show;
mod summary;
pub(crate) mod table;
mod tables;
mod text;
mod wait;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use intake::IntakeContext;

use crate::from_config::DnsblLists;
use crate::log::Log;
use crate::reload::ReloadSender;
use crate::tables::OpenTables;
use config::{Config, Durability};
use dispatch::OutcomeCounters;
use dispatch::SchedulerHandle;

pub use client::{
    apply_queue_action, print_explanation, print_load, print_queue, print_status, reload, retry_now, set_queue_paused,
    verify_addresses,
};
pub use explain::AddressExplainer;
pub use filter::RecipientFilter;
pub use handler::ControlHandler;
pub use mailq::mailq;
pub use message::print_message;
pub use pattern::{AddressPattern, DestinationPattern, InvalidPattern, SubstringPattern};
pub use request::SummaryKey;
pub use server::ControlServer;
pub use tables::{accept_table_removals, table_get, table_stats};
pub use text::{DurationArg, InvalidDuration, InvalidSize, SerdeAsText, SizeArg};

/// The longest request, with its line end.
const REQUEST_OCTETS_MAX: u64 = 64 * 1024;

impl ControlServer {
    /// Starts to answer on the configured socket.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound.
    pub fn start(config: &Config, handler: ControlHandler) -> anyhow::Result<ControlServer> {
        ControlServer::bind_and_start(&config.admin.socket, handler)
    }
}

impl ControlHandler {
    /// A handler for this configuration.
    pub fn new(
        config: &Config,
        context: SharedControlState,
        explainer: AddressExplainer,
        intake: Arc<IntakeContext>,
        tables: OpenTables,
        lists: DnsblLists,
    ) -> ControlHandler {
        let SharedControlState { scheduler, log, outcome_counters: attempts, reload_sender, stopping } = context;
        let relaxed = config.spool.durability != Durability::Commit;
        ControlHandler {
            scheduler,
            intake,
            log,
            explainer,
            tables,
            dnsbl_lists: lists,
            outcome_counters: attempts,
            reload_sender,
            relaxed_durability: relaxed,
            stopping,
        }
    }
}

/// What all handlers share, whatever their configuration.
#[derive(Clone)]
pub struct SharedControlState {
    /// The queues.
    pub scheduler: SchedulerHandle,
    /// Operator actions are logged here.
    pub log: Arc<Log>,
    /// Counters of outcomes.
    pub outcome_counters: Arc<OutcomeCounters>,
    /// Where reload requests go.
    pub reload_sender: ReloadSender,
    /// Set when handlers are to stop.
    pub stopping: Arc<AtomicBool>,
}
