//! The open transaction: the reply that is due, and the results so far. If the server has
//! PIPELINING (RFC 2920), the commands are sent in a group, otherwise one after the other; either
//! way the replies are handled one by one, and the next step is decided when none is outstanding.
//!
//! | due        | 2xx                     | 3xx                               | 4xx, 5xx                           |
//! |------------|-------------------------|-----------------------------------|------------------------------------|
//! | Xforward   | Mail                    | violation                         | as 2xx                             |
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
use super::transaction::{ContentSize, DotStuffing, Transaction};
use super::{
    BeginTransactionError, CloseReason, RecipientOutcome, SmtpClient, SmtpClientEvent, SmtpStage, SmtpViolation, State,
};
use crate::smtp::MailProtocol;

/// A BDAT of up to this many octets is sent in one group with its envelope; a larger message waits
/// until a recipient is accepted.
pub const GROUPED_CHUNK_OCTETS_MAX: u64 = 1 << 20;

/// The open transaction.
#[derive(Debug)]
pub(super) struct TransactionState {
    due: AwaitedReply,
    content: ContentSize,
    chunked: bool,
    /// MAIL was accepted.
    is_open: bool,
    /// The content, or the lone dot, was passed to the outbox.
    content_begun: bool,
    /// [`RecipientOutcome::NotSent`] until the result is known.
    outcomes: Vec<RecipientOutcome>,
    undecided: usize,
}

/// The next expected reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedReply {
    Xforward,
    Mail,
    Rcpt(usize),
    Data,
    Message,
    /// LMTP: for this recipient.
    MessageFor(usize),
}

impl TransactionState {
    pub(super) fn stage(&self) -> SmtpStage {
        match self.due {
            AwaitedReply::Xforward => SmtpStage::Xforward,
            AwaitedReply::Mail => SmtpStage::Mail,
            AwaitedReply::Rcpt(index) => SmtpStage::Rcpt(index),
            AwaitedReply::Data => SmtpStage::Data,
            AwaitedReply::Message => SmtpStage::Message(None),
            AwaitedReply::MessageFor(index) => SmtpStage::Message(Some(index)),
        }
    }

    /// The results if the session ends here. The end of the content was sent if nothing is left to
    /// send.
    pub(super) fn into_outcomes(self, outbox: &Outbox) -> Vec<RecipientOutcome> {
        let mut outcomes = self.outcomes;
        if self.content_begun && outbox.output().is_empty() {
            let undecided = outcomes.iter_mut().filter(|outcome| **outcome == RecipientOutcome::NotSent);
            undecided.for_each(|outcome| *outcome = RecipientOutcome::InDoubt);
        }
        outcomes
    }

    /// The server sent 421 instead of a reply. With LMTP, the reply is for one recipient only.
    pub(super) fn handle_shutdown(&mut self, stage: SmtpStage, reply: &Reply) {
        match self.due {
            AwaitedReply::MessageFor(index) => self.decide(index, stage, reply),
            _ => self.decide_all(stage, reply),
        }
    }

    /// Sets the result for this recipient, unless it is known already.
    fn decide(&mut self, index: usize, stage: SmtpStage, reply: &Reply) {
        let outcome = &mut self.outcomes[index];
        if *outcome == RecipientOutcome::NotSent {
            let (is_success, reply) = (reply.is_success(), reply.clone());
            *outcome =
                if is_success { RecipientOutcome::Accepted(reply) } else { RecipientOutcome::Refused { stage, reply } };
            self.undecided -= 1;
        }
    }

    fn decide_all(&mut self, stage: SmtpStage, reply: &Reply) {
        (0..self.outcomes.len()).for_each(|index| self.decide(index, stage, reply));
    }

    /// After the final reply. After a refused BDAT only RSET ensures that nothing remains (RFC 3030
    /// section 2).
    fn end(&mut self) {
        let is_accepted = |outcome: &RecipientOutcome| matches!(outcome, RecipientOutcome::Accepted(_));
        self.is_open &= self.chunked && !self.outcomes.iter().any(is_accepted);
    }

    /// The first recipient from `index` on without a result.
    fn next_undecided(&self, index: usize) -> Option<usize> {
        (index..self.outcomes.len()).find(|index| self.outcomes[*index] == RecipientOutcome::NotSent)
    }
}

impl SmtpClient {
    pub(super) fn open(&mut self, transaction: &Transaction) -> Result<(), BeginTransactionError> {
        transaction.check(&self.extensions)?;
        let Transaction { content, recipients, .. } = transaction;
        let grouped = self.config.pipelining && self.extensions.pipelining;
        let chunked = self.dot_stuffing() == DotStuffing::Plain;
        let mut lines =
            transaction.client.as_ref().map_or_else(Vec::new, |client| client.line(self.extensions.xforward));
        let due = if lines.is_empty() { AwaitedReply::Mail } else { AwaitedReply::Xforward };
        lines.append(&mut transaction.envelope_lines(&self.extensions));
        let envelope_octets = lines.len();
        if chunked {
            lines.extend_from_slice(format!("BDAT {} LAST\r\n", content.octets).as_bytes());
        } else {
            lines.extend_from_slice(b"DATA\r\n");
        }
        let octets = lines.len();
        self.outbox.hold(lines);
        let mut state = TransactionState {
            due,
            content: *content,
            chunked,
            is_open: false,
            content_begun: false,
            outcomes: vec![RecipientOutcome::NotSent; recipients.len()],
            undecided: recipients.len(),
        };
        match (grouped, chunked) {
            (false, _) => self.outbox.release_line(),
            (true, true) if content.octets > GROUPED_CHUNK_OCTETS_MAX => self.outbox.release(envelope_octets),
            (true, true) => {
                self.outbox.release(octets);
                self.send_content(&mut state);
            }
            (true, false) => self.outbox.release(octets),
        }
        self.state = State::Transaction(state);
        Ok(())
    }

    /// Handles the reply for the current stage.
    pub(super) fn take_exchange_reply(&mut self, state: TransactionState, stage: SmtpStage, reply: &Reply) {
        let expected = match state.due {
            AwaitedReply::Data => reply.code == 354,
            _ => reply.is_success(),
        };
        if !expected && !reply.is_transient() && !reply.is_permanent() {
            self.state = State::Transaction(state);
            return self.close_for_violation(SmtpViolation::Unexpected { stage, code: reply.code });
        }
        match state.due {
            AwaitedReply::Xforward => self.advance(TransactionState { due: AwaitedReply::Mail, ..state }),
            AwaitedReply::Mail => self.mail_replied(state, reply),
            AwaitedReply::Rcpt(index) => self.rcpt_replied(state, index, reply),
            AwaitedReply::Data => self.data_replied(state, reply),
            AwaitedReply::Message | AwaitedReply::MessageFor(_) if !self.outbox.output().is_empty() => {
                self.replied_too_early(state, stage, reply);
            }
            AwaitedReply::Message => self.message_replied(state, reply),
            AwaitedReply::MessageFor(index) => self.message_replied_for(state, index, reply),
        }
    }

    fn mail_replied(&mut self, mut state: TransactionState, reply: &Reply) {
        state.is_open = reply.is_success();
        if !state.is_open {
            state.decide_all(SmtpStage::Mail, reply);
        }
        state.due = AwaitedReply::Rcpt(0);
        self.advance(state);
    }

    fn rcpt_replied(&mut self, mut state: TransactionState, index: usize, reply: &Reply) {
        let stage = SmtpStage::Rcpt(index);
        if !reply.is_success() {
            state.decide(index, stage, reply);
        } else if !state.is_open {
            // A recipient accepted in a refused transaction: anything sent now could go anywhere.
            self.state = State::Transaction(state);
            return self.close_for_violation(SmtpViolation::Unexpected { stage, code: reply.code });
        }
        state.due = match index + 1 {
            next if next < state.outcomes.len() => AwaitedReply::Rcpt(next),
            _ if state.chunked => self.due_for_message(&state),
            _ => AwaitedReply::Data,
        };
        self.advance(state);
    }

    fn data_replied(&mut self, mut state: TransactionState, reply: &Reply) {
        if reply.code != 354 {
            state.decide_all(SmtpStage::Data, reply);
            return self.finish(state);
        }
        if state.undecided == 0 && self.config.flavor == MailProtocol::Lmtp {
            // RFC 2033 section 4.2 requires 503 here, and does not say how many replies a message
            // without recipients would get.
            self.state = State::Transaction(state);
            return self.close_for_violation(SmtpViolation::Unexpected { stage: SmtpStage::Data, code: reply.code });
        }
        state.due = self.due_for_message(&state);
        self.send_content(&mut state);
        self.state = State::Transaction(state);
    }

    /// LMTP has a reply for each accepted recipient (RFC 2033 section 4.2).
    fn due_for_message(&self, state: &TransactionState) -> AwaitedReply {
        match (self.config.flavor, state.next_undecided(0)) {
            (MailProtocol::Lmtp, Some(index)) => AwaitedReply::MessageFor(index),
            _ => AwaitedReply::Message,
        }
    }

    fn message_replied(&mut self, mut state: TransactionState, reply: &Reply) {
        state.decide_all(SmtpStage::Message(None), reply);
        state.end();
        self.finish(state);
    }

    fn message_replied_for(&mut self, mut state: TransactionState, index: usize, reply: &Reply) {
        state.decide(index, SmtpStage::Message(Some(index)), reply);
        match state.next_undecided(index) {
            Some(next) => {
                state.due = AwaitedReply::MessageFor(next);
                self.state = State::Transaction(state);
            }
            None => {
                state.end();
                self.finish(state);
            }
        }
    }

    /// A final reply before the last byte: a refusal is trusted, but how the server interprets the
    /// rest is unknown.
    fn replied_too_early(&mut self, mut state: TransactionState, stage: SmtpStage, reply: &Reply) {
        if reply.is_success() {
            self.state = State::Transaction(state);
            return self.close_for_violation(SmtpViolation::Early);
        }
        state.decide_all(stage, reply);
        self.state = State::Transaction(state);
        self.close(CloseReason::Refused { stage, reply: reply.clone() });
    }

    /// When all released lines are answered: releases the next line, or finishes if no recipient
    /// remains.
    fn advance(&mut self, mut state: TransactionState) {
        if !self.outbox.is_awaiting() {
            if state.undecided == 0 {
                return self.finish(state);
            }
            self.outbox.release_line();
            if matches!(state.due, AwaitedReply::Message | AwaitedReply::MessageFor(_)) {
                self.send_content(&mut state);
            }
        }
        self.state = State::Transaction(state);
    }

    fn send_content(&mut self, state: &mut TransactionState) {
        let content = &state.content;
        match state.chunked {
            true => self.outbox.send_content(content.octets, DotStuffing::Plain, b""),
            // No recipient remains: the server waits for a message, and gets an empty one.
            false if state.undecided == 0 => self.outbox.send_content(0, DotStuffing::Stuffed, b".\r\n"),
            false => {
                let tail: &[u8] = if content.ends_in_crlf { b".\r\n" } else { b"\r\n.\r\n" };
                self.outbox.send_content(content.encoded_len(DotStuffing::Stuffed), DotStuffing::Stuffed, tail);
            }
        }
        state.content_begun = true;
    }

    fn finish(&mut self, state: TransactionState) {
        self.outbox = Outbox::default();
        self.events.push_back(SmtpClientEvent::Finished(state.outcomes));
        if state.is_open {
            self.send_command(State::Reset, "RSET\r\n");
        } else {
            self.ready();
        }
    }
}
