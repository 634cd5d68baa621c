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

mod clerk;
mod client;
mod explain;
mod filter;
mod found;
mod list;
mod load;
mod mailq;
mod message;
mod pattern;
mod question;
#[cfg(test)]
pub(crate) mod sample;
mod server;
mod show;
mod summary;
pub(crate) mod table;
mod tables;
mod text;
mod wait;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use intake::Desk;

use crate::config::{Config, Durability};
use crate::flow::Mailbag;
use crate::log::Log;
use crate::metrics::Attempts;
use crate::plan::Lists;
use crate::reload::Orders;
use crate::tables::Tables;

pub use clerk::Clerk;
pub use client::{act, explain, list, load, pause, reload, retry_now, status, verify};
pub use explain::Guide;
pub use filter::Filter;
pub use mailq::mailq;
pub use message::show;
pub use pattern::{AddressPattern, NamePattern, NotAPattern, Part};
pub use question::By;
pub use server::Server;
pub use tables::{table_accept, table_get, table_stats};
pub use text::{NotASize, NotASpan, Size, Span, Text};

/// The longest request, with its line end.
const QUESTION_OCTETS_MAX: u64 = 64 * 1024;

impl Server {
    /// Starts to answer on the configured socket.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound.
    pub fn start(config: &Config, clerk: Clerk) -> anyhow::Result<Server> {
        Server::open(&config.admin.socket, clerk)
    }
}

impl Clerk {
    /// A handler for this configuration.
    pub fn new(
        config: &Config,
        counter: Counter,
        guide: Guide,
        desk: Arc<Desk>,
        tables: Tables,
        lists: Lists,
    ) -> Clerk {
        let Counter { mailbag, log, attempts, orders, stopping } = counter;
        let relaxed = config.spool.durability != Durability::Commit;
        Clerk { mailbag, desk, log, guide, tables, lists, attempts, orders, relaxed, stopping }
    }
}

/// What all handlers share, whatever their configuration.
#[derive(Clone)]
pub struct Counter {
    /// The queues.
    pub mailbag: Mailbag,
    /// Operator actions are logged here.
    pub log: Arc<Log>,
    /// Counters of outcomes.
    pub attempts: Arc<Attempts>,
    /// Where reload requests go.
    pub orders: Orders,
    /// Set when handlers are to stop.
    pub stopping: Arc<AtomicBool>,
}
