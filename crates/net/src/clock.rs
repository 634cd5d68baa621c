//! The clock of sessions: it begins at the wall clock's time and never jumps, so that setting the clock ends no
//! session and lets none go on for ever. What is written down for people has the wall clock's time.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use mail::Timestamp;
use tokio::time::Instant;

/// Now, by the clock of sessions.
pub fn steady_now() -> Timestamp {
    let (start, time) = start();
    time + start.elapsed()
}

/// When the clock of sessions will show `moment`, or a millisecond later: it has whole ones.
pub fn instant_of(moment: Timestamp) -> Instant {
    let (start, time) = start();
    start + moment.since(time) + Duration::from_millis(1)
}

fn start() -> (Instant, Timestamp) {
    static START: OnceLock<(Instant, Timestamp)> = OnceLock::new();
    *START.get_or_init(|| (Instant::now(), SystemTime::now().into()))
}
