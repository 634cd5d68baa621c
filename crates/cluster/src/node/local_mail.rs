//! Where a node accepts mail that requires no second copies while the servers are away: in a *local lane*, which
//! has no stream. So no other node can own it, its batches are confirmed by the disk alone, and its mail is
//! delivered without a lease. The node's other lanes are never confirmed without their copies.
//!
//! | the servers | new mail comes into | a local lane with mail |
//! |---|---|---|
//! | answer | own lanes with a lease | is claimed, copied to a new stream, and closed like an adopted lane when it is finished |
//! | are away, or came back less than [`SETTLE_TIME`] ago | a local lane | is delivered from; keeps its mail on this disk alone |
//!
//! An empty local lane is kept for the next time. There are never more than [`LOCAL_LANES_MAX`]: beyond, mail is
//! refused as if it required copies. A crash leaves a local lane as a folder, which the next start opens like a
//! lane that was taken over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mail::{LogLevel, SpoolId};
use parking_lot::Mutex;
use spool::{FolderDisk, LaneId, Spool};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::claim::{OpenLane, claim_own, take_up};
use super::{NodeError, NodeShared, RESTORE_RETRY_DELAY, copies};

/// Local lanes that are not closed.
pub(super) const LOCAL_LANES_MAX: usize = 16;
/// How long the own lanes have a lease before mail comes into them again: servers that come and go do not make
/// a new lane each time.
const SETTLE_TIME: Duration = Duration::from_secs(10);
/// How often it is looked whether the servers are away.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

const BEGINS: &str = "the NATS servers are away: mail is accepted without a second copy";
const ENDS: &str = "the NATS servers are back: mail is accepted with its second copy";
const NO_LANE: &str = "the NATS servers are away, and there is no lane for mail without a second copy: it is refused";

/// The lanes that take new mail.
#[derive(Default)]
pub(super) struct LocalMail {
    state: Mutex<LocalState>,
}

#[derive(Default)]
struct LocalState {
    /// The lanes that take mail while the servers answer; None: it is not known yet who owns them.
    own: Option<Vec<LaneId>>,
    /// The folders of lanes that were made here.
    paths: BTreeMap<LaneId, PathBuf>,
    claiming: BTreeSet<LaneId>,
}

impl LocalMail {
    /// The lanes that take mail while the servers answer.
    pub(super) fn set_own(&self, lanes: Vec<LaneId>) {
        self.state.lock().own = Some(lanes);
    }

    /// Whether a lane may get new mail.
    pub(super) fn takes_mail(&self, lane: LaneId) -> bool {
        self.state.lock().own.iter().flatten().any(|own| *own == lane)
    }

    fn own(&self) -> Option<Vec<LaneId>> {
        self.state.lock().own.clone()
    }

    /// The folder of a lane that is to be claimed; None if that has begun.
    fn begin_claim(&self, lane: LaneId) -> Option<PathBuf> {
        let mut state = self.state.lock();
        let path = state.paths.get(&lane).cloned()?;
        state.claiming.insert(lane).then_some(path)
    }

    fn end_claim(&self, lane: LaneId) {
        self.state.lock().claiming.remove(&lane);
    }
}

/// The id of a new lane.
pub(super) fn new_lane_id(random: u64) -> LaneId {
    LaneId { spool: SpoolId::new(random), number: 0 }
}

impl NodeShared {
    /// A lane without a stream is open, from this folder.
    pub(super) fn add_local(&self, lane: LaneId, path: PathBuf) {
        self.step.insert_local(lane);
        self.local_mail.state.lock().paths.insert(lane, path);
    }
}

/// Decides whether the servers are away.
#[derive(Default)]
struct AbsenceTracker {
    is_away: bool,
    back_since: Option<Instant>,
}

impl AbsenceTracker {
    /// Takes whether an own lane has a lease now. Returns whether mail is accepted without copies.
    fn note(&mut self, has_lease: bool, now: Instant) -> bool {
        if !has_lease {
            (self.is_away, self.back_since) = (true, None);
        } else if self.is_away {
            let since = *self.back_since.get_or_insert(now);
            self.is_away = now.saturating_duration_since(since) < SETTLE_TIME;
        }
        self.is_away
    }
}

/// Chooses the lanes of new mail, until the spool is closed.
pub(super) async fn run(shared: Arc<NodeShared>) {
    let (mut absence, mut chosen, mut was_away) = (AbsenceTracker::default(), Vec::new(), false);
    let mut maker = LaneMaker::default();
    loop {
        let own = shared.local_mail.own();
        let with_lease: Vec<LaneId> =
            own.iter().flatten().copied().filter(|lane| shared.step.may_deliver(*lane)).collect();
        let is_away = absence.note(!with_lease.is_empty(), Instant::now());
        let wanted = if is_away { maker.lane(&shared).await.into_iter().collect() } else { with_lease };
        let Some(spool) = shared.spool.upgrade() else { return };
        if is_away && own.is_some_and(|own| own.is_empty()) {
            // There is no other lane: a local one takes this part when it is claimed.
            wanted.iter().for_each(|lane| begin_claim(&shared, *lane));
        } else if !is_away {
            lanes_with_mail(&shared, &spool).into_iter().for_each(|lane| begin_claim(&shared, lane));
        }
        if wanted != chosen && !wanted.is_empty() {
            spool.accept_in(&wanted);
            chosen = wanted;
        }
        drop(spool);
        log_change(&shared, std::mem::replace(&mut was_away, is_away), is_away);
        sleep(LOOK_INTERVAL).await;
    }
}

fn log_change(shared: &NodeShared, was_away: bool, is_away: bool) {
    match (was_away, is_away) {
        (false, true) => shared.log(LogLevel::Warning, BEGINS, &[("node", &shared.parts.config.node)]),
        (true, false) => shared.log(LogLevel::Info, ENDS, &[("node", &shared.parts.config.node)]),
        _ => {}
    }
}

/// Local lanes with mail that waits.
fn lanes_with_mail(shared: &NodeShared, spool: &Spool) -> Vec<LaneId> {
    let local = shared.step.local_lanes();
    let mut with_mail: Vec<LaneId> = spool.first_ids().into_iter().map(LaneId::of).collect();
    with_mail.retain(|lane| local.contains(lane));
    with_mail
}

/// Makes local lanes, and not too often.
#[derive(Default)]
struct LaneMaker {
    failed_at: Option<Instant>,
    logged: Option<String>,
}

impl LaneMaker {
    /// A local lane for new mail: one that is there, or a new one.
    async fn lane(&mut self, shared: &Arc<NodeShared>) -> Option<LaneId> {
        if let Some(lane) = shared.step.local_lanes().first() {
            return Some(*lane);
        }
        if self.failed_at.is_some_and(|at| at.elapsed() < RESTORE_RETRY_DELAY) {
            return None;
        }
        let making = shared.clone();
        let error = match spawn_blocking(move || make_lane(&making)).await {
            Ok(Ok(lane)) => return lane,
            Ok(Err(error)) => error,
            Err(error) => error.to_string(),
        };
        self.failed_at = Some(Instant::now());
        if self.logged.as_ref() != Some(&error) {
            shared.log(LogLevel::Error, NO_LANE, &[("error", &error)]);
            self.logged = Some(error);
        }
        None
    }
}

/// Makes a lane, and opens it. None: the spool is closed.
fn make_lane(shared: &NodeShared) -> Result<Option<LaneId>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    if shared.folders.local_count().map_err(|error| text(&error))? >= LOCAL_LANES_MAX {
        return Err(format!("{LOCAL_LANES_MAX} such lanes have mail"));
    }
    let (lane, random) = (new_lane_id((shared.parts.random)()), (shared.parts.random)());
    let made = shared.folders.create_local(lane, shared.parts.segment_bytes, random);
    let path = made.map_err(|error| text(&error))?;
    let Some(spool) = shared.spool.upgrade() else { return Ok(None) };
    let disk = FolderDisk::open(&path).map_err(|error| text(&error))?;
    let opened = spool.adopt(Arc::new(disk), &mut |_| {}).map_err(|error| text(&error))?;
    shared.add_local(opened, path);
    Ok(Some(opened))
}

fn begin_claim(shared: &Arc<NodeShared>, lane: LaneId) {
    if let Some(path) = shared.local_mail.begin_claim(lane) {
        tokio::spawn(claim_local(shared.clone(), lane, path));
    }
}

/// Claims a local lane, and copies its mail. It stays local until it is claimed.
async fn claim_local(shared: Arc<NodeShared>, lane: LaneId, path: PathBuf) {
    let epochs = shared.spool.upgrade().map(|spool| spool.lane_epochs()).unwrap_or_default();
    let Some((_, epoch)) = epochs.into_iter().find(|(open, _)| *open == lane) else { return };
    let mut open = OpenLane::local(lane, epoch, path);
    match claim_own(&shared, &mut open).await {
        Ok((handle, last)) => {
            take_up(&shared, &handle);
            {
                let mut state = shared.local_mail.state.lock();
                match &mut state.own {
                    Some(own) if own.is_empty() => own.push(lane),
                    _ => drop(shared.adopted.lock().insert(lane)),
                }
            }
            // What was confirmed without its copy is on the disk after this, and is compared.
            flush(&shared, lane).await;
            copies::compare(shared.clone(), handle, open, last).await;
        }
        // Another node has made its stream. It is not claimed again: that does not pass.
        Err(error @ NodeError::LaneLost { .. }) => {
            shared.step.remove(lane);
            return shared.report_lost(lane, &error.to_string());
        }
        Err(error) => {
            let text = "cannot begin to copy mail that was accepted without NATS servers; trying again";
            shared.log(LogLevel::Error, text, &[("lane", &lane), ("error", &error)]);
            sleep(RESTORE_RETRY_DELAY).await;
        }
    }
    shared.local_mail.end_claim(lane);
}

/// Waits until all that was submitted to a lane before is on the disk, or has failed.
async fn flush(shared: &NodeShared, lane: LaneId) {
    while !shared.stopping.load(Relaxed) {
        let Some(spool) = shared.spool.upgrade() else { return };
        let (sender, done) = oneshot::channel();
        spool.flush(lane, Box::new(move |result| drop(sender.send(result))));
        drop(spool);
        if let Ok(Ok(())) = done.await {
            return;
        }
        sleep(RESTORE_RETRY_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise servers that come and go would make a lane each time.
    #[test]
    fn the_servers_are_back_only_when_they_have_answered_for_a_while() {
        let (mut absence, start) = (AbsenceTracker::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, has_lease, is_away) in [
            (0, true, false),
            (1, false, true),
            (2, true, true),
            (11, true, true),
            (12, false, true),
            (13, true, true),
            (22, true, true),
            (23, true, false),
            (24, true, false),
        ] {
            assert_eq!(absence.note(has_lease, at(seconds)), is_away, "{seconds}");
        }
    }
}
