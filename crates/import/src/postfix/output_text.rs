//! Writes the new file: differences in how mail is handled, points to review, the sections in the
//! order of the documentation, then what is not supported or not needed.

use std::fmt::Write;

use super::config_draft::{ConfigDraft, ParameterOutcome, TomlSection};
use super::main_cf::MainCf;

/// Headers in the order of default.toml; longer headers sort by their first word.
const ORDER: [&str; 21] = [
    "",
    "[[listener]]",
    "[[certificate]]",
    "[tls]",
    "[auth]",
    "[relay]",
    "[smtp]",
    "[[access]]",
    "[[milter]]",
    "[[policy_service]]",
    "[content_filter]",
    "[[content]]",
    "[rewrite]",
    "[bcc]",
    "[limits]",
    "[[table]]",
    "[[domain]]",
    "[transport",
    "[[route]]",
    "[[queue]]",
    "[bounce]",
];
/// The heading of the differences.
const BEHAVIOR_CHANGES_HEADING: &str = "Mail that is handled differently than by Postfix:";
/// The column at which comments are wrapped.
const COLUMNS: usize = 118;

/// The text of a configuration in which every parameter has an outcome.
pub(super) fn render(draft: &ConfigDraft, main: &MainCf) -> String {
    let mut text = String::new();
    write_head(&mut text, draft);
    let place = |block: &&TomlSection| match block.header.as_str() {
        "" => 0,
        header => ORDER.iter().rposition(|it| !it.is_empty() && header.starts_with(it)).unwrap_or(ORDER.len()),
    };
    let mut blocks: Vec<&TomlSection> = draft.sections.iter().collect();
    blocks.sort_by_key(place);
    blocks.into_iter().for_each(|block| write_section(&mut text, block));
    write_mapped(&mut text, draft, main);
    write_unsupported(&mut text, draft, main);
    write_rules(&mut text, draft);
    write_not_needed(&mut text, draft, main);
    text
}

fn write_head(text: &mut String, draft: &ConfigDraft) {
    let sources: Vec<&str> = draft.sources.iter().map(String::as_str).collect();
    write_comment(text, "", &format!("Made by `mailrace import postfix` from: {}.", sources.join(", ")));
    write_comment(
        text,
        "",
        "The comment after a key names the parameter that it comes from. The end of this file lists what is not \
         translated.",
    );
    write_comment(
        text,
        "",
        "`mailrace check` reports errors in this file; docs/from-postfix.md describes the migration.",
    );
    for (title, lines) in
        [(BEHAVIOR_CHANGES_HEADING, &draft.behavior_changes), ("Review these points first:", &draft.review_first)]
    {
        if !lines.is_empty() {
            let _ = writeln!(text, "#\n# {title}");
        }
        for (number, what) in (1..).zip(lines) {
            write_comment(text, "   ", &format!("{number}. {what}"));
        }
    }
}

fn write_section(text: &mut String, block: &TomlSection) {
    text.push('\n');
    block.comments.iter().for_each(|line| write_comment(text, "", line));
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
fn write_mapped(text: &mut String, draft: &ConfigDraft, main: &MainCf) {
    let keys = || draft.sections.iter().flat_map(|block| &block.keys);
    let is_named = |name: &str| keys().any(|(_, _, from)| from.split(", ").any(|it| it == name));
    let is_mapped = |name: &str| draft.outcomes.get(name) == Some(&ParameterOutcome::Mapped);
    let mut unnamed = main.settings().filter(|(name, _)| is_mapped(name) && !is_named(name)).peekable();
    if unnamed.peek().is_some() {
        text.push_str("\n# --- Other parameters used in the sections above ---\n#\n");
    }
    unnamed.for_each(|(name, value)| write_comment(text, "  ", &format!("postfix: {name} = {}", shown(name, value))));
}

fn write_unsupported(text: &mut String, draft: &ConfigDraft, main: &MainCf) {
    let lost = |(name, value)| match draft.outcomes.get(name) {
        Some(ParameterOutcome::Unsupported(why)) => Some((format!("{name} = {}", shown(name, value)), why.as_str())),
        _ => None,
    };
    let mut lost: Vec<(String, &str)> = main.settings().filter_map(lost).collect();
    lost.extend(draft.unsupported.iter().map(|(what, why)| (one_line(what), why.as_str())));
    if !lost.is_empty() {
        text.push_str("\n# --- Not translated ---\n#\n");
    }
    for (what, why) in lost {
        write_comment(text, "  ", &format!("postfix: {what}: not translated: {why}"));
    }
}

fn write_rules(text: &mut String, draft: &ConfigDraft) {
    if !draft.rules.is_empty() {
        text.push_str("\n# --- Restrictions ---\n#\n");
    }
    draft.rules.iter().for_each(|(rule, does)| write_comment(text, "  ", &format!("postfix: {rule}: {does}")));
}

fn write_not_needed(text: &mut String, draft: &ConfigDraft, main: &MainCf) {
    let same = |(name, value)| match draft.outcomes.get(name) {
        Some(ParameterOutcome::NotNeeded(why)) => Some(format!("postfix: {name} = {}: {why}", shown(name, value))),
        _ => None,
    };
    let idle = (!draft.idle_services.is_empty())
        .then(|| format!("postfix: master.cf: {}: no mail uses these services", draft.idle_services.join(", ")));
    let mut same = main.settings().filter_map(same).chain(idle).peekable();
    if same.peek().is_some() {
        text.push_str("\n# --- Not needed ---\n#\n");
    }
    same.for_each(|line| write_comment(text, "  ", &line));
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
fn write_comment(text: &mut String, indent: &str, words: &str) {
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
