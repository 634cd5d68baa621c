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
use super::draft::{Block, quoted};
use super::hops::Way;
use super::lookups::Named;
use super::text::{self, Use};
use super::transports::Kind;
use super::words::list;

/// Domains in a text that become separate sections; more stay in a table.
const NAMED_MAX: usize = 100;
/// The same for relay domains, which may have different next hops.
const RELAYED_MAX: usize = 2000;
/// The domain of a server without local mail, a name that cannot exist.
const NO_DOMAIN: &str = "nothing-kept-here.invalid";
/// The names of new transports, by class.
const LIKE: [&str; 4] = ["local-mail", "virtual-mail", "relay", "onward"];

/// The elements of a parameter that names domains.
#[derive(Debug, Default)]
struct Members {
    names: Vec<String>,
    tables: Vec<String>,
    /// Elements after a `!`: later elements do not include them. `.example.org` means its
    /// subdomains.
    excepted: Vec<String>,
    /// Excluded names also exclude their subdomains.
    for_subdomains: bool,
    /// An excluded element is unknown, so nothing after it is included.
    is_closed: bool,
}

impl Members {
    fn excepts(&self, domain: &str) -> bool {
        let below = |hole: &str| domain.len() > hole.len() && domain.ends_with(hole);
        self.excepted.iter().any(|hole| match hole.starts_with('.') {
            true => !self.for_subdomains && below(hole),
            false => hole == domain || self.for_subdomains && below(&format!(".{hole}")),
        })
    }

    fn add(&mut self, name: String, negated: bool) {
        match negated {
            true => self.excepted.push(name),
            false if !self.excepts(&name) && !self.names.contains(&name) => self.names.push(name),
            false => {}
        }
    }
}

/// The common settings of the domains in one class.
struct Class {
    kind: Kind,
    parameter: &'static str,
    /// None: all addresses exist.
    mailboxes: Option<String>,
    /// The table of mailbox folders, for domains with Maildirs.
    places: Option<String>,
    aliases: Option<String>,
    catch_all: Option<String>,
    /// Domains in which all addresses exist.
    open: BTreeSet<String>,
}

impl Conversion<'_> {
    /// Finds the domain for names without one, which is needed to read tables.
    pub(super) fn find_site(&mut self) {
        let origin = self.values.value("myorigin");
        self.site.origin = match origin.starts_with('/') {
            true => self.read(Path::new(&origin)).unwrap_or_default().trim().to_owned(),
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
        let aliases = self.table_of("virtual_alias_maps", Use::Aliases);
        self.local_domains(aliases.clone(), &mut taken);
        self.mailbox_domains(aliases.clone(), &mut taken);
        self.alias_domains(aliases.clone(), &mut taken);
        self.relay_domains(aliases, &mut taken);
        self.stray_aliases();
        if self.own_domains().is_empty() {
            self.no_domain();
        }
    }

    /// Nothing is stored here. The domain that must exist cannot receive mail (RFC 2606), and its
    /// postmaster is at the origin, where Postfix sends the postmaster's mail.
    fn no_domain(&mut self) {
        let nobody = self.nobody();
        let origin = self.site.origin.clone();
        let mut block = Block::new("[[domain]]").comment(
            "At least one domain must have a name. This one has no mailboxes; its postmaster, who is the server's, \
             is at the origin.",
        );
        block.set("name", quoted(NO_DOMAIN), "");
        block.set("mailboxes", quoted(&nobody), "");
        if Address::new("postmaster", &origin).is_ok() && origin != NO_DOMAIN {
            let text = ["postmaster", "root"].map(|name| format!("{name}@{NO_DOMAIN} {name}@{origin}\n")).concat();
            let path = self.add_file("postmaster", "", text, false);
            let name = super::lookups::file_name(&path);
            let table = Block::new("[[table]]").key("name", quoted(&name), "").key("type", quoted("text"), "");
            self.draft.add(table.key("path", quoted(&path.to_string_lossy()), ""));
            block.set("aliases", quoted(&name), "");
        }
        self.draft.add(block);
    }

    /// Reports aliases at other domains: Postfix applies virtual_alias_maps to all recipients, but
    /// here aliases belong to domains.
    fn stray_aliases(&mut self) {
        let (own, has_tables) = (self.own_domains(), self.draft.blocks.iter().any(is_of_names));
        let mut strays = Vec::new();
        for named in list(&self.values.value("virtual_alias_maps")).iter().filter_map(|it| Named::read(it)) {
            let entries = self.entries(&named, false).unwrap_or_default();
            strays.extend(entries.into_iter().flat_map(|(key, _)| match key.contains(['@', '.']) {
                true => vec![key],
                false => text::keys(&key, Use::Aliases, &self.site).unwrap_or_default(),
            }));
        }
        let is_stray = |key: &String| key.rsplit_once('@').is_some_and(|(_, of)| !own.contains(&of.to_lowercase()));
        for key in strays.into_iter().filter(|key| !has_tables && is_stray(key)) {
            self.draft.alarm(format!(
                "Mail to {key} gets 450 over SMTP, and goes to {key} itself if local programs send it: \
                 virtual_alias_maps redirects it, and here only addresses at local domains can have aliases."
            ));
            let reply = "450 4.3.5 virtual_alias_maps redirects it, and it is not at a local domain";
            // access(5): a key without @ matches the whole domain.
            self.stopped.push((key.trim_start_matches('@').to_owned(), reply.to_owned()));
        }
    }

    fn table_of(&mut self, parameter: &str, of_use: Use) -> Option<String> {
        let value = self.values.value(parameter);
        self.draft.mapped(parameter);
        self.tables(&value, of_use)
    }

    fn local_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("mydestination");
        if names.names.is_empty() && names.tables.is_empty() {
            let unused = ["alias_maps", "local_recipient_maps", "alias_database", "local_transport"];
            unused.iter().for_each(|name| self.draft.same(name, "mydestination is empty"));
            return;
        }
        let of_names = self.table_of("alias_maps", Use::LocalAliases);
        let aliases = self.joined(aliases.into_iter().chain(of_names).collect());
        let class = Class {
            kind: Kind::Local,
            parameter: "mydestination",
            mailboxes: self.local_users(),
            places: None,
            aliases,
            catch_all: self.luser_relay(),
            open: BTreeSet::new(),
        };
        self.class(class, names, taken);
    }

    /// Aliases need no mailbox here, so alias tables do not define mailboxes.
    fn local_users(&mut self) -> Option<String> {
        self.draft.mapped("local_recipient_maps");
        let aliases: Vec<Option<Named>> =
            list(&self.values.value("alias_maps")).iter().map(|it| Named::read(it)).collect();
        let value = self.values.value("local_recipient_maps");
        if value.is_empty() && self.target(Kind::Local, None).channel != "local" {
            // The next hop knows which users exist.
            return None;
        }
        // Postfix then accepts mail for all users, and local(8) bounces it for unknown ones.
        let value = if value.is_empty() { "unix:passwd.byname".to_owned() } else { value };
        let users: Vec<Named> = list(&value)
            .iter()
            .filter_map(|it| Named::read(it))
            .filter(|it| !aliases.contains(&Some(it.clone())))
            .collect();
        match self.chain(users, Use::LocalUsers) {
            Some(table) => Some(table),
            // Without a table, all addresses would exist.
            None => Some(self.nobody()),
        }
    }

    /// The recipient of mail for unknown users. local(8) uses it only if local_recipient_maps is
    /// empty.
    fn luser_relay(&mut self) -> Option<String> {
        let raw = self.main.value("luser_relay").filter(|raw| !raw.is_empty())?;
        if !self.values.value("local_recipient_maps").is_empty() {
            self.draft.same("luser_relay", "local_recipient_maps refuses unknown users first");
            return None;
        }
        let target = if raw.contains('$') {
            Err("it contains parts of the recipient's address")
        } else {
            text::target(raw, &self.site)
        };
        match target {
            Ok(address) => {
                self.draft.mapped("luser_relay");
                Some(address)
            }
            Err(why) => {
                self.draft.alarm(format!(
                    "Mail to unknown users at the domains of mydestination gets 550: luser_relay = {raw} cannot \
                     become a `catch_all`: {why}."
                ));
                self.draft.lost("luser_relay", "`catch_all` must be a single address");
                None
            }
        }
    }

    fn alias_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let mut names = self.domain_names("virtual_alias_domains");
        self.draft.mapped("virtual_alias_domains");
        names.names.retain(|name| taken.insert(name.clone()));
        let delimiter = self.delimiter();
        let keys =
            names.names.iter().map(|name| ("name", name)).chain(names.tables.iter().map(|table| ("names", table)));
        for (key, value) in keys {
            let aliases = self.with_stops(aliases.clone(), Some(value.as_str()).filter(|_| key == "name"));
            let nobody = self.nobody();
            let mut block = Block::new("[[domain]]").key(key, quoted(value), "virtual_alias_domains");
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
        self.recipients(Kind::Virtual, "virtual_mailbox_domains", "virtual_mailbox_maps", aliases, names, taken);
    }

    fn relay_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("relay_domains");
        self.draft.mapped("relay_domains");
        if names.names.is_empty() && names.tables.is_empty() {
            return;
        }
        ["relay_transport", "relayhost"].iter().for_each(|name| self.draft.mapped(name));
        let style = list(&self.values.value("parent_domain_matches_subdomains"));
        if style.iter().any(|it| it == "relay_domains") {
            self.draft.alarm(
                "Mail from elsewhere to subdomains of relay_domains gets 550: each must be named here (see \
                 parent_domain_matches_subdomains).",
            );
        }
        self.recipients(Kind::Relay, "relay_domains", "relay_recipient_maps", aliases, names, taken);
    }

    /// A class with `maps` as its table of recipients.
    fn recipients(
        &mut self,
        kind: Kind,
        parameter: &'static str,
        maps: &'static str,
        aliases: Option<String>,
        names: Members,
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
        let places = if are_kept.contains(&true) { self.tables(&value, Use::Mailboxes) } else { None };
        let mailboxes = if are_kept.contains(&false) { self.tables(&value, Use::Recipients) } else { None };
        if mailboxes.is_none() && are_kept.contains(&false) {
            self.draft.look_at(format!(
                "{maps} is empty: mail to every address at {parameter} is accepted, and bounces later if the address \
                 does not exist"
            ));
        }
        let not_named = open.iter().find(|domain| !names.names.contains(domain)).filter(|_| !names.tables.is_empty());
        if let Some(domain) = not_named {
            self.draft.alarm(format!(
                "Mail to unknown users at {domain} gets 550 if the domain is in {}: {maps} accepts it, and for that \
                 the domain needs its own [[domain]] section.",
                names.tables.join(", ")
            ));
        }
        self.class(Class { kind, parameter, mailboxes, places, aliases, catch_all: None, open }, names, taken);
    }

    /// Domains with an entry for all addresses in a recipient table: `@example.org`.
    fn open_domains(&mut self, maps: &str) -> BTreeSet<String> {
        let named: Vec<Named> = list(&self.values.value(maps)).iter().filter_map(|it| Named::read(it)).collect();
        let entries = named.iter().filter_map(|named| self.entries(named, false)).flatten();
        entries.filter_map(|(key, _)| Some(key.strip_prefix('@')?.to_lowercase())).collect()
    }

    /// Adds the sections of a class.
    fn class(&mut self, class: Class, names: Members, taken: &mut BTreeSet<String>) {
        for name in names.names {
            if taken.insert(name.to_lowercase()) {
                self.section_of(&class, "name", &name);
            }
        }
        for table in names.tables {
            if taken.insert(format!("table {table}")) {
                self.section_of(&class, "names", &table);
            }
        }
    }

    fn section_of(&mut self, class: &Class, key: &str, value: &str) {
        let domain = Some(value).filter(|_| key == "name");
        self.stop_addresses_at(class.kind, domain);
        let way = self.way_of_domain(class.kind, domain, value);
        let is_open = class.open.contains(value);
        let is_shut = matches!(&way, Way::Nowhere(reply) if reply.starts_with('5'));
        let (mailboxes, catch_all) = match &way {
            _ if is_shut => (Some(self.nobody()), None),
            Way::Maildirs if class.kind == Kind::Local => (class.mailboxes.clone(), class.catch_all.clone()),
            Way::Maildirs => {
                let catch_all = is_open.then(|| format!("{}@{value}", text::CATCH_ALL));
                // Without a table, virtual(8) knows no mailbox; here every address would get a
                // Maildir.
                let places = class.places.clone().unwrap_or_else(|| self.nobody());
                (Some(places), catch_all)
            }
            _ if is_open => (None, None),
            _ => (class.mailboxes.clone(), class.catch_all.clone()),
        };
        let transport = match (&way, class.kind) {
            (Way::Maildirs, Kind::Local) => self.system_maildirs(),
            (Way::Maildirs, _) => self.virtual_maildirs(class.places.as_deref()),
            _ => Some(self.transport(LIKE[class.kind as usize], &way, self.target(class.kind, domain).from)),
        };
        let aliases = self.with_stops(class.aliases.clone(), domain);
        let delimiter = self.delimiter();
        let mut block = Block::new("[[domain]]").key(key, quoted(value), class.parameter);
        let keys = [("mailboxes", mailboxes), ("aliases", aliases), ("transport", transport), ("catch_all", catch_all)];
        for (key, value) in keys {
            value.iter().for_each(|value| block.set(key, quoted(value), ""));
        }
        self.draft.add(block.key("delimiter", quoted(&delimiter), "recipient_delimiter"));
    }

    fn stop_addresses_at(&mut self, kind: Kind, domain: Option<&str>) {
        if let Some(domain) = domain {
            self.stop_addresses(kind, Some(domain));
        }
    }

    /// The aliases, followed by the deferred addresses if any of them is at this domain.
    fn with_stops(&mut self, aliases: Option<String>, domain: Option<&str>) -> Option<String> {
        let is_at = |key: &String| domain.is_none_or(|domain| key.to_lowercase().ends_with(&format!("@{domain}")));
        let put_off = if self.put_off.iter().any(is_at) { self.put_off_table() } else { None };
        let stops = [put_off, self.transport_map.opaque.clone()];
        self.joined(aliases.into_iter().chain(stops.into_iter().flatten()).collect())
    }

    /// The delivery method of a domain. Its own MX would be this server, unless it is only relayed.
    fn way_of_domain(&mut self, kind: Kind, domain: Option<&str>, name: &str) -> Way {
        let target = self.target(kind, domain);
        self.draft.mapped(target.from);
        let who = if domain.is_some() { name.to_owned() } else { format!("the domains of {name}") };
        match (self.way(&target, &who), domain) {
            (Way::Out { kind: "smtp", next_hop: None, port }, Some(domain)) => {
                Way::Out { kind: "smtp", next_hop: Some(format!("mx:{domain}")), port }
            }
            (Way::Out { next_hop: None, .. }, None) => {
                self.put_off_way(&who, "each goes to its own MX, and domains in a table need a common next hop")
            }
            (way, _) => way,
        }
    }

    /// The name of a new transport; None for the built-in one.
    fn system_maildirs(&mut self) -> Option<String> {
        ["local_transport", "mailbox_transport"].iter().for_each(|name| self.draft.mapped(name));
        self.draft.alarm(
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
            .given("virtual_mailbox_base")
            .filter(|base| base.starts_with('/') && !base.contains(['{', '}']));
        let Some(base) = base else {
            self.draft.alarm(
                "Mail to virtual_mailbox_domains goes into Maildirs below {data_dir}/mail: virtual_mailbox_base is \
                 not a path that can be used here, see [transport.maildir].",
            );
            return None;
        };
        let made =
            |block: &&Block| block.keys.iter().any(|(key, _, from)| key == "path" && from == "virtual_mailbox_base");
        let known = self.draft.blocks.iter().find(made).and_then(|block| block.header.strip_prefix("[transport."));
        if let Some(name) = known.and_then(|header| header.strip_suffix(']')) {
            return Some(name.to_owned());
        }
        let name = self.free_name("virtual-mail");
        let path = format!("{}/{{domain}}/{{local}}/", base.trim_end_matches('/'));
        let mut block = Block::new(&format!("[transport.{name}]")).key("type", quoted("maildir"), "");
        block.set("path", quoted(&path), "virtual_mailbox_base");
        block.set("line_ends", quoted("lf"), "");
        if let Some(places) = places {
            block.set("places", quoted(places), "virtual_mailbox_maps");
            block.set("root", quoted(&base), "virtual_mailbox_base");
        }
        self.draft.look_at(
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
            self.draft.alarm(format!(
                "Mail to addresses with a tag after any but the first character of recipient_delimiter = {value} \
                 gets 550 if only the address without the tag exists."
            ));
        }
        value.chars().take(1).filter(|c| !c.is_whitespace() && *c != '@').collect()
    }

    /// An empty table: without a table, all addresses would exist.
    fn nobody(&mut self) -> String {
        let known = self.draft.files.iter().any(|file| file.path.ends_with("nobody"));
        if !known {
            let path = self.add_file("nobody", "", "# There are no mailboxes here.\n".into(), false);
            let block = Block::new("[[table]]").key("name", quoted("nobody"), "").key("type", quoted("text"), "");
            self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        }
        "nobody".into()
    }

    /// The domains in a parameter, its files and its tables.
    fn domain_names(&mut self, parameter: &str) -> Members {
        let styles = list(&self.values.value("parent_domain_matches_subdomains"));
        let mut named = Members { for_subdomains: styles.iter().any(|it| it == parameter), ..Members::default() };
        for element in list(&self.values.value(parameter)) {
            self.domain_element(parameter, &element, false, &mut named, 0);
        }
        named
    }

    fn domain_element(&mut self, parameter: &str, element: &str, negated: bool, named: &mut Members, depth: usize) {
        let bare = element.trim_start_matches('!');
        let negated = negated ^ ((element.len() - bare.len()) % 2 == 1);
        if named.is_closed {
            return self.draft.loss(format!("{parameter}: {element}"), "an exclusion before it is unknown");
        }
        if bare.starts_with('/') && depth == 0 {
            return self.domain_file(parameter, bare, negated, named);
        }
        if is_domain(bare) || negated && bare.strip_prefix('.').is_some_and(is_domain) {
            return named.add(bare.to_lowercase(), negated);
        }
        if let Some(table) = Named::read(bare) {
            return self.domain_table(parameter, table, negated, named);
        }
        match negated {
            true => self.draft.loss(format!("{parameter}: {element}"), "it is not a domain name, and excludes nothing"),
            false => self.no_domain_name(parameter, element),
        }
    }

    fn no_domain_name(&mut self, parameter: &str, element: &str) {
        self.draft.alarm(format!("Mail to \"{element}\" in {parameter} gets 550: it is not a domain name."));
        self.draft.loss(format!("{parameter}: {element}"), "expected a domain name or a table");
    }

    fn domain_file(&mut self, parameter: &str, path: &str, negated: bool, named: &mut Members) {
        let Some(text) = self.read(Path::new(path)) else {
            let file = Named { kind: "file".into(), name: path.to_owned() };
            named.tables.extend(self.put_off_domains(&file, "the file cannot be read"));
            named.is_closed |= negated;
            return;
        };
        let lines = super::main_cf::logical_lines(&text).join(" ");
        list(&lines).iter().for_each(|element| self.domain_element(parameter, element, negated, named, 1));
    }

    /// Exclusions cannot be applied to a table that is queried at run time: then all its mail is
    /// deferred.
    fn domain_table(&mut self, parameter: &str, table: Named, negated: bool, named: &mut Members) {
        let keys = self.domain_keys(&table, negated);
        let most = if parameter == "relay_domains" { RELAYED_MAX } else { NAMED_MAX };
        match keys {
            Some(keys) if negated => keys.into_iter().for_each(|key| named.add(key, true)),
            Some(keys) if keys.len() <= most => {
                for key in keys {
                    match is_domain(&key) {
                        true => named.add(key, false),
                        false => self.no_domain_name(parameter, &key),
                    }
                }
            }
            None if negated => {
                let why = format!("it lists exclusions of {parameter}, and cannot be read");
                named.tables.extend(self.put_off_domains(&table, &why));
                named.is_closed = true;
            }
            _ if named.excepted.is_empty() => named.tables.extend(self.chain(vec![table], Use::Domains)),
            _ => {
                let why = format!("{parameter} excludes {} from it", named.excepted.join(", "));
                named.tables.extend(self.put_off_domains(&table, &why));
            }
        }
    }

    /// The keys of a table that are domains, in lower case. In a table of addresses, a word without
    /// a dot is a user.
    fn domain_keys(&mut self, table: &Named, negated: bool) -> Option<Vec<String>> {
        let addresses = ["virtual_alias_maps", "virtual_mailbox_maps"].map(|name| list(&self.values.value(name)));
        let has_addresses = !negated && addresses.iter().flatten().any(|it| Named::read(it).as_ref() == Some(table));
        let is_domain = |key: &String| !key.contains('@') && (key.contains('.') || !has_addresses);
        let entries = self.entries(table, false)?;
        Some(entries.into_iter().map(|(key, _)| key.to_lowercase()).filter(is_domain).collect())
    }

    /// A table that defers mail to all domains without a section, one for each reason.
    fn put_off_domains(&mut self, table: &Named, why: &str) -> Option<String> {
        let reason = Named { kind: "!".into(), name: why.to_owned() };
        let key = (vec![table.clone(), reason], Use::Domains);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        let made = self.unavailable(table, Use::Domains, why);
        self.made.insert(key, made.clone());
        made
    }
}

fn is_domain(text: &str) -> bool {
    Address::new("postmaster", text).is_ok()
}

/// Whether the section takes its names from a table.
fn is_of_names(block: &Block) -> bool {
    block.header == "[[domain]]" && block.keys.iter().any(|(key, ..)| key == "names")
}
