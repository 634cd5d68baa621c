//! Finds mail whose destination is outdated after a reload: the new rules would look up its mailbox
//! host, or no longer look it up. This happens when a domain gains or loses `hosts`, or when tables
//! may now name it. If routes by address or sender or the
//! content filter differ, all mail may be outdated. Such mail is reclassified like that of a retired queue.
//!
//! Attempts in flight finish first. Their recipients are remembered, and reclassified if they
//! return.

use std::collections::{HashMap, HashSet};

use mail::QueueId;
use queue::RecipientProgress;

use super::Queues;
use super::classifier::ClassifierRules;

/// Recipients that were in flight: the message, and the ordinal in its envelope.
#[derive(Debug, Default)]
pub(super) struct Reclassification(HashSet<(QueueId, u32)>);

impl Reclassification {
    /// Whether recipients may still return.
    pub(super) fn is_pending(&self) -> bool {
        !self.0.is_empty()
    }

    /// Picks all recipients that `before` classified and `now` may not, in one pass, if the rules
    /// differ.
    pub(super) fn pick_outdated(&mut self, queues: &mut Queues, before: &ClassifierRules, now: &ClassifierRules) {
        if before.has_same_lookups(now) {
            return;
        }
        let routes_differ = !before.routes.is_same(&now.routes) || before.content_filter != now.content_filter;
        let mut known = HashMap::new();
        queues.pick_recipients_to_reclassify(&mut |entry, destination| {
            let differs = || {
                let domain = destination.rsplit_once('!').map_or(destination, |(_, domain)| domain);
                routes_differ || before.needs_directory(domain) != now.needs_directory(domain)
            };
            let has_moved = *known.entry(entry.destination).or_insert_with(differs);
            if has_moved && entry.progress == RecipientProgress::InFlight {
                self.0.insert((entry.id, entry.ordinal));
            }
            has_moved
        });
    }

    /// Recipients that were picked, and that an operator's action took over: they are picked again once they
    /// return.
    pub(super) fn add_returning(&mut self, recipients: Vec<(QueueId, u32)>) {
        self.0.extend(recipients);
    }

    /// Picks recipients that have returned, and forgets those that will not.
    pub(super) fn pick_returned(&mut self, queues: &mut Queues) {
        if self.0.is_empty() {
            return;
        }
        let mut in_flight = HashSet::new();
        queues.pick_recipients_to_reclassify(&mut |entry, _| {
            let recipient = (entry.id, entry.ordinal);
            let has_moved = self.0.contains(&recipient);
            if has_moved && entry.progress == RecipientProgress::InFlight {
                in_flight.insert(recipient);
            }
            has_moved
        });
        self.0 = in_flight;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use mail::{SpoolId, Timestamp};
    use queue::{
        AdmittedMessage, AttemptPurpose, NextHopLimits, NextHopRoute, PendingRecipient, QueueConfig, QueueNumber,
        RecipientVerdict, SchedulerConfig,
    };

    use super::super::Attempt;
    use super::super::delivery_route::DeliveryRoute;
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn admit(queues: &mut Queues, number: u64, name: &str, due: Timestamp) {
        let destination = queues.intern_destination(QueueNumber(0), name);
        let pending = PendingRecipient { ordinal: 0, destination, attempts: 0, due, held: false };
        queues.admit(
            NOW,
            &AdmittedMessage {
                id: QueueId::new(SpoolId::new(1), 0, number),
                sender: number,
                accepted_at: NOW,
                recovered: false,
                separate_attempts: false,
                recipients: vec![pending],
            },
        );
    }

    /// The next attempt; routes every destination that needs it.
    fn next(queues: &mut Queues) -> Option<Attempt> {
        while let Some(destination) = queues.next_unrouted() {
            let (route, until) = (Arc::new(DeliveryRoute::HostUnknown), NOW + Duration::from_secs(1_000));
            let next_hop = queues.destination_name(destination).into();
            queues.set_route(
                NOW,
                destination,
                NextHopRoute { next_hop, route, limits: NextHopLimits::default(), until, transient: false },
            );
        }
        queues.next_attempt(NOW)
    }

    fn sorted(queues: &mut Queues) -> Vec<u64> {
        let mut sorted = Vec::new();
        while let Some(attempt) = next(queues) {
            assert_eq!(attempt.purpose, AttemptPurpose::Reclassify);
            sorted.push(attempt.id.sequence());
            queues.report_verdicts(NOW, attempt, &[RecipientVerdict::Removed]);
        }
        sorted
    }

    #[test]
    fn only_domains_with_changed_lookups_are_reclassified() {
        let config = SchedulerConfig {
            queues: vec![QueueConfig { concurrency: 9, ..QueueConfig::default() }],
            ..SchedulerConfig::default()
        };
        let mut queues = Queues::new(config, 7);
        let later = NOW + Duration::from_secs(60);
        let before = ClassifierRules { shared_domains: vec!["old.test".parse().unwrap()], ..ClassifierRules::plain() };
        let now = ClassifierRules { shared_domains: vec!["new.test".parse().unwrap()], ..ClassifierRules::plain() };
        admit(&mut queues, 1, "new.test", NOW);
        let in_flight = next(&mut queues).expect("it is due");
        for (number, name) in [(2, "new.test"), (3, "store!old.test"), (4, "?!old.test"), (5, "other.test")] {
            admit(&mut queues, number, name, later);
        }
        let mut reclassification = Reclassification::default();
        reclassification.pick_outdated(&mut queues, &now, &now);
        assert_eq!((sorted(&mut queues), reclassification.is_pending()), (vec![], false));
        reclassification.pick_outdated(&mut queues, &before, &now);
        assert_eq!((sorted(&mut queues), reclassification.is_pending()), (vec![2, 3, 4], true));
        // Classified by the new rules, so not picked.
        admit(&mut queues, 6, "new.test", later);
        reclassification.pick_returned(&mut queues);
        assert_eq!((sorted(&mut queues), reclassification.is_pending()), (vec![], true));
        let reason = mail::Reply::new(451, mail::EnhancedCode(4, 3, 0), "busy");
        queues.report_verdicts(NOW, in_flight, &[RecipientVerdict::Deferred { reason, until: later }]);
        reclassification.pick_returned(&mut queues);
        assert_eq!((sorted(&mut queues), reclassification.is_pending()), (vec![1], false));
    }
}
