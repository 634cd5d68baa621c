//! Takes over a lane: claims it, restores it from its stream into a folder, and hands its live
//! messages to the scheduler. Once it is claimed, it is this node's, so what fails after that is
//! tried again until it succeeds or another node claims the lane.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use mail::LogLevel;
use spool::{Disk, FolderDisk, LaneId, LaneRestorer, LiveMessage, RestoreError, Spool};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, sleep};

use super::NodeShared;
use super::claim::{EndFailure, claim, end_of, is_closed, take_up};
use super::copies::reader;
use super::folders::{mark_copied, mark_finished};
use super::replay::{ReplayFailure, ReplayedLane, replay};
use crate::lane::StreamTail;
use crate::{LaneHandle, LaneStream};

/// The pause before a lane is restored again after a failure.
const RESTORE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// So many messages are handed to the scheduler at once.
const ADMITTED_AT_ONCE: usize = 1000;

/// What became of an attempt to adopt a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adoption {
    /// The lane is this node's, or was.
    Done,
    /// Its owner is alive, or another node was faster.
    Refused,
    /// It is not known how its stream ends.
    Unknown(EndFailure),
}

/// Adopts a lane as it is at `tail`.
pub(super) async fn adopt(shared: &Arc<NodeShared>, stream: &LaneStream, tail: StreamTail) -> Adoption {
    let lane = stream.lane();
    // The epoch of the last owner's spool has to be known: ids that it has given are not given again.
    let (now, newest) = match end_of(stream).await {
        Ok(end) => end,
        Err(failure) => return Adoption::Unknown(failure),
    };
    if now.last_sequence != tail.last_sequence {
        return Adoption::Refused;
    }
    match is_closed(&shared.connection, lane).await {
        Ok(false) => {}
        Ok(true) => return remove_closed(stream).await,
        Err(failure) => return Adoption::Unknown(failure.into()),
    }
    let spool_epoch = newest.as_ref().map_or(0, |newest| newest.record.spool_epoch);
    // The folder is created in the next epoch, and opened in the one after it.
    let handle = claim(shared, stream.clone(), (&tail, newest.as_ref()), spool_epoch.saturating_add(2));
    shared.adopting.lock().insert(lane);
    if handle.claimed().await.is_err() {
        shared.adopting.lock().remove(&lane);
        return Adoption::Refused;
    }
    take_up(shared, &handle);
    shared.log(LogLevel::Warning, "taking over a lane whose owner gives no sign of life", &[("lane", &lane)]);
    restore_until_done(shared, stream, &handle, (tail.last_sequence, spool_epoch)).await;
    shared.adopting.lock().remove(&lane);
    Adoption::Done
}

/// Removes the stream of a closed lane: who closed it has failed to do so, or a start has made it anew.
async fn remove_closed(stream: &LaneStream) -> Adoption {
    // If it fails, it is tried again.
    drop(stream.delete().await);
    Adoption::Refused
}

async fn restore_until_done(
    shared: &Arc<NodeShared>,
    stream: &LaneStream,
    handle: &LaneHandle,
    (last, spool_epoch): (u64, u32),
) {
    let (begin, lane) = (Instant::now(), stream.lane());
    while handle.ended().now_or_never().is_none() {
        let (runtime, restoring) = (Handle::current(), LaneRestoration::new(shared, stream, last, spool_epoch));
        let error = match spawn_blocking(move || restoring.run(&runtime)).await {
            Ok(Ok(Some((replayed, messages)))) => {
                handle.seed(replayed.retention, reader(shared));
                let took = format!("{:.1}s", begin.elapsed().as_secs_f64());
                let fields: [(&'static str, &dyn std::fmt::Display); 3] =
                    [("lane", &lane), ("messages", &messages), ("took", &took)];
                shared.log(LogLevel::Info, "took over a lane", &fields);
                return;
            }
            // The server is stopping.
            Ok(Ok(None)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let text = "cannot restore a lane; its mail waits";
        shared.log(LogLevel::Error, text, &[("lane", &lane), ("error", &error)]);
        sleep(RESTORE_RETRY_DELAY).await;
    }
}

/// The restoration of a lane, on a blocking thread.
struct LaneRestoration {
    shared: Arc<NodeShared>,
    stream: LaneStream,
    /// The last sequence of the stream before the claim.
    last: u64,
    /// The epoch of the last owner's spool.
    spool_epoch: u32,
}

impl LaneRestoration {
    fn new(shared: &Arc<NodeShared>, stream: &LaneStream, last: u64, spool_epoch: u32) -> Self {
        LaneRestoration { shared: shared.clone(), stream: stream.clone(), last, spool_epoch }
    }

    /// Returns what the stream has, and the number of live messages. None: the spool is closed.
    fn run(&self, runtime: &Handle) -> Result<Option<(ReplayedLane, usize)>, ReplayFailure> {
        let (shared, lane) = (&self.shared, self.stream.lane());
        let path = shared.folders.create_adopted(lane)?;
        let replayed = self.restore(runtime, lane, &path)?;
        let Some(spool) = shared.spool.upgrade() else { return Ok(None) };
        let count = open_adopted(shared, &spool, &path)?;
        // From here on it is as if it had always been here; all of it came from the stream.
        let marked = mark_copied(&path, self.spool_epoch.saturating_add(2)).and_then(|()| mark_finished(&path));
        if let Err(error) = marked {
            let text = "cannot mark an adopted lane as complete; the next start restores it again";
            shared.log(LogLevel::Warning, text, &[("folder", &path.display()), ("error", &error)]);
        }
        Ok(Some((replayed, count)))
    }

    fn restore(&self, runtime: &Handle, lane: LaneId, path: &Path) -> Result<ReplayedLane, ReplayFailure> {
        let disk: Arc<dyn Disk> = Arc::new(FolderDisk::open(path)?);
        let parts = &self.shared.parts;
        let config = spool::Config { segment_bytes: parts.segment_bytes, ..spool::Config::default() };
        let restorer = LaneRestorer::create(disk, lane, self.spool_epoch, config, (parts.random)())?;
        let replayed = replay(runtime, &self.stream, self.last, Some(&restorer))?;
        restorer.finish()?;
        Ok(replayed)
    }
}

/// Opens a restored lane, and hands its messages on in parts. Returns their number.
fn open_adopted(shared: &NodeShared, spool: &Arc<Spool>, path: &Path) -> Result<usize, ReplayFailure> {
    let (mut count, mut part) = (0, Vec::new());
    let mut take = |live: LiveMessage| {
        count += 1;
        part.push(live);
        if part.len() == ADMITTED_AT_ONCE {
            (shared.admit)(std::mem::take(&mut part));
        }
    };
    let adopted = spool.adopt(Arc::new(FolderDisk::open(path)?), &mut take);
    adopted.map_err(RestoreError::from)?;
    (shared.admit)(part);
    Ok(count)
}
