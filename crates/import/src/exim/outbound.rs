//! Mail to other domains: the routers that take a domain that the configuration does not name, those for single
//! domains, the login at a smart host, and the times between attempts.

use std::path::Path;

use super::Conversion;
use super::domains::{ConditionOutcome, DomainGroup, applies, file_entries};
use super::expansion::{Lookup, list};
use super::general::seconds;
use super::sections::Driver;
use crate::config_draft::{TomlSection, quoted};
use crate::words::leading_braces;

const DEFAULT: &str = "[transport.smtp]";
/// Conditions of a router that its mail does not have to meet here.
const DECIDING: [&str; 7] = [
    "senders",
    "condition",
    "require_files",
    "local_parts",
    "check_local_user",
    "local_part_prefix",
    "local_part_suffix",
];
/// The wait between attempts at the most; a schedule has one lifetime.
const LIFETIME_MAX_S: u64 = 365 * 24 * 60 * 60;

impl Conversion<'_> {
    /// Routes for domains that are not ours, and `[transport.smtp]`.
    pub(super) fn outbound(&mut self) {
        for router in self.config.routers.clone() {
            let items = self.domain_items(router.value("domains").unwrap_or("*"));
            let takes_others = applies(&items, &DomainGroup::Foreign);
            let is_remote = matches!(router.kind(), "manualroute" | "dnslookup");
            if is_remote && takes_others == ConditionOutcome::No {
                self.routes_of_domains(&router, &items);
            }
            if router.kind() == "redirect" && takes_others != ConditionOutcome::No && !self.is_idle(&router) {
                let is_certain = takes_others == ConditionOutcome::Yes && !has_conditions(&router);
                if is_certain && self.default_route(&router) {
                    return;
                }
                self.tell_of_redirect(&router);
                continue;
            }
            if takes_others != ConditionOutcome::Yes || !is_remote {
                continue;
            }
            if has_conditions(&router) {
                self.tell_of_conditions(&router);
                continue;
            }
            if self.default_route(&router) {
                return;
            }
        }
        self.draft.section(DEFAULT).set("next_hop", quoted("550 5.1.2 Unrouteable address"), "");
    }

    fn tell_of_conditions(&mut self, router: &Driver) {
        self.draft.add_behavior_change(format!(
            "Mail that router {} sends to other hosts goes the way of the routers after it: its conditions have no \
             counterpart, see [[route]].",
            router.name
        ));
    }

    fn tell_of_redirect(&mut self, router: &Driver) {
        self.draft.add_behavior_change(format!(
            "Mail to other domains that router {} refused or redirected is sent to them: such a router has no counterpart. \
             Refuse it by [[access]] first.",
            router.name
        ));
    }

    /// Whether this router takes all mail to other domains that is left.
    fn default_route(&mut self, router: &Driver) -> bool {
        let driver = self.config.transport(router.value("transport").unwrap_or_default()).cloned();
        match router.kind() {
            "dnslookup" => {
                let driver = driver.unwrap_or_default();
                self.smtp_options(&driver, DEFAULT, "");
                self.rewrite_on_the_way_out(&driver);
                true
            }
            "manualroute" => {
                self.routes_of_entries(router);
                let Some(hop) = self.route_of(router, &DomainGroup::Foreign) else { return false };
                self.draft.section(DEFAULT).set("next_hop", quoted(&hop), "route_list");
                let driver = driver.unwrap_or_default();
                self.smtp_options(&driver, DEFAULT, &hop);
                self.rewrite_on_the_way_out(&driver);
                true
            }
            _ => {
                let data = self.expander.resolved(router.value("data").unwrap_or_default());
                let Some(text) = data.trim().strip_prefix(":fail:") else { return false };
                let text: String = text.chars().filter(|c| *c == ' ' || c.is_ascii_graphic()).take(200).collect();
                let text = if text.trim().is_empty() { "Unrouteable address" } else { text.trim() };
                self.draft.section(DEFAULT).set("next_hop", quoted(&format!("550 5.1.2 {text}")), "data");
                true
            }
        }
    }

    /// Routes for the domains of a router that are not ours.
    fn routes_of_domains(&mut self, router: &Driver, items: &[super::domains::DomainItem]) {
        let is_meant = |group: &&DomainGroup| {
            applies(items, group) == ConditionOutcome::Yes && self.accepts_strangers(group) == ConditionOutcome::No
        };
        let groups: Vec<DomainGroup> = self.groups.iter().filter(is_meant).cloned().collect();
        for group in groups {
            let pattern = match &group {
                DomainGroup::Name(name) => name.clone(),
                DomainGroup::Subdomains(name) => format!("*.{name}"),
                _ => continue,
            };
            let hop = match router.kind() {
                "manualroute" => self.route_of(router, &group),
                _ => Some(format!("mx:{pattern}")),
            };
            if let Some(hop) = hop {
                self.route(router, &pattern, &hop);
            }
        }
    }

    /// Routes for the domains in `route_list`, and in the file of `route_data`.
    fn routes_of_entries(&mut self, router: &Driver) {
        for (pattern, hosts) in self.route_entries(router).into_iter().filter(|(pattern, _)| pattern != "*") {
            let Some(hop) = self.next_hop(&hosts) else {
                if !hosts.trim().is_empty() {
                    self.draft.add_behavior_change(format!(
                        "Mail that router {} sends to a host that cannot be translated goes the way of other domains, see \
                         [[route]].",
                        router.name
                    ));
                }
                continue;
            };
            let items = self.domain_items(&pattern);
            let mut groups = Vec::new();
            if super::domains::collect_groups(&items, &mut groups).is_err() {
                self.tell_of_too_many_domains();
            }
            for group in groups {
                match &group {
                    DomainGroup::Name(name) => self.route(router, &name.clone(), &hop),
                    DomainGroup::Subdomains(name) => self.route(router, &format!("*.{name}"), &hop),
                    _ => {}
                }
            }
        }
    }

    fn route(&mut self, router: &Driver, pattern: &str, hop: &str) {
        let is_ours = self.groups.iter().any(|group| {
            *group == DomainGroup::Name(pattern.to_owned()) && self.accepts_strangers(group) != ConditionOutcome::No
        });
        // The first router for a domain wins.
        let is_routed = self.draft.sections.iter().any(|block| {
            block.header == "[[route]]"
                && block.keys.iter().any(|(key, value, _)| key == "domain" && *value == quoted(pattern))
        });
        if !is_ours && !is_routed {
            let block = TomlSection::new("[[route]]").key("domain", quoted(pattern), &router.name);
            self.draft.add(block.key("next_hop", quoted(hop), ""));
        }
    }

    /// Patterns and hosts of `route_list`, or of the file that `route_data` looks into.
    fn route_entries(&self, router: &Driver) -> Vec<(String, String)> {
        if let Some(text) = router.value("route_list") {
            let text = self.expander.resolved(text);
            let entry = |entry: &str| {
                let (pattern, rest) = entry.trim().split_once(char::is_whitespace)?;
                Some((pattern.to_owned(), host_list(rest)))
            };
            return text.split(';').filter_map(entry).collect();
        }
        let data = self.expander.resolved(router.value("route_data").unwrap_or_default());
        let Some(lookup) = Lookup::parse(&data) else {
            let is_constant = !data.contains('$') && !data.trim().is_empty();
            return is_constant.then(|| ("*".to_owned(), host_list(&data))).into_iter().collect();
        };
        let text = self.files.text(Path::new(&lookup.source)).unwrap_or_default();
        let is_file = lookup.kind == "lsearch" && lookup.gives_value();
        let entries = file_entries(&text).into_iter().map(|(key, value)| (key, host_list(&value)));
        entries.filter(|_| is_file).collect()
    }

    /// Whether a manualroute router has no entry for a domain, so that the routers after it are asked.
    pub(super) fn declines(&self, router: &Driver, group: &DomainGroup) -> bool {
        let entries = self.route_entries(router);
        let is_not =
            |(pattern, _): &(String, String)| applies(&self.domain_items(pattern), group) == ConditionOutcome::No;
        !entries.is_empty() && entries.iter().all(is_not)
    }

    /// The next hop that a manualroute router has for a domain.
    pub(super) fn route_of(&mut self, router: &Driver, group: &DomainGroup) -> Option<String> {
        let entries = self.route_entries(router);
        let found =
            entries.iter().find(|(pattern, _)| applies(&self.domain_items(pattern), group) == ConditionOutcome::Yes)?;
        let hosts = found.1.clone();
        if list(&hosts).len() > 1 {
            self.draft.add_behavior_change(format!(
                "Mail by router {} goes to its first host only, and waits while that cannot be reached.",
                router.name
            ));
        }
        self.next_hop(&hosts)
    }

    /// The first of these hosts as a next hop of ours.
    pub(super) fn next_hop(&self, hosts: &str) -> Option<String> {
        let is_sound = |c: char| c.is_ascii_alphanumeric() || ".-_:/".contains(c);
        let first = list(hosts).into_iter().next().filter(|host| !host.is_empty() && host.chars().all(is_sound))?;
        if let Some(domain) = first.strip_suffix("/MX").or_else(|| first.strip_suffix("/mx")) {
            return Some(format!("mx:{domain}"));
        }
        if first.parse::<std::net::IpAddr>().is_ok() {
            return Some(format!("[{first}]"));
        }
        match first.split_once(':') {
            Some((host, port)) if host.parse::<std::net::Ipv4Addr>().is_ok() => Some(format!("[{host}]:{port}")),
            _ => Some(first),
        }
    }

    /// The login of a transport at its host, if Exim has one for it.
    pub(super) fn client_login(&mut self, driver: &Driver, header: &str, hop: &str) {
        let is_asked = ["hosts_require_auth", "hosts_try_auth"].iter().any(|name| {
            let value = driver.value(name).map(|value| self.expander.resolved(value)).unwrap_or_default();
            !list(&value).iter().all(String::is_empty)
        });
        if !is_asked {
            return;
        }
        let is_in_file = |name: &str| {
            self.config.authenticators.iter().any(|it| it.value(name).is_some_and(|sent| sent.contains("lsearch{")))
        };
        // Exim sends without a login, too, if its file has none for this host.
        let may_have_none = driver.value("hosts_require_auth").is_none() && is_in_file("client_send");
        let Some((user, password)) = self.config.authenticators.iter().find_map(|it| self.credentials(it, hop)) else {
            if may_have_none {
                return;
            }
            self.draft.add_behavior_change(format!(
                "Mail by transport {} is sent without a login: its name and password are not known, see {header}.",
                driver.name
            ));
            return;
        };
        let name = header.trim_matches(['[', ']']).to_owned();
        let file =
            self.add_file(&format!("{}.password", name.replace("transport.", "")), format!("{password}\n"), true);
        let is_for_all = |name: &str| driver.value(name).is_some_and(|it| it.trim() == "*");
        let level = match (is_for_all("tls_verify_hosts"), is_for_all("hosts_avoid_tls")) {
            (true, _) => "verified",
            (false, true) => "offered",
            (false, false) => "required",
        };
        let block = TomlSection::new(&format!("[{name}.auth]")).key("user", quoted(&user), "authenticators");
        self.draft.add(block.key("password_file", quoted(&file), "").key("tls", quoted(level), "tls_verify_hosts"));
    }

    /// The name and password that a client authenticator sends to this host.
    fn credentials(&self, driver: &Driver, hop: &str) -> Option<(String, String)> {
        let sent = driver.value("client_send").or_else(|| driver.value("client_secret"))?;
        let sent = self.expander.resolved(sent);
        if let Some(start) = sent.find("lsearch{") {
            let (path, _) = leading_braces(&sent[start + "lsearch".len()..])?;
            let text = self.files.text(Path::new(path)).ok()?;
            let host = hop.rsplit_once(':').map_or(hop, |(host, _)| host).trim_matches(['[', ']']);
            let is_meant =
                |key: &str| key == host || key == "*" || key.strip_prefix('*').is_some_and(|end| host.ends_with(end));
            let (_, value) = file_entries(&text).into_iter().find(|(key, _)| is_meant(key))?;
            let (user, password) = value.split_once(':')?;
            return Some((user.to_owned(), password.to_owned()));
        }
        let sent = self.expander.constant(&sent)?;
        if let Some(name) = driver.value("client_name") {
            return Some((self.expander.constant(name)?, sent));
        }
        let mut words: Vec<String> = match sent.strip_prefix('^') {
            Some(rest) => rest.split('^').map(str::to_owned).collect(),
            None => list(&sent).into_iter().filter(|word| !word.is_empty()).collect(),
        };
        let password = words.pop()?;
        Some((words.pop()?, password)).filter(|_| words.is_empty())
    }

    /// The section `retry`: the first rule for all mail.
    pub(super) fn retry(&mut self) {
        for line in &self.config.retry.clone() {
            let mut words = line.split_whitespace();
            let (pattern, error) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let rules = words.collect::<Vec<_>>().join(" ");
            let schedule = if (pattern, error) == ("*", "*") { retry_schedule(&rules) } else { None };
            match schedule {
                Some(schedule) if self.draft.sections.iter().all(|block| block.header != "[[queue]]") => {
                    let block = TomlSection::new("[[queue]]").key("name", quoted("standard"), "");
                    self.draft.add(block.key("retry", schedule, "begin retry"));
                }
                _ => {
                    self.draft.add_unsupported(format!("retry: {line}"), "one schedule applies to all mail of a queue")
                }
            }
        }
    }
}

/// Whether a router takes only some of the mail to its domains.
fn has_conditions(router: &Driver) -> bool {
    DECIDING.iter().any(|name| router.value(name).is_some())
}

/// Hosts of a route without what stands behind them, such as `byname`.
fn host_list(text: &str) -> String {
    let text = text.trim();
    if let Some((inside, _)) = text.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
        return inside.to_owned();
    }
    let options = ["byname", "bydns", "randomize", "no_randomize", "ipv4_only", "ipv4_prefer"];
    text.split_whitespace().filter(|word| !options.contains(word)).collect::<Vec<_>>().join(" ").replace(" : ", ":")
}

/// A schedule such as `F,2h,15m; G,16h,1h,1.5; F,4d,6h`.
fn retry_schedule(rules: &str) -> Option<String> {
    let (mut waits, mut lifetime, mut factor) = (Vec::new(), 0, 1.0_f64);
    for rule in rules.split(';') {
        let parts: Vec<&str> = rule.split(',').map(str::trim).collect();
        let (kind, until, wait) = (parts.first()?, seconds(parts.get(1)?)?, seconds(parts.get(2)?)?);
        match *kind {
            "F" => {}
            "G" | "H" => factor = factor.max(parts.get(3)?.parse().ok().filter(|it: &f64| (1.0..=100.0).contains(it))?),
            _ => return None,
        }
        waits.push(wait);
        lifetime = lifetime.max(until);
    }
    let (first, longest) = (waits.first()?, waits.iter().max()?);
    if *first == 0 || lifetime < *first || lifetime > LIFETIME_MAX_S {
        return None;
    }
    let factor = if factor > 1.0 || first == longest { factor } else { 1.5 };
    Some(format!(
        "{{ first = \"{first}s\", factor = {factor:?}, longest = \"{longest}s\", lifetime = \"{lifetime}s\" }}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_rules_become_one_schedule() {
        assert_eq!(
            retry_schedule("F,2h,15m; G,16h,1h,1.5; F,4d,6h").as_deref(),
            Some("{ first = \"900s\", factor = 1.5, longest = \"21600s\", lifetime = \"345600s\" }")
        );
        assert_eq!(
            retry_schedule("F,4d,5m").as_deref(),
            Some("{ first = \"300s\", factor = 1.0, longest = \"300s\", lifetime = \"345600s\" }")
        );
        assert_eq!((retry_schedule("X,1h,1m"), retry_schedule("")), (None, None));
    }
}
