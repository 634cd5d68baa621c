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

use super::Conversion;
use super::delivery_methods::DeliveryMethod;
use super::lookups::MapRef;
use super::map_text::TableUse;
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

    /// Blocks mail for addresses that transport_maps sends elsewhere than the rest of their domain,
    /// since there are no routes for addresses. `None`: addresses at domains of other hosts.
    pub(super) fn block_addresses(&mut self, kind: AddressClass, domain: Option<&str>) {
        let own = self.own_domains();
        let is_meant = |key: &str| {
            let of = key.rsplit_once('@').map_or("", |(_, of)| of);
            domain.map_or_else(|| !own.iter().any(|it| it == of), |domain| of == domain)
        };
        let entries: Vec<_> = self.transport_map.addresses().filter(|(key, _)| is_meant(key)).cloned().collect();
        for (address, value) in entries {
            let of = address.rsplit_once('@').map(|(_, of)| of.to_owned()).unwrap_or_default();
            let rest = self.target(kind, Some(&of));
            let target = self.target_of_class(kind).overridden(&value);
            let target = if target.channel == "local" { self.local_target(target) } else { target };
            if target.channel == rest.channel && target.next_hop == rest.next_hop {
                continue;
            }
            self.block_address(&address, &target, domain.is_some());
        }
    }

    fn block_address(&mut self, address: &str, target: &TransportTarget, is_ours: bool) {
        let why =
            format!("transport_maps uses {} for it, and there are no routes for single addresses", target.channel);
        match self.blocked_reply(target) {
            Some(reply) => self.blocked_recipients.push((address.to_owned(), reply)),
            None if is_ours => {
                self.draft.add_behavior_change(format!("Mail to {address} gets 451: {why}."));
                self.defer_address(address);
            }
            None => {
                self.draft.add_behavior_change(format!(
                    "Mail to {address} gets 450 over SMTP, and is routed like its domain if local programs send it: \
                     {why}."
                ));
                self.blocked_recipients
                    .push((address.to_owned(), format!("450 4.3.5 {}", super::delivery_methods::reply_text(&why))));
            }
        }
    }

    /// The reply of `error:`.
    fn blocked_reply(&self, target: &TransportTarget) -> Option<String> {
        match self.reply_method(target) {
            Some(DeliveryMethod::Reply(reply)) if reply.starts_with('5') => Some(reply),
            _ => None,
        }
    }
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
