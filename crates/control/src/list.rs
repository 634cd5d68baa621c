//! The list of recipients: an object for each from the server, and a line for people made from it.

use mail::Envelope;
use queue::{RecipientProgress, RecipientView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::selection::DestinationName;
use crate::text::plural;

/// A recipient in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuedRecipient {
    /// The queue ID of its message.
    pub id: String,
    /// The sender of the message; empty for bounces.
    pub sender: String,
    /// Its address.
    pub recipient: String,
    /// Bytes of the message.
    pub size: u64,
    /// When the message was accepted (RFC 3339).
    pub accepted: String,
    /// Attempts made so far.
    pub attempts: u16,
    /// `ready`, `in flight`, `waiting` or `held`.
    pub state: String,
    /// When the next attempt is due, if it is waiting (RFC 3339).
    pub until: Option<String>,
    /// Its destination, in most cases the domain.
    pub destination: String,
    /// The queue of the destination.
    pub queue: String,
    /// The reason of the last deferral since the start of the server.
    pub error: Option<String>,
}

/// A queued recipient; None if the envelope has no such recipient.
pub(super) fn queued_recipient(
    entry: &RecipientView,
    destination: &DestinationName,
    envelope: &Envelope,
    size: u64,
) -> Option<QueuedRecipient> {
    let recipient = envelope.recipients.get(entry.ordinal as usize)?;
    let (state, until) = state_and_until(entry.progress);
    Some(QueuedRecipient {
        id: entry.id.to_string(),
        sender: envelope.sender.as_ref().map(ToString::to_string).unwrap_or_default(),
        recipient: recipient.address.to_string(),
        size,
        accepted: envelope.accepted_at.to_rfc3339(),
        attempts: entry.attempts,
        state: state.to_owned(),
        until,
        destination: destination.name.to_string(),
        queue: destination.queue.to_string(),
        error: entry.error.as_deref().map(Into::into),
    })
}

/// The name of a state, and until when it lasts.
pub(super) fn state_and_until(progress: RecipientProgress) -> (&'static str, Option<String>) {
    match progress {
        RecipientProgress::Ready => ("ready", None),
        RecipientProgress::InFlight => ("in flight", None),
        RecipientProgress::Held => ("held", None),
        RecipientProgress::Waiting(until) => ("waiting", Some(until.to_rfc3339())),
    }
}

/// The line for people.
pub fn recipient_line(row: &QueuedRecipient) -> String {
    let QueuedRecipient { id, sender, recipient, size, accepted, .. } = row;
    let state = match &row.until {
        Some(until) => format!("waiting until {until}, {}", plural(usize::from(row.attempts), "attempt")),
        None => row.state.clone(),
    };
    let error = row.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{id}  {accepted}  {size:>9}  <{sender}> to <{recipient}>: {state}{error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{self, NOW};
    use crate::selection;

    #[test]
    fn a_list_shows_each_recipient_on_a_line_for_people_and_for_programs() {
        let sample = sample::queues();
        let found = selection::select(&sample.queues, &sample::filter(&[]), 0..u32::MAX, NOW).unwrap();
        let mut found: Vec<_> = found.into_named().collect();
        selection::sort_by_age(&mut found);
        let object = |entry: &RecipientView, place: &DestinationName| {
            let (envelope, size) = &sample.messages[&entry.id];
            queued_recipient(entry, place, envelope, *size)
        };
        let objects: Vec<_> = found.iter().map(|(entry, place)| object(entry, place).unwrap()).collect();
        let (first, place) = &found[0];
        assert_eq!(object(&RecipientView { ordinal: 3, ..first.clone() }, place), None);
        let lines = |form: fn(&QueuedRecipient) -> String| objects.iter().map(form).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("queue_list", lines(recipient_line));
        insta::assert_snapshot!("queue_list_json", lines(|row| serde_json::to_string(row).unwrap()));
    }
}
