//! What the ACL for recipients decides, found by running it once: which domains strangers may send to, and who may
//! relay. A condition that depends on the message may hold. Only what is certain gives rights.
//!
//! | result for a domain | meaning |
//! |---|---|
//! | Yes | strangers may send there |
//! | Maybe | some may; rules decide, and all others are refused |
//! | No | nobody on the Internet may |

use super::Conversion;
use super::domains::{ConditionOutcome, DomainGroup, applies, may_be_excluded};
use super::hosts::subtracted;
use super::sections::{AclItem, AclStatement, MODIFIERS};
use crate::config_draft::TomlSection;
use crate::ip_net::IpNet;

/// ACLs that call each other.
const DEPTH_MAX: usize = 8;

/// Who may send to other domains.
#[derive(Clone, Debug, Default)]
pub(super) struct RelayRights {
    pub(super) networks: Vec<IpNet>,
    /// Users who have logged in.
    pub(super) users: bool,
}

/// Why a later statement gives no right.
const DENIED: &str = "a statement before it denies this";

/// Who may not relay, whatever later statements accept.
#[derive(Debug, Default)]
struct DeniedRelaying {
    users: bool,
    all_networks: bool,
    networks: Vec<IpNet>,
}

impl Conversion<'_> {
    /// The statements of the ACL that a main option names. None: there is no such ACL.
    pub(super) fn acl_of(&self, option: &str) -> Option<&[AclStatement]> {
        let name = self.expander.constant(self.config.main.value(option)?)?;
        self.config.acl(name.trim()).map(|acl| acl.statements.as_slice())
    }

    /// Whether strangers may send to these domains.
    pub(super) fn accepts_strangers(&self, group: &DomainGroup) -> ConditionOutcome {
        if let Some(known) = self.known_verdicts.borrow().get(group) {
            return *known;
        }
        let verdict = self.acl_of("acl_smtp_rcpt").map_or(ConditionOutcome::No, |it| self.verdict(it, group, 0));
        self.known_verdicts.borrow_mut().insert(group.clone(), verdict);
        verdict
    }

    fn verdict(&self, statements: &[AclStatement], group: &DomainGroup, depth: usize) -> ConditionOutcome {
        let mut may_accept = false;
        let refused = |may_accept: bool| if may_accept { ConditionOutcome::Maybe } else { ConditionOutcome::No };
        for statement in statements {
            let holds = self.statement_holds(statement, group, depth);
            match (statement.verb.as_str(), holds) {
                ("accept", ConditionOutcome::Yes) => return ConditionOutcome::Yes,
                ("accept", ConditionOutcome::Maybe) => may_accept = true,
                ("deny" | "drop" | "defer" | "discard", ConditionOutcome::Yes) | ("require", ConditionOutcome::No) => {
                    return refused(may_accept);
                }
                _ => {}
            }
        }
        refused(may_accept)
    }

    /// Whether all conditions hold for a stranger; those behind `endpass` do not count.
    fn statement_holds(&self, statement: &AclStatement, group: &DomainGroup, depth: usize) -> ConditionOutcome {
        let items = statement.items.iter().take_while(|item| item.name != "endpass");
        let conditions = items.filter(|item| !MODIFIERS.contains(&item.name.as_str()));
        let is_uncertain = |item: &AclItem| {
            let accepts_domains = statement.verb == "accept" && item.name == "domains";
            accepts_domains && may_be_excluded(&self.domain_items(&item.value), item.negated, group)
        };
        let holds = |item: &AclItem| match self.condition_holds(item, group, depth).negated(item.negated) {
            ConditionOutcome::Yes if is_uncertain(item) => ConditionOutcome::Maybe,
            outcome => outcome,
        };
        conditions.map(holds).min().unwrap_or(ConditionOutcome::Yes)
    }

    fn condition_holds(&self, item: &AclItem, group: &DomainGroup, depth: usize) -> ConditionOutcome {
        match item.name.as_str() {
            "domains" => applies(&self.domain_items(&item.value), group),
            "hosts" => self.hosts(&item.value).has_strangers(),
            "authenticated" => ConditionOutcome::No,
            // Only recipients that exist are accepted, in any case.
            "verify" if item.value.trim().starts_with("recipient") => ConditionOutcome::Yes,
            "acl" if depth < DEPTH_MAX => match self.config.acl(item.value.trim()) {
                Some(acl) => self.verdict(&acl.statements, group, depth + 1),
                None => ConditionOutcome::Maybe,
            },
            "senders" | "sender_domains" | "local_parts" | "recipients" | "condition" => {
                self.constant_condition(item).unwrap_or(ConditionOutcome::Maybe)
            }
            _ => ConditionOutcome::Maybe,
        }
    }

    /// The result of a condition that does not depend on the message.
    pub(super) fn constant_condition(&self, item: &AclItem) -> Option<ConditionOutcome> {
        let of_lists = ["condition", "domains", "local_parts", "recipients", "sender_domains", "senders"];
        let value = self.expander.constant(&item.value).filter(|_| of_lists.contains(&item.name.as_str()))?;
        match (item.name.as_str(), value.trim()) {
            ("condition", "true" | "yes" | "1") => Some(ConditionOutcome::Yes),
            ("condition", "" | "false" | "no" | "0") => Some(ConditionOutcome::No),
            ("condition", _) => None,
            (_, "*") => Some(ConditionOutcome::Yes),
            (_, "") => Some(ConditionOutcome::No),
            _ => None,
        }
    }

    /// Finds who may send to a domain that the configuration does not name.
    pub(super) fn find_relay_rights(&mut self) {
        let Some(statements) = self.acl_of("acl_smtp_rcpt").map(<[AclStatement]>::to_vec) else {
            self.draft.add_behavior_change(
                "All mail by SMTP is refused, as by Exim: it has no acl_smtp_rcpt, or one whose name depends on the message.",
            );
            return;
        };
        let mut denied = DeniedRelaying::default();
        for statement in statements {
            let others = self.without(&statement, &["hosts", "authenticated"]);
            let holds = self.statement_holds(&others, &DomainGroup::Foreign, 0);
            let has = |name: &str| statement.items.iter().any(|item| item.name == name);
            match (statement.verb.as_str(), holds) {
                ("accept", ConditionOutcome::Yes) => self.add_relay_rights(&statement, &denied),
                ("accept", ConditionOutcome::Maybe) if has("hosts") || has("authenticated") => {
                    self.tell_no_relay(&statement, "its conditions have no counterpart");
                }
                ("deny" | "drop" | "defer" | "discard", ConditionOutcome::Yes)
                    if !has("hosts") && !has("authenticated") =>
                {
                    return;
                }
                ("deny" | "drop" | "defer" | "discard", ConditionOutcome::Yes) => {
                    self.add_denial(&statement, &mut denied)
                }
                ("require", ConditionOutcome::No) => return,
                _ => {}
            }
        }
    }

    /// Whether relay networks or users may send to these domains, although strangers may not.
    pub(super) fn may_relay_to(&self, group: &DomainGroup) -> bool {
        for statement in self.acl_of("acl_smtp_rcpt").unwrap_or_default() {
            let has = |name: &str| statement.items.iter().any(|item| item.name == name);
            let others = self.without(statement, &["hosts", "authenticated"]);
            match (statement.verb.as_str(), self.statement_holds(&others, group, 0)) {
                ("accept", ConditionOutcome::Yes | ConditionOutcome::Maybe) => return true,
                ("deny" | "drop" | "defer" | "discard", ConditionOutcome::Yes)
                    if !has("hosts") && !has("authenticated") =>
                {
                    return false;
                }
                ("require", ConditionOutcome::No) => return false,
                _ => {}
            }
        }
        false
    }

    /// Notes who may not relay by a statement that denies it to some hosts or users.
    fn add_denial(&self, statement: &AclStatement, denied: &mut DeniedRelaying) {
        let named = |name: &str| statement.items.iter().filter(|item| item.name == name).collect::<Vec<_>>();
        let (hosts, logins) = (named("hosts"), named("authenticated"));
        let sets: Vec<_> = hosts.iter().map(|item| (item.negated, self.hosts(&item.value))).collect();
        let has_strangers = sets.iter().all(|(negated, set)| *negated || set.has_strangers() != ConditionOutcome::No);
        denied.users |= has_strangers && logins.iter().all(|item| !item.negated || item.value.trim() != "*");
        if logins.iter().any(|item| !item.negated) {
            return;
        }
        match sets.as_slice() {
            [(true, set)] => denied.networks.extend(set.complement()),
            [(false, set)] if set.unknown.is_empty() => denied.networks.extend(set.networks.iter().cloned()),
            _ => denied.all_networks = true,
        }
    }

    /// The statement without some of its conditions; `encrypted` holds for users, who log in over TLS only.
    fn without(&self, statement: &AclStatement, names: &[&str]) -> AclStatement {
        let is_user = statement.items.iter().any(|item| item.name == "authenticated" && !item.negated);
        let is_kept = |item: &&AclItem| {
            !(names.contains(&item.name.as_str()) || is_user && item.name == "encrypted" && item.value == "*")
        };
        AclStatement { items: statement.items.iter().filter(is_kept).cloned().collect(), ..statement.clone() }
    }

    fn add_relay_rights(&mut self, statement: &AclStatement, denied: &DeniedRelaying) {
        let named = |name: &str| statement.items.iter().filter(|item| item.name == name).cloned().collect::<Vec<_>>();
        match (named("hosts").as_slice(), named("authenticated").as_slice()) {
            ([], []) => self.tell_no_relay(statement, "anybody could relay"),
            ([], [user]) if !user.negated && user.value.trim() == "*" && denied.users => {
                self.tell_no_relay(statement, DENIED);
            }
            ([hosts], []) if !hosts.negated && denied.all_networks => self.tell_no_relay(statement, DENIED),
            ([], [user]) if !user.negated && user.value.trim() == "*" => self.relay.users = true,
            ([hosts], []) if !hosts.negated => {
                let set = self.hosts(&hosts.value);
                if !set.unknown.is_empty() {
                    let why = format!("{} are not networks, so only the other hosts may", set.unknown.join(", "));
                    self.tell_no_relay(statement, &why);
                }
                match set.has_strangers() == ConditionOutcome::Yes {
                    true => self.tell_no_relay(statement, "anybody could relay"),
                    false => {
                        let allowed = subtracted(set.networks.clone(), &denied.networks);
                        if allowed != set.networks {
                            self.tell_no_relay(statement, &format!("{DENIED} to some of these hosts"));
                        }
                        self.relay.networks.extend(allowed);
                    }
                }
            }
            _ => self.tell_no_relay(statement, "only some users or hosts may"),
        }
    }

    fn tell_no_relay(&mut self, statement: &AclStatement, why: &str) {
        let what = statement.summary();
        self.draft.add_behavior_change(format!(
            "Mail to other domains that `{what}` (acl_smtp_rcpt) accepted is refused: {why}. See [relay]."
        ));
    }

    /// Writes `[relay]`.
    pub(super) fn relay_section(&mut self) {
        let mut texts: Vec<String> = Vec::new();
        for text in self.relay.networks.iter().map(ToString::to_string) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let networks = crate::config_draft::quoted_list(texts.iter().map(String::as_str));
        self.draft.add(TomlSection::new("[relay]").key("networks", networks, "acl_smtp_rcpt"));
        self.draft.mapped("acl_smtp_rcpt");
    }
}
