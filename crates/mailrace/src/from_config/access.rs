//! Translates the access rules of the configuration for the sessions. Each DNS list is a table with
//! its own thread and cache, however many rules use it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use dns::ResolverConfig;
use filter::access::{
    AccessCondition, AccessRules, ClientNameKey, ClientNameTable, CompiledRule, ConditionMatcher, DnsblCheck,
    DnsblScore, HeloFaults, RhsblCheck, RuleSubject, SenderFaults,
};
use lookup::dnsbl::{Dnsbl, DnsblConfig};
use lookup::layers::{BackendSettings, BackendTable, CacheSettings};
use lookup::{Table, TableEventHandler};
use mail::Address;
use sender_auth::Method;

use super::DnsHostNames;
use crate::tables::OpenTables;
use config::{AccessRule, Config, DnsblScoreSettings, DnsblZone, DomainPattern, EnvelopePattern};
use mail::Networks;

/// The longest time that an answer is cached, whatever `[dns]` allows: a client that is removed
/// from a list will soon try again.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// Concurrent requests to one list, each with all addresses that have gathered.
const REQUESTS_MAX: usize = 16;
/// How long a client waits for a list; without an answer it counts as not listed.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The DNS lists that the rules of a configuration use.
#[derive(Clone, Default)]
pub struct DnsblLists {
    /// The DNS settings in use.
    dns: Option<ResolverConfig>,
    /// By zone.
    open: BTreeMap<Box<str>, Arc<dyn Table>>,
}

impl DnsblLists {
    /// Opens the lists of a configuration.
    ///
    /// # Errors
    ///
    /// The system configures no name server, or cannot create a thread.
    pub fn open(config: &Config, events: &TableEventHandler) -> anyhow::Result<DnsblLists> {
        DnsblLists::default().reopen_changed(config, events)
    }

    /// Opens the lists of another configuration. Lists with unchanged settings stay open, with
    /// their cache.
    ///
    /// # Errors
    ///
    /// As with [`DnsblLists::open`]. The open lists are unchanged.
    pub fn reopen_changed(&self, config: &Config, events: &TableEventHandler) -> anyhow::Result<DnsblLists> {
        let dns = &config.dns;
        let are_asked_as_before = self.dns.as_ref() == Some(dns);
        let mut open: BTreeMap<Box<str>, Arc<dyn Table>> = BTreeMap::new();
        for zone in config.access.iter().flat_map(|rule| rule.dns_lists()).map(|list| &list.zone) {
            if open.contains_key(zone) {
                continue;
            }
            let table = match self.open.get(zone) {
                Some(same) if are_asked_as_before => same.clone(),
                _ => open_list(zone, dns, events)?,
            };
            open.insert(zone.clone(), table);
        }
        Ok(DnsblLists { dns: Some(dns.clone()), open })
    }

    fn check(&self, zone: &DnsblZone) -> DnsblCheck {
        let table = self.open.get(&zone.zone).expect("the list of every rule is open").clone();
        DnsblCheck { name: zone.zone.clone(), table, codes: zone.codes.clone() }
    }

    /// All lists.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Table>> {
        self.open.values()
    }
}

fn open_list(zone: &str, dns: &ResolverConfig, events: &TableEventHandler) -> anyhow::Result<Arc<dyn Table>> {
    let backend = Dnsbl::new(&DnsblConfig { zone: zone.into(), query: dns.query.clone() })
        .with_context(|| format!("the list {zone}"))?;
    let table = BackendTable::start(zone, backend, settings(dns), events.clone());
    Ok(Arc::new(table.with_context(|| format!("the list {zone}: starting its thread"))?))
}

/// The rules; None if there are none. Tables and lists must belong to the same configuration.
pub fn compile_access_rules(
    config: &Config,
    tables: &OpenTables,
    lists: &DnsblLists,
    names: &Arc<DnsHostNames>,
) -> Option<AccessRules> {
    let compile = |rule| {
        let mut compiled = compile_rule(rule, tables, lists);
        compiled.conditions.extend(client_name_conditions(rule, tables, names));
        compiled.conditions.extend(name_conditions(rule, &config.hostname, lists, names));
        compiled
    };
    AccessRules::new(config.access.iter().map(compile).collect())
}

fn compile_rule(rule: &AccessRule, tables: &OpenTables, lists: &DnsblLists) -> CompiledRule {
    let mut conditions = rule_conditions(rule);
    let in_table = |subject, key: &str, name: &Option<Box<str>>| {
        let table = tables.find(name.as_deref()?)?.clone();
        Some(AccessCondition {
            text: format!("{key} {:?}", table.name()).into(),
            test: ConditionMatcher::Table(subject, table),
        })
    };
    conditions.extend(in_table(RuleSubject::Client, "clients_in", &rule.clients_in));
    conditions.extend(in_table(RuleSubject::Helo, "helos_in", &rule.helos_in));
    conditions.extend(in_table(RuleSubject::Sender, "senders_in", &rule.senders_in));
    conditions.extend(in_table(RuleSubject::Recipient, "recipients_in", &rule.recipients_in));
    if let Some(count) = rule.recipients_min {
        let test = ConditionMatcher::RecipientsMin(count);
        conditions.push(AccessCondition { text: format!("recipients_min {count}").into(), test });
    }
    if let Some(DnsblScoreSettings { lists: weighed, at_least }) = &rule.dnsbl_score {
        let zones: Vec<String> = weighed.iter().map(|(zone, weight)| format!("{} {weight}", zone.zone)).collect();
        let weighed = weighed.iter().map(|(zone, weight)| (lists.check(zone), *weight)).collect();
        let test = ConditionMatcher::DnsblScore(DnsblScore { lists: weighed, score_min: *at_least });
        conditions
            .push(AccessCondition { text: format!("dnsbl_score {at_least} of {}", zones.join(", ")).into(), test });
    }
    if let Some(zone) = &rule.dnsbl {
        let test = ConditionMatcher::Dnsbl(lists.check(zone));
        conditions.push(AccessCondition { text: format!("dnsbl {}", zone.zone).into(), test });
    }
    conditions.extend(verdict_conditions(rule));
    let (name, list, action) = (rule.name.clone(), rule.list.clone(), rule.action.clone());
    CompiledRule {
        name,
        list,
        class: rule.class.clone(),
        stage: rule.stage,
        applies_to_users: rule.users,
        chooses_filters: rule.chooses_filters,
        conditions,
        action,
    }
}

/// The conditions on tables that have names of clients.
fn client_name_conditions(rule: &AccessRule, tables: &OpenTables, names: &Arc<DnsHostNames>) -> Vec<AccessCondition> {
    let condition = |word: &str, key, name: &Option<Box<str>>| {
        let table = tables.find(name.as_deref()?)?.clone();
        let text = format!("{word} {:?}", table.name()).into();
        Some(AccessCondition {
            text,
            test: ConditionMatcher::ClientName(ClientNameTable { table, key, names: names.clone() }),
        })
    };
    let confirmed = condition("client_names_in", ClientNameKey::ConfirmedNameOrAddress, &rule.client_names_in);
    confirmed
        .into_iter()
        .chain(condition("reverse_names_in", ClientNameKey::ReverseName, &rule.reverse_names_in))
        .collect()
}

/// The conditions on names, and on when the client talked.
fn name_conditions(
    rule: &AccessRule,
    hostname: &str,
    lists: &DnsblLists,
    names: &Arc<DnsHostNames>,
) -> Vec<AccessCondition> {
    let mut conditions = Vec::new();
    let mut add = |key: &str, words: Vec<&str>, test: ConditionMatcher| {
        conditions.push(AccessCondition { text: format!("{key} {}", words.join(", ")).into(), test });
    };
    if rule.early_talker {
        add("early_talker", vec!["true"], ConditionMatcher::EarlyTalker);
    }
    if !rule.reverse_name.is_empty() {
        let words = rule.reverse_name.iter().map(|state| state.name()).collect();
        let test = ConditionMatcher::ReverseName(names.clone(), rule.reverse_name.clone().into());
        add("reverse_name", words, test);
    }
    if !rule.helo_faults.is_empty() {
        let words = rule.helo_faults.iter().map(|fault| fault.name()).collect();
        let (faults, own_name) = (rule.helo_faults.clone().into(), hostname.to_ascii_lowercase().into());
        add("helo_is", words, ConditionMatcher::HeloFault(HeloFaults { faults, own_name, names: names.clone() }));
    }
    if !rule.sender_faults.is_empty() {
        let words = rule.sender_faults.iter().map(|fault| fault.name()).collect();
        let faults = rule.sender_faults.clone().into();
        add("sender_is", words, ConditionMatcher::SenderFault(SenderFaults { faults, names: names.clone() }));
    }
    if let Some((zone, subjects)) = &rule.rhsbl {
        let test = RhsblCheck { list: lists.check(zone), subjects: subjects.clone(), names: names.clone() };
        add("rhsbl", vec![&*zone.zone], ConditionMatcher::Rhsbl(test));
    }
    conditions
}

/// The conditions on what verification found.
fn verdict_conditions(rule: &AccessRule) -> Vec<AccessCondition> {
    let verdict = |(method, results): &(Method, Box<[&'static str]>)| AccessCondition {
        text: format!("{} {}", method.name(), results.join(", ")).into(),
        test: ConditionMatcher::Verdict { method: method.name(), results: results.clone() },
    };
    let mut conditions: Vec<AccessCondition> = rule.verdicts.iter().map(verdict).collect();
    if !rule.dkim_domains.is_empty() {
        let domains = rule.dkim_domains.clone();
        conditions.push(AccessCondition {
            text: format!("dkim_domains {}", texts(&domains).join(", ")).into(),
            test: ConditionMatcher::SignedBy(Arc::new(move |name: &str| domains.iter().any(|own| own.matches(name)))),
        });
    }
    conditions
}

fn settings(dns: &ResolverConfig) -> BackendSettings {
    let cache = CacheSettings {
        ttl: dns.ttl_max.min(ANSWER_TIME_MAX),
        negative_ttl: dns.negative_ttl_max.min(ANSWER_TIME_MAX),
        // A client is not kept on a list that no longer answers.
        stale_if_error: Duration::ZERO,
        entries: dns.cache_entries,
    };
    BackendSettings { cache: Some(cache), concurrency: REQUESTS_MAX, wait_max: WAIT_MAX, ..BackendSettings::default() }
}

/// The conditions that the rule itself names.
fn rule_conditions(rule: &AccessRule) -> Vec<AccessCondition> {
    let mut conditions = Vec::new();
    let mut add = |key: &str, list: &[String], test: ConditionMatcher| {
        if !list.is_empty() {
            conditions.push(AccessCondition { text: format!("{key} {}", list.join(", ")).into(), test });
        }
    };
    let clients = Networks::from(rule.clients.clone());
    let helos: Vec<DomainPattern> = rule.helos.clone();
    let senders: Vec<EnvelopePattern> = rule.senders.clone();
    let recipients: Vec<EnvelopePattern> = rule.recipients.clone();
    add("listeners", &texts(&rule.listeners), ConditionMatcher::Listener(rule.listeners.clone().into()));
    add("clients", &texts(&clients), ConditionMatcher::Client(clients.clone()));
    add(
        "helos",
        &texts(&helos),
        ConditionMatcher::Helo(Arc::new(move |helo: &str| helos.iter().any(|own| own.matches(helo)))),
    );
    let is_sender = move |sender: Option<&Address>| senders.iter().any(|own| own.matches(sender));
    add("senders", &texts(&rule.senders), ConditionMatcher::Sender(Arc::new(is_sender)));
    let is_recipient = move |recipient: &Address| recipients.iter().any(|own| own.matches(Some(recipient)));
    add("recipients", &texts(&rule.recipients), ConditionMatcher::Recipient(Arc::new(is_recipient)));
    conditions
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: changing a rule closed the cache of its list. But a list with changed DNS
    /// settings is opened again.
    #[test]
    fn a_reload_reopens_only_changed_lists() {
        let config = |text: &str| Config::parse(text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let rule = |zone: &str| format!("[[access]]\ndnsbl = {{ zone = \"{zone}\" }}\naction = \"refuse\"\n");
        let dns = |timeout: &str| format!("[dns]\nservers = [\"127.0.0.1:5353\"]\ntimeout = \"{timeout}\"\n");
        let events: TableEventHandler = Arc::new(|_| {});
        let first = DnsblLists::open(&config(&[rule("a.test"), rule("a.test"), dns("1s")].concat()), &events).unwrap();
        let second =
            first.reopen_changed(&config(&[rule("b.test"), rule("a.test"), dns("1s")].concat()), &events).unwrap();
        let third = second.reopen_changed(&config(&[rule("a.test"), dns("2s")].concat()), &events).unwrap();
        assert_eq!([&first, &second, &third].map(|lists| lists.iter().count()), [1, 2, 1]);
        assert!(Arc::ptr_eq(&first.open["a.test"], &second.open["a.test"]));
        assert!(!Arc::ptr_eq(&second.open["a.test"], &third.open["a.test"]));
    }
}
