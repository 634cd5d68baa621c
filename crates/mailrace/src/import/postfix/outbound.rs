//! Mail that leaves: the relay host, routes, and how the SMTP client speaks.

use super::Conversion;
use super::draft::{Block, quoted, quoted_list};
use super::lookups::Named;
use super::words::list;
use crate::config::Pattern;

/// Entries of transport_maps that become routes; more of them are better a table.
const ROUTES_MAX: usize = 1000;

impl Conversion<'_> {
    pub(super) fn outbound(&mut self) {
        if let Some(hop) = self.values.given("relayhost") {
            self.draft.mapped("relayhost");
            match self.hop(&hop, "smtp") {
                Ok(way) => {
                    way.next_hop
                        .iter()
                        .for_each(|hop| self.draft.set("[transport.smtp]", "next_hop", quoted(hop), "relayhost"));
                    way.port
                        .iter()
                        .for_each(|port| self.draft.set("[transport.smtp]", "port", port.to_string(), "relayhost"));
                }
                Err(why) => self.draft.lost("relayhost", why),
            }
        }
        self.routes();
        self.sources();
        self.client_tls();
    }

    /// The text of transport_maps, if a table of text has one for this domain.
    pub(super) fn transport_entry(&mut self, domain: &str) -> Option<String> {
        self.transport_entries().into_iter().find(|(key, _)| key == domain).map(|(_, value)| value)
    }

    fn transport_entries(&mut self) -> Vec<(String, String)> {
        let value = self.values.value("transport_maps");
        let named: Vec<Named> = list(&value).iter().filter_map(|it| Named::read(it)).collect();
        named.iter().filter_map(|named| self.entries(named, false)).flatten().collect()
    }

    fn routes(&mut self) {
        let value = self.values.value("transport_maps");
        if value.is_empty() {
            return;
        }
        self.draft.mapped("transport_maps");
        for named in list(&value).iter().filter_map(|it| Named::read(it)) {
            if self.entries(&named, false).is_none() {
                let what = format!("transport_maps: {}:{}", named.kind, named.name);
                self.draft
                    .look_at(format!("{what} is not taken over: write [[route]] sections, or a table for `next_hops`"));
                self.draft.loss(what, "values are next hops here, without a transport before them");
            }
        }
        let mut entries = self.transport_entries();
        if entries.len() > ROUTES_MAX {
            self.draft.look_at(format!(
                "transport_maps has {} entries, of which {ROUTES_MAX} became routes: a table for `next_hops` is better",
                entries.len()
            ));
            entries.truncate(ROUTES_MAX);
        }
        // The first route that matches counts here; with Postfix it is the closest one.
        entries.sort_by_key(|(key, _)| match key.as_str() {
            "*" => (2, 0),
            key if key.starts_with('.') => (1, usize::MAX - key.matches('.').count()),
            _ => (0, 0),
        });
        let own: Vec<String> = self.own_domains();
        let mut seen = Vec::new();
        for (key, value) in entries {
            let pattern = match key.strip_prefix('.') {
                Some(domain) => format!("*.{domain}"),
                None => key.clone(),
            };
            if own.contains(&pattern) || seen.contains(&pattern) {
                continue;
            }
            self.route(&pattern, &value);
            seen.push(pattern);
        }
    }

    fn route(&mut self, pattern: &str, value: &str) {
        let what = format!("transport_maps: {pattern} {value}");
        if pattern.contains('@') || pattern.parse::<Pattern>().is_err() {
            self.draft.loss(what, "routes are for domains, not for addresses; `hosts` of a domain is by mailbox");
            return;
        }
        let way = match self.way(value) {
            Ok(way) => way,
            Err(why) => return self.draft.loss(what, why),
        };
        let block = Block::new("[[route]]").key("domain", quoted(pattern), "transport_maps");
        let block = match (&way.next_hop, way.kind, way.port) {
            (Some(hop), "smtp", None) => block.key("next_hop", quoted(hop), ""),
            (None, "lmtp", _) => return self.draft.loss(what, "to LMTP no MX leads; name a next hop"),
            (None, ..) => block,
            _ => {
                let name = self.transport("onward", &way, "transport_maps");
                block.key("transport", quoted(&name), "")
            }
        };
        self.draft.add(block);
    }

    /// Names of our domains: mail for these is not routed.
    fn own_domains(&self) -> Vec<String> {
        let domains = self.draft.blocks.iter().filter(|block| block.header == "[[domain]]");
        let names = domains.flat_map(|block| &block.keys).filter(|(key, ..)| key == "name");
        names.map(|(_, value, _)| value.trim_matches('"').to_owned()).collect()
    }

    fn sources(&mut self) {
        let mut sources = Vec::new();
        for (name, is_v4) in [("smtp_bind_address", true), ("smtp_bind_address6", false)] {
            let Some(value) = self.values.given(name).filter(|value| !value.is_empty()) else { continue };
            match value.parse::<std::net::IpAddr>() {
                Ok(ip) if ip.is_ipv4() == is_v4 => {
                    sources.push(ip.to_string());
                    self.draft.mapped(name);
                }
                _ => self.draft.lost(name, "expected an address of this machine"),
            }
        }
        if !sources.is_empty() {
            let value = quoted_list(sources.iter().map(String::as_str));
            self.draft.section("[transport.smtp]").set("source", value, "smtp_bind_address");
        }
    }

    fn client_tls(&mut self) {
        let name = "smtp_tls_security_level";
        let Some(level) = self.values.given(name) else { return };
        let (tls, doubt) = match level.as_str() {
            "" | "none" => ("never", None),
            "may" => ("offered", None),
            "encrypt" => ("required", None),
            "dane" => ("offered", Some("names are not checked by DANE; TLS is used where it is offered")),
            _ => ("required", Some("that a certificate is the next hop's is not checked; TLS is demanded")),
        };
        self.draft.set("[transport.smtp]", "tls", quoted(tls), name);
        if let Some(doubt) = doubt {
            self.draft.loss(format!("{name} = {level}"), doubt);
            self.draft.look_at(format!("{name} = {level}: {doubt}"));
        }
    }
}
