//! The state of one message: each recipient by the spool, or by the queue while it waits, and what
//! holds the destinations of waiting recipients.

use std::collections::BTreeMap;
use std::io::{self, Write};

use mail::{QueueId, Timestamp};
use queue::{BlockReason, QueueNumber, Queues, RecipientProgress, RecipientView};
use spool::{RecipientState, SpooledMessage};

use super::super::selection::DestinationName;
use super::super::text::{plural, short_duration};
use super::{obstacle_lines, obstacle_text, time_text};

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

    /// The obstacles of each destination as sentences, and its next hop if known.
    pub(in super::super) fn destinations(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&DestinationName, Option<&str>, Vec<String>)> {
        let name = |number: QueueNumber| &*self.queue_names[usize::from(number.0)];
        self.obstacles.iter().map(move |(destination_name, obstacles)| {
            let sentences = obstacles.iter().map(|obstacle| obstacle_text(obstacle, now, name)).collect();
            (destination_name, self.next_hops.get(destination_name).map(|hop| &**hop), sentences)
        })
    }

    /// Writes the state, with what the spool knows.
    pub(in super::super) fn write(
        &self,
        stored: &SpooledMessage,
        now: Timestamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let envelope = &stored.envelope;
        let sender = envelope.sender.as_ref().map_or("", |sender| sender.as_str());
        let age = short_duration(now.since(envelope.accepted_at));
        let recipients = plural(envelope.recipients.len(), "recipient");
        writeln!(out, "{} from <{sender}> to {recipients}", self.id)?;
        writeln!(out, "  {} bytes, accepted {} ({age} ago)", stored.body.len(), envelope.accepted_at.to_rfc3339())?;
        let all = (0..).zip(&envelope.recipients);
        for (ordinal, recipient) in all.clone().take(RECIPIENTS_MAX) {
            let forwarded = if recipient.is_forwarded { "; forwarded, with a rewritten sender" } else { "" };
            writeln!(out, "  <{}>: {}{forwarded}", recipient.address, self.state(ordinal, stored, now))?;
        }
        let more = envelope.recipients.len().saturating_sub(RECIPIENTS_MAX);
        if more > 0 {
            writeln!(out, "  and {} more", plural(more, "recipient"))?;
        }
        self.obstacles
            .iter()
            .try_for_each(|(destination_name, obstacles)| self.write_destination(destination_name, obstacles, now, out))
    }

    fn write_destination(
        &self,
        destination_name: &DestinationName,
        obstacles: &[BlockReason],
        now: Timestamp,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let here = |entry: &&RecipientView| self.destinations_by_id.get(&entry.destination) == Some(destination_name);
        let waiting = self.entries.values().filter(here).count();
        let hop = self.next_hops.get(destination_name).map(|hop| format!(", next hop {hop}")).unwrap_or_default();
        writeln!(
            out,
            "destination {}, queue {}{hop}: {}",
            destination_name.name,
            destination_name.queue,
            plural(waiting, "recipient")
        )?;
        let name = |number: QueueNumber| &*self.queue_names[usize::from(number.0)];
        obstacle_lines(obstacles, now, name).iter().try_for_each(|line| writeln!(out, "  {line}"))
    }

    fn state(&self, ordinal: u32, stored: &SpooledMessage, now: Timestamp) -> String {
        match self.entries.get(&ordinal) {
            Some(entry) => queued_state(entry, now),
            None => stored_state(stored.states.get(ordinal as usize)).into(),
        }
    }
}

/// What a recipient waits for.
fn queued_state(entry: &RecipientView, now: Timestamp) -> String {
    let state = match entry.progress {
        RecipientProgress::Ready => "ready, waiting for its turn".into(),
        RecipientProgress::InFlight => "in flight".into(),
        RecipientProgress::Held => "held by the operator".into(),
        RecipientProgress::Waiting(until) if entry.attempts == 0 => {
            format!("waiting for its first attempt {}", time_text(until, now))
        }
        RecipientProgress::Waiting(until) => format!("waiting for its next attempt {}", time_text(until, now)),
    };
    let attempts = plural(usize::from(entry.attempts), "attempt");
    let error = entry.error.as_ref().map(|error| format!("; last error: {error}")).unwrap_or_default();
    format!("{state}; {attempts} so far{error}")
}

/// The state of a recipient that is in no queue.
fn stored_state(state: Option<&RecipientState>) -> &'static str {
    match state {
        Some(RecipientState::Delivered) => "delivered",
        Some(RecipientState::Failed) => "failed, or removed by the operator",
        Some(RecipientState::SetAside) => "set aside: the message is damaged",
        Some(RecipientState::Withdrawn) => "withdrawn: the client was told that it was not accepted",
        Some(RecipientState::Waiting { .. } | RecipientState::Held { .. }) | None => "entering or leaving the queue",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::{Body, BodyFlags, SpoolId};

    use super::super::super::sample::{self, NOW};
    use super::*;

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
        let mut told = Vec::new();
        let account = MessageState::of(&sample.queues, id, NOW);
        account.write(&SpooledMessage { envelope, states, body, prefix_len: 0 }, NOW, &mut told).unwrap();
        insta::assert_snapshot!("message", String::from_utf8(told).unwrap());
    }
}
