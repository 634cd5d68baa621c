//! Networks in Postfix's lists, where the first match wins and a `!` excludes. Our lists have no
//! exclusions, so excluded networks are subtracted from the others.

use std::net::IpAddr;
use std::path::Path;

use super::Conversion;
use super::config_draft::quoted;
use super::lookups::MapRef;
use super::words::list;
use crate::ip_net::IpNet;

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
pub(super) fn is_address(key: &str) -> bool {
    key.parse::<IpAddr>().is_ok_and(|address| address.to_string().eq_ignore_ascii_case(key))
}
