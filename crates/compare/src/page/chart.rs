//! What all charts share: the frame with caption, title and description, labels, and widths of text.
//!
//! Charts are drawn in units of which [`WIDTH`] are the whole width; a page of 400 pixels shows nearly as many, so
//! that their text stays readable.

use std::fmt::{self, Display};

use crate::page::axis::Axis;
use crate::page::html::Html;

/// The width of every chart.
pub(super) const WIDTH: f64 = 440.0;
/// From the last line of a plot to the lower edge of the labels of its ticks.
pub(super) const TICKS_HEIGHT: f64 = 21.0;
/// The name of an axis below them.
pub(super) const AXIS_NAME_HEIGHT: f64 = 17.0;
/// About the width of a letter; fonts differ.
pub(super) const LETTER_WIDTH: f64 = 6.9;
/// Text keeps this distance from the edges.
const EDGE: f64 = 2.0;
/// Colours before they repeat; the style has one for each.
const COLOURS: usize = 6;

/// A length, rounded to a tenth.
pub(super) struct Px(pub(super) f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", (self.0 * 10.0).round() / 10.0)
    }
}

/// Texts around a chart.
pub(super) struct Frame<'a> {
    /// Shown above it.
    pub(super) caption: &'a str,
    /// What the chart shows, for those who do not see it.
    pub(super) description: &'a str,
    /// In units of the chart.
    pub(super) height: f64,
}

/// A figure with a caption, a legend if there is one, and a drawing.
pub(super) fn figure(html: &mut Html, frame: &Frame<'_>, legend: impl FnOnce(&mut Html), draw: impl FnOnce(&mut Html)) {
    let (title, description) = (html.unique_id(), html.unique_id());
    html.block("figure", &[], |html| {
        html.words("figcaption", &[], frame.caption);
        legend(html);
        let view = format!("0 0 {WIDTH} {}", Px(frame.height));
        let label = format!("{title} {description}");
        html.block("svg", &[("viewBox", &view), ("role", &"img"), ("aria-labelledby", &label)], |html| {
            html.line("title", &[("id", &title)], frame.caption);
            html.line("desc", &[("id", &description)], frame.description);
            draw(html);
        });
    });
}

/// The class of a system or curve, which gives it its colour.
pub(super) fn colour_class(number: usize) -> String {
    format!("c{}", number % COLOURS)
}

/// Text in a drawing. `anchor` is start, middle or end.
pub(super) fn label(html: &mut Html, (x, y): (f64, f64), anchor: &'static str, text: impl Display) {
    html.line("text", &[("x", &Px(x)), ("y", &Px(y)), ("text-anchor", &anchor)], text);
}

/// A straight line.
pub(super) fn stroke(html: &mut Html, class: &'static str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    html.leaf("line", &[("class", &class), ("x1", &Px(x1)), ("y1", &Px(y1)), ("x2", &Px(x2)), ("y2", &Px(y2))]);
}

/// About the width of a text.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().map(letter_width).sum()
}

/// A text that is cut if it is wider than this.
pub(super) fn fitted(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut left = width - LETTER_WIDTH;
    let mut cut: String = text
        .chars()
        .take_while(|letter| {
            left -= letter_width(*letter);
            left >= 0.0
        })
        .collect();
    cut.push('…');
    cut
}

/// Labels of the ticks of a horizontal axis at the height `bottom`, between `left` and `right`. Those for which there is
/// no room are left out.
pub(super) fn tick_labels(html: &mut Html, axis: &Axis, (left, right): (f64, f64), bottom: f64) {
    let mut free_from = f64::NEG_INFINITY;
    for (figure, text) in &axis.ticks {
        let text = fitted(text, WIDTH / 3.0);
        let half = text_width(&text) / 2.0;
        let middle = (left + axis.place(*figure) * (right - left)).clamp(EDGE + half, WIDTH - EDGE - half);
        if middle - half >= free_from {
            label(html, (middle, bottom + 15.0), "middle", text);
            free_from = middle + half + LETTER_WIDTH;
        }
    }
}

/// The name of a horizontal axis, below its ticks.
pub(super) fn axis_name(html: &mut Html, name: &str, (left, right): (f64, f64), bottom: f64) {
    let name = fitted(name, WIDTH - 4.0 * EDGE);
    let half = text_width(&name) / 2.0;
    let middle = f64::midpoint(left, right).clamp(EDGE + half, WIDTH - EDGE - half);
    label(html, (middle, bottom + 15.0 + AXIS_NAME_HEIGHT), "middle", name);
}

/// Wide scripts take about two letters.
fn letter_width(letter: char) -> f64 {
    if letter >= '\u{2e80}' { 2.0 * LETTER_WIDTH } else { LETTER_WIDTH }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut() {
        assert_eq!(fitted("Mailrace", 100.0), "Mailrace");
        assert_eq!(fitted("Mailrace", 8.0 * LETTER_WIDTH), "Mailrace");
        assert_eq!(fitted("Mailrace", 4.0 * LETTER_WIDTH), "Mai…");
        assert_eq!(fitted("郵便配達", 4.0 * LETTER_WIDTH), "郵…");
        assert_eq!(fitted("Mailrace", 0.0), "…");
    }
}
