//! Which addresses of a next hop an attempt tries, and in which order, if there are more than it
//! may try.
//!
//! Every attempt tries the best two (RFC 5321 section 5.1 asks for at least two). Its other tries
//! rotate through the remaining addresses: they start where the last attempt without a session
//! ended, so every address is tried after enough attempts. Within an attempt, better preferences
//! come first, and equal ones in random order. Adjacent addresses in the rotation belong to
//! different hosts and, if possible, to different address families, so a host or a family that is
//! down takes few tries of one attempt.
//!
//! Positions are kept for at most [`TRACKED_HOPS_MAX`] next hops, all of which failed; a dropped
//! one starts again at the best address.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::{NextHop, NextHopAddress};

/// How many of the best addresses every attempt tries.
const BEST_MAX: usize = 2;
/// How many positions are kept by each delivery thread: about a megabyte.
const TRACKED_HOPS_MAX: usize = 10_000;

/// Where the next attempt starts, by the name of the next hop.
#[derive(Default)]
pub(super) struct AddressRotation(RefCell<HashMap<Arc<str>, usize>>);

/// The addresses of one attempt.
pub(super) struct AddressChoice<'a> {
    /// In the order in which they are tried.
    pub(super) targets: Vec<&'a NextHopAddress>,
    /// How many addresses the next hop has.
    pub(super) addresses: usize,
    /// Where the next attempt starts if this one opens no session; None if this one tries all.
    next: Option<usize>,
}

impl AddressRotation {
    /// Chooses the addresses for an attempt.
    pub(super) fn choose_addresses<'a>(&self, hop: &'a NextHop) -> AddressChoice<'a> {
        let tries = hop.config.connections.addresses_tried_max;
        let addresses = hop.tiers.iter().map(Vec::len).sum();
        let mut targets: Vec<(usize, &NextHopAddress)> = Vec::with_capacity(addresses);
        for (tier, equals) in hop.tiers.iter().enumerate() {
            let begin = targets.len();
            targets.extend(equals.iter().map(|target| (tier, target)));
            fastrand::shuffle(&mut targets[begin..]);
        }
        let mut next = None;
        if addresses > tries {
            // At least one try goes to the others.
            let best = targets[..BEST_MAX.min(tries.saturating_sub(1))].to_vec();
            interleave_hosts(&mut targets);
            let start = self.0.borrow().get(&hop.name).map_or(0, |place| place % addresses);
            next = Some(select_next(&mut targets, &best, start, tries));
        }
        AddressChoice { targets: targets.into_iter().map(|(_, target)| target).collect(), addresses, next }
    }

    /// Moves on after an attempt in which no address led to a session.
    pub(super) fn advance(&self, hop: &NextHop, choice: &AddressChoice<'_>) {
        let Some(next) = choice.next else { return };
        let mut places = self.0.borrow_mut();
        if places.len() >= TRACKED_HOPS_MAX && !places.contains_key(&hop.name) {
            places.clear();
        }
        places.insert(hop.name.clone(), next);
    }
}

/// Sorts the targets into the order of rotation: in each tier the first address of every host, then
/// the second of every host. Every other host starts with the address family with which the one
/// before it ends. The order does not depend on how the name server rotates equal hosts.
fn interleave_hosts(targets: &mut Vec<(usize, &NextHopAddress)>) {
    targets.sort_unstable_by_key(|&(tier, target)| (tier, &target.host, &target.endpoint));
    let is_same = |one: &(usize, &NextHopAddress), other: &(usize, &NextHopAddress)| {
        (one.0, &one.1.host) == (other.0, &other.1.host)
    };
    let mut places = Vec::with_capacity(targets.len());
    for (number, host) in targets.chunk_by_mut(is_same).enumerate() {
        if number % 2 == 1 {
            host.reverse();
        }
        places.extend(host.iter().enumerate().map(|(index, &(tier, target))| ((tier, index, number), target)));
    }
    places.sort_unstable_by_key(|&(place, _)| place);
    *targets = places.into_iter().map(|((tier, ..), target)| (tier, target)).collect();
}

/// Reduces the targets to the best ones, followed by as many of the others, from `start` on, as
/// there are tries left. Returns where the next attempt starts.
fn select_next<'a>(
    targets: &mut Vec<(usize, &'a NextHopAddress)>,
    best: &[(usize, &'a NextHopAddress)],
    start: usize,
    tries: usize,
) -> usize {
    let is_best = |target: &NextHopAddress| best.iter().any(|(_, other)| std::ptr::eq(*other, target));
    let places = (start..targets.len()).chain(0..start);
    let turn: Vec<usize> = places.filter(|&place| !is_best(targets[place].1)).take(tries - best.len()).collect();
    let next = turn.last().map_or(start, |last| (last + 1) % targets.len());
    let mut others: Vec<_> = turn.into_iter().map(|place| targets[place]).collect();
    fastrand::shuffle(&mut others);
    others.sort_by_key(|&(tier, _)| tier);
    *targets = best.iter().copied().chain(others).collect();
    next
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::SocketAddr;

    use mail::HostTls;
    use net::Endpoint;
    use protocol::smtp::client;

    use super::super::{ConnectionConfig, RemoteDeliveryConfig};
    use super::*;

    fn target(number: u16) -> NextHopAddress {
        NextHopAddress {
            host: format!("mx{number:03}").into(),
            endpoint: Endpoint::Tcp(SocketAddr::from(([192, 0, 2, 1], number))),
            tls: HostTls::Transport,
            sts: None,
        }
    }

    /// A next hop with tiers of this many hosts.
    fn hop(tiers: &[u16], tries: usize) -> NextHop {
        let mut numbers = 1..;
        let tier = |count: &u16| numbers.by_ref().take(usize::from(*count)).map(target).collect();
        let tiers = tiers.iter().map(tier).collect();
        let client = client::SmtpClientConfig::new(
            client::MailProtocol::Smtp,
            client::CommandArgument::new("we.example").unwrap(),
        );
        let connections = ConnectionConfig { addresses_tried_max: tries, ..ConnectionConfig::default() };
        let config = Arc::new(RemoteDeliveryConfig { connections, ..RemoteDeliveryConfig::new(client) });
        NextHop { name: "hop".into(), config_version: 0, is_configured: false, tiers, config, tls_failures: Vec::new() }
    }

    fn hosts(choice: &AddressChoice<'_>) -> Vec<String> {
        choice.targets.iter().map(|target| target.host.to_string()).collect()
    }

    /// With 100 hosts, the same eight were tried in every attempt.
    #[test]
    fn attempts_that_fail_come_round_to_every_host_and_try_the_best_each_time() {
        for tiers in [vec![1; 100], vec![100], vec![1, 4, 95]] {
            let (hop, rotation) = (hop(&tiers, 8), AddressRotation::default());
            let mut tried = HashSet::new();
            for _ in 0..17 {
                let choice = rotation.choose_addresses(&hop);
                let chosen = hosts(&choice);
                assert_eq!(chosen.iter().collect::<HashSet<_>>().len(), 8, "{chosen:?}");
                if tiers[0] == 1 {
                    assert_eq!(chosen[0], "mx001");
                }
                rotation.advance(&hop, &choice);
                tried.extend(chosen);
            }
            assert_eq!(tried.len(), 100, "{tiers:?}");
        }
    }

    #[test]
    fn better_preferences_come_first_also_where_the_turn_begins_again() {
        let (hop, rotation) = (hop(&[1; 10], 4), AddressRotation::default());
        let attempt = || {
            let choice = rotation.choose_addresses(&hop);
            rotation.advance(&hop, &choice);
            hosts(&choice).join(" ").replace("mx0", "")
        };
        let attempts = [(); 5].map(|()| attempt());
        assert_eq!(attempts, ["01 02 03 04", "01 02 05 06", "01 02 07 08", "01 02 09 10", "01 02 03 04"]);
    }

    #[test]
    fn an_attempt_that_opens_a_session_moves_nothing_on_and_a_small_set_is_tried_whole() {
        let rotation = AddressRotation::default();
        let (large, small) = (hop(&[1; 10], 4), hop(&[1; 4], 4));
        for _ in 0..3 {
            assert_eq!(hosts(&rotation.choose_addresses(&large)), ["mx001", "mx002", "mx003", "mx004"]);
        }
        let choice = rotation.choose_addresses(&small);
        assert_eq!((hosts(&choice).len(), choice.addresses, choice.next), (4, 4, None));
        rotation.advance(&small, &choice);
        assert!(rotation.0.borrow().is_empty());
    }

    /// All other addresses of an attempt belonged to one host, or to one family.
    #[test]
    fn the_others_of_an_attempt_are_of_different_hosts_and_of_both_families() {
        let address = |host: u8, number: u16| match number {
            0..4 => SocketAddr::from(([192, 0, 2, host], number)),
            _ => SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()], number)),
        };
        let target = |host, number| NextHopAddress {
            host: format!("mx{host:03}").into(),
            endpoint: Endpoint::Tcp(address(host, number)),
            tls: HostTls::Transport,
            sts: None,
        };
        let equals = (0..10).flat_map(|host| (0..8).map(move |number| target(host, number))).collect();
        let (hop, rotation) = (NextHop { tiers: vec![equals], ..hop(&[], 8) }, AddressRotation::default());
        for _ in 0..30 {
            let choice = rotation.choose_addresses(&hop);
            let others = &choice.targets[BEST_MAX..];
            let hosts: HashSet<_> = others.iter().map(|target| &target.host).collect();
            let v6 = others.iter().filter(|target| matches!(target.endpoint, Endpoint::Tcp(SocketAddr::V6(_)))).count();
            assert!(hosts.len() >= 5 && (1..6).contains(&v6), "{} hosts, {v6} of IPv6", hosts.len());
            rotation.advance(&hop, &choice);
        }
    }

    #[test]
    fn one_try_goes_round_as_well() {
        let (hop, rotation) = (hop(&[1; 3], 1), AddressRotation::default());
        let attempt = || {
            let choice = rotation.choose_addresses(&hop);
            rotation.advance(&hop, &choice);
            hosts(&choice)
        };
        assert_eq!([(); 4].map(|()| attempt().concat()), ["mx001", "mx002", "mx003", "mx001"]);
    }

    #[test]
    fn so_many_places_are_kept_and_no_more() {
        let rotation = AddressRotation::default();
        for number in 0..=TRACKED_HOPS_MAX {
            let hop = NextHop { name: number.to_string().into(), ..hop(&[1; 3], 2) };
            let choice = rotation.choose_addresses(&hop);
            rotation.advance(&hop, &choice);
            assert!(rotation.0.borrow().len() <= TRACKED_HOPS_MAX);
        }
    }
}
