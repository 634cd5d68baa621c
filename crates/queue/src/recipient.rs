//! The records of messages and recipients. A million recipients take 24 MB.
//!
//! | stage of a recipient | kept in | leaves it by |
//! |---|---|---|
//! | waiting | the heap, by due time | `next`, when it is due: ready, at the back of its sender queue |
//! | ready | a sender queue at its destination | `next`, when it is its turn: in flight |
//! | in flight | an [`Attempt`](crate::Attempt) | `report_verdicts`: waiting or ready again, held, or removed |
//! | held | no list | `pick_recipients_for_action` |
//! | picked | the chain of an action that stops mail: hold, remove, bounce | `next`: in flight |
//! | picked to go on | the chain of a release, a retry or a reclassification | `next`: in flight; or an action that stops mail: picked |

use mail::{QueueId, Timestamp};

use crate::DestinationId;
use crate::error_table::ErrorNumber;
use crate::intrusive_list::{IntrusiveList, Linked};
use crate::pages::Slab;

/// What the recipients of a message share. Removed with the last of them.
pub(crate) struct QueuedMessage {
    pub(crate) id: QueueId,
    pub(crate) sender: u64,
    pub(crate) accepted_at: Timestamp,
    pub(crate) recipients: u32,
    pub(crate) recovered: bool,
    pub(crate) separate_attempts: bool,
    pub(crate) is_bulk: bool,
}

/// 24 bytes.
pub(crate) struct QueuedRecipient {
    pub(crate) message: u32,
    pub(crate) ordinal: u32,
    pub(crate) destination: DestinationId,
    /// The next recipient in its sender queue, action or attempt.
    pub(crate) next: u32,
    pub(crate) attempts: u16,
    pub(crate) error: ErrorNumber,
    pub(crate) stage: RecipientStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecipientStage {
    Waiting,
    Ready,
    InFlight,
    Held,
    Picked,
    PickedToGoOn,
}

/// The number of recipients in each stage.
pub(crate) type StageCounts = [usize; 6];

impl Linked for QueuedRecipient {
    fn link(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl QueuedRecipient {
    /// Whether both may share an attempt.
    fn can_share_attempt(&self, other: &QueuedRecipient) -> bool {
        (self.message, self.destination, self.attempts) == (other.message, other.destination, other.attempts)
    }
}

/// Removes the recipients that can share an attempt with the first one from the front of a chain,
/// at most `max`.
pub(crate) fn split_group(
    from: &mut IntrusiveList,
    recipients: &mut Slab<QueuedRecipient>,
    max: usize,
) -> (IntrusiveList, usize) {
    let (mut group, mut count) = (IntrusiveList::EMPTY, 0);
    while let Some(front) = from.front() {
        let fits = group.front().is_none_or(|first| recipients[first].can_share_attempt(&recipients[front]));
        if count == max || !fits {
            break;
        }
        from.pop_front(recipients);
        group.push_back(recipients, front);
        count += 1;
    }
    (group, count)
}
