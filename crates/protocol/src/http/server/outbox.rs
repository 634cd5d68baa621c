//! The output that is not sent yet: the bytes and ranges of one response. It is empty, and has no
//! buffer, between responses.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ranges::ByteRange;
use super::resource::Resource;

/// The next bytes for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpOutput<'a> {
    /// These bytes; empty if there is no output.
    Bytes(&'a [u8]),
    /// The first bytes, and then the others; neither is empty.
    Pair(&'a [u8], &'a [u8]),
    /// These bytes, with a range of the resource's file behind them.
    Head(&'a [u8]),
    /// A range of the file of the resource that the driver gave last.
    File {
        /// Where it begins.
        offset: u64,
        /// Its length, at least 1.
        octets: u64,
    },
}

/// The rest of a response.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    part: Part,
    /// Empty unless there are several ranges.
    later: VecDeque<Part>,
    resource: Option<Arc<Resource>>,
}

/// Bytes, and the range of the resource that follows them.
#[derive(Debug, Default)]
pub(super) struct Part {
    bytes: Vec<u8>,
    sent: usize,
    range: ByteRange,
}

impl Part {
    pub(super) fn new(bytes: Vec<u8>, range: ByteRange) -> Part {
        Part { bytes, sent: 0, range }
    }
}

impl Outbox {
    /// Bytes only.
    pub(super) fn with_bytes(bytes: Vec<u8>) -> Outbox {
        Outbox { part: Part::new(bytes, ByteRange::default()), ..Outbox::default() }
    }

    /// Bytes, and a range of a resource.
    pub(super) fn with_range(bytes: Vec<u8>, resource: Arc<Resource>, range: ByteRange) -> Outbox {
        Outbox { part: Part::new(bytes, range), later: VecDeque::new(), resource: Some(resource) }
    }

    /// At least one part with ranges of a resource.
    pub(super) fn with_parts(mut parts: VecDeque<Part>, resource: Arc<Resource>) -> Outbox {
        Outbox { part: parts.pop_front().unwrap_or_default(), later: parts, resource: Some(resource) }
    }

    /// Sends these bytes, and then the response.
    pub(super) fn put_before(&mut self, earlier: Outbox) {
        if !earlier.is_empty() {
            self.part.bytes.splice(..0, earlier.part.bytes[earlier.part.sent..].iter().copied());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.part.is_sent()
    }

    pub(super) fn output(&self) -> HttpOutput<'_> {
        let bytes = &self.part.bytes[self.part.sent..];
        let ByteRange { offset, octets } = self.part.range;
        let Some(resource) = self.resource.as_ref().filter(|_| octets > 0) else { return HttpOutput::Bytes(bytes) };
        match (bytes, resource.bytes()) {
            ([], Some(content)) => HttpOutput::Bytes(slice(content, offset, octets)),
            (_, Some(content)) => HttpOutput::Pair(bytes, slice(content, offset, octets)),
            ([], None) => HttpOutput::File { offset, octets },
            (_, None) => HttpOutput::Head(bytes),
        }
    }

    /// This many bytes of the output were sent.
    pub(super) fn handle_sent(&mut self, count: usize) {
        let of_bytes = count.min(self.part.bytes.len() - self.part.sent);
        self.part.sent += of_bytes;
        let of_range = ((count - of_bytes) as u64).min(self.part.range.octets);
        self.part.range.offset += of_range;
        self.part.range.octets -= of_range;
        while self.part.is_sent() {
            match self.later.pop_front() {
                Some(next) => self.part = next,
                None => return *self = Outbox::default(),
            }
        }
    }
}

impl Part {
    fn is_sent(&self) -> bool {
        self.sent == self.bytes.len() && self.range.octets == 0
    }
}

/// The range is within the content.
fn slice(content: &[u8], offset: u64, octets: u64) -> &[u8] {
    &content[offset as usize..][..octets as usize]
}
