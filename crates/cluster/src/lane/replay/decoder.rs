//! Decodes the parts of a batch as they come; [`crate::codec`] has their form. Only heads are collected in memory; content passes
//! through. Lengths are not trusted.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use mail::{BodyFlags, QueueId, SpoolId};
use spool::{decode_envelope, decode_states};

use super::{ReplayEvent, ReplayedMessage};
use crate::codec::{FLAG_DOT_LINES, FLAG_EIGHT_BIT, FLAG_ENDS_IN_CRLF, HEAD_BYTES_MAX, KIND_MESSAGE, KIND_OUTCOME};

/// The length of kind and length before a head.
const START_BYTES: usize = 5;

/// The place in an encoded batch.
#[derive(Default)]
pub(super) struct BatchDecoder {
    /// The start of an entry whose head is not complete.
    head: BytesMut,
    content: Option<OpenContent>,
}

/// The content of a message that is not complete.
struct OpenContent {
    left: u64,
    found: u32,
    digest: u32,
}

impl BatchDecoder {
    /// Decodes a part. An error is a description of the damage.
    pub(super) fn decode(&mut self, mut part: Bytes, events: &mut VecDeque<ReplayEvent>) -> Result<(), &'static str> {
        while !part.is_empty() {
            match &mut self.content {
                Some(content) => {
                    events.push_back(ReplayEvent::Content(content.take(&mut part)));
                    self.end_content()?;
                }
                None => self.collect_head(&mut part, events)?,
            }
        }
        Ok(())
    }

    /// Whether the batch may end here.
    pub(super) fn is_between_entries(&self) -> bool {
        self.head.is_empty() && self.content.is_none()
    }

    fn collect_head(&mut self, part: &mut Bytes, events: &mut VecDeque<ReplayEvent>) -> Result<(), &'static str> {
        self.collect_until(START_BYTES, part);
        let Some((start, _)) = self.head.split_first_chunk::<START_BYTES>() else { return Ok(()) };
        let [kind, length @ ..] = *start;
        let length = u32::from_le_bytes(length) as usize;
        if length > HEAD_BYTES_MAX {
            return Err("the head of an entry is too long");
        }
        self.collect_until(START_BYTES + length, part);
        if self.head.len() < START_BYTES + length {
            return Ok(());
        }
        let head = self.head.split();
        let event = match kind {
            KIND_MESSAGE => decode_message(&head[START_BYTES..]).map(ReplayEvent::Message),
            KIND_OUTCOME => decode_outcome(&head[START_BYTES..]),
            _ => return Err("an entry has an unknown kind: use the version of Mailrace that wrote it"),
        };
        let event = event.ok_or("the head of an entry is damaged")?;
        if let ReplayEvent::Message(message) = &event {
            self.content = Some(OpenContent { left: message.content_len, found: 0, digest: message.digest });
        }
        events.push_back(event);
        self.end_content()
    }

    fn collect_until(&mut self, length: usize, part: &mut Bytes) {
        let missing = length.saturating_sub(self.head.len()).min(part.len());
        self.head.extend_from_slice(&part.split_to(missing));
    }

    fn end_content(&mut self) -> Result<(), &'static str> {
        match &self.content {
            Some(content) if content.left == 0 => {
                let is_intact = content.found == content.digest;
                self.content = None;
                if is_intact { Ok(()) } else { Err("the content of a message has another checksum") }
            }
            _ => Ok(()),
        }
    }
}

impl OpenContent {
    fn take(&mut self, part: &mut Bytes) -> Bytes {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(part.len());
        let taken = part.split_to(count);
        self.left -= taken.len() as u64;
        self.found = crc32c::crc32c_append(self.found, &taken);
        taken
    }
}

fn decode_message(mut head: &[u8]) -> Option<ReplayedMessage> {
    let id = read_id(&mut head)?;
    let bits = head.try_get_u8().ok()?;
    let digest = head.try_get_u32_le().ok()?;
    let content_len = head.try_get_u64_le().ok()?;
    let prefix_len = head.try_get_u64_le().ok().filter(|prefix_len| *prefix_len <= content_len)?;
    let states = decode_states(&mut head)?;
    let flags = BodyFlags {
        dot_lines: bits & FLAG_DOT_LINES != 0,
        eight_bit: bits & FLAG_EIGHT_BIT != 0,
        ends_in_crlf: bits & FLAG_ENDS_IN_CRLF != 0,
    };
    Some(ReplayedMessage { id, envelope: decode_envelope(head)?, states, flags, digest, prefix_len, content_len })
}

fn decode_outcome(mut head: &[u8]) -> Option<ReplayEvent> {
    let id = read_id(&mut head)?;
    let bounce = match head.try_get_u8().ok()? {
        0 => None,
        1 => Some(read_id(&mut head)?),
        _ => return None,
    };
    let recipients = decode_states(&mut head)?;
    head.is_empty().then_some(ReplayEvent::Outcome { id, recipients, bounce })
}

fn read_id(head: &mut &[u8]) -> Option<QueueId> {
    let spool = head.try_get_u64_le().ok()?;
    let lane = head.try_get_u16_le().ok()?;
    let sequence = head.try_get_u64_le().ok()?;
    (spool >> 48 == 0).then(|| QueueId::new(SpoolId::new(spool), lane, sequence))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use mail::{Body, BodyType, ClientInfo, DsnNotify, Envelope, Recipient, Timestamp};
    use spool::{DraftBody, RecipientState};

    use super::*;
    use crate::codec::{BatchEncoder, CopiedEntry};

    fn id(sequence: u64) -> QueueId {
        QueueId::new(SpoolId::new(7), 3, sequence)
    }

    fn envelope() -> Envelope {
        let address: mail::Address = "b@example.org".parse().unwrap();
        let recipient = Recipient {
            address,
            original: None,
            notify: DsnNotify::UNSET,
            orcpt: Some("rfc822;b@example.org".into()),
            is_forwarded: true,
        };
        Envelope {
            sender: None,
            recipients: vec![recipient.clone(), recipient],
            accepted_at: Timestamp(5),
            client: ClientInfo { address: None, helo: "client".into(), trusted: false },
            body_type: BodyType::SevenBit,
            smtputf8: false,
            ret: None,
            envid: None,
            content_filter: false,
        }
    }

    fn content(text: &str, is_spilled: bool) -> DraftBody {
        let (prefix, body) = text.split_at(text.len() / 3);
        if !is_spilled {
            return DraftBody::Memory { prefix: Arc::new(prefix.into()), body: Arc::new(body.into()) };
        }
        let source = Arc::new(text.as_bytes().to_vec());
        let digest = crc32c::crc32c(text.as_bytes());
        let content = Body::new(source, 0, text.len() as u64, digest, BodyFlags::default());
        DraftBody::Spilled { content, prefix_len: prefix.len() as u64 }
    }

    fn message(sequence: u64, text: &str, is_spilled: bool) -> CopiedEntry {
        CopiedEntry::Message {
            id: id(sequence),
            envelope: envelope(),
            states: vec![(1, RecipientState::Held { attempts: 2 })],
            content: content(text, is_spilled),
            flags: BodyFlags { dot_lines: true, eight_bit: false, ends_in_crlf: true },
            digest: crc32c::crc32c(text.as_bytes()),
        }
    }

    fn entries() -> Vec<CopiedEntry> {
        let outcome = |bounce| CopiedEntry::Outcome {
            id: id(1),
            recipients: vec![(0, RecipientState::Delivered), (1, RecipientState::Failed)],
            bounce,
        };
        vec![message(1, "in memory", false), outcome(Some(id(2))), message(2, "in a file", true), message(3, "", false)]
            .into_iter()
            .chain([message(4, "", true), outcome(None)])
            .collect()
    }

    fn decode(part_bytes: usize) -> Vec<ReplayEvent> {
        let mut encoder = BatchEncoder::new(entries(), part_bytes);
        let (mut decoder, mut events) = (BatchDecoder::default(), VecDeque::new());
        while let Some((part, is_last)) = encoder.next_part().unwrap() {
            assert!(is_last || part.len() == part_bytes);
            decoder.decode(Bytes::copy_from_slice(&part), &mut events).unwrap();
        }
        assert!(decoder.is_between_entries());
        join_content(events)
    }

    fn join_content(events: VecDeque<ReplayEvent>) -> Vec<ReplayEvent> {
        let mut joined: Vec<ReplayEvent> = Vec::new();
        for event in events {
            match (joined.last_mut(), event) {
                (Some(ReplayEvent::Content(bytes)), ReplayEvent::Content(more)) => {
                    *bytes = [&bytes[..], &more[..]].concat().into();
                }
                (_, event) => joined.push(event),
            }
        }
        joined
    }

    #[test]
    fn a_batch_reads_back_however_it_is_cut_into_parts() {
        let whole = decode(usize::MAX);
        assert_eq!(whole.len(), 8);
        let ReplayEvent::Message(first) = &whole[0] else { panic!("no message") };
        assert_eq!((first.id, first.prefix_len, first.content_len), (id(1), 3, 9));
        assert_eq!((&first.envelope, first.flags.dot_lines), (&envelope(), true));
        assert_eq!(first.states, [(1, RecipientState::Held { attempts: 2 })]);
        assert_eq!(whole[1], ReplayEvent::Content("in memory".into()));
        assert!(matches!(&whole[2], ReplayEvent::Outcome { bounce: Some(bounce), .. } if *bounce == id(2)));
        assert_eq!(whole[4], ReplayEvent::Content("in a file".into()));
        for part_bytes in 1..200 {
            assert_eq!(decode(part_bytes), whole, "{part_bytes}");
        }
    }

    #[test]
    fn any_changed_byte_is_decoded_without_a_panic() {
        let bytes = BatchEncoder::new(entries(), usize::MAX).next_part().unwrap().unwrap().0;
        for place in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[place] ^= 0xff;
            let mut events = VecDeque::new();
            // Whether it is noticed depends on the place: records have a checksum of their own.
            let _ = BatchDecoder::default().decode(changed.into(), &mut events);
        }
    }

    #[test]
    fn a_file_with_other_content_does_not_become_a_batch() {
        let mut damaged = message(1, "in a file", true);
        if let CopiedEntry::Message { content: DraftBody::Spilled { content, .. }, .. } = &mut damaged {
            *content = Body::new(Arc::new(b"in a pile".to_vec()), 0, 9, content.digest(), BodyFlags::default());
        }
        let mut encoder = BatchEncoder::new(vec![damaged], 1 << 20);
        assert_eq!(encoder.next_part().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
