//! What ends a run early: the operator's wish, and the end of the time for it. Whoever receives
//! signals sets a flag; everything here that waits looks at the flag several times a second, so
//! programs that were started are ended in an orderly way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::CompareError;

/// How often a wait looks at the flag and at what it waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Whether the run is to end; clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Interrupt {
    /// `flag` becomes true when a signal arrives, and stays so.
    #[must_use]
    pub fn from_flag(flag: Arc<AtomicBool>) -> Interrupt {
        Interrupt { flag, deadline: None }
    }

    /// The same flag, and a time at which the run ends.
    #[must_use]
    pub fn until(&self, deadline: Option<Instant>) -> Interrupt {
        Interrupt { flag: self.flag.clone(), deadline }
    }

    /// # Errors
    ///
    /// [`CompareError::Interrupted`] once a signal arrived, [`CompareError::TimeOver`] after the
    /// deadline.
    pub fn check(&self) -> Result<(), CompareError> {
        match self.flag.load(Relaxed) {
            true => Err(CompareError::Interrupted),
            false if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) => Err(CompareError::TimeOver),
            false => Ok(()),
        }
    }

    /// Waits until `poll` returns a value, or for `time_max`; None if the time is over.
    ///
    /// # Errors
    ///
    /// Those of `poll` and of [`Interrupt::check`].
    pub fn wait_for<T>(
        &self,
        time_max: Duration,
        mut poll: impl FnMut() -> Result<Option<T>, CompareError>,
    ) -> Result<Option<T>, CompareError> {
        let begun = Instant::now();
        loop {
            self.check()?;
            if let Some(value) = poll()? {
                return Ok(Some(value));
            }
            let left = time_max.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Waits for this time.
    ///
    /// # Errors
    ///
    /// Those of [`Interrupt::check`].
    pub fn rest(&self, time: Duration) -> Result<(), CompareError> {
        self.wait_for(time, || Ok(None::<()>)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_a_value_with_the_time_or_with_a_signal() {
        let flag = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt::from_flag(flag.clone());
        let mut polls = 0;
        let mut third = || {
            polls += 1;
            Ok((polls == 3).then_some(polls))
        };
        assert_eq!(interrupt.wait_for(Duration::from_secs(60), &mut third).unwrap(), Some(3));
        assert_eq!(interrupt.wait_for(Duration::ZERO, || Ok(None::<u8>)).unwrap(), None);
        let late = interrupt.until(Some(Instant::now()));
        assert!(matches!(late.rest(Duration::from_secs(60)), Err(CompareError::TimeOver)));
        flag.store(true, Relaxed);
        assert!(matches!(late.check(), Err(CompareError::Interrupted)));
        assert!(matches!(interrupt.rest(Duration::from_secs(60)), Err(CompareError::Interrupted)));
    }
}
