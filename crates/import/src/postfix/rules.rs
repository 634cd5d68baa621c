//! Writes `[[access]]` sections and their tables.

use std::path::Path;

use super::Conversion;
use super::access::{ImportedRule, LIST_NAMES, LIST_STAGES, NOT_TRANSLATED, NameCondition, RuleCondition};
use super::access_table::{self, AccessAction, AccessSubject, AccessTableContent, group_by_action};
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::lookups::{MapRef, file_name};
use crate::ip_net::{IpNet, quoted_networks};

/// The source of a rule.
#[derive(Clone, Copy)]
struct RuleOrigin<'a> {
    /// The restriction.
    from: &'a str,
    /// Its list, if something in it can accept.
    list: Option<&'a str>,
    class: Option<&'a str>,
    stage: &'static str,
    service: Option<usize>,
    spares_users: bool,
    chooses_filters: bool,
}

/// Conditions whose rules are not for users unless they say so.
const STRANGERS_ONLY: [&str; 8] =
    ["dnsbl", "dnsbl_score", "rhsbl", "reverse_name", "helo_is", "sender_is", "client_names_in", "reverse_names_in"];

impl Conversion<'_> {
    /// Refuses or defers recipients that cannot be delivered, before all other rules.
    pub(super) fn write_blocked_recipients(&mut self) {
        if self.blocked_recipients.is_empty() {
            return;
        }
        let stopped = std::mem::take(&mut self.blocked_recipients);
        let mut seen = std::collections::BTreeSet::new();
        let new = stopped.iter().filter(|(address, _)| seen.insert(address.to_lowercase()));
        let entries: Vec<(String, AccessAction)> =
            new.map(|(address, says)| (address.clone(), AccessAction::parse(says))).collect();
        let text = access_table::entry_text(&entries, AccessSubject::Recipient, false).text;
        let path = self.add_file("stopped", "", text, false);
        let name = file_name(&path);
        let block = TomlSection::new("[[table]]")
            .comment("Recipients whose mail is refused or deferred; see the top of this file.");
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        let block = TomlSection::new("[[access]]").key("name", quoted(&name), "").key("stage", quoted("rcpt"), "");
        self.draft.add(block.key("recipients_in", quoted(&name), "").key("action", quoted("table"), ""));
    }

    /// Refuses recipients that smtpd refuses whatever the tables say: those that are malformed, and, from
    /// clients that may not relay, those with a route in their local part.
    pub(super) fn malformed_recipients(&mut self) {
        let syntax = "501 5.1.3 Bad recipient address syntax";
        let mut text = format!("/^-/ {syntax}\n/@[0-9.]+$/ {syntax}\n");
        if !self.own_domains().contains(&self.hostname().to_lowercase()) {
            text.push_str(&self.own_literals());
        }
        let table = self.pattern_table("malformed", &text);
        let block = TomlSection::new("[[access]]").comment("Addresses that Postfix takes for malformed.");
        let block = block.key("name", quoted(&table), "").key("stage", quoted("rcpt"), "");
        self.draft.add(block.key("recipients_in", quoted(&table), "").key("action", quoted("table"), ""));
        if self.values.value("allow_untrusted_routing").eq_ignore_ascii_case("yes") {
            return self.draft.not_needed("allow_untrusted_routing", "the local part of an address is no route here");
        }
        let defers = self.main_inbound_service().is_some_and(|front| front.lists.defers_relaying());
        let denied = if defers { "454 4.7.1 Relay access denied" } else { "554 5.7.1 Relay access denied" };
        let table = self.pattern_table("routed", &format!("/^[^\"]*[%!].*@/ {denied}\n/^\".*[%!@].*\"@/ {denied}\n"));
        let networks = super::inbound_services::common_relay_networks(&self.inbound_services);
        if !networks.is_empty() {
            let block =
                TomlSection::new("[[access]]").key("name", quoted("may route"), "").key("list", quoted(&table), "");
            let block = block.key("stage", quoted("rcpt"), "").key("clients", quoted_networks(&networks), "mynetworks");
            self.draft.add(block.key("action", quoted("accept"), ""));
        }
        let block = TomlSection::new("[[access]]").comment("Addresses that were routes once, such as user%host@here.");
        let mut block =
            block.key("name", quoted(&table), "").key("list", quoted(&table), "").key("stage", quoted("rcpt"), "");
        block.set("recipients_in", quoted(&table), "");
        if self.has_users {
            block.set("users", "false".into(), "");
        }
        self.draft.add(block.key("action", quoted("table"), ""));
    }

    /// Patterns for recipients at the addresses of this host, which has no users by its own name.
    fn own_literals(&self) -> String {
        let listeners = self.draft.sections.iter().filter(|block| block.header == "[[listener]]");
        let keys = listeners.flat_map(|block| &block.keys).filter(|(key, ..)| key == "address");
        let addresses = keys.filter_map(|(_, value, _)| value.trim_matches('"').parse::<std::net::SocketAddr>().ok());
        let ips: std::collections::BTreeSet<_> =
            addresses.map(|address| address.ip()).filter(|ip| ip.is_ipv4() && !ip.is_unspecified()).collect();
        let pattern = |ip: &std::net::IpAddr| {
            format!("/@\\[{}\\]$/ 550 5.1.1 Recipient address unknown\n", ip.to_string().replace('.', "\\."))
        };
        let lines: String = ips.iter().map(pattern).collect();
        if lines.is_empty() { lines } else { format!("if !/^postmaster@/\n{lines}endif\n") }
    }

    /// A table of patterns in a file of its own.
    pub(super) fn pattern_table(&mut self, like: &str, text: &str) -> String {
        let path = self.add_file(like, "", text.to_owned(), false);
        let name = file_name(&path);
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("regexp"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        name
    }

    /// Writes rules in their order.
    pub(super) fn write_rules(&mut self, rules: &[ImportedRule], mynetworks: &[IpNet]) {
        for rule in rules {
            let passes =
                |other: &ImportedRule| (other.list, other.service) == (rule.list, rule.service) && other.can_accept();
            let name = match rule.service {
                Some(service) => format!("{} of service {}", LIST_NAMES[rule.list], service + 1),
                None => LIST_NAMES[rule.list].to_owned(),
            };
            let list = rules.iter().any(passes).then_some(name);
            let own = rule.service.and_then(|service| self.inbound_services.get(service));
            let networks = own.map_or_else(|| mynetworks.to_vec(), |service| service.networks.clone());
            self.write_rule(rule, list.as_deref(), &networks);
        }
    }

    fn write_rule(&mut self, rule: &ImportedRule, list: Option<&str>, mynetworks: &[IpNet]) {
        let class = rule.class.as_deref();
        let of = RuleOrigin {
            from: &rule.from,
            list,
            class,
            stage: LIST_STAGES[rule.list],
            service: rule.service,
            spares_users: rule.excludes_users,
            chooses_filters: false,
        };
        match &rule.condition {
            RuleCondition::All(action) => self.add_rule(&of, "all others", &[], action, None),
            RuleCondition::Networks if mynetworks.is_empty() => {}
            RuleCondition::Networks => {
                self.add_rule(&of, "mynetworks", &[("clients", quoted_networks(mynetworks))], "accept", None);
            }
            RuleCondition::Score(value, action) => {
                self.add_rule(&of, "score of DNS lists", &[("dnsbl_score", value.clone())], action, None);
            }
            RuleCondition::NotTranslated(conditions) => {
                let reply = Some("451 4.3.5 A restriction of the old server is not translated".to_owned());
                let conditions: Vec<(&str, String)> = conditions.clone();
                self.add_rule(&of, NOT_TRANSLATED, &conditions, "defer", reply);
            }
            RuleCondition::MultiRecipientBounce => {
                let conditions = [("senders", quoted_list(["<>"])), ("recipients_min", "2".to_owned())];
                let reply = Some("550 5.5.3 Multi-recipient bounce".to_owned());
                self.add_rule(&of, "bounces to several", &conditions, "refuse", reply);
            }
            RuleCondition::Listed(zone, action) => {
                self.add_rule(&of, &zone.name, &[("dnsbl", zone.value())], action, None);
            }
            RuleCondition::Named(NameCondition { name, key, value, action }) => {
                self.add_rule(&of, name, &[(key, value.clone())], action, None);
            }
            RuleCondition::Owned(table) => {
                let reply = Some("553 5.7.1 Sender address rejected: not logged in".to_owned());
                let of = RuleOrigin { spares_users: true, ..of };
                self.add_rule(&of, table, &[("senders_in", quoted(table))], "refuse", reply);
            }
            RuleCondition::Table(_, named, AccessTableContent::Networks(nets)) => {
                let name = file_name(Path::new(&named.name));
                for (nets, act) in group_by_action(nets) {
                    let clients = ("clients", quoted_networks(&nets));
                    if let Some(value) = act.table_value() {
                        let table = ("clients_in", quoted(&self.one_value_table(&name, value)));
                        self.add_rule(&of, &name, &[clients, table], "table", None);
                    } else if let Some((action, reply)) = act.action() {
                        self.add_rule(&of, &name, &[clients], action, reply);
                    }
                }
            }
            RuleCondition::Table(subject, named, content) => {
                let Some(table) = self.access_table(*subject, named, content, &rule.from) else { return };
                let of = RuleOrigin { chooses_filters: content.chooses_filters(), ..of };
                let has_names = content.has_names() && named.kind != "cidr";
                self.add_rule(&of, &table, &[(subject.key(has_names), quoted(&table))], "table", None);
            }
        }
    }

    fn add_rule(
        &mut self,
        of: &RuleOrigin<'_>,
        name: &str,
        conditions: &[(&str, String)],
        action: &str,
        reply: Option<String>,
    ) {
        let name = self.free_rule_name(name);
        let mut block = TomlSection::new("[[access]]").comment(format!("{}.", of.from)).key("name", quoted(&name), "");
        of.list.iter().for_each(|list| block.set("list", quoted(list), ""));
        of.class.iter().for_each(|class| block.set("class", quoted(class), "smtpd_restriction_classes"));
        block.set("stage", quoted(of.stage), "");
        if let Some(service) = of.service.and_then(|service| self.inbound_services.get(service)) {
            let listeners = self.written_listeners(&service.addresses);
            block.set("listeners", quoted_list(listeners.iter().map(String::as_str)), "master.cf");
        }
        conditions.iter().for_each(|(key, value)| block.set(key, value.clone(), ""));
        // Rules about names and DNS lists exclude users by default; others must say so.
        let leaves_out = conditions.iter().any(|(key, _)| STRANGERS_ONLY.contains(key));
        if self.has_users && of.spares_users != leaves_out {
            block.set("users", (!of.spares_users).to_string(), "");
        }
        block.set("action", quoted(action), "");
        if of.chooses_filters {
            block.set("filters", "true".into(), "");
        }
        reply.iter().for_each(|reply| block.set("reply", quoted(reply), ""));
        self.draft.add(block);
    }

    /// A table with one value for all keys.
    fn one_value_table(&mut self, like: &str, value: &str) -> String {
        let name = self.free_name(like);
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("static"), "");
        self.draft.add(block.key("values", quoted_list([value]), ""));
        name
    }

    fn free_rule_name(&self, like: &str) -> String {
        let is_free = |name: &String| {
            let name = quoted(name);
            let rules = self.draft.sections.iter().filter(|block| block.header == "[[access]]");
            !rules.flat_map(|block| &block.keys).any(|(key, value, _)| key == "name" && *value == name)
        };
        let more = (2..).map(|number| format!("{like} {number}"));
        std::iter::once(like.to_owned()).chain(more).find(is_free).unwrap_or_default()
    }

    /// The table of a check, converted.
    fn access_table(
        &mut self,
        subject: AccessSubject,
        map_ref: &MapRef,
        content: &AccessTableContent,
        from: &str,
    ) -> Option<String> {
        let (text, kind) = match content {
            AccessTableContent::Unreadable(table) => return Some(table.clone()),
            AccessTableContent::Networks(_) => return None,
            AccessTableContent::Patterns(lines) => {
                if map_ref.kind != "static" {
                    self.draft.add_review_note(format!(
                        "{from}: patterns do not support back-references and look-around; `mailrace check` reports \
                         those that use them"
                    ));
                }
                (access_table::pattern_text(lines), "regexp")
            }
            AccessTableContent::Entries(entries) => {
                let written = access_table::entry_text(entries, subject, self.access_keys_match_subdomains());
                self.report_entries(from, &written);
                (written.text, "text")
            }
        };
        let is_written_here = ["inline", "static"].contains(&map_ref.kind.as_str());
        let (like, source) = match is_written_here {
            true => (map_ref.kind.clone(), from.to_owned()),
            false => (map_ref.name.clone(), format!("{}:{}", map_ref.kind, map_ref.name)),
        };
        let path = self.add_file(&like, "", text, false);
        let name = file_name(&path);
        let block = TomlSection::new("[[table]]").comment(format!("From {source}."));
        let block = block.key("name", quoted(&name), "").key("type", quoted(kind), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        Some(name)
    }

    fn report_entries(&mut self, from: &str, written: &access_table::ConvertedAccessTable) {
        if written.unsupported > 0 {
            self.draft.add_behavior_change(format!(
                "A table decides differently than with Postfix for {} ({from}): it defers mail that they concern. \
                 Comments in the table's file say why.",
                entry_count(written.unsupported)
            ));
        }
    }
}

fn entry_count(number: usize) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") }
}
