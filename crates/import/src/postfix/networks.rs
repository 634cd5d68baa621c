//! Networks in Postfix's lists, where the first match wins and a `!` excludes. Our lists have no
//! exclusions, so excluded networks are subtracted from the others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::Conversion;
use super::config_draft::{quoted, quoted_list};
use super::lookups::MapRef;
use super::words::list;
use mail::Network;

/// A network as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpNet {
    bits: u128,
    prefix: u32,
    /// The number of bits in an address of this family.
    width: u32,
}

impl IpNet {
    /// The loopback networks.
    pub(super) fn loopback() -> Vec<IpNet> {
        ["127.0.0.0/8", "::1/128"].iter().filter_map(|text| IpNet::parse(text)).collect()
    }

    /// Parses CIDR notation, also with brackets around the address.
    pub(super) fn parse(text: &str) -> Option<IpNet> {
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
    pub(super) fn is_v4(&self) -> bool {
        self.width == 32
    }

    /// Whether it contains the other network.
    pub(super) fn covers(&self, other: &IpNet) -> bool {
        let beyond = self.width - self.prefix;
        let head = |net: &IpNet| net.bits.checked_shr(beyond).unwrap_or(0);
        self.width == other.width && self.prefix <= other.prefix && head(self) == head(other)
    }

    /// The rest of it without another network, largest parts first.
    pub(super) fn subtract(self, hole: &IpNet) -> Vec<IpNet> {
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
pub(super) fn quoted_networks(networks: &[IpNet]) -> String {
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    quoted_list(texts.iter().map(String::as_str))
}

/// The intersection.
pub(super) fn intersection(one: &[IpNet], other: &[IpNet]) -> Vec<IpNet> {
    let both = |a: &IpNet, b: &IpNet| if a.covers(b) { Some(*b) } else { b.covers(a).then_some(*a) };
    let mut all: Vec<IpNet> = Vec::new();
    for net in one.iter().flat_map(|a| other.iter().filter_map(move |b| both(a, b))) {
        if !all.iter().any(|known| known.covers(&net)) {
            all.push(net);
        }
    }
    all
}

/// A list of networks under construction.
#[derive(Debug, Default)]
struct NetworkListBuilder {
    networks: Vec<IpNet>,
    excluded: Vec<IpNet>,
    /// An excluded element is unknown, so later elements may be part of it.
    is_incomplete: bool,
}

impl NetworkListBuilder {
    fn add(&mut self, net: IpNet, negated: bool) -> bool {
        if negated {
            self.excluded.push(net);
            return true;
        }
        if self.is_incomplete {
            return false;
        }
        let mut rest = vec![net];
        for hole in &self.excluded {
            rest = rest.into_iter().flat_map(|net| net.subtract(hole)).collect();
        }
        for net in rest {
            if !self.networks.contains(&net) {
                self.networks.push(net);
            }
        }
        true
    }
}

impl Conversion<'_> {
    /// The networks in a parameter's value. Unreadable elements are left out and reported, so no
    /// other clients are included.
    pub(super) fn network_list(&mut self, parameter: &str, value: &str) -> Vec<IpNet> {
        let mut listed = NetworkListBuilder::default();
        self.collect(parameter, value, false, 0, &mut listed);
        listed.networks
    }

    fn collect(&mut self, parameter: &str, value: &str, negated: bool, depth: usize, listed: &mut NetworkListBuilder) {
        for element in list(value) {
            let bare = element.trim_start_matches('!');
            let negated = negated ^ ((element.len() - bare.len()) % 2 == 1);
            let net = IpNet::parse(bare);
            let is_added = net.is_some_and(|net| listed.add(net, negated));
            // IPv4-mapped addresses are treated as IPv4.
            if is_added || net.is_none() && bare.replace('[', "").starts_with("::ffff:") {
                continue;
            }
            if let Some(inside) = (net.is_none() && depth == 0).then(|| self.networks_of_map(bare)).flatten() {
                self.collect(parameter, &inside, negated, 1, listed);
                continue;
            }
            listed.is_incomplete |= negated;
            let why = match (net.is_some(), negated) {
                (true, _) => "an exclusion before it is not a network",
                (false, true) => "it is not a network; the elements after it are left out, since it may exclude them",
                (false, false) => "it is not a network",
            };
            self.draft.add_unsupported(format!("{parameter}: {element}"), why);
            self.report_unread_clients(parameter, &element, why);
        }
    }

    fn report_unread_clients(&mut self, parameter: &str, element: &str, why: &str) {
        if parameter != "mynetworks" {
            return self.draft.add_behavior_change(format!(
                "Mail from \"{element}\" in {parameter} is handled like mail from all other clients: {why}."
            ));
        }
        self.networks_incomplete = true;
        self.defer_relaying();
        self.draft.add_behavior_change(format!(
            "Mail to other domains from \"{element}\" in mynetworks gets 454: {why}. Add its addresses to `networks` \
             of [relay]."
        ));
    }

    /// Defers clients that may not relay, since Postfix might have let them.
    pub(super) fn defer_relaying(&mut self) {
        self.draft.section("[relay]").set("others", quoted("defer"), "");
    }

    /// The networks in a file, or the keys of a table, as a list.
    fn networks_of_map(&mut self, element: &str) -> Option<String> {
        if element.starts_with('/') {
            return self.read_file(Path::new(element)).map(|text| super::main_cf::logical_lines(&text).join(" "));
        }
        let entries = MapRef::parse(element).and_then(|map_ref| self.entries(&map_ref, false))?;
        let (networks, keys): (Vec<String>, Vec<String>) =
            entries.into_iter().map(|(key, _)| key).partition(|key| IpNet::parse(key).is_some() && !is_address(key));
        if let Some(first) = networks.first() {
            self.draft.add_review_note(format!(
                "{element} has {} keys that are networks, such as {first}. They are left out: Postfix only looks up \
                 the client's address, so they match nothing there either",
                networks.len()
            ));
            self.draft.add_unsupported(
                format!("{element}: {}", networks.join(", ")),
                "in a table, Postfix only looks up the client's address, not networks",
            );
        }
        Some(keys.join(" "))
    }
}

/// Whether it is an address in the form in which Postfix looks it up.
fn is_address(key: &str) -> bool {
    key.parse::<IpAddr>().is_ok_and(|address| address.to_string().eq_ignore_ascii_case(key))
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
