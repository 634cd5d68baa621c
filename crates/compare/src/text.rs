//! Results of a scenario as text for a terminal: a table of the systems, one of the ratios, notes.
//!
//! Figures are medians over the rounds, with the least and the greatest behind them.

use std::fmt::Write as _;

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use mail::printable;

use crate::numbers::{ABSENT, range, short};
use crate::result::{Case, Comparison, Figure, ResultFile};
use crate::statistics::median;
use crate::words::{case_text, figure_name, plural, sentence_case, shown_scale, systems_compared, usual_limit};

/// The figures of the table, with the heads of their columns.
const COLUMNS: [(Figure, &str); 5] = [
    (Figure::Rate, "RATE"),
    (Figure::CpuPerThousand, "CPU/1,000"),
    (Figure::MachineCpuPerThousand, "MACHINE CPU/1,000"),
    (Figure::LoadCpuPerThousand, "LOAD CPU/1,000"),
    (Figure::ResidentBytes, "MEMORY, MB"),
];

/// The results as text. `width` is that of the terminal, in columns.
#[must_use]
pub fn result_text(file: &ResultFile, width: u16) -> String {
    let rounds = file.cases.iter().map(|case| case.rounds.len()).max().unwrap_or(0);
    let noun = if rounds == 1 { "round" } else { "rounds" };
    let trial = if file.is_trial { ", a trial" } else { "" };
    let mut text = format!("{} ({rounds} {noun}{trial})\n", file.title);
    let _ =
        writeln!(text, "{} a second, CPU seconds: median (least to greatest)\n", sentence_case(&plural(&file.unit)));
    push_table(&mut text, &systems_table(file, width));
    if !file.comparisons.is_empty() {
        push_table(&mut text, &ratios_table(file, width));
    }
    file.notes.iter().for_each(|note| _ = writeln!(text, "{note}"));
    if let Some(reduced) = &file.reduced {
        let _ = writeln!(text, "Warning: a reduced run: {reduced}");
    }
    text.lines().map(|line| format!("{}\n", printable(line))).collect()
}

/// A ratio with its interval: `12.3 (11.9 to 12.8)`.
#[must_use]
pub fn ratio_text(comparison: &Comparison) -> String {
    let interval = comparison.interval.map(|interval| format!(" ({})", range(interval)));
    short(comparison.ratio) + &interval.unwrap_or_default()
}

fn systems_table(file: &ResultFile, width: u16) -> Table {
    let mut table = new_table(width);
    let names = COLUMNS.map(|(_, name)| name);
    table.set_header(["CASE", "SYSTEM"].into_iter().chain(names).chain(["LIMIT"]));
    for case in &file.cases {
        for name in file.system_names() {
            let figures = COLUMNS.map(|(figure, _)| figure_text(case, name, figure));
            let begin = [case_text(file, &case.label), name.to_owned()];
            table.add_row(
                begin.into_iter().chain(figures).chain([usual_limit(case, name).unwrap_or_else(|| ABSENT.to_owned())]),
            );
        }
    }
    drop_empty_cases(&mut table, file);
    table
}

fn figure_text(case: &Case, system: &str, figure: Figure) -> String {
    let scale = shown_scale(figure);
    let values: Vec<f64> = case.figures(system, figure).into_iter().map(|value| value * scale).collect();
    let Some(middle) = median(&values) else { return ABSENT.to_owned() };
    let ends = values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
    if values.len() == 1 { short(middle) } else { format!("{} ({})", short(middle), range(ends)) }
}

fn ratios_table(file: &ResultFile, width: u16) -> Table {
    let mut table = new_table(width);
    table.set_header(["CASE", "RATIO OF", "FIGURE", "MEDIAN (95 % INTERVAL)", "AIM", ""]);
    table.add_rows(file.comparisons.iter().map(|comparison| {
        let met = match comparison.is_met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        [
            case_text(file, &comparison.case),
            systems_compared(file, comparison),
            figure_name(comparison.figure, &file.unit),
            ratio_text(comparison),
            comparison.aim.clone().unwrap_or_default(),
            met.to_owned(),
        ]
    }));
    drop_empty_cases(&mut table, file);
    table
}

fn new_table(width: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    table
}

/// The first column is the case; it is empty if nothing is varied.
fn drop_empty_cases(table: &mut Table, file: &ResultFile) {
    if file.cases.iter().all(|case| case.label.is_empty()) {
        table.column_iter_mut().take(1).for_each(|column| _ = column.set_constraint(ColumnConstraint::Hidden));
    }
}

fn push_table(text: &mut String, table: &Table) {
    table.lines().for_each(|line| _ = writeln!(text, "{}", line.trim_end()));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"format": 1, "name": "x", "title": "Two servers", "command": "c", "started": "s",
        "machine": [], "unit": "message", "case_name": "connections",
        "systems": [{"name": "a"}, {"name": "b"}],
        "cases": [{"label": "10", "value": 10.0, "rounds": [
            {"a": {"count": 1000, "seconds": 1.0, "cpu_seconds": 0.5, "resident_bytes": 5000000, "limit": "disk"},
             "b": {"count": 1000, "seconds": 2.0, "cpu_seconds": 2.0}},
            {"a": {"count": 1000, "seconds": 1.0, "cpu_seconds": 0.4, "limit": "waiting"},
             "b": {"count": 1000, "seconds": 2.0, "cpu_seconds": 2.0}},
            {"a": {"count": 1000, "seconds": 1.0, "cpu_seconds": 0.3, "limit": "disk"},
             "b": {"count": 1000, "seconds": 2.0, "cpu_seconds": 2.0}}]}],
        "comparisons": [{"figure": "rate", "over": "a", "under": "b", "case": "10", "ratio": 2.0,
            "aim": "at least 3", "is_met": false}],
        "notes": ["c is left out."]}"#;

    #[test]
    fn a_result_is_a_table_of_systems_a_table_of_ratios_and_notes() {
        let text = result_text(&serde_json::from_str(FILE).unwrap(), 200);
        for part in [
            "Two servers (3 rounds)",
            "0.400 (0.300 to 0.500)",
            "disk (2 of 3)",
            "connections 10",
            "a / b",
            "at least 3",
            "MISSED",
            "c is left out.",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        let without_cases = FILE.replace("\"10\"", "\"\"").replace("\"value\": 10.0", "\"value\": null");
        let text = result_text(&serde_json::from_str(&without_cases).unwrap(), 200);
        assert!(!text.contains("CASE"), "{text}");
    }
}
