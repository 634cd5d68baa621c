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

use mailbox::quota::Usage;

/// Faster counts are not remembered.
const SLOW_MIN: Duration = Duration::from_millis(50);
/// A Maildir is not recounted for this many times the duration of its count,
const REST_RATIO: u32 = 100;
/// but at most for this long.
const REST_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a count is valid: as long as the usage file of a full mailbox.
const BELIEVED_FOR: Duration = Duration::from_secs(15 * 60);
/// The most Maildirs remembered.
const KNOWN_MAX: usize = 10_000;

/// The remembered counts.
#[derive(Default)]
pub(super) struct Slow {
    known: HashMap<PathBuf, Counted>,
}

/// The usage of a Maildir known without counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The counted usage, and what was delivered since.
    pub(super) usage: Usage,
    /// A recount is due.
    pub(super) is_due: bool,
}

struct Counted {
    usage: Usage,
    at: Instant,
    rest: Duration,
}

impl Slow {
    /// The remembered usage of the Maildir.
    pub(super) fn find(&self, folder: &Path, now: Instant) -> Option<Known> {
        let counted = self.known.get(folder).filter(|counted| counted.is_believed(now))?;
        Some(Known { usage: counted.usage, is_due: counted.age(now) > counted.rest })
    }

    /// Remembers a count that has just finished if it took long; else forgets the Maildir.
    pub(super) fn learn(&mut self, folder: &Path, usage: Usage, took: Duration, now: Instant) {
        if took < SLOW_MIN {
            self.known.remove(folder);
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, counted| counted.is_believed(now));
        }
        if self.known.len() < KNOWN_MAX || self.known.contains_key(folder) {
            let rest = took.saturating_mul(REST_RATIO).min(REST_MAX);
            self.known.insert(folder.to_owned(), Counted { usage, at: now, rest });
        }
    }

    /// Adds what is delivered to the Maildir.
    pub(super) fn add(&mut self, folder: &Path, added: Usage) {
        if let Some(counted) = self.known.get_mut(folder) {
            counted.usage = counted.usage + added;
        }
    }
}

impl Counted {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    fn is_believed(&self, now: Instant) -> bool {
        self.age(now) < BELIEVED_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Usage = Usage { bytes: 500, messages: 5 };

    fn known(usage: Usage, is_due: bool) -> Option<Known> {
        Some(Known { usage, is_due })
    }

    #[test]
    fn what_took_long_rests_for_a_hundred_times_as_long_and_is_believed_for_a_quarter_of_an_hour() {
        let (mut slow, now) = (Slow::default(), Instant::now());
        let seconds = |seconds| now + Duration::from_secs(seconds);
        slow.learn(Path::new("a"), HELD, Duration::from_secs(1), now);
        slow.learn(Path::new("b"), HELD, Duration::from_secs(60), now);
        for (folder, age, expected) in [
            ("a", 100, known(HELD, false)),
            ("a", 101, known(HELD, true)),
            ("b", 300, known(HELD, false)),
            ("b", 301, known(HELD, true)),
            ("b", 899, known(HELD, true)),
            ("b", 900, None),
            ("c", 0, None),
        ] {
            assert_eq!(slow.find(Path::new(folder), seconds(age)), expected, "{folder} {age}");
        }
    }

    #[test]
    fn what_was_quick_is_not_remembered_and_no_longer_slow() {
        let (mut slow, now) = (Slow::default(), Instant::now());
        let folder = Path::new("a");
        slow.learn(folder, HELD, SLOW_MIN, now);
        assert_eq!(slow.find(folder, now), known(HELD, false));
        slow.learn(folder, HELD, SLOW_MIN - Duration::from_millis(1), now);
        assert_eq!(slow.find(folder, now), None);
    }

    #[test]
    fn what_is_brought_counts_until_the_next_count() {
        let (mut slow, now) = (Slow::default(), Instant::now());
        let folder = Path::new("a");
        slow.add(folder, Usage::message(7));
        assert_eq!(slow.find(folder, now), None);
        slow.learn(folder, HELD, SLOW_MIN, now);
        slow.add(folder, Usage::message(7));
        assert_eq!(slow.find(folder, now), known(Usage { bytes: 507, messages: 6 }, false));
        slow.learn(folder, HELD, SLOW_MIN, now);
        assert_eq!(slow.find(folder, now), known(HELD, false));
    }

    #[test]
    fn no_more_are_remembered_than_the_limit_and_those_of_today() {
        let (mut slow, now) = (Slow::default(), Instant::now());
        for number in 0..KNOWN_MAX + 1 {
            slow.learn(Path::new(&number.to_string()), HELD, SLOW_MIN, now);
        }
        assert_eq!(slow.known.len(), KNOWN_MAX);
        slow.learn(Path::new("0"), Usage::default(), SLOW_MIN, now);
        assert_eq!(slow.find(Path::new("0"), now), known(Usage::default(), false));
        slow.learn(Path::new("a"), HELD, SLOW_MIN, now + BELIEVED_FOR);
        assert_eq!(slow.known.len(), 1);
    }
}
