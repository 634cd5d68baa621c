//! What tables tell of themselves, as lines of the log.
//!
//! A failure is a warning: what is in a cache or in a copy goes on being answered, and mail that needs more is put off.
//! What somebody has to decide, or what stays as it is until somebody acts, is an error.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use lookup::{Event, Events};

use crate::line::Level;
use crate::log::Log;

/// Takes what tables tell, and writes it to the log.
pub fn tell(log: Arc<Log>) -> Events {
    Arc::new(move |event| write(&log, &event))
}

fn write(log: &Log, event: &Event) {
    let line = |level, text: &str, table: &str, fields: &[(&'static str, &dyn Display)]| {
        let fields: Vec<(&'static str, &dyn Display)> =
            [("table", &table as &dyn Display)].into_iter().chain(fields.iter().copied()).collect();
        log.event(level, text, &fields);
    };
    match event {
        Event::Failed { table, error, left_out } => {
            let text = "a table could not be asked";
            line(Level::Warning, text, table, &[("error", error), ("left_out", left_out)]);
        }
        Event::Down { table, error } => {
            let text =
                "a table is down: it is not asked until it answers again; what is known of it goes on being told";
            line(Level::Error, text, table, &[("error", error)]);
        }
        Event::Up { table, after } => {
            line(Level::Info, "a table is back", table, &[("after_seconds", &seconds(*after))]);
        }
        Event::Loaded { table, entries, changed, removed, took } => {
            let fields: [(&'static str, &dyn Display); 4] =
                [("entries", entries), ("changed", changed), ("removed", removed), ("took_seconds", &seconds(*took))];
            line(Level::Info, "the copy of a directory is as its master", table, &fields);
        }
        Event::HeldBack { table, removals, entries } => {
            let text = "a refresh would remove too many entries of a copy, and is held back until \
                        `mailrace table accept` is said, or fewer would go";
            line(Level::Error, text, table, &[("removals", removals), ("entries", entries)]);
        }
        Event::Lost { table, error } => {
            let text = "the copy of a directory lost its master, and goes on with what it has";
            line(Level::Warning, text, table, &[("error", error)]);
        }
    }
}

fn seconds(span: Duration) -> String {
    format!("{:.1}", span.as_secs_f64())
}
