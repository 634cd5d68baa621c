//! ACLs as access rules. The statements of an ACL are a list of rules: `accept` ends the list, `deny` and `drop`
//! refuse, `require` refuses what does not fulfil it, and `warn` decides nothing.
//!
//! A statement that refuses by a condition without a counterpart defers what its other conditions match. One that
//! accepts by such a condition is left out, so the rest of the list applies. The file names both.

use super::Conversion;
use super::domains::{ConditionOutcome, DomainGroup, applies};
use super::sections::{AclItem, AclStatement, MODIFIERS};
use super::statements::{RuleCondition, RuleKeys};
use crate::config_draft::{TomlSection, quoted};

/// ACLs and the stage of their rules.
const STAGES: [(&str, &str); 5] = [
    ("acl_smtp_connect", "connect"),
    ("acl_smtp_helo", "helo"),
    ("acl_smtp_mail", "mail"),
    ("acl_smtp_rcpt", "rcpt"),
    ("acl_smtp_data", "message"),
];
/// ACLs without rules.
const OTHER_ACLS: [&str; 9] = [
    "acl_smtp_predata",
    "acl_smtp_mime",
    "acl_smtp_dkim",
    "acl_smtp_data_prdr",
    "acl_smtp_auth",
    "acl_smtp_starttls",
    "acl_not_smtp",
    "acl_not_smtp_mime",
    "acl_not_smtp_start",
];
/// Main options that refuse clients or their mail, and have no counterpart.
const REFUSING_OPTIONS: [&str; 2] = ["helo_verify_hosts", "tls_verify_hosts"];
/// Conditions on the content, for which there are filters.
const CONTENT: [&str; 6] = ["malware", "spam", "regex", "mime_regex", "decode", "av_scanner"];
/// Rules that one statement may become.
const RULES_MAX: usize = 64;

/// A rule under construction.
struct Rule {
    keys: RuleKeys,
    action: &'static str,
    reply: Option<String>,
    /// Whether it comes after `accept authenticated = *`.
    after_users: bool,
}

impl Conversion<'_> {
    /// Writes the rules of all ACLs.
    pub(super) fn access(&mut self) {
        self.rejected_hosts();
        self.tell_of_refusing_options();
        for (option, stage) in STAGES {
            let Some(statements) = self.acl_of(option).map(<[AclStatement]>::to_vec) else {
                if self.config.main.value(option).is_some() && option != "acl_smtp_rcpt" {
                    self.draft.add_behavior_change(format!(
                        "All mail is deferred: the ACL of {option} is not in the file, or its name depends on the message. \
                         Replace the rule `{stage} 1` in [[access]]."
                    ));
                    let rule = Rule { keys: Vec::new(), action: "defer", reply: None, after_users: false };
                    self.write_rules(stage, vec![rule]);
                }
                continue;
            };
            self.draft.mapped(option);
            let mut rules = Vec::new();
            let mut after_users = false;
            for statement in &statements {
                self.statement(statement, stage, after_users, &mut rules);
                after_users |= is_for_all_users(statement) && self.relay.users;
            }
            if stage != "rcpt" && !statements.iter().any(is_for_all) {
                // The end of an ACL refuses.
                rules.push(Rule { keys: Vec::new(), action: "refuse", reply: None, after_users });
            }
            while rules.last().is_some_and(|rule| rule.action == "accept") {
                rules.pop();
            }
            self.refuse_closed_domains(stage, &mut rules);
            self.write_rules(stage, rules);
        }
        for option in OTHER_ACLS.iter().filter(|name| self.config.main.value(name).is_some()) {
            self.draft.mapped(option);
            self.draft
                .add_behavior_change(format!("Mail that {option} refused is accepted: this ACL has no counterpart."));
        }
    }

    fn tell_of_refusing_options(&mut self) {
        for option in REFUSING_OPTIONS {
            let value = self.config.main.value(option).unwrap_or_default();
            if !value.is_empty() && self.expander.constant(value).is_none_or(|it| !it.trim().is_empty()) {
                self.draft.unsupported(option, "no key for it; mail is handled without it");
                self.draft.add_behavior_change(format!(
                    "Mail of clients that {option} refused is accepted: this has no counterpart, see [[access]]."
                ));
            }
        }
    }

    fn rejected_hosts(&mut self) {
        let option = "host_reject_connection";
        let Some(value) = self.config.main.value(option) else { return };
        let set = self.hosts(value);
        self.draft.mapped(option);
        if !set.unknown.is_empty() {
            // Networks after an exception that is unknown may be part of it, so they are not refused.
            let what = if set.is_incomplete() { value.to_owned() } else { set.unknown.join(", ") };
            self.draft.add_behavior_change(format!(
                "Clients in {what} ({option}) are accepted: not all of these are networks."
            ));
        }
        if !set.networks.is_empty() {
            let clients = crate::ip_net::quoted_networks(&set.networks);
            let block = TomlSection::new("[[access]]").key("name", quoted("rejected hosts"), "");
            self.draft.add(block.key("clients", clients, option).key("action", quoted("refuse"), ""));
        }
    }

    /// Domains that only some strangers may send to are closed for all whom no rule accepts, and those that nobody
    /// may send to for all.
    fn refuse_closed_domains(&mut self, stage: &str, rules: &mut Vec<Rule>) {
        if stage != "rcpt" {
            return;
        }
        let relays = self.relay.users || !self.relay.networks.is_empty();
        let is_closed = |group: &&DomainGroup| match self.accepts_strangers(group) {
            ConditionOutcome::Yes => false,
            ConditionOutcome::Maybe => true,
            ConditionOutcome::No => relays && !self.may_relay_to(group),
        };
        let closed: Vec<DomainGroup> = self.groups.iter().filter(is_closed).cloned().collect();
        for group in closed {
            let may_users_pass = self.relay.users && self.may_relay_to(&group);
            let keys = match &group {
                DomainGroup::Name(name) => vec![("recipients", format!("[{}]", quoted(&format!("@{name}"))))],
                DomainGroup::Subdomains(name) => vec![("recipients", format!("[{}]", quoted(&format!("@*.{name}"))))],
                DomainGroup::Lookup(lookup) => match self.domain_table(&lookup.clone()) {
                    Ok(table) => vec![("recipients_in", quoted(&table))],
                    Err(_) => continue,
                },
                DomainGroup::Foreign => continue,
            };
            rules.push(Rule { keys, action: "refuse", reply: None, after_users: may_users_pass });
        }
    }

    fn statement(&mut self, statement: &AclStatement, stage: &str, after_users: bool, rules: &mut Vec<Rule>) {
        self.frozen_mail(statement, stage, after_users, rules);
        self.tell_of_discarded_mail(statement);
        if statement.verb == "warn" || self.is_known_elsewhere(statement, stage) {
            return;
        }
        let conditions: Vec<AclItem> =
            statement.items.iter().filter(|it| !MODIFIERS.contains(&it.name.as_str())).cloned().collect();
        if statement.verb == "require" {
            for item in conditions {
                let failed = AclItem { negated: !item.negated, ..item };
                let refused = AclStatement { verb: "deny".into(), items: vec![failed] };
                if stage != "rcpt" || !self.is_for_foreign_domains(&refused) {
                    self.refusing(&refused, statement, stage, after_users, rules);
                }
            }
            return;
        }
        self.tell_of_callouts(&conditions);
        let before = statement.items.iter().take_while(|item| statement.verb != "accept" || item.name != "endpass");
        let items = before.filter(|it| !MODIFIERS.contains(&it.name.as_str())).cloned().collect();
        let bare = AclStatement { verb: statement.verb.clone(), items };
        match statement.verb.as_str() {
            "accept" => {
                self.behind_endpass(statement, stage, after_users, rules);
                self.accepting(&bare, statement, stage, rules);
            }
            _ => self.refusing(&bare, statement, stage, after_users, rules),
        }
    }

    /// `control = freeze` holds mail. The controls that only seem to refuse it have no counterpart.
    fn frozen_mail(&mut self, statement: &AclStatement, stage: &str, after_users: bool, rules: &mut Vec<Rule>) {
        let controls = statement.items.iter().filter(|item| item.name == "control");
        let names: Vec<&str> = controls.map(|item| item.value.split('/').next().unwrap_or_default().trim()).collect();
        if names.iter().any(|name| ["fakereject", "fakedefer"].contains(name)) {
            self.draft.add_behavior_change(format!(
                "Mail that `{}` accepts with the reply of a refusal gets 250: this control has no counterpart.",
                statement.summary()
            ));
        }
        if !names.contains(&"freeze") || !["accept", "warn"].contains(&statement.verb.as_str()) {
            return;
        }
        let is_condition = |item: &&AclItem| !MODIFIERS.contains(&item.name.as_str());
        let conditions: Vec<AclItem> = statement.items.iter().filter(is_condition).cloned().collect();
        match self.alternatives(&conditions, stage, false) {
            Ok(alternatives) => rules.extend(alternatives.into_iter().map(|keys| Rule {
                keys,
                action: "hold",
                reply: None,
                after_users,
            })),
            Err((_, unsupported)) => self.draft.add_behavior_change(format!(
                "Mail that `{}` froze is delivered: `{unsupported}` has no counterpart. Add a rule with action = \"hold\".",
                statement.summary()
            )),
        }
    }

    /// What stands behind `endpass` is required of the mail that the conditions before it match.
    fn behind_endpass(&mut self, statement: &AclStatement, stage: &str, after_users: bool, rules: &mut Vec<Rule>) {
        let mut parts = statement.items.split(|item| item.name == "endpass");
        let is_condition = |item: &&AclItem| !MODIFIERS.contains(&item.name.as_str());
        let before: Vec<AclItem> = parts.next().unwrap_or_default().iter().filter(is_condition).cloned().collect();
        for item in parts.flatten().filter(is_condition) {
            let failed = AclItem { negated: !item.negated, ..item.clone() };
            let items = before.iter().cloned().chain([failed]).collect();
            self.refusing(&AclStatement { verb: "deny".into(), items }, statement, stage, after_users, rules);
        }
    }

    fn tell_of_discarded_mail(&mut self, statement: &AclStatement) {
        if statement.verb == "discard" && !self.never_holds(&statement.items) {
            self.draft.add_behavior_change(format!(
                "Mail that `{}` dropped after a 250 is not accepted: no rule drops by these conditions, see the value DISCARD \
                 of a table with action = \"table\".",
                statement.summary()
            ));
        }
    }

    fn tell_of_callouts(&mut self, conditions: &[AclItem]) {
        if self.never_holds(conditions) {
            return;
        }
        if conditions.iter().any(|item| item.name == "verify" && item.value.trim().starts_with("recipient/callout")) {
            self.draft.add_behavior_change(
                "Mail to addresses in relayed domains is accepted whether they exist or not, and may bounce: no callout is \
                 made. Add `mailboxes` to these domains.",
            );
        }
    }

    /// Whether one of the conditions is false for all mail.
    fn never_holds(&self, conditions: &[AclItem]) -> bool {
        conditions.iter().any(|item| {
            self.constant_condition(item).is_some_and(|outcome| outcome.negated(item.negated) == ConditionOutcome::No)
        })
    }

    /// Whether a statement decides only what is decided without rules: who may relay, and what Exim counts by itself.
    fn is_known_elsewhere(&mut self, statement: &AclStatement, stage: &str) -> bool {
        let has = |name: &str| statement.items.iter().find(|item| item.name == name);
        if let Some(item) = has("condition").filter(|item| item.value.contains("$rcpt_count")) {
            // Recipients that do not exist are errors, which have a limit.
            match item.value.contains("$recipients_count") {
                true => self.draft.rules.push((statement.summary(), "see `errors` of [limits]".into())),
                false => self.draft.add_behavior_change(format!(
                    "Mail that `{}` refused is accepted: a count of recipients is no condition here, see `recipients` of \
                     [limits].",
                    statement.summary()
                )),
            }
            return true;
        }
        if has("ratelimit").is_some() {
            self.rate_limit(statement);
            return true;
        }
        if stage == "rcpt"
            && !matches!(statement.verb.as_str(), "accept" | "require")
            && self.is_for_foreign_domains(statement)
        {
            return true;
        }
        let is_content = statement.items.iter().any(|item| CONTENT.contains(&item.name.as_str()));
        let is_long_line = has("condition").is_some_and(|item| item.value.contains("$max_received_linelength"));
        let is_syntax = has("verify").is_some_and(|item| item.value.trim().starts_with("header_"));
        if is_content {
            let what = statement.summary();
            self.draft.add_behavior_change(format!(
                "Mail that `{what}` refused is accepted until its scanner is a filter: see [[milter]] and [[content]]."
            ));
        } else if is_long_line || is_syntax {
            self.draft.add_behavior_change(
                "Messages with lines of more than 998 octets, or with malformed addresses in their header, are accepted.",
            );
        }
        is_content || is_long_line || is_syntax
    }

    /// Whether it refuses all domains that strangers may not send to, and no others. The rights to relay say the same.
    fn is_for_foreign_domains(&self, statement: &AclStatement) -> bool {
        let others = ["domains", "authenticated"];
        let conditions: Vec<&AclItem> =
            statement.items.iter().filter(|it| !MODIFIERS.contains(&it.name.as_str())).collect();
        // Single hosts that may not relay, although others of their network may, need a rule.
        let spares_sites =
            |item: &AclItem| item.negated || self.hosts(&item.value).has_strangers() == ConditionOutcome::Yes;
        let is_plain = conditions.iter().all(|item| match item.name.as_str() {
            "hosts" => spares_sites(item),
            "verify" => item.value.trim().starts_with("recipient"),
            name => others.contains(&name),
        });
        let Some(domains) = conditions.iter().find(|item| item.name == "domains") else { return false };
        let items = self.domain_items(&domains.value);
        let is_spared = |group: &DomainGroup| {
            self.accepts_strangers(group) == ConditionOutcome::No
                || applies(&items, group).negated(domains.negated) == ConditionOutcome::No
        };
        let is_for_all_others =
            applies(&items, &DomainGroup::Foreign).negated(domains.negated) == ConditionOutcome::Yes;
        is_plain && is_for_all_others && conditions.len() <= 3 && self.groups.iter().all(is_spared)
    }

    fn accepting(&mut self, bare: &AclStatement, whole: &AclStatement, stage: &str, rules: &mut Vec<Rule>) {
        let conditions: Vec<AclItem> = bare.items.iter().filter(|item| item.name != "authenticated").cloned().collect();
        if conditions.len() < bare.items.len() {
            // Rules after this one are not for users.
            return;
        }
        match self.alternatives(&conditions, stage, true) {
            Ok(alternatives) => rules.extend(alternatives.into_iter().map(|keys| Rule {
                keys,
                action: "accept",
                reply: None,
                after_users: false,
            })),
            Err((_, unsupported)) if stage != "message" => {
                self.draft.add_behavior_change(format!(
                    "Mail that `{}` accepted is handled by the statements after it: `{unsupported}` has no counterpart.",
                    whole.summary()
                ));
            }
            Err(_) => {}
        }
    }

    fn refusing(
        &mut self,
        bare: &AclStatement,
        whole: &AclStatement,
        stage: &str,
        after_users: bool,
        rules: &mut Vec<Rule>,
    ) {
        // For users it never holds, so it is a rule for all others.
        let is_login = |item: &AclItem| item.name == "authenticated" && item.negated && item.value.trim() == "*";
        let after_users = after_users || bare.items.iter().any(is_login);
        let items: Vec<AclItem> = bare.items.iter().filter(|item| !is_login(item)).cloned().collect();
        let is_sender_test = items.iter().any(|item| item.name == "verify" && item.negated);
        let (alternatives, action) = match self.alternatives(&items, stage, false) {
            Ok(alternatives) => (alternatives, if bare.verb == "defer" { "defer" } else { "refuse" }),
            Err((alternatives, unsupported)) => {
                let what = match alternatives.iter().any(Vec::is_empty) {
                    true => format!("All mail that reaches `{}` (stage {stage})", whole.summary()),
                    false => format!("Mail to which the other conditions of `{}` apply", whole.summary()),
                };
                self.draft.add_behavior_change(format!(
                    "{what} is deferred: `{unsupported}` has no counterpart. Replace the rule in [[access]]."
                ));
                (alternatives, "defer")
            }
        };
        if is_sender_test && !alternatives.is_empty() {
            self.tell_of_verification(&items);
        }
        let reply = (action == "refuse").then(|| self.reply(whole, stage)).flatten();
        rules.extend(alternatives.into_iter().map(|keys| Rule { keys, action, reply: reply.clone(), after_users }));
    }

    /// What a verification found that our rules do not.
    fn tell_of_verification(&mut self, items: &[AclItem]) {
        for item in items.iter().filter(|item| item.name == "verify") {
            let told = match item.value.split('/').next().unwrap_or_default().trim() {
                "sender" if item.value.contains("callout") => {
                    "Senders that do not exist are accepted if their domain exists: no callout is made."
                }
                "sender" => "Senders in your own domains that do not exist are accepted: only the domain is verified.",
                "helo" => "Clients whose HELO name exists, but is that of another host, are accepted.",
                _ => continue,
            };
            self.draft.add_behavior_change(told);
        }
    }

    /// The text of `message`, if it is the same for all mail.
    fn reply(&self, statement: &AclStatement, stage: &str) -> Option<String> {
        let text = self.expander.constant(statement.modifier("message")?)?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_fit = !text.is_empty() && text.len() < 400 && text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        let code = if stage == "connect" { "554" } else { "550" };
        (is_fit && !text.starts_with(|c: char| c.is_ascii_digit())).then(|| format!("{code} 5.7.1 {text}"))
    }

    /// The rules whose conditions are all of these, one for each combination; without any they never apply.
    ///
    /// # Errors
    ///
    /// A condition has no counterpart: the rules without it, and the condition.
    fn alternatives(
        &mut self,
        items: &[AclItem],
        stage: &str,
        accepts: bool,
    ) -> Result<Vec<RuleKeys>, (Vec<RuleKeys>, String)> {
        let mut made: Vec<RuleKeys> = vec![Vec::new()];
        let mut lost = None;
        for item in items {
            match self.rule_condition(item, accepts).at_stage(stage, item) {
                RuleCondition::Always => {}
                RuleCondition::Never => return Ok(Vec::new()),
                RuleCondition::Unsupported(what) => lost = lost.or(Some(what)),
                RuleCondition::AnyOf(alternatives) => {
                    let both = |keys: &RuleKeys, more: &RuleKeys| -> Option<RuleKeys> {
                        let is_free = more.iter().all(|(name, _)| keys.iter().all(|(known, _)| known != name));
                        is_free.then(|| keys.iter().chain(more).cloned().collect())
                    };
                    if item.name == "local_parts" && !accepts && alternatives.iter().any(|more| has_key_of(&made, more))
                    {
                        // A rule has one table of recipients: these local parts are refused in all domains.
                        made.iter_mut().for_each(|keys| keys.retain(|(key, _)| !key.starts_with("recipients")));
                        made.dedup();
                    }
                    let combined: Option<Vec<RuleKeys>> =
                        made.iter().flat_map(|keys| alternatives.iter().map(move |more| both(keys, more))).collect();
                    match combined.filter(|combined| combined.len() <= RULES_MAX) {
                        Some(combined) => made = combined,
                        None => lost = lost.or(Some(format!("{} with the conditions before it", item.name))),
                    }
                }
            }
        }
        match lost {
            None => Ok(made),
            Some(lost) => Err((made, lost)),
        }
    }

    fn write_rules(&mut self, stage: &str, rules: Vec<Rule>) {
        for (number, rule) in (1..).zip(rules) {
            // Rules about the verdict of SPF decide about whole messages, and are in no list.
            let is_spf = rule.keys.iter().any(|(key, _)| *key == "spf");
            let mut block = TomlSection::new("[[access]]").key("name", quoted(&format!("{stage} {number}")), "");
            if !is_spf {
                block = block.key("list", quoted(stage), "").key("stage", quoted(stage), "");
            }
            if rule.after_users && rule.action != "accept" {
                block.set("users", "false".into(), "");
            }
            let has_recipients = |key: &str| key.starts_with("recipients");
            let keys = rule.keys.into_iter().filter(|(key, _)| !is_spf || !has_recipients(key));
            keys.for_each(|(key, value)| block.set(key, value, ""));
            block.set("action", quoted(rule.action), "");
            if let Some(reply) = rule.reply {
                block.set("reply", quoted(&reply), "");
            }
            self.draft.add(block);
        }
    }

    /// `ratelimit = N / PERIOD / ...` as a `[[limit]]`.
    fn rate_limit(&mut self, statement: &AclStatement) {
        let item = statement.items.iter().find(|item| item.name == "ratelimit");
        let parts: Vec<&str> = item.map(|item| item.value.split('/').map(str::trim).collect()).unwrap_or_default();
        let is_plain = !parts.contains(&"per_byte");
        let is_plain = is_plain
            && statement.items.iter().all(|it| it.name == "ratelimit" || MODIFIERS.contains(&it.name.as_str()));
        let unit = |option: &str| match option {
            "per_mail" | "per_conn" => Some("messages"),
            "per_rcpt" | "per_cmd" | "per_addr" => Some("recipients"),
            _ => None,
        };
        let by = match parts.get(2..).unwrap_or_default().iter().find(|it| it.starts_with('$')) {
            None | Some(&"$sender_host_address") => Some("client"),
            Some(&"$authenticated_id") => Some("user"),
            Some(&"$sender_address") => Some("sender"),
            Some(_) => None,
        };
        let count = parts.first().and_then(|text| text.parse::<u32>().ok()).filter(|count| *count > 0);
        let period = parts.get(1).filter(|text| text.len() > 1 && text.ends_with(['s', 'm', 'h', 'd']));
        let period = period.filter(|text| text[..text.len() - 1].chars().all(|c| c.is_ascii_digit()));
        match (is_plain && statement.verb != "warn", count, period, by) {
            (true, Some(count), Some(period), Some(by)) => {
                let what = parts.iter().find_map(|option| unit(option)).unwrap_or("messages");
                let block = TomlSection::new("[[limit]]").key("by", quoted(by), "ratelimit");
                self.draft.add(block.key(what, quoted(&format!("{count}/{period}")), "ratelimit"));
            }
            _ => self.draft.add_behavior_change(format!(
                "Mail above the rate in `{}` is accepted: this form has no counterpart, see [[limit]].",
                statement.summary()
            )),
        }
    }
}

/// Whether a statement accepts all users who have logged in, and looks at nothing else.
fn is_for_all_users(statement: &AclStatement) -> bool {
    let is_met = |item: &AclItem| match item.name.as_str() {
        "authenticated" | "encrypted" => !item.negated && item.value.trim() == "*",
        name => MODIFIERS.contains(&name),
    };
    statement.verb == "accept"
        && statement.items.iter().all(is_met)
        && statement.items.iter().any(|item| item.name == "authenticated")
}

/// Whether one of these rules has a key of another one.
fn has_key_of(rules: &[RuleKeys], other: &RuleKeys) -> bool {
    rules.iter().flatten().any(|(known, _)| other.iter().any(|(key, _)| known == key))
}

/// Whether a statement accepts everything.
fn is_for_all(statement: &AclStatement) -> bool {
    statement.verb == "accept" && statement.items.iter().all(|item| MODIFIERS.contains(&item.name.as_str()))
}
