//! Moves mail of lanes that another node has taken over, and which was never copied: it is only on this disk.
//! That cannot happen while all goes well ([`crate::lane::COPYING_LEASE`]); it does if a lane is taken over by hand,
//! or after a very long time, before all of it was copied.
//!
//! A message is moved that the disk has, that is not in the stream, and that may never have been copied
//! ([`UncopiedMail`]). It gets a new id in a lane of this node, in a batch with the states of its recipients.
//! Then the old log says that it is finished, so an interrupted move goes on; one message may be there twice then,
//! and so may be those that were copied, and that the other node has finished. The folder is removed at the end; if
//! something in it cannot be read, it stays.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;

use mail::{LogLevel, QueueId};
use spool::{
    CommitError, FolderDisk, LaneId, ReadError, RecipientState, Spool, SpoolEntry, SpooledMessage, SubmittedBody,
};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::body_check::check_body;
use super::folders::{FencedFolder, UncopiedMail};
use super::replay::{ReplayFailure, replay};
use super::{NodeShared, RESTORE_RETRY_DELAY};
use crate::lane::TailFailure;

/// Larger bodies are copied in parts.
const BODY_IN_MEMORY_MAX: u64 = 1 << 20;

/// Why mail could not be moved; it is tried again.
#[derive(Debug, thiserror::Error)]
enum MoveError {
    #[error("the server is stopping")]
    Stopping,
    #[error("{0}")]
    Open(#[from] spool::OpenError),
    #[error("cannot read its stream: {0}")]
    Stream(#[from] ReplayFailure),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("cannot read a message: {0}")]
    Read(#[from] ReadError),
    #[error("cannot commit a message: {0}")]
    Commit(#[from] CommitError),
}

/// What became of the mail of a folder.
#[derive(Default)]
struct Moved {
    messages: usize,
    unreadable: usize,
}

/// Moves the mail of all fenced folders, one after the other. Those with which that fails are tried again after the
/// others: a stream may be unreadable until this node has a later version.
pub(super) async fn run(shared: Arc<NodeShared>) {
    let (mut folders, mut logged) = (fenced_folders(&shared).await, BTreeSet::new());
    loop {
        let mut left = Vec::new();
        for folder in folders {
            if shared.stopping.load(Relaxed) {
                return;
            }
            let (moving, moved_folder, runtime) = (shared.clone(), folder.clone(), Handle::current());
            // Without a result, the server is stopping.
            let moved = spawn_blocking(move || move_mail(&moving, &moved_folder, &runtime)).await;
            let Ok(moved) = moved else { return };
            match moved {
                Ok(moved) => log_end(&shared, &folder, &moved),
                Err(error) => {
                    if logged.insert(folder.path.clone()) {
                        let text = "cannot move mail of a lane that another node has taken over; trying again";
                        shared.log(LogLevel::Error, text, &[("folder", &folder.path.display()), ("error", &error)]);
                    }
                    left.push(folder);
                }
            }
        }
        if left.is_empty() {
            return;
        }
        folders = left;
        sleep(RESTORE_RETRY_DELAY).await;
    }
}

/// The folders that are there after the start. Tries again until they can be listed.
async fn fenced_folders(shared: &Arc<NodeShared>) -> Vec<FencedFolder> {
    let mut has_failed = false;
    loop {
        let folders = shared.folders.clone();
        let error = match spawn_blocking(move || folders.fenced()).await {
            Ok(Ok(found)) => return found,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut has_failed, true) {
            let text = "cannot list the lanes that other nodes have taken over; trying again";
            shared.log(LogLevel::Error, text, &[("error", &error)]);
        }
        sleep(RESTORE_RETRY_DELAY).await;
    }
}

fn log_end(shared: &NodeShared, folder: &FencedFolder, moved: &Moved) {
    let (text, level) = match moved.unreadable {
        0 => ("moved mail of a lane that another node has taken over, and that was never copied", LogLevel::Info),
        _ => ("cannot read all mail of a lane that another node has taken over: its folder stays", LogLevel::Error),
    };
    let fields: [(&'static str, &dyn std::fmt::Display); 4] = [
        ("lane", &folder.lane),
        ("messages", &moved.messages),
        ("unreadable", &moved.unreadable),
        ("folder", &folder.path.display()),
    ];
    shared.log(level, text, &fields);
}

fn move_mail(shared: &NodeShared, folder: &FencedFolder, runtime: &Handle) -> Result<Moved, MoveError> {
    let plan = MovePlan::of(shared, folder, runtime)?;
    let mut live = BTreeSet::new();
    let settings = spool::Config { segment_bytes: shared.parts.segment_bytes, ..spool::Config::default() };
    let disk = FolderDisk::open(&folder.path)?;
    let old = spool::open(vec![Arc::new(disk)], settings, (shared.parts.random)(), &mut |message| {
        live.insert(message.id);
    })?;
    live.retain(|id| plan.includes(*id));
    plan.note(folder, &live)?;
    let mut moved = Moved::default();
    for id in live {
        if shared.stopping.load(Relaxed) {
            return Err(MoveError::Stopping);
        }
        match intact_message(&old, id) {
            Ok(message) => {
                move_message(shared, &old, id, message)?;
                moved.messages += 1;
            }
            Err(error @ ReadError::Unavailable(_)) => return Err(error.into()),
            Err(error) => {
                moved.unreadable += 1;
                shared.log(LogLevel::Error, "cannot read a message to move", &[("id", &id), ("error", &error)]);
            }
        }
    }
    old.close();
    moved.unreadable += folder.damaged_files()?;
    if moved.unreadable == 0 {
        folder.remove()?;
    }
    Ok(moved)
}

/// Reads a message. One that is damaged is not moved: it would count as intact there.
fn intact_message(old: &Spool, id: QueueId) -> Result<SpooledMessage, ReadError> {
    let message = old.message(id)?;
    check_body(&message.body).map_err(|error| ReadError::Damaged { what: error.to_string() })?;
    Ok(message)
}

/// What is to be moved.
enum MovePlan {
    /// An earlier try has begun with it.
    Noted(BTreeSet<QueueId>),
    New {
        uncopied: UncopiedMail,
        in_stream: HashMap<QueueId, u32>,
    },
}

impl MovePlan {
    fn of(shared: &NodeShared, folder: &FencedFolder, runtime: &Handle) -> Result<MovePlan, MoveError> {
        if let Some(ids) = folder.moving()? {
            return Ok(MovePlan::Noted(ids));
        }
        let in_stream = ids_in_stream(shared, folder.lane, runtime)?;
        Ok(MovePlan::New { uncopied: folder.uncopied()?, in_stream })
    }

    fn includes(&self, id: QueueId) -> bool {
        match self {
            MovePlan::Noted(ids) => ids.contains(&id),
            MovePlan::New { in_stream, .. } if in_stream.contains_key(&id) => false,
            MovePlan::New { uncopied, .. } => uncopied.includes(id),
        }
    }

    /// The log was opened, which begins a new epoch of its spool: another try goes by what is noted.
    fn note(&self, folder: &FencedFolder, ids: &BTreeSet<QueueId>) -> io::Result<()> {
        match self {
            MovePlan::Noted(_) => Ok(()),
            MovePlan::New { .. } => folder.note_moving(ids),
        }
    }
}

/// The messages that the new owner has, with the numbers of their recipients.
fn ids_in_stream(shared: &NodeShared, lane: LaneId, runtime: &Handle) -> Result<HashMap<QueueId, u32>, MoveError> {
    let stream = shared.connection.lane_stream(lane);
    let is_stopping = || shared.stopping.load(Relaxed);
    let last = match runtime.block_on(stream.tail()) {
        Ok(tail) => tail.last_sequence,
        // All mail that it had is finished.
        Err(TailFailure::NoStream) => return Ok(HashMap::new()),
        Err(failure) => return Err(ReplayFailure::Start(failure).into()),
    };
    Ok(replay(runtime, &stream, last, None, &is_stopping)?.recipients)
}

fn move_message(shared: &NodeShared, old: &Spool, id: QueueId, message: SpooledMessage) -> Result<(), MoveError> {
    let spool = shared.spool.upgrade().ok_or(MoveError::Stopping)?;
    let new = spool.new_id();
    let SpooledMessage { envelope, states, body, prefix_len } = message;
    let mut prefix = vec![0; usize::try_from(prefix_len).unwrap_or(0)];
    read_exact(&body, &mut prefix, 0)?;
    let content = if body.len() <= BODY_IN_MEMORY_MAX {
        let mut rest = vec![0; usize::try_from(body.len() - prefix_len).unwrap_or(0)];
        read_exact(&body, &mut rest, prefix_len)?;
        SubmittedBody::Memory { prefix, body: rest }
    } else {
        let mut file = spool.create_spill_file(new)?;
        let (mut part, mut at) = (vec![0; 64 << 10], prefix_len);
        while at < body.len() {
            let count = part.len().min(usize::try_from(body.len() - at).unwrap_or(usize::MAX));
            read_exact(&body, &mut part[..count], at)?;
            file.append(&part[..count])?;
            at += count as u64;
        }
        SubmittedBody::Spilled(file.finish(&prefix).map_err(io::Error::other)?)
    };
    let recipients = (0..).zip(states.iter().copied());
    let known: Vec<_> = recipients.clone().filter(|(_, state)| *state != RecipientState::NEW).collect();
    let mut entries = vec![SpoolEntry::Message { id: new, envelope, content, flags: body.flags() }];
    if !known.is_empty() {
        entries.push(SpoolEntry::Outcome { id: new, recipients: known, bounce: None });
    }
    commit(&spool, entries)?;
    let ended = recipients.map(|(ordinal, _)| (ordinal, RecipientState::Withdrawn)).collect();
    commit(old, vec![SpoolEntry::Outcome { id, recipients: ended, bounce: None }])?;
    shared.log(LogLevel::Info, "moved a message to a lane of this node", &[("id", &new), ("old", &id)]);
    Ok(())
}

fn read_exact(body: &mail::Body, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = body.read_at(buffer, at)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += count as u64;
        buffer = &mut buffer[count..];
    }
    Ok(())
}

fn commit(spool: &Spool, entries: Vec<SpoolEntry>) -> Result<(), CommitError> {
    let (sender, result) = channel();
    spool.submit(entries, Box::new(move |done| drop(sender.send(done))));
    result.recv().unwrap_or(Err(CommitError::Closed))
}
