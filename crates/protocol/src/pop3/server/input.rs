//! The input loop: takes one step of the state table after the other, until the input is used up, an
//! answer is needed, or enough output waits.
//!
//! A line ends at an LF; the CR before it is optional, since nothing depends on it here.

use std::mem;

use memchr::memchr;

use super::{OUTPUT_WAITING_MAX, Pop3Server, Step, replies};
use crate::sasl::{self, SaslOutcome, SaslRefusal};

impl Pop3Server {
    /// Processes as much input as possible; returns the number of bytes used.
    pub(super) fn process_input(&mut self, input: &[u8]) -> usize {
        let mut used = 0;
        self.stalled = false;
        loop {
            self.close_if_stopping();
            if self.output.len() - self.output_sent >= OUTPUT_WAITING_MAX && !self.wants_close() {
                self.stalled = true;
                return used;
            }
            match self.take_step(&input[used..]) {
                Some(count) => used += count,
                None => return used,
            }
        }
    }

    pub(super) fn work_on_backlog(&mut self) {
        let mut backlog = mem::take(&mut self.backlog);
        let used = self.backlog_used + self.process_input(&backlog[self.backlog_used..]);
        self.backlog_used = 0;
        if used == backlog.len() {
            return;
        }
        if matches!(self.step, Step::Command | Step::Authenticating(_)) && !self.stalled {
            // Part of a line, which the client may take long to complete: not worth a large buffer.
            self.backlog = backlog.split_off(used);
        } else {
            self.backlog = backlog;
            self.backlog_used = used;
        }
    }

    /// Takes one step of the state table. Returns the number of bytes used, or None if more input or
    /// an answer is needed, or a file is being sent.
    fn take_step(&mut self, input: &[u8]) -> Option<usize> {
        match self.step {
            Step::Command | Step::Authenticating(_) => self.take_line(input),
            Step::LongLine(_) => self.skip_line(input),
            Step::Listing(cursor) => {
                self.continue_listing(cursor);
                Some(0)
            }
            Step::Copying(_) => {
                self.ask_for_chunk();
                Some(0)
            }
            Step::Asked(_) | Step::SendingFile(_) => None,
            Step::Securing => self.refuse_clear_text(input),
            Step::Closed => (!input.is_empty()).then_some(input.len()),
        }
    }

    fn take_line(&mut self, input: &[u8]) -> Option<usize> {
        let limit = self.line_octets_max(input);
        let window = &input[..input.len().min(limit)];
        let Some(end) = memchr(b'\n', window) else {
            if input.len() < limit {
                return None;
            }
            self.step = match mem::replace(&mut self.step, Step::Command) {
                Step::Authenticating(attempt) => Step::LongLine(Some(attempt)),
                _ => Step::LongLine(None),
            };
            return Some(limit);
        };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        match self.step {
            Step::Authenticating(_) => self.respond(line),
            _ => self.run_command_line(line),
        }
        Some(end + 1)
    }

    /// Includes the line end.
    fn line_octets_max(&self, input: &[u8]) -> usize {
        let limit = self.config.limits.command_line_octets_max;
        let is_auth = || input.get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"AUTH "));
        let is_longer = matches!(self.step, Step::Authenticating(_)) || is_auth();
        if is_longer { limit.max(sasl::LINE_OCTETS_MAX) } else { limit }
    }

    /// A line that is too long also fails an AUTH exchange.
    fn skip_line(&mut self, input: &[u8]) -> Option<usize> {
        let Some(end) = memchr(b'\n', input) else { return (!input.is_empty()).then_some(input.len()) };
        match mem::replace(&mut self.step, Step::Command) {
            Step::LongLine(Some(attempt)) => {
                self.finish_login(*attempt, SaslOutcome::Refused(SaslRefusal::LineTooLong));
            }
            _ => self.refuse(replies::LINE_TOO_LONG),
        }
        Some(end + 1)
    }

    /// Clear text after STLS may not come from the client itself.
    fn refuse_clear_text(&mut self, input: &[u8]) -> Option<usize> {
        if input.is_empty() {
            return None;
        }
        self.close("STLS", replies::CLEAR_TEXT_AFTER_STLS);
        Some(input.len())
    }
}
