//! Canonical maps, masquerading and blind copies, as `[rewrite]` and `[bcc]`.

use mail::Address;

use super::Conversion;
use super::config_draft::{quoted, quoted_list};
use super::inbound_services::common_relay_networks;
use super::map_text::{TableUse, target};
use super::words::list;
use crate::ip_net::quoted_networks;

/// Tables of addresses, their classes, and the keys for both.
const CANONICAL: [(&str, &str, &str, &str); 3] = [
    ("sender_canonical_maps", "sender_canonical_classes", "sender_canonical", "sender_canonical_classes"),
    ("recipient_canonical_maps", "recipient_canonical_classes", "recipient_canonical", "recipient_canonical_classes"),
    ("canonical_maps", "canonical_classes", "canonical", "canonical_classes"),
];
const SECTION: &str = "[rewrite]";

impl Conversion<'_> {
    pub(super) fn rewriting(&mut self) {
        for (maps, classes, key, classes_key) in CANONICAL {
            let Some(table) = self.address_table(maps) else { continue };
            self.draft.set(SECTION, key, quoted(&table), maps);
            self.classes(classes, classes_key);
        }
        self.masquerade();
        if self.draft.sections.iter().any(|section| section.header == SECTION) {
            self.header_clients();
        }
        self.copies();
    }

    /// The table of a parameter, if it is set.
    fn address_table(&mut self, parameter: &str) -> Option<String> {
        let value = self.values.explicit_value(parameter)?;
        match self.convert_maps(&value, TableUse::Canonical) {
            Some(table) => Some(table),
            None => {
                self.draft.not_needed(parameter, "the list is empty");
                None
            }
        }
    }

    fn classes(&mut self, parameter: &str, key: &str) {
        if let Some(value) = self.values.explicit_value(parameter) {
            self.draft.set(SECTION, key, quoted_list(list(&value).iter().map(String::as_str)), parameter);
        }
    }

    fn masquerade(&mut self) {
        let Some(value) = self.values.explicit_value("masquerade_domains").filter(|value| !value.is_empty()) else {
            return;
        };
        let is_domain = |name: &String| Address::new("postmaster", name.strip_prefix('!').unwrap_or(name)).is_ok();
        let (domains, others): (Vec<String>, Vec<String>) = list(&value).into_iter().partition(is_domain);
        for other in others {
            self.draft.add_unsupported(format!("masquerade_domains: {other}"), "only domains are supported");
        }
        self.draft.set(SECTION, "masquerade", quoted_list(domains.iter().map(String::as_str)), "masquerade_domains");
        self.classes("masquerade_classes", "masquerade_classes");
        if let Some(names) = self.values.explicit_value("masquerade_exceptions") {
            let names = list(&names);
            self.draft.set(
                SECTION,
                "masquerade_exceptions",
                quoted_list(names.iter().map(String::as_str)),
                "masquerade_exceptions",
            );
        }
    }

    /// In whose mail the header is rewritten.
    fn header_clients(&mut self) {
        let parameter = "local_header_rewrite_clients";
        let Some(value) = self.values.explicit_value(parameter) else { return };
        self.draft.mapped(parameter);
        let mut clients: Vec<String> = vec!["127.0.0.0/8".into(), "::1/128".into()];
        for element in list(&value) {
            match element.as_str() {
                "permit_inet_interfaces" => {}
                "permit_mynetworks" => clients.clear(),
                "permit_sasl_authenticated" => self.draft.set(SECTION, "header_users", "true", parameter),
                "static:all" => clients = vec!["0.0.0.0/0".into(), "::/0".into()],
                other => self.draft.add_unsupported(
                    format!("{parameter}: {other}"),
                    "networks are named in `header_clients` of [rewrite]",
                ),
            }
        }
        let networks = match clients.is_empty() {
            true => quoted_networks(&common_relay_networks(&self.inbound_services)),
            false => quoted_list(clients.iter().map(String::as_str)),
        };
        self.draft.set(SECTION, "header_clients", networks, parameter);
    }

    fn copies(&mut self) {
        if let Some(given) = self.values.explicit_value("always_bcc").filter(|given| !given.is_empty()) {
            match target(&given, &self.site) {
                Ok(address) => self.draft.set("[bcc]", "always", quoted(&address), "always_bcc"),
                Err(why) => {
                    self.draft.add_behavior_change(format!("There are no copies of all mail (always_bcc = {given})."));
                    self.draft.unsupported("always_bcc", why);
                }
            }
        }
        for (maps, key) in [("sender_bcc_maps", "sender_table"), ("recipient_bcc_maps", "recipient_table")] {
            if let Some(table) = self.address_table(maps) {
                self.draft.set("[bcc]", key, quoted(&table), maps);
            }
        }
    }
}
