//! Charts with a row for each system: bars of medians, or ratios on an axis by powers. Each row shows its interval as
//! a whisker, and each run as a dot.

use crate::numbers::range;
use crate::page::axis::Axis;
use crate::page::chart::{
    Frame, LETTER_WIDTH, Px, TICKS_HEIGHT, WIDTH, colour_class, figure, fitted, label, stroke, text_width, tick_labels,
};
use crate::page::html::Html;

const LEFT: f64 = 10.0;
const RIGHT: f64 = WIDTH - 22.0;
const TOP: f64 = 4.0;
/// The line with the name of a group.
const GROUP_HEIGHT: f64 = 22.0;
/// The line with the name and the figure.
const NAME_HEIGHT: f64 = 18.0;
const BAR_HEIGHT: f64 = 14.0;
/// The line with a dot for each run.
const RUNS_HEIGHT: f64 = 10.0;
const GAP: f64 = 8.0;
const CAP: f64 = 4.0;

/// How the figure of a row is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A bar from 0.
    Bar,
    /// A point, and a line at 1 in the whole chart.
    Ratio,
}

/// A chart with rows. All figures must be drawable.
pub(super) struct RowChart {
    /// What the axis shows, with its unit.
    pub(super) caption: String,
    pub(super) axis: Axis,
    pub(super) mark: Mark,
    pub(super) rows: Vec<Row>,
}

/// A row.
pub(super) struct Row {
    /// A heading, shown where it changes; empty for none.
    pub(super) group: String,
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) figure: f64,
    /// The figure for people.
    pub(super) text: String,
    pub(super) interval: Option<(f64, f64)>,
    /// The figure of each run.
    pub(super) runs: Vec<f64>,
}

impl Row {
    /// Everything that the axis must show.
    pub(super) fn figures(&self) -> impl Iterator<Item = f64> {
        let ends = self.interval.map_or([self.figure; 2], |(low, high)| [low, high]);
        self.runs.iter().copied().chain([self.figure]).chain(ends)
    }
}

impl RowChart {
    /// Adds the chart to a page.
    pub(super) fn draw(&self, html: &mut Html) {
        let rows_end = TOP + (0..self.rows.len()).map(|index| self.row_height(index)).sum::<f64>();
        let frame = Frame { caption: &self.caption, description: &self.description(), height: rows_end + TICKS_HEIGHT };
        figure(html, &frame, |_| (), |html| self.draw_rows(html, rows_end));
    }

    fn draw_rows(&self, html: &mut Html, rows_end: f64) {
        for (figure, _) in &self.axis.ticks {
            stroke(html, "g", (self.x(*figure), TOP), (self.x(*figure), rows_end));
        }
        if self.mark == Mark::Ratio {
            stroke(html, "one", (self.x(1.0), TOP), (self.x(1.0), rows_end));
        }
        let mut top = TOP;
        for (index, row) in self.rows.iter().enumerate() {
            if self.begins_group(index) {
                let name = fitted(&row.group, RIGHT - LEFT);
                html.line("text", &[("class", &"h"), ("x", &Px(LEFT)), ("y", &Px(top + 15.0))], name);
            }
            let bottom = top + self.row_height(index);
            html.block("g", &[("class", &colour_class(row.colour))], |html| self.draw_row(html, row, bottom));
            top = bottom;
        }
        tick_labels(html, &self.axis, (LEFT, RIGHT), rows_end);
    }

    fn draw_row(&self, html: &mut Html, row: &Row, bottom: f64) {
        let runs_middle = bottom - GAP - RUNS_HEIGHT / 2.0;
        let runs_height = if self.has_runs() { RUNS_HEIGHT } else { 0.0 };
        let bar_top = bottom - GAP - runs_height - BAR_HEIGHT;
        let middle = bar_top + BAR_HEIGHT / 2.0;
        let figure_left = RIGHT - text_width(&row.text) - LETTER_WIDTH;
        label(html, (LEFT, bar_top - 5.0), "start", fitted(&row.name, figure_left - LEFT));
        html.line(
            "text",
            &[("class", &"f"), ("x", &Px(RIGHT)), ("y", &Px(bar_top - 5.0)), ("text-anchor", &"end")],
            &row.text,
        );
        if self.mark == Mark::Bar {
            let width = Px((self.x(row.figure) - LEFT).max(0.5));
            let (x, y) = (Px(LEFT), Px(bar_top));
            html.leaf("rect", &[("x", &x), ("y", &y), ("width", &width), ("height", &BAR_HEIGHT)]);
        }
        if self.mark == Mark::Ratio {
            html.leaf("circle", &[("cx", &Px(self.x(row.figure))), ("cy", &Px(middle)), ("r", &4)]);
        }
        if let Some((low, high)) = row.interval {
            draw_whisker(html, (self.x(low), self.x(high)), middle);
        }
        for run in &row.runs {
            html.leaf("circle", &[("class", &"r"), ("cx", &Px(self.x(*run))), ("cy", &Px(runs_middle)), ("r", &2.5)]);
        }
    }

    fn x(&self, figure: f64) -> f64 {
        LEFT + self.axis.place(figure) * (RIGHT - LEFT)
    }

    fn begins_group(&self, index: usize) -> bool {
        let group = &self.rows[index].group;
        !group.is_empty() && (index == 0 || self.rows[index - 1].group != *group)
    }

    fn has_runs(&self) -> bool {
        self.rows.iter().any(|row| !row.runs.is_empty())
    }

    fn row_height(&self, index: usize) -> f64 {
        let group = if self.begins_group(index) { GROUP_HEIGHT } else { 0.0 };
        let runs = if self.has_runs() { RUNS_HEIGHT } else { 0.0 };
        group + NAME_HEIGHT + BAR_HEIGHT + runs + GAP
    }

    fn description(&self) -> String {
        let row = |row: &Row| {
            let interval = row.interval.map(|interval| format!(" ({})", range(interval))).unwrap_or_default();
            let group = if row.group.is_empty() { String::new() } else { format!("{}, ", row.group) };
            format!("{group}{}: {}{interval}", row.name, row.text)
        };
        self.rows.iter().map(row).collect::<Vec<_>>().join("; ")
    }
}

fn draw_whisker(html: &mut Html, (low, high): (f64, f64), middle: f64) {
    stroke(html, "w", (low, middle), (high, middle));
    for end in [low, high] {
        stroke(html, "w", (end, middle - CAP), (end, middle + CAP));
    }
}
