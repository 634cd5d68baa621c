//! `[[access]]`. The conditions of a rule determine the earliest stage at which it can be checked.

use std::collections::HashMap;
use std::ops::Range;

use filter::Stage;
use filter::access::{HeloFault, ReverseNameState, RhsblSubject, RuleAction, RuleSubject, SenderFault};
use mail::Reply;
use route::DomainPattern;
use sender_auth::{Method, VerificationSettings};
use toml::Spanned;

use super::external::listener_addresses;
use super::{Unique, take_reference, unspanned};
use crate::ListenerSettings;
use crate::access::{AccessRule, DnsblScoreSettings, DnsblZone};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};

/// Each client may cost a check of all rules.
const RULES_MAX: usize = 1000;

const STAGE: Keywords<Stage> = Keywords {
    supported: &[
        ("connect", Stage::Connect),
        ("helo", Stage::Helo),
        ("mail", Stage::Mail),
        ("rcpt", Stage::Rcpt),
        ("data", Stage::Data),
        ("message", Stage::Message),
    ],
    planned: &[],
};

const REVERSE_NAME: ValueKind<ReverseNameState> = ValueKind {
    expected: "\"missing\" or \"unconfirmed\"",
    parse: |v| {
        let states = [ReverseNameState::Missing, ReverseNameState::Unconfirmed];
        states.into_iter().find(|state| v.as_str() == Some(state.name()))
    },
};

const HELO_FAULT: ValueKind<HeloFault> = ValueKind {
    expected: "\"invalid\", \"not_qualified\", \"wrong_address\", \"own\" or \"unknown\"",
    parse: |v| HeloFault::ALL.into_iter().find(|fault| v.as_str() == Some(fault.name())),
};

const SENDER_FAULT: ValueKind<SenderFault> = ValueKind {
    expected: "\"not_qualified\" or \"unknown\"",
    parse: |v| SenderFault::ALL.into_iter().find(|fault| v.as_str() == Some(fault.name())),
};

const RHSBL_SUBJECT: ValueKind<RhsblSubject> = ValueKind {
    expected: "\"sender\", \"recipient\", \"helo\", \"client_name\" or \"reverse_name\"",
    parse: |v| RhsblSubject::ALL.into_iter().find(|subject| v.as_str() == Some(subject.name())),
};

/// Scores of DNS lists, and the weights that they are made of.
const SCORE: ValueKind<i32> = ValueKind {
    expected: "a whole number from -1000000 to 1000000",
    parse: |v| {
        let number = v.as_integer()?;
        let number = i32::from_str_radix(number.as_str(), number.radix()).ok()?;
        (number.abs() <= 1_000_000).then_some(number)
    },
};

/// The words for actions, before their replies are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ActionWord {
    Accept,
    Refuse,
    Defer,
    Hold,
    Table,
}

const ACTION: Keywords<ActionWord> = Keywords {
    supported: &[
        ("accept", ActionWord::Accept),
        ("refuse", ActionWord::Refuse),
        ("defer", ActionWord::Defer),
        ("hold", ActionWord::Hold),
        ("table", ActionWord::Table),
    ],
    planned: &[],
};

pub(super) fn rules(
    document: &mut Section<'_, '_>,
    tables: &[String],
    listeners: &[ListenerSettings],
    senders: &VerificationSettings,
) -> Vec<AccessRule> {
    let sections = document.sections("access").unwrap_or_default();
    if let Some(section) = sections.get(RULES_MAX) {
        let label = format!("expected at most {RULES_MAX}; put long lists of clients, names and addresses into tables");
        section.report(section.span(), "access", "has too many rules", label);
    }
    let mut seen = SeenRules::default();
    let inputs = RuleInputs { tables, listeners, senders };
    let rule = |(place, section)| rule(place, section, &inputs, &mut seen);
    (1..).zip(sections).filter_map(rule).collect()
}

/// What rules need to know of other sections.
struct RuleInputs<'a> {
    tables: &'a [String],
    listeners: &'a [ListenerSettings],
    senders: &'a VerificationSettings,
}

/// What later rules must agree with.
#[derive(Default)]
struct SeenRules {
    names: Unique,
    /// The stage of each list.
    stages: HashMap<Box<str>, Stage>,
}

fn rule(
    number: usize,
    mut section: Section<'_, '_>,
    inputs: &RuleInputs<'_>,
    seen: &mut SeenRules,
) -> Option<AccessRule> {
    let RuleInputs { tables, listeners, senders } = *inputs;
    let (name, at) = match section.take_spanned("name", &value_kind::TEXT) {
        Some(name) => (name.get_ref().clone(), name.span()),
        None => (format!("rule {number}"), section.span()),
    };
    seen.names.insert(&section, "name", &name, at);
    let list = section.take_spanned("list", &value_kind::TEXT);
    let table = |section: &mut Section<'_, '_>, key| take_reference(section, key, "[[table]]", tables).map(into_boxed);
    let mut rule = AccessRule {
        name: name.into(),
        list: list.as_ref().map(|list| list.get_ref().as_str().into()),
        class: section.take("class", &value_kind::TEXT).map(Into::into),
        stage: Stage::Connect,
        users: true,
        listeners: listener_addresses(&mut section, listeners),
        clients: non_empty_list(&mut section, "clients", &value_kind::NETWORK),
        clients_in: table(&mut section, "clients_in"),
        client_names_in: table(&mut section, "client_names_in"),
        reverse_names_in: table(&mut section, "reverse_names_in"),
        helos: non_empty_list(&mut section, "helos", &value_kind::PATTERN),
        helos_in: table(&mut section, "helos_in"),
        senders: non_empty_list(&mut section, "senders", &value_kind::SENDER_PATTERN),
        senders_in: table(&mut section, "senders_in"),
        recipients: non_empty_list(&mut section, "recipients", &value_kind::RECIPIENT_PATTERN),
        recipients_in: table(&mut section, "recipients_in"),
        dnsbl: section.section("dnsbl").and_then(|mut zone| dns_list(&mut zone)),
        dnsbl_score: section.section("dnsbl_score").and_then(dnsbl_score),
        rhsbl: section.section("rhsbl").and_then(rhsbl),
        reverse_name: non_empty_list(&mut section, "reverse_name", &REVERSE_NAME),
        helo_faults: non_empty_list(&mut section, "helo_is", &HELO_FAULT),
        sender_faults: non_empty_list(&mut section, "sender_is", &SENDER_FAULT),
        early_talker: early_talker(&mut section),
        recipients_min: section.take("recipients_min", &ValueKind::COUNT),
        verdicts: Method::ALL.iter().filter_map(|method| verdicts(&mut section, *method, senders)).collect(),
        dkim_domains: dkim_domains(&mut section, senders),
        chooses_filters: false,
        action: RuleAction::Accept,
    };
    rule.stage = stage(&mut section, &rule);
    if rule.stage >= Stage::Data {
        check_without_recipients(&section, &rule);
    }
    if let Some(list) = list {
        let first = *seen.stages.entry(list.get_ref().as_str().into()).or_insert(rule.stage);
        if first != rule.stage {
            let label = format!("expected `stage = {:?}`, as in the first rule of this list", first.name());
            section.report(list.span(), "list", "has rules with another stage", label);
        }
    }
    // Users often have addresses that are listed because of others.
    rule.users = section.take_or("users", &value_kind::FLAG, !rule.is_for_strangers());
    rule.chooses_filters = section.take_or("filters", &value_kind::FLAG, false);
    rule.action = action(&mut section, &rule)?;
    Some(rule)
}

/// From DATA on there are several recipients, and one reply.
fn check_without_recipients(section: &Section<'_, '_>, rule: &AccessRule) {
    if !rule.recipients.is_empty() || rule.recipients_in.is_some() {
        let label =
            "expected no condition on recipients: the rule decides about the message for all of them".to_owned();
        section.report(section.span(), "recipients", "is too late", label);
    }
}

fn into_boxed(text: Spanned<String>) -> Box<str> {
    text.into_inner().into()
}

/// A list that is not empty: an empty one would be a condition that never holds, which is never
/// intended.
fn non_empty_list<T>(section: &mut Section<'_, '_>, key: &'static str, kind: &ValueKind<T>) -> Vec<T> {
    let place = section.span_of(key);
    let Some(list) = section.list(key, kind) else { return Vec::new() };
    if list.is_empty() {
        section.report(place, key, "is empty", format!("expected {}, or remove the key", kind.expected));
    }
    unspanned(list)
}

/// `false` would be a condition that most clients meet, which is never intended.
fn early_talker(section: &mut Section<'_, '_>) -> bool {
    let value = section.take_spanned("early_talker", &value_kind::FLAG);
    if let Some(value) = value.as_ref().filter(|value| !value.get_ref()) {
        let label = "expected true, or remove the key".to_owned();
        section.report(value.span(), "early_talker", "has an invalid value", label);
    }
    value.is_some()
}

fn rhsbl(mut section: Section<'_, '_>) -> Option<(DnsblZone, Box<[RhsblSubject]>)> {
    let subjects = non_empty_list(&mut section, "of", &RHSBL_SUBJECT);
    let subjects = if subjects.is_empty() { vec![RhsblSubject::Sender] } else { subjects };
    Some((dns_list(&mut section)?, subjects.into()))
}

fn dnsbl_score(mut section: Section<'_, '_>) -> Option<DnsblScoreSettings> {
    let at_least = section.take_required("at_least", &SCORE).map(Spanned::into_inner);
    let place = section.span_of("lists");
    let mut lists = Vec::new();
    for mut list in section.sections("lists").unwrap_or_default() {
        let weight = list.take_or("weight", &SCORE, 1);
        lists.extend(dns_list(&mut list).map(|zone| (zone, weight)));
    }
    if lists.is_empty() {
        section.report(place, "lists", "is empty", "expected at least one list: { zone = ..., weight = ... }".into());
    }
    Some(DnsblScoreSettings { lists, at_least: at_least? })
}

fn dns_list(section: &mut Section<'_, '_>) -> Option<DnsblZone> {
    let zone = section.take_required("zone", &value_kind::HOST);
    let codes = non_empty_list(section, "codes", &value_kind::DNSBL_CODES);
    Some(DnsblZone { zone: zone?.into_inner(), codes })
}

/// The given stage, or the first at which all conditions are known.
fn stage(section: &mut Section<'_, '_>, rule: &AccessRule) -> Stage {
    let of = |subject: RuleSubject, is_there: bool| is_there.then(|| subject.stage());
    let needed = [
        of(RuleSubject::Helo, !rule.helos.is_empty() || rule.helos_in.is_some() || !rule.helo_faults.is_empty()),
        rule.rhsbl.iter().flat_map(|(_, names)| names).map(|name| name.subject().stage()).max(),
        of(RuleSubject::RecipientCount, rule.recipients_min.is_some()),
        of(
            RuleSubject::Sender,
            !rule.senders.is_empty() || rule.senders_in.is_some() || !rule.sender_faults.is_empty(),
        ),
        of(RuleSubject::Recipient, !rule.recipients.is_empty() || rule.recipients_in.is_some()),
        of(RuleSubject::Verdict, !rule.verdicts.is_empty() || !rule.dkim_domains.is_empty()),
    ];
    let earliest = needed.into_iter().flatten().max().unwrap_or(Stage::Connect);
    let place = section.span_of("stage");
    match section.choice("stage", &STAGE) {
        Some(stage) if stage < earliest => {
            let label = format!("the conditions of the rule are known only at {:?}", earliest.name());
            section.report(place, "stage", "is too early", label);
            earliest
        }
        Some(stage) => stage,
        None => earliest,
    }
}

/// The results of a method that the rule names; the method must be on.
fn verdicts(
    section: &mut Section<'_, '_>,
    method: Method,
    senders: &VerificationSettings,
) -> Option<(Method, Box<[&'static str]>)> {
    let words = section.one_or_list(method.name(), &value_kind::TEXT)?;
    let known = |word: &Spanned<String>| {
        let found = method.results().iter().find(|result| **result == word.get_ref());
        if found.is_none() {
            let label = format!("found {:?}, expected one of: {}", word.get_ref(), method.results().join(", "));
            section.report(word.span(), method.name(), "has an invalid value", label);
        }
        found.copied()
    };
    let results = words.iter().filter_map(known).collect();
    check_is_on(section, method.name(), words.first().map(Spanned::span), method, senders);
    Some((method, results))
}

fn dkim_domains(section: &mut Section<'_, '_>, senders: &VerificationSettings) -> Vec<DomainPattern> {
    let place = section.span_of("dkim_domains");
    let domains = non_empty_list(section, "dkim_domains", &value_kind::PATTERN);
    let place = (!domains.is_empty()).then_some(place);
    check_is_on(section, "dkim_domains", place, Method::Dkim, senders);
    domains
}

/// A condition on a method that is off would never hold.
fn check_is_on(
    section: &Section<'_, '_>,
    key: &str,
    place: Option<Range<usize>>,
    method: Method,
    senders: &VerificationSettings,
) {
    if let Some(place) = place.filter(|_| !senders.is_on(method)) {
        let label = format!("expected `{} = \"observe\"` or \"enforce\" in [sender_auth]", method.name());
        section.report(place, key, "never holds", label);
    }
}

fn action(section: &mut Section<'_, '_>, rule: &AccessRule) -> Option<RuleAction> {
    let place = section.span_of("action");
    let word = section.take_required_choice("action", &ACTION);
    let named = rule.tables().count();
    if word == Some(ActionWord::Table) && named != 1 {
        let label = format!("found {named} keys that name a table, expected one, whose values are the actions");
        section.report(place, "action", "needs a table", label);
    }
    let reply = match word? {
        ActionWord::Refuse | ActionWord::Defer => section.take_spanned("reply", &value_kind::REPLY),
        ActionWord::Accept | ActionWord::Hold | ActionWord::Table => {
            section.reject("reply", "expected only with \"refuse\" and \"defer\"");
            None
        }
    };
    let worded = |is_right: fn(&Reply) -> bool, class: &str| {
        reply.filter(|reply| {
            if !is_right(reply.get_ref()) {
                let label = format!("expected a code from {class}00 to {class}99 with this action");
                section.report(reply.span(), "reply", "does not match `action`", label);
            }
            true
        })
    };
    Some(match word? {
        ActionWord::Accept => RuleAction::Accept,
        ActionWord::Hold => RuleAction::Hold,
        ActionWord::Table => RuleAction::Table,
        ActionWord::Refuse => RuleAction::Refuse(worded(Reply::is_permanent, "5").map(Spanned::into_inner)),
        ActionWord::Defer => RuleAction::Defer(worded(Reply::is_transient, "4").map(Spanned::into_inner)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

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
            ("senders = [\"<>\"]\nspf = [\"fail\", \"softfail\"]\n", Stage::Message),
            ("dkim_domains = [\"*.a.example\"]\n", Stage::Message),
            ("reverse_name = [\"missing\"]\nearly_talker = true\n", Stage::Connect),
            ("helo_is = [\"own\", \"unknown\"]\n", Stage::Helo),
            ("sender_is = [\"not_qualified\", \"unknown\"]\n", Stage::Mail),
            ("client_names_in = \"t\"\n", Stage::Connect),
            ("reverse_names_in = \"t\"\nsenders = [\"<>\"]\n", Stage::Mail),
            ("dnsbl_score = { at_least = 2, lists = [{ zone = \"list.example\" }] }\n", Stage::Connect),
            ("recipients_min = 2\n", Stage::Data),
            ("rhsbl = { zone = \"list.example\" }\n", Stage::Mail),
            ("rhsbl = { zone = \"list.example\", of = [\"reverse_name\", \"helo\"] }\n", Stage::Helo),
        ] {
            let rules = parse(&format!("[[access]]\n{named}action = \"hold\"\n")).unwrap();
            assert_eq!(
                (rules[0].stage, &*rules[0].name, &rules[0].action),
                (stage, "rule 1", &RuleAction::Hold),
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
            ("rhsbl = { zone = \"list.example\" }\n", false),
            ("helo_is = [\"invalid\"]\n", false),
            ("reverse_name = [\"unconfirmed\"]\n", false),
            ("client_names_in = \"t\"\n", false),
            ("dnsbl_score = { at_least = 2, lists = [{ zone = \"list.example\" }] }\n", false),
            ("early_talker = true\n", false),
        ] {
            assert_eq!(parse(&format!("[[access]]\n{named}action = \"refuse\"\n")).unwrap()[0].users, users, "{named}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_told() {
        for (rule, expected) in [
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
            ("action = \"hold\"\ndmarc = \"softfail\"", "expected one of: none, pass, fail, temperror, permerror"),
            ("action = \"hold\"\nspf = \"fail\"\nrecipients = [\"@a.example\"]", "is too late"),
            ("action = \"hold\"\nspf = \"fail\"\nstage = \"mail\"", "known only at \"message\""),
            ("action = \"hold\"\ndkim_domains = []", "is empty"),
            ("action = \"hold\"\nhelo_is = []", "is empty"),
            ("action = \"hold\"\nhelo_is = [\"odd\"]", "`access.helo_is` has an invalid value"),
            ("action = \"hold\"\nreverse_name = [\"fail\"]", "`access.reverse_name` has an invalid value"),
            ("action = \"hold\"\nearly_talker = false", "expected true, or remove the key"),
            ("action = \"hold\"\nstage = \"rcpt\"\nrecipients_min = 2", "known only at \"data\""),
            ("action = \"hold\"\nlisteners = [\"192.0.2.9:99\"]", "names no listener"),
            ("action = \"hold\"\nrecipients_min = 0", "a whole number from 1"),
            ("action = \"hold\"\nrecipients_min = 2\nrecipients_in = \"t\"", "is too late"),
            ("action = \"hold\"\ndnsbl_score = { at_least = 2 }", "`access.dnsbl_score.lists` is empty"),
            ("action = \"hold\"\ndnsbl_score = { lists = [{ zone = \"a.example\" }] }", "at_least` is missing"),
            ("action = \"hold\"\nrhsbl = { of = [\"helo\"] }", "`access.rhsbl.zone` is missing"),
            ("action = \"hold\"\nstage = \"connect\"\nrhsbl = { zone = \"a.example\" }", "known only at \"mail\""),
            ("action = \"hold\"\narc = \"fail\"\n[sender_auth]\narc = \"off\"", "`access.arc` never holds"),
            (
                "list = \"l\"\naction = \"hold\"\n[[access]]\nlist = \"l\"\nsenders = [\"<>\"]\naction = \"hold\"",
                "expected `stage = \"connect\"`",
            ),
            ("action = \"hold\"\ndnsbl = { codes = [\"127.0.0.2\"] }", "`access.dnsbl.zone` is missing"),
            (
                "action = \"hold\"\ndnsbl = { zone = \"a.example\", codes = [\"192.0.2.1\"] }",
                "an answer of the DNS list",
            ),
        ] {
            let faults = parse(&format!("[[access]]\n{rule}\n")).unwrap_err();
            assert!(faults.contains(expected), "{rule}\n{faults}");
        }
        let twice = parse("[[access]]\nname = \"a\"\naction = \"hold\"\n[[access]]\nname = \"a\"\naction = \"hold\"\n");
        assert!(twice.unwrap_err().contains("\"a\" appears twice"));
        let as_another = parse("[[access]]\nname = \"rule 2\"\naction = \"hold\"\n[[access]]\naction = \"hold\"\n");
        assert!(as_another.unwrap_err().contains("\"rule 2\" appears twice"));
    }
}
