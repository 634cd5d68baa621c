//! Determines the transport and next hop of a recipient, as trivial-rewrite(8) does:
//!
//! | step | parameter |
//! |---|---|
//! | by address class | `local_transport`, `virtual_transport`, `relay_transport` or `default_transport` |
//! | without a next hop | `relayhost` for the last two; otherwise the domain itself |
//! | `transport_maps` | first match of address, domain, `.parent` domains and `*`, for all classes |
//! | if `local` remains | `mailbox_transport`, or a program |
//!
//! `transport:` without a next hop means the domain itself, not the relay host; `:` changes
//! nothing.

use std::path::Path;

use super::Conversion;
use super::config_draft::{TomlSection, quoted, transport_header};
use super::delivery_methods::DeliveryMethod;
use super::lookups::MapRef;
use super::map_text::TableUse;
use super::pipes;
use super::transport_target::TransportTarget;
use super::words::list;

/// Parameters with which local(8) delivers to something other than a file.
const PROGRAMS: [&str; 3] = ["mailbox_transport_maps", "mailbox_command_maps", "mailbox_command"];

/// An address class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressClass {
    Local,
    Virtual,
    Relay,
    Other,
}

/// The contents of transport_maps.
#[derive(Debug, Default)]
pub(super) struct TransportMap {
    /// Unique keys in lower case.
    entries: Vec<(String, String)>,
    /// `example.com` also matches its subdomains; then keys with a leading dot are not used.
    for_subdomains: bool,
    /// The table in place of unreadable ones.
    pub(super) opaque: Option<String>,
}

impl TransportMap {
    fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    /// The entry for a domain.
    fn domain_entry(&self, domain: &str) -> Option<&str> {
        let parents = domain.match_indices('.').map(|(dot, _)| &domain[dot + usize::from(self.for_subdomains)..]);
        std::iter::once(domain).chain(parents).find_map(|key| self.get(key)).or_else(|| self.get("*"))
    }

    /// Entries for domains: our patterns and their values, most specific first.
    pub(super) fn patterns(&self) -> Vec<(String, String)> {
        let mut patterns = Vec::new();
        for (key, value) in self.entries.iter().filter(|(key, _)| !key.contains('@')) {
            match key.strip_prefix('.') {
                Some(_) if self.for_subdomains => {}
                Some(domain) => patterns.push((format!("*.{domain}"), value.clone())),
                None => patterns.push((key.clone(), value.clone())),
            }
            if self.for_subdomains && !key.starts_with('.') && key != "*" {
                patterns.push((format!("*.{key}"), value.clone()));
            }
        }
        patterns.sort_by_key(|(pattern, _)| match pattern.as_str() {
            "*" => (2, 0),
            pattern if pattern.starts_with("*.") => (1, usize::MAX - pattern.matches('.').count()),
            _ => (0, 0),
        });
        patterns
    }

    /// Entries for addresses.
    fn addresses(&self) -> impl Iterator<Item = &(String, String)> {
        self.entries.iter().filter(|(key, _)| key.contains('@'))
    }
}

impl Conversion<'_> {
    /// Must be called before domains and routes are converted.
    pub(super) fn read_transport_maps(&mut self) {
        let value = self.values.value("transport_maps");
        self.draft.mapped("transport_maps");
        let styles = list(&self.values.value("parent_domain_matches_subdomains"));
        self.transport_map.for_subdomains = styles.iter().any(|it| it == "transport_maps");
        let mut opaque = Vec::new();
        for map_ref in list(&value).iter().filter_map(|it| MapRef::parse(it)) {
            match self.entries(&map_ref, false) {
                Some(entries) => {
                    for (key, value) in entries {
                        let key = key.to_lowercase();
                        if self.transport_map.get(&key).is_none() {
                            self.transport_map.entries.push((key, value));
                        }
                    }
                }
                None => opaque.extend(self.convert_map(map_ref, TableUse::Transports)),
            }
        }
        self.transport_map.opaque = self.add_chain_table(opaque);
    }

    /// The transport of a domain in this class; None for a domain that only a table knows.
    pub(super) fn target(&self, kind: AddressClass, domain: Option<&str>) -> TransportTarget {
        let target = self.apply_transport_map(self.target_of_class(kind), domain);
        match target.channel.as_str() {
            "local" => self.local_target(target),
            _ => target,
        }
    }

    fn apply_transport_map(&self, target: TransportTarget, domain: Option<&str>) -> TransportTarget {
        let map = &self.transport_map;
        match domain.map_or_else(|| map.get("*"), |domain| map.domain_entry(domain)) {
            Some(value) => target.overridden(value),
            None => target,
        }
    }

    /// Without transport_maps.
    pub(super) fn target_of_class(&self, kind: AddressClass) -> TransportTarget {
        let name = match kind {
            AddressClass::Local => "local_transport",
            AddressClass::Virtual => "virtual_transport",
            AddressClass::Relay => "relay_transport",
            AddressClass::Other => "default_transport",
        };
        let target = TransportTarget::read(&self.values.value(name), name);
        let relayhost = self.values.explicit_value("relayhost").filter(|hop| !hop.is_empty());
        match (kind, target.next_hop.is_some(), relayhost) {
            (AddressClass::Relay | AddressClass::Other, false, Some(hop)) => {
                TransportTarget { next_hop: Some(hop), from: "relayhost", ..target }
            }
            _ => target,
        }
    }

    fn local_target(&self, target: TransportTarget) -> TransportTarget {
        let given = |name: &str| self.values.explicit_value(name).filter(|value| !value.is_empty());
        if let Some(value) = given("mailbox_transport") {
            return TransportTarget::read(&value, "mailbox_transport");
        }
        match PROGRAMS.iter().find_map(|name| Some((*name, given(name)?))) {
            Some((name, value)) => TransportTarget { channel: "pipe".into(), next_hop: Some(value), from: name },
            None => target,
        }
    }

    /// Refuses and defers mail for addresses of `error:` and `retry:` in a domain, as smtpd does; the other addresses get routes.
    pub(super) fn block_addresses(&mut self, kind: AddressClass, domain: Option<&str>) {
        let own = self.own_domains();
        let is_meant = |key: &str| {
            let of = key.rsplit_once('@').map_or("", |(_, of)| of);
            domain.map_or_else(|| !own.iter().any(|it| it == of), |domain| of == domain)
        };
        let entries: Vec<_> = self.transport_map.addresses().filter(|(key, _)| is_meant(key)).cloned().collect();
        for (address, value) in entries {
            if let Some(DeliveryMethod::Reply(reply)) =
                self.reply_method(&self.target_of_class(kind).overridden(&value))
            {
                self.blocked_recipients.push((address, reply));
            }
        }
    }

    /// The entries for addresses, as a table of routes. With routes by sender the entries for domains are in
    /// it too, since they come first.
    pub(super) fn address_routes(&mut self) {
        self.block_addresses(AddressClass::Other, None);
        let own = self.own_domains();
        let is_below = |key: &str| self.relayed_parents.iter().any(|parent| key.ends_with(&format!(".{parent}")));
        let is_route = |key: &str| {
            key.contains('@') || is_below(key) || self.has_sender_routes() && !own.iter().any(|it| it == key)
        };
        let entries: Vec<_> = self.transport_map.entries.iter().filter(|(key, _)| is_route(key)).cloned().collect();
        let mut text = String::new();
        for (key, value) in entries {
            match self.address_route(&key, &value, &own) {
                Some(route) => text.push_str(&format!("{key:<31} {route}\n")),
                None => text.push_str(&format!("# not translated: {key} {value}: this is not a valid key\n")),
            }
        }
        for parent in self.direct_parents.clone() {
            if !text.lines().any(|line| line.split(' ').next() == Some(&format!(".{parent}"))) {
                text.push_str(&format!("{:<31} smtp:\n", format!(".{parent}")));
            }
        }
        if !text.is_empty() {
            let table = self.route_table("routes", text, "Recipients and their transports. From transport_maps.");
            self.draft.add(TomlSection::new("[[route]]").key("transports", quoted(&table), "transport_maps"));
        }
        if let Some(table) = self.transport_map.opaque.clone() {
            self.named_transports();
            self.draft.add(TomlSection::new("[[route]]").key("transports", quoted(&table), "transport_maps"));
        }
    }

    fn address_route(&mut self, key: &str, value: &str, own: &[String]) -> Option<String> {
        let is_sound = |c: char| !c.is_whitespace() && !c.is_control() && c != '"';
        if key.starts_with('#') || key.ends_with(':') || !key.chars().all(is_sound) {
            return None;
        }
        let of = key.rsplit_once('@').map_or("", |(_, of)| of);
        let is_relayed = self.relayed_parents.iter().any(|parent| key.ends_with(&format!(".{parent}")));
        let kind = self.class_of(of).filter(|_| own.iter().any(|it| it == of));
        let kind = kind.unwrap_or(if is_relayed { AddressClass::Relay } else { AddressClass::Other });
        let target = self.target_of_class(kind).overridden(value);
        let target = if target.channel == "local" { self.local_target(target) } else { target };
        let (mut method, domain) = (self.delivery_method(&target, key), Some(of).filter(|of| !of.is_empty()));
        if kind == AddressClass::Other && method == DeliveryMethod::Maildirs {
            method = self.deferring_method(key, "transport_maps delivers it locally, but it is not a local address");
        }
        if let (DeliveryMethod::Network { kind: "smtp", next_hop: next_hop @ None, .. }, Some(domain)) =
            (&mut method, domain.filter(|_| kind != AddressClass::Other))
        {
            *next_hop = Some(format!("mx:{domain}"));
        }
        Some(self.route_value(&method, kind, "transport_maps"))
    }

    /// The mailboxes of a domain with Maildirs, and the addresses with tags that transport_maps sends
    /// elsewhere: the tag of a mailbox is taken off, and other programs need it.
    pub(super) fn with_tagged_addresses(&mut self, mailboxes: Option<String>, domain: &str) -> Option<String> {
        let keys = self.tagged_patterns(domain);
        if keys.is_empty() || mailboxes.is_none() {
            return mailboxes;
        }
        let text: String = keys.iter().map(|pattern| format!("{pattern} x\n")).collect();
        let table = self.pattern_table("tagged", &text);
        self.add_chain_table(mailboxes.into_iter().chain([table]).collect())
    }

    /// Patterns for the addresses of a domain that transport_maps sends elsewhere, with any tag.
    fn tagged_patterns(&self, domain: &str) -> Vec<String> {
        let delimiter = self.values.value("recipient_delimiter").chars().next();
        let Some(delimiter) = delimiter else { return Vec::new() };
        let at = format!("@{domain}");
        let tagged = self.transport_map.addresses().filter_map(|(key, value)| {
            let local = key.strip_suffix(&at).filter(|local| !local.contains(delimiter))?;
            let is_program = !["local", "virtual", "error", "retry", ""]
                .contains(&TransportTarget::read(value, "").channel.as_str());
            let pattern = format!("/^{}{}[^@]*{}$/", escaped(local), escaped(&delimiter.to_string()), escaped(&at));
            is_program.then_some(pattern)
        });
        tagged.collect()
    }

    /// A value of a table of routes.
    pub(super) fn route_value(&mut self, method: &DeliveryMethod, kind: AddressClass, from: &str) -> String {
        match method {
            DeliveryMethod::Reply(reply) => {
                let (code, text) = reply.split_at(4.min(reply.len()));
                // Commas separate values.
                let text = text.replace(',', ";").replace('"', "'");
                format!("{}:{text}", if code.starts_with('5') { "error" } else { "retry" })
            }
            DeliveryMethod::Maildirs if kind == AddressClass::Virtual => format!("{}:", self.virtual_transport()),
            DeliveryMethod::Network { kind: "smtp", next_hop: None, settings, .. }
                if settings.is_empty()
                    && self.draft.section("[transport.smtp]").keys.iter().all(|(key, ..)| key != "next_hop") =>
            {
                "smtp:".into()
            }
            method => {
                let is_direct = matches!(method, DeliveryMethod::Network { next_hop: None, .. });
                format!("{}:", self.transport(if is_direct { "direct" } else { "onward" }, method, from))
            }
        }
    }

    /// The transport of the Maildirs of virtual mailboxes.
    fn virtual_transport(&self) -> String {
        let is_virtual = |block: &&TomlSection| block.keys.iter().any(|(.., from)| from == "virtual_mailbox_base");
        let found =
            self.draft.sections.iter().find(is_virtual).and_then(|block| block.header.strip_prefix("[transport."));
        found.and_then(|header| header.strip_suffix(']')).unwrap_or("maildir").to_owned()
    }

    /// The class of a domain that has a section.
    fn class_of(&self, domain: &str) -> Option<AddressClass> {
        let is_it = |block: &&TomlSection| {
            block.header == "[[domain]]"
                && block.keys.iter().any(|(key, value, _)| key == "name" && *value == quoted(domain))
        };
        let found = self.draft.sections.iter().find(is_it)?;
        let from = found.keys.iter().find(|(key, ..)| key == "name").map_or("", |(.., from)| from.as_str());
        Some(match from {
            "mydestination" => AddressClass::Local,
            "relay_domains" => AddressClass::Relay,
            _ => AddressClass::Virtual,
        })
    }

    /// A table of routes in a file of its own.
    pub(super) fn route_table(&mut self, like: &str, text: String, what: &str) -> String {
        let path = self.add_file(like, "", text, false);
        let name = super::lookups::file_name(&path);
        let block = TomlSection::new("[[table]]").comment(what);
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        name
    }

    /// Whether the user of a program exists, as far as the accounts can be read.
    fn has_account(&self, program: &pipes::PipeProgram) -> bool {
        let user = program.keys.iter().find(|(key, _)| *key == "user").map(|(_, value)| value.trim_matches('"'));
        let name = user.and_then(|user| user.split(':').next()).unwrap_or_default();
        let Ok(accounts) = self.files.text(Path::new("/etc/passwd")) else { return true };
        name.is_empty() || accounts.lines().any(|line| line.split(':').next() == Some(name))
    }

    /// Transports with the names that master.cf gives them, for tables that are read at run time.
    fn named_transports(&mut self) {
        let services = self.master.services.clone();
        for service in services.iter().filter(|it| it.kind == "unix") {
            let is_known = ["smtp", "relay", "local", "virtual", "error", "retry"].contains(&service.name.as_str());
            if is_known || !["smtp", "lmtp", "pipe", "discard"].contains(&service.command.as_str()) {
                continue;
            }
            let target = TransportTarget::read(&service.name, "transport_maps");
            let keys = match (service.command.as_str(), pipes::program(service, None)) {
                ("pipe", Err(_)) => continue,
                // A stock master.cf has services for programs that are not installed.
                ("pipe", Ok(program)) if !self.has_account(&program) => {
                    let why = "its user does not exist, so no table can name it";
                    self.draft.add_unsupported(format!("master.cf: {}", service.name), why);
                    continue;
                }
                ("pipe", Ok(program)) => program.keys,
                (command, _) => vec![("type", quoted(command))],
            };
            self.used_services.insert(target.channel);
            if self.names.insert(service.name.clone()) {
                let mut block = TomlSection::new(&transport_header(&service.name));
                keys.into_iter().for_each(|(key, value)| block.set(key, value, ""));
                self.draft.add(block);
            }
        }
    }
}

/// A text as a part of a pattern.
fn escaped(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@-_=%".contains(c);
    text.chars().flat_map(|c| (!is_plain(c)).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str, for_subdomains: bool) -> TransportMap {
        let entries = super::super::map_text::entries(text, false);
        TransportMap { entries, for_subdomains, opaque: None }
    }

    /// As in transport(5): `.domain` does not match the domain itself, and `*` comes last.
    #[test]
    fn the_closest_entry_counts() {
        let all = map("a.example one:\n.a.example two:\n.example three:\n* four:\n", false);
        for (domain, value) in
            [("a.example", "one:"), ("x.y.a.example", "two:"), ("b.example", "three:"), ("b", "four:")]
        {
            assert_eq!(all.domain_entry(domain), Some(value), "{domain}");
        }
        assert_eq!(map("a.example one:\n", true).domain_entry("x.a.example"), Some("one:"));
        let patterns: Vec<String> = all.patterns().into_iter().map(|(pattern, _)| pattern).collect();
        assert_eq!(patterns, ["a.example", "*.a.example", "*.example", "*"]);
    }

    #[test]
    fn an_entry_changes_the_transport_the_next_hop_or_nothing() {
        let base = || TransportTarget::read("relay:[gate]", "relay_transport");
        for (value, channel, hop) in [
            (":", "relay", Some("[gate]")),
            (":[other]", "relay", Some("[other]")),
            ("smtp:", "smtp", None),
            ("smtp", "smtp", None),
            ("error:5.1.1 gone: away", "error", Some("5.1.1 gone: away")),
        ] {
            let target = base().overridden(value);
            assert_eq!((target.channel.as_str(), target.next_hop.as_deref()), (channel, hop), "{value}");
        }
    }
}
