//! Domains none of whose MX hosts has an address, and in how many lookups that was so. One lookup may meet a zone that is
//! being changed; after a few of them mail for the domain fails (RFC 5321 section 5.1).
//!
//! A lookup counts only where all answers of the one that counted before have had their time, so that neither many
//! messages nor many queues make one answer of the DNS several. The first and the last of them must lie
//! [`Dns::no_address_time`](crate::Dns::no_address_time) apart, however short the answers hold. The count begins anew as
//! soon as a lookup ends in any other way, after a day without a lookup, after a restart, and where too many domains are
//! known.

use std::time::{Duration, Instant};

use moka::sync::Cache;

/// Domains that are remembered.
const DOMAINS_MAX: u64 = 10_000;
/// The longest retry of any message comes sooner.
const IDLE_TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// How often each domain was found so.
pub(crate) struct Absences {
    seen: Cache<Box<str>, Seen>,
    lookups_max: u32,
    time_min: Duration,
}

#[derive(Clone, Copy)]
struct Seen {
    lookups: u32,
    /// When the first and the last of them were.
    first: Instant,
    last: Instant,
    /// All answers of the last one have had their time then.
    until: Instant,
}

impl Absences {
    /// After `lookups_max` lookups in `time_min` at least it is final; 0 is never.
    pub(crate) fn new(lookups_max: u32, time_min: Duration) -> Self {
        let seen = Cache::builder().max_capacity(DOMAINS_MAX).time_to_idle(IDLE_TIME_MAX).build();
        Absences { seen, lookups_max, time_min }
    }

    /// No host of the domain has an address, by answers the last of which holds until `until`. Whether that is final.
    pub(crate) fn is_final(&self, domain: &str, now: Instant, until: Instant) -> bool {
        if self.lookups_max == 0 {
            return false;
        }
        let seen =
            self.seen.entry(domain.into()).and_upsert_with(|before| match before.map(|entry| entry.into_value()) {
                Some(before) if now < before.until => before,
                Some(Seen { lookups, first, .. }) => {
                    Seen { lookups: lookups.saturating_add(1), first, last: now, until }
                }
                None => Seen { lookups: 1, first: now, last: now, until },
            });
        let Seen { lookups, first, last, .. } = seen.into_value();
        lookups >= self.lookups_max && last.saturating_duration_since(first) >= self.time_min
    }

    /// A lookup of the domain ended in another way.
    pub(crate) fn forget(&self, domain: &str) {
        self.seen.invalidate(domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HALF_AN_HOUR: Duration = Duration::from_secs(1800);

    /// What each lookup comes to, at these minutes, by answers that hold for so many.
    fn finals<const N: usize>(absences: &Absences, lookups: [(u32, u32); N]) -> [bool; N] {
        let start = Instant::now();
        lookups.map(|(at, holds)| {
            let now = start + MINUTE * at;
            absences.is_final("a.example", now, now + MINUTE * holds)
        })
    }

    #[test]
    fn it_is_final_after_so_many_lookups_each_after_all_answers_of_the_one_before() {
        let absences = Absences::new(3, HALF_AN_HOUR);
        // The second repeats answers of the first, some of which hold longer by now.
        let lookups = [(0, 20), (5, 60), (19, 60), (20, 20), (39, 1), (40, 1), (41, 1)];
        assert_eq!(finals(&absences, lookups), [false, false, false, false, false, true, true]);
        assert!(!absences.is_final("b.example", Instant::now(), Instant::now()));
    }

    /// Three lookups took ten seconds where a zone says that denials hold for five.
    #[test]
    fn it_is_not_final_before_its_time() {
        let absences = Absences::new(3, HALF_AN_HOUR);
        assert_eq!(finals(&absences, [(0, 0), (1, 0), (2, 0), (3, 0), (29, 0), (30, 0)])[4..], [false, true]);
        let absences = Absences::new(1, HALF_AN_HOUR);
        assert_eq!(finals(&absences, [(0, 0), (30, 0)]), [false, true]);
    }

    #[test]
    fn it_begins_anew_after_a_lookup_that_ends_in_another_way() {
        let absences = Absences::new(2, HALF_AN_HOUR);
        assert_eq!(finals(&absences, [(0, 0), (40, 0)]), [false, true]);
        absences.forget("a.example");
        assert_eq!(finals(&absences, [(50, 0), (60, 0), (80, 0)]), [false, false, true]);
    }

    #[test]
    fn none_is_never_final() {
        let absences = Absences::new(0, Duration::ZERO);
        assert_eq!(finals(&absences, [(0, 0), (1, 0), (1000, 0)]), [false; 3]);
    }
}
