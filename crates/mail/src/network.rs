//! Networks in CIDR notation, and sets of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network `base/prefix`; None if the prefix is too long, or if `base` has bits set beyond
    /// it.
    pub fn new(base: IpAddr, prefix: u8) -> Option<Self> {
        let (bits, width) = address_bits(base);
        let beyond = width.checked_sub(u32::from(prefix))?;
        (bits & !prefix_mask(beyond) == 0).then_some(Network { base, prefix })
    }

    /// Whether it contains `address`. An IPv4-mapped IPv6 address (`::ffff:a.b.c.d`) counts as
    /// IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (ours, width) = address_bits(self.base);
        let (theirs, their_width) = address_bits(address.to_canonical());
        let mask = prefix_mask(width - u32::from(self.prefix));
        width == their_width && ours & mask == theirs & mask
    }

    /// The first and last address of an IPv4 network.
    pub fn range_v4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let IpAddr::V4(first) = self.base else { return None };
        let beyond = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        Some((first, Ipv4Addr::from_bits(first.to_bits() | beyond)))
    }

    /// Whether it is too wide for anyone to vouch for all its hosts: wider than the largest private
    /// networks, 10.0.0.0/8 (RFC 1918) and a site's IPv6 /48 (RFC 4193 section 3.1).
    pub fn is_wide(&self) -> bool {
        self.prefix < if self.base.is_ipv4() { 8 } else { 48 }
    }

    /// Whether it contains all addresses of the family of `other`.
    pub fn contains_family_of(&self, other: &Network) -> bool {
        self.matches_all() && self.base.is_ipv4() == other.base.is_ipv4()
    }

    /// Whether it contains all addresses of its family.
    pub fn matches_all(&self) -> bool {
        self.prefix == 0
    }
}

/// The address as a number, and its length in bits.
fn address_bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

/// A mask with the lowest `beyond` bits clear.
fn prefix_mask(beyond: u32) -> u128 {
    u128::MAX.checked_shl(beyond).unwrap_or(0)
}

/// The text is not a valid [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a network")]
pub struct InvalidNetwork;

impl FromStr for Network {
    type Err = InvalidNetwork;

    /// `10.0.0.0/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (base, prefix) = match text.split_once('/') {
            Some((base, prefix)) => (base, Some(prefix)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().map_err(|_| InvalidNetwork)?;
        let prefix = match prefix {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().map_err(|_| InvalidNetwork)?,
            Some(_) => return Err(InvalidNetwork),
            None if base.is_ipv4() => 32,
            None => 128,
        };
        Network::new(base, prefix).ok_or(InvalidNetwork)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// A set of networks; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks(Arc<[Network]>);

impl Networks {
    /// The loopback networks, 127.0.0.0/8 and ::1.
    pub fn loopback() -> Self {
        let v4 = Network { base: Ipv4Addr::new(127, 0, 0, 0).into(), prefix: 8 };
        Networks([v4, Network { base: Ipv6Addr::LOCALHOST.into(), prefix: 128 }].into())
    }

    /// Whether one of them contains `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Default for Networks {
    fn default() -> Self {
        Networks(Arc::new([]))
    }
}

impl From<Vec<Network>> for Networks {
    fn from(networks: Vec<Network>) -> Self {
        Networks(networks.into())
    }
}

impl Deref for Networks {
    type Target = [Network];

    fn deref(&self) -> &[Network] {
        &self.0
    }
}

impl FromStr for Networks {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        text.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>().map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_what_shares_its_prefix() {
        for (network, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db8:ffff::", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("2001:db8::/33", "2001:db8:7fff:ffff:ffff:ffff:ffff:ffff", true),
            ("2001:db8::/33", "2001:db8:8000::", false),
            ("2001:db8::/127", "2001:db8::1", true),
            ("2001:db8::/127", "2001:db8::2", false),
            ("2001:db8::1", "2001:db8::", false),
            ("8000::/1", "7fff::", false),
            ("32.1.13.0/24", "2001:d00::", false),
            ("::/96", "0.0.0.1", false),
            ("::1/128", "::1", true),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), inside, "{network} {address}");
        }
    }

    #[test]
    fn a_range_goes_from_the_first_address_to_the_last() {
        for (network, range) in [
            ("10.0.0.0/8", Some(("10.0.0.0", "10.255.255.255"))),
            ("192.0.2.4/30", Some(("192.0.2.4", "192.0.2.7"))),
            ("192.0.2.2", Some(("192.0.2.2", "192.0.2.2"))),
            ("0.0.0.0/0", Some(("0.0.0.0", "255.255.255.255"))),
            ("128.0.0.0/1", Some(("128.0.0.0", "255.255.255.255"))),
            ("::/0", None),
            ("::1", None),
        ] {
            let range = range.map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()));
            let network: Network = network.parse().unwrap();
            assert_eq!(network.range_v4(), range, "{network}");
            for end in range.into_iter().flat_map(|(first, last)| [first, last]) {
                assert!(network.contains(end.into()), "{network} {end}");
            }
        }
    }

    #[test]
    fn only_a_network_without_a_prefix_is_everyone() {
        for (network, everyone) in [("0.0.0.0/0", true), ("::/0", true), ("0.0.0.0/1", false), ("10.0.0.0/8", false)] {
            assert_eq!(network.parse::<Network>().unwrap().matches_all(), everyone, "{network}");
        }
    }

    #[test]
    fn a_network_is_wide_where_no_site_has_one_like_it() {
        for (network, wide) in [
            ("0.0.0.0/1", true),
            ("10.0.0.0/8", false),
            ("192.0.2.1", false),
            ("::/0", true),
            ("2001:db8::/32", true),
            ("2001:db8:1::/48", false),
        ] {
            assert_eq!(network.parse::<Network>().unwrap().is_wide(), wide, "{network}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in
            ["", "10/8", "10.0.0.0/33", "10.0.0.1/8", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "all"]
        {
            assert_eq!(text.parse::<Network>(), Err(InvalidNetwork), "{text}");
        }
    }
}
