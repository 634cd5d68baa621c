//! Logs failures whose cause clients are not told, such as an unavailable directory or a disk
//! error. An outage affects every session, so at most one line per second is logged, with the
//! number of lines suppressed before it.

use std::fmt;
use std::time::{Duration, Instant};

use mail::OperatorLog;
use parking_lot::Mutex;

/// The minimum time between two lines.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Takes the text of a line and the number of lines suppressed before it. Must not block for long.
type LogSink = Box<dyn Fn(&str, u64) + Send + Sync>;

/// A log of at most one line per second.
pub struct ThrottledLog {
    sink: LogSink,
    state: Mutex<ThrottleState>,
}

#[derive(Default)]
struct ThrottleState {
    last_at: Option<Instant>,
    suppressed: u64,
}

impl ThrottledLog {
    /// Passes each line to `sink`, with the number of lines suppressed before it.
    pub fn new(sink: impl Fn(&str, u64) + Send + Sync + 'static) -> Self {
        ThrottledLog { sink: Box::new(sink), state: Mutex::default() }
    }

    /// The number of suppressed lines, if a line may be logged now.
    fn try_begin_line(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.last_at.is_some_and(|last_at| now.duration_since(last_at) < QUIET_TIME) {
            state.suppressed += 1;
            return None;
        }
        state.last_at = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl OperatorLog for ThrottledLog {
    /// Logs a line, unless one was logged within the last second.
    fn log_line(&self, line: fmt::Arguments<'_>) {
        if let Some(left_out) = self.try_begin_line(Instant::now()) {
            (self.sink)(&line.to_string(), left_out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_those_left_out() {
        let log = ThrottledLog::new(|_, _| {});
        let start = Instant::now();
        assert_eq!(log.try_begin_line(start), Some(0));
        assert_eq!(log.try_begin_line(start), None);
        assert_eq!(log.try_begin_line(start + QUIET_TIME / 2), None);
        assert_eq!(log.try_begin_line(start + QUIET_TIME), Some(2));
        assert_eq!(log.try_begin_line(start + QUIET_TIME * 2), Some(0));
    }
}
