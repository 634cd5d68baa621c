//! `[[access]]`. The conditions of a rule determine the earliest stage at which it can be checked.

use std::collections::HashMap;

use intake::access::{Action, Stage, Subject};
use mail::Reply;
use toml::Spanned;

use super::{Unique, bare, named};
use crate::config::access::{AccessRule, Zone};
use crate::config::key::{self, Kind};
use crate::config::section::{Choice, Section};

/// Each client may cost a check of all rules.
const RULES_MAX: usize = 1000;

const STAGE: Choice<Stage> = Choice {
    built: &[("connect", Stage::Connect), ("helo", Stage::Helo), ("mail", Stage::Mail), ("rcpt", Stage::Rcpt)],
    later: &[],
};

/// The words for actions, before their replies are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Accept,
    Refuse,
    Defer,
    Hold,
    Table,
}

const ACTION: Choice<Word> = Choice {
    built: &[
        ("accept", Word::Accept),
        ("refuse", Word::Refuse),
        ("defer", Word::Defer),
        ("hold", Word::Hold),
        ("table", Word::Table),
    ],
    later: &[],
};

pub(super) fn rules(document: &mut Section<'_, '_>, tables: &[String]) -> Vec<AccessRule> {
    let sections = document.sections("access").unwrap_or_default();
    if let Some(section) = sections.get(RULES_MAX) {
        let label = format!("expected at most {RULES_MAX}; put long lists of clients, names and addresses into tables");
        section.state(section.place(), "access", "has too many rules", label);
    }
    let mut claims = Claims::default();
    let rule = |(place, section)| rule(place, section, tables, &mut claims);
    (1..).zip(sections).filter_map(rule).collect()
}

/// What later rules must agree with.
#[derive(Default)]
struct Claims {
    names: Unique,
    /// The stage of each list.
    stages: HashMap<Box<str>, Stage>,
}

fn rule(place: usize, mut section: Section<'_, '_>, tables: &[String], claims: &mut Claims) -> Option<AccessRule> {
    let (name, at) = match section.placed("name", &key::TEXT) {
        Some(name) => (name.get_ref().clone(), name.span()),
        None => (format!("rule {place}"), section.place()),
    };
    claims.names.claim(&section, "name", &name, at);
    let list = section.placed("list", &key::TEXT);
    let table = |section: &mut Section<'_, '_>, key| named(section, key, "[[table]]", tables).map(text);
    let mut rule = AccessRule {
        name: name.into(),
        list: list.as_ref().map(|list| list.get_ref().as_str().into()),
        stage: Stage::Connect,
        users: true,
        clients: some(&mut section, "clients", &key::NETWORK),
        clients_in: table(&mut section, "clients_in"),
        helos: some(&mut section, "helos", &key::PATTERN),
        helos_in: table(&mut section, "helos_in"),
        senders: some(&mut section, "senders", &key::SENDER_PATTERN),
        senders_in: table(&mut section, "senders_in"),
        recipients: some(&mut section, "recipients", &key::RECIPIENT_PATTERN),
        recipients_in: table(&mut section, "recipients_in"),
        dnsbl: section.section("dnsbl").and_then(zone),
        action: Action::Accept,
    };
    rule.stage = stage(&mut section, &rule);
    if let Some(list) = list {
        let first = *claims.stages.entry(list.get_ref().as_str().into()).or_insert(rule.stage);
        if first != rule.stage {
            let label = format!("expected `stage = {:?}`, as in the first rule of this list", first.word());
            section.state(list.span(), "list", "has rules with another stage", label);
        }
    }
    // Users often have addresses that are listed because of others.
    rule.users = section.take_or("users", &key::FLAG, rule.dnsbl.is_none());
    rule.action = action(&mut section, &rule)?;
    Some(rule)
}

fn text(text: Spanned<String>) -> Box<str> {
    text.into_inner().into()
}

/// A list that is not empty: an empty one would be a condition that never holds, which is never
/// intended.
fn some<T>(section: &mut Section<'_, '_>, key: &'static str, kind: &Kind<T>) -> Vec<T> {
    let place = section.place_of(key);
    let Some(list) = section.list(key, kind) else { return Vec::new() };
    if list.is_empty() {
        section.state(place, key, "is empty", format!("expected {}, or remove the key", kind.expected));
    }
    bare(list)
}

fn zone(mut section: Section<'_, '_>) -> Option<Zone> {
    let zone = section.required("zone", &key::HOST);
    let codes = some(&mut section, "codes", &key::CODES);
    Some(Zone { zone: zone?.into_inner(), codes })
}

/// The given stage, or the first at which all conditions are known.
fn stage(section: &mut Section<'_, '_>, rule: &AccessRule) -> Stage {
    let of = |subject: Subject, is_there: bool| is_there.then(|| subject.stage());
    let needed = [
        of(Subject::Helo, !rule.helos.is_empty() || rule.helos_in.is_some()),
        of(Subject::Sender, !rule.senders.is_empty() || rule.senders_in.is_some()),
        of(Subject::Recipient, !rule.recipients.is_empty() || rule.recipients_in.is_some()),
    ];
    let earliest = needed.into_iter().flatten().max().unwrap_or(Stage::Connect);
    let place = section.place_of("stage");
    match section.choice("stage", &STAGE) {
        Some(stage) if stage < earliest => {
            let label = format!("the conditions of the rule are known only at {:?}", earliest.word());
            section.state(place, "stage", "is too early", label);
            earliest
        }
        Some(stage) => stage,
        None => earliest,
    }
}

fn action(section: &mut Section<'_, '_>, rule: &AccessRule) -> Option<Action> {
    let place = section.place_of("action");
    let word = section.required_choice("action", &ACTION);
    let tables = [&rule.clients_in, &rule.helos_in, &rule.senders_in, &rule.recipients_in];
    let named = tables.iter().filter(|table| table.is_some()).count();
    if word == Some(Word::Table) && named != 1 {
        let label = format!("found {named} keys that name a table, expected one, whose values are the actions");
        section.state(place, "action", "needs a table", label);
    }
    let reply = match word? {
        Word::Refuse | Word::Defer => section.placed("reply", &key::REPLY),
        Word::Accept | Word::Hold | Word::Table => {
            section.refuse("reply", "expected only with \"refuse\" and \"defer\"");
            None
        }
    };
    let worded = |is_right: fn(&Reply) -> bool, class: &str| {
        reply.filter(|reply| {
            if !is_right(reply.get_ref()) {
                let label = format!("expected a code from {class}00 to {class}99 with this action");
                section.state(reply.span(), "reply", "does not match `action`", label);
            }
            true
        })
    };
    Some(match word? {
        Word::Accept => Action::Accept,
        Word::Hold => Action::Hold,
        Word::Table => Action::Table,
        Word::Refuse => Action::Refuse(worded(Reply::is_permanent, "5").map(Spanned::into_inner)),
        Word::Defer => Action::Defer(worded(Reply::is_transient, "4").map(Spanned::into_inner)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Vec<AccessRule>, String> {
        let text = format!("[[table]]\nname = \"t\"\ntype = \"static\"\nvalues = [\"OK\"]\n{text}");
        Config::parse(&text, "text", "mx.here").map(|config| config.access).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_rule_is_asked_when_all_is_known_that_it_names() {
        for (named, stage) in [
            ("", Stage::Connect),
            ("clients = [\"192.0.2.0/24\"]\n", Stage::Connect),
            ("dnsbl = { zone = \"list.example\" }\n", Stage::Connect),
            ("clients_in = \"t\"\nhelos = [\"*.example\"]\n", Stage::Helo),
            ("senders = [\"<>\"]\nhelos_in = \"t\"\n", Stage::Mail),
            ("recipients_in = \"t\"\nsenders_in = \"t\"\n", Stage::Rcpt),
            ("clients = [\"192.0.2.1\"]\nstage = \"rcpt\"\n", Stage::Rcpt),
        ] {
            let rules = parse(&format!("[[access]]\n{named}action = \"hold\"\n")).unwrap();
            assert_eq!(
                (rules[0].stage, &*rules[0].name, &rules[0].action),
                (stage, "rule 1", &Action::Hold),
                "{named}"
            );
        }
    }

    #[test]
    fn a_rule_that_names_a_list_is_for_users_only_where_it_says_so() {
        for (named, users) in [
            ("clients_in = \"t\"\n", true),
            ("users = false\n", false),
            ("dnsbl = { zone = \"list.example\" }\n", false),
            ("dnsbl = { zone = \"list.example\" }\nusers = true\n", true),
        ] {
            assert_eq!(parse(&format!("[[access]]\n{named}action = \"refuse\"\n")).unwrap()[0].users, users, "{named}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_told() {
        for (rule, told) in [
            ("clients = []\naction = \"accept\"", "is empty"),
            ("stage = \"connect\"\nsenders = [\"<>\"]\naction = \"accept\"", "known only at \"mail\""),
            ("clients = [\"192.0.2.1\"]", "`access.action` is missing"),
            ("action = \"accept\"\nreply = \"550 no\"", "is not allowed here"),
            ("action = \"refuse\"\nreply = \"450 later\"", "from 500 to 599"),
            ("action = \"defer\"\nreply = \"550 no\"", "from 400 to 499"),
            ("action = \"refuse\"\nreply = \"550 4.7.1 no\"", "a reply such as"),
            ("action = \"table\"\nclients = [\"192.0.2.1\"]", "found 0 keys"),
            ("action = \"table\"\nclients_in = \"t\"\nhelos_in = \"t\"", "found 2 keys"),
            ("action = \"hold\"\nclients_in = \"u\"", "unknown [[table]]"),
            ("action = \"hold\"\nrecipients = [\"<>\"]", "a mail address"),
            (
                "list = \"l\"\naction = \"hold\"\n[[access]]\nlist = \"l\"\nsenders = [\"<>\"]\naction = \"hold\"",
                "expected `stage = \"connect\"`",
            ),
            ("action = \"hold\"\ndnsbl = { codes = [\"127.0.0.2\"] }", "`access.dnsbl.zone` is missing"),
            ("action = \"hold\"\ndnsbl = { zone = \"a.example\", codes = [\"192.0.2.1\"] }", "an answer of the list"),
        ] {
            let faults = parse(&format!("[[access]]\n{rule}\n")).unwrap_err();
            assert!(faults.contains(told), "{rule}\n{faults}");
        }
        let twice = parse("[[access]]\nname = \"a\"\naction = \"hold\"\n[[access]]\nname = \"a\"\naction = \"hold\"\n");
        assert!(twice.unwrap_err().contains("\"a\" appears twice"));
        let as_another = parse("[[access]]\nname = \"rule 2\"\naction = \"hold\"\n[[access]]\naction = \"hold\"\n");
        assert!(as_another.unwrap_err().contains("\"rule 2\" appears twice"));
    }
}
