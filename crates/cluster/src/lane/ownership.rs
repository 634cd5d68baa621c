//! Whether a node may go on with a lane that it has on a disk. It asks in this order, because each step
//! rules out what the one before could have missed:
//!
//! 1. the newest Epoch record of the lane's stream; if there is none, whether the lane is closed;
//! 2. it makes the stream, if there is none;
//! 3. the same again, before it claims the lane.
//!
//! A lane is closed when all mail that it ever had is finished, and no owner takes new mail for it: then
//! its stream may be deleted. That is noted before the stream is deleted, and for ever. So whoever
//! makes a stream anew, by which the fence of the old one is lost, finds the note.

use crate::NodeName;
use crate::record::EpochRecord;

/// Whether a lane on a disk may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneOwnership {
    /// The newest epoch is this node's, and written from this disk; or there is none.
    Ours,
    /// It is not opened.
    Gone(LaneGone),
}

/// Why a lane on a disk is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneGone {
    /// Another node owns it.
    #[error("node {0} has taken it over")]
    TakenOver(NodeName),
    /// A copy of the disk from an earlier time lacks what was accepted since.
    #[error("the disk is older than the stream of the lane")]
    OlderDisk,
    /// Another node had it, and has finished it.
    #[error("it was taken over, and all its mail is finished")]
    Closed,
}

impl LaneOwnership {
    /// Decides for `node`, whose disk was written last in the epoch `disk_epoch` of its spool.
    /// `is_closed` matters only without an epoch.
    pub fn decide(node: &NodeName, disk_epoch: u32, newest: Option<&EpochRecord>, is_closed: bool) -> LaneOwnership {
        match newest {
            Some(newest) if newest.node != *node => LaneOwnership::Gone(LaneGone::TakenOver(newest.node.clone())),
            Some(newest) if disk_epoch < newest.spool_epoch => LaneOwnership::Gone(LaneGone::OlderDisk),
            None if is_closed => LaneOwnership::Gone(LaneGone::Closed),
            _ => LaneOwnership::Ours,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lane_is_opened_only_by_its_last_owner_from_its_last_disk() {
        let own: NodeName = "own".parse().unwrap();
        let by = |node: &str, spool_epoch| EpochRecord {
            node: node.parse().unwrap(),
            spool_epoch,
            lease: Duration::from_secs(3),
        };
        let gone = LaneOwnership::Gone;
        for (newest, is_closed, expected) in [
            (None, false, LaneOwnership::Ours),
            (None, true, gone(LaneGone::Closed)),
            (Some(by("own", 5)), false, LaneOwnership::Ours),
            (Some(by("own", 6)), false, gone(LaneGone::OlderDisk)),
            (Some(by("other", 5)), false, gone(LaneGone::TakenOver("other".parse().unwrap()))),
        ] {
            assert_eq!(LaneOwnership::decide(&own, 5, newest.as_ref(), is_closed), expected, "{newest:?}");
        }
    }
}
