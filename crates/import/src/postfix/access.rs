//! Converts lists of restrictions to `[[access]]` rules.
//!
//! Postfix evaluates each list up to its end or to a permit, and accepts mail that no list rejects.
//! Rules with a `list` work the same way: `accept` skips only the rest of that list. All rules are
//! checked at RCPT, as with `smtpd_delay_reject = yes`. Rules do not apply to users who have logged
//! in if `permit_sasl_authenticated` let them pass.
//!
//! Relaying is separate: `restrictions` determines it and `listeners` writes it.

use std::path::Path;

use super::Conversion;
use super::access_table::{self, AccessAction, AccessSubject, AccessTableContent, EVERYTHING, group_by_action};
use super::dnsbl::PostfixDnsbl;
use super::logins::OTHER_SENDER_CHECKS;
use super::lookups::MapRef;
use super::map_text::TableUse;
use super::pattern_flags::pattern_lines;
use super::restrictions::{ClientKind, LISTS, Restriction, RestrictionLists};
use super::words::{braced, list};
use crate::ip_net::{IpNet, quoted_networks};

/// Classes within classes.
pub(super) const CLASS_DEPTH_MAX: usize = 5;
/// Rules that one table of networks may become.
const RUNS_MAX: usize = 100;
/// The index of postscreen's checks, after all lists.
pub(super) const POSTSCREEN_LIST: usize = LISTS.len();
/// The index of the first list that is evaluated after RCPT.
pub(super) const LATE_LISTS: usize = POSTSCREEN_LIST + 1;
/// The names of the lists in rules.
pub(super) const LIST_NAMES: [&str; LATE_LISTS + 2] =
    ["client", "helo", "sender", "relay", "recipient", "postscreen", "data", "end of data"];
/// Their stages.
pub(super) const LIST_STAGES: [&str; LATE_LISTS + 2] =
    ["rcpt", "rcpt", "rcpt", "rcpt", "rcpt", "rcpt", "data", "message"];
/// The name of rules that defer mail which a restriction may have refused.
pub(super) const NOT_TRANSLATED: &str = "not translated";

/// A rule to be written.
pub(super) struct ImportedRule {
    /// The index of its list.
    pub(super) list: usize,
    /// The restriction that it comes from.
    pub(super) from: String,
    /// The class of rules that it belongs to.
    pub(super) class: Option<String>,
    pub(super) condition: RuleCondition,
    pub(super) excludes_users: bool,
    /// The number of the service whose listeners it is for, if not for all.
    pub(super) service: Option<usize>,
}

/// The condition of a rule.
pub(super) enum RuleCondition {
    /// All clients, with this action.
    All(&'static str),
    /// Clients in mynetworks; they pass.
    Networks,
    /// Clients on a DNS list, with this action.
    Listed(PostfixDnsbl, &'static str),
    /// Clients that DNS lists give a score, as the value of `dnsbl_score`, with this action.
    Score(String, &'static str),
    /// What a restriction that is not supported may refuse: keys of the rule and their values.
    NotTranslated(Vec<(&'static str, String)>),
    /// Mail with the null sender to several recipients.
    MultiRecipientBounce,
    /// Clients with a name or a greeting of this kind: the key in the rule, its value, and the action.
    Named(NameCondition),
    /// What a table says.
    Table(AccessSubject, MapRef, AccessTableContent),
    /// Clients that use a sender from this table without logging in.
    Owned(String),
}

/// A condition on a name of the client.
pub(super) struct NameCondition {
    /// For the name of the rule.
    pub(super) name: String,
    pub(super) key: &'static str,
    /// In TOML.
    pub(super) value: String,
    pub(super) action: &'static str,
}

impl ImportedRule {
    /// Whether it may let clients pass.
    pub(super) fn can_accept(&self) -> bool {
        match &self.condition {
            RuleCondition::Networks => true,
            RuleCondition::Owned(_) | RuleCondition::NotTranslated(_) | RuleCondition::MultiRecipientBounce => false,
            RuleCondition::All(action)
            | RuleCondition::Listed(_, action)
            | RuleCondition::Score(_, action)
            | RuleCondition::Named(NameCondition { action, .. }) => *action == "accept",
            RuleCondition::Table(_, _, content) => content.can_accept(),
        }
    }
}

/// The list whose elements are converted, or a class of rules in it.
pub(super) struct ListScope {
    pub(super) list: usize,
    /// The parameter, and the class, for comments.
    pub(super) name: String,
    /// None: the list itself.
    pub(super) class: Option<String>,
    /// The class is only for clients that have not logged in.
    pub(super) excludes_users: bool,
    /// Classes around it.
    pub(super) depth: usize,
    /// As in [`ImportedRule`].
    pub(super) service: Option<usize>,
}

/// The result of converting a restriction.
pub(super) enum ConvertedRestriction {
    Rule(RuleCondition),
    /// The server always does this, or the restriction has no effect.
    Same(&'static str),
    /// Not supported.
    Lost(&'static str),
    /// Not supported; a rule with these keys defers the mail that it may refuse.
    Deferred(&'static str, Vec<(&'static str, String)>),
    /// The rest of the list is not evaluated.
    End(&'static str),
}

const AFTER_ALL: &str = "it comes after a restriction that decides about all mail";
/// The permit for users.
const PERMIT_USERS: &str = "permit_sasl_authenticated";
const AFTER_PERMIT: &str = "the rest of the list is not evaluated";
const FOR_OTHERS: &str =
    "the rest of the list is for mail to other domains, which only `relay.networks` and users may send anyway";

/// It only matters for mail of clients that may relay.
pub(super) const UNKNOWN_RECIPIENT_DOMAIN: &str = "reject_unknown_recipient_domain";

/// Restrictions that are built into the server or not needed.
pub(super) const NOT_NEEDED: [(&str, &str); 13] = [
    ("permit_sasl_authenticated", "users who log in may relay, and later rules do not apply to them (users = false)"),
    ("reject_unauth_destination", "always"),
    ("defer_unauth_destination", "always, but refused rather than deferred"),
    ("reject_unauth_pipelining", "commands beyond what PIPELINING allows are answered in order"),
    ("reject_unlisted_recipient", "always: see `mailboxes` of [[domain]]"),
    ("sleep", "there are no delays"),
    ("reject_non_fqdn_recipient", "recipients must always have a domain"),
    (UNKNOWN_RECIPIENT_DOMAIN, "not checked at RCPT; the sender gets a bounce"),
    ("reject_sender_login_mismatch", "see `senders` of [auth]"),
    ("reject_authenticated_sender_login_mismatch", "see `senders` of [auth]"),
    ("reject_known_sender_login_mismatch", "see `senders` of [auth]; there, users may only use their own senders"),
    ("reject_plaintext_session", "logins require TLS; with tls = \"required\" in [[listener]], all clients need it"),
    ("defer_if_reject", "refused mail is refused, not deferred"),
];

/// Restrictions about the names of clients and greetings, with the condition of a rule, and the parameter
/// with the code of the reply and its default.
const NAME_CHECKS: [(&str, &str, &str, (&str, &str)); 12] = [
    ("reject_non_fqdn_sender", "sender_is", "[\"not_qualified\"]", UNQUALIFIED_HELO),
    ("reject_unknown_sender_domain", "sender_is", "[\"unknown\"]", UNKNOWN_ADDRESS),
    ("reject_unknown_address", "sender_is", "[\"unknown\"]", UNKNOWN_ADDRESS),
    ("reject_unknown_reverse_client_hostname", "reverse_name", MISSING_NAME, UNKNOWN_CLIENT),
    ("reject_unknown_client_hostname", "reverse_name", UNKNOWN_NAME, UNKNOWN_CLIENT),
    ("reject_unknown_client", "reverse_name", UNKNOWN_NAME, UNKNOWN_CLIENT),
    ("reject_invalid_helo_hostname", "helo_is", "[\"invalid\"]", INVALID_HELO),
    ("reject_invalid_hostname", "helo_is", "[\"invalid\"]", INVALID_HELO),
    ("reject_non_fqdn_helo_hostname", "helo_is", "[\"not_qualified\"]", UNQUALIFIED_HELO),
    ("reject_non_fqdn_hostname", "helo_is", "[\"not_qualified\"]", UNQUALIFIED_HELO),
    ("reject_unknown_helo_hostname", "helo_is", "[\"unknown\"]", UNKNOWN_HELO),
    ("reject_unknown_hostname", "helo_is", "[\"unknown\"]", UNKNOWN_HELO),
];
const UNKNOWN_CLIENT: (&str, &str) = ("unknown_client_reject_code", "450");
const INVALID_HELO: (&str, &str) = ("invalid_hostname_reject_code", "501");
const UNQUALIFIED_HELO: (&str, &str) = ("non_fqdn_reject_code", "504");
const UNKNOWN_HELO: (&str, &str) = ("unknown_hostname_reject_code", "450");
const UNKNOWN_ADDRESS: (&str, &str) = ("unknown_address_reject_code", "450");
const MISSING_NAME: &str = "[\"missing\"]";
const UNKNOWN_NAME: &str = "[\"missing\", \"unconfirmed\"]";

/// Restrictions about DNS lists of domains, with the name that is looked up.
pub(super) const RHSBL: [(&str, &str); 6] = [
    ("reject_rhsbl_client", "client_name"),
    ("reject_rhsbl_reverse_client", "reverse_name"),
    ("reject_rhsbl_helo", "helo"),
    ("reject_rhsbl_sender", "sender"),
    ("reject_rhsbl_recipient", "recipient"),
    ("permit_rhswl_client", "client_name"),
];

/// Restrictions that are not supported, and why.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("check_policy_service", "its address cannot be translated: add a [[policy_service]]"),
    ("reject_unknown_", "it is not checked"),
    ("reject_non_fqdn_", "it is not checked"),
    ("reject_unverified_", "addresses are not verified at other servers"),
    ("reject_unlisted_sender", "the existence of senders is not checked"),
    ("permit_mx_backup", "mail is relayed only for domains with a [[domain]] section"),
    ("permit_tls_", "client certificates are not supported; use `relay.networks`"),
    ("check_", "it needs data that is not available here: hosts of domains, certificates, or users"),
];
pub(super) const ANSWERS: &str = "the answers of this list cannot be translated";

impl Conversion<'_> {
    /// Writes the rules of the first service for other servers; differences of other services are
    /// reported.
    pub(super) fn access(&mut self) {
        let front = self.main_inbound_service().cloned();
        let (lists, values) = match &front {
            Some(front) => (front.lists.clone(), front.main.clone()),
            None => (RestrictionLists::read(&self.values), self.main.clone()),
        };
        let mynetworks = front.as_ref().map_or_else(IpNet::loopback, |front| front.networks.clone());
        for class in list(&self.values.value("smtpd_restriction_classes")) {
            self.draft.not_needed(&class, "expanded in the lists that use it");
        }
        let mut rules = Vec::new();
        for (place, name) in LISTS.into_iter().enumerate() {
            if values.value(name).is_some() {
                self.collect_rules(place, name, &lists, &mut rules);
            }
            match self.main.value(name) {
                Some(own) if values.value(name) != Some(own) => {
                    self.draft.unsupported(name, "the service for other servers has a different value in master.cf");
                }
                _ => self.draft.not_needed(name, "see above for each restriction"),
            }
        }
        self.postscreen_rules(&mut rules);
        self.late_restrictions(&lists, &mut rules);
        self.other_services(&lists, &mut rules);
        self.report_other_relays();
        self.relocated_recipients(&mut rules);
        self.write_blocked_recipients();
        self.write_rules(&rules, &mynetworks);
        self.proxies();
        if self.values.value("strict_rfc821_envelopes").eq_ignore_ascii_case("yes") {
            self.draft.set("[smtp]", "strict_addresses", "true", "strict_rfc821_envelopes");
            self.draft.add_behavior_change(
                "Mail to and from domains with a final dot gets 501, as strict_rfc821_envelopes demands of other syntax.",
            );
        }
    }

    fn collect_rules(&mut self, list: usize, name: &str, lists: &RestrictionLists, rules: &mut Vec<ImportedRule>) {
        self.collect_list(list, name, &lists.0[list].clone(), lists, rules);
    }

    /// Converts a list with these elements.
    pub(super) fn collect_list(
        &mut self,
        list: usize,
        name: &str,
        elements: &[Restriction],
        lists: &RestrictionLists,
        rules: &mut Vec<ImportedRule>,
    ) {
        self.dropped_permit = false;
        let name = name.to_owned();
        let scope = ListScope { list, name, class: None, excludes_users: false, depth: 0, service: None };
        self.collect_elements(&scope, elements, lists, rules);
        // A permit at the end of a list has no effect. One of a class stays: a table names the class.
        let is_idle = |last: &ImportedRule| {
            last.list == list && last.class.is_none() && matches!(last.condition, RuleCondition::Networks)
        };
        while rules.last().is_some_and(is_idle) {
            rules.pop();
        }
    }

    /// Converts a list, or the class that a table in it names.
    pub(super) fn collect_elements(
        &mut self,
        scope: &ListScope,
        elements: &[Restriction],
        lists: &RestrictionLists,
        rules: &mut Vec<ImportedRule>,
    ) {
        let mut ended = None;
        for (place, element) in elements.iter().enumerate() {
            let told = format!("{}: {}", scope.name, element.text());
            let step = match (ended, &scope.class) {
                (Some(why), _) => ConvertedRestriction::Same(why),
                (None, Some(_)) => self.convert_in_class(scope, element),
                (None, None) if element.rule == "check_policy_service" && element.no_effect.is_none() => {
                    match scope.list.checked_sub(LATE_LISTS) {
                        Some(late) => self.late_policy_service(element, late),
                        None => self.policy_service(scope.list, element, lists),
                    }
                }
                (None, None) => self.convert_restriction(scope.list, element),
            };
            let step = match step {
                ConvertedRestriction::Lost(why) => self.safe_choice(element, why),
                step => step,
            };
            let does = match step {
                ConvertedRestriction::Same(does) => does,
                ConvertedRestriction::End(does) => {
                    ended = Some(if does == FOR_OTHERS { FOR_OTHERS } else { AFTER_ALL });
                    does
                }
                ConvertedRestriction::Lost(why) => {
                    self.draft.add_behavior_change(format!(
                        "Mail that it permitted is checked by later rules ({told}): {why}."
                    ));
                    self.dropped_permit |= may_accept(&element.rule);
                    why
                }
                ConvertedRestriction::Deferred(why, conditions) => {
                    self.report_deferred_restriction(&told, why, &conditions);
                    self.dropped_permit |= may_accept(&element.rule);
                    let excludes_users = self.excludes_users_before(scope, element, &elements[..place]);
                    rules.push(ImportedRule {
                        list: scope.list,
                        from: told.clone(),
                        class: scope.class.clone(),
                        condition: RuleCondition::NotTranslated(conditions),
                        excludes_users,
                        service: scope.service,
                    });
                    why
                }
                ConvertedRestriction::Rule(condition) => {
                    if matches!(condition, RuleCondition::All(_)) {
                        ended = Some(AFTER_ALL);
                    }
                    let excludes_users = self.excludes_users_before(scope, element, &elements[..place]);
                    let rule = ImportedRule {
                        list: scope.list,
                        from: told.clone(),
                        class: scope.class.clone(),
                        condition,
                        excludes_users,
                        service: scope.service,
                    };
                    self.add_imported_rule(scope, rule, lists, rules)
                }
            };
            self.draft.rules.push((told, does.to_owned()));
        }
    }

    /// Adds a rule, with those of the classes that its table names; what is told about it.
    fn add_imported_rule(
        &mut self,
        scope: &ListScope,
        mut rule: ImportedRule,
        lists: &RestrictionLists,
        rules: &mut Vec<ImportedRule>,
    ) -> &'static str {
        let mut classes = Vec::new();
        let does = match &mut rule.condition {
            RuleCondition::All(action) if *action == "refuse" && self.dropped_permit => {
                self.draft.add_behavior_change(format!(
                    "Mail that {} refused gets 450: a permit before it is not supported, and mail that it permitted \
                     would be refused too.",
                    rule.from
                ));
                *action = "defer";
                "see [[access]]: it defers, because a permit before it is not supported"
            }
            RuleCondition::Networks => {
                self.dropped_permit |= self.networks_incomplete;
                rule.excludes_users = false;
                "they skip the rest of this list; see also relay.networks"
            }
            RuleCondition::Table(subject, _, content) => {
                self.dropped_permit |= content.loses_accept(*subject);
                self.translate_filters(content);
                // Postfix adds no field once it has the message.
                let late_fields = content.actions_mut().filter(|act| rule.list == LATE_LISTS + 1 && act.is_field());
                late_fields.for_each(|act| *act = AccessAction::Dunno);
                classes = self.name_classes(scope, content);
                "see [[access]], or the part about what is not translated"
            }
            _ => "see [[access]], or the part about what is not translated",
        };
        let (excludes_users, place) = (rule.excludes_users, rules.len());
        rules.push(rule);
        for (class, text) in classes {
            let before = rules.len();
            let inner = ListScope {
                list: scope.list,
                name: format!("{}, {class}", scope.name),
                class: Some(class.clone()),
                excludes_users,
                depth: scope.depth + 1,
                service: scope.service,
            };
            self.collect_class(&inner, &text, lists, rules);
            if rules.len() == before
                && let RuleCondition::Table(_, _, content) = &mut rules[place].condition
            {
                // A class without rules decides nothing.
                let named = content.actions_mut().filter(|act| **act == AccessAction::Class(class.clone()));
                named.for_each(|act| *act = AccessAction::Dunno);
            }
        }
        does
    }

    /// Reports clients that Postfix lets relay for another reason than their address or a login:
    /// rules do not allow relaying.
    fn report_other_relays(&mut self) {
        let own = self.own_domains();
        for inbound in self.inbound_services.clone().iter().filter(|door| !door.is_local() && !door.is_from_filter) {
            let mut passes = |element: &Restriction| self.may_relay(element, &own, 0);
            let found = inbound.lists.other_relays(inbound.has_logins, &mut passes);
            for element in found {
                self.defer_relaying();
                let at =
                    if inbound.description.is_empty() { String::new() } else { format!(" at {}", inbound.description) };
                self.draft.add_behavior_change(format!(
                    "Mail to other domains that {} let clients send{at} gets 454: only `networks` of [relay] and \
                     users may relay. Add the addresses of these clients there.",
                    element.text()
                ));
            }
        }
    }

    /// Whether Postfix lets mail to other domains pass by this restriction.
    fn may_relay(&mut self, element: &Restriction, own: &[String], depth: usize) -> bool {
        let known = ["permit", "permit_mynetworks", "permit_sasl_authenticated", "permit_auth_destination"];
        if known.contains(&element.rule.as_str()) || !may_accept(&element.rule) {
            return false;
        }
        let Some(subject) = AccessSubject::of_rule(&element.rule) else { return true };
        let argument = element.argument.as_deref().unwrap_or_default();
        let word = braced(argument).and_then(|inside| list(inside).into_iter().next());
        let Some(map_ref) = MapRef::parse(word.as_deref().unwrap_or(argument)) else { return false };
        let Some(content) = self.readable_content(subject, &map_ref) else { return true };
        let values = self.values;
        let mut passes = |text: &str| {
            let elements = super::restrictions::parse_text(&values, LISTS[POSTSCREEN_LIST - 1], text);
            depth < CLASS_DEPTH_MAX && elements.iter().any(|element| self.may_relay(element, own, depth + 1))
        };
        content.may_relay(subject, own, &mut passes)
    }

    /// Gives the content filters in a table a transport of ours.
    fn translate_filters(&mut self, content: &mut AccessTableContent) {
        for action in content.actions_mut() {
            if let AccessAction::Filter(destination) = action {
                *action = match self.filter_destination(destination, "check_..._access") {
                    Some(ours) => AccessAction::Message(format!("FILTER {ours}")),
                    None => AccessAction::Other("its filter is no transport and next hop"),
                };
            }
        }
    }

    /// Whether no service with logins applies this to users, or what comes before it in its list permits them.
    fn excludes_users_before(&self, scope: &ListScope, element: &Restriction, before: &[Restriction]) -> bool {
        let permits_users = before.iter().any(|it| it.rule == PERMIT_USERS && it.no_effect.is_none());
        match &scope.class {
            None if scope.list < POSTSCREEN_LIST && scope.service.is_none() => self.excludes_users(scope.list, element),
            None => self.has_users && permits_users,
            Some(_) => scope.excludes_users || permits_users,
        }
    }

    /// Whether no service with logins applies this to users.
    pub(super) fn excludes_users(&self, list: usize, element: &Restriction) -> bool {
        let asks = |inbound: &super::inbound_services::InboundService| {
            inbound.has_logins && inbound.lists.reaches(list, element, ClientKind::User)
        };
        self.has_users && !self.inbound_services.iter().any(asks)
    }

    pub(super) fn convert_restriction(&mut self, list: usize, element: &Restriction) -> ConvertedRestriction {
        let rule = element.rule.as_str();
        if let Some(why) = element.no_effect {
            return ConvertedRestriction::Same(why);
        }
        match rule {
            "permit" => return ConvertedRestriction::End(AFTER_PERMIT),
            "permit_auth_destination" => return ConvertedRestriction::End(FOR_OTHERS),
            "permit_mynetworks" => return ConvertedRestriction::Rule(RuleCondition::Networks),
            "reject" => return ConvertedRestriction::Rule(RuleCondition::All("refuse")),
            "defer" | "defer_if_permit" => return ConvertedRestriction::Rule(RuleCondition::All("defer")),
            _ => {}
        }
        let argument = element.argument.as_deref().unwrap_or_default();
        if rule == "reject_multi_recipient_bounce" {
            return self.multi_recipient_bounce(list);
        }
        if list >= LATE_LISTS && rule == "check_recipient_access" {
            return ConvertedRestriction::Lost("after RCPT, rules are about the message and not about a recipient");
        }
        if let Some(subject) = AccessSubject::of_rule(rule) {
            return match self.table_content(subject, argument) {
                Some((named, content)) => ConvertedRestriction::Rule(RuleCondition::Table(subject, named, content)),
                None => ConvertedRestriction::Lost("its argument is not a table"),
            };
        }
        if ["reject_rbl_client", "permit_dnswl_client"].contains(&rule) {
            let action =
                if rule.starts_with("permit") { "accept" } else { self.refusal_action("maps_rbl_reject_code") };
            return match PostfixDnsbl::parse(argument) {
                Some(zone) => ConvertedRestriction::Rule(RuleCondition::Listed(zone, action)),
                None => ConvertedRestriction::Lost(ANSWERS),
            };
        }
        if let Some((_, subject)) = RHSBL.iter().find(|(known, _)| *known == rule) {
            let action =
                if rule.starts_with("permit") { "accept" } else { self.refusal_action("maps_rbl_reject_code") };
            return match PostfixDnsbl::parse(argument) {
                Some(zone) => ConvertedRestriction::Rule(RuleCondition::Named(NameCondition {
                    name: zone.name.clone(),
                    key: "rhsbl",
                    value: zone.value_for(subject),
                    action,
                })),
                None => ConvertedRestriction::Lost(ANSWERS),
            };
        }
        self.convert_by_name(list, rule)
    }

    /// Mail with the null sender to several recipients, which only DATA shows. In the lists before it, Postfix
    /// refuses such mail from the third recipient on.
    fn multi_recipient_bounce(&mut self, list: usize) -> ConvertedRestriction {
        match list >= LATE_LISTS {
            true => ConvertedRestriction::Rule(RuleCondition::MultiRecipientBounce),
            false => ConvertedRestriction::Lost("it is only supported in smtpd_data_restrictions: move it there"),
        }
    }

    fn convert_by_name(&mut self, list: usize, rule: &str) -> ConvertedRestriction {
        let has_logins = self.main_inbound_service().is_some_and(|front| front.has_logins);
        if let Some(owned) = self
            .owned_senders
            .clone()
            .filter(|_| has_logins && list != POSTSCREEN_LIST && OTHER_SENDER_CHECKS.contains(&rule))
        {
            return ConvertedRestriction::Rule(RuleCondition::Owned(owned));
        }
        if let Some((_, key, value, code)) = NAME_CHECKS.iter().find(|(known, ..)| *known == rule) {
            let (parameter, default) = code;
            let code = self.values.explicit_value(parameter).unwrap_or_else(|| (*default).to_owned());
            let action = if code.starts_with('4') { "defer" } else { "refuse" };
            let (name, value) = (rule.to_owned(), (*value).to_owned());
            return ConvertedRestriction::Rule(RuleCondition::Named(NameCondition { name, key, value, action }));
        }
        if rule == UNKNOWN_RECIPIENT_DOMAIN {
            self.report_unknown_recipient_domains();
        }
        if let Some((_, does)) = NOT_NEEDED.iter().find(|(known, _)| *known == rule) {
            return ConvertedRestriction::Same(does);
        }
        let lost = UNSUPPORTED.iter().find(|(beginning, _)| rule.starts_with(beginning));
        ConvertedRestriction::Lost(lost.map_or("unknown restriction", |(_, why)| why))
    }

    fn refusal_action(&self, parameter: &str) -> &'static str {
        if self.values.value(parameter).starts_with('4') { "defer" } else { "refuse" }
    }

    /// The contents of the table of a check.
    pub(super) fn table_content(
        &mut self,
        subject: AccessSubject,
        argument: &str,
    ) -> Option<(MapRef, AccessTableContent)> {
        // In braces, the table comes first, then its own settings.
        let map_ref = match braced(argument) {
            Some(inside) => MapRef::parse(list(inside).first()?)?,
            None => MapRef::parse(argument)?,
        };
        let mut content = match self.readable_content(subject, &map_ref) {
            Some(AccessTableContent::Networks(networks)) if group_by_action(&networks).len() > RUNS_MAX => {
                let why = "it would become too many rules; combine its networks";
                AccessTableContent::Unreadable(self.unavailable_table(&map_ref, TableUse::Access, why)?)
            }
            Some(content) => content,
            None => AccessTableContent::Unreadable(self.opaque_table(subject, &map_ref)?),
        };
        if subject == AccessSubject::Sender {
            self.translate_null_sender(&map_ref, &mut content);
        }
        Some((map_ref, content))
    }

    /// Names the null sender as it is looked up here, if Postfix has another key for it.
    fn translate_null_sender(&mut self, map_ref: &MapRef, content: &mut AccessTableContent) {
        let Some(own) = self.values.explicit_value("smtpd_null_access_lookup_key").filter(|own| own != "<>") else {
            return;
        };
        match content {
            AccessTableContent::Entries(entries) => {
                entries.retain(|(key, _)| key != "<>");
                let named = entries.iter_mut().filter(|(key, _)| key.eq_ignore_ascii_case(&own));
                named.for_each(|(key, _)| "<>".clone_into(key));
            }
            AccessTableContent::Patterns(_) if map_ref.kind == "static" => {}
            _ => self.draft.add_behavior_change(format!(
                "Mail with the null sender is looked up as \"<>\" in {}, not as \"{own}\" \
                 (smtpd_null_access_lookup_key): rename its entry.",
                map_ref.text()
            )),
        }
    }

    /// The contents of a table that can be read.
    pub(super) fn readable_content(&mut self, subject: AccessSubject, map_ref: &MapRef) -> Option<AccessTableContent> {
        Some(match map_ref.kind.as_str() {
            "static" => {
                let act = AccessAction::parse(braced(&map_ref.name).unwrap_or(&map_ref.name));
                AccessTableContent::Patterns(vec![(EVERYTHING.into(), Some(act))])
            }
            "regexp" | "pcre" => {
                let text = self.read_file(Path::new(&map_ref.name))?;
                AccessTableContent::Patterns(access_table::patterns(&pattern_lines(&text, &map_ref.kind).ok()?))
            }
            "cidr" if subject == AccessSubject::Client => {
                AccessTableContent::Networks(self.read_cidr(map_ref, AccessAction::parse).ok()?)
            }
            _ => {
                let entries = self.entries(map_ref, false)?;
                AccessTableContent::Entries(
                    entries.into_iter().map(|(key, value)| (key, AccessAction::parse(&value))).collect(),
                )
            }
        })
    }

    /// The table in place of one that cannot be read. Unless it can be queried, it defers mail, and
    /// this is reported.
    fn opaque_table(&mut self, subject: AccessSubject, map_ref: &MapRef) -> Option<String> {
        match map_ref.kind.as_str() {
            "regexp" | "pcre" => {
                let text = self.read_file(Path::new(&map_ref.name));
                let why = text.and_then(|text| pattern_lines(&text, &map_ref.kind).err());
                self.unavailable_table(map_ref, TableUse::Access, why.unwrap_or("the file cannot be read"))
            }
            "cidr" if subject == AccessSubject::Client => {
                let why = self.read_cidr(map_ref, AccessAction::parse).err().unwrap_or_default();
                self.unavailable_table(map_ref, TableUse::Access, &why)
            }
            _ => self.convert_chain(vec![map_ref.clone()], TableUse::Access),
        }
    }

    /// The networks of a table and their actions, as `parse` understands them.
    pub(super) fn read_cidr(
        &mut self,
        map_ref: &MapRef,
        parse: fn(&str) -> AccessAction,
    ) -> Result<Vec<(IpNet, AccessAction)>, String> {
        let text = self.read_file(Path::new(&map_ref.name)).ok_or("the file cannot be read")?;
        let mut networks = Vec::new();
        for line in super::main_cf::logical_lines(&text) {
            let (net, value) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
            let net = IpNet::parse(net).ok_or_else(|| format!("its line \"{line}\" does not start with a network"))?;
            networks.push((net, parse(value.trim())));
        }
        Ok(networks)
    }

    /// The proxies that may use XCLIENT, if all services agree.
    fn proxies(&mut self) {
        let name = "smtpd_authorized_xclient_hosts";
        let Some(value) = self.values.explicit_value(name) else { return };
        if self.inbound_services.iter().any(|inbound| inbound.main.value(name) != self.main.value(name)) {
            self.draft.add_behavior_change(format!(
                "Mail from the proxies in {name} is handled as their own: a service in master.cf has a different \
                 value, and `xclient_from` applies to all listeners."
            ));
            return self.draft.unsupported(
                name,
                "a service in master.cf has a different value, and here it applies to all listeners",
            );
        }
        let proxies = self.network_list(name, &value);
        match proxies.is_empty() {
            true => self.draft.not_needed(name, "nobody, unless `xclient_from` of [smtp] is set"),
            false => self.draft.set("[smtp]", "xclient_from", quoted_networks(&proxies), name),
        }
    }
}

/// Whether a restriction has a counterpart.
pub(super) fn is_supported(rule: &str) -> bool {
    let decides = ["permit", "permit_mynetworks", "reject", "defer", "defer_if_permit"];
    let lists = ["reject_rbl_client", "permit_dnswl_client"];
    decides.contains(&rule)
        || lists.contains(&rule)
        || AccessSubject::of_rule(rule).is_some()
        || RHSBL.iter().any(|(known, _)| *known == rule)
        || NAME_CHECKS.iter().any(|(known, ..)| *known == rule)
        || NOT_NEEDED.iter().any(|(known, _)| *known == rule)
}

/// Whether a restriction may let clients pass, including through a table or a policy service.
fn may_accept(rule: &str) -> bool {
    rule.starts_with("permit") || rule.starts_with("check_")
}
