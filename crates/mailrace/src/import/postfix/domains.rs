//! Whose mail is taken: the four classes of domains that Postfix knows, and where the mail of each goes.
//!
//! | Postfix                    | who exists                | who stands for whom                  | where it goes          |
//! |----------------------------|---------------------------|--------------------------------------|------------------------|
//! | `mydestination`            | `local_recipient_maps`    | `virtual_alias_maps`, `alias_maps`   | Maildirs, or a next hop |
//! | `virtual_alias_domains`    | nobody                    | `virtual_alias_maps`                 |                        |
//! | `virtual_mailbox_domains`  | `virtual_mailbox_maps`    | `virtual_alias_maps`                 | Maildirs, or a next hop |
//! | `relay_domains`            | `relay_recipient_maps`    | `virtual_alias_maps`                 | the next hop           |

use std::collections::BTreeSet;
use std::path::Path;

use mail::Address;

use super::Conversion;
use super::draft::{Block, quoted};
use super::lookups::Named;
use super::text::{self, Use};
use super::words::list;

/// Domains of a text that become sections of their own; more stay in a table.
const NAMED_MAX: usize = 100;

/// The elements of a parameter that names domains.
#[derive(Debug, Default)]
struct Members {
    names: Vec<String>,
    tables: Vec<String>,
}

/// What the domains of one class have in common.
struct Class {
    parameter: &'static str,
    mailboxes: Option<String>,
    aliases: Option<String>,
    transport: Option<String>,
    catch_all: Option<String>,
}

impl Conversion<'_> {
    /// What names without a domain are completed with; has to be known before tables are read.
    pub(super) fn find_site(&mut self) {
        let origin = self.values.value("myorigin");
        self.site.origin = match origin.starts_with('/') {
            true => self.read(Path::new(&origin)).unwrap_or_default().trim().to_owned(),
            false => origin,
        };
        let names = self.domain_names("mydestination");
        self.site.domains = names.names;
        ["myorigin", "mydestination", "mydomain"].iter().for_each(|name| self.draft.mapped(name));
    }

    pub(super) fn domains(&mut self) {
        let mut taken = BTreeSet::new();
        let aliases = self.table_of("virtual_alias_maps", Use::Aliases);
        self.local_domains(aliases.clone(), &mut taken);
        self.mailbox_domains(aliases.clone(), &mut taken);
        self.alias_domains(aliases.clone(), &mut taken);
        self.relay_domains(aliases, &mut taken);
        if !self
            .draft
            .blocks
            .iter()
            .any(|block| block.header == "[[domain]]" && block.keys.iter().any(|it| it.0 == "name"))
        {
            let block =
                Block::new("[[domain]]").comment("One domain has to have a name: its postmaster is the server's.");
            let block = block.key("name", quoted(&self.hostname()), "myhostname");
            let nobody = self.nobody();
            self.draft.add(block.key("mailboxes", quoted(&nobody), ""));
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
        let mailboxes = self.local_users();
        let transport = self.local_transport();
        let catch_all = self.luser_relay();
        self.class(Class { parameter: "mydestination", mailboxes, aliases, transport, catch_all }, names, taken);
    }

    /// Aliases need no mailbox here, so that their tables say nothing of who has one.
    fn local_users(&mut self) -> Option<String> {
        self.draft.mapped("local_recipient_maps");
        let aliases: Vec<Option<Named>> =
            list(&self.values.value("alias_maps")).iter().map(|it| Named::read(it)).collect();
        let value = self.values.value("local_recipient_maps");
        if value.is_empty() {
            self.draft.look_at("local_recipient_maps is empty: everybody exists at the domains of mydestination");
            return None;
        }
        let users: Vec<Named> = list(&value)
            .iter()
            .filter_map(|it| Named::read(it))
            .filter(|it| !aliases.contains(&Some(it.clone())))
            .collect();
        match self.chain(users, Use::LocalUsers) {
            Some(table) => Some(table),
            // Without a table everybody would exist.
            None => Some(self.nobody()),
        }
    }

    fn local_transport(&mut self) -> Option<String> {
        let names = ["mailbox_transport", "local_transport"];
        for name in names {
            let Some(value) = self.values.given(name).filter(|value| !value.is_empty()) else { continue };
            if value == "local" || value.starts_with("local:") {
                self.draft.mapped(name);
                continue;
            }
            if let Some(transport) = self.delivery(name, &value, "local-mail") {
                return Some(transport);
            }
        }
        self.draft.look_at(
            "mail of system users goes into Maildirs below {data_dir}/mail and not into their home folders or mbox files; \
             see [transport.maildir]",
        );
        None
    }

    /// A transport that delivers to the mailboxes of a domain.
    fn delivery(&mut self, parameter: &str, value: &str, like: &str) -> Option<String> {
        match self.way(value) {
            Ok(way) if way.next_hop.is_some() => {
                self.draft.mapped(parameter);
                Some(self.transport(like, &way, parameter))
            }
            Ok(_) => self.lost_way(parameter, "it names no next hop, and the domain's own is this server".into()),
            Err(why) => self.lost_way(parameter, why),
        }
    }

    fn lost_way(&mut self, parameter: &str, why: String) -> Option<String> {
        self.draft.look_at(format!("{parameter}: the mail goes into Maildirs here: {why}"));
        self.draft.lost(parameter, why);
        None
    }

    fn luser_relay(&mut self) -> Option<String> {
        let raw = self.main.value("luser_relay").filter(|raw| !raw.is_empty())?;
        if raw.contains('$') {
            self.draft.lost("luser_relay", "`catch_all` is one address, without parts of the recipient's");
            return None;
        }
        match text::target(raw, &self.site) {
            Ok(address) => {
                self.draft.mapped("luser_relay");
                Some(address)
            }
            Err(why) => {
                self.draft.lost("luser_relay", why);
                None
            }
        }
    }

    fn alias_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("virtual_alias_domains");
        self.draft.mapped("virtual_alias_domains");
        if names.names.is_empty() && names.tables.is_empty() {
            return;
        }
        let mailboxes = Some(self.nobody());
        let class = Class { parameter: "virtual_alias_domains", mailboxes, aliases, transport: None, catch_all: None };
        self.class(class, names, taken);
    }

    fn mailbox_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("virtual_mailbox_domains");
        self.draft.mapped("virtual_mailbox_domains");
        if names.names.is_empty() && names.tables.is_empty() {
            return;
        }
        let mailboxes = self.table_of("virtual_mailbox_maps", Use::Mailboxes);
        if mailboxes.is_none() {
            self.draft
                .look_at("there is no table for virtual_mailbox_maps: everybody exists at virtual_mailbox_domains");
        }
        let transport = self.virtual_transport(mailboxes.as_deref());
        let class = Class { parameter: "virtual_mailbox_domains", mailboxes, aliases, transport, catch_all: None };
        self.class(class, names, taken);
    }

    fn virtual_transport(&mut self, mailboxes: Option<&str>) -> Option<String> {
        let value = self.values.value("virtual_transport");
        if !(value == "virtual" || value.starts_with("virtual:")) {
            let transport = self.delivery("virtual_transport", &value, "virtual-mail");
            return transport;
        }
        self.draft.mapped("virtual_transport");
        let base = self
            .values
            .given("virtual_mailbox_base")
            .filter(|base| base.starts_with('/') && !base.contains(['{', '}']))?;
        let name = self.free_name("virtual-mail");
        let path = format!("{}/{{domain}}/{{local}}/", base.trim_end_matches('/'));
        let mut block = Block::new(&format!("[transport.{name}]")).key("type", quoted("maildir"), "");
        block.set("path", quoted(&path), "");
        block.set("line_ends", quoted("lf"), "");
        if let Some(mailboxes) = mailboxes {
            block.set("places", quoted(mailboxes), "virtual_mailbox_maps");
            block.set("root", quoted(&base), "virtual_mailbox_base");
        }
        self.draft.mapped("virtual_mailbox_base");
        self.draft.look_at(
            "places of virtual_mailbox_maps that do not end in a slash were mbox files; here each is a Maildir, so give these \
             other names. All files belong to the one user that the server runs as",
        );
        self.draft.add(block);
        Some(name)
    }

    fn relay_domains(&mut self, aliases: Option<String>, taken: &mut BTreeSet<String>) {
        let names = self.domain_names("relay_domains");
        self.draft.mapped("relay_domains");
        if names.names.is_empty() && names.tables.is_empty() {
            return;
        }
        let mailboxes = self.table_of("relay_recipient_maps", Use::Mailboxes);
        if mailboxes.is_none() {
            self.draft.look_at(
                "there is no table for relay_recipient_maps: everybody exists at relay_domains, and mail for \
                who does not is returned later",
            );
        }
        self.draft.loss("relay_domains", "domains below those named are not meant here: name each that is");
        for name in names.names {
            let transport = self.relay_transport(Some(&name));
            let (mailboxes, aliases) = (mailboxes.clone(), aliases.clone());
            let class = Class { parameter: "relay_domains", mailboxes, aliases, transport, catch_all: None };
            self.class(class, Members { names: vec![name], tables: Vec::new() }, taken);
        }
        if names.tables.is_empty() {
            return;
        }
        match self.relay_transport(None) {
            Some(transport) => {
                let class = Class {
                    parameter: "relay_domains",
                    mailboxes,
                    aliases,
                    transport: Some(transport),
                    catch_all: None,
                };
                self.class(class, Members { names: Vec::new(), tables: names.tables }, taken);
            }
            None => {
                let what = format!("relay_domains: table {}", names.tables.join(", "));
                self.draft.look_at(format!("{what}: its domains are not taken, since no next hop is known for them"));
                self.draft.loss(what, "domains in a table need one next hop in common");
            }
        }
    }

    /// How mail for a relay domain goes on; for domains of which only tables know, None where nothing says it.
    fn relay_transport(&mut self, domain: Option<&str>) -> Option<String> {
        let ways = [
            domain.and_then(|domain| self.transport_entry(domain)).map(|way| ("transport_maps", way)),
            self.values.given("relay_transport").map(|way| ("relay_transport", way)),
            self.values
                .given("relayhost")
                .filter(|hop| !hop.is_empty())
                .map(|hop| ("relayhost", format!("relay:{hop}"))),
            domain.map(|domain| ("relay_domains", format!("relay:{domain}"))),
        ];
        for (parameter, text) in ways.into_iter().flatten() {
            self.draft.mapped(parameter);
            match self.way(&text) {
                Ok(way) if way.next_hop.is_some() => return Some(self.transport("relay", &way, parameter)),
                Ok(_) => {}
                Err(why) => self.draft.loss(format!("{parameter}: {text}"), why),
            }
        }
        None
    }

    /// Adds the sections of a class.
    fn class(&mut self, class: Class, names: Members, taken: &mut BTreeSet<String>) {
        let delimiter = self.delimiter();
        let section = |key: &str, value: &str| {
            let mut block = Block::new("[[domain]]").key(key, quoted(value), class.parameter);
            let tables = [
                ("mailboxes", &class.mailboxes),
                ("aliases", &class.aliases),
                ("transport", &class.transport),
                ("catch_all", &class.catch_all),
            ];
            for (key, value) in tables {
                value.iter().for_each(|value| block.set(key, quoted(value), ""));
            }
            block.key("delimiter", quoted(&delimiter), "recipient_delimiter")
        };
        for name in names.names {
            if taken.insert(name.to_lowercase()) {
                self.draft.add(section("name", &name));
            }
        }
        for table in names.tables {
            if taken.insert(format!("table {table}")) {
                self.draft.add(section("names", &table));
            }
        }
    }

    /// None by default, where ours is a plus.
    fn delimiter(&mut self) -> String {
        let value = self.values.value("recipient_delimiter");
        self.draft.mapped("recipient_delimiter");
        if value.chars().count() > 1 {
            self.draft
                .loss(format!("recipient_delimiter = {value}"), "one character parts a mailbox from a tag: the first");
        }
        value.chars().take(1).filter(|c| !c.is_whitespace() && *c != '@').collect()
    }

    /// A table in which nobody is: where no table says who exists, everybody does.
    fn nobody(&mut self) -> String {
        let known = self.draft.files.iter().any(|file| file.path.ends_with("nobody"));
        if !known {
            let path = self.add_file("nobody", "", "# Nobody has a mailbox here.\n".into(), false);
            let block = Block::new("[[table]]").key("name", quoted("nobody"), "").key("type", quoted("text"), "");
            self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        }
        "nobody".into()
    }

    /// The domains that a parameter names: in itself, in files, or in tables.
    fn domain_names(&mut self, parameter: &str) -> Members {
        let mut named = Members::default();
        for element in list(&self.values.value(parameter)) {
            self.domain_element(parameter, &element, &mut named, 0);
        }
        named
    }

    fn domain_element(&mut self, parameter: &str, element: &str, named: &mut Members, depth: usize) {
        if Address::new("postmaster", element).is_ok() && !element.starts_with('/') {
            let name = element.to_lowercase();
            if !named.names.contains(&name) {
                named.names.push(name);
            }
            return;
        }
        if element.starts_with('/') && depth == 0 {
            let text = self.read(Path::new(element)).unwrap_or_default();
            let lines = super::main_cf::logical_lines(&text).join(" ");
            list(&lines).iter().for_each(|element| self.domain_element(parameter, element, named, 1));
            return;
        }
        let Some(table) = Named::read(element).filter(|_| depth == 0) else {
            self.draft.loss(format!("{parameter}: {element}"), "expected the name of a domain, or a table");
            return;
        };
        let keys: Option<Vec<String>> = self.entries(&table, false).map(|entries| {
            let is_domain = |(key, _): &(String, String)| !key.contains('@') && key.contains('.');
            entries.into_iter().filter(is_domain).map(|(key, _)| key).collect()
        });
        match keys {
            Some(keys) if keys.len() <= NAMED_MAX => {
                keys.iter().for_each(|key| self.domain_element(parameter, key, named, 1));
            }
            _ => named.tables.extend(self.chain(vec![table], Use::Domains)),
        }
    }
}
