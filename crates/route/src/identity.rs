//! The names of next hops: one for each set of hosts that a transport can lead to.
//!
//! A name is the transport and the sorted hosts. Where that is too long its end gives way to a digest of the whole.
//! The digest is keyed anew in every process: whoever controls the names in his zone must not be able to make them
//! collide with somebody else's, since what has one name shares its limits and its connections.

use std::hash::{BuildHasher, RandomState};

/// Gives names; each of its kind gives long sets other names.
#[derive(Default)]
pub(crate) struct Names {
    keys: [RandomState; 2],
}

impl Names {
    /// The name of these hosts, each with its port, by a transport.
    pub(crate) fn next_hop(&self, transport: &str, mut hosts: Vec<String>) -> Box<str> {
        hosts.sort_unstable();
        hosts.dedup();
        let mut name = format!("{transport}:{}", hosts.join(","));
        if name.len() > NEXT_HOP_OCTETS_MAX {
            let digest = self.digest(&name);
            name.truncate(name.floor_char_boundary(NEXT_HOP_OCTETS_MAX - digest.len()));
            name.push_str(&digest);
        }
        name.into()
    }

    fn digest(&self, name: &str) -> String {
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one(name));
        format!("...{high:016x}{low:016x}")
    }
}

/// The longest name of a next hop: it is kept for every destination, and is a label of metrics.
const NEXT_HOP_OCTETS_MAX: usize = 199;

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("mx{number}.example.org:25")).collect()
    }

    #[test]
    fn a_short_set_is_spelt_out_in_order_and_once() {
        let name = |hosts: &[&str]| Names::default().next_hop("smtp", hosts.iter().map(|&host| host.into()).collect());
        assert_eq!(&*name(&["b:25", "a:25", "b:25"]), "smtp:a:25,b:25");
        assert_eq!(name(&["b:25", "a:25"]), name(&["a:25", "b:25"]));
        assert_ne!(name(&["a:25"]), name(&["a:26"]));
    }

    #[test]
    fn a_long_set_is_short_and_still_itself() {
        let names = Names::default();
        let whole = names.next_hop("smtp", hosts(100));
        assert!(whole.len() < 200 && whole.starts_with("smtp:mx0.example.org:25,"), "{whole}");
        assert_eq!(whole, names.next_hop("smtp", hosts(100).into_iter().rev().collect()));
        assert_ne!(whole, names.next_hop("smtp", hosts(99)));
        assert!(names.next_hop(&"ö".repeat(120), hosts(1)).len() < 200);
    }
}
