//! Watches the lanes of other nodes, with a task for each: it passes what it hears and reads to a
//! [`LaneWatcher`], and adopts the lane when that allows it.
//!
//! All nodes may do so at the same time; the first record wins. So that lanes are spread, a node
//! waits the longer before it claims one, the more it has already.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use mail::LogLevel;
use spool::LaneId;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::adoption::{self, Adoption};
use super::claim::EndFailure;
use super::{NodeShared, RETRY_DELAY};
use crate::LaneStream;
use crate::clock::boot_time;
use crate::lane::watcher::{LaneWatcher, WatcherAction};
use crate::lane::{LEASE_MAX, StreamTail, TailFailure};

/// How often the streams of the cluster are listed.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// A claim waits this long for each lane that the node has, so that one with fewer is first.
const CLAIM_DELAY_PER_LANE: Duration = Duration::from_millis(100);
const CLAIM_DELAY_MAX: Duration = Duration::from_secs(1);
/// And up to this long by chance, so that nodes with equally many do not meet.
const CLAIM_JITTER: Duration = Duration::from_millis(100);

/// A lane of another node.
pub(super) struct WatchedLane {
    /// Wakes the task: a sign of life went by.
    hints: mpsc::Sender<()>,
}

/// Finds the lanes of the cluster, for ever.
pub(super) async fn run(shared: Arc<NodeShared>) {
    tokio::spawn(pass_hints(shared.clone()));
    loop {
        // Without an answer there is nothing new.
        for lane in shared.connection.lanes().await.unwrap_or_default() {
            watch(&shared, lane);
        }
        sleep(LIST_INTERVAL).await;
    }
}

/// Begins to watch a lane, unless it is ours or watched already.
fn watch(shared: &Arc<NodeShared>, lane: LaneId) {
    if shared.owns(lane) {
        return;
    }
    let mut watched = shared.watched.lock();
    if watched.contains_key(&lane) {
        return;
    }
    let (hints, received) = mpsc::channel(1);
    watched.insert(lane, WatchedLane { hints });
    tokio::spawn(watch_lane(shared.clone(), lane, received));
}

/// Passes signs of life to the tasks of their lanes, for ever.
async fn pass_hints(shared: Arc<NodeShared>) {
    loop {
        if let Ok(mut renewals) = shared.connection.renewals().await {
            while let Some(lane) = renewals.next().await {
                if let Some(watched) = shared.watched.lock().get(&lane) {
                    // If one waits already, another says nothing more.
                    let _ = watched.hints.try_send(());
                }
            }
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn watch_lane(shared: Arc<NodeShared>, lane: LaneId, mut hints: mpsc::Receiver<()>) {
    let stream = shared.connection.lane_stream(lane);
    let mut watcher = LaneWatcher::new(shared.parts.config.lane_times(), boot_time());
    let (mut logged, mut known_epoch) = (None, None);
    // It may be taken over by hand meanwhile.
    while !shared.owns(lane) {
        match watcher.poll_action() {
            Some(WatcherAction::ReadTail) => match stream.tail().await {
                // It was removed: there is nothing to adopt.
                Err(TailFailure::NoStream) => break,
                tail => {
                    let tail = match tail {
                        Ok(tail) => with_owner_lease(&stream, tail, &mut watcher, &mut known_epoch).await,
                        failed => failed,
                    };
                    tail.err().into_iter().for_each(|failure| log_failure(&shared, lane, failure.into(), &mut logged));
                    watcher.handle_tail(tail, boot_time());
                }
            },
            Some(WatcherAction::MayAdopt(tail)) => {
                sleep(claim_delay(&shared, lane)).await;
                match adoption::adopt(&shared, &stream, tail).await {
                    Adoption::Done => break,
                    Adoption::Unknown(failure) => log_failure(&shared, lane, failure, &mut logged),
                    Adoption::Refused => {}
                }
            }
            None => wait(&mut watcher, &mut hints).await,
        }
    }
    shared.watched.lock().remove(&lane);
}

/// Passes the lease of the owner to the watcher, before it sees the end of the stream. `known_epoch` is the
/// epoch whose lease the watcher has.
async fn with_owner_lease(
    stream: &LaneStream,
    tail: StreamTail,
    watcher: &mut LaneWatcher,
    known_epoch: &mut Option<u64>,
) -> Result<StreamTail, TailFailure> {
    let Some(epoch) = tail.record.map(|record| record.epoch).filter(|epoch| Some(*epoch) != *known_epoch) else {
        return Ok(tail);
    };
    if let Some(newest) = stream.newest_epoch().await? {
        // Another server answers, which does not know of the new owner yet.
        if newest.header.epoch < epoch {
            return Err(TailFailure::Unavailable);
        }
        watcher.set_owner_lease(newest.record.lease);
        // A longer one is announced only for a while.
        *known_epoch = (newest.record.lease <= LEASE_MAX).then_some(newest.header.epoch);
    }
    Ok(tail)
}

/// A lane that this version cannot read waits for a node that can, and one without a known owner for an
/// operator. It is logged once.
fn log_failure(shared: &NodeShared, lane: LaneId, failure: EndFailure, logged: &mut Option<EndFailure>) {
    let lasts = matches!(failure, EndFailure::OwnerUnknown(_) | EndFailure::Stream(TailFailure::Unreadable { .. }));
    if !lasts || logged.replace(failure) == Some(failure) {
        return;
    }
    let text = "cannot watch a lane: if its node fails, another one has to take it over";
    let fields: [(&'static str, &dyn Display); 2] = [("lane", &lane), ("error", &failure)];
    shared.log(LogLevel::Warning, text, &fields);
}

async fn wait(watcher: &mut LaneWatcher, hints: &mut mpsc::Receiver<()>) {
    let now = boot_time();
    let pause = watcher.poll_timeout().map_or(LIST_INTERVAL, |until| until.since(now));
    tokio::select! {
        Some(()) = hints.recv() => watcher.handle_hint(boot_time()),
        () = sleep(pause) => watcher.handle_timeout(boot_time()),
    }
}

fn claim_delay(shared: &NodeShared, lane: LaneId) -> Duration {
    let lanes = u32::try_from(shared.step.lanes().len()).unwrap_or(u32::MAX);
    let mut hasher = DefaultHasher::new();
    (&shared.parts.config.node.to_string(), lane).hash(&mut hasher);
    let jitter = CLAIM_JITTER.mul_f64((hasher.finish() % 1000) as f64 / 1000.0);
    CLAIM_DELAY_PER_LANE.saturating_mul(lanes).min(CLAIM_DELAY_MAX) + jitter
}
