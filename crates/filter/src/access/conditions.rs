//! Evaluates conditions. Those in memory are evaluated directly; tables and DNS lists are queried
//! for all rules together: each table once with all keys, all tables concurrently.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use lookup::{LookupAnswer, Table};

use super::condition_result::ConditionResult;
use super::host_names::{KnownNames, find_names};
use super::{CompiledRule, ConditionMatcher, DnsblCheck, DnsblScore, RhsblCheck, keys};
use crate::check::SessionInfo;

/// The results of a rule's conditions as far as they are known without a query.
pub(super) fn check_in_memory(rule: &CompiledRule, info: &SessionInfo<'_>) -> Vec<ConditionResult> {
    let holds = |test: &ConditionMatcher| match test {
        ConditionMatcher::Listener(listeners) => info.listener.is_some_and(|listener| listeners.contains(&listener)),
        ConditionMatcher::Client(networks) => info.client.is_some_and(|client| networks.contains(client)),
        ConditionMatcher::Helo(names) => info.helo.is_some_and(|helo| names(&keys::normalize_helo(helo))),
        ConditionMatcher::Sender(senders) => {
            info.sender.is_some_and(|sender| senders(sender))
                || info.sender_untagged.is_some_and(|sender| senders(Some(sender)))
        }
        ConditionMatcher::Recipient(recipients) => {
            info.recipient.into_iter().chain(info.recipient_untagged).any(|recipient| recipients(recipient))
        }
        ConditionMatcher::Verdict { method, results } => {
            info.findings.iter().any(|found| found.method == *method && results.contains(&found.result))
        }
        ConditionMatcher::SignedBy(domains) => {
            let mut signed = info.findings.iter().filter(|found| found.method == "dkim" && found.result == "pass");
            signed.any(|found| found.domain.as_deref().is_some_and(|domain| domains(domain)))
        }
        ConditionMatcher::EarlyTalker => info.is_early_talker,
        ConditionMatcher::RecipientsMin(count) => info.recipients >= *count,
        ConditionMatcher::HeloFault(faults) => faults.has_evident_fault(info) || faults.host_to_ask(info).is_some(),
        ConditionMatcher::SenderFault(faults) => faults.has_evident_fault(info) || faults.domain_to_ask(info).is_some(),
        ConditionMatcher::ReverseName(..) => info.client.is_some_and(|client| !client.is_loopback()),
        ConditionMatcher::Table(..)
        | ConditionMatcher::ClientName(_)
        | ConditionMatcher::Dnsbl(_)
        | ConditionMatcher::DnsblScore(_)
        | ConditionMatcher::Rhsbl(_) => true,
    };
    let result = |test: &ConditionMatcher| match test {
        _ if !holds(test) => ConditionResult::Fails,
        ConditionMatcher::Table(..)
        | ConditionMatcher::ClientName(_)
        | ConditionMatcher::Dnsbl(_)
        | ConditionMatcher::DnsblScore(_)
        | ConditionMatcher::Rhsbl(_)
        | ConditionMatcher::ReverseName(..) => ConditionResult::Pending,
        ConditionMatcher::HeloFault(faults) if !faults.has_evident_fault(info) => ConditionResult::Pending,
        ConditionMatcher::SenderFault(faults) if !faults.has_evident_fault(info) => ConditionResult::Pending,
        _ => ConditionResult::Holds,
    };
    rule.conditions.iter().map(|condition| result(&condition.test)).collect()
}

/// All queries to one table.
struct AccessTableQuery<'a> {
    table: &'a Arc<dyn Table>,
    keys: Vec<String>,
    conditions: Vec<ConditionQuery<'a>>,
}

/// The part of a query that belongs to one condition.
struct ConditionQuery<'a> {
    rule: usize,
    condition: usize,
    test: &'a ConditionMatcher,
    /// The list and its weight, if the condition adds up several.
    weighed: Option<&'a (DnsblCheck, i32)>,
    /// The range of its keys in the query.
    keys: Range<usize>,
}

/// One question of a condition: a table and the keys.
struct TableQuestion<'a> {
    table: &'a Arc<dyn Table>,
    keys: Vec<String>,
    weighed: Option<&'a (DnsblCheck, i32)>,
}

/// Completes the results of all conditions of these rules. Rules with a condition that does not
/// match are not queried.
pub(super) async fn evaluate_conditions(
    rules: &[&CompiledRule],
    mut results: Vec<Vec<ConditionResult>>,
    info: &SessionInfo<'_>,
) -> Vec<Vec<ConditionResult>> {
    let names = find_names(rules, &results, info).await;
    take_name_results(rules, &mut results, &names, info);
    let groups = table_queries(rules, &results, &names, info);
    if groups.is_empty() {
        return results;
    }
    let asked: Vec<_> = groups.iter().map(query_table).collect();
    let answers = join_all(asked).await;
    let mut scores: BTreeMap<(usize, usize), Score> = BTreeMap::new();
    for (group, answers) in groups.iter().zip(answers) {
        for question in &group.conditions {
            let own = answers.get(question.keys.clone()).unwrap_or_default();
            let keys = &group.keys[question.keys.clone()];
            match question.weighed {
                Some(list) => scores.entry((question.rule, question.condition)).or_default().add(list, own),
                None => results[question.rule][question.condition] = condition_result(question.test, keys, own),
            }
        }
    }
    for ((rule, condition), score) in scores {
        if let ConditionMatcher::DnsblScore(wanted) = &rules[rule].conditions[condition].test {
            results[rule][condition] = score.result(wanted);
        }
    }
    results
}

/// The weights of the lists that have the client.
#[derive(Default)]
struct Score {
    sum: i32,
    /// Why a list did not answer.
    unavailable: Option<String>,
}

impl Score {
    fn add(&mut self, (list, weight): &(DnsblCheck, i32), answers: &[LookupAnswer]) {
        match dnsbl_result(list, answers) {
            ConditionResult::Holds => self.sum = self.sum.saturating_add(*weight),
            ConditionResult::DnsblUnavailable(why) => self.unavailable = Some(why),
            _ => {}
        }
    }

    /// A list that does not answer has no weight.
    fn result(self, wanted: &DnsblScore) -> ConditionResult {
        match self.unavailable {
            _ if self.sum >= wanted.score_min => ConditionResult::Holds,
            Some(why) => ConditionResult::DnsblUnavailable(why),
            None => ConditionResult::Fails,
        }
    }
}

fn take_name_results(
    rules: &[&CompiledRule],
    results: &mut [Vec<ConditionResult>],
    names: &KnownNames,
    info: &SessionInfo<'_>,
) {
    for (rule, results) in rules.iter().zip(results) {
        let pending = rule.conditions.iter().zip(results).filter(|(_, result)| **result == ConditionResult::Pending);
        for (condition, result) in pending {
            if let Some(known) = names.result(&condition.test, info) {
                *result = known;
            }
        }
    }
}

async fn query_table(group: &AccessTableQuery<'_>) -> Vec<LookupAnswer> {
    let keys: Vec<&str> = group.keys.iter().map(String::as_str).collect();
    group.table.lookup(&keys).await
}

fn table_queries<'a>(
    rules: &[&'a CompiledRule],
    results: &[Vec<ConditionResult>],
    names: &KnownNames,
    info: &SessionInfo<'_>,
) -> Vec<AccessTableQuery<'a>> {
    let mut groups: Vec<AccessTableQuery<'a>> = Vec::new();
    for (place, (rule, results)) in rules.iter().copied().zip(results).enumerate() {
        if results.contains(&ConditionResult::Fails) {
            continue;
        }
        for (condition, test) in rule.conditions.iter().map(|condition| &condition.test).enumerate() {
            for TableQuestion { table, keys, weighed } in table_questions(test, names, info) {
                let group = match groups.iter().position(|group| Arc::ptr_eq(group.table, table)) {
                    Some(known) => &mut groups[known],
                    None => {
                        groups.push(AccessTableQuery { table, keys: Vec::new(), conditions: Vec::new() });
                        groups.last_mut().expect("a group was just pushed")
                    }
                };
                let first = group.keys.len();
                group.keys.extend(keys);
                let keys = first..group.keys.len();
                group.conditions.push(ConditionQuery { rule: place, condition, test, weighed, keys });
            }
        }
    }
    groups
}

/// What a condition asks tables and DNS lists.
fn table_questions<'a>(
    test: &'a ConditionMatcher,
    names: &KnownNames,
    info: &SessionInfo<'_>,
) -> Vec<TableQuestion<'a>> {
    let client = || info.client.iter().map(ToString::to_string).collect();
    let one = |table, keys| vec![TableQuestion { table, keys, weighed: None }];
    match test {
        ConditionMatcher::Table(subject, table) if table.whole_keys_only() => {
            one(table, keys::subject_text(*subject, info).into_iter().collect())
        }
        ConditionMatcher::Table(subject, table) => one(table, keys::subject_keys(*subject, info)),
        ConditionMatcher::ClientName(named) => {
            names.client_keys(named, info).map(|keys| one(&named.table, keys)).unwrap_or_default()
        }
        ConditionMatcher::Dnsbl(dnsbl) => one(&dnsbl.table, client()),
        ConditionMatcher::DnsblScore(score) => {
            let question = |list: &'a (DnsblCheck, i32)| TableQuestion {
                table: &list.0.table,
                keys: client(),
                weighed: Some(list),
            };
            score.lists.iter().map(question).collect()
        }
        ConditionMatcher::Rhsbl(RhsblCheck { list, subjects, .. }) => {
            one(&list.table, subjects.iter().filter_map(|subject| names.rhsbl_key(*subject, info)).collect())
        }
        _ => Vec::new(),
    }
}

fn condition_result(test: &ConditionMatcher, keys: &[String], answers: &[LookupAnswer]) -> ConditionResult {
    match test {
        ConditionMatcher::Rhsbl(rhsbl) => rhsbl_result(&rhsbl.list, keys, answers),
        ConditionMatcher::Dnsbl(dnsbl) => dnsbl_result(dnsbl, answers),
        _ => table_result(answers),
    }
}

/// The first key found decides. A key for which the table is unavailable might have decided before
/// it.
fn table_result(answers: &[LookupAnswer]) -> ConditionResult {
    let first = answers.iter().find(|answer| **answer != LookupAnswer::NotFound);
    match first {
        None | Some(LookupAnswer::NotFound) => ConditionResult::Fails,
        Some(LookupAnswer::Found(values)) => ConditionResult::Value(values.join(", ")),
        Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => {
            ConditionResult::TableUnavailable(why.clone())
        }
    }
}

/// The first name in the list decides, whether the list answers for the others or not.
fn rhsbl_result(list: &DnsblCheck, keys: &[String], answers: &[LookupAnswer]) -> ConditionResult {
    let mut result = ConditionResult::Fails;
    for (key, answer) in keys.iter().zip(answers) {
        match dnsbl_result(list, std::slice::from_ref(answer)) {
            ConditionResult::Holds => return ConditionResult::Listed(key.clone()),
            ConditionResult::Fails => {}
            unavailable => result = unavailable,
        }
    }
    result
}

fn dnsbl_result(dnsbl: &DnsblCheck, answers: &[LookupAnswer]) -> ConditionResult {
    match answers.first() {
        Some(LookupAnswer::Found(codes)) if codes.iter().any(|code| dnsbl.matches_code(code)) => ConditionResult::Holds,
        Some(LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why)) => {
            ConditionResult::DnsblUnavailable(why.clone())
        }
        None | Some(LookupAnswer::Found(_) | LookupAnswer::NotFound) => ConditionResult::Fails,
    }
}
