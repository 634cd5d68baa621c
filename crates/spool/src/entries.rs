//! Messages and their outcomes: as callers submit them, as the log stores them, and as recovery
//! returns them.

use mail::{
    Address, Body, BodyFlags, BodyType, ClientInfo, DsnNotify, DsnReturn, Envelope, QueueId, Recipient, Timestamp,
};

use crate::LaneId;
use crate::codec::{ByteReader, put_optional_text, put_text, put_u16, put_u32, put_u64};
use crate::recipient_states::{RecipientState, RecipientStates};
use crate::record::{RecordDraft, RecordKind};
use crate::spill::{SpilledBody, SpilledRange};

/// An entry to make durable.
#[derive(Debug)]
pub enum SpoolEntry {
    /// A message with its envelope and body.
    Message {
        /// From [`crate::Spool::new_id`].
        id: QueueId,
        /// The envelope, with at least one recipient.
        envelope: Envelope,
        /// The body, with its prefix.
        content: SubmittedBody,
        /// Properties of the prefix and the body together.
        flags: BodyFlags,
    },
    /// Outcomes of recipients of a message in the spool, or of one earlier in the same submission.
    Outcome {
        /// The message.
        id: QueueId,
        /// Ordinals of recipients and their new states.
        recipients: Vec<(u32, RecipientState)>,
        /// The bounce that this outcome causes. It must be a message in the same submission: the
        /// outcome never survives a crash without it.
        bounce: Option<QueueId>,
    },
}

/// The body of a new message, and before it a prefix: trace fields, which are known only when the
/// body is complete. Both are stored as one range, so readers see one body. May be empty.
#[derive(Debug)]
pub enum SubmittedBody {
    /// In memory. Prefix and body are written one after the other, without a copy.
    Memory {
        /// The bytes before the body.
        prefix: Vec<u8>,
        /// The body.
        body: Vec<u8>,
    },
    /// In a file of its own, written with its prefix and synced by [`crate::SpillWriter`].
    Spilled(SpilledBody),
}

/// A message with pending recipients.
#[derive(Clone, Debug)]
pub struct LiveMessage {
    /// Its queue id.
    pub id: QueueId,
    /// Its envelope.
    pub envelope: Envelope,
    /// The state of each recipient, by ordinal.
    pub states: Vec<RecipientState>,
    /// It was found in the log at start: an attempt may have been in flight when the process
    /// stopped.
    pub recovered: bool,
}

/// A message read from the spool.
#[derive(Clone, Debug)]
pub struct SpooledMessage {
    /// Its envelope.
    pub envelope: Envelope,
    /// The state of each recipient, by ordinal.
    pub states: Vec<RecipientState>,
    /// Its prefix and its body as one range, with a lease on its segment.
    pub body: Body,
    /// The length of the prefix in bytes: the content as it was received begins there. Never more
    /// than the length of `body`.
    pub prefix_len: u64,
}

/// The head of a message record.
#[derive(Clone, Debug)]
pub(crate) struct MessageHead {
    pub(crate) sequence: u64,
    pub(crate) flags: BodyFlags,
    /// The number of bytes of the body that are the prefix.
    pub(crate) prefix_len: u32,
    pub(crate) spilled: Option<SpilledRange>,
    /// States that differ from [`RecipientState::NEW`]; only in a record that was copied forward.
    pub(crate) states: Vec<(u32, RecipientState)>,
    pub(crate) envelope: Envelope,
}

/// The maximum size of a state in a record: an ordinal and a waiting state.
pub(crate) const STATE_BYTES_MAX: u64 = 4 + 1 + 2 + 8;

const FLAG_DOT_LINES: u8 = 1;
const FLAG_EIGHT_BIT: u8 = 2;
const FLAG_ENDS_IN_CRLF: u8 = 4;
const FLAG_SPILLED: u8 = 8;
const FLAG_STATES: u8 = 16;

impl MessageHead {
    pub(crate) fn draft(&self) -> RecordDraft {
        RecordDraft::new(RecordKind::Message, |out| self.write(out))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_u64(out, self.sequence);
        let bits = [
            (self.flags.dot_lines, FLAG_DOT_LINES),
            (self.flags.eight_bit, FLAG_EIGHT_BIT),
            (self.flags.ends_in_crlf, FLAG_ENDS_IN_CRLF),
            (self.spilled.is_some(), FLAG_SPILLED),
            (!self.states.is_empty(), FLAG_STATES),
        ];
        out.push(bits.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum());
        put_u32(out, self.prefix_len);
        if let Some(spilled) = self.spilled {
            put_u64(out, spilled.start);
            put_u64(out, spilled.len);
            put_u32(out, spilled.digest);
        }
        if !self.states.is_empty() {
            encode_states(out, &self.states);
        }
        encode_envelope(out, &self.envelope);
    }

    /// Whether the head lists states, without decoding the rest.
    pub(crate) fn lists_states(head: &[u8]) -> bool {
        head.get(8).is_some_and(|bits| bits & FLAG_STATES != 0)
    }

    /// Merges newer states into those listed.
    pub(crate) fn merge(&mut self, newer: Vec<(u32, RecipientState)>) {
        if !newer.is_empty() {
            let mut states = RecipientStates::from(std::mem::take(&mut self.states));
            states.merge(newer);
            self.states = states.listed();
        }
    }

    pub(crate) fn read(head: &[u8]) -> Option<MessageHead> {
        let mut reader = ByteReader::new(head);
        let (sequence, bits) = (reader.u64()?, reader.u8()?);
        let flags = BodyFlags {
            dot_lines: bits & FLAG_DOT_LINES != 0,
            eight_bit: bits & FLAG_EIGHT_BIT != 0,
            ends_in_crlf: bits & FLAG_ENDS_IN_CRLF != 0,
        };
        let prefix_len = reader.u32()?;
        let spilled = match bits & FLAG_SPILLED {
            0 => None,
            _ => Some(SpilledRange { start: reader.u64()?, len: reader.u64()?, digest: reader.u32()? }),
        };
        let states = if bits & FLAG_STATES == 0 { Vec::new() } else { read_states(&mut reader)? };
        Some(MessageHead { sequence, flags, prefix_len, spilled, states, envelope: read_envelope(&mut reader)? })
    }
}

/// The head of an outcome record.
#[derive(Clone, Debug)]
pub(crate) struct OutcomeHead {
    pub(crate) sequence: u64,
    /// The sequence number of the bounce in the same batch, or 0 (which no message has).
    pub(crate) bounce: u64,
    pub(crate) states: Vec<(u32, RecipientState)>,
}

impl OutcomeHead {
    pub(crate) fn draft(&self) -> RecordDraft {
        RecordDraft::new(RecordKind::Outcome, |out| {
            put_u64(out, self.sequence);
            put_u64(out, self.bounce);
            encode_states(out, &self.states);
        })
    }

    pub(crate) fn read(head: &[u8]) -> Option<OutcomeHead> {
        let mut reader = ByteReader::new(head);
        Some(OutcomeHead { sequence: reader.u64()?, bounce: reader.u64()?, states: read_states(&mut reader)? })
    }
}

/// The sequence number at the start of the head of a message or an outcome.
pub(crate) fn sequence_of(head: &[u8]) -> Option<u64> {
    ByteReader::new(head).u64()
}

/// The states of all recipients: new, except those listed.
pub(crate) fn all_states(count: usize, listed: &[(u32, RecipientState)]) -> Vec<RecipientState> {
    let mut states = vec![RecipientState::NEW; count];
    for &(ordinal, state) in listed {
        if let Some(place) = states.get_mut(ordinal as usize) {
            *place = state;
        }
    }
    states
}

/// Appends states of recipients, by ordinal, as the log stores them.
pub fn encode_states(out: &mut Vec<u8>, states: &[(u32, RecipientState)]) {
    put_u32(out, states.len() as u32);
    for &(ordinal, state) in states {
        put_u32(out, ordinal);
        match state {
            RecipientState::Waiting { attempts, until } => {
                out.push(0);
                put_u16(out, attempts);
                put_u64(out, until.0);
            }
            RecipientState::Delivered => out.push(1),
            RecipientState::Failed => out.push(2),
            RecipientState::SetAside => out.push(3),
            RecipientState::Withdrawn => out.push(5),
            RecipientState::Held { attempts } => {
                out.push(4);
                put_u16(out, attempts);
            }
        }
    }
}

/// States of recipients at the start of `bytes`, which is moved behind them; None if they are invalid.
pub fn decode_states(bytes: &mut &[u8]) -> Option<Vec<(u32, RecipientState)>> {
    let mut reader = ByteReader::new(bytes);
    let states = read_states(&mut reader)?;
    *bytes = reader.rest();
    Some(states)
}

fn read_states(reader: &mut ByteReader<'_>) -> Option<Vec<(u32, RecipientState)>> {
    (0..reader.u32()?).map(|_| Some((reader.u32()?, read_state(reader)?))).collect()
}

fn read_state(reader: &mut ByteReader<'_>) -> Option<RecipientState> {
    Some(match reader.u8()? {
        0 => RecipientState::Waiting { attempts: reader.u16()?, until: Timestamp(reader.u64()?) },
        1 => RecipientState::Delivered,
        2 => RecipientState::Failed,
        3 => RecipientState::SetAside,
        4 => RecipientState::Held { attempts: reader.u16()? },
        5 => RecipientState::Withdrawn,
        _ => return None,
    })
}

/// Of the octet with NOTIFY, whose bits are the lower four. Versions before this bit ignore it.
const FORWARDED_BIT: u8 = 4;

/// Appends an envelope, as the log stores it.
pub fn encode_envelope(out: &mut Vec<u8>, envelope: &Envelope) {
    put_u64(out, envelope.accepted_at.0);
    let bits = u8::from(envelope.body_type == BodyType::EightBitMime)
        | u8::from(envelope.smtputf8) << 1
        | match envelope.ret {
            None => 0,
            Some(DsnReturn::Full) => 1 << 2,
            Some(DsnReturn::Headers) => 2 << 2,
        }
        | u8::from(envelope.client.trusted) << 4;
    out.push(bits);
    put_optional_text(out, envelope.sender.as_ref().map(Address::as_str));
    put_optional_text(out, envelope.envid.as_deref());
    let client = envelope.client.address.map(|address| address.to_string());
    put_optional_text(out, client.as_deref());
    put_text(out, &envelope.client.helo);
    put_u32(out, envelope.recipients.len() as u32);
    for recipient in &envelope.recipients {
        put_text(out, recipient.address.as_str());
        put_optional_text(out, recipient.original.as_ref().map(Address::as_str));
        put_optional_text(out, recipient.orcpt.as_deref());
        out.push(recipient.notify.bits() | u8::from(recipient.is_forwarded) << FORWARDED_BIT);
    }
}

/// An envelope that `bytes` consist of; None if they are invalid.
pub fn decode_envelope(bytes: &[u8]) -> Option<Envelope> {
    let mut reader = ByteReader::new(bytes);
    read_envelope(&mut reader).filter(|_| reader.rest().is_empty())
}

fn read_envelope(reader: &mut ByteReader<'_>) -> Option<Envelope> {
    let accepted_at = Timestamp(reader.u64()?);
    let bits = reader.u8()?;
    let sender = read_address(reader.optional_text()?)?;
    let envid = reader.optional_text()?.map(Box::from);
    let address = reader.optional_text()?.map(str::parse).transpose().ok()?;
    let helo = reader.text()?.into();
    let count = reader.u32()?;
    let recipients = (0..count).map(|_| read_recipient(reader)).collect::<Option<Vec<_>>>()?;
    Some(Envelope {
        sender,
        recipients,
        accepted_at,
        client: ClientInfo { address, helo, trusted: bits & 1 << 4 != 0 },
        body_type: if bits & 1 == 0 { BodyType::SevenBit } else { BodyType::EightBitMime },
        smtputf8: bits & 2 != 0,
        ret: match bits >> 2 & 3 {
            1 => Some(DsnReturn::Full),
            2 => Some(DsnReturn::Headers),
            _ => None,
        },
        envid,
    })
}

fn read_recipient(reader: &mut ByteReader<'_>) -> Option<Recipient> {
    let address = reader.text()?.parse().ok()?;
    let original = read_address(reader.optional_text()?)?;
    let orcpt = reader.optional_text()?.map(Box::from);
    let bits = reader.u8()?;
    let is_forwarded = bits & 1 << FORWARDED_BIT != 0;
    Some(Recipient { address, original, notify: DsnNotify::from_bits(bits), orcpt, is_forwarded })
}

/// The outer None means invalid text.
fn read_address(text: Option<&str>) -> Option<Option<Address>> {
    text.map(str::parse).transpose().ok()
}

/// Makes a [`LiveMessage`] from a head.
pub(crate) fn live_message(lane: LaneId, head: MessageHead, recovered: bool) -> LiveMessage {
    let states = all_states(head.envelope.recipients.len(), &head.states);
    LiveMessage { id: QueueId::new(lane.spool, lane.number, head.sequence), envelope: head.envelope, states, recovered }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> Envelope {
        Envelope {
            sender: Some("a@example.org".parse().unwrap()),
            recipients: vec![
                Recipient {
                    address: "b@example.org".parse().unwrap(),
                    original: Some("c@example.org".parse().unwrap()),
                    notify: DsnNotify::FAILURE.with(DsnNotify::DELAY),
                    orcpt: Some("rfc822;c@example.org".into()),
                    is_forwarded: false,
                },
                Recipient {
                    address: "\"d d\"@example.org".parse().unwrap(),
                    original: None,
                    notify: DsnNotify::UNSET,
                    orcpt: None,
                    is_forwarded: true,
                },
            ],
            accepted_at: Timestamp(1_763_000_000_000),
            client: ClientInfo { address: Some("::1".parse().unwrap()), helo: "client".into(), trusted: true },
            body_type: BodyType::EightBitMime,
            smtputf8: true,
            ret: Some(DsnReturn::Headers),
            envid: Some("x+2By".into()),
        }
    }

    #[test]
    fn a_message_head_reads_back_and_every_shorter_one_is_refused() {
        let head = MessageHead {
            sequence: 77,
            flags: BodyFlags { dot_lines: true, eight_bit: false, ends_in_crlf: true },
            prefix_len: 120,
            spilled: Some(SpilledRange { start: 65_416, len: 1 << 33, digest: 5 }),
            states: vec![
                (0, RecipientState::Failed),
                (1, RecipientState::Waiting { attempts: 3, until: Timestamp(9) }),
                (2, RecipientState::Held { attempts: 4 }),
                (3, RecipientState::Withdrawn),
            ],
            envelope: envelope(),
        };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        let read = MessageHead::read(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{head:?}"));
        assert!((0..bytes.len()).all(|end| MessageHead::read(&bytes[..end]).is_none()));
    }

    #[test]
    fn a_client_is_read_back_as_trusted_or_not() {
        for trusted in [true, false] {
            let mut envelope = envelope();
            envelope.client.trusted = trusted;
            let mut bytes = Vec::new();
            encode_envelope(&mut bytes, &envelope);
            assert_eq!(read_envelope(&mut ByteReader::new(&bytes)), Some(envelope));
        }
    }
}
