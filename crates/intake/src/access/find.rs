//! Evaluates conditions. Those in memory are evaluated directly; tables and DNS lists are queried
//! for all rules together: each table once with all keys, all tables concurrently.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use lookup::{Answer, Table};

use super::{Rule, Test, Visit, Zone, keys};

/// The result of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It matches.
    Holds,
    /// It matches: the table has the subject, with this value.
    Says(String),
    /// It does not match.
    Not,
    /// The table is unavailable; the reason.
    Unknown(String),
    /// The DNS list is unavailable and lists nothing; the reason.
    Unlisted(String),
    /// A table or a DNS list must be queried.
    Asked,
}

/// The results of a rule's conditions as far as they are known without a query.
pub(super) fn at_hand(rule: &Rule, visit: &Visit<'_>) -> Vec<Finding> {
    let holds = |test: &Test| match test {
        Test::Client(networks) => visit.client.is_some_and(|client| networks(client)),
        Test::Helo(names) => visit.helo.is_some_and(|helo| names(&keys::bare(helo))),
        Test::Sender(senders) => {
            visit.sender.is_some_and(|sender| senders(sender))
                || visit.sender_untagged.is_some_and(|sender| senders(Some(sender)))
        }
        Test::Recipient(recipients) => {
            visit.recipient.into_iter().chain(visit.recipient_untagged).any(|recipient| recipients(recipient))
        }
        Test::Table(..) | Test::Listed(_) => true,
    };
    let finding = |test: &Test| match test {
        _ if !holds(test) => Finding::Not,
        Test::Table(..) | Test::Listed(_) => Finding::Asked,
        _ => Finding::Holds,
    };
    rule.conditions.iter().map(|condition| finding(&condition.test)).collect()
}

/// All queries to one table.
struct Group<'a> {
    table: &'a Arc<dyn Table>,
    keys: Vec<String>,
    questions: Vec<Question<'a>>,
}

/// The part of a query that belongs to one condition.
struct Question<'a> {
    rule: usize,
    condition: usize,
    test: &'a Test,
    /// The range of its keys in the query.
    keys: Range<usize>,
}

/// Completes the results of all conditions of these rules. Rules with a condition that does not
/// match are not queried.
pub(super) async fn find(rules: &[&Rule], mut findings: Vec<Vec<Finding>>, visit: &Visit<'_>) -> Vec<Vec<Finding>> {
    let groups = groups(rules, &findings, visit);
    if groups.is_empty() {
        return findings;
    }
    let asked: Vec<_> = groups.iter().map(ask).collect();
    let answers = join_all(asked).await;
    for (group, answers) in groups.iter().zip(answers) {
        for question in &group.questions {
            let own = answers.get(question.keys.clone()).unwrap_or_default();
            findings[question.rule][question.condition] = found(question.test, own);
        }
    }
    findings
}

async fn ask(group: &Group<'_>) -> Vec<Answer> {
    let keys: Vec<&str> = group.keys.iter().map(String::as_str).collect();
    group.table.lookup(&keys).await
}

fn groups<'a>(rules: &[&'a Rule], findings: &[Vec<Finding>], visit: &Visit<'_>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (place, (rule, findings)) in rules.iter().copied().zip(findings).enumerate() {
        if findings.contains(&Finding::Not) {
            continue;
        }
        for (condition, test) in rule.conditions.iter().map(|condition| &condition.test).enumerate() {
            let (table, keys) = match test {
                Test::Table(subject, table) if table.is_asked_whole() => {
                    (table, keys::whole(*subject, visit).into_iter().collect())
                }
                Test::Table(subject, table) => (table, keys::of(*subject, visit)),
                Test::Listed(zone) => (&zone.table, visit.client.iter().map(ToString::to_string).collect()),
                _ => continue,
            };
            let group = match groups.iter().position(|group| Arc::ptr_eq(group.table, table)) {
                Some(known) => &mut groups[known],
                None => {
                    groups.push(Group { table, keys: Vec::new(), questions: Vec::new() });
                    groups.last_mut().expect("a group was just pushed")
                }
            };
            let first = group.keys.len();
            group.keys.extend(keys);
            group.questions.push(Question { rule: place, condition, test, keys: first..group.keys.len() });
        }
    }
    groups
}

fn found(test: &Test, answers: &[Answer]) -> Finding {
    match test {
        Test::Listed(zone) => listed(zone, answers),
        _ => in_table(answers),
    }
}

/// The first key found decides. A key for which the table is unavailable might have decided before
/// it.
fn in_table(answers: &[Answer]) -> Finding {
    let first = answers.iter().find(|answer| **answer != Answer::NotFound);
    match first {
        None | Some(Answer::NotFound) => Finding::Not,
        Some(Answer::Found(values)) => Finding::Says(values.join(", ")),
        Some(Answer::Unavailable(why) | Answer::Unconfirmed(why)) => Finding::Unknown(why.clone()),
    }
}

fn listed(zone: &Zone, answers: &[Answer]) -> Finding {
    match answers.first() {
        Some(Answer::Found(codes)) if codes.iter().any(|code| zone.counts(code)) => Finding::Holds,
        Some(Answer::Unavailable(why) | Answer::Unconfirmed(why)) => Finding::Unlisted(why.clone()),
        None | Some(Answer::Found(_) | Answer::NotFound) => Finding::Not,
    }
}
