//! From the access rules of the configuration to those that sessions ask. Each list in the DNS is a table of its own, with a
//! thread and a cache, however many rules name it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use intake::access::{Access, Condition, Rule, Subject, Test, Zone};
use lookup::dnsbl::{self, Dnsbl};
use lookup::layers::{CacheSettings, Layered, Settings};
use lookup::{Events, Table};
use mail::Address;

use crate::config::{AccessRule, Config, Dns, Network, Pattern, WhoPattern};
use crate::tables::Tables;

/// An answer is kept no longer, whatever `[dns]` allows: who is taken off a list writes again soon.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
/// Requests to one list at once, each with as many addresses as have gathered.
const REQUESTS_MAX: usize = 16;
/// How long a client waits for a list at the most; without an answer it is not listed.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The rules; None where there are none.
pub fn access(config: &Config, tables: &Tables, events: &Events) -> anyhow::Result<Option<Access>> {
    let mut zones = Zones { dns: &config.dns, events, open: HashMap::new() };
    let rules = config.access.iter().map(|rule| zones.rule(rule, tables));
    Ok(Access::new(rules.collect::<anyhow::Result<_>>()?))
}

struct Zones<'a> {
    dns: &'a Dns,
    events: &'a Events,
    open: HashMap<&'a str, Arc<dyn Table>>,
}

impl<'a> Zones<'a> {
    fn rule(&mut self, rule: &'a AccessRule, tables: &Tables) -> anyhow::Result<Rule> {
        let mut conditions = named(rule);
        let in_table = |subject, key: &str, name: &Option<Box<str>>| {
            let table = tables.find(name.as_deref()?)?.clone();
            Some(Condition { text: format!("{key} {:?}", table.name()).into(), test: Test::Table(subject, table) })
        };
        conditions.extend(in_table(Subject::Client, "clients_in", &rule.clients_in));
        conditions.extend(in_table(Subject::Helo, "helos_in", &rule.helos_in));
        conditions.extend(in_table(Subject::Sender, "senders_in", &rule.senders_in));
        conditions.extend(in_table(Subject::Recipient, "recipients_in", &rule.recipients_in));
        if let Some(zone) = &rule.dnsbl {
            let table = self.zone(&zone.zone)?;
            let codes = zone.codes.iter().map(|codes| (codes.first, codes.last)).collect();
            let test = Test::Listed(Zone { name: zone.zone.clone(), table, codes });
            conditions.push(Condition { text: format!("dnsbl {}", zone.zone).into(), test });
        }
        Ok(Rule { name: rule.name.clone(), stage: rule.stage, conditions, action: rule.action.clone() })
    }

    fn zone(&mut self, zone: &'a str) -> anyhow::Result<Arc<dyn Table>> {
        if let Some(open) = self.open.get(zone) {
            return Ok(open.clone());
        }
        let asked = dnsbl::Config {
            zone: zone.into(),
            servers: self.dns.servers.clone(),
            timeout: self.dns.timeout,
            attempts: self.dns.attempts,
        };
        let backend = Dnsbl::new(asked).with_context(|| format!("the list {zone}"))?;
        let table = Layered::start(zone, backend, settings(self.dns), self.events.clone());
        let table: Arc<dyn Table> = Arc::new(table.with_context(|| format!("the list {zone}: starting its thread"))?);
        self.open.insert(zone, table.clone());
        Ok(table)
    }
}

fn settings(dns: &Dns) -> Settings {
    let cache = CacheSettings {
        ttl: dns.ttl_max.min(ANSWER_TIME_MAX),
        negative_ttl: dns.negative_ttl_max.min(ANSWER_TIME_MAX),
        // Who was on a list that cannot be asked any more is not held to it.
        stale_if_error: Duration::ZERO,
        entries: dns.cache_entries as u64,
    };
    Settings { cache: Some(cache), concurrency: REQUESTS_MAX, wait_max: WAIT_MAX, ..Settings::default() }
}

/// What the rule itself names.
fn named(rule: &AccessRule) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let mut add = |key: &str, list: &[String], test: Test| {
        if !list.is_empty() {
            conditions.push(Condition { text: format!("{key} {}", list.join(", ")).into(), test });
        }
    };
    let clients: Vec<Network> = rule.clients.clone();
    let helos: Vec<Pattern> = rule.helos.clone();
    let senders: Vec<WhoPattern> = rule.senders.clone();
    let recipients: Vec<WhoPattern> = rule.recipients.clone();
    add("clients", &texts(&clients), Test::Client(super::networks(&clients)));
    add("helos", &texts(&helos), Test::Helo(Arc::new(move |helo: &str| helos.iter().any(|own| own.fits(helo)))));
    let is_sender = move |sender: Option<&Address>| senders.iter().any(|own| own.fits(sender));
    add("senders", &texts(&rule.senders), Test::Sender(Arc::new(is_sender)));
    let is_recipient = move |recipient: &Address| recipients.iter().any(|own| own.fits(Some(recipient)));
    add("recipients", &texts(&rule.recipients), Test::Recipient(Arc::new(is_recipient)));
    conditions
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}
