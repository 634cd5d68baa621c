//! Frames: a length in four octets, a code in one, and data. The length counts the code.

use super::limits::MilterViolation;

const LENGTH_OCTETS: usize = 4;

/// A frame from the milter.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) code: u8,
    pub(super) data: Vec<u8>,
}

/// Assembles frames that arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    received: Vec<u8>,
}

impl FrameReader {
    pub(super) fn push(&mut self, input: &[u8]) {
        self.received.extend_from_slice(input);
    }

    /// Whether part of a frame is left.
    pub(super) fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// The next frame, once it is complete.
    pub(super) fn next(&mut self, octets_max: usize) -> Result<Option<Frame>, MilterViolation> {
        let Some((length, rest)) = self.received.split_first_chunk::<LENGTH_OCTETS>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > octets_max {
            return Err(MilterViolation::FrameTooLong(length));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        let (&code, data) = frame.split_first().ok_or(MilterViolation::EmptyFrame)?;
        let frame = Frame { code, data: data.to_vec() };
        self.received.drain(..LENGTH_OCTETS + length);
        Ok(Some(frame))
    }
}

/// Appends a frame whose data `write` appends.
pub(super) fn push_frame(out: &mut Vec<u8>, code: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_OCTETS]);
    out.push(code);
    write(out);
    let length = (out.len() - start - LENGTH_OCTETS) as u32;
    out[start..start + LENGTH_OCTETS].copy_from_slice(&length.to_be_bytes());
}

/// Appends a string with its final NUL. A NUL inside would end it, and is left out.
pub(super) fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    push_pieces(out, text, memchr::memchr_iter(0, text));
    out.push(0);
}

/// Appends a text without the octets at these places, which are in ascending order.
pub(super) fn push_pieces(out: &mut Vec<u8>, text: &[u8], left_out: impl Iterator<Item = usize>) {
    let mut start = 0;
    for place in left_out {
        out.extend_from_slice(&text[start..place]);
        start = place + 1;
    }
    out.extend_from_slice(&text[start..]);
}
