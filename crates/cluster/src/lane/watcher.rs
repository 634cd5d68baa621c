//! Decides when a lane of another node may be claimed.
//!
//! While the Renew records of the owner are heard, nothing is asked. After one and a half intervals
//! without one, the end of the stream is asked for once an interval. If it does not move for the lease
//! and the margin, the lane may be claimed; or at once if the last record is a Release record.
//!
//! What is heard proves nothing, it only saves questions, and an answer may be old. Neither does
//! harm: a claim names the last sequence of the stream, and fails if that was not the last one.

use std::collections::VecDeque;
use std::time::Duration;

use super::{BootTime, LEASE_MAX, LaneTimes, StreamTail, TailFailure};
use crate::record::RecordKind;

/// So many halves of a renew interval may pass without a Renew record.
const QUIET_HALVES: u32 = 3;

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatcherAction {
    /// Ask for the end of the stream, and pass it to [`LaneWatcher::handle_tail`].
    ReadTail,
    /// The lane may be claimed while this is the end of its stream. If the claim fails, go on
    /// watching: the next such action comes when the lane has been quiet for as long again.
    MayAdopt(StreamTail),
}

/// Watches a lane of another node.
pub struct LaneWatcher {
    times: LaneTimes,
    next_question: BootTime,
    /// The end of the stream, and when it was seen first.
    seen: Option<(StreamTail, BootTime)>,
    actions: VecDeque<WatcherAction>,
}

impl LaneWatcher {
    /// Begins as if a Renew record had just been heard.
    pub fn new(times: LaneTimes, now: BootTime) -> LaneWatcher {
        let mut watcher = LaneWatcher { times, next_question: now, seen: None, actions: VecDeque::new() };
        watcher.handle_hint(now);
        watcher
    }

    /// The lease of the owner, which is to be known before the end of the stream is passed on.
    pub fn set_owner_lease(&mut self, lease: Duration) {
        self.times = self.times.with_lease(lease);
    }

    /// A Renew record of the lane was heard.
    pub fn handle_hint(&mut self, now: BootTime) {
        self.next_question = now.after(self.quiet_time());
    }

    /// The end of the stream.
    pub fn handle_tail(&mut self, tail: Result<StreamTail, TailFailure>, now: BootTime) {
        let Ok(tail) = tail else { return };
        match self.seen {
            Some((seen, since)) if seen.last_sequence == tail.last_sequence => {
                if now.since(since) >= self.times.lease + self.times.margin {
                    self.allow(tail, now);
                }
            }
            _ => self.see(tail, now),
        }
    }

    /// Takes note of the time; due at [`LaneWatcher::poll_timeout`].
    pub fn handle_timeout(&mut self, now: BootTime) {
        if now >= self.next_question {
            self.next_question = now.after(self.question_interval());
            self.actions.push_back(WatcherAction::ReadTail);
        }
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<WatcherAction> {
        self.actions.pop_front()
    }

    /// When [`LaneWatcher::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<BootTime> {
        Some(self.next_question)
    }

    fn see(&mut self, tail: StreamTail, now: BootTime) {
        self.seen = Some((tail, now));
        if tail.record.is_some_and(|record| record.kind == RecordKind::Release) {
            self.allow(tail, now);
        }
    }

    fn allow(&mut self, tail: StreamTail, now: BootTime) {
        self.seen = Some((tail, now));
        self.actions.push_back(WatcherAction::MayAdopt(tail));
    }

    fn quiet_time(&self) -> Duration {
        self.question_interval() * QUIET_HALVES / 2
    }

    /// An owner that announces a longer lease renews it as often as usual, and may announce a shorter one.
    fn question_interval(&self) -> Duration {
        self.times.with_lease(self.times.lease.min(LEASE_MAX)).renew_interval()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordHeader;

    fn at(ms: u64) -> BootTime {
        BootTime(Duration::from_millis(ms))
    }

    fn tail(last_sequence: u64, kind: RecordKind) -> Result<StreamTail, TailFailure> {
        let record = RecordHeader { kind, epoch: 1, token: 1, batch: 0, part: 0, last: false };
        Ok(StreamTail { last_sequence, first_sequence: 1, record: Some(record) })
    }

    fn questions_until(watcher: &mut LaneWatcher, end_ms: u64) -> usize {
        let mut questions = 0;
        while let Some(due) = watcher.poll_timeout().filter(|due| *due <= at(end_ms)) {
            watcher.handle_timeout(due);
            questions += std::iter::from_fn(|| watcher.poll_action()).count();
        }
        questions
    }

    #[test]
    fn nothing_is_asked_while_the_owner_is_heard() {
        let mut watcher = LaneWatcher::new(LaneTimes::default(), at(0));
        for second in 1..60 {
            watcher.handle_hint(at(second * 1000));
            assert_eq!(questions_until(&mut watcher, second * 1000 + 999), 0);
        }
        assert_eq!(questions_until(&mut watcher, 60_499), 0);
        assert_eq!(questions_until(&mut watcher, 62_500), 3);
    }

    #[test]
    fn a_lane_may_be_claimed_when_its_stream_was_quiet_for_the_lease_and_the_margin() {
        let mut watcher = LaneWatcher::new(LaneTimes::default(), at(0));
        watcher.handle_tail(tail(7, RecordKind::Part), at(2000));
        watcher.handle_tail(tail(8, RecordKind::Part), at(5000));
        watcher.handle_tail(tail(8, RecordKind::Part), at(8999));
        assert_eq!(watcher.poll_action(), None);
        watcher.handle_tail(Err(TailFailure::Unavailable), at(9000));
        assert_eq!(watcher.poll_action(), None);
        watcher.handle_tail(tail(8, RecordKind::Part), at(9000));
        assert_eq!(watcher.poll_action(), Some(WatcherAction::MayAdopt(tail(8, RecordKind::Part).unwrap())));
        watcher.handle_tail(tail(8, RecordKind::Part), at(9001));
        assert_eq!(watcher.poll_action(), None, "not again at once");
    }

    /// Otherwise both would deliver.
    #[test]
    fn an_owner_with_a_longer_lease_is_given_its_time() {
        let mut watcher = LaneWatcher::new(LaneTimes::default(), at(0));
        watcher.set_owner_lease(Duration::from_secs(30));
        watcher.handle_tail(tail(7, RecordKind::Part), at(0));
        watcher.handle_tail(tail(7, RecordKind::Part), at(39_999));
        assert_eq!(watcher.poll_action(), None);
        watcher.handle_tail(tail(7, RecordKind::Part), at(40_000));
        assert!(matches!(watcher.poll_action(), Some(WatcherAction::MayAdopt(_))));
    }

    /// It may announce a shorter one meanwhile.
    #[test]
    fn an_owner_with_a_very_long_lease_is_asked_for_as_often_as_others() {
        let mut watcher = LaneWatcher::new(LaneTimes::default(), at(0));
        watcher.set_owner_lease(Duration::from_secs(12 * 3600));
        watcher.handle_hint(at(0));
        assert_eq!(questions_until(&mut watcher, 50_000), 2);
        watcher.handle_tail(tail(7, RecordKind::Part), at(50_000));
        watcher.set_owner_lease(Duration::from_secs(3));
        watcher.handle_tail(tail(7, RecordKind::Part), at(54_000));
        assert!(matches!(watcher.poll_action(), Some(WatcherAction::MayAdopt(_))));
    }

    #[test]
    fn a_released_lane_may_be_claimed_at_once() {
        let mut watcher = LaneWatcher::new(LaneTimes::default(), at(0));
        watcher.handle_tail(tail(7, RecordKind::Release), at(1));
        assert!(matches!(watcher.poll_action(), Some(WatcherAction::MayAdopt(_))));
    }
}
