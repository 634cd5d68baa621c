//! header_checks(5) and body_checks as `[[content]]` rules: one for each line of a table, all of a parameter
//! in one list, so that the first match takes a line here as there.
//!
//! `if` becomes a further pattern of the rules in it, and `!` an exception. A pattern that cannot be
//! translated becomes one that matches at least the same (`weakened_pattern`); a rule with it defers what
//! the line refused or dropped, and holds what it held. Other lines with it are lost, and reported.
//!
//! Tables of whole lines (hash, texthash, inline and others) become patterns, too. A database is asked for
//! the lines of the body, and defers mail for whose lines it has an action.

use std::path::Path;

use config::Pattern;
use mail::{Address, Reply};

use super::Conversion;
use super::access_table::is_field;
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::lookups::MapRef;
use super::main_cf::logical_lines;
use super::map_text::{TableUse, pattern_end};
use super::pattern_flags::{class_end, without_flag};
use super::sql::Database;
use super::words::{braced, list};

/// More rules are not read by the server.
const RULES_MAX: usize = 1000;
/// Postfix's tables and the places that they are about.
const PARAMETERS: [(&str, &str); 5] = [
    ("header_checks", "header"),
    ("mime_header_checks", "mime"),
    ("nested_header_checks", "nested"),
    ("body_checks", "body"),
    ("milter_header_checks", "header"),
];
/// The parameter with the names of fields that are removed, and its default.
const DROPPED_FIELDS: (&str, &str) = ("message_drop_headers", "bcc, content-length, resent-bcc, return-path");
/// A pattern that every line matches.
const EVERY_LINE: &str = "^";
/// A pattern that every line matches that Postfix looks up.
const NOT_EMPTY: &str = ".";
/// Keys in one pattern.
const KEYS_OF_PATTERN_MAX: usize = 200;
const DEFERRED: &str = "451 4.3.5 A check of the old server is not translated";

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
    action: Action,
}

/// The action, and a further key with its value.
type Action = (&'static str, Option<(&'static str, String)>);

/// A line that is not translated, and why.
type LostLine = (String, &'static str);

/// What a table became.
#[derive(Debug, Default)]
struct TableRules {
    rules: Vec<TableRule>,
    /// Lines whose rules match more, and defer.
    deferred: Vec<LostLine>,
    lost: Vec<LostLine>,
}

impl Conversion<'_> {
    /// Translates the four tables. Those with the same value share their rules.
    pub(super) fn content_rules(&mut self) {
        let headers = self.values.value(PARAMETERS[0].0);
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for (number, (parameter, place)) in PARAMETERS.into_iter().enumerate() {
            let follows = ["mime_header_checks", "nested_header_checks", "header_checks"].contains(&parameter);
            let default = if follows { headers.clone() } else { String::new() };
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
        let mut rules = self.dropped_fields();
        for (value, members) in groups {
            rules += self.content_table(&value, &members);
        }
        if rules > RULES_MAX {
            self.draft.add_behavior_change(format!(
                "The file has {rules} content rules, and the server reads {RULES_MAX}: remove some of them."
            ));
        }
    }

    /// Removes the fields that cleanup(8) removes from all mail, by default also: a Bcc field would name hidden
    /// recipients to all. Returns the number of rules.
    fn dropped_fields(&mut self) -> usize {
        let given = self.values.explicit_value(DROPPED_FIELDS.0);
        let names = list(given.as_deref().unwrap_or(DROPPED_FIELDS.1));
        if names.is_empty() {
            self.draft.not_needed(DROPPED_FIELDS.0, "the list is empty");
            return 0;
        }
        if given.is_some() {
            self.draft.mapped(DROPPED_FIELDS.0);
        }
        let in_pattern = |c: char| if c == '-' { c.to_string() } else { escaped(c) };
        let names: Vec<String> = names.iter().map(|name| name.chars().map(in_pattern).collect()).collect();
        let pattern = format!("^(?:{})[ \\t]*:", names.join("|"));
        let rule = TableRule { matches: vec![pattern], unless: Vec::new(), action: ("remove", None) };
        let mut block = section(&rule, DROPPED_FIELDS.0, 1, &["header"]);
        block.keys.retain(|(key, _, _)| key != "list");
        self.draft.add(block.comment("Postfix removes these fields from all mail."));
        1
    }

    /// Adds the rules of one value; returns their number.
    fn content_table(&mut self, value: &str, members: &[usize]) -> usize {
        let (parameter, _) = PARAMETERS[members[0]];
        let places: Vec<&str> = members.iter().map(|number| PARAMETERS[*number].1).collect();
        let mut added = 0;
        for element in list(value) {
            let Some(TableRules { rules, deferred, lost }) = self.checks_of(&element, places == ["body"]) else {
                added += 1;
                self.add_deferring_rule(&element, parameter, added, &places);
                continue;
            };
            for (line, why) in deferred.iter().chain(&lost) {
                self.draft.add_unsupported(format!("{parameter}: {line}"), *why);
            }
            if !deferred.is_empty() {
                self.draft.add_behavior_change(format!(
                    "Mail that {} of {element} may refuse or drop gets 451, or is held if it may be held: the rule matches \
                     more than the line; the end of this file says why ({parameter}).",
                    line_count(deferred.len())
                ));
            }
            if !lost.is_empty() {
                self.draft.add_behavior_change(format!(
                    "Mail that {} of {element} would let pass or change is delivered unchanged, unless other lines \
                     concern it; the end of this file says why ({parameter}).",
                    line_count(lost.len())
                ));
            }
            for mut rule in rules {
                if let Some(("filter", destination)) = &mut rule.action.1 {
                    match self.filter_destination(destination, "header_checks") {
                        Some(ours) => *destination = ours,
                        None => rule.action = ("defer", Some(("reply", DEFERRED.to_owned()))),
                    }
                }
                added += 1;
                self.draft.add(section(&rule, parameter, added, &places));
            }
        }
        added
    }

    /// The rules of a table whose lines can be read. None: they cannot.
    fn checks_of(&mut self, element: &str, is_body: bool) -> Option<TableRules> {
        let map_ref = MapRef::parse(element)?;
        match map_ref.kind.as_str() {
            kind @ ("regexp" | "pcre") => Some(table_rules(&self.read_file(Path::new(&map_ref.name))?, kind, is_body)),
            "static" => {
                let action = braced(&map_ref.name).unwrap_or(&map_ref.name);
                Some(fixed_rules(vec![(NOT_EMPTY.to_owned(), action.to_owned())], is_body))
            }
            _ => self.entries(&map_ref, false).map(|entries| fixed_rules(entry_patterns(&entries), is_body)),
        }
    }

    /// Adds the rule in place of a table that is not translated: it defers the mail for whose lines a
    /// database has an action, or all mail.
    fn add_deferring_rule(&mut self, element: &str, parameter: &str, number: usize, places: &[&str]) {
        let action = ("defer", Some(("reply", DEFERRED.to_owned())));
        let is_database = |kind: &str| kind == "ldap" || Database::of_map_type(kind).is_some();
        let database = MapRef::parse(element).filter(|map_ref| places == ["body"] && is_database(&map_ref.kind));
        if let Some(table) = database.and_then(|map_ref| self.convert_map(map_ref, TableUse::BodyLines)) {
            self.draft.add_behavior_change(format!(
                "Mail with a line of the body that {element} has gets 451, whatever its action is ({parameter})."
            ));
            let rule = TableRule { matches: Vec::new(), unless: Vec::new(), action };
            let mut block = section(&rule, parameter, number, places);
            // A list shares lines, and whether a database has one is known later.
            block.keys.retain(|(key, _, _)| key != "list");
            block.set("table", quoted(&table), "");
            return self.draft.add(block);
        }
        self.draft.add_behavior_change(format!(
            "All mail gets 451 until you replace the [[content]] rule for {element}, whose lines cannot be read \
             ({parameter})."
        ));
        let rule = TableRule { matches: vec![EVERY_LINE.to_owned()], unless: Vec::new(), action };
        self.draft.add(section(&rule, parameter, number, places));
    }
}

/// The patterns of a table without patterns, whose keys are whole lines, and their actions: one pattern
/// for all keys with the same action, since no line has two keys.
///
/// Most such tables are compiled by postmap(1), which folds the keys unless it is told not to, and are
/// asked for lines as they are. The patterns match at least what either form of the key does, but those
/// that protect a line match only the folded key.
fn entry_patterns(entries: &[(String, String)]) -> Vec<(String, String)> {
    let mut of_actions: Vec<(&str, Vec<String>)> = Vec::new();
    for (key, action) in entries {
        let key = key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key);
        let key: String = key.chars().map(escaped).collect();
        match of_actions.iter_mut().find(|(known, keys)| known == action && keys.len() < KEYS_OF_PATTERN_MAX) {
            Some((_, keys)) => keys.push(key),
            None => of_actions.push((action, vec![key])),
        }
    }
    let pattern = |(action, keys): (&str, Vec<String>)| {
        let is_protection = matches!(rule_action(action, true), Ok(("accept", _)));
        let keys = keys.join("|");
        let pattern =
            if is_protection { format!("(?-i)^(?:{})$", keys.to_lowercase()) } else { format!("^(?:{keys})$") };
        (pattern, action.to_owned())
    };
    of_actions.into_iter().map(pattern).collect()
}

/// The rules of patterns in our notation.
fn fixed_rules(patterns: Vec<(String, String)>, is_body: bool) -> TableRules {
    let mut made = TableRules::default();
    for (pattern, action) in patterns {
        match rule_action(&action, is_body) {
            Ok((_, Some(("text", text)))) if text.contains("${") => {
                made.lost.push((action, "its text names a group, and the key has none"));
            }
            Ok(action) => made.rules.push(TableRule { matches: vec![pattern], unless: Vec::new(), action }),
            Err(why) => made.lost.push((action, why)),
        }
    }
    made
}

fn line_count(number: usize) -> String {
    if number == 1 { "1 line".to_owned() } else { format!("{number} lines") }
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

/// The rules of a table, and the lines that are not translated as they are. `kind`: its type.
fn table_rules(text: &str, kind: &str, is_body: bool) -> TableRules {
    let mut made = TableRules::default();
    let mut conditions: Vec<ConvertedPattern> = Vec::new();
    for line in logical_lines(text) {
        let plain = without_flag(line.trim().to_owned(), kind);
        // Else its flag is one that is not supported.
        let line = plain.as_deref().unwrap_or(line.trim());
        let word = line.get(..5).unwrap_or(line);
        if word.eq_ignore_ascii_case("endif") {
            conditions.pop();
        } else if let Some(condition) = line.get(..2).filter(|word| word.eq_ignore_ascii_case("if")).map(|_| &line[2..])
        {
            // Postfix ignores a line that is no pattern, too.
            conditions.extend(pattern(condition.trim()).map(|(pattern, _)| pattern));
        } else {
            made.add_line(line, &conditions, is_body);
        }
    }
    made
}

impl TableRules {
    fn add_line(&mut self, line: &str, conditions: &[ConvertedPattern], is_body: bool) {
        match rule(line, conditions, is_body) {
            Ok((rule, None)) => self.rules.push(rule),
            Ok((rule, Some(why))) => match weakened_action(&rule.action) {
                Some(action) => {
                    self.rules.push(TableRule { action, ..rule });
                    self.deferred.push((line.to_owned(), why));
                }
                None => self.lost.push((line.to_owned(), why)),
            },
            Err(why) => self.lost.push((line.to_owned(), why)),
        }
    }
}

/// What a rule does that matches more than its line. None: it is better left out.
fn weakened_action(action: &Action) -> Option<Action> {
    match action.0 {
        "refuse" | "discard" => Some(("defer", Some(("reply", DEFERRED.to_owned())))),
        "hold" => Some(action.clone()),
        _ => None,
    }
}

/// The rule of a line, and why it matches more than the line, if it does.
fn rule(
    line: &str,
    conditions: &[ConvertedPattern],
    is_body: bool,
) -> Result<(TableRule, Option<&'static str>), &'static str> {
    let (own, action) = pattern(line).ok_or("it is no pattern")?;
    let own_groups = match &own {
        ConvertedPattern::Exact(own) if !own.is_negated => {
            own.text.parse::<Pattern>().map_or(0, |pattern| pattern.groups())
        }
        _ => 0,
    };
    let (mut matches, mut unless, mut weakened) = (Vec::new(), Vec::new(), None);
    // The groups in texts are those of the first pattern.
    for pattern in std::iter::once(own).chain(conditions.iter().cloned()) {
        match pattern {
            ConvertedPattern::Exact(pattern) if pattern.is_negated => unless.push(pattern.text),
            ConvertedPattern::Exact(pattern) => matches.push(pattern.text),
            ConvertedPattern::Weakened(text, why) => {
                weakened = Some(why);
                matches.push(text);
            }
        }
    }
    let action = rule_action(action, is_body)?;
    let texts = action.1.iter().filter(|(key, _)| *key == "text");
    if texts.flat_map(|(_, text)| text.split("${").skip(1)).any(|group| group_number(group) > own_groups) {
        return Err("its text names a group that the pattern does not have");
    }
    Ok((TableRule { matches, unless, action }, weakened))
}

/// A pattern in our notation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ConvertedPattern {
    Exact(TablePattern),
    /// It matches at least the same lines; why it is not exact.
    Weakened(String, &'static str),
}

/// The pattern at the start of a line, and what follows it.
fn pattern(line: &str) -> Option<(ConvertedPattern, &str)> {
    let end = pattern_end(line)?;
    let (whole, rest) = (line[..end].trim_start(), line[end..].trim());
    let bare = whole.trim_start_matches(['!', ' ', '\t']);
    let mark = bare.chars().next()?;
    let close = bare.rfind(mark).filter(|close| *close > 0)?;
    let (text, flags) = (&bare[mark.len_utf8()..close], &bare[close + mark.len_utf8()..]);
    let (text, is_negated) = (text.replace(&format!("\\{mark}"), &escaped(mark)), whole.starts_with('!'));
    let Some(flags) = inline_flags(flags) else {
        return Some((ConvertedPattern::Weakened(EVERY_LINE.into(), "its flags are not supported"), rest));
    };
    let exact = format!("{flags}{text}");
    if exact.parse::<Pattern>().is_ok() {
        return Some((ConvertedPattern::Exact(TablePattern { text: exact, is_negated }), rest));
    }
    let weakened = Some(format!("{flags}{}", weakened_pattern(&text))).filter(|_| !is_negated);
    let weakened = weakened.filter(|text| text.parse::<Pattern>().is_ok()).unwrap_or_else(|| EVERY_LINE.into());
    let why = "this server has no such pattern: back-references and look-around are not supported";
    Some((ConvertedPattern::Weakened(weakened, why), rest))
}

/// A pattern without look-around, and with back-references that match anything: all that the given one
/// matches is matched by it, too.
fn weakened_pattern(text: &str) -> String {
    let mut weakened = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let looks = ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|start| rest.starts_with(start));
        let count = match first {
            '\\' if rest[1..].starts_with(|digit: char| digit.is_ascii_digit()) => {
                weakened.push_str(".*");
                2
            }
            '\\' => {
                let end = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                weakened.push_str(&rest[..end]);
                end
            }
            '[' => {
                let end = class_end(rest);
                weakened.push_str(&rest[..end]);
                end
            }
            '(' if looks => group_end(rest),
            '(' if rest.starts_with("(?>") => {
                weakened.push_str("(?:");
                3
            }
            _ => {
                weakened.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[count..];
    }
    weakened
}

/// The end of the group at the start of a text.
fn group_end(text: &str) -> usize {
    let (mut depth, mut place) = (0_usize, 0);
    while let Some(c) = text[place..].chars().next() {
        let len = match c {
            '\\' => 1 + text[place + 1..].chars().next().map_or(0, char::len_utf8),
            '[' => class_end(&text[place..]),
            c => c.len_utf8(),
        };
        depth = depth + usize::from(c == '(') - usize::from(c == ')' && depth > 0);
        place += len;
        if depth == 0 {
            return place;
        }
    }
    text.len()
}

/// A delimiter in the pattern, which needs no backslash here unless it has a meaning.
fn escaped(mark: char) -> String {
    if "\\.+*?()|[]{}^$#&-~".contains(mark) { format!("\\{mark}") } else { mark.to_string() }
}

/// Each flag inverts a default; lines have no line breaks here, so some have no meaning. None: a flag is
/// unknown.
fn inline_flags(flags: &str) -> Option<String> {
    let is_known = flags.chars().all(|flag| "iUsmEX".contains(flag));
    let is_set = |flag: char| flags.matches(flag).count() % 2 == 1;
    let inline = [('i', "(?-i)"), ('U', "(?U)")].into_iter().filter(|(flag, _)| is_set(*flag));
    is_known.then(|| inline.map(|(_, text)| text).collect())
}

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
        "FILTER" => ("filter", Some(("filter", text.to_owned()))),
        "PASS" => return Err("the checks of the rest cannot be turned off"),
        _ => return Err("its action is not supported"),
    })
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
        let TableRules { rules, deferred, lost } = table_rules(text, "pcre", false);
        assert!(deferred.is_empty() && lost.is_empty(), "{deferred:?} {lost:?}");
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
    fn what_refuses_defers_where_its_pattern_is_weakened_and_the_rest_is_lost() {
        let text = "/^Subject: (a)\\1(?!x)b/ REJECT\n/a/ FILTER x:y\nif /^X:(?=b)/\n/c/ DISCARD\nendif\n/d/ REDIRECT $1\n\
                    /e/ PREPEND X: y\nf REJECT\n/g/E REJECT\n!/(?=h)/ HOLD\n/(?=i)/ DUNNO\n/j/ PASS\n/k/Q REJECT\n";
        let TableRules { rules, deferred, lost } = table_rules(text, "pcre", true);
        let shown: Vec<String> = rules.iter().map(|rule| format!("{:?} {}", rule.matches, rule.action.0)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        ["^Subject: (a).*b"] defer
        ["a"] filter
        ["c", "^X:"] defer
        ["g"] refuse
        ["^"] hold
        ["^"] defer
        "#);
        assert_eq!((deferred.len(), lost.len()), (4, 5), "{lost:?}");
    }

    #[test]
    fn the_flag_x_depends_on_the_type_of_the_table() {
        let text = "/^Subject: [ab ]x y # z/x REJECT\nif /a b/x\n/c/ii DISCARD\nendif\n";
        let shown = |kind| {
            let TableRules { rules, .. } = table_rules(text, kind, false);
            rules.iter().map(|rule| format!("{:?} {}", rule.matches, rule.action.0)).collect::<Vec<_>>()
        };
        assert_eq!(shown("pcre"), [r#"["^Subject:[ab ]xy"] refuse"#, r#"["c", "ab"] discard"#]);
        assert_eq!(shown("regexp"), [r#"["^"] defer"#, r#"["c", "^"] defer"#]);
    }

    #[test]
    fn whole_lines_become_one_pattern_for_each_action() {
        let entries = [
            ("\"Subject: A.b\"", "REJECT no"),
            ("TVqQAA", "DUNNO"),
            ("x|y", "REJECT no"),
            ("z", "REPLACE $1"),
            ("w", "FILTER"),
        ];
        let entries = entries.map(|(key, action)| (key.to_owned(), action.to_owned()));
        let TableRules { rules, lost, .. } = fixed_rules(entry_patterns(&entries), true);
        let shown: Vec<String> = rules.iter().map(|rule| format!("{:?} {:?}", rule.matches, rule.action)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r#"
        ["^(?:Subject: A\\.b|x\\|y)$"] ("refuse", Some(("reply", "550 5.7.1 no")))
        ["(?-i)^(?:tvqqaa)$"] ("accept", None)
        ["^(?:w)$"] ("filter", Some(("filter", "")))
        "#);
        assert_eq!(lost, [("REPLACE $1".to_owned(), "its text names a group, and the key has none")]);
        for rule in &rules {
            let pattern: Pattern = rule.matches[0].parse().unwrap();
            assert_eq!(pattern.groups(), 0);
        }
    }

    proptest::proptest! {
        /// No text panics, and a pattern without look-around and back-references stays as it is.
        #[test]
        fn any_pattern_is_weakened(text in "[a(?=!<>)\\\\1\\[\\]^]{0,20}|(?s).{0,20}") {
            weakened_pattern(&text);
        }
    }

    #[test]
    fn replies_and_groups_are_those_of_the_table() {
        assert_eq!(reply("5.1.1 gone").as_deref(), Some("550 5.1.1 gone"));
        assert_eq!((reply(""), reply("about $1"), reply("\u{e4}")), (None, None, None));
        assert_eq!(groups("a $1b ${2} $(3) $$ $x"), "a ${1}b ${2} ${3} $$ $$x");
    }
}
