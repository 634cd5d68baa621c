//! `mailrace queue show`: one message as the server stores it. The envelope and each recipient are
//! JSON objects. The bytes come in chunks, one per request, so that no answer is large and a client
//! that pages through a message holds no resources here.
//!
//! Of earlier attempts, only their number and the last reply since the server's start are known.
//! The log has all replies.

use std::io::{self, Write};

use mail::{Body, BodyType, DsnNotify, DsnReturn, Envelope, Recipient, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use spool::{RecipientState, SpooledMessage};
use utoipa::ToSchema;

use super::explain::MessageState;
use super::list::state_and_until;
use crate::explanation::DestinationExplanation;

/// Bytes of a message in one answer.
const CHUNK_OCTETS_MAX: usize = 256 << 10;

/// A message as the server stores it, with what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessageDetails {
    /// The envelope.
    pub message: MessageEnvelope,
    /// All its recipients, in the order of the envelope.
    pub recipients: Vec<MessageRecipient>,
}

/// The envelope of a message, and where it waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessageEnvelope {
    /// The queue ID.
    pub id: String,
    /// The sender; empty for bounces.
    pub sender: String,
    /// Its recipients.
    pub recipient_count: usize,
    /// Its bytes.
    pub size: u64,
    /// When it was accepted (RFC 3339).
    pub accepted: String,
    /// Seconds since then.
    pub age_seconds: u64,
    /// The address of the client; null if it was submitted locally.
    pub client: Option<String>,
    /// The client's HELO name.
    pub helo: String,
    /// BODY: `7BIT` or `8BITMIME`.
    pub body: String,
    /// SMTPUTF8 was given.
    pub smtputf8: bool,
    /// RET: `FULL` or `HDRS`.
    pub ret: Option<String>,
    /// ENVID.
    pub envid: Option<String>,
    /// The destinations of the recipients that are queued.
    pub destinations: Vec<DestinationExplanation>,
}

/// A recipient of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessageRecipient {
    /// The address that the mail goes to.
    pub recipient: String,
    /// The address that the client gave, if it is another one.
    pub original: Option<String>,
    /// ORCPT.
    pub orcpt: Option<String>,
    /// NOTIFY.
    pub notify: Option<String>,
    /// `ready`, `in flight`, `waiting`, `held`, `delivered`, `failed or removed` and the like.
    pub state: String,
    /// When the next attempt is due, if it is waiting (RFC 3339).
    pub until: Option<String>,
    /// Attempts made so far, if it is queued.
    pub attempts: Option<u16>,
    /// Its destination, if it is queued.
    pub destination: Option<String>,
    /// The queue of the destination.
    pub queue: Option<String>,
    /// The reason of the last deferral since the start of the server.
    pub error: Option<String>,
}

/// The details of a message.
pub(super) fn details(message_state: &MessageState, stored: &SpooledMessage, now: Timestamp) -> MessageDetails {
    let recipients = (0..).zip(&stored.envelope.recipients);
    let recipients = recipients.map(|(ordinal, recipient)| recipient_of(message_state, stored, ordinal, recipient));
    MessageDetails { message: envelope_of(message_state, stored, now), recipients: recipients.collect() }
}

/// Writes the envelope, and a line for each recipient.
pub(super) fn write_message(details: &MessageDetails, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(&details.message)?)?;
    details.recipients.iter().try_for_each(|recipient| writeln!(out, "{}", serde_json::to_string(recipient)?))
}

/// Writes a chunk of the body: its length and the total size, then the bytes and a line end.
pub(super) fn write_content(body: &Body, from: u64, out: &mut impl Write) -> io::Result<()> {
    let remaining = usize::try_from(body.len().saturating_sub(from)).unwrap_or(usize::MAX);
    let mut chunk = vec![0; remaining.min(CHUNK_OCTETS_MAX)];
    let read = body.read_at(&mut chunk, from)?;
    writeln!(out, "{}", json!({ "octets": read, "size": body.len() }))?;
    out.write_all(&chunk[..read])?;
    writeln!(out)
}

fn envelope_of(message_state: &MessageState, stored: &SpooledMessage, now: Timestamp) -> MessageEnvelope {
    let Envelope { sender, recipients, accepted_at, client, body_type, smtputf8, ret, envid, content_filter: _ } =
        &stored.envelope;
    MessageEnvelope {
        id: message_state.id.to_string(),
        sender: sender.as_ref().map(ToString::to_string).unwrap_or_default(),
        recipient_count: recipients.len(),
        size: stored.body.len(),
        accepted: accepted_at.to_rfc3339(),
        age_seconds: now.since(*accepted_at).as_secs(),
        client: client.address.map(|address| address.to_string()),
        helo: client.helo.to_string(),
        body: match body_type {
            BodyType::SevenBit => "7BIT".to_owned(),
            BodyType::EightBitMime => "8BITMIME".to_owned(),
        },
        smtputf8: *smtputf8,
        ret: ret.map(|ret| match ret {
            DsnReturn::Full => "FULL".to_owned(),
            DsnReturn::Headers => "HDRS".to_owned(),
        }),
        envid: envid.as_deref().map(Into::into),
        destinations: message_state.destinations(now),
    }
}

fn recipient_of(
    message_state: &MessageState,
    stored: &SpooledMessage,
    ordinal: u32,
    recipient: &Recipient,
) -> MessageRecipient {
    let entry = message_state.entries.get(&ordinal);
    let destination_name = entry.and_then(|entry| message_state.destinations_by_id.get(&entry.destination));
    let (state, until) = match entry {
        Some(entry) => state_and_until(entry.progress),
        None => (stored_state(stored.states.get(ordinal as usize)), None),
    };
    MessageRecipient {
        recipient: recipient.address.to_string(),
        original: recipient.original.as_ref().map(ToString::to_string),
        orcpt: recipient.orcpt.as_deref().map(Into::into),
        notify: notify_words(recipient.notify),
        state: state.to_owned(),
        until,
        attempts: entry.map(|entry| entry.attempts),
        destination: destination_name.map(|destination_name| destination_name.name.to_string()),
        queue: destination_name.map(|destination_name| destination_name.queue.to_string()),
        error: entry.and_then(|entry| entry.error.as_deref()).map(Into::into),
    }
}

/// The state of a recipient that is in no queue.
fn stored_state(state: Option<&RecipientState>) -> &'static str {
    match state {
        Some(RecipientState::Delivered) => "delivered",
        Some(RecipientState::Failed) => "failed or removed",
        Some(RecipientState::SetAside) => "set aside",
        Some(RecipientState::Withdrawn) => "withdrawn",
        Some(RecipientState::Waiting { .. } | RecipientState::Held { .. }) | None => "entering or leaving the queue",
    }
}

/// The words of NOTIFY (RFC 3461 section 4.1); None if it was not given.
fn notify_words(notify: DsnNotify) -> Option<String> {
    let words = [
        (DsnNotify::NEVER, "NEVER"),
        (DsnNotify::SUCCESS, "SUCCESS"),
        (DsnNotify::FAILURE, "FAILURE"),
        (DsnNotify::DELAY, "DELAY"),
    ];
    let requested: Vec<&str> = words.iter().filter(|(wish, _)| notify.contains(*wish)).map(|(_, word)| *word).collect();
    (!requested.is_empty()).then(|| requested.join(","))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use mail::{BodyFlags, QueueId, SpoolId};

    use super::super::sample::{self, NOW};
    use super::*;

    /// The lines for the first message of the sample, with an additional recipient that is
    /// delivered.
    pub(crate) fn answer() -> String {
        let sample = sample::queues();
        let id = QueueId::new(SpoolId::new(7), 0, 1);
        let mut envelope = sample.messages[&id].0.clone();
        envelope.client =
            mail::ClientInfo { address: "192.0.2.1".parse().ok(), helo: "mx.lists.example".into(), trusted: false };
        (envelope.ret, envelope.envid) = (Some(DsnReturn::Headers), Some("X1".into()));
        let mut alias = envelope.recipients[0].clone();
        alias.address = "zoe@here.example".parse().unwrap();
        alias.original = "all\u{202e}@here.example".parse().ok();
        alias.notify = DsnNotify::SUCCESS.with(DsnNotify::DELAY);
        alias.orcpt = Some("rfc822;all@here.example".into());
        envelope.recipients.push(alias);
        let waiting = RecipientState::Waiting { attempts: 1, until: NOW };
        let states = vec![RecipientState::Held { attempts: 0 }, waiting, waiting, RecipientState::Delivered];
        let stored = SpooledMessage { envelope, states, body: body(2000), prefix_len: 0 };
        let mut out = Vec::new();
        write_message(&details(&MessageState::of(&sample.queues, id, NOW), &stored, NOW), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn body(octets: usize) -> Body {
        let bytes: Vec<u8> = (0..octets).map(|destination_name| destination_name as u8).collect();
        Body::new(Arc::new(bytes), 0, octets as u64, 0, BodyFlags::default())
    }

    #[test]
    fn a_message_is_a_line_and_each_recipient_is_one() {
        insta::assert_snapshot!("queue_show_json", answer());
    }

    #[test]
    fn a_chunk_starts_at_the_requested_offset() {
        let chunk = |octets: usize, from| {
            let mut out = Vec::new();
            write_content(&body(octets), from, &mut out).unwrap();
            let end = out.iter().position(|octet| *octet == b'\n').unwrap();
            (String::from_utf8(out[..end].to_vec()).unwrap(), out[end + 1..out.len() - 1].to_vec())
        };
        assert_eq!(chunk(4, 1), (r#"{"octets":3,"size":4}"#.into(), vec![1, 2, 3]));
        assert_eq!(chunk(4, 9), (r#"{"octets":0,"size":4}"#.into(), vec![]));
        let (head, bytes) = chunk(CHUNK_OCTETS_MAX + 7, 7);
        assert_eq!(head, format!("{{\"octets\":{CHUNK_OCTETS_MAX},\"size\":{}}}", CHUNK_OCTETS_MAX + 7));
        assert_eq!((bytes.len(), bytes[0]), (CHUNK_OCTETS_MAX, 7));
    }
}
