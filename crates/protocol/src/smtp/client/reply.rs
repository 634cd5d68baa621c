//! Parses replies (RFC 5321 section 4.2) strictly: three digits, a space or a hyphen, text, CRLF;
//! the same code in all lines of a reply. The resulting text has no control characters except the
//! LF between lines, so it is safe for logs and bounces. Nothing is kept between replies.

use std::borrow::Cow;

use mail::{EnhancedCode, Reply};
use memchr::memchr;

use super::SmtpViolation;
use crate::text::printable;

/// Octets of a reply line with its CRLF. RFC 5321 section 4.5.3.1.5 has 512; servers exceed it.
pub const LINE_OCTETS_MAX: usize = 2048;
/// Lines of a reply.
pub const REPLY_LINES_MAX: usize = 128;
/// Octets of a reply's text.
pub const REPLY_OCTETS_MAX: usize = 16 << 10;

/// Assembles replies from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    /// The beginning of a line.
    partial: Vec<u8>,
    /// The previous lines of the same reply.
    partial_reply: Option<Box<PartialReply>>,
}

#[derive(Debug)]
struct PartialReply {
    code: u16,
    enhanced: Option<EnhancedCode>,
    text: String,
    lines: usize,
}

/// A parsed line.
struct ReplyLine<'a> {
    code: u16,
    is_last: bool,
    text: Cow<'a, str>,
}

impl ReplyReader {
    /// Returns the next reply and advances `input` past it; None at the end of the input.
    pub(super) fn next_reply(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, SmtpViolation> {
        while let Some(end) = memchr(b'\n', input) {
            let (line, rest) = input.split_at(end + 1);
            *input = rest;
            let reply = if self.partial.is_empty() {
                self.take_line(line)?
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.take_line(&whole)?
            };
            if reply.is_some() {
                return Ok(reply);
            }
        }
        self.keep(input)?;
        *input = &[];
        Ok(None)
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.partial.capacity() + self.partial_reply.as_ref().map_or(0, |gathered| gathered.text.capacity())
    }

    fn keep(&mut self, beginning: &[u8]) -> Result<(), SmtpViolation> {
        if self.partial.len() + beginning.len() >= LINE_OCTETS_MAX {
            return Err(SmtpViolation::LineTooLong);
        }
        self.partial.extend_from_slice(beginning);
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Result<Option<Reply>, SmtpViolation> {
        let line = ReplyLine::parse(line)?;
        match (self.partial_reply.take(), line.is_last) {
            (None, true) => Ok(Some(line.into_reply())),
            (None, false) => {
                self.partial_reply = Some(Box::new(line.into_gathered()));
                Ok(None)
            }
            (Some(mut partial_reply), is_last) => {
                partial_reply.add(&line)?;
                if is_last {
                    return Ok(Some(partial_reply.into_reply()));
                }
                self.partial_reply = Some(partial_reply);
                Ok(None)
            }
        }
    }
}

impl<'a> ReplyLine<'a> {
    fn parse(line: &'a [u8]) -> Result<Self, SmtpViolation> {
        if line.len() > LINE_OCTETS_MAX {
            return Err(SmtpViolation::LineTooLong);
        }
        let line = line.strip_suffix(b"\r\n").ok_or(SmtpViolation::BareNewline)?;
        if memchr(b'\r', line).is_some() {
            return Err(SmtpViolation::BareNewline);
        }
        let (digits, rest) = line.split_first_chunk().ok_or(SmtpViolation::NotAReply)?;
        let code = code(*digits).ok_or(SmtpViolation::NotAReply)?;
        // A code alone is a complete line (RFC 5321 section 4.2).
        let (is_last, text) = match rest {
            [] => (true, rest),
            [b' ', text @ ..] => (true, text),
            [b'-', text @ ..] => (false, text),
            _ => return Err(SmtpViolation::NotAReply),
        };
        Ok(ReplyLine { code, is_last, text: printable(text) })
    }

    fn into_reply(self) -> Reply {
        let (enhanced, text) = split_enhanced(self.code, &self.text);
        let text = if text.is_empty() { Cow::Borrowed("") } else { Cow::Owned(text.to_owned()) };
        Reply { code: self.code, enhanced, text }
    }

    fn into_gathered(self) -> PartialReply {
        let (enhanced, text) = split_enhanced(self.code, &self.text);
        PartialReply { code: self.code, enhanced, text: text.to_owned(), lines: 1 }
    }
}

impl PartialReply {
    fn add(&mut self, line: &ReplyLine<'_>) -> Result<(), SmtpViolation> {
        if line.code != self.code {
            return Err(SmtpViolation::CodesDiffer);
        }
        if self.lines >= REPLY_LINES_MAX || self.text.len() + line.text.len() >= REPLY_OCTETS_MAX {
            return Err(SmtpViolation::ReplyTooLong);
        }
        // RFC 2034 section 4: every line has the enhanced code.
        let text = match split_enhanced(self.code, &line.text) {
            (enhanced, text) if enhanced == self.enhanced => text,
            _ => &line.text,
        };
        self.text.push('\n');
        self.text.push_str(text);
        self.lines += 1;
        Ok(())
    }

    fn into_reply(self) -> Reply {
        Reply { code: self.code, enhanced: self.enhanced, text: Cow::Owned(self.text) }
    }
}

/// A code from 200 to 599.
fn code(digits: [u8; 3]) -> Option<u16> {
    let sound = (b'2'..=b'5').contains(&digits[0]) && digits.iter().all(u8::is_ascii_digit);
    sound.then(|| digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))
}

/// Splits off an enhanced code, if its class matches the code (RFC 2034 section 4).
fn split_enhanced(code: u16, text: &str) -> (Option<EnhancedCode>, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match enhanced(code, word) {
        Some(enhanced) => (Some(enhanced), rest),
        None => (None, text),
    }
}

fn enhanced(code: u16, word: &str) -> Option<EnhancedCode> {
    let mut numbers = word.split('.');
    let (class, subject, detail) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let class = number(class)?;
    let sound = class == code / 100 && class != 3 && numbers.next().is_none();
    sound.then_some(EnhancedCode(u8::try_from(class).ok()?, number(subject)?, number(detail)?))
}

/// One to three digits (RFC 3463 section 2).
fn number(digits: &str) -> Option<u16> {
    let sound = (1..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    sound.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All replies in the pieces, or the first error.
    fn read(pieces: &[&[u8]]) -> Result<Vec<Reply>, SmtpViolation> {
        let (mut reader, mut replies) = (ReplyReader::default(), Vec::new());
        for mut piece in pieces.iter().copied() {
            while let Some(reply) = reader.next_reply(&mut piece)? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    fn check(input: &[u8], expected: &Result<Vec<Reply>, SmtpViolation>) {
        for cut in 0..=input.len() {
            let found = read(&[&input[..cut], &input[cut..]]);
            assert_eq!(&found, expected, "{} cut at {cut}", input.escape_ascii());
        }
    }

    #[test]
    fn replies_are_read_at_any_split() {
        check(
            b"220 mx.example.org\r\n250\r\n250-\r\n250 \r\n354 go\r\n",
            &Ok(vec![
                Reply::without_enhanced_code(220, "mx.example.org"),
                Reply::without_enhanced_code(250, ""),
                Reply::without_enhanced_code(250, "\n"),
                Reply::without_enhanced_code(354, "go"),
            ]),
        );
        check(
            b"550-5.1.1 one\r\n550-5.1.1 two\r\n550 5.1.2 three\r\n250 2.0.0\r\n",
            &Ok(vec![
                Reply::new(550, EnhancedCode(5, 1, 1), "one\ntwo\n5.1.2 three"),
                Reply::new(250, EnhancedCode(2, 0, 0), ""),
            ]),
        );
        check(b"250-a\r\n250-b", &Ok(vec![]));
    }

    #[test]
    fn only_an_enhanced_code_of_the_same_class_is_one() {
        for text in ["5.0.0 x", "2.0 x", "2.0.0.0 x", "2.0.1234 x", "2..0 x", "2.0.0x", "2.+1.0 x", "02.0.0.0"] {
            let input = format!("250 {text}\r\n");
            check(input.as_bytes(), &Ok(vec![Reply::without_enhanced_code(250, text.to_owned())]));
        }
        check(b"250 2.999.0 x y\r\n", &Ok(vec![Reply::new(250, EnhancedCode(2, 999, 0), "x y")]));
    }

    #[test]
    fn invalid_replies_are_violations() {
        use SmtpViolation::*;
        for (input, fault) in [
            (&b"\r\n"[..], NotAReply),
            (b"25\r\n", NotAReply),
            (b"2500 x\r\n", NotAReply),
            (b"25x x\r\n", NotAReply),
            (b"150 x\r\n", NotAReply),
            (b"600 x\r\n", NotAReply),
            (b" 250 x\r\n", NotAReply),
            (b"SSH-2.0-x\r\n", NotAReply),
            (b"250 x\n", BareNewline),
            (b"250 x\ry\r\n", BareNewline),
            (b"250 x\r\r\n", BareNewline),
            (b"250-x\r\n251 y\r\n", CodesDiffer),
        ] {
            check(input, &Err(fault));
        }
    }

    #[test]
    fn control_characters_and_broken_letters_are_replaced() {
        let expected = Reply::without_enhanced_code(250, "a b c\u{fffd}\u{fc} ");
        check(b"250 a\0b\x1bc\xff\xc3\xbc\xc2\x85\r\n", &Ok(vec![expected]));
    }

    #[test]
    fn a_reply_has_limits() {
        let line = |octets: usize| [b"250 ", &vec![b'x'; octets - 6][..], b"\r\n"].concat();
        assert!(read(&[&line(LINE_OCTETS_MAX)]).is_ok());
        for input in [line(LINE_OCTETS_MAX + 1), vec![b'2'; LINE_OCTETS_MAX]] {
            assert_eq!(read(&[&input]), Err(SmtpViolation::LineTooLong));
            assert_eq!(read(&input.chunks(7).collect::<Vec<_>>()), Err(SmtpViolation::LineTooLong));
        }
        let lines = |count: usize| [b"250-x\r\n".repeat(count - 1), b"250 x\r\n".to_vec()].concat();
        assert!(read(&[&lines(REPLY_LINES_MAX)]).is_ok());
        assert_eq!(read(&[&lines(REPLY_LINES_MAX + 1)]), Err(SmtpViolation::ReplyTooLong));
        let long = [b"250-", &vec![b'x'; 1000][..], b"\r\n"].concat().repeat(REPLY_OCTETS_MAX / 1000 + 1);
        assert_eq!(read(&[&long]), Err(SmtpViolation::ReplyTooLong));
    }
}
