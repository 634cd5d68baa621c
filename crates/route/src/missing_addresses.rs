//! Counts lookups that found no address for any MX host of a domain. A single lookup may hit a zone
//! in the middle of a change; after several, mail for the domain fails (RFC 5321 section 5.1).
//!
//! A lookup counts only after all answers of the last one that counted have expired, so that
//! several messages or queues do not count one DNS answer repeatedly. The first and the last lookup
//! must be [`MissingAddressPolicy::time`] apart,
//! however short the TTLs are. The count starts again from zero after a lookup with any other
//! result, after a day without a lookup, after a restart, and when too many domains are tracked.

use std::time::{Duration, Instant};

use moka::sync::Cache;

use crate::MissingAddressPolicy;

/// The maximum number of domains tracked.
const DOMAINS_MAX: u64 = 10_000;
/// Longer than the longest retry interval of any message.
const IDLE_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// The lookups of each domain without an address.
pub(crate) struct MissingAddressTracker {
    histories: Cache<Box<str>, LookupHistory>,
    policy: MissingAddressPolicy,
}

#[derive(Clone, Copy)]
struct LookupHistory {
    lookups: u32,
    /// The times of the first and the last lookup.
    first: Instant,
    last: Instant,
    /// When all answers of the last lookup have expired.
    answers_expire_at: Instant,
}

impl MissingAddressTracker {
    pub(crate) fn new(policy: MissingAddressPolicy) -> Self {
        let seen = Cache::builder().max_capacity(DOMAINS_MAX).time_to_idle(IDLE_TIME_MAX).build();
        MissingAddressTracker { histories: seen, policy }
    }

    /// Records that no MX host of the domain has an address, by answers that expire at `until` at
    /// the latest. Returns whether that is final.
    pub(crate) fn record_and_check_final(&self, domain: &str, now: Instant, until: Instant) -> bool {
        if self.policy.lookups == 0 {
            return false;
        }
        let seen = self.histories.entry(domain.into()).and_upsert_with(|before| {
            match before.map(|entry| entry.into_value()) {
                Some(before) if now < before.answers_expire_at => before,
                Some(LookupHistory { lookups, first, .. }) => {
                    LookupHistory { lookups: lookups.saturating_add(1), first, last: now, answers_expire_at: until }
                }
                None => LookupHistory { lookups: 1, first: now, last: now, answers_expire_at: until },
            }
        });
        let LookupHistory { lookups, first, last, .. } = seen.into_value();
        lookups >= self.policy.lookups && last.saturating_duration_since(first) >= self.policy.time
    }

    /// Records a lookup of the domain with any other result.
    pub(crate) fn reset(&self, domain: &str) {
        self.histories.invalidate(domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

    fn tracker(lookups: u32, time: Duration) -> MissingAddressTracker {
        MissingAddressTracker::new(MissingAddressPolicy { lookups, time })
    }

    /// The results of lookups at these minutes, whose answers are valid for that many minutes.
    fn record_all<const N: usize>(absences: &MissingAddressTracker, lookups: [(u32, u32); N]) -> [bool; N] {
        let start = Instant::now();
        lookups.map(|(at, holds)| {
            let now = start + MINUTE * at;
            absences.record_and_check_final("a.example", now, now + MINUTE * holds)
        })
    }

    #[test]
    fn it_is_final_after_so_many_lookups_each_after_all_answers_of_the_one_before() {
        let absences = tracker(3, HALF_AN_HOUR);
        // The second reuses answers of the first, some of which have been renewed.
        let lookups = [(0, 20), (5, 60), (19, 60), (20, 20), (39, 1), (40, 1), (41, 1)];
        assert_eq!(record_all(&absences, lookups), [false, false, false, false, false, true, true]);
        assert!(!absences.record_and_check_final("b.example", Instant::now(), Instant::now()));
    }

    /// Three lookups took ten seconds with a zone whose negative TTL is five seconds.
    #[test]
    fn it_is_not_final_before_its_time() {
        let absences = tracker(3, HALF_AN_HOUR);
        assert_eq!(record_all(&absences, [(0, 0), (1, 0), (2, 0), (3, 0), (29, 0), (30, 0)])[4..], [false, true]);
        let absences = tracker(1, HALF_AN_HOUR);
        assert_eq!(record_all(&absences, [(0, 0), (30, 0)]), [false, true]);
    }

    #[test]
    fn it_begins_anew_after_a_lookup_that_ends_in_another_way() {
        let absences = tracker(2, HALF_AN_HOUR);
        assert_eq!(record_all(&absences, [(0, 0), (40, 0)]), [false, true]);
        absences.reset("a.example");
        assert_eq!(record_all(&absences, [(50, 0), (60, 0), (80, 0)]), [false, false, true]);
    }

    #[test]
    fn none_is_never_final() {
        let absences = tracker(0, Duration::ZERO);
        assert_eq!(record_all(&absences, [(0, 0), (1, 0), (1000, 0)]), [false; 3]);
    }
}
