//! header_checks(5) and body_checks as `[[content]]` rules: one for each line of a table, all of a parameter
//! in one list, so that the first match takes a line here as there.
//!
//! `if` becomes a further pattern of the rules in it, and `!` an exception. A line that cannot be
//! translated is reported; what an `if` that cannot be translated contains is lost with it.

use std::path::Path;

use config::Pattern;
use mail::{Address, Reply};

use super::Conversion;
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::lookups::MapRef;
use super::main_cf::logical_lines;
use super::map_text::pattern_end;
use super::words::list;

/// More rules are not read by the server.
const RULES_MAX: usize = 1000;
/// Postfix's tables and the places that they are about.
const PARAMETERS: [(&str, &str); 4] = [
    ("header_checks", "header"),
    ("mime_header_checks", "mime"),
    ("nested_header_checks", "nested"),
    ("body_checks", "body"),
];

/// A pattern of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TablePattern {
    text: String,
    is_negated: bool,
}

/// A rule, as far as it does not depend on its table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TableRule {
    matches: Vec<String>,
    unless: Vec<String>,
    /// The action, and a further key with its value.
    action: (&'static str, Option<(&'static str, String)>),
}

/// A line that is not translated, and why.
type LostLine = (String, &'static str);

impl Conversion<'_> {
    /// Translates the four tables. Those with the same value share their rules.
    pub(super) fn content_rules(&mut self) {
        let headers = self.values.value(PARAMETERS[0].0);
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for (number, (parameter, place)) in PARAMETERS.into_iter().enumerate() {
            let default = if place == "body" { String::new() } else { headers.clone() };
            let given = self.values.explicit_value(parameter);
            match given.as_deref() {
                Some("") => self.draft.not_needed(parameter, "the list is empty"),
                Some(_) => self.draft.mapped(parameter),
                None => {}
            }
            let value = given.unwrap_or(default);
            match groups.iter_mut().find(|(known, _)| *known == value && place != "body") {
                _ if value.is_empty() => {}
                Some((_, members)) => members.push(number),
                None => groups.push((value, vec![number])),
            }
        }
        let mut rules = 0;
        for (value, members) in groups {
            rules += self.content_table(&value, &members);
        }
        if rules > RULES_MAX {
            self.draft.add_behavior_change(format!(
                "The file has {rules} content rules, and the server reads {RULES_MAX}: remove some of them."
            ));
        }
    }

    /// Adds the rules of one value; returns their number.
    fn content_table(&mut self, value: &str, members: &[usize]) -> usize {
        let (parameter, _) = PARAMETERS[members[0]];
        let places: Vec<&str> = members.iter().map(|number| PARAMETERS[*number].1).collect();
        let mut added = 0;
        for element in list(value) {
            let map_ref = MapRef::parse(&element).filter(|map_ref| ["regexp", "pcre"].contains(&map_ref.kind.as_str()));
            let text = map_ref.and_then(|map_ref| self.read_file(Path::new(&map_ref.name)));
            let Some(text) = text else {
                self.draft.add_behavior_change(format!(
                    "Mail that {parameter} refuses, holds, redirects or changes is delivered unchanged: {element} is no \
                     table of patterns, or cannot be read."
                ));
                continue;
            };
            let (rules, lost) = table_rules(&text, places == ["body"]);
            for (line, why) in &lost {
                self.draft.add_unsupported(format!("{parameter}: {line}"), *why);
            }
            if !lost.is_empty() {
                let lines = if lost.len() == 1 { "1 line".to_owned() } else { format!("{} lines", lost.len()) };
                self.draft.add_behavior_change(format!(
                    "Mail that {lines} of {element} would refuse or change is delivered unchanged; the end of this file \
                     says why ({parameter})."
                ));
            }
            for rule in rules {
                added += 1;
                self.draft.add(section(&rule, parameter, added, &places));
            }
        }
        added
    }
}

fn section(rule: &TableRule, parameter: &str, number: usize, places: &[&str]) -> TomlSection {
    let one_or_list = |texts: &[String]| match texts {
        [only] => quoted(only),
        several => quoted_list(several.iter().map(String::as_str)),
    };
    let mut block = TomlSection::new("[[content]]")
        .key("name", quoted(&format!("{parameter} {number}")), parameter)
        .key("list", quoted(parameter), "")
        .key("in", quoted_list(places.iter().copied()), "");
    for (key, patterns) in [("matches", &rule.matches), ("unless", &rule.unless)] {
        if !patterns.is_empty() {
            block.set(key, one_or_list(patterns), "");
        }
    }
    let (action, further) = &rule.action;
    block.set("action", quoted(action), "");
    if let Some((key, value)) = further {
        block.set(key, quoted(value), "");
    }
    block
}

/// The rules of a table, and the lines that are lost.
fn table_rules(text: &str, is_body: bool) -> (Vec<TableRule>, Vec<LostLine>) {
    let (mut rules, mut lost) = (Vec::new(), Vec::new());
    // None: the condition cannot be translated, and nothing in it.
    let mut conditions: Vec<Option<TablePattern>> = Vec::new();
    for line in logical_lines(text) {
        let line = line.trim();
        let word = line.get(..5).unwrap_or(line);
        if word.eq_ignore_ascii_case("endif") {
            conditions.pop();
        } else if let Some(condition) = line.get(..2).filter(|word| word.eq_ignore_ascii_case("if")).map(|_| &line[2..])
        {
            let pattern = pattern(condition.trim()).map_err(|why| lost.push((line.to_owned(), why)));
            conditions.push(pattern.ok().map(|(pattern, _)| pattern));
        } else {
            match rule(line, &conditions, is_body) {
                Ok(rule) => rules.push(rule),
                Err(why) => lost.push((line.to_owned(), why)),
            }
        }
    }
    (rules, lost)
}

fn rule(line: &str, conditions: &[Option<TablePattern>], is_body: bool) -> Result<TableRule, &'static str> {
    let (own, action) = pattern(line)?;
    let own_groups = own.text.parse::<Pattern>().map_or(0, |pattern| pattern.groups());
    let groups_max = if own.is_negated { 0 } else { own_groups };
    let (mut matches, mut unless) = (Vec::new(), Vec::new());
    let conditions: Option<Vec<TablePattern>> = conditions.iter().cloned().collect();
    // The groups in texts are those of the first pattern.
    for pattern in std::iter::once(own).chain(conditions.ok_or("the if around it is not translated")?) {
        if pattern.is_negated { unless.push(pattern.text) } else { matches.push(pattern.text) }
    }
    let action = rule_action(action, is_body)?;
    let texts = action.1.iter().filter(|(key, _)| *key == "text");
    if texts.flat_map(|(_, text)| text.split("${").skip(1)).any(|group| group_number(group) > groups_max) {
        return Err("its text names a group that the pattern does not have");
    }
    Ok(TableRule { matches, unless, action })
}

/// The pattern at the start of a line, and what follows it.
fn pattern(line: &str) -> Result<(TablePattern, &str), &'static str> {
    const FORM: &str = "it is no pattern";
    let end = pattern_end(line).ok_or(FORM)?;
    let (whole, rest) = (line[..end].trim_start(), line[end..].trim());
    let bare = whole.trim_start_matches(['!', ' ', '\t']);
    let mark = bare.chars().next().ok_or(FORM)?;
    let close = bare.rfind(mark).filter(|close| *close > 0).ok_or(FORM)?;
    let (text, flags) = (&bare[mark.len_utf8()..close], &bare[close + mark.len_utf8()..]);
    let text = format!("{}{}", inline_flags(flags)?, text.replace(&format!("\\{mark}"), &escaped(mark)));
    if text.parse::<Pattern>().is_err() {
        return Err("this server has no such pattern: back-references and look-around are not supported");
    }
    Ok((TablePattern { text, is_negated: whole.starts_with('!') }, rest))
}

/// A delimiter in the pattern, which needs no backslash here unless it has a meaning.
fn escaped(mark: char) -> String {
    if "\\.+*?()|[]{}^$#&-~".contains(mark) { format!("\\{mark}") } else { mark.to_string() }
}

/// Each flag inverts a default; lines have no line breaks here, so some have no meaning.
fn inline_flags(flags: &str) -> Result<String, &'static str> {
    let mut inline = String::new();
    for flag in flags.chars() {
        match flag {
            'i' => inline.push_str("(?-i)"),
            'x' => inline.push_str("(?x)"),
            'U' => inline.push_str("(?U)"),
            's' | 'm' => {}
            _ => return Err("its flags are not supported"),
        }
    }
    Ok(inline)
}

type Action = (&'static str, Option<(&'static str, String)>);

fn rule_action(action: &str, is_body: bool) -> Result<Action, &'static str> {
    let (word, text) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
    let text = text.trim();
    let address = || match text.parse::<Address>() {
        Ok(_) => Ok(Some(("to", text.to_owned()))),
        Err(_) => Err("it names no address"),
    };
    Ok(match &*word.to_ascii_uppercase() {
        "REJECT" => ("refuse", reply(text).map(|reply| ("reply", reply))),
        "DISCARD" => ("discard", None),
        "HOLD" => ("hold", None),
        "DUNNO" | "OK" => ("accept", None),
        "INFO" | "WARN" => ("warn", None),
        "IGNORE" | "STRIP" => ("remove", None),
        "REDIRECT" => ("redirect", address()?),
        "BCC" => ("bcc", address()?),
        "REPLACE" if is_field(text) || is_body && !text.is_empty() => ("replace", Some(("text", groups(text)))),
        "PREPEND" if is_body => return Err("a line cannot be put into the body"),
        "PREPEND" if is_field(text) => ("prepend", Some(("text", groups(text)))),
        "FILTER" => return Err("there are no content filters after the queue"),
        "PASS" => return Err("the checks of the rest cannot be turned off"),
        _ => return Err("its action is not supported"),
    })
}

/// Whether it begins with the name of a field.
fn is_field(text: &str) -> bool {
    let name = text.split_once(':').map_or("", |(name, _)| name);
    !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_graphic())
}

fn group_number(text: &str) -> usize {
    text.split('}').next().and_then(|digits| digits.parse().ok()).unwrap_or(usize::MAX)
}

/// The reply with this text, which may begin with an enhanced code; None: the default, also for texts with
/// groups.
fn reply(text: &str) -> Option<String> {
    let reply = if text.starts_with("5.") { format!("550 {text}") } else { format!("550 5.7.1 {text}") };
    let is_sound = !text.is_empty() && !text.contains('$') && reply.parse::<Reply>().is_ok();
    is_sound.then_some(reply)
}

/// `$1` and `$(1)` as `${1}`, which no letter after it can change.
fn groups(text: &str) -> String {
    let (mut made, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        made.push_str(before);
        let bare = after.trim_start_matches(['(', '{']);
        let digits = bare.len() - bare.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            made.push_str("$$");
            rest = after.strip_prefix('$').unwrap_or(after);
            continue;
        }
        made.push_str(&format!("${{{}}}", &bare[..digits]));
        let is_closed = bare.len() < after.len();
        rest = &bare[digits..];
        rest = if is_closed { rest.strip_prefix([')', '}']).unwrap_or(rest) } else { rest };
    }
    made + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_rules_in_one_list() {
        let text = "# comment\n/^Subject:.*v[i1]agra/ REJECT no, thanks\nif /^From:/\n!/@ours\\.example>?$/i WARN\n\
                    endif\n/^X-(\\w+): (.*)$/ REPLACE Y-$1: $(2)x\n/^List-Id:/ DUNNO\n!/^A/ IGNORE\n";
        let (rules, lost) = table_rules(text, false);
        assert!(lost.is_empty(), "{lost:?}");
        let shown: Vec<String> =
            rules.iter().map(|rule| format!("{:?} {:?} {:?}", rule.matches, rule.unless, rule.action)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        ["^Subject:.*v[i1]agra"] [] ("refuse", Some(("reply", "550 5.7.1 no, thanks")))
        ["^From:"] ["(?-i)@ours\\.example>?$"] ("warn", None)
        ["^X-(\\w+): (.*)$"] [] ("replace", Some(("text", "Y-${1}: ${2}x")))
        ["^List-Id:"] [] ("accept", None)
        [] ["^A"] ("remove", None)
        "#);
    }

    #[test]
    fn what_cannot_be_translated_is_lost_by_name() {
        let text = "/(a)\\1/ REJECT\n/a/ FILTER x:y\nif /(?=b)/\n/c/ REJECT\nendif\n/d/ REDIRECT $1\n/e/ PREPEND X: y\nf REJECT\n/g/E REJECT\n";
        let (rules, lost) = table_rules(text, true);
        assert_eq!((rules.len(), lost.len()), (0, 8));
    }

    #[test]
    fn replies_and_groups_are_those_of_the_table() {
        assert_eq!(reply("5.1.1 gone").as_deref(), Some("550 5.1.1 gone"));
        assert_eq!((reply(""), reply("about $1"), reply("\u{e4}")), (None, None, None));
        assert_eq!(groups("a $1b ${2} $(3) $$ $x"), "a ${1}b ${2} ${3} $$ $$x");
    }
}
