//! The stamp that identifies a message: a header line with the run, the number in the run, and a
//! digest.
//!
//! The digest (CRC-32C) covers the body as sent, the run and the number, so a truncated, mixed up
//! or altered message is detected. Servers may add header lines before and after the stamp, and LF
//! line ends count as CR LF. A message without a stamp is foreign and ignored.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use memchr::memmem;

/// The name of the header line.
const FIELD: &[u8] = b"X-Mailrace-Bench: ";
/// Header bytes that are searched for a stamp, which is the first line when the message is sent.
const HEADER_OCTETS_MAX: usize = 256 * 1024;

/// The random id of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for RunId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<RunId, Self::Err> {
        u64::from_str_radix(text, 16).map(RunId)
    }
}

/// Identifies a message and its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageStamp {
    /// The run that sent it.
    pub run: RunId,
    /// Its number in the run, from 0.
    pub sequence: u64,
    digest: u32,
}

/// A message with a stamp, after the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampCheckResult {
    /// Its stamp.
    pub stamp: MessageStamp,
    /// Whether the body is unchanged.
    pub sound: bool,
}

impl MessageStamp {
    /// The stamp of a message with these pieces of body, with CR LF line ends and not dot-stuffed.
    pub fn new<'a>(run: RunId, sequence: u64, body: impl IntoIterator<Item = &'a [u8]>) -> MessageStamp {
        let digest = body.into_iter().fold(0, crc32c::crc32c_append);
        MessageStamp { run, sequence, digest: bind_digest(digest, run, sequence) }
    }

    /// Appends the header line with its CR LF.
    pub fn append_header(&self, header: &mut Vec<u8>) {
        use std::io::Write as _;
        header.extend_from_slice(FIELD);
        // Writing to a Vec cannot fail.
        let _ = write!(header, "run={} seq={} crc32c={:08x}\r\n", self.run, self.sequence, self.digest);
    }

    fn parse(line: &str) -> Option<MessageStamp> {
        let mut words = line.split_ascii_whitespace();
        let mut value = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
        let run = value("run")?.parse().ok()?;
        let sequence = value("seq")?.parse().ok()?;
        let digest = u32::from_str_radix(value("crc32c")?, 16).ok()?;
        Some(MessageStamp { run, sequence, digest })
    }
}

/// Adds run and number to the digest of a body.
fn bind_digest(digest: u32, run: RunId, sequence: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(digest, &run.0.to_le_bytes()), &sequence.to_le_bytes())
}

/// Examines a message piece by piece.
#[derive(Debug, Default)]
pub struct StampChecker {
    state: ExaminerState,
}

#[derive(Debug)]
enum ExaminerState {
    /// The header so far. Most headers arrive in one piece and are not copied.
    Header(Vec<u8>),
    Body {
        stamp: MessageStamp,
        digest: u32,
    },
    Foreign,
}

impl Default for ExaminerState {
    fn default() -> ExaminerState {
        ExaminerState::Header(Vec::new())
    }
}

impl StampChecker {
    /// Adds the next bytes, with CR LF line ends and not dot-stuffed.
    pub fn append(&mut self, bytes: &[u8]) {
        match &mut self.state {
            ExaminerState::Header(before) if before.is_empty() => {
                self.state = parse_header(bytes).unwrap_or_else(|| ExaminerState::Header(bytes.to_vec()));
            }
            ExaminerState::Header(before) => {
                before.extend_from_slice(bytes);
                if let Some(state) = parse_header(before) {
                    self.state = state;
                }
            }
            ExaminerState::Body { digest, .. } => *digest = crc32c::crc32c_append(*digest, bytes),
            ExaminerState::Foreign => {}
        }
    }

    /// Returns the result after the last byte; None without a stamp.
    pub fn finish(self) -> Option<StampCheckResult> {
        let (stamp, digest) = match self.state {
            ExaminerState::Body { stamp, digest } => (stamp, digest),
            // Some servers drop the empty line after a header without a body.
            ExaminerState::Header(header) => (stamp_in(&header)?, 0),
            ExaminerState::Foreign => return None,
        };
        Some(StampCheckResult { stamp, sound: bind_digest(digest, stamp.run, stamp.sequence) == stamp.digest })
    }
}

/// The state after the header; None while it is incomplete.
fn parse_header(bytes: &[u8]) -> Option<ExaminerState> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
        return (bytes.len() > HEADER_OCTETS_MAX).then_some(ExaminerState::Foreign);
    };
    let (header, body) = bytes.split_at(end + 4);
    let body = |stamp| ExaminerState::Body { stamp, digest: crc32c::crc32c(body) };
    Some(stamp_in(header).map_or(ExaminerState::Foreign, body))
}

fn stamp_in(header: &[u8]) -> Option<MessageStamp> {
    let mut places = memmem::find_iter(header, FIELD);
    let place = places.find(|&place| place == 0 || header[place - 1] == b'\n')?;
    let value = &header[place + FIELD.len()..];
    let line = value.split(|&byte| byte == b'\r' || byte == b'\n').next()?;
    MessageStamp::parse(str::from_utf8(line).ok()?)
}

/// Examines a whole message with CR LF or LF line ends.
pub fn check_stamp(message: &[u8]) -> Option<StampCheckResult> {
    let mut examiner = StampChecker::default();
    examiner.append(&with_crlf(message));
    examiner.finish()
}

/// Replaces each bare LF with CR LF.
pub(crate) fn with_crlf(message: &[u8]) -> Cow<'_, [u8]> {
    let is_bare_lf = |&place: &usize| place == 0 || message[place - 1] != b'\r';
    let Some(first) = memchr::memchr_iter(b'\n', message).find(is_bare_lf) else { return Cow::Borrowed(message) };
    let mut normalized = Vec::with_capacity(message.len() + message.len() / 32);
    normalized.extend_from_slice(&message[..first]);
    let mut from = first;
    for place in memchr::memchr_iter(b'\n', &message[first..]).map(|place| first + place).filter(is_bare_lf) {
        normalized.extend_from_slice(&message[from..place]);
        normalized.extend_from_slice(b"\r\n");
        from = place + 1;
    }
    normalized.extend_from_slice(&message[from..]);
    Cow::Owned(normalized)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"Hello.\r\n\r\nThis is a line.\r\n";

    fn message() -> Vec<u8> {
        let mut message = Vec::new();
        MessageStamp::new(RunId(7), 42, [&BODY[..5], &BODY[5..]]).append_header(&mut message);
        message.extend_from_slice(b"Subject: x\r\n\r\n");
        message.extend_from_slice(BODY);
        message
    }

    #[test]
    fn a_message_is_recognized_however_its_bytes_are_split() {
        let message = [b"Received: by somebody\r\n\tfor somebody\r\n", &message()[..]].concat();
        for cut in 0..=message.len() {
            let mut examiner = StampChecker::default();
            examiner.append(&message[..cut]);
            examiner.append(&message[cut..]);
            let seen = examiner.finish().expect("the message has a stamp");
            assert!(seen.sound, "cut at {cut}");
            assert_eq!((seen.stamp.run, seen.stamp.sequence), (RunId(7), 42));
        }
    }

    #[test]
    fn a_message_with_lf_line_ends_is_sound() {
        let kept = String::from_utf8(message()).unwrap().replace("\r\n", "\n");
        assert!(check_stamp(kept.as_bytes()).unwrap().sound);
        assert_eq!(with_crlf(b"\na\r\nb\n"), &b"\r\na\r\nb\r\n"[..]);
    }

    #[test]
    fn any_flipped_byte_of_the_body_and_any_cut_is_damage() {
        let message = message();
        let body = message.len() - BODY.len();
        for place in body..message.len() {
            let mut altered = message.clone();
            altered[place] ^= 1;
            assert!(!check_stamp(&altered).unwrap().sound, "flipped at {place}");
            assert!(!check_stamp(&message[..place]).unwrap().sound, "cut at {place}");
        }
    }

    #[test]
    fn a_stamp_on_the_body_of_another_message_is_damage() {
        let mut other = Vec::new();
        MessageStamp::new(RunId(7), 43, [BODY]).append_header(&mut other);
        let altered = String::from_utf8(other).unwrap().replace("seq=43", "seq=42");
        assert!(!check_stamp(&[altered.as_bytes(), b"\r\n", BODY].concat()).unwrap().sound);
    }

    #[test]
    fn without_a_stamp_a_message_is_foreign() {
        assert_eq!(check_stamp(b"Subject: x\r\n\r\nX-Mailrace-Bench: run=1 seq=1 crc32c=0\r\n"), None);
        assert_eq!(check_stamp(b"X-Mailrace-Bench: run=1 seq=x crc32c=0\r\n\r\n"), None);
        assert_eq!(check_stamp(b""), None);
    }

    #[test]
    fn a_header_alone_has_an_empty_body() {
        let mut header = Vec::new();
        MessageStamp::new(RunId(1), 0, []).append_header(&mut header);
        assert!(check_stamp(&header).unwrap().sound);
        header.extend_from_slice(b"Subject: x\r\n\r\n");
        assert!(check_stamp(&header).unwrap().sound);
    }
}
