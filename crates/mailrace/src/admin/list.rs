//! The list of recipients: a JSON object for each from the server, and a line for people made from
//! it.

use mail::Envelope;
use queue::{Entry, Progress};
use serde_json::{Value, json};

use super::found::Place;
use super::text::counted;

/// A queued recipient as JSON; None if the envelope has no such recipient.
pub(super) fn object(entry: &Entry, place: &Place, envelope: &Envelope, size: u64) -> Option<Value> {
    let recipient = envelope.recipients.get(entry.ordinal as usize)?;
    let (state, until) = state(entry.progress);
    Some(json!({
        "id": entry.id.to_string(),
        "sender": envelope.sender.as_ref().map_or("", |sender| sender.as_str()),
        "recipient": recipient.address.as_str(),
        "size": size,
        "accepted": envelope.accepted_at.rfc3339_date(),
        "attempts": entry.attempts,
        "state": state,
        "until": until,
        "destination": place.name,
        "queue": place.queue,
        "error": entry.error.as_deref(),
    }))
}

/// The name of a state, and until when it lasts.
pub(super) fn state(progress: Progress) -> (&'static str, Option<String>) {
    match progress {
        Progress::Ready => ("ready", None),
        Progress::InFlight => ("in flight", None),
        Progress::Held => ("held", None),
        Progress::Waiting(until) => ("waiting", Some(until.rfc3339_date())),
    }
}

/// The line for people.
pub(super) fn human(entry: &Value) -> String {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let state = match entry["until"].as_str() {
        Some(until) => {
            let attempts = entry["attempts"].as_u64().unwrap_or_default();
            format!("waiting until {until}, {}", counted(attempts as usize, "attempt"))
        }
        None => text("state"),
    };
    let error = entry["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
    let (id, accepted, size) = (text("id"), text("accepted"), entry["size"].as_u64().unwrap_or_default());
    format!("{id}  {accepted}  {size:>9}  <{}> to <{}>: {state}{error}", text("sender"), text("recipient"))
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::super::sample::{self, NOW};
    use super::*;

    #[test]
    fn a_list_shows_each_recipient_on_a_line_for_people_and_for_programs() {
        let sample = sample::queues();
        let mut found = found::find(&sample.queues, &sample::filter(&[]), NOW).unwrap();
        found.sort();
        let object = |entry: &Entry| {
            let (envelope, size) = &sample.letters[&entry.id];
            object(entry, &found.places[&entry.destination], envelope, *size)
        };
        let objects: Vec<_> = found.entries.iter().map(|entry| object(entry).unwrap()).collect();
        assert_eq!(object(&Entry { ordinal: 3, ..found.entries[0].clone() }), None);
        let lines = |form: fn(&Value) -> String| objects.iter().map(form).collect::<Vec<_>>().join("\n");
        insta::assert_snapshot!("queue_list", lines(human));
        insta::assert_snapshot!("queue_list_json", lines(Value::to_string));
    }
}
