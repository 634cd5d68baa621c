//! Names of next hops: one name for each set of hosts that a transport can reach.
//!
//! A name consists of the transport and the sorted hosts. If it is too long, its end is replaced by
//! a digest of the whole. The digest has a new key in every process: the owner of a zone must not
//! be able to choose names that collide with another next hop, since next hops with the same name
//! share limits and connections.

use std::hash::{BuildHasher, RandomState};

/// Generates names; another instance gives long sets other names.
#[derive(Default)]
pub(crate) struct NextHopNames {
    keys: [RandomState; 2],
}

impl NextHopNames {
    /// The name for these hosts, each with its port, over a transport.
    pub(crate) fn name_for(&self, transport: &str, mut hosts: Vec<String>) -> Box<str> {
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

/// The maximum length of a name: it is stored for every destination, and is a metrics label.
const NEXT_HOP_OCTETS_MAX: usize = 199;

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("mx{number}.example.org:25")).collect()
    }

    #[test]
    fn a_short_set_is_spelt_out_in_order_and_once() {
        let name =
            |hosts: &[&str]| NextHopNames::default().name_for("smtp", hosts.iter().map(|&host| host.into()).collect());
        assert_eq!(&*name(&["b:25", "a:25", "b:25"]), "smtp:a:25,b:25");
        assert_eq!(name(&["b:25", "a:25"]), name(&["a:25", "b:25"]));
        assert_ne!(name(&["a:25"]), name(&["a:26"]));
    }

    #[test]
    fn a_long_set_is_short_and_still_itself() {
        let names = NextHopNames::default();
        let whole = names.name_for("smtp", hosts(100));
        assert!(whole.len() < 200 && whole.starts_with("smtp:mx0.example.org:25,"), "{whole}");
        assert_eq!(whole, names.name_for("smtp", hosts(100).into_iter().rev().collect()));
        assert_ne!(whole, names.name_for("smtp", hosts(99)));
        assert!(names.name_for(&"ö".repeat(120), hosts(1)).len() < 200);
    }
}
