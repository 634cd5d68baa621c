//! Results compared with earlier ones, as a table for the terminal.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use crate::against::{Against, Change, ChangeVerdict, Changes};
use crate::numbers::{ABSENT, range, short};
use crate::result::ResultFile;
use crate::words::{case_text, figure_name, shown_scale};

/// The comparison of these new results as text: a table, warnings, and a line that counts. `width` is that of the
/// terminal, in columns.
#[must_use]
pub fn against_text(against: &Against, results: &[ResultFile], width: u16) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table.set_header(["RESULT", "SYSTEM", "FIGURE", "OLD", "NEW", "NEW/OLD", "95 % INTERVAL", ""]);
    let mut remarks = String::new();
    for (file, changes) in results.iter().zip(&against.results) {
        if let Some(changes) = changes {
            table.add_rows(changes.changes.iter().map(|change| row(file, change)));
            remarks += &warnings(&file.name, changes);
        }
    }
    without_partner(against, results).iter().for_each(|remark| _ = writeln!(remarks, "{remark}"));
    let mut text = String::new();
    if !table.is_empty() {
        text = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        text.push('\n');
    }
    text + &remarks + &summary(against) + "\n"
}

/// The results that were not compared, since only one side has any of their name: as sentences without an end.
pub(crate) fn without_partner(against: &Against, results: &[ResultFile]) -> Vec<String> {
    let is_new = |(_, changes): &(&ResultFile, &Option<Changes>)| changes.is_none();
    let only_new: Vec<&str> =
        results.iter().zip(&against.results).filter(is_new).map(|(file, _)| file.name.as_str()).collect();
    let only_old: Vec<&str> = against.only_old.iter().map(String::as_str).collect();
    let sentence = |side: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("Only in the {side} results, so not compared: {}", names.join(", ")))
    };
    sentence("new", &only_new).into_iter().chain(sentence("old", &only_old)).collect()
}

/// How many figures are better and worse.
pub(crate) fn summary(against: &Against) -> String {
    let [better, worse, small, not_seen, too_few] = [
        ChangeVerdict::Better,
        ChangeVerdict::Worse,
        ChangeVerdict::Small,
        ChangeVerdict::NotSeen,
        ChangeVerdict::TooFewRuns,
    ]
    .map(|verdict| against.count(verdict));
    let mut text = format!("{better} better, {worse} worse, {} without a notable difference", small + not_seen);
    if too_few > 0 {
        let _ = write!(text, ", {too_few} with too few runs");
    }
    text
}

fn row(file: &ResultFile, change: &Change) -> [String; 8] {
    let scale = shown_scale(change.figure);
    let place = [file.name.clone(), case_text(file, &change.case)].join(" ");
    [
        place.trim_end().to_owned(),
        change.system.clone(),
        figure_name(change.figure, &file.unit),
        short(change.old * scale),
        short(change.new * scale),
        short(change.ratio),
        change.interval.map_or_else(|| ABSENT.to_owned(), range),
        change.verdict().name().to_owned(),
    ]
}

fn warnings(name: &str, changes: &Changes) -> String {
    changes.warnings.iter().map(|warning| format!("warning: {name}: {warning}\n")).collect()
}
