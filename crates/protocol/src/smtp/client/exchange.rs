//! The open transaction: the reply that is due, and the results so far. If the server has
//! PIPELINING (RFC 2920), the commands are sent in a group, otherwise one after the other; either
//! way the replies are handled one by one, and the next step is decided when none is outstanding.
//!
//! | due        | 2xx                     | 3xx                               | 4xx, 5xx                           |
//! |------------|-------------------------|-----------------------------------|------------------------------------|
//! | Mail       | Rcpt(0)                 | violation                         | all are refused                    |
//! | Rcpt(i)    | the next one            | violation                         | this one is refused                |
//! | Data       | violation               | Message; a lone dot if all failed | the rest is refused; over          |
//! | Message    | the rest is accepted    | violation                         | the rest is refused; over          |
//! | Message(i) | this one is accepted    | violation                         | this one is refused; over with all |
//!
//! A message without remaining recipients is not sent, unless the group already contained BDAT. A
//! transaction that MAIL opened and no final reply closed is ended by RSET.

use mail::Reply;

use super::outbox::Outbox;
use super::transaction::{Content, Form, Transaction};
use super::{Client, Closed, Event, Misbehaviour, Stage, State, Unsendable, Verdict};
use crate::smtp::Flavor;

/// A BDAT of up to this many octets is sent in one group with its envelope; a larger message waits
/// until a recipient is accepted.
pub const GROUPED_CHUNK_OCTETS_MAX: u64 = 1 << 20;

/// The open transaction.
#[derive(Debug)]
pub(super) struct Exchange {
    due: Due,
    content: Content,
    chunked: bool,
    /// MAIL was accepted.
    is_open: bool,
    /// The content, or the lone dot, was passed to the outbox.
    content_begun: bool,
    /// [`Verdict::NotSent`] until the result is known.
    verdicts: Vec<Verdict>,
    undecided: usize,
}

/// The next expected reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Mail,
    Rcpt(usize),
    Data,
    Message,
    /// LMTP: for this recipient.
    MessageFor(usize),
}

impl Exchange {
    pub(super) fn stage(&self) -> Stage {
        match self.due {
            Due::Mail => Stage::Mail,
            Due::Rcpt(index) => Stage::Rcpt(index),
            Due::Data => Stage::Data,
            Due::Message => Stage::Message(None),
            Due::MessageFor(index) => Stage::Message(Some(index)),
        }
    }

    /// The results if the session ends here. The end of the content was sent if nothing is left to
    /// send.
    pub(super) fn into_verdicts(self, outbox: &Outbox) -> Vec<Verdict> {
        let mut verdicts = self.verdicts;
        if self.content_begun && outbox.output().is_empty() {
            let undecided = verdicts.iter_mut().filter(|verdict| **verdict == Verdict::NotSent);
            undecided.for_each(|verdict| *verdict = Verdict::InDoubt);
        }
        verdicts
    }

    /// The server sent 421 instead of a reply. With LMTP, the reply is for one recipient only.
    pub(super) fn handle_shutdown(&mut self, stage: Stage, reply: &Reply) {
        match self.due {
            Due::MessageFor(index) => self.decide(index, stage, reply),
            _ => self.decide_all(stage, reply),
        }
    }

    /// Sets the result for this recipient, unless it is known already.
    fn decide(&mut self, index: usize, stage: Stage, reply: &Reply) {
        let verdict = &mut self.verdicts[index];
        if *verdict == Verdict::NotSent {
            let (is_success, reply) = (reply.is_success(), reply.clone());
            *verdict = if is_success { Verdict::Accepted(reply) } else { Verdict::Refused { stage, reply } };
            self.undecided -= 1;
        }
    }

    fn decide_all(&mut self, stage: Stage, reply: &Reply) {
        (0..self.verdicts.len()).for_each(|index| self.decide(index, stage, reply));
    }

    /// After the final reply. After a refused BDAT only RSET ensures that nothing remains (RFC 3030
    /// section 2).
    fn end(&mut self) {
        let is_accepted = |verdict: &Verdict| matches!(verdict, Verdict::Accepted(_));
        self.is_open &= self.chunked && !self.verdicts.iter().any(is_accepted);
    }

    /// The first recipient from `index` on without a result.
    fn next_undecided(&self, index: usize) -> Option<usize> {
        (index..self.verdicts.len()).find(|index| self.verdicts[*index] == Verdict::NotSent)
    }
}

impl Client {
    pub(super) fn open(&mut self, transaction: &Transaction) -> Result<(), Unsendable> {
        transaction.check(&self.extensions)?;
        let Transaction { content, recipients, .. } = transaction;
        let grouped = self.config.pipelining && self.extensions.pipelining;
        let chunked = self.form() == Form::Plain;
        let mut lines = transaction.envelope_lines(&self.extensions);
        let envelope_octets = lines.len();
        if chunked {
            lines.extend_from_slice(format!("BDAT {} LAST\r\n", content.octets).as_bytes());
        } else {
            lines.extend_from_slice(b"DATA\r\n");
        }
        let octets = lines.len();
        self.outbox.hold(lines);
        let mut exchange = Exchange {
            due: Due::Mail,
            content: *content,
            chunked,
            is_open: false,
            content_begun: false,
            verdicts: vec![Verdict::NotSent; recipients.len()],
            undecided: recipients.len(),
        };
        match (grouped, chunked) {
            (false, _) => self.outbox.release_line(),
            (true, true) if content.octets > GROUPED_CHUNK_OCTETS_MAX => self.outbox.release(envelope_octets),
            (true, true) => {
                self.outbox.release(octets);
                self.send_content(&mut exchange);
            }
            (true, false) => self.outbox.release(octets),
        }
        self.state = State::Exchange(exchange);
        Ok(())
    }

    /// Handles the reply for the current stage.
    pub(super) fn take_exchange_reply(&mut self, exchange: Exchange, stage: Stage, reply: &Reply) {
        let expected = match exchange.due {
            Due::Data => reply.code == 354,
            _ => reply.is_success(),
        };
        if !expected && !reply.is_transient() && !reply.is_permanent() {
            self.state = State::Exchange(exchange);
            return self.misbehaved(Misbehaviour::Unexpected { stage, code: reply.code });
        }
        match exchange.due {
            Due::Mail => self.mail_replied(exchange, reply),
            Due::Rcpt(index) => self.rcpt_replied(exchange, index, reply),
            Due::Data => self.data_replied(exchange, reply),
            Due::Message | Due::MessageFor(_) if !self.outbox.output().is_empty() => {
                self.replied_too_early(exchange, stage, reply);
            }
            Due::Message => self.message_replied(exchange, reply),
            Due::MessageFor(index) => self.message_replied_for(exchange, index, reply),
        }
    }

    fn mail_replied(&mut self, mut exchange: Exchange, reply: &Reply) {
        exchange.is_open = reply.is_success();
        if !exchange.is_open {
            exchange.decide_all(Stage::Mail, reply);
        }
        exchange.due = Due::Rcpt(0);
        self.go_on(exchange);
    }

    fn rcpt_replied(&mut self, mut exchange: Exchange, index: usize, reply: &Reply) {
        let stage = Stage::Rcpt(index);
        if !reply.is_success() {
            exchange.decide(index, stage, reply);
        } else if !exchange.is_open {
            // A recipient accepted in a refused transaction: anything sent now could go anywhere.
            self.state = State::Exchange(exchange);
            return self.misbehaved(Misbehaviour::Unexpected { stage, code: reply.code });
        }
        exchange.due = match index + 1 {
            next if next < exchange.verdicts.len() => Due::Rcpt(next),
            _ if exchange.chunked => self.due_for_message(&exchange),
            _ => Due::Data,
        };
        self.go_on(exchange);
    }

    fn data_replied(&mut self, mut exchange: Exchange, reply: &Reply) {
        if reply.code != 354 {
            exchange.decide_all(Stage::Data, reply);
            return self.finish(exchange);
        }
        if exchange.undecided == 0 && self.config.flavor == Flavor::Lmtp {
            // RFC 2033 section 4.2 requires 503 here, and does not say how many replies a message
            // without recipients would get.
            self.state = State::Exchange(exchange);
            return self.misbehaved(Misbehaviour::Unexpected { stage: Stage::Data, code: reply.code });
        }
        exchange.due = self.due_for_message(&exchange);
        self.send_content(&mut exchange);
        self.state = State::Exchange(exchange);
    }

    /// LMTP has a reply for each accepted recipient (RFC 2033 section 4.2).
    fn due_for_message(&self, exchange: &Exchange) -> Due {
        match (self.config.flavor, exchange.next_undecided(0)) {
            (Flavor::Lmtp, Some(index)) => Due::MessageFor(index),
            _ => Due::Message,
        }
    }

    fn message_replied(&mut self, mut exchange: Exchange, reply: &Reply) {
        exchange.decide_all(Stage::Message(None), reply);
        exchange.end();
        self.finish(exchange);
    }

    fn message_replied_for(&mut self, mut exchange: Exchange, index: usize, reply: &Reply) {
        exchange.decide(index, Stage::Message(Some(index)), reply);
        match exchange.next_undecided(index) {
            Some(next) => {
                exchange.due = Due::MessageFor(next);
                self.state = State::Exchange(exchange);
            }
            None => {
                exchange.end();
                self.finish(exchange);
            }
        }
    }

    /// A final reply before the last byte: a refusal is trusted, but how the server interprets the
    /// rest is unknown.
    fn replied_too_early(&mut self, mut exchange: Exchange, stage: Stage, reply: &Reply) {
        if reply.is_success() {
            self.state = State::Exchange(exchange);
            return self.misbehaved(Misbehaviour::Early);
        }
        exchange.decide_all(stage, reply);
        self.state = State::Exchange(exchange);
        self.close(Closed::Refused { stage, reply: reply.clone() });
    }

    /// When all released lines are answered: releases the next line, or finishes if no recipient
    /// remains.
    fn go_on(&mut self, mut exchange: Exchange) {
        if !self.outbox.is_awaiting() {
            if exchange.undecided == 0 {
                return self.finish(exchange);
            }
            self.outbox.release_line();
            if matches!(exchange.due, Due::Message | Due::MessageFor(_)) {
                self.send_content(&mut exchange);
            }
        }
        self.state = State::Exchange(exchange);
    }

    fn send_content(&mut self, exchange: &mut Exchange) {
        let content = &exchange.content;
        match exchange.chunked {
            true => self.outbox.send_content(content.octets, Form::Plain, b""),
            // No recipient remains: the server waits for a message, and gets an empty one.
            false if exchange.undecided == 0 => self.outbox.send_content(0, Form::Stuffed, b".\r\n"),
            false => {
                let tail: &[u8] = if content.ends_in_crlf { b".\r\n" } else { b"\r\n.\r\n" };
                self.outbox.send_content(content.octets_as(Form::Stuffed), Form::Stuffed, tail);
            }
        }
        exchange.content_begun = true;
    }

    fn finish(&mut self, exchange: Exchange) {
        self.outbox = Outbox::default();
        self.events.push_back(Event::Finished(exchange.verdicts));
        if exchange.is_open {
            self.say(State::Reset, "RSET\r\n");
        } else {
            self.ready();
        }
    }
}
