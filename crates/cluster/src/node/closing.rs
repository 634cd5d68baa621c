//! Closes lanes that this node has taken over, when all their mail is finished: otherwise their streams
//! would be kept and renewed for ever. [`crate::lane::ownership`] says why a closed lane stays fenced.
//!
//! | step | if it fails, or the node does |
//! |---|---|
//! | nothing of the lane is live, here and in its stream, for a while | it is kept |
//! | it takes no mail any more, nothing is live still, and its lease lasts | it takes mail again |
//! | it is noted as closed | it is tried again; the owner goes on, without new mail |
//! | its Release record is stored | others wait for the lease |
//! | its stream is deleted | another node finds the note when it wants to adopt the lane, and deletes it |
//!
//! New mail may come into such a lane by a session that has begun when it was a local one, and got its id then. So it
//! is refused before it is looked for the last time: a lane that is finished then stays so. Its folder is empty,
//! and removed by the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mail::LogLevel;
use spool::LaneId;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, Instant, sleep};

use super::NodeShared;
use crate::{LaneEnd, LaneHandle, StreamError};

/// So often in the time after which a lane is closed, it is looked whether something is live.
const LOOKS: u32 = 10;

/// Closes lanes, for ever.
pub(super) async fn run(shared: Arc<NodeShared>) {
    let close_after = shared.parts.close_lanes_after;
    let mut finished = FinishedLanes::default();
    loop {
        sleep(close_after / LOOKS).await;
        let found = finished_lanes(&shared).await;
        for lane in finished.note(found, Instant::now(), close_after) {
            if let Err(error) = close(&shared, lane).await {
                let text = "cannot close a lane whose mail is finished; trying again";
                shared.log(LogLevel::Warning, text, &[("lane", &lane), ("error", &error)]);
            }
        }
    }
}

/// The lanes that are finished, and since when.
#[derive(Default)]
struct FinishedLanes(BTreeMap<LaneId, Instant>);

impl FinishedLanes {
    /// Takes all lanes that are finished now. Returns those that have been for `close_after`.
    fn note(&mut self, found: Vec<LaneId>, now: Instant, close_after: Duration) -> Vec<LaneId> {
        let since = |lane: LaneId| (lane, self.0.get(&lane).copied().unwrap_or(now));
        self.0 = found.into_iter().map(since).collect();
        let is_over = |since: Instant| now.saturating_duration_since(since) >= close_after;
        self.0.iter().filter(|(_, since)| is_over(**since)).map(|(lane, _)| *lane).collect()
    }
}

/// The adopted lanes of which nothing is live, in the stream and here.
async fn finished_lanes(shared: &Arc<NodeShared>) -> Vec<LaneId> {
    let is_finished = |handle: &LaneHandle| handle.is_finished() && handle.may_deliver() && !handle.is_copying();
    let finished: Vec<LaneId> = shared.step.lanes().iter().filter(|h| is_finished(h)).map(LaneHandle::lane).collect();
    let folders = shared.folders.clone();
    let adopted = spawn_blocking(move || folders.adopted()).await;
    // What cannot be known now is asked again soon.
    let (Ok(Ok(adopted)), Some(with_mail)) = (adopted, lanes_with_mail(shared).await) else { return Vec::new() };
    let is_adopted = |lane: &LaneId| adopted.iter().any(|folder| folder.finished && folder.lane == *lane);
    let has_mail = |lane: &LaneId| with_mail.contains(lane);
    let is_over = |lane: &LaneId| is_adopted(lane) && !has_mail(lane) && !shared.local_mail.takes_mail(*lane);
    finished.into_iter().filter(is_over).collect()
}

/// None: the spool is closed.
async fn lanes_with_mail(shared: &NodeShared) -> Option<BTreeSet<LaneId>> {
    let spool = shared.spool.clone();
    let live = spawn_blocking(move || spool.upgrade().map(|spool| spool.first_ids())).await.ok()??;
    Some(live.into_iter().map(LaneId::of).collect())
}

async fn close(shared: &Arc<NodeShared>, lane: LaneId) -> Result<(), StreamError> {
    let has_mail = async {
        // Without a spool, nobody knows.
        lanes_with_mail(shared).await.is_none_or(|with_mail| with_mail.contains(&lane))
            // The note is for ever. After a suspension, another node may have the lane, and mail in it.
            || !shared.step.may_deliver(lane)
    };
    let Some(handle) = shared.step.close_if_finished(lane, has_mail).await else { return Ok(()) };
    // If it fails, others may find the note: no mail comes into the lane any more.
    shared.connection.note_closed(lane).await?;
    // If another node has claimed it meanwhile, that one goes on.
    if handle.release().await != LaneEnd::Released {
        return Ok(());
    }
    shared.step.remove(lane);
    shared.adopted.lock().remove(&lane);
    let folders = shared.folders.clone();
    // If that is not noted, one lane less can be made without the servers.
    drop(spawn_blocking(move || folders.end_local(lane)).await);
    shared.log(LogLevel::Info, "closed a lane that was taken over: all its mail is finished", &[("lane", &lane)]);
    shared.connection.lane_stream(lane).delete().await.map(drop)
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    #[test]
    fn a_lane_is_closed_when_it_was_finished_all_the_time() {
        let lane = |number| LaneId { spool: SpoolId::new(1), number };
        let (mut finished, start, after) = (FinishedLanes::default(), Instant::now(), Duration::from_secs(10));
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, found, closed) in [
            (0, vec![lane(0), lane(1)], vec![]),
            (5, vec![lane(0)], vec![]),
            (10, vec![lane(0), lane(1)], vec![lane(0)]),
            (15, vec![lane(1)], vec![]),
            (20, vec![lane(1)], vec![lane(1)]),
        ] {
            assert_eq!(finished.note(found, at(seconds), after), closed, "{seconds}");
        }
    }
}
