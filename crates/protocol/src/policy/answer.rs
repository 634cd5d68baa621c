//! The answer of a policy service, from its bytes.

/// Octets of an answer, with its final empty line.
pub const ANSWER_OCTETS_MAX: usize = 8 << 10;

/// How a policy service violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyViolation {
    /// Exceeds [`ANSWER_OCTETS_MAX`].
    #[error("sent an answer of more than {max} octets", max = ANSWER_OCTETS_MAX)]
    TooLong,
    /// No line `action=...`, a line without `=`, or not UTF-8.
    #[error("sent an answer without an action")]
    NoAction,
    /// More than the answer.
    #[error("sent more than the answer")]
    Unsolicited,
}

/// Assembles an answer that arrives in pieces.
#[derive(Debug, Default)]
pub struct AnswerReader {
    received: Vec<u8>,
}

impl AnswerReader {
    /// Takes bytes. Returns the value of `action` once the answer is complete.
    ///
    /// # Errors
    ///
    /// The service violated the protocol: close the connection.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<Option<String>, PolicyViolation> {
        self.received.extend_from_slice(input);
        let end = self.received.windows(2).position(|pair| pair == b"\n\n");
        match end {
            _ if self.received.first() == Some(&b'\n') => Err(PolicyViolation::NoAction),
            Some(end) if end + 2 > ANSWER_OCTETS_MAX => Err(PolicyViolation::TooLong),
            Some(end) if end + 2 < self.received.len() => Err(PolicyViolation::Unsolicited),
            Some(end) => parse(&self.received[..end]).map(Some),
            None if self.received.len() > ANSWER_OCTETS_MAX => Err(PolicyViolation::TooLong),
            None => Ok(None),
        }
    }
}

/// Of several actions, the last one counts; other attributes have no meaning.
fn parse(lines: &[u8]) -> Result<String, PolicyViolation> {
    let lines = std::str::from_utf8(lines).map_err(|_| PolicyViolation::NoAction)?;
    let mut action = None;
    for line in lines.split('\n') {
        let (name, value) = line.split_once('=').ok_or(PolicyViolation::NoAction)?;
        if name.trim() == "action" {
            action = Some(value.trim().to_owned());
        }
    }
    action.ok_or(PolicyViolation::NoAction)
}
