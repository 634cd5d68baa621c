//! Converts the four address classes of Postfix to `[[domain]]` sections and transports.
//!
//! | Postfix                   | existing addresses     | aliases                            | delivery                |
//! |---------------------------|------------------------|------------------------------------|-------------------------|
//! | `mydestination`           | `local_recipient_maps` | `virtual_alias_maps`, `alias_maps` | Maildirs, or a next hop |
//! | `virtual_alias_domains`   | none                   | `virtual_alias_maps`               |                         |
//! | `virtual_mailbox_domains` | `virtual_mailbox_maps` | `virtual_alias_maps`               | Maildirs, or a next hop |
//! | `relay_domains`           | `relay_recipient_maps` | `virtual_alias_maps`               | the next hop            |

use std::collections::BTreeSet;
use std::path::Path;

use mail::Address;

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::delivery_methods::DeliveryMethod;
use super::domain_lists::DomainList;
use super::lookups::MapRef;
use super::map_text::{self, TableUse};
use super::sql::Database;
use super::transport_target::TransportTarget;
use super::transports::AddressClass;
use super::words::list;

/// The table of the subdomains of `relay_domains`.
pub(super) const SUBDOMAINS: &str = "relay-subdomains";

/// The domain of a server without local mail, a name that cannot exist.
const PLACEHOLDER_DOMAIN: &str = "nothing-kept-here.invalid";
/// A name below a relay domain, for all others.
const ANY_SUBDOMAIN: &str = "any-subdomain";
/// The names of new transports, by class.
const TRANSPORT_NAMES: [&str; 4] = ["local-mail", "virtual-mail", "relay", "onward"];

/// The common settings of the domains in one class.
struct DomainClass {
    kind: AddressClass,
    parameter: &'static str,
    /// None: all addresses exist.
    mailboxes: Option<String>,
    /// The table of mailbox folders, for domains with Maildirs.
    mailbox_places: Option<String>,
    aliases: Option<String>,
    catch_all: Option<String>,
    /// Whether a table that is asked may have `@domain`.
    wildcard_mailbox: bool,
    /// Domains in which all addresses exist.
    open_domains: BTreeSet<String>,
}

impl Conversion<'_> {
    /// Finds the domain for names without one, which is needed to read tables.
    pub(super) fn find_site(&mut self) {
        let origin = self.values.value("myorigin");
        self.site.origin = match origin.starts_with('/') {
            true => self.read_file(Path::new(&origin)).unwrap_or_default().trim().to_owned(),
            false => origin,
        };
        let names = self.domain_names("mydestination");
        self.site.domains = names.names;
        if Address::new("postmaster", &self.site.origin).is_ok() {
            self.draft.section("").set("origin", quoted(&self.site.origin), "myorigin");
        }
        ["myorigin", "mydestination", "mydomain"].iter().for_each(|name| self.draft.mapped(name));
    }

    pub(super) fn domains(&mut self) {
        let mut taken = BTreeSet::new();
        let aliases = self.table_of("virtual_alias_maps", TableUse::Aliases);
        self.local_domains(aliases.clone(), &mut taken);
        self.mailbox_domains(aliases.clone(), &mut taken);
        self.alias_domains(aliases.clone(), &mut taken);
        self.relay_domains(aliases, &mut taken);
        self.aliases_of_other_domains();
        if !self.own_domains().contains(&self.hostname().to_lowercase()) {
            self.add_placeholder_domain();
        }
        self.report_postmasters();
        self.report_tags();
    }

    /// Reports that aliases lose tags.
    fn report_tags(&mut self) {
        let given = self.values.explicit_value("propagate_unmatched_extensions");
        let is_kept = given.is_none_or(|classes| list(&classes).iter().any(|class| class == "virtual"));
        let has = |name: &str| !self.values.value(name).is_empty();
        if is_kept && has("recipient_delimiter") && has("virtual_alias_maps") {
            self.draft.add_behavior_change(
                "Mail to an alias with a tag goes to its targets without the tag (propagate_unmatched_extensions).",
            );
        }
    }

    /// Reports domains whose postmaster Postfix refuses, as far as their tables can be read.
    fn report_postmasters(&mut self) {
        let maps = ["relay_recipient_maps", "virtual_mailbox_maps", "virtual_alias_maps"];
        let mut known = BTreeSet::new();
        let values = self.values;
        for element in maps.iter().flat_map(|name| list(&values.value(name))) {
            let Some(entries) = MapRef::parse(&element).and_then(|map_ref| self.entries(&map_ref, false)) else {
                return;
            };
            known.extend(entries.into_iter().map(|(key, _)| key.to_lowercase()));
        }
        let has_table = |block: &&TomlSection| {
            let has =
                |key: &str, from: &str| block.keys.iter().any(|it| it.0 == key && (from.is_empty() || it.2 == from));
            let is_class = ["relay_domains", "virtual_mailbox_domains"].iter().any(|class| has("name", class));
            block.header == "[[domain]]" && is_class && has("mailboxes", "") && !has("catch_all", "")
        };
        let sections = self.draft.sections.iter().filter(has_table).flat_map(|block| &block.keys);
        let names = sections.filter(|(key, ..)| key == "name").map(|(_, value, _)| value.trim_matches('"').to_owned());
        let is_known = |domain: &String| {
            ["postmaster@", "@"].iter().any(|local| known.contains(&format!("{local}{domain}")))
                || known.contains("postmaster")
        };
        let unknown: Vec<String> = names.filter(|domain| !is_known(domain)).collect();
        if let [first, rest @ ..] = unknown.as_slice() {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more domains", rest.len()) };
            self.draft.add_behavior_change(format!(
                "Mail to postmaster@{first}{more} is accepted, as RFC 5321 section 4.5.1 demands, where Postfix knows no \
                 such address: add an alias for it."
            ));
        }
    }

    /// The name of this host is no domain of ours. Addresses at its IP address, and a postmaster without a
    /// domain, belong to the first domain here: one that cannot receive other mail (RFC 2606), and whose
    /// postmaster is at the origin, where Postfix sends the postmaster's mail.
    fn add_placeholder_domain(&mut self) {
        let nobody = self.empty_table();
        let origin = self.site.origin.clone();
        let mut block = TomlSection::new("[[domain]]").comment(
            "Addresses at the IP address of this server, and a postmaster without a domain, belong to the first \
             domain. This one has no mailboxes; its postmaster, who is the server's, is at the origin.",
        );
        block.set("name", quoted(PLACEHOLDER_DOMAIN), "");
        block.set("mailboxes", quoted(&nobody), "");
        if Address::new("postmaster", &origin).is_ok() && origin != PLACEHOLDER_DOMAIN {
            let text =
                ["postmaster", "root"].map(|name| format!("{name}@{PLACEHOLDER_DOMAIN} {name}@{origin}\n")).concat();
            let path = self.add_file("postmaster", "", text, false);
            let name = super::lookups::file_name(&path);
            let table = TomlSection::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("text"), "");
            self.draft.add(table.key("path", quoted(&path.to_string_lossy()), ""));
            block.set("aliases", quoted(&name), "");
        }
        self.draft.sections.insert(0, block);
    }

    /// Reports aliases at other domains: Postfix applies virtual_alias_maps to all recipients, but
    /// here aliases belong to domains.
    fn aliases_of_other_domains(&mut self) {
        let (own, has_tables) = (self.own_domains(), self.draft.sections.iter().any(has_domain_names));
        let mut strays = Vec::new();
        for named in list(&self.values.value("virtual_alias_maps")).iter().filter_map(|it| MapRef::parse(it)) {
            let entries = self.entries(&named, false).unwrap_or_default();
            strays.extend(entries.into_iter().flat_map(|(key, _)| match key.contains(['@', '.']) {
                true => vec![key],
                false => map_text::keys(&key, TableUse::Aliases, &self.site).unwrap_or_default(),
            }));
        }
        let is_stray = |key: &String| key.rsplit_once('@').is_some_and(|(_, of)| !own.contains(&of.to_lowercase()));
        for key in strays.into_iter().filter(|key| !has_tables && is_stray(key)) {
            self.draft.add_behavior_change(format!(
                "Mail to {key} gets 450 over SMTP, and goes to {key} itself if local programs send it: \
                 virtual_alias_maps redirects it, and here only addresses at local domains can have aliases."
            ));
            let reply = "450 4.3.5 virtual_alias_maps redirects it, and it is not at a local domain";
            // access(5): a key without @ matches the whole domain.
            self.blocked_recipients.push((key.trim_start_matches('@').to_owned(), reply.to_owned()));
        }
    }

    fn table_of(&mut self, parameter: &str, of_use: TableUse) -> Option<String> {
        let value = self.values.value(parameter);
        self.draft.mapped(parameter);
        self.convert_maps(&value, of_use)
    }

    fn local_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("mydestination");
        if names.names.is_empty() && names.tables.is_empty() {
            let unused = ["alias_maps", "local_recipient_maps", "alias_database", "local_transport"];
            unused.iter().for_each(|name| self.draft.not_needed(name, "mydestination is empty"));
            return;
        }
        let of_names = self.table_of("alias_maps", TableUse::LocalAliases);
        let aliases = self.add_chain_table(aliases.into_iter().chain(of_names).collect());
        let class = DomainClass {
            kind: AddressClass::Local,
            parameter: "mydestination",
            mailboxes: self.local_users(),
            mailbox_places: None,
            aliases,
            catch_all: self.luser_relay(),
            wildcard_mailbox: false,
            open_domains: BTreeSet::new(),
        };
        self.write_class(class, names, taken);
    }

    /// Aliases need no mailbox here, so alias tables do not define mailboxes.
    fn local_users(&mut self) -> Option<String> {
        self.draft.mapped("local_recipient_maps");
        let aliases: Vec<Option<MapRef>> =
            list(&self.values.value("alias_maps")).iter().map(|it| MapRef::parse(it)).collect();
        let value = self.values.value("local_recipient_maps");
        if value.is_empty() && self.target(AddressClass::Local, None).channel != "local" {
            // The next hop knows which users exist.
            return None;
        }
        // Postfix then accepts mail for all users, and local(8) bounces it for unknown ones.
        let value = if value.is_empty() { "unix:passwd.byname".to_owned() } else { value };
        let users: Vec<MapRef> = list(&value)
            .iter()
            .filter_map(|it| MapRef::parse(it))
            .filter(|it| !aliases.contains(&Some(it.clone())))
            .collect();
        match self.convert_chain(users, TableUse::LocalUsers) {
            Some(table) => Some(table),
            // Without a table, all addresses would exist.
            None => Some(self.empty_table()),
        }
    }

    /// The recipient of mail for unknown users. local(8) uses it only if local_recipient_maps is
    /// empty.
    fn luser_relay(&mut self) -> Option<String> {
        let raw = self.main.value("luser_relay").filter(|raw| !raw.is_empty())?;
        if !self.values.value("local_recipient_maps").is_empty() {
            self.draft.not_needed("luser_relay", "local_recipient_maps refuses unknown users first");
            return None;
        }
        let target = if raw.contains('$') {
            Err("it contains parts of the recipient's address")
        } else {
            map_text::target(raw, &self.site)
        };
        match target {
            Ok(address) => {
                self.draft.mapped("luser_relay");
                Some(address)
            }
            Err(why) => {
                self.draft.add_behavior_change(format!(
                    "Mail to unknown users at the domains of mydestination gets 550: luser_relay = {raw} cannot \
                     become a `catch_all`: {why}."
                ));
                self.draft.unsupported("luser_relay", "`catch_all` must be a single address");
                None
            }
        }
    }

    fn alias_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let mut names = self.domain_names("virtual_alias_domains");
        self.draft.mapped("virtual_alias_domains");
        names.names.retain(|name| taken.insert(name.clone()));
        names.tables.retain(|table| taken.insert(taken_table(table)));
        let delimiter = self.delimiter();
        let keys =
            names.names.iter().map(|name| ("name", name)).chain(names.tables.iter().map(|table| ("names", table)));
        for (key, value) in keys {
            let aliases = self.with_blocked_recipients(aliases.clone(), Some(value.as_str()).filter(|_| key == "name"));
            let nobody = self.empty_table();
            let mut block = TomlSection::new("[[domain]]").key(key, quoted(value), "virtual_alias_domains");
            block.set("mailboxes", quoted(&nobody), "");
            aliases.iter().for_each(|aliases| block.set("aliases", quoted(aliases), ""));
            block.set("delimiter", quoted(&delimiter), "recipient_delimiter");
            self.draft.add(block);
        }
    }

    fn mailbox_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("virtual_mailbox_domains");
        self.draft.mapped("virtual_mailbox_domains");
        if names.names.is_empty() && names.tables.is_empty() {
            return;
        }
        self.recipients(
            AddressClass::Virtual,
            "virtual_mailbox_domains",
            "virtual_mailbox_maps",
            aliases,
            names,
            taken,
        );
    }

    fn relay_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("relay_domains");
        self.draft.mapped("relay_domains");
        if names.names.is_empty() && names.tables.is_empty() && names.dotted.is_empty() {
            return;
        }
        ["relay_transport", "relayhost"].iter().for_each(|name| self.draft.mapped(name));
        let mut names = names;
        let parents = if names.for_subdomains { &names.names } else { &names.dotted };
        if !names.is_incomplete {
            names.subdomains = self.relay_subdomains(parents, &names.excluded);
        }
        if names.for_subdomains && (names.is_incomplete || !names.tables.is_empty()) {
            self.draft.add_behavior_change(
                "Mail to subdomains of domains that only a table of relay_domains has gets 550 (see \
                 parent_domain_matches_subdomains).",
            );
        }
        self.recipients(AddressClass::Relay, "relay_domains", "relay_recipient_maps", aliases, names, taken);
    }

    /// A class with `maps` as its table of recipients.
    fn recipients(
        &mut self,
        kind: AddressClass,
        parameter: &'static str,
        maps: &'static str,
        aliases: Option<String>,
        names: DomainList,
        taken: &mut BTreeSet<String>,
    ) {
        let open = self.open_domains(maps);
        let is_kept = |domain: Option<&str>| ["virtual", "local"].contains(&self.target(kind, domain).channel.as_str());
        let are_kept: Vec<bool> = names
            .names
            .iter()
            .map(|name| is_kept(Some(name)))
            .chain(names.tables.iter().map(|_| is_kept(None)))
            .collect();
        let value = self.values.value(maps);
        self.draft.mapped(maps);
        let places = if are_kept.contains(&true) { self.convert_maps(&value, TableUse::Mailboxes) } else { None };
        let mailboxes = if are_kept.contains(&false) { self.convert_maps(&value, TableUse::Recipients) } else { None };
        if mailboxes.is_none() && are_kept.contains(&false) {
            self.draft.add_review_note(format!(
                "{maps} is empty: mail to every address at {parameter} is accepted, and bounces later if the address \
                 does not exist"
            ));
        }
        let not_named = open.iter().find(|domain| !names.names.contains(domain)).filter(|_| !names.tables.is_empty());
        if let Some(domain) = not_named {
            self.draft.add_behavior_change(format!(
                "Mail to unknown users at {domain} gets 550 if the domain is in {}: {maps} accepts it, and for that \
                 the domain needs its own [[domain]] section.",
                names.tables.join(", ")
            ));
        }
        self.write_class(
            DomainClass {
                kind,
                parameter,
                mailboxes,
                mailbox_places: places,
                aliases,
                catch_all: None,
                wildcard_mailbox: asks_for_domains(&value),
                open_domains: open,
            },
            names,
            taken,
        );
    }

    /// Domains with an entry for all addresses in a recipient table: `@example.org`.
    fn open_domains(&mut self, maps: &str) -> BTreeSet<String> {
        let named: Vec<MapRef> = list(&self.values.value(maps)).iter().filter_map(|it| MapRef::parse(it)).collect();
        let entries = named.iter().filter_map(|named| self.entries(named, false)).flatten();
        entries.filter_map(|(key, _)| Some(key.strip_prefix('@')?.to_lowercase())).collect()
    }

    /// Adds the sections of a class.
    fn write_class(&mut self, class: DomainClass, names: DomainList, taken: &mut BTreeSet<String>) {
        for name in names.names {
            if taken.insert(name.to_lowercase()) {
                self.section_of(&class, "name", &name, Some(&name));
            }
        }
        for table in names.tables {
            if taken.insert(taken_table(&table)) {
                self.section_of(&class, "names", &table, None);
            }
        }
        for (table, like) in names.subdomains {
            self.section_of(&class, "names", &table, Some(&like));
        }
    }

    /// Tables of the subdomains of relay domains, one for each next hop.
    fn relay_subdomains(&mut self, parents: &[String], excluded: &[String]) -> Vec<(String, String)> {
        let mut groups: Vec<(TransportTarget, Vec<String>)> = Vec::new();
        for parent in parents {
            let target = self.target(AddressClass::Relay, Some(&format!("{ANY_SUBDOMAIN}.{parent}")));
            if target.next_hop.is_none() {
                self.direct_parents.push(parent.clone());
            }
            match groups.iter_mut().find(|(known, _)| *known == target) {
                Some((_, members)) => members.push(parent.clone()),
                None => groups.push((target, vec![parent.clone()])),
            }
        }
        self.relayed_parents = parents.to_vec();
        groups.into_iter().map(|(_, parents)| self.subdomain_table(&parents, excluded)).collect()
    }

    fn subdomain_table(&mut self, parents: &[String], excluded: &[String]) -> (String, String) {
        let escaped = |name: &String| name.replace('.', "\\.");
        let excluded: Vec<String> =
            excluded.iter().map(|hole| escaped(&hole.trim_start_matches('.').to_owned())).collect();
        let mut text: String = parents.iter().map(|parent| format!("/\\.{}$/ x\n", escaped(parent))).collect();
        if !excluded.is_empty() {
            text = format!("if !/(^|\\.)({})$/\n{text}endif\n", excluded.join("|"));
        }
        let path = self.add_file(SUBDOMAINS, "", text, false);
        let name = super::lookups::file_name(&path);
        let block = TomlSection::new("[[table]]").comment("The subdomains of relay_domains.");
        let block = block.key("name", quoted(&name), "").key("type", quoted("regexp"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        let like = parents.first().map(|parent| format!("{ANY_SUBDOMAIN}.{parent}")).unwrap_or_default();
        (name, like)
    }

    /// A section; `domain`: how its mail is routed, None if it is in no class of transport_maps.
    fn section_of(&mut self, class: &DomainClass, key: &str, value: &str, domain: Option<&str>) {
        self.block_addresses_at(class.kind, domain);
        let method = self.delivery_of_domain(class.kind, domain, value);
        let is_open = class.open_domains.contains(value);
        let is_shut = matches!(&method, DeliveryMethod::Reply(reply) if reply.starts_with('5'));
        let (mailboxes, catch_all) = match &method {
            _ if is_shut => (Some(self.empty_table()), None),
            DeliveryMethod::Maildirs if class.kind == AddressClass::Local => {
                (class.mailboxes.clone(), class.catch_all.clone())
            }
            DeliveryMethod::Maildirs => {
                let catch_all = is_open.then(|| format!("{}@{value}", map_text::CATCH_ALL));
                // Without a table, virtual(8) knows no mailbox; here every address would get a
                // Maildir.
                let places = class.mailbox_places.clone().unwrap_or_else(|| self.empty_table());
                (Some(places), catch_all)
            }
            _ if is_open => (None, None),
            _ => (class.mailboxes.clone(), class.catch_all.clone()),
        };
        let transport = match (&method, class.kind) {
            (DeliveryMethod::Maildirs, AddressClass::Local) => self.system_maildirs(),
            (DeliveryMethod::Maildirs, _) => self.virtual_maildirs(class.mailbox_places.as_deref()),
            _ => Some(self.transport(
                TRANSPORT_NAMES[class.kind as usize],
                &method,
                self.target(class.kind, domain).from,
            )),
        };
        let mailboxes = match (&method, domain) {
            (DeliveryMethod::Maildirs, Some(domain)) => self.with_tagged_addresses(mailboxes, domain),
            _ => mailboxes,
        };
        let aliases = self.with_blocked_recipients(class.aliases.clone(), domain);
        let delimiter = self.delimiter();
        let mut block = TomlSection::new("[[domain]]").key(key, quoted(value), class.parameter);
        let keys = [("mailboxes", mailboxes), ("aliases", aliases), ("transport", transport), ("catch_all", catch_all)];
        for (key, value) in keys {
            value.iter().for_each(|value| block.set(key, quoted(value), ""));
            if key == "mailboxes" && value.is_some() && class.wildcard_mailbox && !is_shut {
                block.set("wildcard_mailbox", "true".into(), "");
            }
        }
        self.draft.add(block.key("delimiter", quoted(&delimiter), "recipient_delimiter"));
    }

    fn block_addresses_at(&mut self, kind: AddressClass, domain: Option<&str>) {
        if let Some(domain) = domain {
            self.block_addresses(kind, Some(domain));
        }
    }

    /// The aliases, followed by the deferred addresses if any of them is at this domain.
    fn with_blocked_recipients(&mut self, aliases: Option<String>, domain: Option<&str>) -> Option<String> {
        let is_at = |key: &String| domain.is_none_or(|domain| key.to_lowercase().ends_with(&format!("@{domain}")));
        let put_off = if self.deferred_addresses.iter().any(is_at) { self.deferred_table() } else { None };
        self.add_chain_table(aliases.into_iter().chain(put_off).collect())
    }

    /// The delivery method of a domain. Its own MX would be this server, unless it is only relayed.
    fn delivery_of_domain(&mut self, kind: AddressClass, domain: Option<&str>, name: &str) -> DeliveryMethod {
        let target = self.target(kind, domain);
        self.draft.mapped(target.from);
        let who = if domain.is_some() { name.to_owned() } else { format!("the domains of {name}") };
        match (self.delivery_method(&target, &who), domain) {
            // Each has its own MX, which the table of routes says.
            (DeliveryMethod::Network { kind: "smtp", next_hop: None, .. }, Some(domain))
                if domain.starts_with(ANY_SUBDOMAIN) =>
            {
                DeliveryMethod::Reply("451 4.3.5 The table of routes has no entry for this domain".into())
            }
            (DeliveryMethod::Network { kind: "smtp", next_hop: None, port, settings }, Some(domain)) => {
                DeliveryMethod::Network { kind: "smtp", next_hop: Some(format!("mx:{domain}")), port, settings }
            }
            (DeliveryMethod::Network { next_hop: None, .. }, None) => {
                self.deferring_method(&who, "each goes to its own MX, and domains in a table need a common next hop")
            }
            (way, _) => way,
        }
    }

    /// The name of a new transport; None for the built-in one.
    fn system_maildirs(&mut self) -> Option<String> {
        ["local_transport", "mailbox_transport"].iter().for_each(|name| self.draft.mapped(name));
        self.draft.add_behavior_change(
            "Mail to users of this machine (mydestination) goes into Maildirs below {data_dir}/mail, where their \
             programs do not look, and not into files in mail_spool_directory, home_mailbox or ~/.forward: see \
             [transport.maildir].",
        );
        None
    }

    fn virtual_maildirs(&mut self, places: Option<&str>) -> Option<String> {
        self.draft.mapped("virtual_transport");
        let base = self
            .values
            .explicit_value("virtual_mailbox_base")
            .filter(|base| base.starts_with('/') && !base.contains(['{', '}']));
        let Some(base) = base else {
            self.draft.add_behavior_change(
                "Mail to virtual_mailbox_domains goes into Maildirs below {data_dir}/mail: virtual_mailbox_base is \
                 not a path that can be used here, see [transport.maildir].",
            );
            return None;
        };
        let made = |block: &&TomlSection| {
            block.keys.iter().any(|(key, _, from)| key == "path" && from == "virtual_mailbox_base")
        };
        let known = self.draft.sections.iter().find(made).and_then(|block| block.header.strip_prefix("[transport."));
        if let Some(name) = known.and_then(|header| header.strip_suffix(']')) {
            return Some(name.to_owned());
        }
        let name = self.free_name("virtual-mail");
        let path = format!("{}/{{domain}}/{{local}}/", base.trim_end_matches('/'));
        let mut block = TomlSection::new(&format!("[transport.{name}]")).key("type", quoted("maildir"), "");
        block.set("path", quoted(&path), "virtual_mailbox_base");
        block.set("line_ends", quoted("lf"), "");
        if let Some(places) = places {
            block.set("places", quoted(places), "virtual_mailbox_maps");
            block.set("root", quoted(&base), "virtual_mailbox_base");
        }
        self.draft.add_review_note(
            "values of virtual_mailbox_maps that do not end in a slash were mbox files; here each is a Maildir, so \
             change these names. All files belong to the user that the server runs as",
        );
        self.draft.add(block);
        Some(name)
    }

    /// Postfix's default is no delimiter; ours is a plus.
    fn delimiter(&mut self) -> String {
        let value = self.values.value("recipient_delimiter");
        self.draft.mapped("recipient_delimiter");
        if value.chars().count() > 1 {
            self.draft.add_behavior_change(format!(
                "Mail to addresses with a tag after any but the first character of recipient_delimiter = {value} \
                 gets 550 if only the address without the tag exists."
            ));
        }
        value.chars().take(1).filter(|c| !c.is_whitespace() && *c != '@').collect()
    }

    /// An empty table: without a table, all addresses would exist.
    fn empty_table(&mut self) -> String {
        let known = self.draft.files.iter().any(|file| file.path.ends_with("nobody"));
        if !known {
            let path = self.add_file("nobody", "", "# There are no mailboxes here.\n".into(), false);
            let block = TomlSection::new("[[table]]").key("name", quoted("nobody"), "").key("type", quoted("text"), "");
            self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        }
        "nobody".into()
    }
}

/// What stands for a table of domains among the domains that are taken.
fn taken_table(table: &str) -> String {
    format!("table {table}")
}

/// Whether Postfix asks one of these tables for `@domain`, and what it answers is not known here.
fn asks_for_domains(maps: &str) -> bool {
    let is_server = |map: MapRef| map.kind == "ldap" || Database::of_map_type(&map.kind).is_some();
    list(maps).iter().filter_map(|element| MapRef::parse(element)).any(is_server)
}

/// Whether the section takes its names from a table.
fn has_domain_names(block: &TomlSection) -> bool {
    block.header == "[[domain]]" && block.keys.iter().any(|(key, ..)| key == "names")
}
