//! Remembers the usage of Maildirs that take long to count, with the messages delivered since. So a
//! mailbox whose usage file is removed again and again by constant changes is still limited, and
//! counting it takes only a small share of the time.
//!
//! | age of a slow count | answer | recount |
//! |---|---|---|
//! | up to 100 times its duration, at most 5 minutes | the remembered usage | no |
//! | above, up to 15 minutes | the remembered usage | yes |
//! | older | none | yes |

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Usage;

/// Faster counts are not remembered.
const SLOW_COUNT_MIN: Duration = Duration::from_millis(50);
/// A Maildir is not recounted for this many times the duration of its count,
const RECOUNT_DELAY_RATIO: u32 = 100;
/// but at most for this long.
const RECOUNT_DELAY_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a count is valid: as long as the usage file of a full mailbox.
const COUNT_VALID_FOR: Duration = Duration::from_secs(15 * 60);
/// The most Maildirs remembered.
const TRACKED_MAX: usize = 10_000;

/// The remembered counts.
#[derive(Default)]
pub(super) struct SlowCounts {
    counts: HashMap<PathBuf, SlowCount>,
}

/// The usage of a Maildir known without counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownUsage {
    /// The counted usage, and what was delivered since.
    pub(super) usage: Usage,
    /// A recount is due.
    pub(super) is_due: bool,
}

struct SlowCount {
    usage: Usage,
    at: Instant,
    recount_delay: Duration,
}

impl SlowCounts {
    /// The remembered usage of the Maildir.
    pub(super) fn find(&self, folder: &Path, now: Instant) -> Option<KnownUsage> {
        let counted = self.counts.get(folder).filter(|counted| counted.is_valid(now))?;
        Some(KnownUsage { usage: counted.usage, is_due: counted.age(now) > counted.recount_delay })
    }

    /// Remembers a count that has just finished if it took long; else forgets the Maildir.
    pub(super) fn record(&mut self, folder: &Path, usage: Usage, took: Duration, now: Instant) {
        if took < SLOW_COUNT_MIN {
            self.counts.remove(folder);
            return;
        }
        if self.counts.len() >= TRACKED_MAX {
            self.counts.retain(|_, counted| counted.is_valid(now));
        }
        if self.counts.len() < TRACKED_MAX || self.counts.contains_key(folder) {
            let recount_delay = took.saturating_mul(RECOUNT_DELAY_RATIO).min(RECOUNT_DELAY_MAX);
            self.counts.insert(folder.to_owned(), SlowCount { usage, at: now, recount_delay });
        }
    }

    /// Adds what is delivered to the Maildir.
    pub(super) fn add(&mut self, folder: &Path, added: Usage) {
        if let Some(counted) = self.counts.get_mut(folder) {
            counted.usage = counted.usage + added;
        }
    }
}

impl SlowCount {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.age(now) < COUNT_VALID_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Usage = Usage { bytes: 500, messages: 5 };

    fn known(usage: Usage, is_due: bool) -> Option<KnownUsage> {
        Some(KnownUsage { usage, is_due })
    }

    #[test]
    fn slow_counts_age_in_three_steps() {
        let (mut counts, now) = (SlowCounts::default(), Instant::now());
        let seconds = |seconds| now + Duration::from_secs(seconds);
        counts.record(Path::new("a"), HELD, Duration::from_secs(1), now);
        counts.record(Path::new("b"), HELD, Duration::from_secs(60), now);
        for (folder, age, expected) in [
            ("a", 100, known(HELD, false)),
            ("a", 101, known(HELD, true)),
            ("b", 300, known(HELD, false)),
            ("b", 301, known(HELD, true)),
            ("b", 899, known(HELD, true)),
            ("b", 900, None),
            ("c", 0, None),
        ] {
            assert_eq!(counts.find(Path::new(folder), seconds(age)), expected, "{folder} {age}");
        }
    }

    #[test]
    fn fast_counts_are_forgotten() {
        let (mut counts, now) = (SlowCounts::default(), Instant::now());
        let folder = Path::new("a");
        counts.record(folder, HELD, SLOW_COUNT_MIN, now);
        assert_eq!(counts.find(folder, now), known(HELD, false));
        counts.record(folder, HELD, SLOW_COUNT_MIN - Duration::from_millis(1), now);
        assert_eq!(counts.find(folder, now), None);
    }

    #[test]
    fn added_usage_counts_until_the_next_count() {
        let (mut counts, now) = (SlowCounts::default(), Instant::now());
        let folder = Path::new("a");
        counts.add(folder, Usage::of_message(7));
        assert_eq!(counts.find(folder, now), None);
        counts.record(folder, HELD, SLOW_COUNT_MIN, now);
        counts.add(folder, Usage::of_message(7));
        assert_eq!(counts.find(folder, now), known(Usage { bytes: 507, messages: 6 }, false));
        counts.record(folder, HELD, SLOW_COUNT_MIN, now);
        assert_eq!(counts.find(folder, now), known(HELD, false));
    }

    #[test]
    fn tracked_counts_are_bounded() {
        let (mut counts, now) = (SlowCounts::default(), Instant::now());
        for number in 0..TRACKED_MAX + 1 {
            counts.record(Path::new(&number.to_string()), HELD, SLOW_COUNT_MIN, now);
        }
        assert_eq!(counts.counts.len(), TRACKED_MAX);
        counts.record(Path::new("0"), Usage::default(), SLOW_COUNT_MIN, now);
        assert_eq!(counts.find(Path::new("0"), now), known(Usage::default(), false));
        counts.record(Path::new("a"), HELD, SLOW_COUNT_MIN, now + COUNT_VALID_FOR);
        assert_eq!(counts.counts.len(), 1);
    }
}
