//! The bytes that a program reads: fields about the delivery, and the message with the line ends that
//! the program expects. The last bytes of a message are held back until its checksum is known to be
//! right, so a program that reads to the end never gets a damaged message without being killed.

use std::io;

use mail::{Address, Body, BodyError, Envelope};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;
use tokio::task::spawn_blocking;

use super::PipeConfig;

/// The size of one read of the message.
const READ_OCTETS: usize = 64 << 10;

/// The fields before a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedFields {
    /// `From sender date`, the first line of a message in an mbox.
    pub from_line: bool,
    /// `Return-Path`: the sender (RFC 5321 section 4.4).
    pub return_path: bool,
    /// `X-Original-To`: the recipient before aliases, of the first recipient.
    pub original_to: bool,
    /// `Delivered-To`: the first recipient.
    pub delivered_to: bool,
}

/// The line ends of a message for a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramLineEnds {
    /// LF, as programs on Unix expect.
    #[default]
    Lf,
    /// CRLF: the message as it came.
    Crlf,
}

/// Why a program does not get its message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FeedError {
    /// The stored message is damaged.
    Damaged(String),
    /// It cannot be read now.
    Unreadable(String),
}

/// What a program reads.
pub(super) struct Content {
    front: Vec<u8>,
    body: Body,
    line_ends: ProgramLineEnds,
}

impl Content {
    pub(super) fn new(envelope: &Envelope, recipients: &[u32], body: Body, config: &PipeConfig) -> Self {
        let front = front(envelope, recipients, config.fields);
        let front = match config.line_ends {
            ProgramLineEnds::Lf => front,
            ProgramLineEnds::Crlf => front.replace('\n', "\r\n"),
        };
        Content { front: front.into_bytes(), body, line_ends: config.line_ends }
    }

    /// Writes all to the program, and closes its input. A program need not read all of it.
    pub(super) async fn feed(self, mut input: Sender) -> Result<(), FeedError> {
        let Content { mut front, body, line_ends } = self;
        let (mut position, mut checksum) = (0, 0);
        let mut converter = LineConverter { line_ends, pending_cr: false };
        loop {
            let (read, chunk) = read_chunk(body.clone(), position).await?;
            (position, checksum) = (position + read, crc32c::crc32c_append(checksum, &chunk));
            let is_last = position >= body.len();
            if is_last && checksum != body.digest() {
                let damage = BodyError::Digest { found: checksum, expected: body.digest() };
                return Err(FeedError::Damaged(damage.to_string()));
            }
            converter.convert(&chunk, is_last, &mut front);
            if input.write_all(&front).await.is_err() || is_last {
                return Ok(());
            }
            front.clear();
        }
    }
}

async fn read_chunk(body: Body, position: u64) -> Result<(u64, Vec<u8>), FeedError> {
    let read = move || -> io::Result<Vec<u8>> {
        let mut chunk = vec![0; READ_OCTETS];
        let read = body.read_at(&mut chunk, position)?;
        chunk.truncate(read);
        Ok(chunk)
    };
    let unreadable = |error: io::Error| FeedError::Unreadable(BodyError::Unreadable(error).to_string());
    let chunk = spawn_blocking(read).await.map_err(io::Error::other).flatten().map_err(unreadable)?;
    Ok((chunk.len() as u64, chunk))
}

/// The fields about the delivery, with LF.
fn front(envelope: &Envelope, recipients: &[u32], fields: AddedFields) -> String {
    let sender = envelope.sender.as_ref().map_or("", Address::as_str);
    let first = recipients.first().map(|ordinal| &envelope.recipients[*ordinal as usize]);
    let mut front = String::new();
    if fields.from_line {
        let name = if sender.is_empty() { "MAILER-DAEMON" } else { sender };
        front += &format!("From {name} {}\n", envelope.accepted_at.to_asctime());
    }
    if fields.return_path {
        front += &format!("Return-Path: <{sender}>\n");
    }
    if let Some(recipient) = first.filter(|_| fields.original_to) {
        front += &format!("X-Original-To: {}\n", recipient.original.as_ref().unwrap_or(&recipient.address));
    }
    if let Some(recipient) = first.filter(|_| fields.delivered_to) {
        front += &format!("Delivered-To: {}\n", recipient.address);
    }
    front
}

/// Turns CRLF into LF, across the borders of chunks.
struct LineConverter {
    line_ends: ProgramLineEnds,
    /// The last chunk ended with a CR, which is not written yet.
    pending_cr: bool,
}

impl LineConverter {
    fn convert(&mut self, chunk: &[u8], is_last: bool, out: &mut Vec<u8>) {
        if self.line_ends == ProgramLineEnds::Crlf {
            return out.extend_from_slice(chunk);
        }
        out.reserve(chunk.len() + 1);
        for &octet in chunk {
            if self.pending_cr && octet != b'\n' {
                out.push(b'\r');
            }
            self.pending_cr = octet == b'\r';
            if !self.pending_cr {
                out.push(octet);
            }
        }
        if is_last && self.pending_cr {
            out.push(b'\r');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(chunks: &[&[u8]]) -> Vec<u8> {
        let mut converter = LineConverter { line_ends: ProgramLineEnds::Lf, pending_cr: false };
        let mut out = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            converter.convert(chunk, index + 1 == chunks.len(), &mut out);
        }
        out
    }

    #[test]
    fn line_ends_are_converted_wherever_a_chunk_ends() {
        let message = b"a\r\n\r\r\nb\rc\r\n\r";
        let expected = b"a\n\r\nb\rc\n\r";
        assert_eq!(converted(&[message]), expected);
        for place in 0..message.len() {
            assert_eq!(converted(&[&message[..place], &message[place..]]), expected, "{place}");
        }
    }
}
