//! Domains none of whose MX hosts has an address, and in how many lookups that was so. One lookup may meet a zone that is
//! being changed; after a few of them mail for the domain fails (RFC 5321 section 5.1).
//!
//! A lookup counts only where the one before has had its time, so that neither many messages nor many queues make one
//! answer of the DNS several. What is counted is forgotten as soon as a host has an address, after a day without a lookup,
//! after a restart, and where too many domains are known.

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
}

#[derive(Clone, Copy)]
struct Seen {
    lookups: u32,
    /// The last denial of these lookups holds until then.
    until: Instant,
}

impl Absences {
    /// After `lookups_max` lookups it is final; 0 is never.
    pub(crate) fn new(lookups_max: u32) -> Self {
        let seen = Cache::builder().max_capacity(DOMAINS_MAX).time_to_idle(IDLE_TIME_MAX).build();
        Absences { seen, lookups_max }
    }

    /// No host of the domain has an address, by answers the last of which holds until then. Whether that is final.
    pub(crate) fn is_final(&self, domain: &str, until: Instant) -> bool {
        if self.lookups_max == 0 {
            return false;
        }
        let seen =
            self.seen.entry(domain.into()).and_upsert_with(|before| match before.map(|entry| entry.into_value()) {
                Some(before) if before.until >= until => before,
                before => Seen { lookups: before.map_or(0, |before| before.lookups) + 1, until },
            });
        seen.into_value().lookups >= self.lookups_max
    }

    /// A host of the domain has an address.
    pub(crate) fn forget(&self, domain: &str) {
        self.seen.invalidate(domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_final_after_so_many_lookups_in_a_row_that_are_not_the_same() {
        let absences = Absences::new(3);
        let times: Vec<Instant> = (1..).map(|n| Instant::now() + Duration::from_secs(n)).take(5).collect();
        let is_final = |place: usize| absences.is_final("a.example", times[place]);
        assert_eq!([0, 0, 1, 0, 1, 2, 2].map(is_final), [false, false, false, false, false, true, true]);
        assert!(!absences.is_final("b.example", times[2]));
        absences.forget("a.example");
        assert_eq!([2, 3, 4].map(is_final), [false, false, true]);
    }

    #[test]
    fn none_is_never_final() {
        let (absences, now) = (Absences::new(0), Instant::now());
        assert!((1..100).all(|n| !absences.is_final("a.example", now + Duration::from_secs(n))));
    }
}
