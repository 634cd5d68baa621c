//! What the operator should hear of, and no client is told: why the directory could not say, why a disk did not
//! take a body. One outage is the trouble of every session, so at most one line a second goes out, and says how
//! many were left out since the one before.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// No two lines are nearer to each other than this.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Takes the text of a line, and how many were left out before it. Must not block for long.
type Tell = Box<dyn Fn(&str, u64) + Send + Sync>;

/// The way to the operator.
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
    /// Lines go to `tell`, each with the number of those that were left out before it.
    pub fn new(tell: impl Fn(&str, u64) + Send + Sync + 'static) -> Self {
        Troubles { tell: Box::new(tell), told: Mutex::default() }
    }

    /// Tells the operator, unless a line went out a moment ago.
    pub fn report(&self, what: impl Display) {
        if let Some(left_out) = self.turn(Instant::now()) {
            (self.tell)(&what.to_string(), left_out);
        }
    }

    /// How many were left out, if it is time for a line.
    fn turn(&self, now: Instant) -> Option<u64> {
        // Counting cannot panic half-way.
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
