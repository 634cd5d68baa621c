//! The monotonic clock of sessions. It starts at the wall-clock time and never jumps, so that
//! setting the clock neither ends sessions nor keeps them open. Times for people come from the wall
//! clock.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use mail::Timestamp;
use tokio::time::Instant;

/// The current time of the session clock.
pub fn steady_now() -> Timestamp {
    let (start, time) = start();
    time + start.elapsed()
}

/// The instant at which the session clock passes `moment`; one millisecond later, because the clock
/// counts whole milliseconds.
pub fn steady_instant(moment: Timestamp) -> Instant {
    let (start, time) = start();
    start + moment.since(time) + Duration::from_millis(1)
}

fn start() -> (Instant, Timestamp) {
    static START: OnceLock<(Instant, Timestamp)> = OnceLock::new();
    *START.get_or_init(|| (Instant::now(), SystemTime::now().into()))
}
