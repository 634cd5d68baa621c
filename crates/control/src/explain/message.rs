//! The state of one message: each recipient by the spool, or by the queue while it waits, and what
//! holds the destinations of waiting recipients.

use std::collections::BTreeMap;

use mail::{QueueId, Recipient, Timestamp};
use queue::{BlockReason, QueueNumber, Queues, RecipientProgress, RecipientView};
use spool::{RecipientState, SpooledMessage};

use super::super::selection::DestinationName;
use super::{due_time, obstacle};
use crate::explanation::{DestinationExplanation, ExplainedState, MessageExplanation, RecipientExplanation};

/// Recipients listed one by one.
const RECIPIENTS_MAX: usize = 1000;

/// What the queues know of a message.
pub(in super::super) struct MessageState {
    pub(in super::super) id: QueueId,
    /// By ordinal.
    pub(in super::super) entries: BTreeMap<u32, RecipientView>,
    /// What holds each destination.
    obstacles: BTreeMap<DestinationName, Vec<BlockReason>>,
    /// The next hop of each destination, if known.
    next_hops: BTreeMap<DestinationName, Box<str>>,
    pub(in super::super) destinations_by_id: BTreeMap<queue::DestinationId, DestinationName>,
    queue_names: Vec<Box<str>>,
}

impl MessageState {
    /// Collects the state in one pass.
    pub(in super::super) fn of<R: Clone>(queues: &Queues<R>, id: QueueId, now: Timestamp) -> MessageState {
        let own_entries = queues.message_recipients(id).into_iter();
        let entries: BTreeMap<u32, RecipientView> = own_entries.map(|entry| (entry.ordinal, entry)).collect();
        let destinations: BTreeMap<_, _> =
            entries.values().map(|entry| (entry.destination, DestinationName::of(queues, entry.destination))).collect();
        let block_reasons = |(destination, destination_name): (&queue::DestinationId, &DestinationName)| {
            (destination_name.clone(), queues.block_reasons(now, *destination))
        };
        let hop = |(destination, destination_name): (&queue::DestinationId, &DestinationName)| {
            Some((destination_name.clone(), queues.destination_next_hop_name(*destination)?.into()))
        };
        MessageState {
            id,
            obstacles: destinations.iter().map(block_reasons).collect(),
            next_hops: destinations.iter().filter_map(hop).collect(),
            queue_names: queues.config().queues.iter().map(|queue| queue.name.clone()).collect(),
            entries,
            destinations_by_id: destinations,
        }
    }

    /// The destinations of the recipients that are queued.
    pub(in super::super) fn destinations(&self, now: Timestamp) -> Vec<DestinationExplanation> {
        let name = |number: QueueNumber| &*self.queue_names[usize::from(number.0)];
        let destination = |(place, reasons): (&DestinationName, &Vec<BlockReason>)| {
            let here = |entry: &&RecipientView| self.destinations_by_id.get(&entry.destination) == Some(place);
            DestinationExplanation {
                destination: place.name.to_string(),
                queue: place.queue.to_string(),
                next_hop: self.next_hops.get(place).map(ToString::to_string),
                recipients: self.entries.values().filter(here).count(),
                obstacles: reasons.iter().map(|reason| obstacle(reason, now, name)).collect(),
            }
        };
        self.obstacles.iter().map(destination).collect()
    }

    /// The state, with what the spool knows.
    pub(in super::super) fn explanation(&self, stored: &SpooledMessage, now: Timestamp) -> MessageExplanation {
        let envelope = &stored.envelope;
        let recipient = |(ordinal, recipient): (u32, &Recipient)| RecipientExplanation {
            is_forwarded: recipient.is_forwarded,
            ..self.recipient(recipient.address.to_string(), ordinal, stored, now)
        };
        MessageExplanation {
            id: self.id.to_string(),
            sender: envelope.sender.as_ref().map(ToString::to_string).unwrap_or_default(),
            size: stored.body.len(),
            accepted: envelope.accepted_at.to_rfc3339(),
            age_seconds: now.since(envelope.accepted_at).as_secs(),
            recipient_count: envelope.recipients.len(),
            recipients: (0..).zip(&envelope.recipients).take(RECIPIENTS_MAX).map(recipient).collect(),
            destinations: self.destinations(now),
        }
    }

    fn recipient(
        &self,
        address: String,
        ordinal: u32,
        stored: &SpooledMessage,
        now: Timestamp,
    ) -> RecipientExplanation {
        let stored_state = stored_state(stored.states.get(ordinal as usize));
        let finished = RecipientExplanation {
            recipient: address,
            state: stored_state,
            due: None,
            attempts: None,
            error: None,
            is_forwarded: false,
        };
        let Some(entry) = self.entries.get(&ordinal) else { return finished };
        let (state, due) = match entry.progress {
            RecipientProgress::Ready => (ExplainedState::Ready, None),
            RecipientProgress::InFlight => (ExplainedState::InFlight, None),
            RecipientProgress::Held => (ExplainedState::Held, None),
            RecipientProgress::Waiting(until) => (ExplainedState::Waiting, Some(due_time(until, now))),
        };
        let error = entry.error.as_deref().map(Into::into);
        RecipientExplanation { state, due, attempts: Some(entry.attempts), error, ..finished }
    }
}

/// The state of a recipient that is in no queue.
fn stored_state(state: Option<&RecipientState>) -> ExplainedState {
    match state {
        Some(RecipientState::Delivered) => ExplainedState::Delivered,
        Some(RecipientState::Failed) => ExplainedState::Failed,
        Some(RecipientState::SetAside) => ExplainedState::SetAside,
        Some(RecipientState::Withdrawn) => ExplainedState::Withdrawn,
        Some(RecipientState::Waiting { .. } | RecipientState::Held { .. }) | None => ExplainedState::Moving,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::{Body, BodyFlags, SpoolId};

    use super::super::super::sample::{self, NOW};
    use super::*;
    use crate::explanation_text::message_text;

    /// Of the first message, one recipient is held and two wait; a fourth is delivered.
    #[test]
    fn a_message_lists_recipients_and_obstacles() {
        let sample = sample::queues();
        let id = QueueId::new(SpoolId::new(7), 0, 1);
        let mut envelope = sample.messages[&id].0.clone();
        envelope.recipients.push(envelope.recipients[0].clone());
        let waiting = RecipientState::Waiting { attempts: 1, until: NOW };
        let states = vec![RecipientState::Held { attempts: 0 }, waiting, waiting, RecipientState::Delivered];
        let bytes: Arc<dyn mail::ByteSource> = Arc::new(b"Subject: x\r\n\r\n".to_vec());
        let body = Body::new(bytes, 0, 14, 0, BodyFlags::default());
        let stored = SpooledMessage { envelope, states, body, prefix_len: 0 };
        let explanation = MessageState::of(&sample.queues, id, NOW).explanation(&stored, NOW);
        insta::assert_snapshot!("message", message_text(&explanation));
        let written = serde_json::to_string(&explanation).unwrap();
        assert_eq!(serde_json::from_str::<MessageExplanation>(&written).unwrap(), explanation);
    }
}
