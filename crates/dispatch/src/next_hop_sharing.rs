//! What this server shares with others that deliver to the same next hops, see [`queue::Queues`].

use std::time::Duration;

use queue::SlotReport;

/// Passes on what the queues tell other servers. Called on the scheduler's thread: it must not wait.
/// The answers come by [`SchedulerHandle::grant_departures`](crate::SchedulerHandle::grant_departures),
/// and what others tell by [`SchedulerHandle::report_lame_elsewhere`](crate::SchedulerHandle::report_lame_elsewhere).
pub trait NextHopSharing: Send + Sync {
    /// Asks for departures to a next hop with a shared rate, which `interval` is the inverse of.
    fn request_departures(&self, next_hop: &str, interval: Duration, count: u32);

    /// The slots of a next hop with a shared concurrency have changed. The answer comes by
    /// [`SchedulerHandle::grant_slots`](crate::SchedulerHandle::grant_slots).
    fn report_slots(&self, report: SlotReport);

    /// A next hop was found to be lame here.
    fn announce_lame(&self, next_hop: &str);
}
