//! How nodes share the rate of a next hop. Pure: times are arguments.
//!
//! A node asks for *departures*, which are times at which it may begin attempts. It writes its request to
//! a log that all nodes read in the same order, and the log's servers say when each request was stored.
//! From that, all nodes compute the same:
//!
//! | the departures that were granted before | a request gets |
//! |---|---|
//! | are all over | departures from the time at which it was stored |
//! | are not | the departures after them |
//!
//! So all nodes together never have more than the rate, and no request can be refused. A node has one
//! request at a time for a next hop, so that nodes take turns. No clocks are compared: a node learns
//! how long after the storing of its request the first departure is. A node that is cut off from the log
//! has its [part](OwnPart) of the rate.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Departures may be granted for as many intervals in advance, and for [`GRANTED_TIME_MAX`]. More than
/// that means that the servers' clock was set back.
const GRANTED_INTERVALS_MAX: u64 = 256;
const GRANTED_TIME_MAX: Duration = Duration::from_secs(60);
/// The next hops that are remembered. Beyond that, those without pending departures are forgotten.
const NEXT_HOPS_MAX: usize = 65_536;

/// A request for departures, as it is written to the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepartureRequest {
    /// The node that asks.
    pub node: String,
    /// Tells its requests apart.
    pub number: u64,
    /// Nanoseconds between two departures.
    pub interval: u64,
    /// How many it wants.
    pub count: u32,
    /// When the departures that it knows of are over, in nanoseconds since 1970 by the servers' clock. It
    /// serves nodes that have not read the log from its start.
    pub free_at: u64,
}

/// What was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departures {
    /// The time until the first one.
    pub first_in: Duration,
    /// The time between two of them.
    pub interval: Duration,
    /// Their number.
    pub count: u32,
}

/// The departures of all next hops, as far as a node has read the log.
#[derive(Debug, Default)]
pub struct DepartureLedger {
    /// By the key of the next hop: when the departures that were granted are over.
    free_at: HashMap<String, u64>,
}

impl DepartureLedger {
    /// When the departures of a next hop are over, for a request of this node.
    pub fn free_at(&self, next_hop: &str) -> u64 {
        self.free_at.get(next_hop).copied().unwrap_or_default()
    }

    /// The next request of the log, which was stored at this time.
    pub fn handle_request(&mut self, next_hop: &str, stored_at: u64, request: &DepartureRequest) -> Departures {
        let granted_max =
            nanos(GRANTED_TIME_MAX).saturating_add(request.interval.saturating_mul(GRANTED_INTERVALS_MAX));
        let free_at = self.free_at(next_hop).max(request.free_at).min(stored_at.saturating_add(granted_max));
        let first = free_at.max(stored_at);
        let over = first.saturating_add(request.interval.saturating_mul(request.count.into()));
        if self.free_at.len() >= NEXT_HOPS_MAX && !self.free_at.contains_key(next_hop) {
            self.free_at.retain(|_, free_at| *free_at > stored_at);
        }
        self.free_at.insert(next_hop.to_owned(), over);
        Departures {
            first_in: Duration::from_nanos(first - stored_at),
            interval: Duration::from_nanos(request.interval),
            count: request.count,
        }
    }
}

/// The part of the rates that a node has while it cannot ask: as if all nodes needed as much.
#[derive(Debug, Default)]
pub struct OwnPart {
    free_at: HashMap<Box<str>, Duration>,
}

impl OwnPart {
    /// Grants a departure, where this many nodes are alive. `now` is the time since any fixed moment.
    pub fn grant(&mut self, next_hop: &str, interval: Duration, nodes: u64, now: Duration) -> Departures {
        let interval = interval.saturating_mul(u32::try_from(nodes.max(1)).unwrap_or(u32::MAX));
        let first = self.free_at.get(next_hop).copied().unwrap_or_default().max(now);
        if self.free_at.len() >= NEXT_HOPS_MAX {
            self.free_at.retain(|_, free_at| *free_at > now);
        }
        self.free_at.insert(next_hop.into(), first.saturating_add(interval));
        Departures { first_in: first - now, interval, count: 1 }
    }
}

/// The whole nanoseconds of a time span.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn request(node: &str, count: u32, free_at: u64) -> DepartureRequest {
        DepartureRequest { node: node.into(), number: 1, interval: SECOND, count, free_at }
    }

    #[test]
    fn requests_get_departures_one_after_the_other() {
        let mut ledger = DepartureLedger::default();
        let first_in = |ledger: &mut DepartureLedger, hop, at, count| {
            ledger.handle_request(hop, at * SECOND, &request("a", count, 0)).first_in.as_secs()
        };
        assert_eq!(first_in(&mut ledger, "x", 100, 2), 0);
        assert_eq!(first_in(&mut ledger, "x", 100, 1), 2);
        assert_eq!(first_in(&mut ledger, "x", 101, 1), 2);
        assert_eq!(first_in(&mut ledger, "y", 101, 1), 0);
        assert_eq!(first_in(&mut ledger, "x", 200, 1), 0, "what nobody asked for is not saved");
    }

    #[test]
    fn a_node_that_comes_later_learns_from_requests_what_was_granted() {
        let mut late = DepartureLedger::default();
        assert_eq!(late.handle_request("x", 100 * SECOND, &request("b", 1, 107 * SECOND)).first_in.as_secs(), 7);
        assert_eq!(late.free_at("x"), 108 * SECOND);
    }

    #[test]
    fn a_clock_that_is_set_back_stops_nothing_for_long() {
        let mut ledger = DepartureLedger::default();
        ledger.handle_request("x", 100_000 * SECOND, &request("a", 1, 0));
        let after = ledger.handle_request("x", 50 * SECOND, &request("a", 1, 0));
        assert_eq!(after.first_in, GRANTED_TIME_MAX + Duration::from_secs(GRANTED_INTERVALS_MAX));
    }

    #[test]
    fn the_parts_of_all_nodes_are_the_rate() {
        let mut part = OwnPart::default();
        let second = Duration::from_secs(1);
        let mut grant = |now| part.grant("x", second, 3, second * now).first_in.as_secs();
        assert_eq!([grant(10), grant(10), grant(11), grant(30)], [0, 3, 5, 0]);
    }
}
