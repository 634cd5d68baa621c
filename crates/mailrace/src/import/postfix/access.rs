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
use super::access_table::{self, Act, Content, Patterns, Subject};
use super::dnsbl::Zone;
use super::listeners::networks;
use super::logins::ASKS_STRANGERS;
use super::lookups::Named;
use super::networks::Net;
use super::restrictions::{Element, LISTS, Lists, Who};
use super::rules::runs;
use super::text::Use;
use super::words::{braced, list};

/// Rules that one table of networks may become.
const RUNS_MAX: usize = 100;
/// The index of postscreen's checks, after all lists.
const SCREEN: usize = LISTS.len();
/// The names of the lists in rules.
pub(super) const NAMES: [&str; SCREEN + 1] = ["client", "helo", "sender", "relay", "recipient", "postscreen"];

/// A rule to be written.
pub(super) struct Rule {
    /// The index of its list.
    pub(super) list: usize,
    /// The restriction that it comes from.
    pub(super) from: String,
    pub(super) what: What,
    pub(super) spares_users: bool,
}

/// The condition of a rule.
pub(super) enum What {
    /// All clients, with this action.
    All(&'static str),
    /// Clients in mynetworks; they pass.
    Networks,
    /// Clients on a DNS list, with this action.
    Listed(Zone, &'static str),
    /// What a table says.
    Table(Subject, Named, Content),
    /// Clients that use a sender from this table without logging in.
    Owned(String),
}

impl Rule {
    /// Whether it may let clients pass.
    pub(super) fn passes(&self) -> bool {
        match &self.what {
            What::Networks => true,
            What::All(_) | What::Owned(_) => false,
            What::Listed(_, action) => *action == "accept",
            What::Table(_, _, content) => content.passes(),
        }
    }
}

/// The result of converting a restriction.
enum Step {
    Rule(What),
    /// The server always does this, or the restriction has no effect.
    Same(&'static str),
    /// Not supported.
    Lost(&'static str),
    /// The rest of the list is not evaluated.
    End(&'static str),
}

const BEHIND_PERMIT: &str = "the rest of the list is not evaluated";
const FOR_OTHERS: &str =
    "the rest of the list is for mail to other domains, which only `relay.networks` and users may send anyway";

/// Restrictions that are built into the server or not needed.
const SAME: [(&str, &str); 13] = [
    ("permit_sasl_authenticated", "users who log in may relay, and later rules do not apply to them (users = false)"),
    ("reject_unauth_destination", "always"),
    ("defer_unauth_destination", "always, but refused rather than deferred"),
    ("reject_unauth_pipelining", "commands beyond what PIPELINING allows are answered in order"),
    ("reject_unlisted_recipient", "always: see `mailboxes` of [[domain]]"),
    ("reject_unverified_recipient", "always: see `mailboxes` of [[domain]]"),
    ("reject_non_fqdn_recipient", "recipients must always have a domain"),
    ("reject_unknown_recipient_domain", "not checked at RCPT; the sender gets a bounce"),
    ("reject_sender_login_mismatch", "see `senders` of [auth]"),
    ("reject_authenticated_sender_login_mismatch", "see `senders` of [auth]"),
    ("reject_known_sender_login_mismatch", "see `senders` of [auth]; there, users may only use their own senders"),
    ("reject_plaintext_session", "logins require TLS; with tls = \"required\" in [[listener]], all clients need it"),
    ("defer_if_reject", "refused mail is refused, not deferred"),
];

/// Restrictions that are not supported, and why.
const LOST: [(&str, &str); 14] = [
    ("check_policy_service", "policy services are not supported"),
    ("reject_rhsbl_", "DNS lists of domains are not supported"),
    ("permit_rhswl_", "DNS lists of domains are not supported"),
    ("reject_unknown_", "DNS names are not checked"),
    ("reject_non_fqdn_", "not checked; use `helos_in` and `senders_in` for known names"),
    ("reject_invalid_", "not checked"),
    ("reject_unverified_", "addresses are not verified at other servers"),
    ("reject_unlisted_sender", "the existence of senders is not checked"),
    (
        "reject_unauthenticated_sender_login_mismatch",
        "there is no table of senders for it: see smtpd_sender_login_maps",
    ),
    ("reject_multi_recipient_bounce", "not checked"),
    ("permit_mx_backup", "mail is relayed only for domains with a [[domain]] section"),
    ("permit_tls_", "client certificates are not supported; use `relay.networks`"),
    ("check_", "it needs data that is not available here: DNS names, certificates, or users"),
    ("sleep", "there are no delays"),
];

impl Conversion<'_> {
    /// Writes the rules of the first service for other servers; differences of other services are
    /// reported.
    pub(super) fn access(&mut self) {
        let front = self.front_door().cloned();
        let (lists, values) = match &front {
            Some(front) => (front.lists.clone(), front.main.clone()),
            None => (Lists::read(&self.values), self.main.clone()),
        };
        let mynetworks = front.as_ref().map_or_else(Net::loopback, |front| front.networks.clone());
        for class in list(&self.values.value("smtpd_restriction_classes")) {
            self.draft.same(&class, "expanded in the lists that use it");
        }
        let mut rules = Vec::new();
        for (place, name) in LISTS.into_iter().enumerate() {
            if values.value(name).is_some() {
                self.collect_rules(place, name, &lists, &mut rules);
            }
            match self.main.value(name) {
                Some(own) if values.value(name) != Some(own) => {
                    self.draft.lost(name, "the service for other servers has a different value in master.cf");
                }
                _ => self.draft.same(name, "see above for each restriction"),
            }
        }
        self.screen(&mut rules);
        self.other_doors(&lists);
        self.other_relays();
        self.write_stopped();
        self.write_rules(&rules, &mynetworks);
        self.proxies();
    }

    fn collect_rules(&mut self, list: usize, name: &str, lists: &Lists, rules: &mut Vec<Rule>) {
        let mut ended = None;
        self.has_lost_pass = false;
        for element in &lists.0[list] {
            let told = format!("{name}: {}", element.text());
            let step = match ended {
                Some(why) => Step::Same(why),
                None => self.step(list, element),
            };
            let does = match step {
                Step::Same(does) => does,
                Step::End(does) => {
                    ended = Some(if does == FOR_OTHERS {
                        FOR_OTHERS
                    } else {
                        "it comes after a restriction that decides about all mail"
                    });
                    does
                }
                Step::Lost(why) => {
                    self.alarm_of_lost(&told, element, why);
                    self.has_lost_pass |= may_pass(&element.rule);
                    why
                }
                Step::Rule(What::All("refuse")) if self.has_lost_pass => {
                    self.draft.alarm(format!(
                        "Mail that {told} refused gets 450: a permit before it is not supported, and mail that it \
                         permitted would be refused too."
                    ));
                    rules.push(Rule {
                        list,
                        from: told.clone(),
                        what: What::All("defer"),
                        spares_users: self.spares_users(list, element),
                    });
                    ended = Some("it comes after a restriction that decides about all mail");
                    "see [[access]]: it defers, because a permit before it is not supported"
                }
                Step::Rule(What::Networks) => {
                    self.has_lost_pass |= self.has_lost_networks;
                    rules.push(Rule { list, from: told.clone(), what: What::Networks, spares_users: false });
                    "they skip the rest of this list; see also relay.networks"
                }
                Step::Rule(what) => {
                    if let What::Table(subject, _, content) = &what {
                        self.has_lost_pass |= content.loses_pass(*subject);
                    }
                    let is_all = matches!(what, What::All(_));
                    let spares_users = self.spares_users(list, element);
                    rules.push(Rule { list, from: told.clone(), what, spares_users });
                    ended = ended.or(is_all.then_some("it comes after a restriction that decides about all mail"));
                    "see [[access]], or the part about what is not translated"
                }
            };
            self.draft.rules.push((told, does.to_owned()));
        }
        // A permit at the end of a list has no effect.
        while rules.last().is_some_and(|last| last.list == list && matches!(last.what, What::Networks)) {
            rules.pop();
        }
    }

    /// Reports clients that Postfix lets relay for another reason than their address or a login:
    /// rules do not allow relaying.
    fn other_relays(&mut self) {
        let own = self.own_domains();
        for door in self.doors.clone().iter().filter(|door| !door.is_local()) {
            let mut passes = |element: &Element| self.may_relay(element, &own);
            let found = door.lists.other_relays(door.has_logins, &mut passes);
            for element in found {
                self.defer_relaying();
                let at = if door.what.is_empty() { String::new() } else { format!(" at {}", door.what) };
                self.draft.alarm(format!(
                    "Mail to other domains that {} let clients send{at} gets 454: only `networks` of [relay] and \
                     users may relay. Add the addresses of these clients there.",
                    element.text()
                ));
            }
        }
    }

    /// Whether Postfix lets mail to other domains pass by this restriction.
    fn may_relay(&mut self, element: &Element, own: &[String]) -> bool {
        let known = ["permit", "permit_mynetworks", "permit_sasl_authenticated", "permit_auth_destination"];
        if known.contains(&element.rule.as_str()) || !may_pass(&element.rule) {
            return false;
        }
        let Some(subject) = Subject::of_rule(&element.rule) else { return true };
        let argument = element.argument.as_deref().unwrap_or_default();
        let word = braced(argument).and_then(|inside| list(inside).into_iter().next());
        let Some(named) = Named::read(word.as_deref().unwrap_or(argument)) else { return false };
        self.readable_content(subject, &named).is_none_or(|content| content.may_relay(subject, own))
    }

    /// Reports what happens to mail without this restriction.
    fn alarm_of_lost(&mut self, told: &str, element: &Element, why: &str) {
        let mail = if element.rule.starts_with("permit") {
            "Mail that it permitted is checked by later rules"
        } else {
            "Mail that it refused is accepted"
        };
        self.draft.alarm(format!("{mail} ({told}): {why}."));
    }

    /// Whether no service with logins applies this to users.
    fn spares_users(&self, list: usize, element: &Element) -> bool {
        let asks = |door: &super::doors::Door| door.has_logins && door.lists.reach(list, element, Who::User);
        self.has_users && !self.doors.iter().any(asks)
    }

    fn step(&mut self, list: usize, element: &Element) -> Step {
        let rule = element.rule.as_str();
        if let Some(why) = element.idle {
            return Step::Same(why);
        }
        match rule {
            "permit" => return Step::End(BEHIND_PERMIT),
            "permit_auth_destination" => return Step::End(FOR_OTHERS),
            "permit_mynetworks" => return Step::Rule(What::Networks),
            "reject" => return Step::Rule(What::All("refuse")),
            "defer" | "defer_if_permit" => return Step::Rule(What::All("defer")),
            _ => {}
        }
        let argument = element.argument.as_deref().unwrap_or_default();
        if let Some(subject) = Subject::of_rule(rule) {
            return match self.content(subject, argument) {
                Some((named, content)) => Step::Rule(What::Table(subject, named, content)),
                None => Step::Lost("its argument is not a table"),
            };
        }
        if ["reject_rbl_client", "permit_dnswl_client"].contains(&rule) {
            let action = if rule.starts_with("permit") { "accept" } else { self.refusal("maps_rbl_reject_code") };
            return match Zone::read(argument) {
                Some(zone) => Step::Rule(What::Listed(zone, action)),
                None => Step::Lost("the answers of this list cannot be translated"),
            };
        }
        self.step_by_name(list, rule)
    }

    fn step_by_name(&mut self, list: usize, rule: &str) -> Step {
        let has_logins = self.front_door().is_some_and(|front| front.has_logins);
        if let Some(owned) =
            self.owned.clone().filter(|_| has_logins && list < SCREEN && ASKS_STRANGERS.contains(&rule))
        {
            return Step::Rule(What::Owned(owned));
        }
        if let Some((_, does)) = SAME.iter().find(|(known, _)| *known == rule) {
            return Step::Same(does);
        }
        let lost = LOST.iter().find(|(beginning, _)| rule.starts_with(beginning));
        Step::Lost(lost.map_or("unknown restriction", |(_, why)| why))
    }

    fn refusal(&self, parameter: &str) -> &'static str {
        if self.values.value(parameter).starts_with('4') { "defer" } else { "refuse" }
    }

    /// The contents of the table of a check.
    fn content(&mut self, subject: Subject, argument: &str) -> Option<(Named, Content)> {
        // In braces, the table comes first, then its own settings.
        let named = match braced(argument) {
            Some(inside) => Named::read(list(inside).first()?)?,
            None => Named::read(argument)?,
        };
        let content = match self.readable_content(subject, &named) {
            Some(Content::Patterns(lines)) if named.kind != "static" => {
                Content::Patterns(self.about_addresses(subject, &named, lines))
            }
            Some(Content::Networks(networks)) if runs(&networks).len() > RUNS_MAX => {
                let why = "it would become too many rules; combine its networks";
                Content::Opaque(self.unavailable(&named, Use::Access, why)?)
            }
            Some(content) => content,
            None => Content::Opaque(self.opaque(subject, &named)?),
        };
        Some((named, content))
    }

    /// Keeps only the patterns for client addresses. Postfix also looks up host names of clients,
    /// which are not known here.
    fn about_addresses(&mut self, subject: Subject, named: &Named, mut lines: Patterns) -> Patterns {
        if subject != Subject::Client {
            return lines;
        }
        let is_of_name = |head: &String| access_table::is_of_name(head);
        let turns = lines.iter().any(|(head, act)| is_of_name(head) && (act.is_none() || head.starts_with('!')));
        let before = lines.len();
        let lets_pass = |(head, act): &(String, Option<Act>)| *act == Some(Act::Pass) && (turns || is_of_name(head));
        self.has_lost_pass |= lines.iter().any(lets_pass);
        lines.retain(|(head, act)| !turns && (act.is_none() || !is_of_name(head)));
        if lines.len() < before {
            self.draft.alarm(format!(
                "Mail from clients whose names {}:{} refused is accepted: clients are known only by their addresses, \
                 so {} of its lines are left out.",
                named.kind,
                named.name,
                before - lines.len()
            ));
        }
        lines
    }

    /// The contents of a table that can be read.
    fn readable_content(&mut self, subject: Subject, named: &Named) -> Option<Content> {
        Some(match named.kind.as_str() {
            "static" => {
                let act = Act::read(braced(&named.name).unwrap_or(&named.name));
                Content::Patterns(vec![("/^/".into(), Some(act))])
            }
            "regexp" | "pcre" => {
                let text = self.read(Path::new(&named.name))?;
                Content::Patterns(access_table::patterns(&super::main_cf::logical_lines(&text)))
            }
            "cidr" if subject == Subject::Client => Content::Networks(self.cidr(named).ok()?),
            _ => {
                let entries = self.entries(named, false)?;
                Content::Entries(entries.into_iter().map(|(key, value)| (key, Act::read(&value))).collect())
            }
        })
    }

    /// The table in place of one that cannot be read. Unless it can be queried, it defers mail, and
    /// this is reported.
    fn opaque(&mut self, subject: Subject, named: &Named) -> Option<String> {
        match named.kind.as_str() {
            "regexp" | "pcre" => self.unavailable(named, Use::Access, "the file cannot be read"),
            "cidr" if subject == Subject::Client => {
                let why = self.cidr(named).err().unwrap_or_default();
                self.unavailable(named, Use::Access, &why)
            }
            _ => self.chain(vec![named.clone()], Use::Access),
        }
    }

    fn cidr(&mut self, named: &Named) -> Result<Vec<(Net, Act)>, String> {
        let text = self.read(Path::new(&named.name)).ok_or("the file cannot be read")?;
        let mut networks = Vec::new();
        for line in super::main_cf::logical_lines(&text) {
            let (net, value) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
            let net = Net::read(net).ok_or_else(|| format!("its line \"{line}\" does not start with a network"))?;
            networks.push((net, Act::read(value)));
        }
        Ok(networks)
    }

    /// Converts postscreen's DNS lists: those that suffice on their own become rules.
    fn screen(&mut self, rules: &mut Vec<Rule>) {
        let is_screened = self.doors.iter().any(|door| door.is_screened);
        let Some(sites) = self.values.given("postscreen_dnsbl_sites").filter(|_| is_screened) else { return };
        let action = self.values.value("postscreen_dnsbl_action");
        if !["enforce", "drop"].contains(&action.as_str()) {
            return self.draft.lost("postscreen_dnsbl_sites", "postscreen_dnsbl_action does not refuse clients");
        }
        ["postscreen_dnsbl_sites", "postscreen_dnsbl_action", "postscreen_dnsbl_threshold"]
            .iter()
            .for_each(|name| self.draft.mapped(name));
        let threshold = self.values.value("postscreen_dnsbl_threshold").parse().unwrap_or(1);
        let exempt = self.values.given("postscreen_access_list").unwrap_or_else(|| "permit_mynetworks".into());
        if list(&exempt).first().is_some_and(|first| first == "permit_mynetworks") {
            let from = "postscreen_access_list: permit_mynetworks".to_owned();
            rules.push(Rule { list: SCREEN, from, what: What::Networks, spares_users: false });
        }
        for site in list(&sites) {
            let from = format!("postscreen_dnsbl_sites: {site}");
            match Zone::read(&site) {
                Some(zone) if zone.weight >= threshold => {
                    let what = What::Listed(zone, "refuse");
                    let spares_users = self.has_users;
                    self.draft.rules.push((from.clone(), "see [[access]]".into()));
                    rules.push(Rule { list: SCREEN, from, what, spares_users });
                }
                Some(_) => {
                    self.draft.loss(from, "only lists that suffice on their own become rules");
                    self.draft.alarm(
                        "Mail from clients that only several lists of postscreen_dnsbl_sites together refused is \
                         accepted: scores are not added up here.",
                    );
                }
                None => {
                    self.draft
                        .alarm(format!("Mail from clients on {site} is accepted: its answers cannot be translated."));
                    self.draft.loss(from, "its answers cannot be translated");
                }
            }
        }
    }

    /// Reports restrictions that only other services have.
    fn other_doors(&mut self, front: &Lists) {
        let expected =
            ["permit", "permit_mynetworks", "permit_sasl_authenticated", "reject", "permit_auth_destination"];
        for door in self.doors.clone() {
            for (place, name) in LISTS.into_iter().enumerate() {
                let own = door.lists.0[place].iter().filter(|element| !front.0[place].contains(element));
                let told = own
                    .filter(|it| !expected.contains(&it.rule.as_str()) && !SAME.iter().any(|same| same.0 == it.rule));
                for element in told {
                    let what = format!("{}: {name}: {}", door.what, element.text());
                    self.draft.alarm(format!(
                        "Mail that {what} handles differently is handled as at the first service: [[access]] rules \
                         apply to all listeners."
                    ));
                }
            }
        }
    }

    /// The proxies that may use XCLIENT, if all services agree.
    fn proxies(&mut self) {
        let name = "smtpd_authorized_xclient_hosts";
        let Some(value) = self.values.given(name) else { return };
        if self.doors.iter().any(|door| door.main.value(name) != self.main.value(name)) {
            self.draft.alarm(format!(
                "Mail from the proxies in {name} is handled as their own: a service in master.cf has a different \
                 value, and `xclient_from` applies to all listeners."
            ));
            return self
                .draft
                .lost(name, "a service in master.cf has a different value, and here it applies to all listeners");
        }
        let proxies = self.network_list(name, &value);
        match proxies.is_empty() {
            true => self.draft.same(name, "nobody, unless `xclient_from` of [smtp] is set"),
            false => self.draft.set("[smtp]", "xclient_from", networks(&proxies), name),
        }
    }
}

/// Whether a restriction may let clients pass, including through a table or a policy service.
fn may_pass(rule: &str) -> bool {
    rule.starts_with("permit") || rule.starts_with("check_")
}
