//! A policy that was fetched, and for how long it counts.

use std::time::{Duration, SystemTime};

use crate::policy::Policy;

/// A policy older than this is fetched again, although it is still valid (RFC 8461 section 10.2).
const REFRESH_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A policy that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedPolicy {
    /// The id in the record of the domain.
    pub id: Box<str>,
    /// When it was fetched.
    pub fetched_at: SystemTime,
    /// The policy.
    pub policy: Policy,
}

impl CachedPolicy {
    /// How long it is still valid. None: it has expired.
    pub(crate) fn remaining(&self, now: SystemTime) -> Option<Duration> {
        // A clock that was set back must not make it valid for longer.
        let age = now.duration_since(self.fetched_at).unwrap_or_default();
        self.policy.max_age.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// Whether it is time to fetch it again, although it may still be valid.
    pub(crate) fn is_refresh_due(&self, now: SystemTime) -> bool {
        let age = now.duration_since(self.fetched_at).unwrap_or_default();
        age >= REFRESH_AFTER.min(self.policy.max_age / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_policy_is_valid_until_its_age_and_fetched_again_before() {
        let start = SystemTime::UNIX_EPOCH + 1_000_000 * HOUR;
        let policy = |hours: u64| {
            let text = format!("version: STSv1\nmode: enforce\nmx: a.example\nmax_age: {}\n", hours * 3600);
            CachedPolicy { id: "1".into(), fetched_at: start, policy: Policy::parse(text.as_bytes()).unwrap() }
        };
        for (max_age, at, remaining, is_due) in [
            (240, 0, Some(240), false),
            (240, 23, Some(217), false),
            (240, 24, Some(216), true),
            (240, 240, None, true),
            (240, 9999, None, true),
            (10, 4, Some(6), false),
            (10, 5, Some(5), true),
            (0, 0, None, true),
        ] {
            let (policy, now) = (policy(max_age), start + at * HOUR);
            assert_eq!(policy.remaining(now), remaining.map(|hours| hours * HOUR), "{max_age} at {at}");
            assert_eq!(policy.is_refresh_due(now), is_due, "{max_age} at {at}");
        }
        assert_eq!(policy(10).remaining(start - HOUR), Some(10 * HOUR));
    }
}
