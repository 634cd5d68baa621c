//! The control socket: the running server answers questions of the operator, and obeys him. One line asks: a word, and
//! an object of JSON behind it where there is more to say. Lines answer, and the last of them is `done`; or `no: ` and
//! why, where the answer is no; or `failed: ` and why. An answer that ends otherwise was cut short, and is none.
//!
//! | question | answer |
//! |---|---|
//! | `count {FILTER}` | a number: recipients that wait |
//! | `list {FILTER}` | an object of JSON for each recipient that waits |
//! | `summary {"by": "destination", "filter": {FILTER}}` | an object for each destination, queue, sender or next hop |
//! | `hold`, `release`, `retry`, `remove`, `bounce` `{"filter": {FILTER}, "dry_run": false}` | a number: recipients that were chosen |
//! | `pause`, `resume` `{"queue": NAME}` | nothing |
//! | `explain-address {"address": ADDRESS, "sender": ADDRESS, "client": IP, "helo": NAME}` | sentences |
//! | `explain-message {"id": QUEUE-ID}` | sentences |
//! | `verify {"address": ADDRESS}` | an object: a verdict, and why |
//! | `show {"id": QUEUE-ID}` | an object of the message, and one for each recipient |
//! | `content {"id": QUEUE-ID, "from": 0}` | an object with the number of bytes and the whole size; the bytes, and a line end |
//! | `table-get {"table": NAME, "key": KEY}` | an object: what the table says, which layer of it, after how long |
//! | `table-stats {"table": NAME}` | an object for each table, or for this one |
//! | `table-accept {"table": NAME}` | nothing |
//! | `load` | gauges, limits and refusals, for people |
//! | `status` | metrics in the text format of Prometheus |
//! | `reload` | an object: the exit code of the command, and its text |

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

/// A question with its line end.
const QUESTION_OCTETS_MAX: u64 = 64 * 1024;

impl Server {
    /// Starts to answer on the socket of the configuration.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound.
    pub fn start(config: &Config, clerk: Clerk) -> anyhow::Result<Server> {
        Server::open(&config.admin.socket, clerk)
    }
}

impl Clerk {
    /// One who knows this configuration.
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

/// What clerks have in common, whichever configuration they know.
#[derive(Clone)]
pub struct Counter {
    /// The queues.
    pub mailbag: Mailbag,
    /// Where orders are written down.
    pub log: Arc<Log>,
    /// Outcomes.
    pub attempts: Arc<Attempts>,
    /// Where the order goes to read the configuration again.
    pub orders: Orders,
    /// Set when they are to leave off.
    pub stopping: Arc<AtomicBool>,
}
