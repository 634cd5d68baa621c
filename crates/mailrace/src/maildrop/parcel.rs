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

use mail::{Address, BodyFlags, BodyType, Notify, Recipient, Return};

const MAGIC: &str = "mailrace drop 1 ";
/// The first line with its end: 8 digits of checksum, and at most 20 of length.
const FIRST_LINE_OCTETS_MAX: usize = MAGIC.len() + 8 + 1 + 20 + 1;
/// The most bytes before the message, which the message limit does not count: room for ten thousand
/// long addresses.
pub const PARCEL_HEAD_OCTETS_MAX: u64 = 4 << 20;
/// RFC 3461 section 4.4.
const ENVID_OCTETS_MAX: usize = 100;
/// RFC 3461 section 4.2.
const ORCPT_OCTETS_MAX: usize = 500;

/// A message and its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// The envelope sender; None is the null sender.
    pub sender: Option<Address>,
    /// The recipients, before alias expansion; at least one.
    pub recipients: Vec<Recipient>,
    /// RET: how much of the message a notice returns (RFC 3461).
    pub ret: Option<Return>,
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
pub enum NotAParcel {
    /// The first line is not ours.
    #[error("it does not start with a drop file header")]
    Foreign,
    /// The length is wrong.
    #[error("its length does not match its header")]
    Length,
    /// The checksum is wrong.
    #[error("its checksum does not match its header")]
    Sum,
    /// An envelope line has an unknown name or an invalid value.
    #[error("line {0} of its envelope is invalid")]
    Line(usize),
    /// The envelope is larger than [`PARCEL_HEAD_OCTETS_MAX`].
    #[error("its envelope is too large")]
    Head,
    /// More recipients than a message may have.
    #[error("its envelope has too many recipients")]
    Recipients,
    /// No sender or no recipient.
    #[error("its envelope is incomplete")]
    Incomplete,
    /// A bare CR or LF, or no line end at the end.
    #[error("a line of the message does not end in CRLF")]
    LineEnd,
}

impl Parcel {
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
            Some(Return::Full) => text.push_str("ret full\n"),
            Some(Return::Headers) => text.push_str("ret headers\n"),
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
            if recipient.notify != Notify::UNSET {
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
    /// The bytes are not what [`Parcel::encode`] writes, or the envelope exceeds a limit.
    pub fn decode(file: &[u8], recipients_max: usize) -> Result<Parcel, NotAParcel> {
        let rest = sealed(file)?;
        let (mut parcel, mut wishes) = (Parcel::empty(), Wishes::default());
        let mut room = PARCEL_HEAD_OCTETS_MAX as usize - (file.len() - rest.len());
        let (mut rest, mut number, mut has_sender) = (rest, 0, false);
        loop {
            number += 1;
            let head = &rest[..rest.len().min(room)];
            let fault = if head.len() < rest.len() && !head.contains(&b'\n') {
                NotAParcel::Head
            } else {
                NotAParcel::Line(number)
            };
            let line = line(head).ok_or(fault)?.0;
            rest = &rest[line.len() + 1..];
            room -= line.len() + 1;
            if line.is_empty() {
                break;
            }
            has_sender |= parcel.take(line, &mut wishes).ok_or(NotAParcel::Line(number))?;
            if parcel.recipients.len() > recipients_max {
                return Err(NotAParcel::Recipients);
            }
        }
        if !has_sender || parcel.recipients.is_empty() {
            return Err(NotAParcel::Incomplete);
        }
        if !has_wire_lines(rest) {
            return Err(NotAParcel::LineEnd);
        }
        parcel.content = rest.to_vec();
        Ok(parcel)
    }

    fn empty() -> Parcel {
        Parcel {
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
    fn take(&mut self, line: &str, wishes: &mut Wishes) -> Option<bool> {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        match (name, value) {
            ("from", "") => self.sender = None,
            ("from", sender) => self.sender = Some(sender.parse().ok()?),
            ("to", recipient) => {
                let (address, Wishes { notify, orcpt }) = (recipient.parse().ok()?, std::mem::take(wishes));
                self.recipients.push(Recipient { address, original: None, notify, orcpt });
            }
            ("notify", bits) => wishes.notify = notify(bits.parse().ok()?)?,
            ("orcpt", orcpt) if is_orcpt(orcpt) => wishes.orcpt = Some(orcpt.into()),
            ("ret", "full") => self.ret = Some(Return::Full),
            ("ret", "headers") => self.ret = Some(Return::Headers),
            ("envid", envid) if is_envid(envid) => self.envid = Some(envid.into()),
            ("body", "8bitmime") => self.body_type = BodyType::EightBitMime,
            ("smtputf8", "") => self.smtputf8 = true,
            _ => return None,
        }
        Some(name == "from")
    }

    /// The body flags of the message.
    pub fn flags(&self) -> BodyFlags {
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
struct Wishes {
    notify: Notify,
    orcpt: Option<Box<str>>,
}

/// NEVER excludes the other keywords (RFC 3461 section 4.1).
fn notify(bits: u8) -> Option<Notify> {
    let sound = bits != 0 && bits < 16 && (bits & 1 == 0 || bits == 1);
    sound.then(|| Notify::from_bits(bits))
}

/// Whether the text is a valid ENVID value: xtext of RFC 3461 section 4.
pub(crate) fn is_envid(text: &str) -> bool {
    !text.is_empty() && text.len() <= ENVID_OCTETS_MAX && is_xtext(text)
}

/// Whether the text is a valid ORCPT value: a type, a semicolon, and xtext; with the type utf-8,
/// non-ASCII characters too (RFC 6533 section 3).
fn is_orcpt(text: &str) -> bool {
    let Some((kind, address)) = text.split_once(';') else { return false };
    let is_atom = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let sound = match kind.eq_ignore_ascii_case("utf-8") {
        true => {
            let with_letters: String = address.chars().map(|c| if c.is_ascii() { c } else { 'x' }).collect();
            !address.chars().any(char::is_control) && is_xtext(&with_letters)
        }
        false => is_xtext(address),
    };
    text.len() <= ORCPT_OCTETS_MAX && is_atom && sound && !address.is_empty()
}

fn is_xtext(text: &str) -> bool {
    text.bytes().all(|byte| (33..127).contains(&byte) && byte != b'=') && escapes_are_sound(text)
}

fn escapes_are_sound(text: &str) -> bool {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
    text.split('+').skip(1).all(|after| {
        let mut bytes = after.bytes();
        let (high, low) = (bytes.next(), bytes.next());
        matches!(high, Some(b'2'..=b'7')) && low.is_some_and(digit) && (high, low) != (Some(b'7'), Some(b'F'))
    })
}

/// The bytes after the first line, if its length and checksum match.
fn sealed(file: &[u8]) -> Result<&[u8], NotAParcel> {
    let (first, _) = line(&file[..file.len().min(FIRST_LINE_OCTETS_MAX)]).ok_or(NotAParcel::Foreign)?;
    let rest = &file[first.len() + 1..];
    let seal = first.strip_prefix(MAGIC).and_then(|seal| seal.split_once(' ')).ok_or(NotAParcel::Foreign)?;
    let sum = u32::from_str_radix(seal.0, 16).map_err(|_| NotAParcel::Foreign)?;
    let length: u64 = seal.1.parse().map_err(|_| NotAParcel::Foreign)?;
    if length != rest.len() as u64 {
        return Err(NotAParcel::Length);
    }
    if sum != crc32c::crc32c(rest) {
        return Err(NotAParcel::Sum);
    }
    Ok(rest)
}

/// The first line without its LF, and the bytes after it.
fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

/// Whether every line ends in CRLF, and CR and LF occur nowhere else.
fn has_wire_lines(content: &[u8]) -> bool {
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

    fn to(address: &str) -> Recipient {
        Recipient { address: address.parse().unwrap(), original: None, notify: Notify::UNSET, orcpt: None }
    }

    fn parcel() -> Parcel {
        Parcel {
            sender: Some("alice@example.org".parse().unwrap()),
            recipients: vec![
                Recipient {
                    notify: Notify::FAILURE.with(Notify::DELAY),
                    orcpt: Some("rfc822;x+2By".into()),
                    ..to("bob@example.net")
                },
                to("\"c d\"@example.net"),
            ],
            ret: Some(Return::Headers),
            envid: Some("QQ+2B1".into()),
            body_type: BodyType::EightBitMime,
            smtputf8: false,
            content: b"Subject: x\r\n\r\n.dot\r\n\xe4\r\n".to_vec(),
        }
    }

    fn decode(file: &[u8]) -> Result<Parcel, NotAParcel> {
        Parcel::decode(file, 10)
    }

    /// A file with a correct first line, whatever follows.
    fn seal(rest: &[u8]) -> Vec<u8> {
        let mut file = format!("{MAGIC}{:08x} {}\n", crc32c::crc32c(rest), rest.len()).into_bytes();
        file.extend_from_slice(rest);
        file
    }

    #[test]
    fn what_is_written_is_read_back() {
        for parcel in [
            parcel(),
            Parcel { sender: None, ret: None, envid: None, ..parcel() },
            Parcel { content: Vec::new(), ret: Some(Return::Full), smtputf8: true, ..parcel() },
            Parcel {
                recipients: vec![Recipient { orcpt: Some("utf-8;b\u{fc}+2Bb@x".into()), ..to("b\u{fc}b@x") }],
                ..parcel()
            },
        ] {
            assert_eq!(decode(&parcel.encode()), Ok(parcel));
        }
        let flags = parcel().flags();
        assert!(flags.dot_lines && flags.eight_bit && flags.ends_in_crlf);
    }

    #[test]
    fn what_was_cut_or_changed_is_none() {
        let file = parcel().encode();
        for end in 0..file.len() {
            assert!(decode(&file[..end]).is_err(), "{end}");
            let mut changed = file.clone();
            changed[end] ^= 0x20;
            assert!(decode(&changed).is_err() || changed[..40].eq_ignore_ascii_case(&file[..40]), "{end}");
        }
    }

    #[test]
    fn an_envelope_has_bounds() {
        let with = |count| Parcel { recipients: vec![to("a@b"); count], ..parcel() }.encode();
        assert!(decode(&with(10)).is_ok());
        assert_eq!(decode(&with(11)), Err(NotAParcel::Recipients));
        let notes = "notify 4\n".repeat(PARCEL_HEAD_OCTETS_MAX as usize / 9);
        for rest in [format!("from\n{notes}to a@b\n\n"), "x".repeat(PARCEL_HEAD_OCTETS_MAX as usize + 1)] {
            assert_eq!(decode(&seal(rest.as_bytes())), Err(NotAParcel::Head));
        }
    }

    #[test]
    fn faults_are_told_apart() {
        use NotAParcel::*;
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
            assert_eq!(decode(&seal(rest)), Err(fault), "{}", String::from_utf8_lossy(rest));
        }
        assert_eq!(decode(b"\x7fELF"), Err(Foreign));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(bytes in proptest::collection::vec(any::<u8>(), 0..300), sealed in any::<bool>()) {
            let file = if sealed { seal(&bytes) } else { bytes };
            if let Ok(parcel) = decode(&file) {
                prop_assert_eq!(decode(&parcel.encode()), Ok(parcel));
            }
        }

        #[test]
        fn whatever_lines_it_has_it_is_the_same_when_written_again(text in "(from( [ab]@c)?\n|to [ab\"]@c\n|notify [0-9]\n|ret full\n|envid [+2B]{1,3}\n|\n|x\r\n){0,8}") {
            if let Ok(parcel) = decode(&seal(text.as_bytes())) {
                prop_assert_eq!(decode(&parcel.encode()), Ok(parcel));
            }
        }
    }
}
