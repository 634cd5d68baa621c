//! The owner of a lane.

use bytes::Bytes;

use super::{BootTime, LaneTimes, PublishFailure, ReadFailure, RecordSubject, Slot};
use crate::NodeName;

/// Identifies one try to publish a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishId(pub u64);

/// Identifies a batch of this owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Where a batch is in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredRange {
    /// The sequence of its first record.
    pub first: u64,
    /// The sequence of its last record.
    pub last: u64,
    /// The bytes of its records.
    pub bytes: u64,
}

/// The claim that a node makes.
#[derive(Clone, Debug)]
pub struct Claim {
    /// One more than the newest known epoch of the lane.
    pub epoch: u64,
    /// Random, different for each claim.
    pub token: u64,
    /// The node that claims the lane.
    pub node: NodeName,
    /// The epoch of its spool.
    pub spool_epoch: u32,
    /// The last sequence of the stream.
    pub last_sequence: u64,
}

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerAction {
    /// Publish a record, and pass the result to `handle_published` or `handle_publish_failed`.
    Publish {
        /// The try.
        id: PublishId,
        /// Its subject.
        subject: RecordSubject,
        /// The sequence that must be the last one.
        expected_last: u64,
        /// The record.
        record: Bytes,
    },
    /// Read what is stored at this sequence, and pass it to `handle_slot`.
    Read {
        /// The sequence.
        sequence: u64,
    },
    /// The batch is stored.
    Confirmed {
        /// The batch.
        batch: BatchId,
        /// Where it is.
        range: StoredRange,
    },
    /// The batch has waited too long. Its records will still be sent.
    Failed {
        /// The batch.
        batch: BatchId,
        /// Why.
        reason: String,
    },
    /// The lane is ours, and no late record of an earlier owner can follow.
    Claimed {
        /// The epoch.
        epoch: u64,
        /// The sequence of the Epoch record: what has to be read ends before it.
        base: u64,
    },
    /// The newest Epoch record of ours; what is before it can be purged.
    EpochRepeated {
        /// Its sequence.
        sequence: u64,
    },
    /// Another node has the lane. Before `Claimed`: the claim came too late. The last action.
    Fenced {
        /// The other node, if it is known.
        by: Option<NodeName>,
    },
    /// The stream lacks what it had. The last action.
    Lost {
        /// What is missing.
        reason: String,
    },
    /// The Release record is stored. The last action.
    Released,
}

/// The owner of a lane.
pub struct LaneOwner;

#[expect(clippy::unimplemented, unused_variables, reason = "signatures for those who build on them")]
#[allow(missing_docs)]
impl LaneOwner {
    pub fn claim(times: LaneTimes, in_flight_bytes_max: u64, claim: Claim, now: BootTime) -> LaneOwner {
        unimplemented!()
    }
    pub fn start_batch(&mut self, now: BootTime) -> BatchId {
        unimplemented!()
    }
    pub fn handle_part(&mut self, batch: BatchId, payload: &[u8], last: bool, now: BootTime) {}
    pub fn handle_published(&mut self, id: PublishId, sequence: u64, now: BootTime) {}
    pub fn handle_publish_failed(&mut self, id: PublishId, failure: PublishFailure, now: BootTime) {}
    pub fn handle_slot(&mut self, sequence: u64, slot: Result<Slot, ReadFailure>, now: BootTime) {}
    pub fn handle_timeout(&mut self, now: BootTime) {}
    pub fn release(&mut self, now: BootTime) {}
    pub fn poll_action(&mut self, now: BootTime) -> Option<OwnerAction> {
        unimplemented!()
    }
    pub fn poll_timeout(&self) -> Option<BootTime> {
        unimplemented!()
    }
    pub fn may_deliver(&self, now: BootTime) -> bool {
        unimplemented!()
    }
    /// None: never, as long as no further record is stored.
    pub fn lease_until(&self) -> Option<BootTime> {
        unimplemented!()
    }
    /// Bytes of records that are not confirmed.
    pub fn waiting_bytes(&self) -> u64 {
        unimplemented!()
    }
    /// The sequence of the last confirmed record.
    pub fn confirmed_sequence(&self) -> u64 {
        unimplemented!()
    }
}
