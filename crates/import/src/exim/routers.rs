//! Routers as domains. For each domain that strangers may send to, the routers are run in order. Those that know some
//! of its addresses become tables of aliases and mailboxes; the first one that takes all addresses ends the run.
//!
//! | router | here |
//! |---|---|
//! | redirect with a lookup | `aliases` |
//! | redirect of all addresses to one | `catch_all`, or a table of patterns for another domain |
//! | accept, for users or names of a lookup | `mailboxes` |
//! | manualroute, dnslookup, for names of a lookup | `mailboxes`, with the next hop |
//! | accept, manualroute, dnslookup for all | no `mailboxes`: all addresses exist |
//!
//! A router that cannot be translated makes the mail wait that no router before it takes.

use std::collections::BTreeMap;
use std::path::Path;

use mail::Address;

use super::Conversion;
use super::alias_targets::AllowedTargets;
use super::domains::{ConditionOutcome, DomainGroup, applies};
use super::expansion::{Lookup, list};
use super::sections::Driver;
use super::tables::{DEFERRED_TABLE, TableUse};
use super::tags::{self, TagScope};
use super::transports::Target;
use crate::config_draft::{TomlSection, quoted, quoted_list};

/// The name of the first domain if there is no other.
const PLACEHOLDER_DOMAIN: &str = "nothing-kept-here.invalid";
/// Options of routers without a counterpart that decide which addresses one takes.
const DECIDING: [&str; 6] =
    ["senders", "condition", "require_files", "address_data", "local_part_prefix", "router_home_directory"];

/// What is known of a domain.
#[derive(Clone, Debug, Default)]
struct DomainPlan {
    aliases: Vec<String>,
    mailboxes: Vec<String>,
    /// All addresses exist.
    everyone: bool,
    /// A router before the last one is not translated, so not all addresses exist.
    is_blocked: bool,
    catch_all: Option<String>,
    target: Option<Target>,
    delimiter: String,
    tags: TagScope,
    comes_from: String,
}

/// The addresses that a router takes.
enum RouterScope {
    Everyone,
    Names(Vec<String>),
    Table(Lookup),
    Unsupported(String),
}

/// Where a router sends mail.
enum RouterHop {
    Next(String),
    /// It leaves the domain to the routers after it.
    Declines,
    Unknown,
}

impl Conversion<'_> {
    /// Writes the domains that strangers, or some of them, may send to.
    pub(super) fn domains(&mut self) {
        let is_open = |group: &&DomainGroup| self.accepts_strangers(group) != ConditionOutcome::No;
        let ours: Vec<DomainGroup> = self.groups.iter().filter(is_open).cloned().collect();
        let names = self.names_of_routers(&ours);
        let mut made: BTreeMap<String, String> = BTreeMap::new();
        let plans: Vec<(DomainGroup, DomainPlan)> =
            ours.iter().map(|group| (group.clone(), self.plan(group, &names, &mut made))).collect();
        let mut names: Vec<_> = plans;
        // A name comes before its parent domain, and both before databases.
        names.sort_by_key(|(group, _)| match group {
            DomainGroup::Name(_) => 0,
            DomainGroup::Subdomains(_) => 1,
            _ => 2,
        });
        let origin = self.origin.clone();
        names.sort_by_key(|(group, _)| *group != DomainGroup::Name(origin.clone()));
        let knows_literals = self.config.main.is_set("allow_domain_literals");
        if !knows_literals && names.iter().any(|(group, _)| *group == DomainGroup::Name(self.hostname.to_lowercase())) {
            self.draft.add_behavior_change(
                "Mail to users at the IP address of this server, such as bob@[192.0.2.1], is accepted, as RFC 1123 section \
                 5.2.17 demands, where Exim refuses such addresses.",
            );
        }
        if !knows_literals || !matches!(names.first(), Some((DomainGroup::Name(_), _))) {
            let has_origin = names.iter().any(|(group, _)| *group == DomainGroup::Name(origin.clone()));
            self.placeholder_domain(has_origin.then_some(origin.as_str()));
        }
        self.write_special_targets();
        self.tell_of_postmasters(&names);
        let mut tags = TagScope::default();
        for (group, plan) in names {
            if !plan.everyone && plan.catch_all.as_deref().unwrap_or_default().is_empty() {
                tags.extend(&plan.delimiter, &plan.tags);
            }
            self.write_domain(&group, plan);
        }
        self.write_tag_rules(&tags);
    }

    /// Tells of domains whose postmaster Exim may refuse.
    fn tell_of_postmasters(&mut self, plans: &[(DomainGroup, DomainPlan)]) {
        let unknown = |(group, plan): &(DomainGroup, DomainPlan)| {
            let (name, shown) = match group {
                DomainGroup::Name(name) => (name.as_str(), name.clone()),
                DomainGroup::Subdomains(name) => ("", format!("*.{name}")),
                DomainGroup::Lookup(_) | DomainGroup::Foreign => ("", "domains in a database".to_owned()),
            };
            let is_certain =
                plan.is_blocked || plan.everyone || plan.catch_all.as_ref().is_some_and(|it| !it.is_empty());
            let is_key = |line: &str| {
                let key = line.split_whitespace().next().unwrap_or_default();
                key.eq_ignore_ascii_case(&format!("postmaster@{name}")) || key == format!("@{name}")
            };
            let mut tables = plan.aliases.iter().chain(&plan.mailboxes);
            let knows = |table: &String| self.text_of(table).is_some_and(|text| text.lines().any(is_key));
            (!is_certain && !tables.any(knows)).then_some(shown)
        };
        let unknown: Vec<String> = plans.iter().filter_map(unknown).collect();
        if let [first, rest @ ..] = unknown.as_slice() {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            self.draft.add_behavior_change(format!(
                "Mail to the postmaster of {first}{more} is accepted, as RFC 5321 section 4.5.1 demands, where Exim knows no \
                 such address: add an alias for it."
            ));
        }
    }

    /// The text of a table of addresses in a file.
    pub(super) fn text_of(&self, table: &str) -> Option<&str> {
        let is_text = |(key, value, _): &(String, String, String)| key == "type" && *value == quoted("text");
        let is_it = |(key, value, _): &(String, String, String)| key == "name" && *value == quoted(table);
        let block = self.draft.sections.iter().find(|block| block.keys.iter().any(is_it))?;
        let file = self.draft.files.iter().find(|file| file.path == self.folder.join(table))?;
        block.keys.iter().any(is_text).then_some(file.text.as_str())
    }

    /// The domains of ours by name that each router is for.
    fn names_of_routers(&self, ours: &[DomainGroup]) -> Vec<Vec<String>> {
        let names = |router: &Driver| {
            let items = self.domain_items(router.value("domains").unwrap_or("*"));
            let is_meant = |group: &&DomainGroup| applies(&items, group) == ConditionOutcome::Yes;
            let name = |group: &DomainGroup| match group {
                DomainGroup::Name(name) => Some(name.clone()),
                _ => None,
            };
            ours.iter().filter(is_meant).filter_map(name).collect()
        };
        self.config.routers.iter().map(names).collect()
    }

    fn plan(&mut self, group: &DomainGroup, names: &[Vec<String>], made: &mut BTreeMap<String, String>) -> DomainPlan {
        let mut plan = DomainPlan::default();
        for (router, names) in self.config.routers.iter().zip(names) {
            let items = self.domain_items(router.value("domains").unwrap_or("*"));
            match applies(&items, group) {
                ConditionOutcome::No => continue,
                ConditionOutcome::Maybe => self.block(&mut plan, router, "its domains cannot be listed"),
                ConditionOutcome::Yes if self.is_idle(router) => continue,
                ConditionOutcome::Yes if router.is_set("unseen") => {
                    self.draft.add_behavior_change(format!(
                        "Copies of mail that router {} makes are not made: `unseen` has no counterpart.",
                        router.name
                    ));
                    continue;
                }
                ConditionOutcome::Yes => self.router(router, group, names, &mut plan, made),
            }
            let ends = router.value("more").is_some_and(|value| value == "false");
            if plan.everyone || plan.catch_all.is_some() || ends {
                break;
            }
        }
        plan
    }

    /// Whether no mail from outside goes this way.
    pub(super) fn is_idle(&self, router: &Driver) -> bool {
        let has_prefix = |name: &str| router.value(name).is_some() && !router.is_set(&format!("{name}_optional"));
        let condition = router.value("condition").unwrap_or("true");
        let is_never =
            self.expander.constant(condition).is_some_and(|it| matches!(it.trim(), "" | "0" | "no" | "false"));
        // No account has a number below 0: Debian's way to switch this router off.
        is_never || condition.replace(' ', "").contains("$local_user_uid}{0}") || has_prefix("local_part_prefix")
    }

    fn router(
        &mut self,
        router: &Driver,
        group: &DomainGroup,
        names: &[String],
        plan: &mut DomainPlan,
        made: &mut BTreeMap<String, String>,
    ) {
        if let Some(delimiter) = tags::delimiter(router) {
            plan.delimiter = delimiter;
        }
        self.tell_of_suffixes(router);
        if plan.comes_from.is_empty() {
            plan.comes_from.clone_from(&router.name);
        }
        if let Some(why) = self.selection_without_counterpart(router) {
            return self.block(plan, router, &why);
        }
        match router.kind() {
            "redirect" => self.redirect(router, group, names, plan, made),
            "accept" => self.deliver(router, names, None, plan, made),
            "manualroute" | "dnslookup" => match self.hop_of(router, group) {
                RouterHop::Next(hop) => self.deliver(router, names, Some(&hop), plan, made),
                RouterHop::Declines => {}
                RouterHop::Unknown => self.block(plan, router, "its next hop depends on the domain"),
            },
            "ipliteral" => {}
            kind => self.block(plan, router, &format!("routers of type {kind} have no counterpart")),
        }
    }

    /// Why the addresses that a router takes are not known, if its type does not matter.
    fn selection_without_counterpart(&self, router: &Driver) -> Option<String> {
        let count = |name: &str| router.options.iter().filter(|option| option.name == name).count();
        let is_off = |name: &str| router.value(name).is_some_and(|value| matches!(value, "false" | "no"));
        let reads_home =
            |name: &str| router.value(name).is_some_and(|it| it.contains("$home") || it.contains("${home}"));
        if count("condition") > 1 {
            return Some("it has several conditions".into());
        }
        if router.value("local_part_suffix").is_some() && !router.is_set("local_part_suffix_optional") {
            return Some("it takes only addresses with a suffix".into());
        }
        // Addresses that only the files of users decide about are told of on their own.
        let is_for_homes = reads_home("file") || reads_home("require_files");
        if !is_for_homes && (is_off("verify") || is_off("verify_recipient") || router.is_set("verify_only")) {
            return Some("it does not decide which addresses exist (verify)".into());
        }
        let is_found = |value: &str| self.expander.resolved(value).contains('$');
        if router.value("local_part_prefix").is_some() && router.kind() != "redirect" && router.kind() != "accept" {
            return Some("its local_part_prefix has no counterpart".into());
        }
        if self.stores_what_is_found(router) {
            return Some("its transport uses what a lookup gives, and not the address".into());
        }
        router.value("address_data").filter(|it| is_found(it)).map(|_| "its address_data has no counterpart".into())
    }

    /// Whether the path of its transport has what the lookup of `local_parts` gives in place of the local part.
    fn stores_what_is_found(&self, router: &Driver) -> bool {
        let parts = router.value("local_parts").map(|value| self.expander.resolved(value)).unwrap_or_default();
        let gives_key = |lookup: &Lookup| lookup.kind == "dsearch" || lookup.default.contains("ret=key");
        let is_other = Lookup::of_list_item(&parts, "$local_part").is_some_and(|lookup| !gives_key(&lookup));
        let transport = self.config.transport(router.value("transport").unwrap_or_default());
        let uses =
            |name: &str| transport.and_then(|it| it.value(name)).is_some_and(|it| it.contains("local_part_data"));
        is_other && ["directory", "file", "command"].into_iter().any(uses)
    }

    /// Where a router sends mail for a domain.
    fn hop_of(&mut self, router: &Driver, group: &DomainGroup) -> RouterHop {
        let hop = match (router.kind(), group) {
            ("dnslookup", DomainGroup::Name(name)) => Some(format!("mx:{name}")),
            ("dnslookup", _) => None,
            _ if self.declines(router, group) => return RouterHop::Declines,
            _ => self.route_of(router, group),
        };
        hop.map_or(RouterHop::Unknown, RouterHop::Next)
    }

    /// Whether a condition always holds.
    pub(super) fn is_true(&self, condition: &str) -> bool {
        self.expander.constant(condition).is_some_and(|it| matches!(it.trim(), "true" | "yes" | "1" | "*"))
    }

    /// The transport of a router; routers with the same transport and next hop share it.
    fn transport_of(&mut self, router: &Driver, hop: Option<&str>, made: &mut BTreeMap<String, String>) -> Target {
        let transport = router.value("transport").unwrap_or_default();
        let key = format!("transport {transport} to {}", hop.unwrap_or_default());
        if let Some(known) = made.get(&key) {
            return Target { name: known.clone(), moves_mailboxes: false };
        }
        let target = self.transport(transport, hop);
        made.insert(key, target.name.clone());
        target
    }

    /// Makes the mail wait that no router before this one takes.
    fn block(&mut self, plan: &mut DomainPlan, router: &Driver, why: &str) {
        self.draft.add_behavior_change(format!(
            "Mail to addresses that no router before {} takes gets 451: {why}. Replace its table.",
            router.name
        ));
        let name = match self.names.contains(&format!("router-{}", router.name.to_lowercase())) {
            true => format!("router-{}", router.name.to_lowercase()),
            false => self
                .add_unavailable_table(&format!("router-{}", router.name), &format!("router {}: {why}", router.name)),
        };
        plan.is_blocked = true;
        let chain = if plan.mailboxes.is_empty() { &mut plan.aliases } else { &mut plan.mailboxes };
        if !chain.contains(&name) {
            chain.push(name);
        }
    }

    fn redirect(
        &mut self,
        router: &Driver,
        group: &DomainGroup,
        names: &[String],
        plan: &mut DomainPlan,
        made: &mut BTreeMap<String, String>,
    ) {
        if router.value("file").is_some_and(|file| file.contains("$home")) {
            return self.tell_of_home_folders();
        }
        if DECIDING.iter().any(|name| router.value(name).is_some()) {
            return self.block(plan, router, "its conditions have no counterpart");
        }
        let data = self.expander.resolved(router.value("data").unwrap_or_default());
        if let Some(lookup) = Lookup::parse(&data) {
            let known = made.get(&router.name).cloned();
            let allowed = AllowedTargets { fail: router.is_set("allow_fail"), defer: router.is_set("allow_defer") };
            let table = known.map_or_else(|| self.table(&lookup, TableUse::Aliases(allowed), names), Ok);
            match table {
                Ok(table) if router.value("local_parts").is_none() => {
                    if !plan.mailboxes.is_empty() {
                        self.draft.add_behavior_change(format!(
                            "Addresses of router {} that are mailboxes too are aliases: aliases come before mailboxes.",
                            router.name
                        ));
                    }
                    made.insert(router.name.clone(), table.clone());
                    plan.tags.add(router, &table);
                    if self.closed_tables.contains(&table) {
                        plan.catch_all = Some(String::new());
                    }
                    if !plan.aliases.contains(&table) {
                        plan.aliases.push(table);
                    }
                }
                Ok(_) => self.block(plan, router, "it has both a lookup and local parts"),
                Err(why) => self.block(plan, router, &why),
            }
            return;
        }
        self.redirect_all(router, data.trim(), names, group, plan);
    }

    /// A redirect whose target does not depend on a lookup.
    fn redirect_all(
        &mut self,
        router: &Driver,
        data: &str,
        domains: &[String],
        group: &DomainGroup,
        plan: &mut DomainPlan,
    ) {
        let names = match self.scope(router) {
            RouterScope::Everyone => None,
            RouterScope::Names(names) => Some(names),
            RouterScope::Table(_) => return self.block(plan, router, "it has both a target and a lookup"),
            RouterScope::Unsupported(why) => return self.block(plan, router, &why),
        };
        let other = data.strip_prefix("$local_part@").or_else(|| data.strip_prefix("${local_part}@"));
        let other = other.filter(|domain| Address::new("x", domain).is_ok());
        let target = self.target(data).ok().filter(|_| !data.contains('$'));
        match (group, names, other, target) {
            (_, None, _, _) if data.starts_with(":fail:") => plan.catch_all = Some(String::new()),
            (DomainGroup::Name(domain), Some(names), _, None) if data.starts_with('/') => {
                let lines = names.iter().map(|name| format!("{name}@{domain}\n")).collect();
                let table = self.add_text_table(&router.name, "text", lines, "");
                plan.mailboxes.push(table);
            }
            (DomainGroup::Name(_), None, Some(other), _) => {
                let line = |domain: &String| format!("/^(.+)@{}$/ $1@{other}\n", domain.replace('.', "\\."));
                plan.aliases.push(self.alias_table(router, "regexp", domains.iter().map(line).collect()));
            }
            (DomainGroup::Name(_), Some(names), other, target) if other.is_some() || target.is_some() => {
                let target = |name: &String| {
                    other.map_or_else(|| target.clone().unwrap_or_default(), |it| format!("{name}@{it}"))
                };
                let line = |name: &String, domain: &String| format!("{name}@{domain} {}\n", target(name));
                let text = domains
                    .iter()
                    .flat_map(|domain| names.iter().map(|name| line(name, domain)).collect::<Vec<_>>())
                    .collect();
                plan.aliases.push(self.alias_table(router, "text", text));
            }
            (_, None, None, Some(target)) => plan.catch_all = Some(target),
            _ => self.block(plan, router, "its data has no counterpart"),
        }
    }

    /// The table of aliases of a router, the same for all its domains.
    fn alias_table(&mut self, router: &Driver, kind: &str, text: String) -> String {
        let wanted = format!("aliases-{}", router.name.to_lowercase());
        match self.names.contains(&wanted) {
            true => wanted,
            false => self.add_text_table(&wanted, kind, text, &format!("From router {}.", router.name)),
        }
    }

    /// A router that gives the mail for its addresses to a transport.
    fn deliver(
        &mut self,
        router: &Driver,
        names: &[String],
        hop: Option<&str>,
        plan: &mut DomainPlan,
        made: &mut BTreeMap<String, String>,
    ) {
        let is_home = |value: &str| value.contains("$home") || value.contains("${home}");
        if router.value("require_files").is_some_and(is_home) {
            return self.tell_of_home_folders();
        }
        let table = match self.scope(router) {
            RouterScope::Everyone => None,
            RouterScope::Unsupported(why) => return self.block(plan, router, &why),
            RouterScope::Names(_) | RouterScope::Table(_) if made.contains_key(&router.name) => {
                made.get(&router.name).cloned()
            }
            RouterScope::Names(users) => {
                let all = names.iter().flat_map(|domain| users.iter().map(move |name| (name, domain)));
                let is_address = |(name, domain): &(&String, &String)| Address::new(name, domain).is_ok();
                let text = all.filter(is_address).map(|(name, domain)| format!("{name}@{domain}\n")).collect();
                let wanted = if router.is_set("check_local_user") { "users" } else { router.name.as_str() };
                Some(self.add_text_table(wanted, "text", text, &format!("From router {}.", router.name)))
            }
            RouterScope::Table(lookup) => match self.table(&lookup, TableUse::Mailboxes, names) {
                Ok(table) => Some(table),
                Err(why) => return self.block(plan, router, &why),
            },
        };
        let target = self.transport_of(router, hop, made);
        if plan.target.as_ref().is_some_and(|known| known.name != target.name) {
            return self.block(plan, router, "the domain has another transport already: see [[route]]");
        }
        if target.moves_mailboxes {
            self.tell_of_home_folders();
        }
        plan.target = Some(target);
        plan.everyone = table.is_none();
        if let Some(table) = table {
            made.insert(router.name.clone(), table.clone());
            plan.tags.add(router, &table);
            if !plan.mailboxes.contains(&table) {
                plan.mailboxes.push(table);
            }
        }
    }

    /// The addresses that an accept or redirect router takes.
    fn scope(&mut self, router: &Driver) -> RouterScope {
        let unsupported = |what: &str| RouterScope::Unsupported(format!("its {what} has no counterpart"));
        let decides = |name: &str| router.value(name).is_some_and(|value| !self.is_true(value));
        if decides("senders") {
            return unsupported("senders");
        }
        let parts = router.value("local_parts").map(|value| self.expander.resolved(value));
        let is_account = router.is_set("check_local_user");
        let selections = [decides("condition"), decides("require_files"), is_account];
        if selections.iter().filter(|is_there| **is_there).count() > 1 {
            return unsupported("combination of conditions");
        }
        let condition = router.value("condition").filter(|_| decides("condition"));
        if let Some(condition) = condition.map(|value| self.expander.resolved(value)) {
            return match Lookup::of_condition(&condition) {
                Some(lookup) if parts.is_none() => RouterScope::Table(lookup),
                _ => unsupported("condition"),
            };
        }
        if let Some(files) = router.value("require_files").map(|value| self.expander.resolved(value)) {
            if parts.is_some() {
                return unsupported("local_parts");
            }
            return self.names_with_files(&files).map_or_else(|| unsupported("require_files"), RouterScope::Names);
        }
        if is_account {
            return self.accounts(parts.as_deref().unwrap_or("*"));
        }
        let Some(parts) = parts else { return RouterScope::Everyone };
        if let Some(lookup) = Lookup::parse(&parts).or_else(|| Lookup::of_list_item(&parts, "$local_part")) {
            return RouterScope::Table(lookup);
        }
        let names = list(&parts);
        match names.iter().all(|name| !name.contains(['*', '^', '+', '!', '$', ';', '/'])) {
            true => RouterScope::Names(names),
            false => unsupported("local_parts"),
        }
    }

    /// The names for which a file exists, as in `/var/lib/mailman/lists/$local_part/config.pck`.
    fn names_with_files(&self, pattern: &str) -> Option<Vec<String>> {
        let (folder, rest) = pattern.split_once("/$local_part").or_else(|| pattern.split_once("/${local_part}"))?;
        let is_plain = !folder.contains(['$', ':', '!']) && (rest.is_empty() || rest.starts_with('/'));
        let mut names = self.files.names(Path::new(folder)).ok().filter(|_| is_plain)?;
        names.sort();
        Some(names)
    }

    /// The accounts of this machine that a list of local parts contains.
    fn accounts(&mut self, parts: &str) -> RouterScope {
        let text = self.files.text(Path::new("/etc/passwd")).unwrap_or_default();
        let items = list(parts);
        let is_in = |name: &&str| {
            let found = items.iter().find(|item| {
                let bare = item.trim_start_matches(['!', ' ']);
                bare == "*" || bare == *name
            });
            found.map_or_else(|| items.last().is_some_and(|item| item.starts_with('!')), |item| !item.starts_with('!'))
        };
        if items.iter().any(|item| item.contains(['^', '+', '$', ';', '/'])) {
            return RouterScope::Unsupported("its local_parts have no counterpart".into());
        }
        self.draft.add_review_note(
            "the accounts of this machine became a text table (users). It is not updated with the accounts: keep it up to \
             date, or use another table",
        );
        let names = text.lines().filter_map(|line| line.split(':').next()).filter(|name| !name.is_empty());
        RouterScope::Names(names.filter(is_in).map(str::to_owned).collect())
    }

    fn tell_of_home_folders(&mut self) {
        self.draft.add_behavior_change(
            "Mail to users of this machine goes into Maildirs below {data_dir}/mail, where their programs do not look, and \
             not into /var/mail or home folders; ~/.forward and filters of users are not read: see [transport.maildir].",
        );
    }

    /// The first domain, if addresses at the IP address of this server are not known to Exim. The postmaster of the
    /// server is at the origin, where Exim sends the postmaster's mail.
    fn placeholder_domain(&mut self, origin: Option<&str>) {
        let comment = "Addresses at the IP address of this server, and a postmaster without a domain, belong to the first \
                       domain. This one has no mailboxes.";
        let mailboxes = self.empty_table();
        let block = TomlSection::new("[[domain]]").comment(comment).key("name", quoted(PLACEHOLDER_DOMAIN), "");
        let mut block = block.key("mailboxes", quoted(&mailboxes), "");
        if let Some(origin) = origin {
            let text = format!("postmaster@{PLACEHOLDER_DOMAIN} postmaster@{origin}\n");
            block.set("aliases", quoted(&self.add_text_table("postmaster", "text", text, "")), "");
        }
        self.draft.add(block);
    }

    fn empty_table(&mut self) -> String {
        match self.names.contains("nobody") {
            true => "nobody".to_owned(),
            false => self.add_text_table("nobody", "text", "# There are no mailboxes here.\n".into(), ""),
        }
    }

    fn write_domain(&mut self, group: &DomainGroup, mut plan: DomainPlan) {
        let mut block = TomlSection::new("[[domain]]");
        match group {
            DomainGroup::Name(name) => block.set("name", quoted(name), &plan.comes_from),
            DomainGroup::Subdomains(name) => {
                let text = format!("/\\.{}$/ x\n", name.replace('.', "\\."));
                let table = self.add_text_table("subdomains", "regexp", text, "");
                block.set("names", quoted(&table), &plan.comes_from);
            }
            DomainGroup::Lookup(lookup) => match self.domain_table(lookup) {
                Ok(table) => block.set("names", quoted(&table), &plan.comes_from),
                Err(why) => {
                    return self
                        .draft
                        .add_behavior_change(format!("Mail to the domains in a lookup is refused: {why}."));
                }
            },
            DomainGroup::Foreign => return,
        }
        plan.everyone &= !plan.is_blocked;
        if !self.deferred_addresses.is_empty() && !plan.aliases.is_empty() {
            plan.aliases.push(DEFERRED_TABLE.to_owned());
        }
        plan.mailboxes.extend(self.dropped_table.clone().filter(|_| !plan.everyone && !plan.aliases.is_empty()));
        if !plan.everyone && plan.mailboxes.is_empty() {
            plan.mailboxes.push(self.empty_table());
        }
        if !plan.everyone {
            let table = self.chain(&plan.mailboxes);
            block.set("mailboxes", quoted(&table), "");
        }
        if !plan.aliases.is_empty() {
            let table = self.chain(&plan.aliases);
            block.set("aliases", quoted(&table), "");
        }
        if let Some(target) = plan.target.filter(|target| target.name != "maildir") {
            block.set("transport", quoted(&target.name), "");
        }
        if let Some(address) = plan.catch_all.filter(|address| !address.is_empty() && !plan.everyone) {
            block.set("catch_all", quoted(&address), "");
        }
        block.set("delimiter", quoted(&plan.delimiter), "local_part_suffix");
        self.draft.add(block);
    }

    /// One table for several, asked in order.
    fn chain(&mut self, tables: &[String]) -> String {
        if let [one] = tables {
            return one.clone();
        }
        let wanted = tables.join("-or-");
        if self.names.contains(&wanted) {
            return wanted;
        }
        let name = self.unused_name(&wanted);
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("chain"), "");
        self.draft.add(block.key("tables", quoted_list(tables.iter().map(String::as_str)), ""));
        name
    }
}
