//! RETR and TOP (RFC 1939 sections 5 and 7): sends a message in the form in which the driver has it.
//! The size in the reply to RETR is what the client receives, without dot-stuffing (RFC 1939
//! section 11).
//!
//! Of a file, only ranges are named here: from one line that begins with a dot to the next, and the
//! missing dots between them.

use std::sync::Arc;

use super::encoder::ContentEncoder;
use super::listing::push_number;
use super::{Content, PendingQuestion, Pop3Question, Pop3Server, Step, replies};

/// A file that is being sent. There is always a range to send.
#[derive(Debug)]
pub(super) struct FileContent {
    position: u64,
    octets: u64,
    dot_lines: Arc<[u64]>,
    /// The first of them that is not sent yet.
    next_dot_line: usize,
    ends_with_newline: bool,
}

impl FileContent {
    /// The range up to the next line that begins with a dot: offset and length.
    pub(super) fn range(&self) -> (u64, u64) {
        let end = self.dot_lines.get(self.next_dot_line).copied().unwrap_or(self.octets);
        (self.position, end - self.position)
    }

    /// If a line begins here with a dot, another dot comes first.
    fn takes_dot(&mut self) -> bool {
        let is_dot_line = self.dot_lines.get(self.next_dot_line) == Some(&self.position);
        self.next_dot_line += usize::from(is_dot_line);
        is_dot_line
    }
}

/// The state is Command when an answer comes in.
impl Pop3Server {
    pub(super) fn take_content(&mut self, message: usize, lines: Option<u32>, content: Content<'_>) {
        match content {
            Content::File { octets, dot_lines, ends_with_newline } => {
                self.send_file(octets, dot_lines, ends_with_newline);
            }
            Content::Copied { octets } => {
                self.send_content_head(lines, octets);
                self.step = Step::Copying(Box::new(ContentEncoder::new(lines)));
            }
            Content::Whole(bytes) => self.send_whole(message, lines, bytes),
            Content::Gone => self.refuse(replies::GONE),
            Content::Unavailable => self.refuse(replies::UNREADABLE),
        }
    }

    fn send_file(&mut self, octets: u64, dot_lines: Arc<[u64]>, ends_with_newline: bool) {
        let ends_with_newline = ends_with_newline || octets == 0;
        self.send_content_head(None, if ends_with_newline { octets } else { octets + 2 });
        let file = FileContent { position: 0, octets, dot_lines, next_dot_line: 0, ends_with_newline };
        self.continue_file(Box::new(file));
    }

    /// Some octets of the range were sent. Ignored if no file is being sent.
    pub(super) fn handle_file_sent(&mut self, count: u64) {
        let Step::SendingFile(file) = &mut self.step else { return };
        let (offset, octets) = file.range();
        file.position = offset + count.min(octets);
        if count >= octets
            && let Step::SendingFile(file) = std::mem::replace(&mut self.step, Step::Command)
        {
            self.continue_file(file);
        }
    }

    /// At the beginning of a range, or at the end.
    fn continue_file(&mut self, mut file: Box<FileContent>) {
        if file.takes_dot() {
            self.output.push(b'.');
        }
        if file.position < file.octets {
            self.step = Step::SendingFile(file);
        } else {
            let end: &[u8] = if file.ends_with_newline { b".\r\n" } else { b"\r\n.\r\n" };
            self.output.extend_from_slice(end);
            // Commands that arrived meanwhile can be processed now.
            self.stalled = self.stopping || self.backlog_used < self.backlog.len();
        }
    }

    /// The size is known only when the message is encoded: a file may lack its last line end.
    fn send_whole(&mut self, message: usize, lines: Option<u32>, bytes: &[u8]) {
        let expected = self.maildrop.as_ref().map_or(0, |maildrop| maildrop.listing().octets(message));
        let head = self.output.len();
        self.send_content_head(lines, expected);
        let begin = self.output.len();
        let mut encoder = ContentEncoder::new(lines);
        encoder.encode(bytes, &mut self.output);
        let stuffed = encoder.stuffed_octets();
        encoder.finish(&mut self.output);
        let octets = (self.output.len() - begin - b".\r\n".len()) as u64 - stuffed;
        if lines.is_none() && octets != expected {
            let mut corrected = Vec::new();
            write_content_head(octets, &mut corrected);
            self.output.splice(head..begin, corrected);
        }
    }

    fn send_content_head(&mut self, lines: Option<u32>, octets: u64) {
        // The client makes progress.
        self.commands = 0;
        match lines {
            Some(_) => self.send_line(replies::TOP_FOLLOWS),
            None => write_content_head(octets, &mut self.output),
        }
    }

    pub(super) fn ask_for_chunk(&mut self) {
        match std::mem::replace(&mut self.step, Step::Command) {
            Step::Copying(encoder) => self.ask(PendingQuestion::Chunk(encoder), Pop3Question::More),
            other => self.step = other,
        }
    }

    pub(super) fn take_chunk(&mut self, mut encoder: Box<ContentEncoder>, bytes: &[u8], is_last: bool) {
        let is_complete = encoder.encode(bytes, &mut self.output);
        if is_complete || is_last {
            encoder.finish(&mut self.output);
        } else {
            self.step = Step::Copying(encoder);
        }
    }

    /// RETR, or TOP with a number of lines.
    pub(super) fn retrieve(&mut self, message: usize, lines: Option<u32>) {
        self.ask(PendingQuestion::Content { message, lines }, Pop3Question::Retrieve { message, lines });
    }
}

fn write_content_head(octets: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"+OK ");
    push_number(out, octets);
    out.extend_from_slice(b" octets\r\n");
}
