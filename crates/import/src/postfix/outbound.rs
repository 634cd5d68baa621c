//! Converts outbound mail: the relay host, routes, and settings of the SMTP client.

use super::Conversion;
use super::config_draft::{TomlSection, quoted, quoted_list};
use super::delivery_methods::DeliveryMethod;
use super::transports::AddressClass;
use config::DomainPattern;

/// Entries of transport_maps that become routes; more belong in a table.
const ROUTES_MAX: usize = 1000;

impl Conversion<'_> {
    pub(super) fn outbound(&mut self) {
        self.default_delivery();
        self.address_routes();
        self.sender_routes();
        self.routes();
        self.content_filter();
        self.sources();
        self.client_tls();
        self.eight_bit();
    }

    /// default_transport and relayhost.
    fn default_delivery(&mut self) {
        ["default_transport", "relayhost"].iter().for_each(|name| self.draft.mapped(name));
        let target = self.target_of_class(AddressClass::Other);
        let who = "other domains";
        match self.delivery_method(&target, who) {
            DeliveryMethod::Network { kind: "smtp", next_hop, port, settings } => {
                let set = |(key, value): (&str, String)| self.draft.set("[transport.smtp]", key, value, target.from);
                let hop = next_hop.map(|hop| ("next_hop", quoted(&hop)));
                hop.into_iter().chain(port.map(|port| ("port", port.to_string()))).for_each(set);
                let section = self.draft.section("[transport.smtp]");
                settings.into_iter().for_each(|(key, value, from)| section.set(&key, value, &from));
            }
            DeliveryMethod::Reply(reply) => self.draft.set("[transport.smtp]", "next_hop", quoted(&reply), target.from),
            DeliveryMethod::Network { .. }
                if self.transport_map.patterns().iter().any(|(pattern, _)| pattern == "*") => {}
            way => {
                let method = match way {
                    DeliveryMethod::Maildirs => {
                        self.deferring_method(who, &format!("{} delivers it locally", target.from))
                    }
                    way => way,
                };
                let name = self.transport("onward", &method, target.from);
                let block = TomlSection::new("[[route]]").key("domain", quoted("*"), target.from);
                self.draft.add(block.key("transport", quoted(&name), ""));
            }
        }
    }

    fn routes(&mut self) {
        let own = self.own_domains();
        let mut patterns = self.transport_map.patterns();
        patterns.retain(|(pattern, _)| !own.contains(pattern) && !self.has_sender_routes());
        if patterns.len() > ROUTES_MAX {
            self.draft.add_behavior_change(format!(
                "Mail to {} domains in transport_maps is sent like mail to any other domain: only {ROUTES_MAX} of \
                 its entries became routes; put the others into a table for `next_hops`.",
                patterns.len() - ROUTES_MAX
            ));
            patterns.truncate(ROUTES_MAX);
        }
        for (pattern, value) in patterns {
            self.route(&pattern, &value);
        }
    }

    fn route(&mut self, pattern: &str, value: &str) {
        if pattern.parse::<DomainPattern>().is_err() {
            let what = format!("transport_maps: {pattern} {value}");
            return self.draft.add_unsupported(what, "the key is not a domain, so it matches no mail");
        }
        let base = self.target_of_class(AddressClass::Other);
        let target = base.clone().overridden(value);
        let mut block = TomlSection::new("[[route]]").key("domain", quoted(pattern), "transport_maps");
        if (&target.channel, &target.next_hop) == (&base.channel, &base.next_hop) {
            // As without the entry, whatever a wider entry says.
            return self.draft.add(block);
        }
        let who = if pattern == "*" { "all other domains" } else { pattern };
        let method = match self.delivery_method(&target, who) {
            DeliveryMethod::Maildirs => {
                self.deferring_method(who, "transport_maps delivers it locally, but it is not a local domain")
            }
            way => way,
        };
        match &method {
            DeliveryMethod::Reply(hop) => block.set("next_hop", quoted(hop), ""),
            DeliveryMethod::Network { kind: "smtp", next_hop: Some(hop), port: None, settings }
                if settings.is_empty() && !self.default_logs_in() =>
            {
                block.set("next_hop", quoted(hop), "");
            }
            DeliveryMethod::Network { kind: "smtp", next_hop: None, port: None, settings }
                if base.next_hop.is_none() && settings.is_empty() => {}
            _ => {
                let like =
                    if matches!(method, DeliveryMethod::Network { next_hop: None, .. }) { "direct" } else { "onward" };
                let name = self.transport(like, &method, "transport_maps");
                block.set("transport", quoted(&name), "");
            }
        }
        self.draft.add(block);
    }

    /// Whether [transport.smtp] has a login, which must not go to other next hops.
    pub(super) fn default_logs_in(&mut self) -> bool {
        self.draft.section("[transport.smtp]").keys.iter().any(|(key, ..)| key == "auth")
    }

    /// Settings of Postfix's SMTP client apply to all its transports; here each transport has its
    /// own.
    pub(super) fn share_client_settings(&mut self) {
        let shared = self.draft.section("[transport.smtp]").keys.clone();
        let is_shared = |key: &str| !["next_hop", "port", "type", "auth", "generic"].contains(&key);
        for block in self.draft.sections.iter_mut().filter(|block| block.header.starts_with("[transport.")) {
            let is_smtp = block.keys.iter().any(|(key, value, _)| key == "type" && value == "\"smtp\"");
            if is_smtp && block.header != "[transport.smtp]" {
                let missing: Vec<_> = shared
                    .iter()
                    .filter(|(key, ..)| is_shared(key) && !block.keys.iter().any(|(own, ..)| own == key))
                    .cloned()
                    .collect();
                block.keys.extend(missing);
            }
        }
        self.draft.sections.retain(|block| block.header != "[transport.smtp]" || !block.keys.is_empty());
    }

    /// The local domains, whose mail is not routed.
    pub(super) fn own_domains(&self) -> Vec<String> {
        let domains = self.draft.sections.iter().filter(|block| block.header == "[[domain]]");
        let names = domains.flat_map(|block| &block.keys).filter(|(key, ..)| key == "name");
        names.map(|(_, value, _)| value.trim_matches('"').to_owned()).collect()
    }

    fn sources(&mut self) {
        let mut sources = Vec::new();
        for (name, is_v4) in [("smtp_bind_address", true), ("smtp_bind_address6", false)] {
            let Some(value) = self.values.explicit_value(name).filter(|value| !value.is_empty()) else { continue };
            match value.parse::<std::net::IpAddr>() {
                Ok(ip) if ip.is_ipv4() == is_v4 => {
                    sources.push(ip.to_string());
                    self.draft.mapped(name);
                }
                _ => {
                    self.draft.unsupported(name, "this is not an address of that family; the system chooses one");
                    self.draft.add_behavior_change(format!(
                        "Mail to other hosts is sent from an address that the system chooses, not from {value} \
                         ({name})."
                    ));
                }
            }
        }
        if !sources.is_empty() {
            let value = quoted_list(sources.iter().map(String::as_str));
            self.draft.section("[transport.smtp]").set("source", value, "smtp_bind_address");
        }
    }

    fn eight_bit(&mut self) {
        let name = "disable_mime_output_conversion";
        if self.values.explicit_value(name).is_some_and(|value| value.eq_ignore_ascii_case("yes")) {
            self.draft.set("[transport.smtp]", "eight_bit", quoted("send"), name);
        }
        self.draft.mapped(name);
    }

    /// Whether Postfix believes the DNSSEC validation of its name servers; then this server does, too.
    fn uses_dnssec(&mut self) -> bool {
        let name = "smtp_dns_support_level";
        let is_used = self.values.explicit_value(name).is_some_and(|level| level.eq_ignore_ascii_case("dnssec"));
        if is_used {
            self.draft.set("[dns]", "validating", "true", name);
        }
        is_used
    }

    fn client_tls(&mut self) {
        let name = "smtp_tls_security_level";
        let is_yes = |name: &str| self.values.value(name).eq_ignore_ascii_case("yes");
        let older = match (is_yes("smtp_enforce_tls"), is_yes("smtp_use_tls")) {
            (true, _) => Some("encrypt".to_owned()),
            (false, is_used) => is_used.then(|| "may".to_owned()),
        };
        ["smtp_enforce_tls", "smtp_use_tls"].iter().for_each(|name| self.draft.mapped(name));
        let given = self.values.explicit_value(name);
        let none = given.as_ref().map(|_| "none".to_owned());
        let Some(level) = given.filter(|level| !level.is_empty()).or(older).or(none) else { return };
        let (tls, doubt) = match level.as_str() {
            "none" => ("never", None),
            "may" => ("offered", None),
            "encrypt" => ("required", None),
            "verify" | "secure" => ("verified", None),
            "dane" if self.uses_dnssec() => ("dane", None),
            // Postfix looks up no TLSA records without DNSSEC.
            "dane" => ("offered", None),
            "dane-only" => (
                "verified",
                Some(
                    "waits unless the host has a certificate of a trusted authority: no transport demands TLSA records",
                ),
            ),
            _ => ("required", Some("waits if TLS is not offered, and the next hop's certificate is not checked")),
        };
        self.draft.set("[transport.smtp]", "tls", quoted(tls), name);
        if level == "verify" {
            // The names of MX hosts count, as the DNS has them.
            self.draft.set("[transport.smtp]", "tls_names", quoted_list(["*"]), name);
        }
        let authorities = "smtp_tls_CAfile";
        if let Some(file) = self.values.explicit_value(authorities).filter(|file| tls == "verified" && !file.is_empty())
        {
            self.draft.set("[transport.smtp]", "tls_ca_file", quoted(&file), authorities);
            self.draft.mapped(authorities);
        }
        if let Some(doubt) = doubt {
            self.draft.add_behavior_change(format!("Mail to other hosts {doubt} ({name} = {level})."));
        }
    }
}
