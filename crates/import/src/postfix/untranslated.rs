//! Restrictions without a counterpart: mail that they may have refused is deferred, by a rule that says so.
//! Mail that they permitted is checked by later rules.

use super::Conversion;
use super::access::{
    ConvertedRestriction, ImportedRule, LATE_LISTS, NOT_TRANSLATED, RHSBL, RuleCondition, UNKNOWN_RECIPIENT_DOMAIN,
};
use super::access_table::AccessSubject;
use super::config_draft::{TomlSection, quoted_list};
use super::dnsbl::PostfixDnsbl;
use super::domains::SUBDOMAINS;
use super::lookups::MapRef;
use super::restrictions::{ClientKind, Restriction, RestrictionLists};
use super::words::{braced, list};

impl Conversion<'_> {
    /// Reports that mail is deferred which this restriction may have refused.
    pub(super) fn report_deferred_restriction(&mut self, told: &str, why: &str, conditions: &[(&'static str, String)]) {
        let words: Vec<String> = conditions.iter().map(|(key, value)| format!(" with {key} = {value}")).collect();
        self.draft.add_behavior_change(format!(
            "Mail{} that reaches {told} gets 451 until you remove its [[access]] rule \"{NOT_TRANSLATED}\": {why}.",
            words.concat()
        ));
    }

    /// What becomes of a restriction without a counterpart: mail that it may have refused is deferred.
    pub(super) fn safe_choice(&mut self, element: &Restriction, why: &'static str) -> ConvertedRestriction {
        let rule = element.rule.as_str();
        if rule.starts_with("permit") {
            return ConvertedRestriction::Lost(why);
        }
        let argument = element.argument.clone().unwrap_or_default();
        let all = |why| ConvertedRestriction::Deferred(why, Vec::new());
        match rule {
            "check_sasl_access" if !self.has_users => ConvertedRestriction::Same("nobody logs in"),
            "reject_unauthenticated_sender_login_mismatch" => {
                ConvertedRestriction::Same("no sender belongs to a user: see smtpd_sender_login_maps")
            }
            "reject_unlisted_sender" => {
                let own = self.own_domains();
                let own = own.iter().filter(|domain| !domain.ends_with(".invalid"));
                let own: Vec<String> = own.map(|domain| format!("@{domain}")).collect();
                match own.is_empty() {
                    true => ConvertedRestriction::Same("no domain is local"),
                    false => ConvertedRestriction::Deferred(
                        why,
                        vec![("senders", quoted_list(own.iter().map(String::as_str)))],
                    ),
                }
            }
            "reject_unverified_sender" => ConvertedRestriction::Deferred(why, vec![("senders", quoted_list(["@*"]))]),
            "reject_unverified_recipient" => self.unverified_recipients(why),
            "reject_rbl_client" => match PostfixDnsbl::with_all_answers(&argument) {
                Some(list) => ConvertedRestriction::Deferred(why, vec![("dnsbl", list.value())]),
                None => all(why),
            },
            _ => match RHSBL.iter().find(|(known, _)| *known == rule) {
                Some((_, subject)) => match PostfixDnsbl::with_all_answers(&argument) {
                    Some(list) => ConvertedRestriction::Deferred(why, vec![("rhsbl", list.value_for(subject))]),
                    None => all(why),
                },
                None if rule.starts_with("check_") && !self.may_refuse(&argument) => ConvertedRestriction::Lost(why),
                None => all(why),
            },
        }
    }

    /// Whether a table that is not asked here has a value that refuses mail, as far as it can be read.
    fn may_refuse(&mut self, argument: &str) -> bool {
        let word = braced(argument).and_then(|inside| list(inside).into_iter().next());
        let map_ref = MapRef::parse(word.as_deref().unwrap_or(argument));
        let content = map_ref.and_then(|map_ref| self.readable_content(AccessSubject::Helo, &map_ref));
        content.is_none_or(|content| content.can_refuse())
    }

    /// Recipients that Postfix verifies at the next hop: those of domains whose mailboxes are not known here.
    fn unverified_recipients(&mut self, why: &'static str) -> ConvertedRestriction {
        let domains = self.draft.sections.iter().filter(|block| block.header == "[[domain]]");
        let has = |block: &TomlSection, name: &str| block.keys.iter().any(|(key, ..)| key == name);
        let open: Vec<&TomlSection> = domains.filter(|block| !has(block, "mailboxes")).collect();
        if open.is_empty() {
            return ConvertedRestriction::Same("always: see `mailboxes` of [[domain]]");
        }
        let name = |block: &&TomlSection| {
            let (key, value, _) = block.keys.iter().find(|(key, ..)| key == "name" || key == "names")?;
            match (key.as_str(), value.trim_matches('"')) {
                ("name", domain) => Some(vec![format!("@{domain}")]),
                (_, table) if table.starts_with(SUBDOMAINS) => {
                    Some(self.relayed_parents.iter().map(|parent| format!("@*.{parent}")).collect())
                }
                // Domains in another table are not known here.
                _ => None,
            }
        };
        let names: Option<Vec<Vec<String>>> = open.iter().map(name).collect();
        let names = names.map(|names| names.concat());
        let conditions =
            names.map(|names| vec![("recipients", quoted_list(names.iter().map(String::as_str)))]).unwrap_or_default();
        ConvertedRestriction::Deferred(why, conditions)
    }

    /// Reports that clients who may relay learn of an unknown domain by a notice, if Postfix checks it for them.
    pub(super) fn report_unknown_recipient_domains(&mut self) {
        let asks = |lists: &RestrictionLists, who| {
            let is_it = |it: &&Restriction| it.rule == UNKNOWN_RECIPIENT_DOMAIN && it.no_effect.is_none();
            let mut found = lists.0.iter().enumerate().flat_map(|(list, own)| own.iter().map(move |it| (list, it)));
            lists.may_relay(who) && found.any(|(list, it)| is_it(&it) && lists.reaches(list, it, who))
        };
        let is_checked = self.inbound_services.iter().any(|inbound| {
            asks(&inbound.lists, ClientKind::Network) || inbound.has_logins && asks(&inbound.lists, ClientKind::User)
        });
        if is_checked {
            self.draft.add_behavior_change(format!(
                "Mail from relay networks and users to a domain that the DNS does not know is accepted, and returned to \
                 its sender ({UNKNOWN_RECIPIENT_DOMAIN})."
            ));
        }
    }

    /// Users who have moved: their mail is refused with the new address. If a table cannot be read, all
    /// mail is deferred.
    pub(super) fn relocated_recipients(&mut self, rules: &mut Vec<ImportedRule>) {
        let parameter = "relocated_maps";
        let Some(maps) = self.values.explicit_value(parameter) else { return };
        self.draft.mapped(parameter);
        for element in list(&maps) {
            let entries = MapRef::parse(&element).and_then(|map_ref| self.entries(&map_ref, false));
            let Some(entries) = entries else {
                let from = format!("{parameter}: {element}");
                self.report_deferred_restriction(&from, "its entries cannot be read", &[]);
                let condition = RuleCondition::NotTranslated(Vec::new());
                rules.insert(
                    0,
                    ImportedRule {
                        list: LATE_LISTS - 2,
                        from,
                        class: None,
                        condition,
                        excludes_users: false,
                        service: None,
                    },
                );
                continue;
            };
            for (key, place) in entries {
                let keys = match key.split_once('@') {
                    Some(("", domain)) => vec![domain.to_owned()],
                    Some(_) => vec![key],
                    None => self.site.domains.iter().map(|domain| format!("{key}@{domain}")).collect(),
                };
                let reply = format!("550 5.1.6 User has moved to {place}");
                self.blocked_recipients.extend(keys.into_iter().map(|key| (key, reply.clone())));
            }
        }
    }
}
