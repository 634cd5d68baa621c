//! Results as one page of HTML: answers first, then charts, tables and everything needed to repeat the measurement.
//!
//! The page needs nothing from outside and no script: one line of script only unfolds everything before it is printed,
//! in browsers whose styles cannot. Nothing from the results becomes markup, and the page's own policy forbids
//! scripts, pictures and connections besides. The same results give the same page. Figures that are not finite, and
//! results without runs, are shown as absent.

mod axis;
mod chart;
mod charts;
mod grid;
mod html;
mod line_chart;
mod row_chart;
mod section;
mod tables;

use crate::against::{Against, ChangeVerdict};
use crate::against_text::{summary, without_partner};
use crate::answer::answer;
use crate::page::grid::draw_verdict;
use crate::page::html::Html;
use crate::result::ResultFile;

/// How every page begins.
pub const PAGE_START: &str = "<!DOCTYPE html>";
/// The title of a page with several results.
const TITLE: &str = "Measurements";
const STYLE: &str = include_str!("page/style.css");
/// Unfolds everything before printing.
const SCRIPT: &str = "addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>d.open=true))";
/// Allows only this style and this script, by its SHA-256.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                      script-src 'sha256-jp9OZKWsQoa5AMXJw5Ji/0zF9wocfow5zQq60SvdNRw='";

/// The page of these results, in their order, with a comparison if they were compared with earlier ones. Without a
/// title, it has that of its only result.
#[must_use]
pub fn render(results: &[ResultFile], title: Option<&str>, against: Option<&Against>) -> String {
    let title = match (title, results) {
        (Some(title), _) => title,
        (None, [only]) => &only.title,
        (None, _) => TITLE,
    };
    let mut html = Html::default();
    html.verbatim(PAGE_START);
    html.block("html", &[("lang", &"en")], |html| {
        html.block("head", &[], |html| draw_head(html, title));
        html.block("body", &[], |html| draw_body(html, results, title, against));
    });
    html.finish()
}

fn draw_head(html: &mut Html, title: &str) {
    html.leaf("meta", &[("charset", &"utf-8")]);
    html.leaf("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &POLICY)]);
    html.leaf("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
    html.leaf("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
    html.line("title", &[], title);
    html.block("style", &[], |html| html.verbatim(STYLE));
    html.block("script", &[], |html| html.verbatim(SCRIPT));
}

fn draw_body(html: &mut Html, results: &[ResultFile], title: &str, against: Option<&Against>) {
    html.line("h1", &[], title);
    if results.len() > 1 || against.is_some() {
        draw_contents(html, results, against);
    }
    for (index, file) in results.iter().enumerate() {
        let changes = against.and_then(|against| against.results.get(index)?.as_ref());
        section::draw(html, &section_id(index), file, title, changes);
    }
    html.line("footer", &[], "Made by mailrace bench report. Absolute figures depend on the machine.");
}

fn draw_contents(html: &mut Html, results: &[ResultFile], against: Option<&Against>) {
    if let Some(against) = against {
        let is_good = against.count(ChangeVerdict::Worse) == 0;
        html.block("p", &[], |html| {
            html.text("Compared with earlier results: ");
            draw_verdict(html, is_good, &summary(against));
        });
        for remark in without_partner(against, results) {
            html.line("p", &[("class", &"hint")], format_args!("{remark}."));
        }
    }
    html.block("nav", &[("aria-label", &"Answers")], |html| {
        html.block("ol", &[], |html| {
            for (index, file) in results.iter().enumerate() {
                html.block("li", &[], |html| {
                    html.words("a", &[("href", &format_args!("#{}", section_id(index)))], section::heading(file));
                    if let Some(answer) = answer(file) {
                        html.line("p", &[], answer);
                    }
                    if let Some(text) = section::reduction(file) {
                        html.line("p", &[("class", &"hint")], text);
                    }
                    section::draw_aims(html, file);
                });
            }
        });
    });
}

/// Ids of results differ from those of charts by their first letter.
fn section_id(index: usize) -> String {
    format!("result-{}", index + 1)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_policy_allows_the_script_of_the_page() {
        let digest = BASE64_STANDARD.encode(Sha256::digest(SCRIPT));
        assert!(POLICY.contains(&format!("'sha256-{digest}'")), "the digest is {digest}");
    }
}
