//! Shows pauses for people.

use std::time::Duration;

use crate::columns::{Align, ColumnTable};
use crate::pauses::{PauseStatus, PausedName};
use crate::text::short_duration;

/// A line for a pause that has begun.
pub fn begun(status: &PauseStatus) -> String {
    let (kind, name) = parts(&status.target);
    let end = status.until.as_ref().map_or_else(|| "until it is resumed".to_owned(), |until| format!("until {until}"));
    let unknown = if status.known { "" } else { "; the server knows none of this name at present" };
    format!("{kind} {name}: paused {end}{unknown}")
}

/// A table of the pauses in force.
pub fn table(pauses: &[PauseStatus]) -> Vec<String> {
    let columns = [("PAUSED", Align::Left), ("NAME", Align::Left), ("ENDS IN", Align::Right), ("KNOWN", Align::Left)];
    let mut table = ColumnTable::new(&columns);
    for status in pauses {
        let (kind, name) = parts(&status.target);
        let end = status.for_seconds.map_or("-".to_owned(), |seconds| short_duration(Duration::from_secs(seconds)));
        let known = if status.known { "yes" } else { "no" };
        table.row(vec![kind.to_owned(), name.to_owned(), end, known.to_owned()]);
    }
    table.lines().collect()
}

fn parts(target: &PausedName) -> (&'static str, &str) {
    match target {
        PausedName::Queue(name) => ("queue", name),
        PausedName::NextHop(name) => ("next hop", name),
        PausedName::Destination(name) => ("destination", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_a_table() {
        let status = |target, until: Option<&str>, for_seconds, known| PauseStatus {
            target,
            until: until.map(str::to_owned),
            for_seconds,
            known,
        };
        let pauses = [
            status(PausedName::Queue("lists".into()), None, None, true),
            status(PausedName::NextHop("smtp:mx\u{202e}".into()), Some("2026-11-20T17:46:16Z"), Some(7300), false),
        ];
        let lines = table(&pauses).into_iter().chain(pauses.iter().map(begun));
        insta::assert_snapshot!("pauses_table", lines.collect::<Vec<_>>().join("\n"));
    }
}
