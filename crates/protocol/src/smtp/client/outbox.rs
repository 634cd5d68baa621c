//! The output, in order: command lines, the range of the message to send, the end-of-data mark. Has
//! no buffers when all lines are answered.
//!
//! Lines wait here until they are released: all together in a group, otherwise one after the other.
//! A line counts as sent when its last byte was sent; a reply before that is a protocol violation.

use std::fmt;
use std::ops::Range;

use memchr::memchr;

use super::transaction::DotStuffing;

/// What to send now: the whole head, then the range of the content, then the whole tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpClientOutput<'a> {
    /// Commands.
    pub head: &'a [u8],
    /// A range of the transaction's content in `form`; empty if none is due.
    pub content: Range<u64>,
    /// The form of the content.
    pub form: DotStuffing,
    /// The end-of-data mark.
    pub tail: &'a [u8],
}

impl SmtpClientOutput<'_> {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.content.is_empty() && self.tail.is_empty()
    }

    /// The number of octets to send.
    pub fn octet_count(&self) -> u64 {
        self.head.len() as u64 + (self.content.end - self.content.start) + self.tail.len() as u64
    }
}

/// Sent, unsent and unreleased bytes; the positions are indexes into the lines.
#[derive(Default)]
pub(super) struct Outbox {
    lines: Vec<u8>,
    answered: usize,
    sent: usize,
    released: usize,
    /// The unsent range of the content.
    content: Range<u64>,
    form: DotStuffing,
    tail: &'static [u8],
}

impl Outbox {
    /// Stores lines without releasing any. All earlier lines must be answered.
    pub(super) fn hold(&mut self, lines: Vec<u8>) {
        *self = Outbox { lines, ..Outbox::default() };
    }

    /// Sends one or more lines now.
    pub(super) fn send(&mut self, lines: Vec<u8>) {
        self.hold(lines);
        self.release(self.lines.len());
    }

    /// Releases the next line.
    pub(super) fn release_line(&mut self) {
        self.release(line_end(&self.lines, self.released));
    }

    /// Releases everything before `place`.
    pub(super) fn release(&mut self, place: usize) {
        self.released = place;
    }

    /// Sends content after the lines, all of which are released.
    pub(super) fn send_content(&mut self, octets: u64, form: DotStuffing, tail: &'static [u8]) {
        self.content = 0..octets;
        self.form = form;
        self.tail = tail;
    }

    /// Records the reply to the next line; false if that was not sent yet.
    pub(super) fn answer_line(&mut self) -> bool {
        let end = line_end(&self.lines, self.answered);
        if end == self.answered || end > self.sent {
            return false;
        }
        self.answered = end;
        if self.answered == self.lines.len() {
            self.lines = Vec::new();
            (self.answered, self.sent, self.released) = (0, 0, 0);
        }
        true
    }

    /// Whether a released line is not answered yet.
    pub(super) fn is_awaiting(&self) -> bool {
        self.answered < self.released
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.lines.capacity()
    }

    pub(super) fn output(&self) -> SmtpClientOutput<'_> {
        let head = &self.lines[self.sent..self.released];
        SmtpClientOutput { head, content: self.content.clone(), form: self.form, tail: self.tail }
    }

    /// The first `count` octets of the output were sent.
    pub(super) fn handle_sent(&mut self, count: u64) {
        let head = count.min((self.released - self.sent) as u64);
        self.sent += head as usize;
        let content = (count - head).min(self.content.end - self.content.start);
        self.content.start += content;
        let tail = (count - head - content).min(self.tail.len() as u64);
        self.tail = &self.tail[tail as usize..];
    }
}

/// Hides the lines, which may contain a password.
impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outbox { lines, answered, sent, released, content, form, tail } = self;
        f.debug_struct("Outbox")
            .field("octets", &lines.len())
            .field("answered", answered)
            .field("sent", sent)
            .field("released", released)
            .field("content", content)
            .field("form", form)
            .field("tail", &tail.escape_ascii().to_string())
            .finish()
    }
}

/// The end of the line that starts at `place`.
fn line_end(lines: &[u8], place: usize) -> usize {
    memchr(b'\n', &lines[place..]).map_or(lines.len(), |end| place + end + 1)
}
