//! What a rule does once the results of its conditions are known: its own action, or the one in a
//! table, in the syntax of Postfix's access(5).
//!
//! | value in the table | meaning |
//! |---|---|
//! | `OK`, digits only | accept |
//! | `REJECT`, `REJECT text` | refuse |
//! | `DEFER`, `DEFER text` | defer |
//! | `4NN text`, `5NN text`, with or without an enhanced code | this reply |
//! | `HOLD`, `HOLD text` | hold |
//! | `DISCARD` | drop the message |
//! | `PREPEND`, `BCC`, `REDIRECT`, `FILTER` | change the message |
//! | `WARN text`, `INFO text` | log the text |
//! | `DEFER_IF_PERMIT` | defer |
//! | `DEFER_IF_REJECT` | defer, if something later at this stage refuses |
//! | `DUNNO`, empty | the rule does not match |
//! | the name of a class that has later rules at the stage | the rules of this class are evaluated |
//! | anything else | 451 and a log message: an unknown action neither accepts nor refuses |

use std::net::IpAddr;

use mail::{EnhancedCode, Reply};
use protocol::policy::PolicyAction;

use super::{CompiledRule, ConditionResult, RuleAction};
use crate::action_edit::action_edit;
use crate::edit::Edit;
use crate::replies;
use crate::stage::Stage;

/// Longer texts from a table are cut, so that the reply fits in one line (RFC 5321 section
/// 4.5.3.1.5).
const TEXT_OCTETS_MAX: usize = 400;

/// What a matching rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleVerdict {
    /// Accept.
    Accept,
    /// Hold the message.
    Hold,
    /// Drop the message.
    Discard,
    /// Change the message.
    Edit(Edit),
    /// Write this text to the log.
    Log(Box<str>),
    /// Evaluate the rules of this class, too.
    Enter(Box<str>),
    /// Refuse or defer with this reply.
    Reject(Reply),
    /// This reply in place of a later refusal.
    DeferIfReject(Reply),
}

/// None: the rule does not match. `may_enter`: whether a value is the name of a class that the rule can enter.
pub(super) fn rule_verdict(
    rule: &CompiledRule,
    results: &[ConditionResult],
    client: Option<IpAddr>,
    may_enter: &dyn Fn(&str) -> bool,
) -> Option<RuleVerdict> {
    let is_not =
        |finding: &ConditionResult| matches!(finding, ConditionResult::Fails | ConditionResult::DnsblUnavailable(_));
    if results.iter().any(is_not) {
        return None;
    }
    // The rule may match: assuming either result would let an outage decide.
    if results.iter().any(|finding| matches!(finding, ConditionResult::TableUnavailable(_) | ConditionResult::Pending))
    {
        return Some(RuleVerdict::Reject(replies::ACCESS_UNAVAILABLE));
    }
    match &rule.action {
        RuleAction::Accept => Some(RuleVerdict::Accept),
        RuleAction::Hold => Some(RuleVerdict::Hold),
        RuleAction::Refuse(reply) => {
            Some(RuleVerdict::Reject(reply.clone().unwrap_or_else(|| refusal(rule, results, client))))
        }
        RuleAction::Defer(reply) => {
            Some(RuleVerdict::Reject(reply.clone().unwrap_or_else(|| rule.stage.default_deferral_reply())))
        }
        RuleAction::Table => results.iter().find_map(|finding| match finding {
            ConditionResult::Value(value) if may_enter(value.trim()) => Some(RuleVerdict::Enter(value.trim().into())),
            ConditionResult::Value(value) => parse_value(value, rule.stage, rule.chooses_filters),
            _ => None,
        }),
    }
}

/// A listed client is told the name of the list, since only the client can ask to be removed. Names in
/// DNS lists are in ASCII.
fn refusal(rule: &CompiledRule, results: &[ConditionResult], client: Option<IpAddr>) -> Reply {
    let usual = rule.stage.default_refusal_reply();
    let listed = results.iter().find_map(|result| match result {
        ConditionResult::Listed(name) => Some(name.clone()),
        _ => None,
    });
    match (rule.dnsbl(), listed.or_else(|| client.map(|client| client.to_string()))) {
        (Some(list), Some(listed)) => Reply { text: format!("{listed} is listed by {}", list.name).into(), ..usual },
        _ => usual,
    }
}

/// Whether the value is a known action; for explanations and checks.
pub(super) fn is_understood(value: &str, chooses_filters: bool) -> bool {
    parse_value(value, Stage::Rcpt, chooses_filters) != Some(RuleVerdict::Reject(replies::ACCESS_UNAVAILABLE))
}

fn parse_value(value: &str, stage: Stage, chooses_filters: bool) -> Option<RuleVerdict> {
    let value = value.trim();
    let (word, text) = value.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((value, ""));
    let text = text.trim();
    let with_text = |usual: Reply| match printable_prefix(text) {
        "" => usual,
        // The text may begin with an enhanced status code of its own.
        text => format!("{} {text}", usual.code)
            .parse()
            .map(|reply: Reply| Reply { enhanced: reply.enhanced.or(usual.enhanced), ..reply })
            .unwrap_or(usual),
    };
    match &*word.to_ascii_uppercase() {
        "" | "DUNNO" => None,
        "OK" => Some(RuleVerdict::Accept),
        "HOLD" => Some(RuleVerdict::Hold),
        "REJECT" => Some(RuleVerdict::Reject(with_text(stage.default_refusal_reply()))),
        "DEFER" => Some(RuleVerdict::Reject(with_text(stage.default_deferral_reply()))),
        code if is_code(code) => Some(RuleVerdict::Reject(coded_reply(printable_prefix(value), code))),
        digits if text.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => Some(RuleVerdict::Accept),
        "DISCARD" => Some(RuleVerdict::Discard),
        "DEFER_IF_PERMIT" => Some(RuleVerdict::Reject(with_text(stage.default_deferral_reply()))),
        "DEFER_IF_REJECT" => Some(RuleVerdict::DeferIfReject(with_text(stage.default_deferral_reply()))),
        "WARN" | "INFO" => Some(RuleVerdict::Log(text.into())),
        "FILTER" if !chooses_filters => Some(RuleVerdict::Reject(replies::ACCESS_UNAVAILABLE)),
        _ => Some(edit(value).map_or(RuleVerdict::Reject(replies::ACCESS_UNAVAILABLE), RuleVerdict::Edit)),
    }
}

/// The change to the message that a value names. None: it names none, or an invalid one.
fn edit(value: &str) -> Option<Edit> {
    value.parse::<PolicyAction>().ok().and_then(|action| action_edit(&action).ok().flatten())
}

fn is_code(word: &str) -> bool {
    word.len() == 3 && word.starts_with(['4', '5']) && word.bytes().all(|b| b.is_ascii_digit())
}

/// A reply with the code from the table, and `X.7.1` if the value has no enhanced status code.
fn coded_reply(line: &str, code: &str) -> Reply {
    let class = code.as_bytes()[0] - b'0';
    let reply = line.parse().unwrap_or_else(|_| Reply::without_enhanced_code(u16::from(class) * 100 + 50, ""));
    let enhanced = reply.enhanced.or(Some(EnhancedCode(class, 7, 1)));
    let text = if reply.text.is_empty() { "Access denied".into() } else { reply.text };
    Reply { enhanced, text, ..reply }
}

/// The part of the text that may be sent in a reply: printable ASCII, up to a length limit.
fn printable_prefix(text: &str) -> &str {
    let end = text.bytes().position(|b| !(0x20..0x7f).contains(&b)).unwrap_or(text.len());
    &text[..end.min(TEXT_OCTETS_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(value: &str) -> String {
        match parse_value(value, Stage::Rcpt, true) {
            None => "dunno".into(),
            Some(RuleVerdict::Accept) => "pass".into(),
            Some(RuleVerdict::Hold) => "hold".into(),
            Some(RuleVerdict::Discard) => "discard".into(),
            Some(RuleVerdict::Edit(edit)) => format!("{edit:?}"),
            Some(RuleVerdict::Log(text)) => format!("log {text}"),
            Some(RuleVerdict::Enter(class)) => class.into(),
            Some(RuleVerdict::Reject(reply)) => reply.to_string(),
            Some(RuleVerdict::DeferIfReject(reply)) => format!("if refused {reply}"),
        }
    }

    #[test]
    fn values_are_read_as_postfix_reads_them() {
        for (value, expected) in [
            ("OK", "pass"),
            ("ok", "pass"),
            ("1234567890", "pass"),
            ("REJECT", "550 5.7.1 Access denied"),
            ("reject go away", "550 5.7.1 go away"),
            ("REJECT 5.1.1 moved, see https://example.org", "550 5.1.1 moved, see https://example.org"),
            ("DEFER", "450 4.7.1 Access temporarily denied, try again later"),
            ("DEFER 4.2.1 in an hour", "450 4.2.1 in an hour"),
            ("554 no", "554 5.7.1 no"),
            ("450 4.1.8 who are you", "450 4.1.8 who are you"),
            ("421", "421 4.7.1 Access denied"),
            ("HOLD let us see", "hold"),
            ("DUNNO", "dunno"),
            ("", "dunno"),
            ("REJECT no\nway", "550 5.7.1 no"),
            ("554 4.7.1 of another class", "550 5.7.1 Access denied"),
            ("DISCARD it", "discard"),
            ("PREPEND X-A: b", "PrependField(Field { wire: \"X-A: b\\r\\n\" })"),
            ("FILTER smtp:[127.0.0.1]", "PrependField(Field { wire: \"X-Mailrace-Filter: smtp:[127.0.0.1]\\r\\n\" })"),
            ("redirect <c@d.example>", "Redirect(<c@d.example>)"),
            ("WARN of it", "log of it"),
            ("info", "log "),
            ("DEFER_IF_PERMIT 4.7.0 soon", "450 4.7.0 soon"),
            ("DEFER_IF_REJECT 4.7.0 soon", "if refused 450 4.7.0 soon"),
            ("BCC nobody", "451 4.3.0 Access rules unavailable, try again later"),
            ("PREPEND a b: c", "451 4.3.0 Access rules unavailable, try again later"),
            ("FILTER [127.0.0.1]", "451 4.3.0 Access rules unavailable, try again later"),
            ("OKAY", "451 4.3.0 Access rules unavailable, try again later"),
        ] {
            assert_eq!(describe(value), expected, "{value}");
        }
        let without_filters = parse_value("FILTER smtp:[127.0.0.1]", Stage::Rcpt, false);
        assert_eq!(without_filters, Some(RuleVerdict::Reject(replies::ACCESS_UNAVAILABLE)));
        assert!(describe(&format!("REJECT {}", "x".repeat(1000))).len() < 512);
    }
}
