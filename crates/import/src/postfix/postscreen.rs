//! Converts postscreen's access list and DNS lists to `[[access]]` rules.
//!
//! postscreen adds up the weights of its DNS lists; where each of them suffices on its own, each becomes a
//! rule, whose reply names the list. Its other tests but the wait before the greeting have no counterpart.

use super::Conversion;
use super::access::{ANSWERS, ImportedRule, POSTSCREEN_LIST, RuleCondition};
use super::access_table::{AccessAction, AccessSubject, AccessTableContent};
use super::dnsbl::PostfixDnsbl;
use super::lookups::MapRef;
use super::words::list;

impl Conversion<'_> {
    /// Converts postscreen's access list and DNS lists.
    pub(super) fn postscreen_rules(&mut self, rules: &mut Vec<ImportedRule>) {
        if !self.inbound_services.iter().any(|inbound| inbound.uses_postscreen) {
            return;
        }
        let exempt = self.values.explicit_value("postscreen_access_list").unwrap_or_else(|| "permit_mynetworks".into());
        if list(&exempt).first().is_some_and(|first| first == "permit_mynetworks") {
            let from = "postscreen_access_list: permit_mynetworks".to_owned();
            rules.push(ImportedRule {
                list: POSTSCREEN_LIST,
                from,
                class: None,
                condition: RuleCondition::Networks,
                excludes_users: false,
                service: None,
            });
        }
        self.postscreen_tables(&exempt, rules);
        self.postscreen_sites(rules);
    }

    /// The DNS lists that suffice on their own.
    fn postscreen_sites(&mut self, rules: &mut Vec<ImportedRule>) {
        let Some(sites) = self.values.explicit_value("postscreen_dnsbl_sites") else { return };
        let action = self.values.value("postscreen_dnsbl_action");
        if !["enforce", "drop"].contains(&action.as_str()) {
            return self.draft.unsupported("postscreen_dnsbl_sites", "postscreen_dnsbl_action does not refuse clients");
        }
        ["postscreen_dnsbl_sites", "postscreen_dnsbl_action", "postscreen_dnsbl_threshold"]
            .iter()
            .for_each(|name| self.draft.mapped(name));
        let threshold: i64 = self.values.value("postscreen_dnsbl_threshold").parse().unwrap_or(1);
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

    /// The tables of `postscreen_access_list`: clients that need no test, and clients that are refused.
    fn postscreen_tables(&mut self, access_list: &str, rules: &mut Vec<ImportedRule>) {
        let parameter = "postscreen_access_list";
        let action = ["postscreen_denylist_action", "postscreen_blacklist_action"].map(|name| self.values.value(name));
        let refuses = action.iter().any(|action| ["enforce", "drop"].contains(&action.as_str()));
        for element in list(access_list).into_iter().filter(|element| element != "permit_mynetworks") {
            let from = format!("{parameter}: {element}");
            let networks = MapRef::parse(&element).filter(|map_ref| map_ref.kind == "cidr");
            let Some(networks) = networks.and_then(|map_ref| Some((self.read_cidr(&map_ref).ok()?, map_ref))) else {
                self.unread_postscreen_table(&element, refuses, rules);
                continue;
            };
            let decided = networks.0.into_iter().map(|(net, act)| match act {
                AccessAction::Reject(_) if !refuses => (net, AccessAction::Dunno(None)),
                act => (net, act),
            });
            let content = AccessTableContent::Networks(decided.collect());
            rules.push(ImportedRule {
                list: POSTSCREEN_LIST,
                from,
                class: None,
                condition: RuleCondition::Table(AccessSubject::Client, networks.1, content),
                excludes_users: false,
                service: None,
            });
        }
        [parameter, "postscreen_denylist_action", "postscreen_blacklist_action"]
            .iter()
            .for_each(|name| self.draft.mapped(name));
    }

    /// A table of `postscreen_access_list` that is not of type cidr: it is queried, or defers all clients.
    fn unread_postscreen_table(&mut self, element: &str, refuses: bool, rules: &mut Vec<ImportedRule>) {
        let Some((named, mut content)) = self.table_content(AccessSubject::Client, element) else { return };
        for act in content.actions_mut().filter(|_| !refuses) {
            if matches!(act, AccessAction::Reject(_)) {
                *act = AccessAction::Dunno(None);
            }
        }
        rules.push(ImportedRule {
            list: POSTSCREEN_LIST,
            from: format!("postscreen_access_list: {element}"),
            class: None,
            condition: RuleCondition::Table(AccessSubject::Client, named, content),
            excludes_users: false,
            service: None,
        });
    }
}
