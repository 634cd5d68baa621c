//! The value of a transport parameter or of an entry in transport_maps: `transport:next_hop`.

/// A transport and its next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransportTarget {
    pub(super) channel: String,
    /// None: the recipient's domain.
    pub(super) next_hop: Option<String>,
    /// The parameter that sets it.
    pub(super) from: &'static str,
}

impl TransportTarget {
    /// Parses `transport:nexthop`.
    pub(super) fn read(text: &str, from: &'static str) -> TransportTarget {
        let (channel, hop) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let hop = Some(hop.trim().to_owned()).filter(|hop| !hop.is_empty());
        TransportTarget { channel: channel.to_owned(), next_hop: hop, from }
    }

    /// Applies an entry of transport_maps.
    pub(super) fn overridden(self, value: &str) -> TransportTarget {
        let entry = TransportTarget::read(value, "transport_maps");
        match (entry.channel.is_empty(), entry.next_hop.is_some()) {
            (true, false) => self,
            (true, true) => TransportTarget { channel: self.channel, ..entry },
            (false, _) => entry,
        }
    }
}
