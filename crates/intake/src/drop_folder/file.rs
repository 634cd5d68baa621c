//! The format of a message in the drop folder: a header line, the envelope as lines, an empty line,
//! and the message.
//!
//! ```text
//! mailrace drop 1 9ae0daaf 1234
//! from alice@example.org
//! ret headers
//! envid QQ314159
//! body 8bitmime
//! smtputf8
//! notify 4
//! orcpt rfc822;bob@example.net
//! to bob@example.net
//! to carol@example.net
//!
//! Subject: hello
//! ```
//!
//! The first line has the CRC-32C and the length of all that follows. The other lines end in LF,
//! those of the message in CRLF. Only `from` and one `to` are required; `from` alone is the null
//! sender. `notify` and `orcpt` apply to the recipient that follows.

use std::fmt::Write as _;

use mail::{Address, BodyFlags, BodyType, DsnNotify, DsnReturn};
use protocol::smtp::server::RcptRequest;

const MAGIC: &str = "mailrace drop 1 ";
/// The first line with its end: 8 digits of checksum, and at most 20 of length.
const FIRST_LINE_OCTETS_MAX: usize = MAGIC.len() + 8 + 1 + 20 + 1;
/// The most bytes before the message, which the message limit does not count: room for ten thousand
/// long addresses.
pub const DROP_FILE_HEAD_OCTETS_MAX: u64 = 4 << 20;
/// RFC 3461 section 4.4.
const ENVID_OCTETS_MAX: usize = 100;
/// RFC 3461 section 4.2.
const ORCPT_OCTETS_MAX: usize = 500;

/// A message and its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropFile {
    /// The envelope sender; None is the null sender.
    pub sender: Option<Address>,
    /// The recipients, before alias expansion; at least one.
    pub recipients: Vec<RcptRequest>,
    /// RET: how much of the message a notice returns (RFC 3461).
    pub ret: Option<DsnReturn>,
    /// ENVID: the sender's name for the message, in xtext.
    pub envid: Option<Box<str>>,
    /// The declared body type.
    pub body_type: BodyType,
    /// Whether SMTPUTF8 was requested (RFC 6531).
    pub smtputf8: bool,
    /// The message. Every line ends in CRLF, and CR and LF occur nowhere else.
    pub content: Vec<u8>,
}

/// Why a file is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropFileError {
    /// The first line is not ours.
    #[error("it does not start with a drop file header")]
    NotADropFile,
    /// The length is wrong.
    #[error("its length does not match its header")]
    Length,
    /// The checksum is wrong.
    #[error("its checksum does not match its header")]
    Checksum,
    /// An envelope line has an unknown name or an invalid value.
    #[error("line {0} of its envelope is invalid")]
    Line(usize),
    /// The envelope is larger than [`DROP_FILE_HEAD_OCTETS_MAX`].
    #[error("its envelope is too large")]
    EnvelopeTooLarge,
    /// More recipients than a message may have.
    #[error("its envelope has too many recipients")]
    TooManyRecipients,
    /// No sender or no recipient.
    #[error("its envelope is incomplete")]
    Incomplete,
    /// A bare CR or LF, or no line end at the end.
    #[error("a line of the message does not end in CRLF")]
    LineEnd,
}

impl DropFile {
    /// Encodes the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut rest = self.envelope().into_bytes();
        rest.extend_from_slice(&self.content);
        let mut file = format!("{MAGIC}{:08x} {}\n", crc32c::crc32c(&rest), rest.len()).into_bytes();
        file.append(&mut rest);
        file
    }

    fn envelope(&self) -> String {
        let mut text = match &self.sender {
            Some(sender) => format!("from {sender}\n"),
            None => "from\n".to_owned(),
        };
        match self.ret {
            Some(DsnReturn::Full) => text.push_str("ret full\n"),
            Some(DsnReturn::Headers) => text.push_str("ret headers\n"),
            None => {}
        }
        if let Some(envid) = &self.envid {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "envid {envid}");
        }
        if self.body_type == BodyType::EightBitMime {
            text.push_str("body 8bitmime\n");
        }
        if self.smtputf8 {
            text.push_str("smtputf8\n");
        }
        for recipient in &self.recipients {
            if recipient.notify != DsnNotify::UNSET {
                let _ = writeln!(text, "notify {}", recipient.notify.bits());
            }
            if let Some(orcpt) = &recipient.orcpt {
                let _ = writeln!(text, "orcpt {orcpt}");
            }
            let _ = writeln!(text, "to {}", recipient.address);
        }
        text.push('\n');
        text
    }

    /// Decodes a file with at most `recipients_max` recipients.
    ///
    /// # Errors
    ///
    /// The bytes are not what [`DropFile::encode`] writes, or the envelope exceeds a limit.
    pub fn decode(file: &[u8], recipients_max: usize) -> Result<DropFile, DropFileError> {
        let rest = check_header_line(file)?;
        let (mut drop_file, mut params) = (DropFile::empty(), RecipientParams::default());
        let mut remaining = DROP_FILE_HEAD_OCTETS_MAX as usize - (file.len() - rest.len());
        let (mut rest, mut number, mut has_sender) = (rest, 0, false);
        loop {
            number += 1;
            let head = &rest[..rest.len().min(remaining)];
            let fault = if head.len() < rest.len() && !head.contains(&b'\n') {
                DropFileError::EnvelopeTooLarge
            } else {
                DropFileError::Line(number)
            };
            let line = line(head).ok_or(fault)?.0;
            rest = &rest[line.len() + 1..];
            remaining -= line.len() + 1;
            if line.is_empty() {
                break;
            }
            has_sender |= drop_file.parse_line(line, &mut params).ok_or(DropFileError::Line(number))?;
            if drop_file.recipients.len() > recipients_max {
                return Err(DropFileError::TooManyRecipients);
            }
        }
        if !has_sender || drop_file.recipients.is_empty() {
            return Err(DropFileError::Incomplete);
        }
        if !has_crlf_lines(rest) {
            return Err(DropFileError::LineEnd);
        }
        drop_file.content = rest.to_vec();
        Ok(drop_file)
    }

    fn empty() -> DropFile {
        DropFile {
            sender: None,
            recipients: Vec::new(),
            ret: None,
            envid: None,
            body_type: BodyType::SevenBit,
            smtputf8: false,
            content: Vec::new(),
        }
    }

    /// Parses an envelope line, and returns whether it is the sender. None if the line is invalid.
    fn parse_line(&mut self, line: &str, params: &mut RecipientParams) -> Option<bool> {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        match (name, value) {
            ("from", "") => self.sender = None,
            ("from", sender) => self.sender = Some(sender.parse().ok()?),
            ("to", recipient) => {
                let (address, RecipientParams { notify, orcpt }) = (recipient.parse().ok()?, std::mem::take(params));
                self.recipients.push(RcptRequest { address, notify, orcpt });
            }
            ("notify", bits) => params.notify = parse_notify(bits.parse().ok()?)?,
            ("orcpt", orcpt) if is_orcpt(orcpt) => params.orcpt = Some(orcpt.into()),
            ("ret", "full") => self.ret = Some(DsnReturn::Full),
            ("ret", "headers") => self.ret = Some(DsnReturn::Headers),
            ("envid", envid) if is_envid(envid) => self.envid = Some(envid.into()),
            ("body", "8bitmime") => self.body_type = BodyType::EightBitMime,
            ("smtputf8", "") => self.smtputf8 = true,
            _ => return None,
        }
        Some(name == "from")
    }

    /// The body flags of the message.
    pub fn body_flags(&self) -> BodyFlags {
        let content = &self.content;
        BodyFlags {
            dot_lines: content.starts_with(b".") || content.windows(2).any(|pair| pair == b"\n."),
            eight_bit: !content.is_ascii(),
            ends_in_crlf: content.is_empty() || content.ends_with(b"\r\n"),
        }
    }
}

/// Parameters of the recipient that follows.
#[derive(Default)]
struct RecipientParams {
    notify: DsnNotify,
    orcpt: Option<Box<str>>,
}

/// NEVER excludes the other keywords (RFC 3461 section 4.1).
fn parse_notify(bits: u8) -> Option<DsnNotify> {
    let is_valid = bits != 0 && bits < 16 && (bits & 1 == 0 || bits == 1);
    is_valid.then(|| DsnNotify::from_bits(bits))
}

/// Whether the text is a valid ENVID value: xtext of RFC 3461 section 4.
pub fn is_envid(text: &str) -> bool {
    !text.is_empty() && text.len() <= ENVID_OCTETS_MAX && is_xtext(text)
}

/// Whether the text is a valid ORCPT value: a type, a semicolon, and xtext; with the type utf-8,
/// non-ASCII characters too (RFC 6533 section 3).
fn is_orcpt(text: &str) -> bool {
    let Some((kind, address)) = text.split_once(';') else { return false };
    let is_atom = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_valid = match kind.eq_ignore_ascii_case("utf-8") {
        true => {
            let with_letters: String = address.chars().map(|c| if c.is_ascii() { c } else { 'x' }).collect();
            !address.chars().any(char::is_control) && is_xtext(&with_letters)
        }
        false => is_xtext(address),
    };
    text.len() <= ORCPT_OCTETS_MAX && is_atom && is_valid && !address.is_empty()
}

fn is_xtext(text: &str) -> bool {
    text.bytes().all(|byte| (33..127).contains(&byte) && byte != b'=') && has_valid_escapes(text)
}

fn has_valid_escapes(text: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
    text.split('+').skip(1).all(|after| {
        let mut bytes = after.bytes();
        let (high, low) = (bytes.next(), bytes.next());
        matches!(high, Some(b'2'..=b'7')) && low.is_some_and(digit) && (high, low) != (Some(b'7'), Some(b'F'))
    })
}

/// The bytes after the first line, if its length and checksum match.
fn check_header_line(file: &[u8]) -> Result<&[u8], DropFileError> {
    let (first, _) = line(&file[..file.len().min(FIRST_LINE_OCTETS_MAX)]).ok_or(DropFileError::NotADropFile)?;
    let rest = &file[first.len() + 1..];
    let fields = first.strip_prefix(MAGIC).and_then(|seal| seal.split_once(' ')).ok_or(DropFileError::NotADropFile)?;
    let sum = u32::from_str_radix(fields.0, 16).map_err(|_| DropFileError::NotADropFile)?;
    let length: u64 = fields.1.parse().map_err(|_| DropFileError::NotADropFile)?;
    if length != rest.len() as u64 {
        return Err(DropFileError::Length);
    }
    if sum != crc32c::crc32c(rest) {
        return Err(DropFileError::Checksum);
    }
    Ok(rest)
}

/// The first line without its LF, and the bytes after it.
fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

/// Whether every line ends in CRLF, and CR and LF occur nowhere else.
fn has_crlf_lines(content: &[u8]) -> bool {
    let mut before = b'\n';
    for byte in content {
        if (*byte == b'\n') != (before == b'\r') {
            return false;
        }
        before = *byte;
    }
    before == b'\n'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn to(address: &str) -> RcptRequest {
        RcptRequest { address: address.parse().unwrap(), notify: DsnNotify::UNSET, orcpt: None }
    }

    fn sample_file() -> DropFile {
        DropFile {
            sender: Some("alice@example.org".parse().unwrap()),
            recipients: vec![
                RcptRequest {
                    notify: DsnNotify::FAILURE.with(DsnNotify::DELAY),
                    orcpt: Some("rfc822;x+2By".into()),
                    ..to("bob@example.net")
                },
                to("\"c d\"@example.net"),
            ],
            ret: Some(DsnReturn::Headers),
            envid: Some("QQ+2B1".into()),
            body_type: BodyType::EightBitMime,
            smtputf8: false,
            content: b"Subject: x\r\n\r\n.dot\r\n\xe4\r\n".to_vec(),
        }
    }

    fn decode(file: &[u8]) -> Result<DropFile, DropFileError> {
        DropFile::decode(file, 10)
    }

    /// A file with a correct first line, whatever follows.
    fn with_header_line(rest: &[u8]) -> Vec<u8> {
        let mut file = format!("{MAGIC}{:08x} {}\n", crc32c::crc32c(rest), rest.len()).into_bytes();
        file.extend_from_slice(rest);
        file
    }

    #[test]
    fn what_is_written_is_read_back() {
        for drop_file in [
            sample_file(),
            DropFile { sender: None, ret: None, envid: None, ..sample_file() },
            DropFile { content: Vec::new(), ret: Some(DsnReturn::Full), smtputf8: true, ..sample_file() },
            DropFile {
                recipients: vec![RcptRequest { orcpt: Some("utf-8;b\u{fc}+2Bb@x".into()), ..to("b\u{fc}b@x") }],
                ..sample_file()
            },
        ] {
            assert_eq!(decode(&drop_file.encode()), Ok(drop_file));
        }
        let flags = sample_file().body_flags();
        assert!(flags.dot_lines && flags.eight_bit && flags.ends_in_crlf);
    }

    #[test]
    fn truncated_or_changed_files_are_rejected() {
        let file = sample_file().encode();
        for end in 0..file.len() {
            assert!(decode(&file[..end]).is_err(), "{end}");
            let mut changed = file.clone();
            changed[end] ^= 0x20;
            assert!(decode(&changed).is_err() || changed[..40].eq_ignore_ascii_case(&file[..40]), "{end}");
        }
    }

    #[test]
    fn an_envelope_has_bounds() {
        let with = |count| DropFile { recipients: vec![to("a@b"); count], ..sample_file() }.encode();
        assert!(decode(&with(10)).is_ok());
        assert_eq!(decode(&with(11)), Err(DropFileError::TooManyRecipients));
        let notes = "notify 4\n".repeat(DROP_FILE_HEAD_OCTETS_MAX as usize / 9);
        for rest in [format!("from\n{notes}to a@b\n\n"), "x".repeat(DROP_FILE_HEAD_OCTETS_MAX as usize + 1)] {
            assert_eq!(decode(&with_header_line(rest.as_bytes())), Err(DropFileError::EnvelopeTooLarge));
        }
    }

    #[test]
    fn faults_have_distinct_errors() {
        use DropFileError::*;
        for (rest, fault) in [
            (&b"from a@b\n\nx\r\n"[..], Incomplete),
            (b"to a@b\n\nx\r\n", Incomplete),
            (b"from a@b\nto c@d\n", Line(3)),
            (b"from a@b\nto c\n\n", Line(2)),
            (b"from a@b\nto c@d\nenvid a b\n\n", Line(3)),
            (b"from a@b\nto c@d\nenvid a+0A\n\n", Line(3)),
            (b"from a@b\nto c@d\nnotify 3\n\n", Line(3)),
            (b"from a@b\norcpt rfc822;a b\nto c@d\n\n", Line(2)),
            (b"from a@b\nto c@d\n\nx\n", LineEnd),
            (b"from a@b\nto c@d\n\nx\ry\r\n", LineEnd),
            (b"from a@b\nto c@d\n\nx", LineEnd),
        ] {
            assert_eq!(decode(&with_header_line(rest)), Err(fault), "{}", String::from_utf8_lossy(rest));
        }
        assert_eq!(decode(b"\x7fELF"), Err(NotADropFile));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300), sealed in any::<bool>()) {
            let file = if sealed { with_header_line(&bytes) } else { bytes };
            if let Ok(drop_file) = decode(&file) {
                prop_assert_eq!(decode(&drop_file.encode()), Ok(drop_file));
            }
        }

        #[test]
        fn whatever_lines_it_has_it_is_the_same_when_written_again(text in "(from( [ab]@c)?\n|to [ab\"]@c\n|notify [0-9]\n|ret full\n|envid [+2B]{1,3}\n|\n|x\r\n){0,8}") {
            if let Ok(drop_file) = decode(&with_header_line(text.as_bytes())) {
                prop_assert_eq!(decode(&drop_file.encode()), Ok(drop_file));
            }
        }
    }
}
