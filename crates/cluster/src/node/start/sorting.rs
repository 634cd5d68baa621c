//! Joins the cluster: takes the name of the node, makes what all nodes share, and sorts the folders on the
//! disks by who owns their lanes.

use std::fmt::Display;

use mail::LogLevel;
use spool::LaneId;
use tokio::task::AbortHandle;

use super::folder_error;
use crate::Connection;
use crate::lane::ownership::LaneOwnership;
use crate::node::claim::{is_closed, newest_epoch, until_answered};
use crate::node::folders::{AdoptedFolder, Aside, LaneFolders, OwnFolder};
use crate::node::{NodeError, NodeParts};

/// Answers other processes with the name of this node, until it is dropped: a further attempt to join would be
/// answered by the one before.
pub(in crate::node) struct NameKeeper(AbortHandle);

impl Drop for NameKeeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is known when the servers have answered.
pub(super) struct JoinedNode {
    /// Answers other processes with the name of this node.
    pub(super) name_keeper: NameKeeper,
    /// Lanes in their own folders that are still this node's.
    pub(super) own: Vec<OwnFolder>,
    /// The others.
    pub(super) adopted: Vec<OwnedFolder>,
}

/// The folder of an adopted lane that is still this node's.
pub(super) struct OwnedFolder {
    pub(super) path: std::path::PathBuf,
    pub(super) lane: LaneId,
    /// The stream has all mail that was acknowledged.
    pub(super) is_copied: bool,
}

impl JoinedNode {
    /// Joins. The folders of lanes that are `open` are left alone.
    pub(super) async fn join(
        connection: &Connection,
        folders: &LaneFolders,
        parts: &NodeParts,
        open: &[LaneId],
    ) -> Result<JoinedNode, NodeError> {
        let name_keeper = take_name(connection, parts).await?;
        let sorted = async {
            set_up_shared(connection, parts).await?;
            FolderSorting { connection, folders, parts, open }.run().await
        };
        let (own, adopted) = sorted.await?;
        Ok(JoinedNode { name_keeper, own, adopted })
    }
}

/// Ends the start if another process has the name; answers those that want it from now on.
async fn take_name(connection: &Connection, parts: &NodeParts) -> Result<NameKeeper, NodeError> {
    if connection.is_name_taken().await {
        return Err(NodeError::NameTaken(parts.config.node.clone()));
    }
    let keeper = until_answered(&*parts.log, || connection.keep_name()).await;
    Ok(NameKeeper(tokio::spawn(keeper).abort_handle()))
}

/// Makes the streams that all nodes share, and tells which nodes have other settings.
async fn set_up_shared(connection: &Connection, parts: &NodeParts) -> Result<(), NodeError> {
    let set_up = async || match connection.set_up_shared().await {
        Err(error) if error.is_temporary() => Err(error),
        set_up => Ok(set_up),
    };
    for stream in until_answered(&*parts.log, set_up).await? {
        parts.log.event(LogLevel::Info, "gave a shared stream the settings of this node", &[("stream", &stream)]);
    }
    // If they cannot be listed now, `mailrace cluster nodes` shows it later.
    let nodes = async { connection.nodes().await?.list().await }.await.unwrap_or_default();
    for (node, _) in nodes.iter().filter(|(_, entry)| entry.configuration != parts.configuration) {
        let text = "another node has a different configuration; use the same on all nodes";
        parts.log.event(LogLevel::Warning, text, &[("node", node)]);
    }
    Ok(())
}

/// Sorts the folders on the disks by who owns their lanes.
struct FolderSorting<'a> {
    connection: &'a Connection,
    folders: &'a LaneFolders,
    parts: &'a NodeParts,
    open: &'a [LaneId],
}

impl FolderSorting<'_> {
    /// Returns the lanes that are still this node's: in their own folders, and the others.
    async fn run(&self) -> Result<(Vec<OwnFolder>, Vec<OwnedFolder>), NodeError> {
        let (mut ours, mut lost) = (Vec::new(), Vec::new());
        for folder in self.folders.own().map_err(|error| self.failed(error))? {
            match self.ownership(folder.lane, folder.epoch).await {
                LaneOwnership::Ours => ours.push(folder),
                LaneOwnership::Gone(reason) => {
                    self.log_lost(folder.lane, &reason);
                    lost.push(folder);
                }
            }
        }
        // New lanes would get the numbers of the lost ones, so the spool begins anew. The lost ones
        // go last: while one is there, an interrupted start decides the same again.
        if !lost.is_empty() {
            for folder in std::mem::take(&mut ours) {
                folder.set_aside(Aside::Adopted).map_err(|error| self.failed(error))?;
            }
            for folder in lost {
                folder.set_aside(Aside::Fenced).map_err(|error| self.failed(error))?;
            }
        }
        Ok((ours, self.adopted().await?))
    }

    async fn adopted(&self) -> Result<Vec<OwnedFolder>, NodeError> {
        let mut ours = Vec::new();
        let folders = self.folders.adopted().map_err(|error| self.failed(error.into()))?;
        for folder in folders.into_iter().filter(|folder| !self.open.contains(&folder.lane)) {
            if !folder.finished {
                // If the lane is still this node's, it is restored again.
                folder.remove().map_err(|error| self.failed(error.into()))?;
                continue;
            }
            let epoch = folder.epoch().map_err(|error| self.failed(error))?;
            match self.ownership(folder.lane, epoch).await {
                LaneOwnership::Ours => {
                    let is_copied = folder.is_copied(epoch);
                    let AdoptedFolder { path, lane, .. } = folder;
                    ours.push(OwnedFolder { path, lane, is_copied });
                }
                LaneOwnership::Gone(reason) => {
                    self.log_lost(folder.lane, &reason);
                    folder.fence().map_err(|error| self.failed(error))?;
                }
            }
        }
        Ok(ours)
    }

    async fn ownership(&self, lane: LaneId, epoch: u32) -> LaneOwnership {
        let stream = self.connection.lane_stream(lane);
        let newest = until_answered(&*self.parts.log, || newest_epoch(&stream)).await;
        let is_closed = match &newest {
            Some(_) => false,
            None => until_answered(&*self.parts.log, || is_closed(self.connection, lane)).await,
        };
        let newest = newest.as_ref().map(|newest| &newest.record);
        LaneOwnership::decide(&self.parts.config.node, epoch, newest, is_closed)
    }

    fn log_lost(&self, lane: LaneId, reason: &dyn Display) {
        let text = "a lane on this disk is not opened; its mail is delivered from its stream";
        self.parts.log.event(LogLevel::Warning, text, &[("lane", &lane), ("reason", reason)]);
    }

    fn failed(&self, error: spool::OpenError) -> NodeError {
        folder_error(self.parts, error)
    }
}
