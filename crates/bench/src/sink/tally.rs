//! The counters of a sink. Each thread has its own; they are added at the end.

use std::collections::HashMap;

use mail::Address;
use tokio::time::Instant;

use crate::StampCheckResult;
use crate::verify::{Comparer, CopyPlace, FoundCopy};

/// Domains that are counted by name. Others are counted together.
const DOMAINS_MAX: usize = 1000;

/// The counters of one thread.
#[derive(Debug, Default)]
pub(super) struct SinkTally {
    pub(super) messages: u64,
    pub(super) recipients: u64,
    pub(super) octets: u64,
    pub(super) connections: u64,
    pub(super) domains: DomainCounts,
    /// For each rule, how often it was applied.
    pub(super) rule_hits: Vec<u64>,
    pub(super) copies: ReceivedCopies,
    /// When the first client connected.
    pub(super) first_at: Option<Instant>,
    /// When the last message was complete.
    pub(super) last_at: Option<Instant>,
}

/// Recipients by domain.
#[derive(Clone, Debug, Default)]
pub(super) struct DomainCounts {
    pub(super) named: HashMap<Box<str>, u64>,
    /// Recipients in domains that are not counted by name.
    pub(super) others: u64,
}

/// Examined copies, one for each recipient.
#[derive(Debug, Default)]
pub(super) struct ReceivedCopies {
    pub(super) stamped: Vec<FoundCopy>,
    pub(super) foreign: u64,
}

impl SinkTally {
    /// Empty counters with this number of rules.
    pub(super) fn new(rules: usize) -> SinkTally {
        SinkTally { rule_hits: vec![0; rules], ..SinkTally::default() }
    }

    pub(super) fn record_connection(&mut self, now: Instant) {
        self.connections += 1;
        self.first_at.get_or_insert(now);
    }

    pub(super) fn record_message(&mut self, recipients: &[Address], octets: u64, now: Instant) {
        self.messages += 1;
        self.recipients += recipients.len() as u64;
        self.octets += octets;
        recipients.iter().for_each(|recipient| self.domains.count(recipient.domain(), 1));
        self.last_at = Some(now);
    }

    /// Adds the counters of another thread.
    pub(super) fn add(&mut self, other: SinkTally) {
        self.messages += other.messages;
        self.recipients += other.recipients;
        self.octets += other.octets;
        self.connections += other.connections;
        other.domains.named.iter().for_each(|(domain, &count)| self.domains.count(domain, count));
        self.domains.others += other.domains.others;
        self.rule_hits.iter_mut().zip(other.rule_hits).for_each(|(met, more)| *met += more);
        self.copies.stamped.extend(other.copies.stamped);
        self.copies.foreign += other.copies.foreign;
        self.first_at = self.first_at.into_iter().chain(other.first_at).min();
        self.last_at = self.last_at.max(other.last_at);
    }
}

impl DomainCounts {
    fn count(&mut self, domain: &str, count: u64) {
        if let Some(counted) = self.named.get_mut(domain) {
            *counted += count;
        } else if self.named.len() < DOMAINS_MAX {
            self.named.insert(domain.into(), count);
        } else {
            self.others += count;
        }
    }
}

impl ReceivedCopies {
    pub(super) fn record(&mut self, seen: Option<StampCheckResult>, recipients: &[Address]) {
        match seen {
            Some(seen) => {
                let places = recipients.iter().map(|recipient| CopyPlace::recipient(recipient.as_str()));
                self.stamped.extend(places.map(|place| FoundCopy::new(seen, place)));
            }
            None => self.foreign += recipients.len() as u64,
        }
    }

    pub(super) fn add_to(&self, comparer: &mut Comparer<'_>) {
        self.stamped.iter().for_each(|&found| comparer.add(found, ""));
        (0..self.foreign).for_each(|_| comparer.add_foreign());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_counted_by_name_up_to_a_limit_and_then_together() {
        let mut domains = DomainCounts::default();
        (0..DOMAINS_MAX + 5).for_each(|number| domains.count(&format!("d{number}.test"), 1));
        (0..DOMAINS_MAX + 5).for_each(|number| domains.count(&format!("d{number}.test"), 1));
        assert_eq!((domains.named.len(), domains.named["d7.test"], domains.others), (DOMAINS_MAX, 2, 10));
    }

    #[test]
    fn tallies_of_threads_become_one() {
        let recipients: Vec<Address> = ["a@x.test", "b@y.test"].map(|text| text.parse().unwrap()).into();
        let start = Instant::now();
        let later = start + std::time::Duration::from_secs(1);
        let (mut one, mut other) = (SinkTally::new(1), SinkTally::new(1));
        other.record_connection(start);
        one.record_connection(later);
        one.record_message(&recipients, 10, later);
        other.record_message(&recipients[..1], 5, start);
        other.rule_hits[0] = 3;
        one.add(other);
        assert_eq!((one.messages, one.recipients, one.octets, one.connections), (2, 3, 15, 2));
        assert_eq!((one.domains.named["x.test"], one.rule_hits[0]), (2, 3));
        assert_eq!((one.first_at, one.last_at), (Some(start), Some(later)));
    }
}
