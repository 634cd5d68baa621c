//! Decides when a lane of another node may be claimed.

use super::{BootTime, LaneTimes, StreamTail, TailFailure};

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatcherAction {
    /// Ask for the end of the stream, and pass it to `handle_tail`.
    ReadTail,
    /// The lane may be claimed with this tail.
    MayAdopt(StreamTail),
}

/// Watches a lane of another node.
pub struct LaneWatcher;

#[expect(clippy::unimplemented, unused_variables, reason = "signatures for those who build on them")]
#[allow(missing_docs)]
impl LaneWatcher {
    pub fn new(times: LaneTimes, now: BootTime) -> LaneWatcher {
        unimplemented!()
    }
    pub fn handle_hint(&mut self, now: BootTime) {}
    pub fn handle_tail(&mut self, tail: Result<StreamTail, TailFailure>, now: BootTime) {}
    pub fn handle_timeout(&mut self, now: BootTime) {}
    pub fn poll_action(&mut self) -> Option<WatcherAction> {
        unimplemented!()
    }
    pub fn poll_timeout(&self) -> Option<BootTime> {
        unimplemented!()
    }
}
