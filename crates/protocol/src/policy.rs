//! Postfix's policy delegation protocol, the side of the mail server: a request is lines of
//! `name=value` that end with an empty line, and so is the answer, which has one `action`.
//!
//! [`PolicyRequest`] composes a request, [`AnswerReader`] assembles the answer, and [`PolicyAction`]
//! is what it says.

mod action;
mod answer;
mod restriction;
#[cfg(test)]
mod tests;

pub use action::{InvalidPolicyAction, PolicyAction};
pub use answer::{ANSWER_OCTETS_MAX, AnswerReader, PolicyViolation};
pub use restriction::PolicyRestriction;

/// A request, in the form in which it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRequest {
    lines: Vec<u8>,
}

impl Default for PolicyRequest {
    fn default() -> Self {
        PolicyRequest { lines: b"request=smtpd_access_policy\n".to_vec() }
    }
}

impl PolicyRequest {
    /// Adds an attribute. A line end or NUL in a value could add others, and becomes a question mark.
    pub fn push(&mut self, name: &str, value: &str) {
        self.lines.extend_from_slice(name.as_bytes());
        self.lines.push(b'=');
        self.lines.extend(value.bytes().map(|octet| if matches!(octet, b'\n' | b'\r' | 0) { b'?' } else { octet }));
        self.lines.push(b'\n');
    }

    /// The bytes to send.
    pub fn into_wire(mut self) -> Vec<u8> {
        self.lines.push(b'\n');
        self.lines
    }
}
