//! Conditions of ACL statements as conditions of access rules.
//!
//! | Exim | access rule |
//! |---|---|
//! | `hosts` | `clients`; with `!`, all other addresses |
//! | `senders`, `sender_domains` | `senders` |
//! | `recipients`, `domains` | `recipients`; domains of a database: `recipients_in` |
//! | `local_parts` | `recipients_in`, a table of patterns or of names |
//! | `dnslists` | `dnsbl`, `rhsbl` |
//! | `!verify = sender`, `reverse_host_lookup`, `helo` | `sender_is`, `reverse_name`, `helo_is` |
//! | `spf` | `spf` |

use super::Conversion;
use super::domains::{ConditionOutcome, DomainGroup, applies, may_be_excluded};
use super::expansion::list;
use super::hosts::HostSet;
use super::sections::AclItem;
use crate::config_draft::{quoted, quoted_list};
use crate::ip_net::quoted_networks;

/// Keys of a rule and their values in TOML.
pub(super) type RuleKeys = Vec<(&'static str, String)>;

/// A condition as rules can have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuleCondition {
    Always,
    Never,
    /// One of these holds.
    AnyOf(Vec<RuleKeys>),
    /// Why there is none.
    Unsupported(String),
}

impl RuleCondition {
    fn of(keys: RuleKeys) -> Self {
        RuleCondition::AnyOf(vec![keys])
    }

    /// The condition, if a rule at this stage can have it.
    pub(super) fn at_stage(self, stage: &str, item: &AclItem) -> Self {
        let is_known = |key: &str| match key {
            "clients" | "dnsbl" | "reverse_name" => true,
            "helo_is" => stage != "connect",
            "recipients" | "recipients_in" => stage == "rcpt",
            "spf" => stage == "message",
            _ => !matches!(stage, "connect" | "helo"),
        };
        match &self {
            // Rules about SPF are evaluated when the message is complete, wherever the ACL asks.
            RuleCondition::AnyOf(all) if all.iter().flatten().all(|(key, _)| *key == "spf" || is_known(key)) => self,
            RuleCondition::AnyOf(_) => RuleCondition::unsupported(item),
            _ => self,
        }
    }

    fn unsupported(item: &AclItem) -> Self {
        let sign = if item.negated { "!" } else { "" };
        let text: String = format!("{sign}{} = {}", item.name, item.value).chars().take(80).collect();
        RuleCondition::Unsupported(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl Conversion<'_> {
    /// The condition for a rule. One that accepts may match less than the statement, all others may match more.
    pub(super) fn rule_condition(&mut self, item: &AclItem, accepts: bool) -> RuleCondition {
        if let Some(outcome) = self.constant_condition(item).filter(|_| item.name != "hosts") {
            return match outcome.negated(item.negated) {
                ConditionOutcome::Yes => RuleCondition::Always,
                _ => RuleCondition::Never,
            };
        }
        match item.name.as_str() {
            "hosts" => self.host_condition(item),
            "senders" | "sender_domains" if !item.negated => self.address_condition(item, "senders"),
            "recipients" if !item.negated => self.address_condition(item, "recipients"),
            "domains" => self.domain_condition(item, accepts),
            "local_parts" if !item.negated => self.local_part_condition(item),
            "dnslists" if !item.negated => dns_lists(item),
            "verify" => verify_condition(item),
            "spf" if !item.negated && !accepts => {
                let results = list(&item.value);
                RuleCondition::of(vec![("spf", quoted_list(results.iter().map(String::as_str)))])
            }
            "acl" => self.nested_condition(item),
            _ => RuleCondition::unsupported(item),
        }
    }

    fn host_condition(&self, item: &AclItem) -> RuleCondition {
        let set: HostSet = self.hosts(&item.value);
        if !set.unknown.is_empty() {
            return RuleCondition::unsupported(item);
        }
        let networks = if item.negated { set.complement() } else { set.networks.clone() };
        match networks.is_empty() {
            true => RuleCondition::Never,
            false if !item.negated && set.is_everyone() => RuleCondition::Always,
            false => RuleCondition::of(vec![("clients", quoted_networks(&networks))]),
        }
    }

    /// `senders`, `recipients` and `sender_domains`.
    fn address_condition(&self, item: &AclItem, key: &'static str) -> RuleCondition {
        let text = self.expander.resolved(&item.value);
        let items = self.plain_items(&text);
        let patterns: Option<Vec<String>> = items.iter().map(|item| address_pattern(item)).collect();
        match patterns {
            Some(patterns) if !patterns.is_empty() => {
                RuleCondition::of(vec![(key, quoted_list(patterns.iter().map(String::as_str)))])
            }
            Some(_) => RuleCondition::Never,
            None => RuleCondition::unsupported(item),
        }
    }

    /// The elements of a list, with those of files and of named lists.
    fn plain_items(&self, text: &str) -> Vec<String> {
        let expand = |item: String| {
            let inside = match item.strip_prefix('+') {
                Some(name) => self.config.list(name).map(|value| self.expander.resolved(value)),
                None if item.starts_with('/') => {
                    self.files.text(std::path::Path::new(&item)).ok().map(|text| super::domains::file_items(&text))
                }
                None => None,
            };
            inside.map_or_else(|| vec![item], |inside| list(&inside))
        };
        list(text).into_iter().flat_map(expand).collect()
    }

    /// The domains of ours that the list contains. Other domains are not for strangers, so a rule need not name
    /// them; a rule that refuses all other domains is for all recipients here.
    fn domain_condition(&mut self, item: &AclItem, accepts: bool) -> RuleCondition {
        let items = self.domain_items(&item.value);
        let outcome = |group: &DomainGroup| applies(&items, group).negated(item.negated);
        if self.groups.iter().chain([&DomainGroup::Foreign]).any(|group| outcome(group) == ConditionOutcome::Maybe) {
            return RuleCondition::unsupported(item);
        }
        let chosen: Vec<DomainGroup> =
            self.groups.iter().filter(|group| outcome(group) == ConditionOutcome::Yes).cloned().collect();
        if accepts && chosen.iter().any(|group| may_be_excluded(&items, item.negated, group)) {
            return RuleCondition::unsupported(item);
        }
        if outcome(&DomainGroup::Foreign) == ConditionOutcome::Yes && !accepts {
            return RuleCondition::Always;
        }
        let (mut patterns, mut alternatives) = (Vec::new(), Vec::new());
        for group in &chosen {
            match group {
                DomainGroup::Name(name) => patterns.push(format!("@{name}")),
                DomainGroup::Subdomains(name) => patterns.push(format!("@*.{name}")),
                DomainGroup::Lookup(lookup) => match self.domain_table(lookup) {
                    Ok(table) => alternatives.push(vec![("recipients_in", quoted(&table))]),
                    Err(_) => return RuleCondition::unsupported(item),
                },
                DomainGroup::Foreign => {}
            }
        }
        if !patterns.is_empty() {
            alternatives.insert(0, vec![("recipients", quoted_list(patterns.iter().map(String::as_str)))]);
        }
        match alternatives.is_empty() {
            true => RuleCondition::Never,
            false => RuleCondition::AnyOf(alternatives),
        }
    }

    fn local_part_condition(&mut self, item: &AclItem) -> RuleCondition {
        let text = self.expander.resolved(&item.value).replace("\\\\", "\\");
        let items = self.plain_items(&text);
        let lines: Option<Vec<String>> = items.iter().map(|item| local_part_patterns(item)).collect();
        let Some(lines) = lines.filter(|lines| !lines.is_empty()) else { return RuleCondition::unsupported(item) };
        let comment = "Local parts of recipients. From local_parts of an ACL.";
        let table = self.add_text_table("local-parts", "regexp", lines.concat(), comment);
        RuleCondition::of(vec![("recipients_in", quoted(&table))])
    }

    /// An ACL as a condition. Only one whose result is certain for all strangers can be translated.
    fn nested_condition(&mut self, item: &AclItem) -> RuleCondition {
        let Some(acl) = self.config.acl(item.value.trim()) else { return RuleCondition::unsupported(item) };
        let is_never = acl.statements.iter().all(|statement| {
            // An ACL that calls another one, perhaps itself, is not looked into.
            let mut items = statement.items.iter().filter(|item| item.name != "acl");
            items.any(|item| self.rule_condition(item, false) == RuleCondition::Never)
        });
        match (is_never, item.negated) {
            (true, true) => RuleCondition::Always,
            (true, false) => RuleCondition::Never,
            (false, _) => RuleCondition::unsupported(item),
        }
    }
}

/// An element of a list of addresses, as a rule has it.
fn address_pattern(item: &str) -> Option<String> {
    if item.is_empty() {
        return Some("<>".into());
    }
    if item.starts_with(['!', '^', '+']) || item.contains([';', '$', '/']) {
        return None;
    }
    let (local, domain) = item.split_once('@').unwrap_or(("*", item));
    let name = domain.strip_prefix("*.").unwrap_or(domain);
    mail::Address::new("postmaster", name).ok()?;
    match local {
        "*" => Some(format!("@{domain}")),
        _ if local.contains('*') || domain.starts_with('*') => None,
        _ => mail::Address::new(local, domain).ok().map(|_| item.to_owned()),
    }
}

/// Lines of a table of patterns for addresses whose local part matches an element.
fn local_part_patterns(item: &str) -> Option<String> {
    let text = item.replace("\\N", "");
    let Some(pattern) = text.strip_prefix('^') else {
        let is_plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_+.".contains(c));
        return is_plain.then(|| format!("/^{}@/ x\n", escaped(&text)));
    };
    let (anywhere, rest) = pattern.strip_prefix(".*").map_or((false, pattern), |rest| (true, rest));
    if let Some(class) = rest.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        if class.starts_with('^') || class.is_empty() || class.contains([']', '[', '\\', '-']) {
            return None;
        }
        let outside = escaped(&class.replace('@', ""));
        let bare = if anywhere { format!("/^[^\"@]*[{outside}].*@/ x\n") } else { format!("/^[{outside}]/ x\n") };
        let lead = if anywhere { ".*" } else { "" };
        return Some(format!("{bare}/^\"{lead}[{}].*\"@/ x\n", escaped(class)));
    }
    let literal = rest.replace('\\', "");
    let is_literal =
        !rest.is_empty() && !rest.replace("\\.", "").contains(['.', '*', '+', '?', '(', '[', '{', '|', '$', '\\', '@']);
    // A domain has no @, so what stands before one is in the local part, which may have an @ in quotes.
    let lead = if anywhere { ".*" } else { "\"?" };
    is_literal.then(|| format!("/^{lead}{}.*@/ x\n", escaped(&literal)))
}

/// The text with a backslash before each character that could mean something.
pub(super) fn escaped(text: &str) -> String {
    let is_special = |c: char| c.is_ascii_punctuation() && !"<>_\"".contains(c);
    text.chars().flat_map(|c| is_special(c).then_some('\\').into_iter().chain([c])).collect()
}

/// `zone=codes/key`: of the client, or of a name.
fn dns_lists(item: &AclItem) -> RuleCondition {
    let rules: Option<Vec<RuleKeys>> = list(&item.value).iter().map(|text| dns_list(text)).collect();
    match rules {
        Some(rules) if !rules.is_empty() => RuleCondition::AnyOf(rules),
        _ => RuleCondition::unsupported(item),
    }
}

fn dns_list(text: &str) -> Option<RuleKeys> {
    let (zone, key) = text.split_once('/').unwrap_or((text, ""));
    let (zone, codes) = zone.split_once('=').unwrap_or((zone, ""));
    let zone = zone.trim();
    mail::Address::new("postmaster", zone).ok()?;
    let codes: Vec<&str> = codes.split(',').map(str::trim).filter(|code| !code.is_empty()).collect();
    if !codes.iter().all(|code| code.parse::<std::net::Ipv4Addr>().is_ok_and(|code| code.is_loopback())) {
        return None;
    }
    let shown = if codes.is_empty() { String::new() } else { format!(", codes = {}", quoted_list(codes)) };
    let of = match key.trim() {
        "" => return Some(vec![("dnsbl", format!("{{ zone = {}{shown} }}", quoted(zone)))]),
        "$sender_address_domain" => "sender",
        "$sender_helo_name" => "helo",
        "$sender_host_name" => "client_name",
        _ => return None,
    };
    Some(vec![("rhsbl", format!("{{ zone = {}{shown}, of = [\"{of}\"] }}", quoted(zone)))])
}

/// What a verification that fails finds. One that succeeds is no condition of a rule.
fn verify_condition(item: &AclItem) -> RuleCondition {
    let what = item.value.split('/').next().unwrap_or_default().trim();
    match (what, item.negated) {
        // Recipients are always verified.
        ("recipient", false) => RuleCondition::Always,
        ("recipient", true) => RuleCondition::Never,
        ("sender", true) => RuleCondition::of(vec![("sender_is", quoted_list(["unknown"]))]),
        ("reverse_host_lookup", true) => {
            RuleCondition::of(vec![("reverse_name", quoted_list(["missing", "unconfirmed"]))])
        }
        ("helo", true) => RuleCondition::of(vec![(
            "helo_is",
            quoted_list(["invalid", "not_qualified", "wrong_address", "own", "unknown"]),
        )]),
        _ => RuleCondition::unsupported(item),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_local_parts_become_patterns_of_addresses() {
        for (item, expected) in [
            ("postmaster", Some("/^postmaster@/ x\n")),
            ("^[.]", Some("/^[\\.]/ x\n/^\"[\\.].*\"@/ x\n")),
            ("^.*[@%]", Some("/^[^\"@]*[\\%].*@/ x\n/^\".*[\\@\\%].*\"@/ x\n")),
            ("^.*/\\.\\./", Some("/^.*\\/\\.\\.\\/.*@/ x\n")),
            ("^a.*b$", None),
            ("!x", None),
        ] {
            assert_eq!(local_part_patterns(item).as_deref(), expected, "{item}");
        }
    }

    #[test]
    fn lists_in_the_dns_keep_their_codes_and_their_key() {
        let keys = dns_list("zen.example=127.0.0.2,127.0.0.3").unwrap();
        assert_eq!(keys[0].1, "{ zone = \"zen.example\", codes = [\"127.0.0.2\", \"127.0.0.3\"] }");
        assert_eq!(dns_list("dbl.example/$sender_address_domain").unwrap()[0].0, "rhsbl");
        assert_eq!(dns_list("zen.example&0.0.0.1"), None);
    }
}
