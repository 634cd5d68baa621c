//! `mailrace queue show`: one message as the server stores it. The envelope and each recipient are
//! JSON objects. The bytes come in chunks, one per request, so that no answer is large and a client
//! that pages through a message holds no resources here.
//!
//! Of earlier attempts, only their number and the last reply since the server's start are known.
//! The log has all replies.

mod client;
mod text;

use std::io::{self, Write};

use mail::{Body, BodyType, Envelope, Notify, Recipient, Return, Timestamp};
use serde_json::{Value, json};
use spool::{State, Stored};

use super::explain::Account;
use super::list::state;

pub use client::show;

/// Bytes of a message in one answer.
const PIECE_OCTETS_MAX: usize = 256 << 10;

/// Writes the message, and a line for each recipient.
pub(super) fn write(account: &Account, stored: &Stored, now: Timestamp, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", message(account, stored, now))?;
    let recipients = (0..).zip(&stored.envelope.recipients);
    for (ordinal, recipient) in recipients {
        writeln!(out, "{}", one(account, stored, ordinal, recipient))?;
    }
    Ok(())
}

/// Writes a chunk of the body: its length and the total size, then the bytes and a line end.
pub(super) fn write_content(body: &Body, from: u64, out: &mut impl Write) -> io::Result<()> {
    let left = usize::try_from(body.len().saturating_sub(from)).unwrap_or(usize::MAX);
    let mut piece = vec![0; left.min(PIECE_OCTETS_MAX)];
    let read = body.read_at(&mut piece, from)?;
    writeln!(out, "{}", json!({ "octets": read, "size": body.len() }))?;
    out.write_all(&piece[..read])?;
    writeln!(out)
}

fn message(account: &Account, stored: &Stored, now: Timestamp) -> Value {
    let Envelope { sender, recipients, accepted_at, client, body_type, smtputf8, ret, envid } = &stored.envelope;
    let destination = |(place, next_hop, waits): (&super::found::Place, Option<&str>, Vec<String>)| json!({ "destination": place.name, "queue": place.queue, "next_hop": next_hop, "waits": waits });
    json!({
        "id": account.id.to_string(),
        "sender": sender.as_ref().map_or("", |sender| sender.as_str()),
        "recipient_count": recipients.len(),
        "size": stored.body.len(),
        "accepted": accepted_at.rfc3339_date(),
        "age_seconds": now.since(*accepted_at).as_secs(),
        "client": client.address.map(|address| address.to_string()),
        "helo": client.helo,
        "body": match body_type {
            BodyType::SevenBit => "7BIT",
            BodyType::EightBitMime => "8BITMIME",
        },
        "smtputf8": smtputf8,
        "ret": ret.map(|ret| match ret {
            Return::Full => "FULL",
            Return::Headers => "HDRS",
        }),
        "envid": envid,
        "destinations": account.destinations(now).map(destination).collect::<Vec<_>>(),
    })
}

fn one(account: &Account, stored: &Stored, ordinal: u32, recipient: &Recipient) -> Value {
    let entry = account.entries.get(&ordinal);
    let place = entry.and_then(|entry| account.places.get(&entry.destination));
    let (state, until) = match entry {
        Some(entry) => state(entry.progress),
        None => (settled(stored.states.get(ordinal as usize)), None),
    };
    json!({
        "recipient": recipient.address.as_str(),
        "original": recipient.original.as_ref().map(|original| original.as_str()),
        "orcpt": recipient.orcpt,
        "notify": notify(recipient.notify),
        "state": state,
        "until": until,
        "attempts": entry.map(|entry| entry.attempts),
        "destination": place.map(|place| &place.name),
        "queue": place.map(|place| &place.queue),
        "error": entry.and_then(|entry| entry.error.as_deref()),
    })
}

/// The state of a recipient that is in no queue.
fn settled(state: Option<&State>) -> &'static str {
    match state {
        Some(State::Delivered) => "delivered",
        Some(State::Failed) => "failed or removed",
        Some(State::SetAside) => "set aside",
        Some(State::Waiting { .. } | State::Held { .. }) | None => "entering or leaving the queue",
    }
}

/// The words of NOTIFY (RFC 3461 section 4.1); None if it was not given.
fn notify(notify: Notify) -> Option<String> {
    let words = [
        (Notify::NEVER, "NEVER"),
        (Notify::SUCCESS, "SUCCESS"),
        (Notify::FAILURE, "FAILURE"),
        (Notify::DELAY, "DELAY"),
    ];
    let asked: Vec<&str> = words.iter().filter(|(wish, _)| notify.contains(*wish)).map(|(_, word)| *word).collect();
    (!asked.is_empty()).then(|| asked.join(","))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use mail::{BodyFlags, QueueId, SpoolId};

    use super::super::sample::{self, NOW};
    use super::*;

    /// The lines for the first message of the sample, with an additional recipient that is
    /// delivered.
    pub(super) fn answer() -> String {
        let sample = sample::queues();
        let id = QueueId::new(SpoolId::new(7), 0, 1);
        let mut envelope = sample.letters[&id].0.clone();
        envelope.client =
            mail::Client { address: "192.0.2.1".parse().ok(), helo: "mx.lists.example".into(), trusted: false };
        (envelope.ret, envelope.envid) = (Some(Return::Headers), Some("X1".into()));
        let mut alias = envelope.recipients[0].clone();
        alias.address = "zoe@here.example".parse().unwrap();
        alias.original = "all\u{202e}@here.example".parse().ok();
        alias.notify = Notify::SUCCESS.with(Notify::DELAY);
        alias.orcpt = Some("rfc822;all@here.example".into());
        envelope.recipients.push(alias);
        let waiting = State::Waiting { attempts: 1, until: NOW };
        let states = vec![State::Held { attempts: 0 }, waiting, waiting, State::Delivered];
        let stored = Stored { envelope, states, body: body(2000) };
        let mut out = Vec::new();
        write(&Account::of(&sample.queues, id, NOW), &stored, NOW, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn body(octets: usize) -> Body {
        let bytes: Vec<u8> = (0..octets).map(|place| place as u8).collect();
        Body::new(Arc::new(bytes), 0, octets as u64, 0, BodyFlags::default())
    }

    #[test]
    fn a_message_is_a_line_and_each_recipient_is_one() {
        insta::assert_snapshot!("queue_show_json", answer());
    }

    #[test]
    fn a_piece_tells_its_length_and_begins_where_it_was_asked() {
        let piece = |octets: usize, from| {
            let mut out = Vec::new();
            write_content(&body(octets), from, &mut out).unwrap();
            let end = out.iter().position(|octet| *octet == b'\n').unwrap();
            (String::from_utf8(out[..end].to_vec()).unwrap(), out[end + 1..out.len() - 1].to_vec())
        };
        assert_eq!(piece(4, 1), (r#"{"octets":3,"size":4}"#.into(), vec![1, 2, 3]));
        assert_eq!(piece(4, 9), (r#"{"octets":0,"size":4}"#.into(), vec![]));
        let (head, bytes) = piece(PIECE_OCTETS_MAX + 7, 7);
        assert_eq!(head, format!("{{\"octets\":{PIECE_OCTETS_MAX},\"size\":{}}}", PIECE_OCTETS_MAX + 7));
        assert_eq!((bytes.len(), bytes[0]), (PIECE_OCTETS_MAX, 7));
    }
}
