//! Which charts a result has: one for each figure, with a bar for each system or, in a sweep, a curve; the ratios; and
//! the curves that the file brings with it.

use crate::numbers::short;
use crate::page::axis::{Axis, is_drawable};
use crate::page::html::Html;
use crate::page::line_chart::{Curve, LineChart, Point};
use crate::page::row_chart::{Mark, Row, RowChart};
use crate::result::{Case, Chart, Comparison, Figure, ResultFile};
use crate::statistics::{median, median_interval};
use crate::words::{case_text, figure_name, sentence_case, shown_scale, systems_compared};

/// Figures with a chart of their own.
const FIGURES: [Figure; 4] =
    [Figure::Rate, Figure::CpuPerThousand, Figure::MachineCpuPerThousand, Figure::ResidentBytes];
/// More ratios than this are only in their table.
const RATIOS_MAX: usize = 16;

/// The median of a system in a case with its interval and its runs, in the unit in which it is shown.
struct Measured {
    median: f64,
    interval: Option<(f64, f64)>,
    runs: Vec<f64>,
}

impl Measured {
    /// None without a run that has this figure.
    fn new(case: &Case, system: &str, figure: Figure) -> Option<Measured> {
        let scale = shown_scale(figure);
        let scaled = case.figures(system, figure).into_iter().map(|value| value * scale);
        let runs: Vec<f64> = scaled.filter(|value| is_drawable(*value)).collect();
        Some(Measured { median: median(&runs)?, interval: median_interval(&runs), runs })
    }
}

/// Draws all charts of a result. Nothing is drawn of what was not measured.
pub(super) fn draw(html: &mut Html, file: &ResultFile) {
    html.block("div", &[("class", &"charts")], |html| {
        let sweep = sweep(file);
        for figure in FIGURES {
            match &sweep {
                Some(cases) => draw_sweep(html, file, cases, figure),
                None => draw_bars(html, file, figure),
            }
        }
        draw_ratios(html, file);
        file.charts.iter().for_each(|chart| draw_curves(html, chart));
    });
}

/// The cases with their values by rising value, if every case has one and they differ.
fn sweep(file: &ResultFile) -> Option<Vec<(f64, &Case)>> {
    let value = |case: &Case| case.value.filter(|value| is_drawable(*value));
    let mut cases = file.cases.iter().map(|case| Some((value(case)?, case))).collect::<Option<Vec<_>>>()?;
    cases.sort_by(|one, other| one.0.total_cmp(&other.0));
    (cases.len() > 1 && cases.windows(2).all(|pair| pair[0].0 < pair[1].0)).then_some(cases)
}

fn draw_bars(html: &mut Html, file: &ResultFile, figure: Figure) {
    let mut rows = Vec::new();
    for case in &file.cases {
        for (colour, system) in file.system_names().into_iter().enumerate() {
            let Some(measured) = Measured::new(case, system, figure) else { continue };
            rows.push(Row {
                group: case_text(file, &case.label),
                name: system.to_owned(),
                colour,
                figure: measured.median,
                text: short(measured.median),
                interval: measured.interval,
                runs: measured.runs,
            });
        }
    }
    if rows.is_empty() {
        return;
    }
    let figures = rows.iter().flat_map(Row::figures);
    let name = figure_name(figure, &file.unit);
    let axis = Axis::from_zero(figures);
    RowChart { caption: sentence_case(&name), axis, mark: Mark::Bar, rows }.draw(html);
}

fn draw_sweep(html: &mut Html, file: &ResultFile, cases: &[(f64, &Case)], figure: Figure) {
    let curve = |(colour, system): (usize, &str)| {
        let point = |(x, case): &(f64, &Case)| {
            let Measured { median, interval, runs } = Measured::new(case, system, figure)?;
            Some(Point { x: *x, y: median, interval, runs })
        };
        Curve { name: system.to_owned(), colour, points: cases.iter().filter_map(point).collect() }
    };
    let curves = file.system_names().into_iter().enumerate().map(curve);
    let curves: Vec<Curve> = curves.filter(|curve| !curve.points.is_empty()).collect();
    if curves.is_empty() {
        return;
    }
    let name = figure_name(figure, &file.unit);
    LineChart {
        caption: sentence_case(&name),
        x_name: file.case_name.clone().unwrap_or_default(),
        y_name: name,
        x_axis: Axis::through(cases.iter().map(|(value, case)| (*value, case.label.clone())).collect()),
        curves,
    }
    .draw(html);
}

fn draw_ratios(html: &mut Html, file: &ResultFile) {
    let is_shown = |ratio: f64| is_drawable(ratio) && ratio > 0.0;
    let row = |comparison: &Comparison| Row {
        group: figure_name(comparison.figure, &file.unit),
        name: ratio_name(file, comparison),
        colour: file.system_names().iter().position(|name| *name == comparison.over).unwrap_or_default(),
        figure: comparison.ratio,
        text: short(comparison.ratio),
        interval: comparison.interval.filter(|(low, high)| is_shown(*low) && is_shown(*high)),
        runs: Vec::new(),
    };
    let shown = file.comparisons.iter().filter(|comparison| is_shown(comparison.ratio));
    let mut rows: Vec<Row> = shown.map(row).collect();
    if rows.is_empty() || rows.len() > RATIOS_MAX {
        return;
    }
    // A group has one heading, wherever its rows were.
    let groups: Vec<String> = rows.iter().map(|row| row.group.clone()).collect();
    rows.sort_by_key(|row| groups.iter().position(|group| *group == row.group));
    let axis = Axis::around_one(rows.iter().flat_map(Row::figures));
    RowChart { caption: "Ratios, on an axis by powers".to_owned(), axis, mark: Mark::Ratio, rows }.draw(html);
}

fn ratio_name(file: &ResultFile, comparison: &Comparison) -> String {
    let systems = systems_compared(file, comparison);
    match case_text(file, &comparison.case) {
        case if case.is_empty() || comparison.under_case.is_some() => systems,
        case => format!("{systems}, {case}"),
    }
}

fn draw_curves(html: &mut Html, chart: &Chart) {
    let is_point = |(x, y): &&(f64, f64)| is_drawable(*x) && is_drawable(*y);
    let point = |(x, y): &(f64, f64)| Point { x: *x, y: *y, interval: None, runs: Vec::new() };
    let curves = chart.series.iter().enumerate().map(|(colour, series)| {
        let points = series.points.iter().filter(is_point).map(point).collect();
        Curve { name: series.name.clone(), colour, points }
    });
    let curves: Vec<Curve> = curves.filter(|curve| !curve.points.is_empty()).collect();
    if curves.is_empty() {
        return;
    }
    let x_figures: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.x)).collect();
    LineChart {
        caption: chart.title.clone(),
        x_name: chart.x_name.clone(),
        y_name: chart.y_name.clone(),
        x_axis: Axis::around(&x_figures),
        curves,
    }
    .draw(html);
}
