//! Charts with curves: medians over the cases of a sweep with their intervals, or any other curves.
//!
//! Each curve has a marker and a dash of its own besides its colour, so they differ in grey too.

use crate::numbers::short;
use crate::page::axis::Axis;
use crate::page::chart::{
    AXIS_NAME_HEIGHT, Frame, LETTER_WIDTH, Px, TICKS_HEIGHT, WIDTH, axis_name, colour_class, figure, fitted, label,
    stroke, text_width, tick_labels,
};
use crate::page::html::Html;

const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 8.0;
/// Below the name of the vertical axis, if the caption does not have it.
const NAMED_TOP: f64 = 28.0;
const BOTTOM: f64 = 228.0;
const CAP: f64 = 3.5;
/// Intervals of several curves at the same place are drawn this far from one another.
const BESIDE: f64 = 5.0;
/// More points than this have no marker each.
const MARKERS_MAX: usize = 40;
/// Shapes around the point 0, 0: circle, square, triangle, diamond, triangle on its tip.
const MARKERS: [&str; 5] = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.5L4.5 3.5H-4.5z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.5L4.5 -3.5H-4.5z",
];
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// A chart with curves. All figures must be drawable.
pub(super) struct LineChart {
    pub(super) caption: String,
    pub(super) x_name: String,
    pub(super) y_name: String,
    pub(super) x_axis: Axis,
    pub(super) curves: Vec<Curve>,
}

/// A curve.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) colour: usize,
    /// By rising x.
    pub(super) points: Vec<Point>,
}

/// A point of a curve.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) interval: Option<(f64, f64)>,
    /// The figure of each run.
    pub(super) runs: Vec<f64>,
}

/// The vertical axis, the left end of the horizontal one, and the upper end of the vertical one.
struct Plot<'a> {
    chart: &'a LineChart,
    y_axis: Axis,
    left: f64,
    top: f64,
}

impl Point {
    /// Everything that the vertical axis must show.
    fn figures(&self) -> impl Iterator<Item = f64> {
        let ends = self.interval.map_or([self.y; 2], |(low, high)| [low, high]);
        self.runs.iter().copied().chain([self.y]).chain(ends)
    }
}

impl LineChart {
    /// Adds the chart to a page.
    pub(super) fn draw(&self, html: &mut Html) {
        let frame = Frame {
            caption: &self.caption,
            description: &self.description(),
            height: BOTTOM + TICKS_HEIGHT + AXIS_NAME_HEIGHT,
        };
        let y_axis = Axis::from_zero(self.figures());
        let widest = y_axis.ticks.iter().map(|tick| text_width(&tick.1)).fold(0.0, f64::max);
        let top = if self.caption.eq_ignore_ascii_case(&self.y_name) { TOP } else { NAMED_TOP };
        let plot = Plot { chart: self, y_axis, left: widest + 2.0 * LETTER_WIDTH, top };
        figure(html, &frame, |html| self.legend(html), |html| plot.draw(html));
    }

    fn figures(&self) -> impl Iterator<Item = f64> {
        self.curves.iter().flat_map(|curve| &curve.points).flat_map(Point::figures)
    }

    fn legend(&self, html: &mut Html) {
        html.block("ul", &[("class", &"legend")], |html| {
            for curve in &self.curves {
                html.block("li", &[], |html| {
                    let class = colour_class(curve.colour);
                    html.element(
                        "svg",
                        &[("class", &class), ("viewBox", &"0 0 32 12"), ("aria-hidden", &"true")],
                        |html| {
                            html.leaf(
                                "path",
                                &[("class", &"l"), ("d", &"M1 6H31"), ("stroke-dasharray", &dash(curve))],
                            );
                            draw_marker(html, curve, 16.0, 6.0);
                        },
                    );
                    html.text(&curve.name);
                });
            }
        });
    }

    fn description(&self) -> String {
        let at = |point: &Point| format!("{} at {}", short(point.y), short(point.x));
        let curve = |curve: &Curve| match &curve.points[..] {
            [] => format!("{}: no points", curve.name),
            [point] => format!("{}: {}", curve.name, at(point)),
            [first, .., last] => format!("{}: from {} to {}", curve.name, at(first), at(last)),
        };
        let curves: Vec<String> = self.curves.iter().map(curve).collect();
        format!("{} over {}. {}", self.y_name, self.x_name, curves.join("; "))
    }
}

impl Plot<'_> {
    fn draw(&self, html: &mut Html) {
        if self.top == NAMED_TOP {
            label(html, (2.0, 13.0), "start", fitted(&self.chart.y_name, WIDTH - 4.0));
        }
        for (figure, text) in &self.y_axis.ticks {
            let y = self.y(*figure);
            stroke(html, "g", (self.left, y), (RIGHT, y));
            label(html, (self.left - LETTER_WIDTH, y + 4.0), "end", text);
        }
        for (figure, _) in &self.chart.x_axis.ticks {
            stroke(html, "g", (self.x(*figure), BOTTOM), (self.x(*figure), BOTTOM + 4.0));
        }
        tick_labels(html, &self.chart.x_axis, (self.left, RIGHT), BOTTOM);
        axis_name(html, &self.chart.x_name, (self.left, RIGHT), BOTTOM);
        for (index, curve) in self.chart.curves.iter().enumerate() {
            html.block("g", &[("class", &colour_class(curve.colour))], |html| self.draw_curve(html, index, curve));
        }
    }

    fn draw_curve(&self, html: &mut Html, index: usize, curve: &Curve) {
        let shift = (index as f64 - (self.chart.curves.len() - 1) as f64 / 2.0) * BESIDE;
        let mut path = String::new();
        for point in &curve.points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            path += &format!("{letter}{} {}", Px(self.x(point.x)), Px(self.y(point.y)));
        }
        html.leaf("path", &[("class", &"l"), ("d", &path), ("stroke-dasharray", &dash(curve))]);
        for point in &curve.points {
            let beside = (self.x(point.x) + shift).clamp(self.left, RIGHT);
            for run in &point.runs {
                html.leaf("circle", &[("class", &"r"), ("cx", &Px(beside)), ("cy", &Px(self.y(*run))), ("r", &2)]);
            }
            if let Some((low, high)) = point.interval {
                draw_whisker(html, beside, (self.y(low), self.y(high)));
            }
            if curve.points.len() <= MARKERS_MAX {
                draw_marker(html, curve, self.x(point.x), self.y(point.y));
            }
        }
    }

    fn x(&self, figure: f64) -> f64 {
        self.left + self.chart.x_axis.place(figure) * (RIGHT - self.left)
    }

    fn y(&self, figure: f64) -> f64 {
        BOTTOM - self.y_axis.place(figure) * (BOTTOM - self.top)
    }
}

fn draw_marker(html: &mut Html, curve: &Curve, x: f64, y: f64) {
    let place = format!("translate({} {})", Px(x), Px(y));
    html.leaf("path", &[("class", &"m"), ("d", &MARKERS[curve.colour % MARKERS.len()]), ("transform", &place)]);
}

fn dash(curve: &Curve) -> &'static str {
    DASHES[curve.colour % DASHES.len()]
}

fn draw_whisker(html: &mut Html, x: f64, (low, high): (f64, f64)) {
    stroke(html, "e", (x, low), (x, high));
    for end in [low, high] {
        stroke(html, "e", (x - CAP, end), (x + CAP, end));
    }
}
