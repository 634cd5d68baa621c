//! The retry rules: computes the verdict for an outcome from the time, the attempt and a seed.
//!
//! | outcome | lifetime has passed | verdict |
//! |---|---|---|
//! | delivered, relayed | | the same |
//! | failed | | failed, with the same reason |
//! | deferred | no | deferred until `first * factor^(number - 1)`, at most `longest`, spread by the jitter; never beyond the end of the lifetime, when a last attempt is due |
//! | deferred | yes | failed: 5.4.7, with the last reply in its text |

use std::time::Duration;

use mail::{EnhancedCode, Outcome, QueueId, Reply, Timestamp};

/// The minimum delay, whatever the settings are.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// When to retry, and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The delay after the first attempt.
    pub first: Duration,
    /// Each delay is this many times the previous one.
    pub factor: f64,
    /// The maximum delay, before the jitter.
    pub longest: Duration,
    /// Delays vary at random by this fraction in both directions, from 0 to 1.
    pub jitter: f64,
    /// Counted from acceptance. The first attempt that is deferred after it is the last one.
    pub lifetime: Duration,
}

impl Default for RetryPolicy {
    /// 1 minute, doubled up to 4 hours, with 20 % jitter, for 5 days.
    fn default() -> Self {
        RetryPolicy {
            first: Duration::from_secs(60),
            factor: 2.0,
            longest: Duration::from_secs(4 * 3600),
            jitter: 0.2,
            lifetime: Duration::from_secs(5 * 24 * 3600),
        }
    }
}

/// The result of an attempt or action for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecipientVerdict {
    /// Delivered to the mailbox.
    Delivered,
    /// Another server has accepted responsibility: done here.
    Relayed {
        /// Its reply.
        reply: Reply,
        /// It has also accepted responsibility for the requested delivery status notifications.
        dsn: bool,
    },
    /// Another attempt follows.
    Deferred {
        /// The reason.
        reason: Reply,
        /// When the next attempt is due.
        until: Timestamp,
    },
    /// No further attempt.
    Failed {
        /// The reason.
        reason: Reply,
    },
    /// The operator holds it: no further attempt until it is released.
    Held,
    /// The operator removed it.
    Removed,
}

/// The properties of an attempt that the rules use.
pub(crate) struct AttemptInfo {
    pub(crate) id: QueueId,
    /// The first ordinal of the attempt. Its recipients share the jitter, so that they are due
    /// together again.
    pub(crate) ordinal: u32,
    /// Counted from 1.
    pub(crate) number: u16,
    pub(crate) accepted_at: Timestamp,
}

impl RetryPolicy {
    /// The verdict for `outcome`. The same arguments always give the same verdict.
    pub(crate) fn judge(&self, now: Timestamp, seed: u64, made: &AttemptInfo, outcome: Outcome) -> RecipientVerdict {
        let end = made.accepted_at + self.lifetime;
        match outcome {
            Outcome::Delivered => RecipientVerdict::Delivered,
            Outcome::Relayed { reply, dsn } => RecipientVerdict::Relayed { reply, dsn },
            Outcome::Failed(reason) => RecipientVerdict::Failed { reason },
            Outcome::Deferred(reason) if now < end => {
                let delay = self.delay(made.number, spread(seed, made));
                RecipientVerdict::Deferred { reason, until: (now + delay).min(end) }
            }
            Outcome::Deferred(reason) => {
                RecipientVerdict::Failed { reason: lifetime_exceeded(now.since(made.accepted_at), &reason) }
            }
        }
    }

    /// The delay after attempt `number`; `spread` is from -1 to 1.
    fn delay(&self, number: u16, spread: f64) -> Duration {
        let growth = self.factor.powi(i32::from(number.saturating_sub(1)));
        // `min` also handles the NaN of infinity times zero.
        let plain = (self.first.as_secs_f64() * growth).min(self.longest.as_secs_f64());
        let seconds = plain * (1.0 + self.jitter.clamp(0.0, 1.0) * spread);
        Duration::try_from_secs_f64(seconds).unwrap_or(self.longest).max(DELAY_MIN)
    }
}

/// RFC 3463 section 3.5, X.4.7: "delivery time expired".
fn lifetime_exceeded(age: Duration, last: &Reply) -> Reply {
    let text = format!("delivery time expired after {}; the last reply was: {last}", duration_text(age));
    Reply::new(554, EnhancedCode(5, 4, 7), text)
}

/// The duration in the largest unit of which it has at least two.
fn duration_text(span: Duration) -> String {
    let seconds = span.as_secs();
    let (unit, name) = [(86_400, "days"), (3600, "hours"), (60, "minutes")]
        .into_iter()
        .find(|(unit, _)| seconds >= 2 * unit)
        .unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}

/// From -1 to 1, a function of the attempt, so that the result is the same after a restart or when
/// asked again.
fn spread(seed: u64, made: &AttemptInfo) -> f64 {
    let id = made.id;
    let parts =
        [id.spool().bits(), u64::from(id.lane()), id.sequence(), u64::from(made.ordinal), u64::from(made.number)];
    let random = parts.into_iter().fold(mix(seed), |state, part| mix(state ^ part));
    // An f64 holds 53 bits exactly.
    (random >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// One step of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mail::SpoolId;

    const ACCEPTED: Timestamp = Timestamp(1_000_000);

    /// The first two numbers of the published generator from the seed 1234567.
    #[test]
    fn a_step_of_the_generator_gives_the_published_numbers() {
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567_u64.wrapping_add(0x9E37_79B9_7F4A_7C15)), 3_203_168_211_198_807_973);
    }

    fn made(sequence: u64, number: u16) -> AttemptInfo {
        AttemptInfo { id: QueueId::new(SpoolId::new(9), 0, sequence), ordinal: 3, number, accepted_at: ACCEPTED }
    }

    fn busy() -> Reply {
        Reply::new(451, EnhancedCode(4, 3, 0), "busy")
    }

    fn wait(retry: &RetryPolicy, now: Timestamp, made: &AttemptInfo) -> Duration {
        match retry.judge(now, 1, made, Outcome::Deferred(busy())) {
            RecipientVerdict::Deferred { until, .. } => until.since(now),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let retry = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
        let minutes: Vec<u64> = (1..=11).map(|n| wait(&retry, ACCEPTED, &made(1, n)).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 64, 128, 240, 240, 240]);
        assert_eq!(wait(&retry, ACCEPTED, &made(1, u16::MAX)), retry.longest);
    }

    #[test]
    fn the_jitter_spreads_over_its_share_and_is_the_same_when_asked_again() {
        let retry = RetryPolicy::default();
        let waits: Vec<f64> = (0..1000).map(|n| wait(&retry, ACCEPTED, &made(n, 1)).as_secs_f64()).collect();
        assert!(waits.iter().all(|wait| (48.0..=72.0).contains(wait)));
        let mean = waits.iter().sum::<f64>() / 1000.0;
        assert!((59.0..61.0).contains(&mean), "{mean}");
        assert!(waits.iter().any(|&wait| wait < 49.0) && waits.iter().any(|&wait| wait > 71.0));
        assert_eq!(wait(&retry, ACCEPTED, &made(7, 1)), wait(&retry, ACCEPTED, &made(7, 1)));
    }

    #[test]
    fn settings_that_make_no_sense_still_make_a_wait() {
        for (first, factor, jitter) in
            [(0, f64::INFINITY, 5.0), (60, -3.0, 0.2), (60, f64::NAN, f64::NAN), (0, 1.0, 0.0)]
        {
            let retry = RetryPolicy { first: Duration::from_secs(first), factor, jitter, ..RetryPolicy::default() };
            let wait = wait(&retry, ACCEPTED, &made(1, 2));
            assert!((DELAY_MIN..=retry.longest * 2).contains(&wait), "{first} {factor} {jitter}: {wait:?}");
        }
    }

    #[test]
    fn the_last_attempt_is_due_at_the_end_of_the_lifetime_and_a_deferral_then_fails() {
        let retry = RetryPolicy::default();
        let end = ACCEPTED + retry.lifetime;
        assert_eq!(wait(&retry, end - Duration::from_secs(5), &made(1, 30)), Duration::from_secs(5));
        let verdict = retry.judge(end, 1, &made(1, 31), Outcome::Deferred(busy()));
        let text = "delivery time expired after 5 days; the last reply was: 451 4.3.0 busy";
        assert_eq!(verdict, RecipientVerdict::Failed { reason: Reply::new(554, EnhancedCode(5, 4, 7), text) });
    }

    #[test]
    fn a_delivery_and_a_failure_are_final_at_any_age() {
        let (retry, late) = (RetryPolicy::default(), Timestamp(u64::MAX));
        let refused = Reply::without_enhanced_code(550, "no");
        assert_eq!(retry.judge(late, 1, &made(1, 1), Outcome::Delivered), RecipientVerdict::Delivered);
        let (reply, dsn) = (Reply::without_enhanced_code(250, "queued"), true);
        let relayed = retry.judge(late, 1, &made(1, 1), Outcome::Relayed { reply: reply.clone(), dsn });
        assert_eq!(relayed, RecipientVerdict::Relayed { reply, dsn });
        let verdict = retry.judge(ACCEPTED, 1, &made(1, 1), Outcome::Failed(refused.clone()));
        assert_eq!(verdict, RecipientVerdict::Failed { reason: refused });
    }
}
