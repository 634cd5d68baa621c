//! Networks as numbers, with the operations that lists with exclusions need: our lists have none, so
//! excluded networks are subtracted from the others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::config_draft::quoted_list;
use mail::Network;

/// A network as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpNet {
    bits: u128,
    prefix: u32,
    /// The number of bits in an address of this family.
    width: u32,
}

impl IpNet {
    /// The loopback networks.
    pub(crate) fn loopback() -> Vec<IpNet> {
        ["127.0.0.0/8", "::1/128"].iter().filter_map(|text| IpNet::parse(text)).collect()
    }

    /// Parses CIDR notation, also with brackets around the address.
    pub(crate) fn parse(text: &str) -> Option<IpNet> {
        let plain = text.replace(['[', ']'], "");
        let network = plain.parse::<Network>().ok()?.to_string();
        let (base, prefix) = network.split_once('/')?;
        let (bits, width) = match base.parse().ok()? {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        Some(IpNet { bits, prefix: prefix.parse().ok()?, width })
    }

    /// Whether it is an IPv4 network.
    pub(crate) fn is_v4(&self) -> bool {
        self.width == 32
    }

    /// Whether it contains the other network.
    pub(crate) fn covers(&self, other: &IpNet) -> bool {
        let beyond = self.width - self.prefix;
        let head = |net: &IpNet| net.bits.checked_shr(beyond).unwrap_or(0);
        self.width == other.width && self.prefix <= other.prefix && head(self) == head(other)
    }

    /// The rest of it without another network, largest parts first.
    pub(crate) fn subtract(self, hole: &IpNet) -> Vec<IpNet> {
        if hole.covers(&self) {
            return Vec::new();
        }
        if !self.covers(hole) {
            return vec![self];
        }
        let sibling = |prefix: u32| {
            let beyond = self.width - prefix;
            let bits = (hole.bits ^ (1_u128 << beyond)) >> beyond << beyond;
            IpNet { bits, prefix, width: self.width }
        };
        (self.prefix + 1..=hole.prefix).map(sibling).collect()
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = match self.width {
            32 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(self.bits).unwrap_or(u32::MAX))),
            _ => IpAddr::V6(Ipv6Addr::from_bits(self.bits)),
        };
        write!(f, "{base}/{}", self.prefix)
    }
}

/// Networks in TOML.
pub(crate) fn quoted_networks(networks: &[IpNet]) -> String {
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    quoted_list(texts.iter().map(String::as_str))
}

/// The intersection.
pub(crate) fn intersection(one: &[IpNet], other: &[IpNet]) -> Vec<IpNet> {
    let both = |a: &IpNet, b: &IpNet| if a.covers(b) { Some(*b) } else { b.covers(a).then_some(*a) };
    let mut all: Vec<IpNet> = Vec::new();
    for net in one.iter().flat_map(|a| other.iter().filter_map(move |b| both(a, b))) {
        if !all.iter().any(|known| known.covers(&net)) {
            all.push(net);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| IpNet::parse(text).unwrap()).collect()
    }

    fn texts(nets: &[IpNet]) -> Vec<String> {
        nets.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_excepted_is_cut_out() {
        let ten = IpNet::parse("10.0.0.0/8").unwrap();
        assert_eq!(texts(&ten.subtract(&IpNet::parse("10.128.0.0/10").unwrap())), ["10.0.0.0/9", "10.192.0.0/10"]);
        assert_eq!(texts(&ten.subtract(&IpNet::parse("11.0.0.0/8").unwrap())), ["10.0.0.0/8"]);
        assert_eq!(ten.subtract(&IpNet::parse("0.0.0.0/0").unwrap()), []);
        assert_eq!(IpNet::parse("::/0").unwrap().subtract(&IpNet::parse("[::1]").unwrap()).len(), 128);
    }

    #[test]
    fn what_two_lists_have_in_common_is_in_both() {
        let common = intersection(&nets(&["10.0.0.0/8", "::1", "192.0.2.0/24"]), &nets(&["10.1.0.0/16", "::/0"]));
        assert_eq!(texts(&common), ["10.1.0.0/16", "::1/128"]);
    }

    proptest! {
        #[test]
        fn an_address_is_in_what_remains_if_it_is_not_in_the_hole(
            base: u32, prefix in 0..=32_u32, hole: u32, narrow in 0..=32_u32, address: u32, near: bool,
        ) {
            let net = |base: u32, prefix: u32| {
                let beyond = 32 - prefix;
                IpNet { bits: (u128::from(base) >> beyond) << beyond, prefix, width: 32 }
            };
            let (net_of_all, hole) = (net(base, prefix), net(if near { base ^ (hole >> 20) } else { hole }, narrow));
            let address = net(if near { base ^ (address >> 20) } else { address }, 32);
            let remains = net_of_all.subtract(&hole).iter().filter(|net| net.covers(&address)).count();
            prop_assert_eq!(remains, usize::from(net_of_all.covers(&address) && !hole.covers(&address)));
        }
    }
}
