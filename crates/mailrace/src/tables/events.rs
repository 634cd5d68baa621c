//! Writes the events of tables to the log.
//!
//! A failure is a warning: replicas and stale cache entries still answer, and other mail is
//! deferred; without an answer of a DNS list, clients count as not listed. A table that is not
//! queried at all, or that waits for the operator, is an error.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use lookup::{TableEvent, TableEventHandler};

use mail::{LogLevel, ServerLog};
use server_log::Log;

/// Writes the events of tables to the log.
pub fn table_event_logger(log: Arc<Log>) -> TableEventHandler {
    Arc::new(move |event| log_event(&event, |level, text, fields| log.event(level, text, fields)))
}

/// Passes an event to `log` as level, message and fields.
fn log_event(event: &TableEvent, log: impl Fn(LogLevel, &str, &[(&'static str, &dyn Display)])) {
    match event {
        TableEvent::Failed { table, error, left_out } => log(
            LogLevel::Warning,
            "a table lookup failed",
            &[("table", table), ("error", error), ("left_out", left_out)],
        ),
        TableEvent::Down { table, error } => log(
            LogLevel::Error,
            "a table is down: it is not queried until it recovers; cached answers are used while they may be stale",
            &[("table", table), ("error", error)],
        ),
        TableEvent::Up { table, after } => {
            log(LogLevel::Info, "a table has recovered", &[("table", table), ("after", &seconds(*after))]);
        }
        TableEvent::ReplicaLoaded { table, entries, changed, removed, took } => log(
            LogLevel::Info,
            "a replica is up to date",
            &[
                ("table", table),
                ("entries", entries),
                ("changed", changed),
                ("removed", removed),
                ("took", &seconds(*took)),
            ],
        ),
        TableEvent::RemovalsHeldBack { table, removals, entries } => log(
            LogLevel::Error,
            "a refresh would remove too much of a replica and is held back: if it is correct, run `mailrace table accept`",
            &[("table", table), ("removals", removals), ("entries", entries)],
        ),
        TableEvent::ReplicaDisconnected { table, error } => log(
            LogLevel::Warning,
            "a replica lost its master and continues with the entries it has",
            &[("table", table), ("error", error)],
        ),
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.3}s", span.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use mail::Timestamp;

    use super::*;
    use server_log::{LogEntry, LogFormat};

    #[test]
    fn each_event_is_a_line() {
        let (table, error) = (|| "people".into(), || "ldap://127.0.0.1:389: connection refused".into());
        let events = [
            TableEvent::Failed { table: table(), error: error(), left_out: 7 },
            TableEvent::Down { table: table(), error: error() },
            TableEvent::Up { table: table(), after: Duration::from_millis(90_510) },
            TableEvent::ReplicaLoaded {
                table: table(),
                entries: 120_000,
                changed: 17,
                removed: 3,
                took: Duration::from_millis(1_240),
            },
            TableEvent::RemovalsHeldBack { table: table(), removals: 60_000, entries: 120_000 },
            TableEvent::ReplicaDisconnected { table: table(), error: error() },
        ];
        let out = RefCell::new(String::new());
        for event in &events {
            log_event(event, |level, text, fields| {
                let fields = fields.iter().map(|(name, value)| (*name, value.to_string())).collect();
                let log = LogEntry::Server { level, text: text.into(), fields };
                server_log::write_line(&mut out.borrow_mut(), LogFormat::Text, Timestamp(1_795_196_776_123), &log);
            });
        }
        insta::assert_snapshot!("events", out.take());
    }
}
