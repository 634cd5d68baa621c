//! Keys of tables that clients fill: digests, so that a key has the same size whatever a client
//! sends, and a file with them names nobody.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// The first octets of a SHA-256 digest; enough that nobody finds two texts with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyDigest(pub(crate) [u8; 16]);

impl KeyDigest {
    /// The digest of these parts, none of which contains a NUL.
    pub(crate) fn of(parts: &[&str]) -> KeyDigest {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hash.finalize()[..16]);
        KeyDigest(key)
    }
}

/// The lengths of the prefixes by which clients are one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPrefixes {
    /// From 0 to 32.
    pub v4: u8,
    /// From 0 to 128.
    pub v6: u8,
}

impl ClientPrefixes {
    /// The first address of the client's network.
    pub(crate) fn network(self, client: IpAddr) -> IpAddr {
        match client.to_canonical() {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.v4.min(32))).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.v6.min(128))).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_not_run_together() {
        assert_ne!(KeyDigest::of(&["ab", "c"]), KeyDigest::of(&["a", "bc"]));
        assert_eq!(KeyDigest::of(&["ab", "c"]), KeyDigest::of(&["ab", "c"]));
    }

    #[test]
    fn clients_of_a_network_are_one() {
        let network = |v4, v6, client: &str| ClientPrefixes { v4, v6 }.network(client.parse().unwrap()).to_string();
        assert_eq!(network(24, 64, "192.0.2.77"), "192.0.2.0");
        assert_eq!(network(32, 64, "::ffff:192.0.2.77"), "192.0.2.77");
        assert_eq!(network(0, 0, "192.0.2.77"), "0.0.0.0");
        assert_eq!(network(24, 64, "2001:db8:1:2:3::4"), "2001:db8:1:2::");
        assert_eq!(network(24, 0, "2001:db8::4"), "::");
        assert_eq!(network(24, 128, "2001:db8::4"), "2001:db8::4");
    }
}
