//! `sender_dependent_relayhost_maps` and `sender_dependent_default_transport_maps` as tables of routes by
//! sender. Both concern mail to domains of other hosts that transport_maps does not have.

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::lookups::MapRef;
use super::map_text::TableUse;
use super::transport_target::TransportTarget;
use super::transports::AddressClass;
use super::words::list;

/// The parameters, and whether their values name a transport, or a next hop alone.
const PARAMETERS: [(&str, bool); 2] =
    [("sender_dependent_default_transport_maps", true), ("sender_dependent_relayhost_maps", false)];

impl Conversion<'_> {
    /// Whether there are any.
    pub(super) fn has_sender_routes(&self) -> bool {
        PARAMETERS.iter().any(|(name, _)| self.values.explicit_value(name).is_some_and(|value| !value.is_empty()))
    }

    pub(super) fn sender_routes(&mut self) {
        for (parameter, has_transport) in PARAMETERS {
            let value = self.values.explicit_value(parameter).unwrap_or_default();
            self.draft.mapped(parameter);
            for map_ref in list(&value).iter().filter_map(|it| MapRef::parse(it)) {
                let table = match self.entries(&map_ref, false) {
                    Some(entries) => Some(self.sender_table_of(parameter, has_transport, &entries)),
                    None => {
                        self.unavailable_table(&map_ref, TableUse::SenderTransports, "its values are not translated")
                    }
                };
                if let Some(table) = table {
                    self.draft.add(TomlSection::new("[[route]]").key("sender_transports", quoted(&table), parameter));
                }
            }
        }
    }

    fn sender_table_of(
        &mut self,
        parameter: &'static str,
        has_transport: bool,
        entries: &[(String, String)],
    ) -> String {
        let base = self.target_of_class(AddressClass::Other);
        let mut text = String::new();
        for (sender, value) in entries {
            let is_sender = sender == "<>" || sender.contains('@') && !sender.contains(['"', ' ', '\t']);
            if !is_sender || sender.ends_with(':') {
                text.push_str(&format!("# not translated: {sender} {value}: this is no sender\n"));
                continue;
            }
            let target = match (value.eq_ignore_ascii_case("DUNNO"), has_transport) {
                (true, _) => base.clone(),
                (false, true) => self.with_relay_host(TransportTarget::read(value, parameter)),
                (false, false) => TransportTarget { next_hop: Some(value.clone()), from: parameter, ..base.clone() },
            };
            let method = self.delivery_method(&target, &format!("other domains from {sender}"));
            let route = self.route_value(&method, AddressClass::Other, parameter);
            text.push_str(&format!("{sender:<31} {route}\n"));
        }
        let what = format!("Senders and the transports of their mail to other hosts. From {parameter}.");
        self.route_table("sender-routes", text, &what)
    }

    /// A transport without a next hop uses the relay host.
    fn with_relay_host(&self, target: TransportTarget) -> TransportTarget {
        let relay_host = self.values.explicit_value("relayhost").filter(|hop| !hop.is_empty());
        let next_hop = target.next_hop.or(relay_host);
        TransportTarget { next_hop, ..target }
    }
}
