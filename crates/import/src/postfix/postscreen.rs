//! Converts postscreen's access list and DNS lists to `[[access]]` rules.
//!
//! postscreen adds up the weights of its DNS lists; where each of them suffices on its own, each becomes a
//! rule, whose reply names the list. Its other tests but the wait before the greeting have no counterpart.

use super::Conversion;
use super::access::{ANSWERS, ImportedRule, POSTSCREEN_LIST, RuleCondition};
use super::access_table::{AccessAction, AccessSubject, AccessTableContent};
use super::dnsbl::PostfixDnsbl;
use super::expand::ExpandedParameters;
use super::lookups::MapRef;
use super::networks::is_address;
use super::words::list;
use crate::ip_net::IpNet;

impl Conversion<'_> {
    /// Converts postscreen's access list and DNS lists.
    pub(super) fn postscreen_rules(&mut self, rules: &mut Vec<ImportedRule>) {
        let Some(screened) = self.inbound_services.iter().find(|inbound| inbound.uses_postscreen) else { return };
        let main = screened.main.clone();
        let values = self.values.with_main_cf(&main);
        let first = rules.len();
        self.postscreen_access_list(&values, rules);
        self.postscreen_sites(&values, rules);
        let service = self.only_screened_service();
        rules[first..].iter_mut().for_each(|rule| rule.service = service);
    }

    /// The service behind postscreen, if others stand beside it: postscreen refuses none of their clients.
    fn only_screened_service(&self) -> Option<usize> {
        let mut screened =
            (0..self.inbound_services.len()).filter(|place| self.inbound_services[*place].uses_postscreen);
        match (screened.next(), screened.next()) {
            (Some(only), None) if self.inbound_services.len() > 1 => Some(only),
            _ => None,
        }
    }

    /// The DNS lists that suffice on their own.
    fn postscreen_sites(&mut self, values: &ExpandedParameters<'_>, rules: &mut Vec<ImportedRule>) {
        let Some(sites) = values.explicit_value("postscreen_dnsbl_sites") else { return };
        let action = values.value("postscreen_dnsbl_action");
        if !["enforce", "drop"].contains(&action.as_str()) {
            return self.draft.unsupported("postscreen_dnsbl_sites", "postscreen_dnsbl_action does not refuse clients");
        }
        ["postscreen_dnsbl_sites", "postscreen_dnsbl_action", "postscreen_dnsbl_threshold"]
            .iter()
            .for_each(|name| self.draft.mapped(name));
        let threshold: i64 = values.value("postscreen_dnsbl_threshold").parse().unwrap_or(1);
        let (mut zones, mut is_exact) = (Vec::new(), true);
        for site in list(&sites) {
            let from = format!("postscreen_dnsbl_sites: {site}");
            if let Some(zone) = PostfixDnsbl::parse(&site) {
                self.draft.rules.push((from.clone(), "see [[access]]".into()));
                zones.push((from, zone));
                continue;
            }
            is_exact = false;
            self.draft.add_behavior_change(format!(
                "Mail from clients whose score depends on {site} gets 450: its answers cannot be translated, so all of \
                 them count, or none if the weight is negative."
            ));
            self.draft.add_unsupported(from.clone(), ANSWERS);
            zones.extend(PostfixDnsbl::with_all_answers(&site).filter(|zone| zone.weight > 0).map(|zone| (from, zone)));
        }
        self.score_rules(&zones, threshold, is_exact, rules);
    }

    /// Rules for lists with weights: one for each if each suffices on its own, else one for their sum.
    fn score_rules(
        &mut self,
        zones: &[(String, PostfixDnsbl)],
        threshold: i64,
        is_exact: bool,
        rules: &mut Vec<ImportedRule>,
    ) {
        let action = if is_exact { "refuse" } else { "defer" };
        let excludes_users = self.has_users;
        let mut add = |from: String, condition| {
            rules.push(ImportedRule {
                list: POSTSCREEN_LIST,
                from,
                class: None,
                condition,
                excludes_users,
                service: None,
            });
        };
        if zones.iter().all(|(_, zone)| zone.weight >= threshold) {
            for (from, zone) in zones {
                add(from.clone(), RuleCondition::Listed(zone.clone(), action));
            }
            return;
        }
        let lists: Vec<String> = zones.iter().map(|(_, zone)| zone.weighed_value()).collect();
        let value = format!("{{ at_least = {threshold}, lists = [{}] }}", lists.join(", "));
        add("postscreen_dnsbl_sites".to_owned(), RuleCondition::Score(value, action));
    }

    /// The elements of `postscreen_access_list`, up to one that decides about all clients or that Postfix does
    /// not know, where the list ends.
    fn postscreen_access_list(&mut self, values: &ExpandedParameters<'_>, rules: &mut Vec<ImportedRule>) {
        let parameter = "postscreen_access_list";
        let access_list = values.explicit_value(parameter).unwrap_or_else(|| "permit_mynetworks".into());
        let actions = ["postscreen_denylist_action", "postscreen_blacklist_action"];
        let refuses = actions.iter().any(|name| ["enforce", "drop"].contains(&values.value(name).as_str()));
        for element in list(&access_list) {
            let condition = match element.to_ascii_lowercase().as_str() {
                "permit_mynetworks" => Some(RuleCondition::Networks),
                "permit" => Some(RuleCondition::All("accept")),
                "reject" if refuses => Some(RuleCondition::All("refuse")),
                _ if element.contains(':') => self.postscreen_table(&element, refuses),
                _ => break,
            };
            let Some(condition) = condition else { continue };
            let ends = matches!(condition, RuleCondition::All(_));
            let from = format!("{parameter}: {element}");
            rules.push(ImportedRule {
                list: POSTSCREEN_LIST,
                from,
                class: None,
                condition,
                excludes_users: false,
                service: None,
            });
            if ends {
                break;
            }
        }
        [parameter].iter().chain(&actions).for_each(|name| self.draft.mapped(name));
    }

    /// A table of `postscreen_access_list`. One that cannot be read is queried, or defers all clients.
    fn postscreen_table(&mut self, element: &str, refuses: bool) -> Option<RuleCondition> {
        let ignores = |act: &AccessAction| matches!(act, AccessAction::Reject(_)) && !refuses;
        let map_ref = MapRef::parse(element)?;
        if let Some(networks) = self.postscreen_networks(&map_ref) {
            let decided = networks.into_iter().map(|(net, act)| match act {
                act if ignores(&act) => (net, AccessAction::Dunno),
                act => (net, act),
            });
            let content = AccessTableContent::Networks(decided.collect());
            return Some(RuleCondition::Table(AccessSubject::Client, map_ref, content));
        }
        let (named, mut content) = self.table_content(AccessSubject::Client, element)?;
        content.actions_mut().filter(|act| ignores(act)).for_each(|act| *act = AccessAction::Dunno);
        Some(RuleCondition::Table(AccessSubject::Client, named, content))
    }

    /// The networks in a table, in their order. In a table that is not of type cidr, postscreen looks up only
    /// the whole address of the client.
    fn postscreen_networks(&mut self, map_ref: &MapRef) -> Option<Vec<(IpNet, AccessAction)>> {
        if map_ref.kind == "cidr" {
            return self.read_cidr(map_ref, postscreen_action).ok();
        }
        let entries = self.entries(map_ref, false)?;
        let addresses = entries.into_iter().filter(|(key, _)| is_address(key));
        let mut networks: Vec<(IpNet, AccessAction)> =
            addresses.filter_map(|(key, value)| Some((IpNet::parse(&key)?, postscreen_action(&value)))).collect();
        // No client has two of these keys, so all with the same action become one rule.
        networks.sort_by_key(|(_, act)| matches!(act, AccessAction::Reject(_)));
        Some(networks)
    }
}

/// What a value says to postscreen, which takes all others than these for errors, and goes on.
fn postscreen_action(value: &str) -> AccessAction {
    match value.to_ascii_lowercase().as_str() {
        "permit" | "reject" => AccessAction::parse(value),
        _ => AccessAction::Dunno,
    }
}
