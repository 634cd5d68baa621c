//! The input loop: takes one step of the state table after the other, until the input is used up or
//! an answer is needed. Lines end in CRLF; message bytes pass through [`DotDecoder`] or are counted
//! off a chunk, then go to [`ContentState`](super::content::ContentState).

use std::mem;

use memchr::{memchr, memmem};

use super::command::{self, Chunk, Verb};
use super::content::{BareNewlines, ContentFault, RepairPolicy};
use super::dot::{DotDecoder, Piece};
use super::{BodySink, PendingQuestion, SessionAction, SessionQuestion, SmtpSession, State, replies};
use crate::sasl::{self, SaslOutcome, SaslRefusal};

impl SmtpSession {
    /// Processes as much input as possible; returns the number of bytes used.
    pub(super) fn process_input(&mut self, input: &[u8], body: &mut impl BodySink) -> usize {
        let mut used = 0;
        while let Some(count) = self.step(&input[used..], body) {
            used += count;
            self.close_if_stopping();
        }
        used
    }

    pub(super) fn work_on_backlog(&mut self, body: &mut impl BodySink) {
        let mut backlog = mem::take(&mut self.backlog);
        let used = self.backlog_used + self.process_input(&backlog[self.backlog_used..], body);
        self.backlog_used = 0;
        if matches!(self.state, State::AwaitingAnswer(_)) && used < backlog.len() {
            self.backlog = backlog;
            self.backlog_used = used;
        } else {
            // Nothing, or part of a line, which the peer may take long to complete: not worth a large buffer.
            self.backlog = backlog.split_off(used);
        }
    }

    /// Takes one step of the state table. Returns the number of bytes used, or None if more input
    /// or an answer is needed.
    fn step(&mut self, input: &[u8], body: &mut impl BodySink) -> Option<usize> {
        match self.state {
            State::Command | State::Authenticating(_) => self.take_line(input),
            State::LongLine { after_cr, .. } => self.skip_line(after_cr, input),
            State::AwaitingAnswer(_) => None,
            State::Data(decoder) => self.take_data(decoder, input, body),
            State::Chunk(chunk) => self.take_chunk(chunk, input, body),
            State::Discard { octets, .. } => self.discard(octets, input),
            State::Securing => self.refuse_clear_text(input),
            State::Closed => (!input.is_empty()).then_some(input.len()),
        }
    }

    /// A line ends at its first LF. If there is no CR before it, the peer disagrees on what a line
    /// is, and the session ends.
    fn take_line(&mut self, input: &[u8]) -> Option<usize> {
        let of_exchange = matches!(self.state, State::Authenticating(_));
        let limit = self.line_octets_max(of_exchange, input);
        let window = &input[..input.len().min(limit)];
        let Some(place) = memchr(b'\n', window) else {
            if input.len() < limit {
                return None;
            }
            let attempt = match mem::replace(&mut self.state, State::Command) {
                State::Authenticating(attempt) => Some(attempt),
                _ => None,
            };
            self.state = State::LongLine { after_cr: window.ends_with(b"\r"), login: attempt };
            return Some(limit);
        };
        match input[..place].strip_suffix(b"\r") {
            Some(line) if command::has_no_bare_cr_or_nul(line) && of_exchange => self.respond(line),
            Some(line) if command::has_no_bare_cr_or_nul(line) => self.run_command_line(line, place + 1 < input.len()),
            _ => self.close("command", replies::LINE_BROKEN),
        }
        Some(place + 1)
    }

    /// Includes the CRLF. AUTH lines may be longer than other commands (RFC 4954 section 4).
    fn line_octets_max(&self, of_exchange: bool, input: &[u8]) -> usize {
        let limit = self.config.limits.command_line_octets_max;
        let is_auth = || input.get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"AUTH "));
        let is_longer = of_exchange || self.config.auth.is_some() && is_auth();
        if is_longer { limit.max(sasl::LINE_OCTETS_MAX) } else { limit }
    }

    /// A line that is too long also fails an AUTH exchange, which is reported to the driver.
    fn skip_line(&mut self, after_cr: bool, input: &[u8]) -> Option<usize> {
        let last = *input.last()?;
        let end = match memmem::find(input, b"\r\n") {
            _ if after_cr && input[0] == b'\n' => Some(1),
            place => place.map(|place| place + 2),
        };
        match end {
            Some(_) => match mem::replace(&mut self.state, State::Command) {
                State::LongLine { login: Some(login), .. } => {
                    self.finish_login(*login, SaslOutcome::Refused(SaslRefusal::LineTooLong));
                }
                _ => self.refuse("command", None, replies::LINE_TOO_LONG),
            },
            None => {
                if let State::LongLine { after_cr, .. } = &mut self.state {
                    *after_cr = last == b'\r';
                }
            }
        }
        Some(end.unwrap_or(input.len()))
    }

    fn take_data(&mut self, mut decoder: DotDecoder, mut input: &[u8], body: &mut impl BodySink) -> Option<usize> {
        let length = input.len();
        while let Some(piece) = decoder.next_piece(&mut input) {
            match piece {
                Piece::Bytes(bytes) => self.take_content(bytes, body),
                Piece::End => {
                    self.finish_message(body);
                    return Some(length - input.len());
                }
            }
        }
        self.state = State::Data(decoder);
        (length > 0).then_some(length)
    }

    fn take_chunk(&mut self, chunk: Chunk, input: &[u8], body: &mut impl BodySink) -> Option<usize> {
        let bytes = prefix(input, chunk.octets);
        self.take_content(bytes, body);
        let octets = chunk.octets - bytes.len() as u64;
        if octets > 0 {
            self.state = State::Chunk(Chunk { octets, ..chunk });
            return (!bytes.is_empty()).then_some(bytes.len());
        }
        self.state = State::Command;
        match self.transaction.as_ref().and_then(|t| t.fault) {
            _ if chunk.last => self.finish_message(body),
            Some(fault) => self.drop_message(fault, 1),
            None => self.send_reply(replies::CHUNK_OK),
        }
        Some(bytes.len())
    }

    fn discard(&mut self, octets: u64, input: &[u8]) -> Option<usize> {
        let count = prefix(input, octets).len();
        match mem::replace(&mut self.state, State::Command) {
            State::Discard { octets, reply, times } if octets == count as u64 => {
                self.refuse_times(Verb::Bdat.stage(), None, reply, times);
            }
            State::Discard { octets, reply, times } => {
                self.state = State::Discard { octets: octets - count as u64, reply, times };
                return (count > 0).then_some(count);
            }
            other => self.state = other,
        }
        Some(count)
    }

    /// Clear text after STARTTLS may not come from the client itself.
    fn refuse_clear_text(&mut self, input: &[u8]) -> Option<usize> {
        if input.is_empty() {
            return None;
        }
        self.close(Verb::Starttls.stage(), replies::CLEAR_TEXT_AFTER_STARTTLS);
        Some(input.len())
    }

    /// Passes message bytes on, unless the message was refused already.
    fn take_content(&mut self, bytes: &[u8], body: &mut impl BodySink) {
        let repair = RepairPolicy { bare_newlines: self.bare_newlines(), nul: self.config.tolerance.nul };
        if !bytes.is_empty()
            && let Some(transaction) = &mut self.transaction
            && transaction.fault.is_none()
            && let Err(fault) = transaction.content.append(bytes, repair, &self.config.limits, body)
        {
            transaction.fault = Some(fault);
            self.actions.push_back(SessionAction::Abandon);
        }
    }

    /// Completes the message after the end of its data.
    fn finish_message(&mut self, body: &mut impl BodySink) {
        let bare = self.bare_newlines();
        let Some(transaction) = &mut self.transaction else { return };
        let end = match transaction.fault {
            Some(fault) => Err(fault),
            None => transaction.content.finish(bare, &self.config.limits, body).inspect_err(|&fault| {
                transaction.fault = Some(fault);
                self.actions.push_back(SessionAction::Abandon);
            }),
        };
        match end {
            Ok(end) => self.ask(PendingQuestion::Message, SessionQuestion::Message(end)),
            Err(fault) => self.drop_message(fault, self.replies_at_end()),
        }
    }

    /// Replies for a message with a fault, of which the driver knows already.
    fn drop_message(&mut self, fault: ContentFault, times: usize) {
        self.state = State::Command;
        self.transaction = None;
        self.refuse_times("message", None, fault.reply(), times);
    }

    fn bare_newlines(&self) -> BareNewlines {
        if self.peer.normalise_bare_newlines { BareNewlines::Normalise } else { BareNewlines::Refuse }
    }
}

/// The first `count` bytes, or all if there are fewer.
fn prefix(input: &[u8], count: u64) -> &[u8] {
    &input[..usize::try_from(count).map_or(input.len(), |count| count.min(input.len()))]
}
