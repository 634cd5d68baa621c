//! The machine of one connection to a milter.
//!
//! | state | waits for | then |
//! |---|---|---|
//! | Negotiating | the answer to the offer | Ready |
//! | Ready | commands of the driver; the answers to those that the milter answers, in their order. Progress and, at the end of a message, changes may come before one | Ready |
//! | Closed | nothing | |
//!
//! A violation leads to Closed from every state. What the milter does not want is not sent, and what
//! it does not answer leaves together with what it does.
//!
//! The driver may send commands before the answers to earlier ones have come. An answer other than to
//! continue ends the message, so the milter may answer the commands after it or ignore them: nobody knows
//! how many answers follow, and the state is Closed.

use std::collections::VecDeque;

use mail::Reply;

use super::command::{MilterCommand, MilterStep};
use super::edits::{EditCollector, MilterEdits};
use super::frame::{Frame, FrameReader, push_frame};
use super::limits::{ANSWER_OCTETS_MAX, FRAME_OCTETS_MAX, MilterLimits, MilterViolation};
use super::macros::MacroValues;
use super::negotiation::{self, Agreement};
use super::reply;

const ABORT: u8 = b'A';
const QUIT: u8 = b'Q';
const QUIT_FOR_NEXT: u8 = b'K';

/// What the milter said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MilterEvent {
    /// The milter has accepted the offer.
    Negotiated,
    /// It is still at work: the driver waits anew.
    Progress,
    /// The answer to the last command.
    Answer(MilterAnswer),
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MilterAnswer {
    /// Go on.
    Continue,
    /// Accept without further commands: the session at connect and HELO, else the message.
    Accept,
    /// Accept the message, and drop it.
    Discard,
    /// Refuse for good.
    Reject,
    /// Refuse for now.
    Defer,
    /// Refuse with this reply, 4xx or 5xx.
    Reply(Reply),
    /// End the session with 421.
    Shutdown,
    /// The milter cannot work.
    Failed,
}

/// One connection to one milter.
#[derive(Debug)]
pub struct MilterClient {
    limits: MilterLimits,
    state: State,
    /// The commands that the milter has yet to answer, in their order.
    unanswered: VecDeque<MilterStep>,
    agreement: Agreement,
    input: FrameReader,
    output: Vec<u8>,
    edits: EditCollector,
    /// The milter wants no more commands of this kind in a row.
    skipped: Option<MilterStep>,
    /// The last command ended a message, and the milter said to go on.
    is_between_messages: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Negotiating,
    Ready,
    Closed,
}

impl MilterClient {
    /// A new connection. The output has the offer.
    pub fn new(limits: MilterLimits) -> MilterClient {
        let mut output = Vec::new();
        negotiation::push_offer(&mut output);
        MilterClient {
            limits,
            state: State::Negotiating,
            unanswered: VecDeque::new(),
            agreement: Agreement::default(),
            input: FrameReader::default(),
            output,
            edits: EditCollector::default(),
            skipped: None,
            is_between_messages: false,
        }
    }

    /// Sends a command with its macros, if the milter wants it. Returns whether it will answer. The next
    /// command must wait for [`MilterEvent::Answer`] unless [`MilterClient::takes_commands_ahead`].
    pub fn send(&mut self, command: &MilterCommand<'_>, macros: &dyn MacroValues) -> bool {
        let step = command.step();
        if self.skipped.is_some_and(|skipped| skipped != step) {
            self.skipped = None;
        }
        if self.state != State::Ready || self.skipped.is_some() || !self.agreement.wants(step) {
            return false;
        }
        self.is_between_messages = false;
        self.agreement.macros.push(&mut self.output, step, macros);
        command.push(&mut self.output, self.agreement.wants_leading_space());
        let is_answered = self.agreement.answers(step);
        if is_answered {
            self.unanswered.push_back(step);
        }
        is_answered
    }

    /// The number of commands that the milter has yet to answer.
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// Whether the milter reads commands that come before its answer to earlier ones: from version 6 on,
    /// commands without answers come in one piece with others.
    pub fn takes_commands_ahead(&self) -> bool {
        self.agreement.can_leave_unanswered()
    }

    /// Whether the connection cannot be used any more.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether the milter wants the next command of this kind.
    pub fn wants(&self, step: MilterStep) -> bool {
        self.skipped != Some(step) && self.agreement.wants(step)
    }

    /// Whether the milter wants to know of recipients that were refused.
    pub fn wants_refused_recipients(&self) -> bool {
        self.agreement.wants_refused_recipients() && self.wants(MilterStep::Rcpt)
    }

    /// Ends the transaction without a message. The milter does not answer.
    pub fn abort(&mut self) {
        push_frame(&mut self.output, ABORT, |_| {});
        self.edits = EditCollector::default();
        self.is_between_messages = false;
    }

    /// Ends the session. Returns whether the connection can serve another one, which begins with
    /// [`MilterCommand::Connect`]; else it is to be closed once the output is sent. `may_keep`: the
    /// driver would keep it.
    pub fn quit(&mut self, may_keep: bool) -> bool {
        let is_kept = may_keep && self.can_serve_next_session();
        push_frame(&mut self.output, if is_kept { QUIT_FOR_NEXT } else { QUIT }, |_| {});
        self.is_between_messages = false;
        if !is_kept {
            self.state = State::Closed;
        }
        is_kept
    }

    /// libmilter only takes the command for it after a message that it did not refuse or accept
    /// early: in other states it ignores the command and the next session.
    fn can_serve_next_session(&self) -> bool {
        let is_waiting = !self.unanswered.is_empty();
        let is_quiet = self.state == State::Ready && !is_waiting && self.output.is_empty() && self.input.is_empty();
        is_quiet && self.is_between_messages && self.agreement.can_be_reused()
    }

    /// The changes of the message that has ended.
    pub fn take_edits(&mut self) -> MilterEdits {
        self.edits.finish()
    }

    /// The octets of memory that a new body needs at the most, with the copy that it becomes part of; 0 as
    /// long as there is none.
    pub fn new_body_memory(&self) -> usize {
        self.edits.body_memory()
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Some of the output was sent.
    pub fn handle_sent(&mut self, count: usize) {
        self.output.drain(..count.min(self.output.len()));
    }

    /// Bytes have arrived. Read all events before the next ones.
    pub fn handle_input(&mut self, input: &[u8]) {
        self.input.push(input);
    }

    /// The next event; None until more bytes arrive.
    ///
    /// # Errors
    ///
    /// The milter violated the protocol: close the connection.
    pub fn poll_event(&mut self) -> Result<Option<MilterEvent>, MilterViolation> {
        let event = self.next_event();
        if event.is_err() {
            self.state = State::Closed;
        }
        event
    }

    fn next_event(&mut self) -> Result<Option<MilterEvent>, MilterViolation> {
        while self.state != State::Closed
            && let Some(frame) = self.input.next(self.frame_octets_max())?
        {
            let event = match self.state {
                State::Negotiating => Some(self.negotiated(&frame)?),
                State::Ready => match self.unanswered.front() {
                    Some(step) => self.answered(*step, &frame)?,
                    None => return Err(MilterViolation::Unsolicited(frame.code)),
                },
                State::Closed => None,
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// Only changes may be long, so that many sessions that wait for a milter need little memory.
    fn frame_octets_max(&self) -> usize {
        match self.unanswered.front() {
            Some(MilterStep::EndOfBody) => FRAME_OCTETS_MAX,
            _ => ANSWER_OCTETS_MAX,
        }
    }

    fn negotiated(&mut self, frame: &Frame) -> Result<MilterEvent, MilterViolation> {
        if frame.code != negotiation::NEGOTIATE {
            return Err(MilterViolation::Negotiation);
        }
        self.agreement = Agreement::parse(&frame.data)?;
        self.state = State::Ready;
        Ok(MilterEvent::Negotiated)
    }

    /// None: the frame is a change of the message.
    fn answered(&mut self, step: MilterStep, frame: &Frame) -> Result<Option<MilterEvent>, MilterViolation> {
        if frame.code == b'p' {
            return Ok(Some(MilterEvent::Progress));
        }
        let is_end = step == MilterStep::EndOfBody;
        if is_end && self.edits.take(frame, self.agreement.actions, &self.limits)? {
            return Ok(None);
        }
        let answer = self.answer(step, frame)?;
        self.unanswered.pop_front();
        if answer != MilterAnswer::Continue && !self.unanswered.is_empty() {
            self.state = State::Closed;
        }
        self.is_between_messages = is_end && answer == MilterAnswer::Continue;
        Ok(Some(MilterEvent::Answer(answer)))
    }

    fn answer(&mut self, step: MilterStep, frame: &Frame) -> Result<MilterAnswer, MilterViolation> {
        Ok(match frame.code {
            b'c' => MilterAnswer::Continue,
            b'a' => MilterAnswer::Accept,
            b'd' => MilterAnswer::Discard,
            b'r' => MilterAnswer::Reject,
            b't' => MilterAnswer::Defer,
            b'y' => MilterAnswer::Reply(reply::parse(&frame.data)?),
            b'4' => MilterAnswer::Shutdown,
            b'f' => MilterAnswer::Failed,
            b's' if self.agreement.may_skip() => {
                self.skipped = Some(step);
                MilterAnswer::Continue
            }
            code => return Err(MilterViolation::Unsolicited(code)),
        })
    }
}
