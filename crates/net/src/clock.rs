//! The clock of sessions: it begins at the wall clock's time and never jumps, so that setting the clock ends no
//! session and lets none go on for ever. What is written down for people has the wall clock's time.

use std::sync::OnceLock;
use std::time::SystemTime;

use mail::Timestamp;
use tokio::time::Instant;

/// Now, by the clock of sessions.
pub fn steady_now() -> Timestamp {
    static START: OnceLock<(Instant, Timestamp)> = OnceLock::new();
    let (start, time) = START.get_or_init(|| (Instant::now(), SystemTime::now().into()));
    *time + start.elapsed()
}
