//! The tables of a result: ratios, checks, medians, rounds, those that the file brings with it, and the comparison with
//! an earlier result.

use crate::against::{Change, ChangeVerdict};
use crate::numbers::{short, whole};
use crate::page::grid::{Cell, Grid, Head};
use crate::result::{Case, Comparison, Figure, ResultFile, Run, Table};
use crate::statistics::median;
use crate::words::{figure_name, limit_name, plural, sentence_case, shown_scale, systems_compared, usual_limit};

/// What has a column in the tables of medians and rounds.
enum Measure<'a> {
    Figure(Figure),
    /// By the percentile.
    Latency(&'a str),
}

impl<'a> Measure<'a> {
    /// What any run of the file has.
    fn all_of(file: &'a ResultFile) -> Vec<Measure<'a>> {
        let has = |figure: Figure| all_runs(file).any(|run| run.figure(figure).is_some());
        let figures = Figure::ALL.into_iter().filter(|figure| has(*figure)).map(Measure::Figure);
        let mut percentiles: Vec<&str> =
            all_runs(file).flat_map(|run| run.latency_seconds.keys().map(String::as_str)).collect();
        let place = |percentile: &str| percentile.parse().unwrap_or(f64::INFINITY);
        percentiles.sort_by(|one, other| place(one).total_cmp(&place(other)).then(one.cmp(other)));
        percentiles.dedup();
        figures.chain(percentiles.into_iter().map(Measure::Latency)).collect()
    }

    fn head(&self, unit: &str) -> Head {
        Head::figure(match self {
            Measure::Figure(figure) => sentence_case(&figure_name(*figure, unit)),
            Measure::Latency("100") => "Longest latency, ms".to_owned(),
            Measure::Latency(percentile) => format!("Latency of {percentile} %, ms"),
        })
    }

    fn of(&self, run: &Run) -> Option<f64> {
        let value = match self {
            Measure::Figure(figure) => run.figure(*figure),
            Measure::Latency(percentile) => run.latency_seconds.get(*percentile).copied(),
        };
        value.filter(|value| value.is_finite())
    }

    fn cell(&self, value: Option<f64>) -> Cell {
        Cell::scaled(
            value,
            match self {
                Measure::Figure(figure) => shown_scale(*figure),
                Measure::Latency(_) => 1e3,
            },
        )
    }
}

/// All ratios, with what was aimed at.
pub(super) fn ratios(file: &ResultFile) -> Grid {
    let has_case = file.comparisons.iter().any(|comparison| !comparison.case.is_empty());
    let mut heads = vec![Head::text("Systems"), Head::text("Figure")];
    heads.extend(has_case.then(|| case_head(file)));
    heads.extend([Head::figure("Ratio"), Head::figure("95 % interval"), Head::text("Aim"), Head::text("")]);
    let row = |comparison: &Comparison| {
        let figure = figure_name(comparison.figure, &file.unit);
        let mut row = vec![Cell::Text(systems_compared(file, comparison)), Cell::Text(figure)];
        row.extend(has_case.then(|| Cell::Text(comparison.case.clone())));
        row.push(Cell::scaled(Some(comparison.ratio).filter(|ratio| ratio.is_finite()), 1.0));
        row.push(Cell::Interval(comparison.interval));
        row.push(Cell::Text(comparison.aim.clone().unwrap_or_default()));
        row.push(Cell::aim(comparison.is_met));
        row
    };
    let rows = file.comparisons.iter().map(row).collect();
    Grid { label: "Ratios".to_owned(), class: "ratios", heads, rows }
}

/// What was checked besides.
pub(super) fn checks(file: &ResultFile) -> Grid {
    let rows = file
        .checks
        .iter()
        .map(|check| vec![Cell::Text(check.aim.clone()), Cell::Text(check.measured.clone()), Cell::aim(check.is_met)]);
    let heads = vec![Head::text("Aim"), Head::text("Measured"), Head::text("")];
    Grid { label: "Checks".to_owned(), class: "checks", heads, rows: rows.collect() }
}

/// The medians of each system in each case, and what limited most of its runs.
pub(super) fn medians(file: &ResultFile) -> Grid {
    let measures = Measure::all_of(file);
    let (has_case, has_limit) = (has_cases(file), has_limits(file));
    let mut heads = vec![Head::text("System")];
    heads.extend(has_case.then(|| case_head(file)));
    heads.push(Head::figure("Runs"));
    heads.extend(measures.iter().map(|measure| measure.head(&file.unit)));
    heads.extend(has_limit.then(|| Head::text("Limit")));
    let row = |case: &Case, system: &str| {
        let mut row = vec![Cell::Text(system.to_owned())];
        row.extend(has_case.then(|| Cell::Text(case.label.clone())));
        row.push(Cell::Text(case.runs(system).count().to_string()));
        row.extend(measures.iter().map(|measure| {
            let values: Vec<f64> = case.runs(system).filter_map(|run| measure.of(run)).collect();
            measure.cell(median(&values))
        }));
        row.extend(has_limit.then(|| Cell::Text(usual_limit(case, system).unwrap_or_default())));
        row
    };
    let systems = file.system_names();
    let is_measured = |case: &Case, system: &str| case.runs(system).next().is_some();
    let places = file.cases.iter().flat_map(|case| systems.iter().map(move |system| (case, *system)));
    let rows = places.filter(|(case, system)| is_measured(case, system)).map(|(case, system)| row(case, system));
    Grid { label: "Medians".to_owned(), class: "medians", heads, rows: rows.collect() }
}

/// Every run.
pub(super) fn rounds(file: &ResultFile) -> Grid {
    let measures = Measure::all_of(file);
    let (has_case, has_limit) = (has_cases(file), has_limits(file));
    let mut heads = vec![Head::text("Round")];
    heads.extend(has_case.then(|| case_head(file)));
    heads.extend([Head::text("System"), Head::figure(sentence_case(&plural(&file.unit))), Head::figure("Seconds")]);
    heads.extend(measures.iter().map(|measure| measure.head(&file.unit)));
    heads.extend(has_limit.then(|| Head::text("Limit")));
    let mut rows = Vec::new();
    for case in &file.cases {
        for (index, round) in case.rounds.iter().enumerate() {
            for (system, run) in round {
                let mut row = vec![Cell::Text((index + 1).to_string())];
                row.extend(has_case.then(|| Cell::Text(case.label.clone())));
                row.push(Cell::Text(system.clone()));
                row.push(Cell::Text(whole(run.count)));
                row.push(Cell::scaled(Some(run.seconds).filter(|seconds| seconds.is_finite()), 1.0));
                row.extend(measures.iter().map(|measure| measure.cell(measure.of(run))));
                row.extend(
                    has_limit.then(|| Cell::Text(run.limit.map_or_else(String::new, |l| limit_name(l).to_owned()))),
                );
                rows.push(row);
            }
        }
    }
    Grid { label: "Rounds".to_owned(), class: "rounds", heads, rows }
}

/// A table of the file.
pub(super) fn of_file(table: &Table) -> Grid {
    let is_figures = |column: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(column)).peekable();
        cells.peek().is_some() && cells.all(|cell| looks_like_figure(cell))
    };
    let head = |(column, text): (usize, &String)| {
        if column > 0 && is_figures(column) { Head::figure(text) } else { Head::text(text) }
    };
    let heads = table.columns.iter().enumerate().map(head).collect();
    let rows = table.rows.iter().map(|row| row.iter().cloned().map(Cell::Text).collect()).collect();
    Grid { label: table.title.clone(), class: "extra", heads, rows }
}

/// A result beside an earlier one.
pub(super) fn changes(file: &ResultFile, changes: &[Change]) -> Grid {
    let has_case = changes.iter().any(|change| !change.case.is_empty());
    let mut heads = vec![Head::text("System")];
    heads.extend(has_case.then(|| case_head(file)));
    heads.extend([Head::text("Figure"), Head::figure("Before"), Head::figure("Now"), Head::figure("Now / before")]);
    heads.extend([Head::figure("95 % interval"), Head::text("")]);
    let row = |change: &Change| {
        let scale = shown_scale(change.figure);
        let mut row = vec![Cell::Text(change.system.clone())];
        row.extend(has_case.then(|| Cell::Text(change.case.clone())));
        row.push(Cell::Text(figure_name(change.figure, &file.unit)));
        row.extend([change.old, change.new].map(|value| Cell::scaled(Some(value), scale)));
        row.push(Cell::Figure(Some((change.ratio, short(change.ratio)))));
        row.push(Cell::Interval(change.interval));
        let verdict = change.verdict();
        let is_good = match verdict {
            ChangeVerdict::Better => Some(true),
            ChangeVerdict::Worse => Some(false),
            ChangeVerdict::Small | ChangeVerdict::NotSeen | ChangeVerdict::TooFewRuns => None,
        };
        row.push(Cell::Verdict(is_good, verdict.name().to_owned()));
        row
    };
    let rows = changes.iter().map(row).collect();
    Grid { label: "Compared with the earlier result".to_owned(), class: "changes", heads, rows }
}

fn all_runs(file: &ResultFile) -> impl Iterator<Item = &Run> {
    file.cases.iter().flat_map(|case| &case.rounds).flat_map(|round| round.values())
}

fn has_cases(file: &ResultFile) -> bool {
    file.cases.len() > 1 || file.cases.iter().any(|case| !case.label.is_empty())
}

fn has_limits(file: &ResultFile) -> bool {
    all_runs(file).any(|run| run.limit.is_some())
}

fn case_head(file: &ResultFile) -> Head {
    Head::text(file.case_name.as_deref().map_or_else(|| "Case".to_owned(), sentence_case))
}

fn looks_like_figure(text: &str) -> bool {
    text.trim_start_matches(['-', '+']).starts_with(|first: char| first.is_ascii_digit())
}
