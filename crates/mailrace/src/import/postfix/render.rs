//! Writes the new file: differences in how mail is handled, points to review, the sections in the
//! order of the documentation, then what is not supported or not needed.

use std::fmt::Write;

use super::draft::{Block, Draft, Fate};
use super::main_cf::MainCf;

/// Headers in the order of default.toml; longer headers sort by their first word.
const ORDER: [&str; 15] = [
    "",
    "[[listener]]",
    "[[certificate]]",
    "[tls]",
    "[auth]",
    "[relay]",
    "[smtp]",
    "[[access]]",
    "[limits]",
    "[[table]]",
    "[[domain]]",
    "[transport",
    "[[route]]",
    "[[queue]]",
    "[bounce]",
];
/// The heading of the differences.
const ALARMS: &str = "Mail that is handled differently than by Postfix:";
/// The column at which comments are wrapped.
const COLUMNS: usize = 118;

/// The text of a configuration in which every parameter has an outcome.
pub(super) fn render(draft: &Draft, main: &MainCf) -> String {
    let mut text = String::new();
    head(&mut text, draft);
    let place = |block: &&Block| match block.header.as_str() {
        "" => 0,
        header => ORDER.iter().rposition(|it| !it.is_empty() && header.starts_with(it)).unwrap_or(ORDER.len()),
    };
    let mut blocks: Vec<&Block> = draft.blocks.iter().collect();
    blocks.sort_by_key(place);
    blocks.into_iter().for_each(|block| section(&mut text, block));
    mapped(&mut text, draft, main);
    losses(&mut text, draft, main);
    rules(&mut text, draft);
    sames(&mut text, draft, main);
    text
}

fn head(text: &mut String, draft: &Draft) {
    let sources: Vec<&str> = draft.sources.iter().map(String::as_str).collect();
    comment(text, "", &format!("Made by `mailrace import postfix` from: {}.", sources.join(", ")));
    comment(
        text,
        "",
        "The comment after a key names the parameter that it comes from. The end of this file lists what is not \
         translated.",
    );
    comment(text, "", "`mailrace check` reports errors in this file; docs/from-postfix.md describes the migration.");
    for (title, lines) in [(ALARMS, &draft.alarms), ("Review these points first:", &draft.first)] {
        if !lines.is_empty() {
            let _ = writeln!(text, "#\n# {title}");
        }
        for (number, what) in (1..).zip(lines) {
            comment(text, "   ", &format!("{number}. {what}"));
        }
    }
}

fn section(text: &mut String, block: &Block) {
    text.push('\n');
    block.comments.iter().for_each(|line| comment(text, "", line));
    if !block.header.is_empty() {
        text.push_str(&block.header);
        text.push('\n');
    }
    for (key, value, from) in &block.keys {
        let line = format!("{key} = {value}");
        // Writing to a String cannot fail.
        let _ = match from.as_str() {
            "" => writeln!(text, "{line}"),
            from => writeln!(text, "{line:<33} # {from}"),
        };
    }
}

/// Translated parameters that no key names as its source.
fn mapped(text: &mut String, draft: &Draft, main: &MainCf) {
    let keys = || draft.blocks.iter().flat_map(|block| &block.keys);
    let is_named = |name: &str| keys().any(|(_, _, from)| from.split(", ").any(|it| it == name));
    let is_mapped = |name: &str| draft.fates.get(name) == Some(&Fate::Mapped);
    let mut unnamed = main.settings().filter(|(name, _)| is_mapped(name) && !is_named(name)).peekable();
    if unnamed.peek().is_some() {
        text.push_str("\n# --- Other parameters used in the sections above ---\n#\n");
    }
    unnamed.for_each(|(name, value)| comment(text, "  ", &format!("postfix: {name} = {}", shown(name, value))));
}

fn losses(text: &mut String, draft: &Draft, main: &MainCf) {
    let lost = |(name, value)| match draft.fates.get(name) {
        Some(Fate::Lost(why)) => Some((format!("{name} = {}", shown(name, value)), why.as_str())),
        _ => None,
    };
    let mut lost: Vec<(String, &str)> = main.settings().filter_map(lost).collect();
    lost.extend(draft.losses.iter().map(|(what, why)| (one_line(what), why.as_str())));
    if !lost.is_empty() {
        text.push_str("\n# --- Not translated ---\n#\n");
    }
    for (what, why) in lost {
        comment(text, "  ", &format!("postfix: {what}: not translated: {why}"));
    }
}

fn rules(text: &mut String, draft: &Draft) {
    if !draft.rules.is_empty() {
        text.push_str("\n# --- Restrictions ---\n#\n");
    }
    draft.rules.iter().for_each(|(rule, does)| comment(text, "  ", &format!("postfix: {rule}: {does}")));
}

fn sames(text: &mut String, draft: &Draft, main: &MainCf) {
    let same = |(name, value)| match draft.fates.get(name) {
        Some(Fate::Same(why)) => Some(format!("postfix: {name} = {}: {why}", shown(name, value))),
        _ => None,
    };
    let mut same = main.settings().filter_map(same).peekable();
    if same.peek().is_some() {
        text.push_str("\n# --- Not needed ---\n#\n");
    }
    same.for_each(|line| comment(text, "  ", &line));
}

/// A value on one line, unless it is a password.
fn shown(name: &str, value: &str) -> String {
    let is_secret = name.ends_with("_pw") || name.ends_with("password");
    if is_secret { "(not shown)".to_owned() } else { one_line(value) }
}

fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Writes a comment, wrapped, with `indent` before continuation lines.
fn comment(text: &mut String, indent: &str, words: &str) {
    let mut line = "#".to_owned();
    for word in one_line(words).split(' ') {
        if line.len() + 1 + word.len() > COLUMNS && line.len() > 1 + indent.len() {
            text.push_str(line.trim_end());
            text.push('\n');
            line = format!("#{indent}");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}
