//! `[[content]]`: rules about header fields, lines of the body and attachments.

use filter::content::{AttachmentCondition, ContentAction, ContentRule, LineCondition, LineScope};
use filter::{Field, ServiceScope};
use mail::Reply;
use toml::Spanned;

use super::external::scope;
use super::{Unique, check_known_name, take_reference, unspanned};
use crate::section::{Keywords, Section, quoted_choices};
use crate::value_kind::{self, ValueKind};
use crate::{ListenerSettings, QueueSettings};

/// Each message may cost an evaluation of all rules.
const RULES_MAX: usize = 1000;

/// The words for scopes.
const SCOPES: [(&str, LineScope); 4] = [
    ("header", LineScope::Header),
    ("mime", LineScope::Mime),
    ("nested", LineScope::Nested),
    ("body", LineScope::Body),
];

const SCOPE: ValueKind<LineScope> = ValueKind {
    expected: "\"header\", \"mime\", \"nested\" or \"body\"",
    parse: |v| SCOPES.iter().find(|(word, _)| v.as_str() == Some(word)).map(|(_, scope)| *scope),
};

/// The words for actions, before what belongs to them is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ActionWord {
    Accept,
    Refuse,
    Defer,
    Hold,
    Discard,
    Redirect,
    Bcc,
    Prepend,
    Replace,
    Remove,
    Queue,
    Filter,
    Warn,
}

const ACTION: Keywords<ActionWord> = Keywords {
    supported: &[
        ("accept", ActionWord::Accept),
        ("refuse", ActionWord::Refuse),
        ("defer", ActionWord::Defer),
        ("hold", ActionWord::Hold),
        ("discard", ActionWord::Discard),
        ("redirect", ActionWord::Redirect),
        ("bcc", ActionWord::Bcc),
        ("prepend", ActionWord::Prepend),
        ("replace", ActionWord::Replace),
        ("remove", ActionWord::Remove),
        ("queue", ActionWord::Queue),
        ("filter", ActionWord::Filter),
        ("warn", ActionWord::Warn),
    ],
    planned: &[],
};

pub(super) fn rules(
    document: &mut Section<'_, '_>,
    tables: &[String],
    transports: &[String],
    listeners: &[ListenerSettings],
    queues: &[QueueSettings],
) -> Vec<ContentRule> {
    let sections = document.sections("content").unwrap_or_default();
    if let Some(section) = sections.get(RULES_MAX) {
        let label = format!("expected at most {RULES_MAX}");
        section.report(section.span(), "content", "has too many rules", label);
    }
    let queues: Vec<String> = queues.iter().map(|queue| queue.name.to_string()).collect();
    let (mut names, inputs) = (Unique::default(), RuleInputs { tables, transports, listeners, queues: &queues });
    let rule = |(number, section)| rule(number, section, &inputs, &mut names);
    (1..).zip(sections).filter_map(rule).collect()
}

/// What rules need to know of other sections.
struct RuleInputs<'a> {
    tables: &'a [String],
    transports: &'a [String],
    listeners: &'a [ListenerSettings],
    queues: &'a [String],
}

fn rule(
    number: usize,
    mut section: Section<'_, '_>,
    inputs: &RuleInputs<'_>,
    names: &mut Unique,
) -> Option<ContentRule> {
    let (name, place) = match section.take_spanned("name", &value_kind::TEXT) {
        Some(name) => (name.get_ref().clone(), name.span()),
        None => (format!("content {number}"), section.span()),
    };
    names.insert(&section, "name", &name, place);
    let local_programs = section.take_or("local_programs", &value_kind::FLAG, true);
    let scope = ServiceScope { local_programs, ..scope(&mut section, inputs.listeners) };
    let list_place = section.span_of("list");
    let list = section.take("list", &value_kind::TEXT);
    let lines = lines(&mut section, inputs.tables);
    if list.is_some() && lines.as_ref().is_none_or(|lines| lines.table.is_some()) {
        let label = "expected a rule with `matches` and without `table`: a list shares the lines of a message";
        section.report(list_place, "list", "has a rule that takes no line", label.to_owned());
    }
    let attachment = section.section("attachment").and_then(|section| attachment(section, inputs.tables));
    let action = action(&mut section, lines.as_ref(), attachment.is_some(), inputs)?;
    Some(ContentRule { name: name.into(), list: list.map(Into::into), scope, lines, attachment, action })
}

/// The condition on lines; None if the rule has none.
fn lines(section: &mut Section<'_, '_>, tables: &[String]) -> Option<LineCondition> {
    let of_scopes = section.span_of("in");
    let scopes = section.one_or_list("in", &SCOPE).map(unspanned);
    let fields = section.one_or_list("fields", &value_kind::FIELD_NAME).map(unspanned).unwrap_or_default();
    let matches = section.one_or_list("matches", &value_kind::REGEXP).map(unspanned).unwrap_or_default();
    let unless = section.one_or_list("unless", &value_kind::REGEXP).map(unspanned).unwrap_or_default();
    let table = take_reference(section, "table", "[[table]]", tables);
    if scopes.is_none() && fields.is_empty() && matches.is_empty() && unless.is_empty() && table.is_none() {
        return None;
    }
    let scopes = scopes.unwrap_or_else(|| vec![LineScope::Header]);
    if matches.is_empty() && unless.is_empty() && fields.is_empty() && table.is_none() {
        let label = "expected `matches`, `unless`, `fields` or `table`".to_owned();
        section.report(of_scopes.clone(), "in", "says nothing about the line", label);
    }
    if !fields.is_empty() && scopes.contains(&LineScope::Body) {
        let label = "expected no \"body\", which has no fields".to_owned();
        section.report(of_scopes, "in", "does not match `fields`", label);
    }
    Some(LineCondition { scopes, fields, matches, unless, table: table.map(|table| table.into_inner().into()) })
}

fn attachment(mut section: Section<'_, '_>, tables: &[String]) -> Option<AttachmentCondition> {
    let mut patterns = |key| section.one_or_list(key, &value_kind::NAME_PATTERN).map(unspanned).unwrap_or_default();
    let (mut names, types) = (patterns("names"), patterns("types"));
    names.extend(section.one_or_list("matches", &value_kind::REGEXP).map(unspanned).unwrap_or_default());
    let larger_than = section.take("larger_than", &value_kind::SIZE);
    let table = take_reference(&mut section, "table", "[[table]]", tables).map(|table| table.into_inner().into());
    Some(AttachmentCondition { names, types, larger_than, table })
}

fn action(
    section: &mut Section<'_, '_>,
    lines: Option<&LineCondition>,
    has_attachment: bool,
    inputs: &RuleInputs<'_>,
) -> Option<ContentAction> {
    let place = section.span_of("action");
    let word = section.take_required_choice("action", &ACTION)?;
    let is_change = matches!(word, ActionWord::Replace | ActionWord::Remove);
    if is_change && (lines.is_none() || has_attachment) {
        let label = "expected a rule about lines, without `attachment`: attachments cannot be changed".to_owned();
        section.report(place, "action", "has no line to change", label);
    }
    reject_others(section, word);
    Some(match word {
        ActionWord::Accept => ContentAction::Accept,
        ActionWord::Hold => ContentAction::Hold,
        ActionWord::Discard => ContentAction::Discard,
        ActionWord::Remove => ContentAction::Remove,
        ActionWord::Warn => ContentAction::Warn,
        ActionWord::Refuse => ContentAction::Refuse(reply(section, Reply::is_permanent, "5")),
        ActionWord::Defer => ContentAction::Defer(reply(section, Reply::is_transient, "4")),
        ActionWord::Redirect => {
            ContentAction::Redirect(section.take_required("to", &value_kind::ADDRESS)?.into_inner())
        }
        ActionWord::Bcc => ContentAction::Bcc(section.take_required("to", &value_kind::ADDRESS)?.into_inner()),
        ActionWord::Prepend => ContentAction::Prepend(text(section, lines, true)?),
        ActionWord::Replace => {
            let is_field = lines.is_some_and(|lines| lines.scopes.iter().any(|scope| *scope != LineScope::Body));
            ContentAction::Replace(text(section, lines, is_field)?)
        }
        ActionWord::Queue => {
            let name = section.take_required("queue", &value_kind::TEXT)?;
            check_known_name(section, "queue", &name, "[[queue]]", inputs.queues);
            ContentAction::Queue(name.into_inner().into())
        }
        ActionWord::Filter => ContentAction::Filter(filter(section, inputs.transports)?),
    })
}

/// Reports the keys that belong to other actions.
fn reject_others(section: &mut Section<'_, '_>, word: ActionWord) {
    let owners: [(&'static str, &[ActionWord]); 5] = [
        ("reply", &[ActionWord::Refuse, ActionWord::Defer]),
        ("to", &[ActionWord::Redirect, ActionWord::Bcc]),
        ("text", &[ActionWord::Prepend, ActionWord::Replace]),
        ("queue", &[ActionWord::Queue]),
        ("filter", &[ActionWord::Filter]),
    ];
    for (key, owners) in owners.into_iter().filter(|(_, owners)| !owners.contains(&word)) {
        let words = ACTION.supported.iter().filter(|(_, known)| owners.contains(known)).map(|(word, _)| *word);
        let label = format!("expected only with the action {}", quoted_choices(words));
        section.reject(key, &label);
    }
}

/// A content filter: a transport, a colon, and perhaps its next hop.
fn filter(section: &mut Section<'_, '_>, transports: &[String]) -> Option<Box<str>> {
    let destination: Spanned<String> = section.take_required("filter", &value_kind::TEXT)?;
    let text = destination.get_ref();
    match text.split_once(':').filter(|_| text.bytes().all(|octet| octet.is_ascii_graphic())) {
        Some((transport, _)) => {
            let name = Spanned::new(destination.span(), transport.to_owned());
            check_known_name(section, "filter", &name, "[transport.NAME]", transports);
        }
        None => {
            let label = "expected a transport and a next hop, such as \"amavis:[127.0.0.1]:10024\"".to_owned();
            section.report(destination.span(), "filter", "has an invalid value", label);
        }
    }
    Some(destination.into_inner().into())
}

fn reply(section: &mut Section<'_, '_>, is_right: fn(&Reply) -> bool, class: &str) -> Option<Reply> {
    let reply = section.take_spanned("reply", &value_kind::REPLY)?;
    if !is_right(reply.get_ref()) {
        let label = format!("expected a code from {class}00 to {class}99 with this action");
        section.report(reply.span(), "reply", "does not match `action`", label);
    }
    Some(reply.into_inner())
}

/// The new field or line. Groups are those of the first pattern.
fn text(section: &mut Section<'_, '_>, lines: Option<&LineCondition>, is_field: bool) -> Option<Box<str>> {
    let text: Spanned<String> = section.take_required("text", &value_kind::TEXT)?;
    let name_and_value = text.get_ref().split_once(':');
    let is_sound = name_and_value.is_some_and(|(name, value)| Field::new(name, value.trim()).is_ok());
    if is_field && !is_sound {
        let label = "expected a header field such as \"X-Checked: yes\"".to_owned();
        section.report(text.span(), "text", "has an invalid value", label);
    }
    let groups = lines.and_then(|lines| lines.matches.first()).map_or(0, |pattern| pattern.groups());
    if let Some(group) = group_numbers(text.get_ref()).find(|group| *group > groups) {
        let label = format!("found the group {group}; the first of `matches` has {groups}. $$ is a dollar sign");
        section.report(text.span(), "text", "names an unknown group", label);
    }
    Some(text.into_inner().into())
}

/// The numbers after dollar signs.
fn group_numbers(text: &str) -> impl Iterator<Item = usize> {
    let after_dollars = text.split("$$").flat_map(|part| part.split('$').skip(1));
    after_dollars.filter_map(|part| {
        let digits = part.trim_start_matches('{');
        digits[..digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(rule: &str) -> Result<Vec<ContentRule>, String> {
        let text = format!(
            "[[table]]\nname = \"t\"\ntype = \"static\"\nvalues = [\"OK\"]\n[[queue]]\nname = \"slow\"\n[[content]]\n{rule}\n"
        );
        Config::parse(&text, "text", "mx.here").map(|config| config.content).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_rule_looks_at_the_header_unless_it_says_otherwise() {
        let rules =
            parse("matches = '^Subject: (.*)'\nfields = \"Subject\"\naction = \"prepend\"\ntext = \"X-S: ${1}\"")
                .unwrap();
        let lines = rules[0].lines.as_ref().unwrap();
        assert_eq!((&*rules[0].name, &*lines.scopes), ("content 1", &[LineScope::Header][..]));
        assert_eq!(
            (&*lines.fields[0], rules[0].action.clone()),
            ("subject", ContentAction::Prepend("X-S: ${1}".into()))
        );
        let everything = parse("action = \"bcc\"\nto = \"archive@localhost\"").unwrap();
        assert_eq!((&everything[0].lines, &everything[0].attachment), (&None, &None));
        let of_body = parse("in = \"body\"\ntable = \"t\"\naction = \"hold\"").unwrap();
        assert_eq!(of_body[0].lines.as_ref().unwrap().table.as_deref(), Some("t"));
        let attachment =
            parse("attachment = { names = [\"*.exe\"], larger_than = \"1MiB\" }\naction = \"hold\"").unwrap();
        assert_eq!(attachment[0].attachment.as_ref().unwrap().larger_than, Some(1 << 20));
        let attachment =
            parse("attachment = { names = \"*.exe\", matches = '\\.js$', table = \"t\" }\naction = \"hold\"").unwrap();
        let attachment = attachment[0].attachment.as_ref().unwrap();
        assert_eq!((attachment.names.len(), attachment.table.as_deref()), (2, Some("t")));
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (rule, expected) in [
            ("matches = '('\naction = \"hold\"", "a regular expression"),
            ("matches = '(?=x)'\naction = \"hold\"", "without back-references"),
            ("matches = 'x'", "`content.action` is missing"),
            ("matches = 'x'\naction = \"redirect\"", "`content.to` is missing"),
            (
                "matches = 'x'\naction = \"hold\"\ntext = \"x\"",
                "expected only with the action \"prepend\" or \"replace\"",
            ),
            ("matches = 'x'\naction = \"refuse\"\nreply = \"450 x\"", "from 500 to 599"),
            ("matches = 'x'\naction = \"prepend\"\ntext = \"no field\"", "expected a header field"),
            ("matches = '(x)'\naction = \"prepend\"\ntext = \"X: $2\"", "found the group 2"),
            ("matches = 'x'\naction = \"queue\"\nqueue = \"slwo\"", "unknown [[queue]]"),
            ("matches = 'x'\naction = \"filter\"\nfilter = \"avis:\"", "unknown [transport.NAME]"),
            ("matches = 'x'\naction = \"filter\"\nfilter = \"smtp\"", "`content.filter` has an invalid value"),
            ("in = \"header\"\naction = \"hold\"", "says nothing about the line"),
            ("in = \"body\"\nfields = \"X\"\naction = \"hold\"", "does not match `fields`"),
            ("list = \"l\"\naction = \"hold\"", "takes no line"),
            ("attachment = {}\naction = \"remove\"", "has no line to change"),
            ("matches = 'x'\naction = \"hold\"\nlisteners = [\"127.0.0.1:1\"]", "names no listener"),
        ] {
            let faults = parse(rule).unwrap_err();
            assert!(faults.contains(expected), "{rule}\n{faults}");
        }
    }
}
