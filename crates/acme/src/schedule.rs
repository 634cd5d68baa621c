//! When a certificate is renewed, and when a failed attempt is repeated. Time and chance are arguments.
//!
//! | after | the next attempt |
//! |---|---|
//! | a certificate was issued | a third of its life, or `renew_before`, before its end; a bit earlier by chance |
//! | a failure | after 5 minutes, doubled with each failure up to a day, a fifth more or less by chance |
//! | a failure with Retry-After | not before that, but at most a week later |

use std::time::{Duration, SystemTime};

const FIRST_RETRY: Duration = Duration::from_secs(5 * 60);
/// The longest wait between attempts that fail.
const LONGEST_RETRY: Duration = Duration::from_secs(24 * 3600);
/// What an authority can ask for (Retry-After) is not believed beyond this.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The shortest time from one certificate to the next, if it is not longer than a quarter of its life:
/// the clock may be wrong.
const RENEWAL_INTERVAL_MIN: Duration = Duration::from_secs(24 * 3600);

/// When a certificate is due to be renewed. `chance` is from 0 to 1, and spreads the attempts of many
/// servers.
pub(crate) fn renewal_time(
    not_before: SystemTime,
    not_after: SystemTime,
    renew_before: Option<Duration>,
    chance: f64,
) -> SystemTime {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    // More than half would renew short-lived certificates all the time.
    let ahead = renew_before.unwrap_or(life / 3).min(life / 2);
    let earlier = (life / 30).mul_f64(chance.clamp(0.0, 1.0));
    not_after.checked_sub(ahead + earlier).unwrap_or(not_before)
}

/// The same for a certificate that was issued at `now`.
pub(crate) fn next_renewal(
    (not_before, not_after): (SystemTime, SystemTime),
    renew_before: Option<Duration>,
    now: SystemTime,
    chance: f64,
) -> SystemTime {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    let soonest = now + RENEWAL_INTERVAL_MIN.min(life / 4);
    renewal_time(not_before, not_after, renew_before, chance).max(soonest)
}

/// How long to wait after this many failures in a row. `chance` is from 0 to 1.
pub(crate) fn retry_delay(failures: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let delay = FIRST_RETRY.saturating_mul(1 << doublings).min(LONGEST_RETRY);
    let delay = delay.mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0));
    delay.max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY + days * DAY
    }

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        assert_eq!(renewal_time(at(0), at(90), None, 0.0), at(60));
        assert_eq!(renewal_time(at(0), at(90), None, 1.0), at(57));
        assert_eq!(renewal_time(at(0), at(90), Some(10 * DAY), 0.0), at(80));
        assert_eq!(renewal_time(at(0), at(6), Some(30 * DAY), 0.0), at(3), "not all the time");
    }

    #[test]
    fn a_wrong_clock_does_not_renew_a_new_certificate_at_once() {
        let life = (at(0), at(90));
        assert_eq!(next_renewal(life, None, at(0), 0.0), at(60));
        assert_eq!(next_renewal(life, None, at(80), 0.0), at(81));
        let short = (at(0), at(0) + Duration::from_secs(60));
        assert_eq!(next_renewal(short, None, at(0) + Duration::from_secs(50), 0.0), at(0) + Duration::from_secs(65));
        assert_eq!(next_renewal((at(9), at(0)), None, at(5), 0.5), at(5), "ends before it begins");
    }

    #[test]
    fn failures_are_repeated_after_minutes_and_at_last_after_a_day() {
        let minutes = |failures| retry_delay(failures, None, 0.5).as_secs() / 60;
        assert_eq!([0, 1, 2, 3, 4].map(minutes), [5, 5, 10, 20, 40]);
        assert_eq!([9, 10, 60, u32::MAX].map(minutes), [1280, 1440, 1440, 1440]);
        assert_eq!(retry_delay(1, None, 0.0), Duration::from_secs(240));
        assert_eq!(retry_delay(1, None, 1.0), Duration::from_secs(360));
    }

    #[test]
    fn the_authority_can_ask_for_more_time_but_not_for_ever() {
        let asked = |seconds| retry_delay(1, Some(Duration::from_secs(seconds)), 0.5);
        assert_eq!(asked(10), FIRST_RETRY);
        assert_eq!(asked(7200), Duration::from_secs(7200));
        assert_eq!(asked(u64::MAX), RETRY_AFTER_MAX);
    }
}
