//! The changes that a milter asks for at the end of a message, read from its frames.

use super::frame::Frame;
use super::limits::{MilterLimits, MilterViolation};
use super::negotiation::MilterActions;

/// A change, except of the body. Texts are as the milter sent them; octets that are not UTF-8 are
/// replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MilterEdit {
    /// Adds a field after all others.
    AddField {
        /// The name.
        name: Box<str>,
        /// What follows the colon and one space, with LF between lines.
        value: Box<str>,
    },
    /// Inserts a field.
    InsertField {
        /// The number of fields before it.
        index: u32,
        /// The name.
        name: Box<str>,
        /// As for [`MilterEdit::AddField`].
        value: Box<str>,
    },
    /// Changes a field, or adds it if there is no such field.
    ChangeField {
        /// Which one of several with this name, counted from 1 at the top.
        index: u32,
        /// The name.
        name: Box<str>,
        /// As for [`MilterEdit::AddField`]; empty: the field is removed.
        value: Box<str>,
    },
    /// Changes the sender.
    ChangeSender {
        /// With or without angle brackets.
        path: Box<str>,
        /// ESMTP parameters, separated by blanks; may be empty.
        parameters: Box<str>,
    },
    /// Adds a recipient.
    AddRecipient {
        /// With or without angle brackets.
        path: Box<str>,
        /// ESMTP parameters, separated by blanks; may be empty.
        parameters: Box<str>,
    },
    /// Removes a recipient, with or without angle brackets.
    RemoveRecipient(Box<str>),
}

/// All changes of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MilterEdits {
    /// In the order in which they are to be made.
    pub edits: Vec<MilterEdit>,
    /// The new body, after all other edits.
    pub body: Option<Vec<u8>>,
    /// Why the message is to be held.
    pub quarantine: Option<Box<str>>,
}

/// Collects the changes of one message.
#[derive(Debug, Default)]
pub(super) struct EditCollector {
    edits: MilterEdits,
    /// Octets of the changes without the body.
    octets: usize,
}

impl EditCollector {
    /// The changes so far, which are forgotten here.
    pub(super) fn finish(&mut self) -> MilterEdits {
        std::mem::take(self).edits
    }

    pub(super) fn body_memory(&self) -> usize {
        self.edits.body.as_ref().map_or(0, |body| body.capacity() + body.len())
    }

    /// Reads a change. False: the frame is none.
    pub(super) fn take(
        &mut self,
        frame: &Frame,
        actions: MilterActions,
        limits: &MilterLimits,
    ) -> Result<bool, MilterViolation> {
        let Some(needed) = needed_action(frame.code) else { return Ok(false) };
        if !actions.contains(needed) {
            return Err(MilterViolation::NotOffered);
        }
        if frame.code == b'b' {
            return self.extend_body(&frame.data, limits).map(|()| true);
        }
        let mut data = EditData(&frame.data);
        match frame.code {
            b'q' => self.edits.quarantine = Some(data.text()?),
            code => {
                self.octets += frame.data.len();
                if self.edits.edits.len() == limits.edits_max || self.octets > limits.edit_octets_max {
                    return Err(MilterViolation::TooManyEdits);
                }
                self.edits.edits.push(data.edit(code)?);
            }
        }
        data.end().map(|()| true)
    }

    fn extend_body(&mut self, chunk: &[u8], limits: &MilterLimits) -> Result<(), MilterViolation> {
        let body = self.edits.body.get_or_insert_default();
        if (body.len() + chunk.len()) as u64 > limits.body_octets_max {
            return Err(MilterViolation::BodyTooLong);
        }
        body.extend_from_slice(chunk);
        Ok(())
    }
}

/// The action that a frame needs; None if it is no change.
fn needed_action(code: u8) -> Option<MilterActions> {
    Some(match code {
        b'h' | b'i' => MilterActions::ADD_FIELDS,
        b'm' => MilterActions::CHANGE_FIELDS,
        b'e' => MilterActions::CHANGE_SENDER,
        b'+' => MilterActions::ADD_RECIPIENTS,
        b'2' => MilterActions::ADD_RECIPIENTS_WITH_PARAMETERS,
        b'-' => MilterActions::REMOVE_RECIPIENTS,
        b'b' => MilterActions::REPLACE_BODY,
        b'q' => MilterActions::QUARANTINE,
        _ => return None,
    })
}

/// The data of a frame that is not read yet.
struct EditData<'a>(&'a [u8]);

impl EditData<'_> {
    fn edit(&mut self, code: u8) -> Result<MilterEdit, MilterViolation> {
        Ok(match code {
            b'h' => MilterEdit::AddField { name: self.text()?, value: self.text()? },
            b'i' => MilterEdit::InsertField { index: self.number()?, name: self.text()?, value: self.text()? },
            b'm' => MilterEdit::ChangeField { index: self.number()?, name: self.text()?, value: self.text()? },
            b'e' => MilterEdit::ChangeSender { path: self.text()?, parameters: self.optional_text()? },
            b'-' => MilterEdit::RemoveRecipient(self.text()?),
            _ => MilterEdit::AddRecipient { path: self.text()?, parameters: self.optional_text()? },
        })
    }

    fn number(&mut self) -> Result<u32, MilterViolation> {
        let (number, rest) = self.0.split_first_chunk::<4>().ok_or(MilterViolation::EditData)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*number))
    }

    /// A string with its final NUL.
    fn text(&mut self) -> Result<Box<str>, MilterViolation> {
        let end = memchr::memchr(0, self.0).ok_or(MilterViolation::EditData)?;
        let text = String::from_utf8_lossy(&self.0[..end]).into();
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    fn optional_text(&mut self) -> Result<Box<str>, MilterViolation> {
        if self.0.is_empty() { Ok("".into()) } else { self.text() }
    }

    fn end(&self) -> Result<(), MilterViolation> {
        if self.0.is_empty() { Ok(()) } else { Err(MilterViolation::EditData) }
    }
}
