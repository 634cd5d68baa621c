//! The clock by which leases are measured.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::lane::BootTime;

/// The time since this machine was started, with the time for which it was suspended
/// (`CLOCK_BOOTTIME`): no change of the date moves it, and no suspension stops it.
pub fn boot_time() -> BootTime {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    BootTime(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
}
