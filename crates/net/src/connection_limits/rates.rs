//! Rates of connections and messages per client: two token buckets for each client, each stored as
//! a single point in time (generic cell rate algorithm).
//!
//! After a quiet span a client's bucket is full, as is that of an unknown client, so entries unused
//! for that long can be dropped. They are dropped by generations: when the young generation is one
//! span old or has reached its size limit, it becomes the old one, and the previous old one is
//! dropped. A flood of clients therefore evicts those unseen the longest, and the table never
//! exceeds its limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mail::{Allowance, Rate};

/// The kind of event.
#[derive(Clone, Copy, Debug)]
pub(super) enum RateKind {
    Connection,
    Message,
}

/// The buckets of all clients.
#[derive(Debug)]
pub(super) struct ClientRates {
    connections: Option<Rate>,
    messages: Option<Rate>,
    /// The maximum number of clients in one generation.
    clients_max: usize,
    /// After this time without an event, every bucket is full again.
    span: Duration,
    young_since: Option<Instant>,
    young: HashMap<IpAddr, Buckets>,
    old: HashMap<IpAddr, Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    connections: Bucket,
    messages: Bucket,
}

/// The time at which the bucket is full again; it is full if this is past or None.
#[derive(Debug, Default)]
struct Bucket {
    full_at: Option<Instant>,
}

impl ClientRates {
    /// An empty table for at most `clients_max` clients.
    pub(super) fn new(connections: Option<Rate>, messages: Option<Rate>, clients_max: usize) -> ClientRates {
        ClientRates {
            connections,
            messages,
            clients_max: (clients_max / 2).max(1),
            span: span(connections, messages),
            young_since: None,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    /// Changes the rates. Events counted so far stay counted.
    pub(super) fn change(&mut self, connections: Option<Rate>, messages: Option<Rate>, clients_max: usize) {
        (self.connections, self.messages) = (connections, messages);
        (self.clients_max, self.span) = ((clients_max / 2).max(1), span(connections, messages));
    }

    /// Whether this client may have one more event now; if so, it is counted.
    pub(super) fn take(&mut self, client: IpAddr, counted: RateKind, now: Instant) -> bool {
        let rate = match counted {
            RateKind::Connection => self.connections,
            RateKind::Message => self.messages,
        };
        let Some(rate) = rate else { return true };
        let buckets = self.buckets(client, now);
        let bucket = match counted {
            RateKind::Connection => &mut buckets.connections,
            RateKind::Message => &mut buckets.messages,
        };
        bucket.take(rate, now)
    }

    fn buckets(&mut self, client: IpAddr, now: Instant) -> &mut Buckets {
        let is_aged = self.young_since.is_none_or(|born_at| now.saturating_duration_since(born_at) >= self.span);
        let is_full = self.young.len() >= self.clients_max && !self.young.contains_key(&client);
        if is_aged || is_full {
            self.old = std::mem::take(&mut self.young);
            self.young_since = Some(now);
        }
        self.young.entry(client).or_insert_with(|| self.old.remove(&client).unwrap_or_default())
    }
}

/// After this time without an event, every bucket is full again.
fn span(connections: Option<Rate>, messages: Option<Rate>) -> Duration {
    [connections, messages].into_iter().flatten().map(|rate| rate.per).max().unwrap_or_default()
}

impl Bucket {
    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let spent = Allowance::from(rate).spend(self.full_at.unwrap_or(now), 1, now);
        spent.map(|full_at| self.full_at = Some(full_at)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(60);

    fn client(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    fn rates(count: u32, clients_max: usize) -> ClientRates {
        ClientRates::new(Some(Rate { count, per: SPAN }), None, clients_max)
    }

    fn connect(rates: &mut ClientRates, number: u32, now: Instant) -> bool {
        rates.take(client(number), RateKind::Connection, now)
    }

    #[test]
    fn a_client_has_its_full_count_first_and_then_one_by_one() {
        let (mut rates, start) = (rates(3, 100), Instant::now());
        assert_eq!([0, 0, 0, 0].map(|_| connect(&mut rates, 1, start)), [true, true, true, false]);
        assert!(connect(&mut rates, 2, start), "another client was limited too");
        assert!(!connect(&mut rates, 1, start + SPAN / 3 - Duration::from_millis(1)));
        assert!(connect(&mut rates, 1, start + SPAN / 3));
        assert!(!connect(&mut rates, 1, start + SPAN / 3));
    }

    #[test]
    fn after_a_quiet_span_a_client_has_its_full_count_again() {
        let (mut rates, start) = (rates(3, 100), Instant::now());
        (0..3).for_each(|_| assert!(connect(&mut rates, 1, start)));
        let later = start + SPAN * 10;
        assert_eq!([0, 0, 0, 0].map(|_| connect(&mut rates, 1, later)), [true, true, true, false]);
    }

    #[test]
    fn a_new_generation_forgets_no_client_too_early() {
        let (mut rates, start) = (rates(2, 100), Instant::now());
        assert!(connect(&mut rates, 9, start));
        let late = start + SPAN - Duration::from_secs(1);
        assert!(connect(&mut rates, 1, late) && connect(&mut rates, 1, late));
        assert!(connect(&mut rates, 9, start + SPAN), "the client was limited too early");
        assert!(!connect(&mut rates, 1, start + SPAN + Duration::from_secs(1)));
    }

    #[test]
    fn messages_and_connections_are_counted_apart() {
        let rate = |count| Some(Rate { count, per: SPAN });
        let (mut rates, now) = (ClientRates::new(rate(1), rate(2), 100), Instant::now());
        assert!(connect(&mut rates, 1, now) && !connect(&mut rates, 1, now));
        let mut bring = || rates.take(client(1), RateKind::Message, now);
        assert!(bring() && bring() && !bring());
    }

    #[test]
    fn the_table_never_grows_beyond_its_bound_and_keeps_those_who_come_often() {
        let (mut rates, now) = (rates(50, 100), Instant::now());
        let mut allowed = 0;
        for number in 1000..2000 {
            assert!(connect(&mut rates, number, now));
            allowed += u32::from(connect(&mut rates, 1, now));
            assert!(rates.young.len() + rates.old.len() <= 100);
        }
        assert_eq!(allowed, 50);
    }

    #[test]
    fn clients_unseen_for_long_are_dropped() {
        let (mut rates, start) = (rates(1, 1000), Instant::now());
        (0..100).for_each(|number| assert!(connect(&mut rates, number, start)));
        assert!(connect(&mut rates, 200, start + SPAN));
        assert!(connect(&mut rates, 200, start + SPAN * 2));
        assert_eq!(rates.young.len() + rates.old.len(), 1);
    }

    #[test]
    fn without_a_rate_no_client_is_remembered_and_a_rate_of_zero_refuses_all() {
        let mut open = ClientRates::new(None, None, 100);
        assert!(connect(&mut open, 1, Instant::now()) && open.young.is_empty());
        assert!(!connect(&mut rates(0, 100), 1, Instant::now()));
    }
}
