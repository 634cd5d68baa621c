//! Logs failures whose cause clients are not told, such as an unavailable directory or a disk
//! error. An outage affects every session, so at most one line per second is logged, with the
//! number of lines suppressed before it.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two lines.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Takes the text of a line and the number of lines suppressed before it. Must not block for long.
type Tell = Box<dyn Fn(&str, u64) + Send + Sync>;

/// A log of at most one line per second.
pub struct Troubles {
    tell: Tell,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    last_at: Option<Instant>,
    left_out: u64,
}

impl Troubles {
    /// Passes each line to `tell`, with the number of lines suppressed before it.
    pub fn new(tell: impl Fn(&str, u64) + Send + Sync + 'static) -> Self {
        Troubles { tell: Box::new(tell), told: Mutex::default() }
    }

    /// Logs a line, unless one was logged within the last second.
    pub fn report(&self, what: impl Display) {
        if let Some(left_out) = self.turn(Instant::now()) {
            (self.tell)(&what.to_string(), left_out);
        }
    }

    /// The number of suppressed lines, if a line may be logged now.
    fn turn(&self, now: Instant) -> Option<u64> {
        // No panic can leave the count inconsistent.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.last_at.is_some_and(|last_at| now.duration_since(last_at) < QUIET_TIME) {
            told.left_out += 1;
            return None;
        }
        told.last_at = Some(now);
        Some(std::mem::take(&mut told.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_those_left_out() {
        let troubles = Troubles::new(|_, _| {});
        let start = Instant::now();
        assert_eq!(troubles.turn(start), Some(0));
        assert_eq!(troubles.turn(start), None);
        assert_eq!(troubles.turn(start + QUIET_TIME / 2), None);
        assert_eq!(troubles.turn(start + QUIET_TIME), Some(2));
        assert_eq!(troubles.turn(start + QUIET_TIME * 2), Some(0));
    }
}
