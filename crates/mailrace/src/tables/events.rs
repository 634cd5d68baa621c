//! Writes the events of tables to the log.
//!
//! A failure is a warning: replicas and stale cache entries still answer, and other mail is
//! deferred; without an answer of a DNS list, clients count as not listed. A table that is not
//! queried at all, or that waits for the operator, is an error.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use lookup::{Event, Events};

use crate::line::Level;
use crate::log::Log;

/// Writes the events of tables to the log.
pub fn tell(log: Arc<Log>) -> Events {
    Arc::new(move |event| said(&event, |level, text, fields| log.event(level, text, fields)))
}

/// Passes an event to `line` as level, message and fields.
fn said(event: &Event, line: impl Fn(Level, &str, &[(&'static str, &dyn Display)])) {
    match event {
        Event::Failed { table, error, left_out } => {
            line(Level::Warning, "a table lookup failed", &[("table", table), ("error", error), ("left_out", left_out)])
        }
        Event::Down { table, error } => line(
            Level::Error,
            "a table is down: it is not queried until it recovers; cached answers are used while they may be stale",
            &[("table", table), ("error", error)],
        ),
        Event::Up { table, after } => {
            line(Level::Info, "a table has recovered", &[("table", table), ("after", &seconds(*after))]);
        }
        Event::Loaded { table, entries, changed, removed, took } => line(
            Level::Info,
            "a replica is up to date",
            &[
                ("table", table),
                ("entries", entries),
                ("changed", changed),
                ("removed", removed),
                ("took", &seconds(*took)),
            ],
        ),
        Event::HeldBack { table, removals, entries } => line(
            Level::Error,
            "a refresh would remove too much of a replica and is held back: if it is correct, run `mailrace table accept`",
            &[("table", table), ("removals", removals), ("entries", entries)],
        ),
        Event::Lost { table, error } => line(
            Level::Warning,
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
    use crate::config::LogFormat;
    use crate::line::{self, Line};

    #[test]
    fn each_event_is_a_line() {
        let (table, error) = (|| "people".into(), || "ldap://127.0.0.1:389: connection refused".into());
        let events = [
            Event::Failed { table: table(), error: error(), left_out: 7 },
            Event::Down { table: table(), error: error() },
            Event::Up { table: table(), after: Duration::from_millis(90_510) },
            Event::Loaded {
                table: table(),
                entries: 120_000,
                changed: 17,
                removed: 3,
                took: Duration::from_millis(1_240),
            },
            Event::HeldBack { table: table(), removals: 60_000, entries: 120_000 },
            Event::Lost { table: table(), error: error() },
        ];
        let out = RefCell::new(String::new());
        for event in &events {
            said(event, |level, text, fields| {
                let fields = fields.iter().map(|(name, value)| (*name, value.to_string())).collect();
                let line = Line::Event { level, text: text.into(), fields };
                line::write(&mut out.borrow_mut(), LogFormat::Text, Timestamp(1_795_196_776_123), &line);
            });
        }
        insta::assert_snapshot!("events", out.take());
    }
}
