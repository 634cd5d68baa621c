//! A message that is converted to 7 bits while it is sent, for servers without 8BITMIME
//! ([`protocol::mime::seven_bit`]).
//!
//! It is read three times: to make the plan, to count the octets, which SIZE and BDAT declare before
//! the first one is sent, and to send it. The first two times are once for each task. Of a large
//! message, only [`INPUT_OCTETS`] and what becomes of them are in memory.

use std::io;
use std::sync::Arc;

use mail::{Body, BodyError};
use net::{read_from_disk, read_if_cached};
use protocol::mime::PartLimitError;
use protocol::mime::seven_bit::{SevenBitConverter, SevenBitPlan, SevenBitScan};
use protocol::smtp::client::{ContentSize, DotStuffing};

/// How many octets of a body are read and converted at once.
pub(super) const INPUT_OCTETS: usize = 16 << 10;

/// Why a message cannot be converted.
#[derive(Debug)]
pub(super) enum UnconvertedMessage {
    /// It cannot be read.
    Body(BodyError),
    /// It exceeds a limit.
    Limit(PartLimitError),
}

impl From<BodyError> for UnconvertedMessage {
    fn from(error: BodyError) -> Self {
        UnconvertedMessage::Body(error)
    }
}

impl From<io::Error> for UnconvertedMessage {
    fn from(error: io::Error) -> Self {
        UnconvertedMessage::Body(error.into())
    }
}

/// A message in its converted form.
#[derive(Debug)]
pub(super) struct SevenBitContent {
    plan: Arc<SevenBitPlan>,
    size: ContentSize,
    converter: SevenBitConverter,
    /// For DATA.
    dots: Option<DotStuffer>,
    /// Octets of the body that were read.
    read: u64,
    /// What was converted last; of it, this much was sent.
    converted: Vec<u8>,
    sent: usize,
    is_complete: bool,
}

impl SevenBitContent {
    /// Makes the plan, and counts. None: the conversion would change nothing.
    pub(super) async fn prepare(body: &Body) -> Result<Option<Box<SevenBitContent>>, UnconvertedMessage> {
        let mut scan = SevenBitScan::new();
        read_all(body, |octets| scan.handle_input(octets)).await?;
        let plan = Arc::new(scan.finish().map_err(UnconvertedMessage::Limit)?);
        if plan.is_identity() {
            return Ok(None);
        }
        let mut count = ContentCount::default();
        let (mut converter, mut converted) = (SevenBitConverter::new(plan.clone()), Vec::new());
        let step = |octets: &[u8]| {
            converter.handle_input(octets, &mut converted);
            count.take(&mut converted);
        };
        read_all(body, step).await?;
        converter.finish(&mut converted);
        count.take(&mut converted);
        Ok(Some(Box::new(SevenBitContent {
            converter: SevenBitConverter::new(plan.clone()),
            plan,
            size: count.size(),
            dots: None,
            read: 0,
            converted: Vec::new(),
            sent: 0,
            is_complete: false,
        })))
    }

    pub(super) fn size(&self) -> ContentSize {
        self.size
    }

    /// Starts again from the first octet, in this form.
    pub(super) fn rewind(&mut self, form: DotStuffing) {
        self.converter = SevenBitConverter::new(self.plan.clone());
        self.dots = (form == DotStuffing::Stuffed).then(DotStuffer::default);
        (self.read, self.sent, self.is_complete) = (0, 0, false);
        self.converted.clear();
    }

    /// The octets to send next, and whether they are the last ones. Empty, and not the last ones:
    /// more of the body is needed.
    pub(super) fn unsent(&self) -> (&[u8], bool) {
        (&self.converted[self.sent..], self.is_complete)
    }

    /// So many of [`unsent`](SevenBitContent::unsent) were sent.
    pub(super) fn handle_sent(&mut self, octets: usize) {
        self.sent += octets;
    }

    /// The position and length of what [`handle_input`](SevenBitContent::handle_input) needs next.
    pub(super) fn needed_input(&self, body: &Body) -> (u64, usize) {
        (self.read, (body.len() - self.read).min(INPUT_OCTETS as u64) as usize)
    }

    /// Converts the next octets of the body; everything before was sent.
    pub(super) fn handle_input(&mut self, body: &Body, input: &[u8]) {
        self.converted.clear();
        self.sent = 0;
        self.read += input.len() as u64;
        self.converter.handle_input(input, &mut self.converted);
        if self.read == body.len() {
            self.converter.finish(&mut self.converted);
            self.is_complete = true;
        }
        if let Some(dots) = &mut self.dots {
            self.converted = dots.stuff(&self.converted);
        }
    }
}

/// Passes on the whole body, and checks its digest. Other connections of this thread get their turn
/// in between.
async fn read_all(body: &Body, mut take: impl FnMut(&[u8])) -> Result<(), BodyError> {
    let (mut place, mut found) = (0, 0);
    let mut window = vec![0; body.len().min(INPUT_OCTETS as u64) as usize];
    while place < body.len() {
        let octets = (body.len() - place).min(INPUT_OCTETS as u64) as usize;
        let window = &mut window[..octets];
        if read_if_cached(body, window, place)? {
            tokio::task::yield_now().await;
        } else {
            window.copy_from_slice(&read_from_disk(body, place, octets).await?);
        }
        found = crc32c::crc32c_append(found, window);
        take(window);
        place += octets as u64;
    }
    match body.digest() {
        expected if expected == found => Ok(()),
        expected => Err(BodyError::Digest { found, expected }),
    }
}

/// Doubles the dots that begin lines (RFC 5321 section 4.5.2), of octets that come piece by piece.
#[derive(Debug)]
struct DotStuffer {
    before: [u8; 2],
}

impl Default for DotStuffer {
    fn default() -> Self {
        DotStuffer { before: *b"\r\n" }
    }
}

impl DotStuffer {
    fn stuff(&mut self, octets: &[u8]) -> Vec<u8> {
        let mut stuffed = Vec::with_capacity(octets.len() + octets.len() / 16);
        for line in octets.split_inclusive(|octet| *octet == b'\n') {
            if self.is_dot_line(line) {
                stuffed.push(b'.');
            }
            stuffed.extend_from_slice(line);
        }
        stuffed
    }

    /// Whether this line, or the rest of a line, begins with a dot that has to be doubled.
    fn is_dot_line(&mut self, line: &[u8]) -> bool {
        let is_dot_line = self.before == *b"\r\n" && line.starts_with(b".");
        self.before = match line {
            [.., last_but_one, last] => [*last_but_one, *last],
            [last] => [self.before[1], *last],
            [] => self.before,
        };
        is_dot_line
    }
}

/// Counts what [`ContentSize`] says.
#[derive(Default)]
struct ContentCount {
    octets: u64,
    dot_lines: u64,
    dots: DotStuffer,
}

impl ContentCount {
    fn take(&mut self, octets: &mut Vec<u8>) {
        self.octets += octets.len() as u64;
        for line in octets.split_inclusive(|octet| *octet == b'\n') {
            self.dot_lines += u64::from(self.dots.is_dot_line(line));
        }
        octets.clear();
    }

    fn size(&self) -> ContentSize {
        ContentSize { octets: self.octets, dot_lines: self.dot_lines, ends_in_crlf: self.dots.before == *b"\r\n" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_doubled_and_counted_wherever_the_pieces_part() {
        for text in [&b".a\r\n..\r\n\r\n.b\r\n.\r.\n.c\r\n."[..], b"....", b"a\r\n.b\r\n", b".", b"", b"\n.\r\n\r.\r\n"]
        {
            let size = ContentSize::from_message(text);
            for octets in 1..=text.len().max(1) {
                let (mut dots, mut count) = (DotStuffer::default(), ContentCount::default());
                let pieces: Vec<u8> = text.chunks(octets).flat_map(|piece| dots.stuff(piece)).collect();
                assert_eq!(pieces, &*protocol::smtp::client::stuff_dots(text), "{} by {octets}", text.escape_ascii());
                text.chunks(octets).for_each(|piece| count.take(&mut piece.to_vec()));
                assert_eq!(count.size(), size, "{} by {octets}", text.escape_ascii());
            }
        }
    }
}
