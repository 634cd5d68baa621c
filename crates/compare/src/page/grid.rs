//! Tables. A wide one scrolls in its own box, and every figure is a `data` element with its value before rounding, in
//! the unit of the file of results, so that programs need not parse what is meant for people.

use crate::numbers::{ABSENT, short};
use crate::page::html::Html;

/// A table.
pub(super) struct Grid {
    /// What it shows, for those who do not see it.
    pub(super) label: String,
    /// By which a style or a program finds it.
    pub(super) class: &'static str,
    /// The heads of the columns.
    pub(super) heads: Vec<Head>,
    /// The first cell of each is the head of its row.
    pub(super) rows: Vec<Vec<Cell>>,
}

/// The head of a column.
pub(super) struct Head {
    text: String,
    is_figure: bool,
}

/// A cell.
pub(super) enum Cell {
    /// Text.
    Text(String),
    /// A figure with its value in the file, and as it is shown; None if it was not measured.
    Figure(Option<(f64, String)>),
    /// Both ends of an interval.
    Interval(Option<(f64, f64)>),
    /// A judgement: whether it is good, and its word.
    Verdict(Option<bool>, String),
}

impl Head {
    /// Of a column of text.
    pub(super) fn text(text: impl Into<String>) -> Head {
        Head { text: text.into(), is_figure: false }
    }

    /// Of a column of figures, which are aligned at their end.
    pub(super) fn figure(text: impl Into<String>) -> Head {
        Head { text: text.into(), is_figure: true }
    }
}

impl Cell {
    /// A figure that is shown in another unit, times `scale`.
    pub(super) fn scaled(value: Option<f64>, scale: f64) -> Cell {
        Cell::Figure(value.map(|value| (value, short(value * scale))))
    }

    /// Whether an aim was met; nothing without one.
    pub(super) fn aim(is_met: Option<bool>) -> Cell {
        let word = is_met.map_or("", |is_met| if is_met { "met" } else { "missed" });
        Cell::Verdict(is_met, word.to_owned())
    }

    fn draw(&self, html: &mut Html) {
        match self {
            Cell::Text(text) => html.text(text),
            Cell::Figure(Some((value, text))) => html.words("data", &[("value", value)], text),
            Cell::Interval(Some((low, high))) => {
                html.words("data", &[("value", low)], short(*low));
                html.text(" to ");
                html.words("data", &[("value", high)], short(*high));
            }
            Cell::Figure(None) | Cell::Interval(None) => html.text(ABSENT),
            Cell::Verdict(None, text) => html.text(text),
            Cell::Verdict(Some(is_good), text) => draw_verdict(html, *is_good, text),
        }
    }
}

impl Grid {
    /// Adds the table to a page; nothing if it has no rows.
    pub(super) fn draw(&self, html: &mut Html) {
        if self.rows.is_empty() {
            return;
        }
        // Only what can have the focus can be scrolled by keys.
        let attributes: [(&str, &dyn std::fmt::Display); 4] =
            [("class", &"scroll"), ("role", &"region"), ("aria-label", &self.label), ("tabindex", &0)];
        html.block("div", &attributes, |html| {
            html.block("table", &[("class", &self.class)], |html| {
                html.block("thead", &[], |html| html.block("tr", &[], |html| self.draw_heads(html)));
                html.block("tbody", &[], |html| self.rows.iter().for_each(|row| self.draw_row(html, row)));
            });
        });
    }

    fn draw_heads(&self, html: &mut Html) {
        for head in &self.heads {
            html.words("th", &[("scope", &"col"), ("class", &column_class(head))], &head.text);
        }
    }

    fn draw_row(&self, html: &mut Html, row: &[Cell]) {
        html.block("tr", &[], |html| {
            for (index, cell) in row.iter().enumerate() {
                let class = self.heads.get(index).map_or("", column_class);
                match index {
                    0 => html.element("th", &[("scope", &"row"), ("class", &class)], |html| cell.draw(html)),
                    _ => html.element("td", &[("class", &class)], |html| cell.draw(html)),
                }
            }
        });
    }
}

/// A word with a sign, so that it does not depend on its colour.
pub(super) fn draw_verdict(html: &mut Html, is_good: bool, text: &str) {
    let (class, sign) = if is_good { ("good", "✓") } else { ("bad", "✗") };
    html.element("span", &[("class", &class)], |html| {
        html.words("span", &[("aria-hidden", &"true")], sign);
        html.text(" ");
        html.text(text);
    });
}

fn column_class(head: &Head) -> &'static str {
    if head.is_figure { "n" } else { "t" }
}
