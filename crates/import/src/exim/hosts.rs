//! Lists of hosts as networks. The first element that matches decides, and `!` excludes. Our lists have no
//! exclusions, so excluded networks are subtracted from the others. Names of hosts are not networks: they are left
//! out and told of.

use std::net::IpAddr;
use std::path::Path;

use super::Conversion;
use super::domains::{ConditionOutcome, file_entries, file_items};
use super::expansion::{Lookup, list};
use crate::ip_net::IpNet;

/// Lists within lists.
const DEPTH_MAX: usize = 10;
/// All addresses.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// The hosts of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct HostSet {
    pub(super) networks: Vec<IpNet>,
    excluded: Vec<IpNet>,
    /// Elements that are not networks.
    pub(super) unknown: Vec<String>,
    /// An excluded element is unknown, so later ones may be part of it.
    is_incomplete: bool,
}

impl HostSet {
    /// Whether any client on the Internet is in it.
    pub(super) fn is_everyone(&self) -> bool {
        self.unknown.is_empty() && everywhere().iter().all(|all| self.networks.iter().any(|net| net.covers(all)))
    }

    /// Whether an ordinary client on the Internet is in it.
    pub(super) fn has_strangers(&self) -> ConditionOutcome {
        let prefix = |net: &IpNet| net.to_string().rsplit_once('/').and_then(|(_, prefix)| prefix.parse::<u8>().ok());
        let is_wide =
            |net: &IpNet| prefix(net).is_none_or(|prefix| prefix < if net.is_v4() { WIDE_V4 } else { WIDE_V6 });
        match self.networks.iter().any(is_wide) {
            true => ConditionOutcome::Yes,
            false if self.unknown.is_empty() => ConditionOutcome::No,
            false => ConditionOutcome::Maybe,
        }
    }

    /// Whether networks are left out that may be part of an excluded element.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// All other addresses.
    pub(super) fn complement(&self) -> Vec<IpNet> {
        subtracted(everywhere(), &self.networks)
    }

    fn add(&mut self, networks: Vec<IpNet>, negated: bool) {
        match negated {
            true => self.excluded.extend(networks),
            false if self.is_incomplete => {}
            false => self.networks.extend(subtracted(networks, &self.excluded)),
        }
    }
}

/// Networks with a shorter prefix are not those of one site.
const WIDE_V4: u8 = 8;
const WIDE_V6: u8 = 7;

fn everywhere() -> Vec<IpNet> {
    EVERYWHERE.iter().filter_map(|text| IpNet::parse(text)).collect()
}

/// The networks without the parts that are in `holes`.
pub(super) fn subtracted(networks: Vec<IpNet>, holes: &[IpNet]) -> Vec<IpNet> {
    let cut = |rest: Vec<IpNet>, hole: &IpNet| rest.into_iter().flat_map(|net| net.subtract(hole)).collect();
    holes.iter().fold(networks, cut)
}

impl Conversion<'_> {
    /// The hosts of a list. Those that run programs here, without a connection, are in none.
    pub(super) fn hosts(&self, text: &str) -> HostSet {
        self.hosts_within(text, 0)
    }

    fn hosts_within(&self, text: &str, depth: usize) -> HostSet {
        let mut set = HostSet::default();
        let text = self.expander.resolved(text);
        if text.contains('$') || depth > DEPTH_MAX {
            set.unknown.push(text);
            return set;
        }
        let mut last_is_negated = false;
        for item in list(&text) {
            let bare = item.trim_start_matches(['!', ' ']);
            last_is_negated = item[..item.len() - bare.len()].matches('!').count() % 2 == 1;
            self.add_item(bare, last_is_negated, depth, &mut set);
        }
        // A list that ends with an exclusion contains all other hosts.
        if last_is_negated {
            set.add(everywhere(), false);
        }
        set
    }

    fn add_item(&self, item: &str, negated: bool, depth: usize, set: &mut HostSet) {
        let is_file = item.starts_with('/');
        let inside = match item {
            "" => return,
            _ if item.starts_with('+') => self.config.list(&item[1..]).map(str::to_owned),
            // Exim allows no further files in a file.
            _ if is_file && depth < DEPTH_MAX => self.files.text(Path::new(item)).ok().map(|text| file_items(&text)),
            _ if item.contains(';') => self.keys_of_host_file(item),
            _ => None,
        };
        let networks = match item {
            "*" => Some(everywhere()),
            "@" | "@[]" | "localhost" => Some(IpNet::loopback()),
            _ => IpNet::parse(item).map(|net| vec![net]),
        };
        match (inside, networks) {
            // What a list within this one excludes is not in it, and the later elements decide.
            (Some(list), _) => {
                let inner = self.hosts_within(&list, if is_file { DEPTH_MAX } else { depth + 1 });
                set.add(inner.networks, negated);
                set.is_incomplete |= negated && !inner.unknown.is_empty();
                set.unknown.extend(inner.unknown);
            }
            (_, Some(networks)) => set.add(networks, negated),
            _ => {
                set.is_incomplete |= negated;
                set.unknown.push(item.to_owned());
            }
        }
    }

    /// The keys of `net-lsearch;FILE` or `net-iplsearch;FILE`. Without `net-` the key is the name of the client,
    /// and only iplsearch has keys that are networks.
    fn keys_of_host_file(&self, item: &str) -> Option<String> {
        let lookup = Lookup::of_list_item(item.strip_prefix("net-")?, "")?;
        let is_key: fn(&str) -> bool = match (lookup.kind.as_str(), lookup.default.contains('*')) {
            ("lsearch", false) => |key| key.parse::<IpAddr>().is_ok(),
            ("iplsearch", false) => |key| IpNet::parse(key).is_some(),
            _ => return None,
        };
        let text = self.files.text(Path::new(&lookup.source)).ok()?;
        let keys = file_entries(&text).into_iter().filter(|(key, _)| is_key(key));
        Some(keys.map(|(key, _)| key.replace(':', "::")).collect::<Vec<_>>().join(" : "))
    }
}
