//! Finds mail whose destination is outdated after a reload: the new rules would look up its mailbox
//! host, or no longer look it up. This happens when a domain gains or loses `hosts`, or when tables
//! may now name it. Such mail is reclassified like that of a retired queue.
//!
//! Attempts in flight finish first. Their recipients are remembered, and reclassified if they
//! return.

use std::collections::{HashMap, HashSet};

use mail::QueueId;
use queue::Progress;

use super::Queues;
use super::sorter::Rules;

/// Recipients that were in flight: the message, and the ordinal in its envelope.
#[derive(Debug, Default)]
pub(super) struct Strays(HashSet<(QueueId, u32)>);

impl Strays {
    /// Whether recipients may still return.
    pub(super) fn are_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// Picks all recipients that `before` classified and `now` may not, in one pass, if the rules
    /// differ.
    pub(super) fn pick(&mut self, queues: &mut Queues, before: &Rules, now: &Rules) {
        if before.asks_of_the_same(now) {
            return;
        }
        let mut known = HashMap::new();
        queues.pick_to_sort(&mut |entry, destination| {
            let differs = || {
                let domain = destination.split_once('!').map_or(destination, |(_, domain)| domain);
                before.is_open(domain) != now.is_open(domain)
            };
            let is_stray = *known.entry(entry.destination).or_insert_with(differs);
            if is_stray && entry.progress == Progress::InFlight {
                self.0.insert((entry.id, entry.ordinal));
            }
            is_stray
        });
    }

    /// Picks recipients that have returned, and forgets those that will not.
    pub(super) fn pick_returned(&mut self, queues: &mut Queues) {
        if self.0.is_empty() {
            return;
        }
        let mut flying = HashSet::new();
        queues.pick_to_sort(&mut |entry, _| {
            let stray = (entry.id, entry.ordinal);
            let is_stray = self.0.contains(&stray);
            if is_stray && entry.progress == Progress::InFlight {
                flying.insert(stray);
            }
            is_stray
        });
        self.0 = flying;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use mail::{SpoolId, Timestamp};
    use queue::{Admission, Config, Limits, Pending, Purpose, QueueConfig, QueueNumber, Routed, Verdict};

    use super::super::Attempt;
    use super::super::way::Way;
    use super::*;

    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn admit(queues: &mut Queues, number: u64, name: &str, due: Timestamp) {
        let destination = queues.destination(QueueNumber(0), name);
        let pending = Pending { ordinal: 0, destination, attempts: 0, due, held: false };
        queues.admit(
            NOW,
            &Admission {
                id: QueueId::new(SpoolId::new(1), 0, number),
                sender: number,
                accepted_at: NOW,
                recovered: false,
                alone: false,
                recipients: vec![pending],
            },
        );
    }

    /// The next attempt; routes every destination that needs it.
    fn next(queues: &mut Queues) -> Option<Attempt> {
        while let Some(destination) = queues.next_question() {
            let (route, until) = (Arc::new(Way::Unsorted), NOW + Duration::from_secs(1_000));
            let next_hop = queues.destination_name(destination).into();
            queues.routed(
                NOW,
                destination,
                Routed { next_hop, route, limits: Limits::default(), until, transient: false },
            );
        }
        queues.next(NOW)
    }

    fn sorted(queues: &mut Queues) -> Vec<u64> {
        let mut sorted = Vec::new();
        while let Some(attempt) = next(queues) {
            assert_eq!(attempt.purpose, Purpose::Sort);
            sorted.push(attempt.id.sequence());
            queues.report(NOW, attempt, &[Verdict::Removed]);
        }
        sorted
    }

    #[test]
    fn mail_is_sorted_anew_where_the_directory_is_asked_now_or_no_more_and_nowhere_else() {
        let config =
            Config { queues: vec![QueueConfig { concurrency: 9, ..QueueConfig::default() }], ..Config::default() };
        let mut queues = Queues::new(config, 7);
        let later = NOW + Duration::from_secs(60);
        let before = Rules { shared: vec!["old.test".parse().unwrap()], ..Rules::plain() };
        let now = Rules { shared: vec!["new.test".parse().unwrap()], ..Rules::plain() };
        admit(&mut queues, 1, "new.test", NOW);
        let flying = next(&mut queues).expect("it is due");
        for (number, name) in [(2, "new.test"), (3, "store!old.test"), (4, "?!old.test"), (5, "other.test")] {
            admit(&mut queues, number, name, later);
        }
        let mut strays = Strays::default();
        strays.pick(&mut queues, &now, &now);
        assert_eq!((sorted(&mut queues), strays.are_some()), (vec![], false));
        strays.pick(&mut queues, &before, &now);
        assert_eq!((sorted(&mut queues), strays.are_some()), (vec![2, 3, 4], true));
        // Classified by the new rules, so not picked.
        admit(&mut queues, 6, "new.test", later);
        strays.pick_returned(&mut queues);
        assert_eq!((sorted(&mut queues), strays.are_some()), (vec![], true));
        let reason = mail::Reply::new(451, mail::Enhanced(4, 3, 0), "busy");
        queues.report(NOW, flying, &[Verdict::Deferred { reason, until: later }]);
        strays.pick_returned(&mut queues);
        assert_eq!((sorted(&mut queues), strays.are_some()), (vec![1], false));
    }
}
