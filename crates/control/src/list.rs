//! The list of recipients: a JSON object for each from the server, and a line for people made from
//! it.

use mail::Envelope;
use queue::{RecipientProgress, RecipientView};
use serde_json::{Value, json};

use crate::selection::DestinationName;
use crate::text::plural;

/// A queued recipient as JSON; None if the envelope has no such recipient.
pub(super) fn entry_json(
    entry: &RecipientView,
    destination: &DestinationName,
    envelope: &Envelope,
    size: u64,
) -> Option<Value> {
    let recipient = envelope.recipients.get(entry.ordinal as usize)?;
    let (state, until) = state_and_until(entry.progress);
    Some(json!({
        "id": entry.id.to_string(),
        "sender": envelope.sender.as_ref().map_or("", |sender| sender.as_str()),
        "recipient": recipient.address.as_str(),
        "size": size,
        "accepted": envelope.accepted_at.to_rfc3339(),
        "attempts": entry.attempts,
        "state": state,
        "until": until,
        "destination": destination.name,
        "queue": destination.queue,
        "error": entry.error.as_deref(),
    }))
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
pub fn entry_line(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let state = match entry["until"].as_str() {
        Some(until) => {
            let attempts = entry["attempts"].as_u64().unwrap_or_default();
            format!("waiting until {until}, {}", plural(attempts as usize, "attempt"))
        }
        None => text("state"),
    };
    let error = entry["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
    let (id, accepted, size) = (text("id"), text("accepted"), entry["size"].as_u64().unwrap_or_default());
    format!("{id}  {accepted}  {size:>9}  <{}> to <{}>: {state}{error}", text("sender"), text("recipient"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{self, NOW};
    use crate::selection;

    #[test]
    fn a_list_shows_each_recipient_on_a_line_for_people_and_for_programs() {
        let sample = sample::queues();
        let mut found = selection::select(&sample.queues, &sample::filter(&[]), NOW).unwrap();
        found.sort();
        let object = |entry: &RecipientView| {
            let (envelope, size) = &sample.messages[&entry.id];
            entry_json(entry, &found.destinations[&entry.destination], envelope, *size)
        };
        let objects: Vec<_> = found.entries.iter().map(|entry| object(entry).unwrap()).collect();
        assert_eq!(object(&RecipientView { ordinal: 3, ..found.entries[0].clone() }), None);
        let lines = |form: fn(&Value) -> String| objects.iter().map(form).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("queue_list", lines(entry_line));
        insta::assert_snapshot!("queue_list_json", lines(Value::to_string));
    }
}
