//! Writes the new file: differences in how mail is handled, points to review, the sections in the
//! order of the documentation, then what is not supported or not needed.

use std::fmt::Write;

use crate::config_draft::{ConfigDraft, ParameterOutcome, TomlSection};

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
/// The column at which comments are wrapped.
const COLUMNS: usize = 118;

/// Where the configuration comes from.
#[derive(Debug)]
pub(crate) struct SourceServer {
    /// The name of the server, as in sentences.
    pub(crate) name: &'static str,
    /// The name of the import, which is also in that of its document and before each of its settings.
    pub(crate) command: &'static str,
    /// What its manual calls a setting.
    pub(crate) setting: &'static str,
    /// Its settings and their values.
    pub(crate) settings: Vec<(String, String)>,
}

impl SourceServer {
    fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// The text of a configuration in which every parameter has an outcome.
pub(crate) fn render(draft: &ConfigDraft, source: &SourceServer) -> String {
    let mut text = String::new();
    write_head(&mut text, draft, source);
    let place = |block: &&TomlSection| match block.header.as_str() {
        "" => 0,
        header => ORDER.iter().rposition(|it| !it.is_empty() && header.starts_with(it)).unwrap_or(ORDER.len()),
    };
    let mut blocks: Vec<&TomlSection> = draft.sections.iter().collect();
    blocks.sort_by_key(place);
    blocks.into_iter().for_each(|block| write_section(&mut text, block));
    write_mapped(&mut text, draft, source);
    write_unsupported(&mut text, draft, source);
    write_rules(&mut text, draft, source);
    write_not_needed(&mut text, draft, source);
    text
}

fn write_head(text: &mut String, draft: &ConfigDraft, source: &SourceServer) {
    let sources: Vec<&str> = draft.sources.iter().map(String::as_str).collect();
    write_comment(text, "", &format!("Made by `mailrace import {}` from: {}.", source.command, sources.join(", ")));
    write_comment(
        text,
        "",
        &format!(
            "The comment after a key names the {} that it comes from. The end of this file lists what is not translated.",
            source.setting
        ),
    );
    write_comment(
        text,
        "",
        &format!(
            "`mailrace check` reports errors in this file; docs/from-{}.md describes the migration.",
            source.command
        ),
    );
    let changes = format!("Mail that is handled differently than by {}:", source.name);
    for (title, lines) in
        [(changes.as_str(), &draft.behavior_changes), ("Review these points first:", &draft.review_first)]
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
fn write_mapped(text: &mut String, draft: &ConfigDraft, source: &SourceServer) {
    let keys = || draft.sections.iter().flat_map(|block| &block.keys);
    let is_named = |name: &str| keys().any(|(_, _, from)| from.split(", ").any(|it| it == name));
    let is_mapped = |name: &str| draft.outcomes.get(name) == Some(&ParameterOutcome::Mapped);
    let mut unnamed = source.settings().filter(|(name, _)| is_mapped(name) && !is_named(name)).peekable();
    if unnamed.peek().is_some() {
        text.push_str("\n# --- Other parameters used in the sections above ---\n#\n");
    }
    unnamed.for_each(|(name, value)| {
        write_comment(text, "  ", &format!("{}: {name} = {}", source.command, shown(name, value)))
    });
}

fn write_unsupported(text: &mut String, draft: &ConfigDraft, source: &SourceServer) {
    let lost = |(name, value)| match draft.outcomes.get(name) {
        Some(ParameterOutcome::Unsupported(why)) => Some((format!("{name} = {}", shown(name, value)), why.as_str())),
        _ => None,
    };
    let mut lost: Vec<(String, &str)> = source.settings().filter_map(lost).collect();
    lost.extend(draft.unsupported.iter().map(|(what, why)| (one_line(what), why.as_str())));
    if !lost.is_empty() {
        text.push_str("\n# --- Not translated ---\n#\n");
    }
    for (what, why) in lost {
        write_comment(text, "  ", &format!("{}: {what}: not translated: {why}", source.command));
    }
}

fn write_rules(text: &mut String, draft: &ConfigDraft, source: &SourceServer) {
    if !draft.rules.is_empty() {
        text.push_str("\n# --- Restrictions ---\n#\n");
    }
    let told = |(rule, does): &(String, String)| format!("{}: {rule}: {does}", source.command);
    draft.rules.iter().for_each(|rule| write_comment(text, "  ", &told(rule)));
}

fn write_not_needed(text: &mut String, draft: &ConfigDraft, source: &SourceServer) {
    let same = |(name, value)| match draft.outcomes.get(name) {
        Some(ParameterOutcome::NotNeeded(why)) => {
            Some(format!("{}: {name} = {}: {why}", source.command, shown(name, value)))
        }
        _ => None,
    };
    let idle = (!draft.idle_services.is_empty()).then(|| {
        format!("{}: master.cf: {}: no mail uses these services", source.command, draft.idle_services.join(", "))
    });
    let mut same = source.settings().filter_map(same).chain(idle).peekable();
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
