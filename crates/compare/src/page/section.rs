//! One result on the page: question, answer, charts, tables, configurations and commands, machine, notes.

use crate::against::Changes;
use crate::answer::answer;
use crate::numbers::{short, whole};
use crate::page::charts;
use crate::page::grid::{Grid, draw_verdict};
use crate::page::html::Html;
use crate::page::tables;
use crate::result::{ResultFile, System};
use crate::statistics::median_interval;
use crate::words::sentence_case;

/// Adds a result with this id to the page. Its title is left out if it is that of the page.
pub(super) fn draw(html: &mut Html, id: &str, file: &ResultFile, page_title: &str, changes: Option<&Changes>) {
    html.block("section", &[("id", &id)], |html| {
        draw_head(html, file, page_title);
        if let Some(changes) = changes {
            draw_changes(html, file, changes);
        }
        charts::draw(html, file);
        draw_hint(html, file);
        titled(html, "Ratios", &tables::ratios(file));
        titled(html, "Checks", &tables::checks(file));
        titled(html, "Medians", &tables::medians(file));
        for table in &file.tables {
            titled(html, &table.title, &tables::of_file(table));
        }
        let rounds = tables::rounds(file);
        if !rounds.rows.is_empty() {
            folded(html, "Rounds: every run", |html| rounds.draw(html));
        }
        if file.systems.iter().any(has_setup) {
            folded(html, "Configurations and commands", |html| draw_systems(html, file));
        }
        draw_machine(html, file);
        draw_notes(html, file);
    });
}

/// What the result asks, or else its title.
pub(super) fn heading(file: &ResultFile) -> &str {
    file.question.as_deref().filter(|question| !question.trim().is_empty()).unwrap_or(&file.title)
}

/// How many aims and checks there are, and how many were met.
pub(super) fn draw_aims(html: &mut Html, file: &ResultFile) {
    let aims = file.comparisons.iter().filter_map(|comparison| comparison.is_met);
    let aims: Vec<bool> = aims.chain(file.checks.iter().filter_map(|check| check.is_met)).collect();
    let met = aims.iter().filter(|is_met| **is_met).count();
    match aims.len() {
        0 => {}
        1 => draw_verdict(html, met == 1, if met == 1 { "aim met" } else { "aim missed" }),
        count => draw_verdict(html, met == count, &format!("{met} of {count} aims met")),
    }
}

/// What was left out or made smaller, as a sentence; None for a complete measurement.
pub(super) fn reduction(file: &ResultFile) -> Option<String> {
    match (file.is_trial, &file.reduced) {
        (true, Some(reduced)) => Some(format!("This was a trial, whose figures are for a first look only: {reduced}.")),
        (true, None) => Some(
            "This was a trial, smaller or shorter than the measurement: its figures are for a first look only."
                .to_owned(),
        ),
        (false, Some(reduced)) => Some(format!("This was a reduced run: {reduced}.")),
        (false, None) => None,
    }
}

fn draw_head(html: &mut Html, file: &ResultFile, page_title: &str) {
    let heading = heading(file);
    if heading != page_title {
        html.line("h2", &[], heading);
    }
    if file.title != heading && file.title != page_title {
        html.line("p", &[("class", &"title")], &file.title);
    }
    if let Some(answer) = answer(file) {
        html.line("p", &[("class", &"answer")], answer);
    }
    if let Some(text) = reduction(file) {
        html.line("p", &[("class", &"warning")], text);
    }
    html.block("p", &[("class", &"facts")], |html| {
        html.words("time", &[("datetime", &file.started)], &file.started);
        if let Some(seconds) = file.seconds.filter(|seconds| seconds.is_finite()) {
            html.text(format_args!(" · took {}", duration(seconds)));
        }
        let rounds = rounds(file);
        html.text(format_args!(" · {rounds} {} ", if rounds == 1 { "round" } else { "rounds" }));
        if file.cases.len() > 1 {
            html.text(format_args!("in each of {} cases ", file.cases.len()));
        }
        draw_aims(html, file);
    });
}

fn draw_changes(html: &mut Html, file: &ResultFile, changes: &Changes) {
    html.line("h3", &[], format_args!("Compared with the result of {}", changes.old_started));
    for warning in &changes.warnings {
        html.line("p", &[("class", &"warning")], format_args!("{warning}."));
    }
    tables::changes(file, &changes.changes).draw(html);
}

/// How the charts are read.
fn draw_hint(html: &mut Html, file: &ResultFile) {
    let rounds = rounds(file);
    if rounds == 0 {
        return;
    }
    let text = match median_interval(&vec![1.0; rounds]) {
        Some(_) => "lines with two ends show the interval that holds the true value with 95 % confidence".to_owned(),
        None => format!("{rounds} rounds are too few for an interval of 95 % confidence"),
    };
    let text = format!("Bars and curves show medians, small dots the single runs; {text}.");
    html.line("p", &[("class", &"hint")], text);
}

/// The rounds of the case that has most.
fn rounds(file: &ResultFile) -> usize {
    file.cases.iter().map(|case| case.rounds.len()).max().unwrap_or_default()
}

fn titled(html: &mut Html, title: &str, grid: &Grid) {
    if !grid.rows.is_empty() {
        html.line("h3", &[], title);
        grid.draw(html);
    }
}

fn folded(html: &mut Html, title: &str, content: impl FnOnce(&mut Html)) {
    html.block("details", &[], |html| {
        html.block("summary", &[], |html| html.words("h3", &[], title));
        content(html);
    });
}

fn has_setup(system: &System) -> bool {
    !system.commands.is_empty() || system.configuration.is_some() || system.version.is_some()
}

fn draw_systems(html: &mut Html, file: &ResultFile) {
    for system in file.systems.iter().filter(|system| has_setup(system)) {
        html.block("h4", &[], |html| {
            html.text(&system.name);
            if let Some(version) = &system.version {
                html.words("small", &[], format_args!(" {version}"));
            }
        });
        if !system.commands.is_empty() {
            code(html, &format!("Commands for {}", system.name), &system.commands.join("\n"));
        }
        if let Some(configuration) = &system.configuration {
            code(html, &format!("Configuration of {}", system.name), configuration.trim_end());
        }
    }
}

fn code(html: &mut Html, label: &str, text: &str) {
    html.line("p", &[("class", &"label")], label);
    let attributes: [(&str, &dyn std::fmt::Display); 3] =
        [("role", &"region"), ("aria-label", &label), ("tabindex", &0)];
    html.block("pre", &attributes, |html| html.words("code", &[], text));
}

fn draw_machine(html: &mut Html, file: &ResultFile) {
    html.line("h3", &[], "Machine and command");
    html.block("dl", &[], |html| {
        for property in &file.machine {
            html.block("div", &[], |html| {
                html.words("dt", &[], sentence_case(&property.name));
                html.words("dd", &[], &property.value);
            });
        }
        html.block("div", &[], |html| {
            html.words("dt", &[], "Measured by");
            html.element("dd", &[], |html| html.words("code", &[], &file.command));
        });
    });
}

fn draw_notes(html: &mut Html, file: &ResultFile) {
    if file.notes.is_empty() {
        return;
    }
    html.line("h3", &[], "Notes");
    html.block("ul", &[], |html| file.notes.iter().for_each(|note| html.line("li", &[], note)));
}

/// A time span in the largest unit that leaves no small part.
fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round();
    match seconds {
        ..120.0 => format!("{} s", short(seconds)),
        120.0..7200.0 => format!("{minutes} minutes"),
        _ => format!("{} hours", whole((minutes / 60.0).round() as u64)),
    }
}
