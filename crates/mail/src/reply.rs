//! SMTP replies (RFC 5321 section 4.2) with enhanced status codes (RFC 3463).

use std::borrow::Cow;
use std::fmt;
use std::io::Write as _;
use std::str::FromStr;

/// Octets of a reply line with its code but without CRLF (RFC 5321 section 4.5.3.1.5).
const LINE_OCTETS_MAX: usize = 510;

/// An enhanced status code (RFC 3463): class.subject.detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EnhancedCode(pub u8, pub u16, pub u16);

impl fmt::Display for EnhancedCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A reply; `text` has a line feed between the lines of a multiline reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Three digits.
    pub code: u16,
    /// The enhanced code, if the reply has one.
    pub enhanced: Option<EnhancedCode>,
    /// Text for people. LF separates lines; there is no CR.
    pub text: Cow<'static, str>,
}

impl Reply {
    /// A reply with an enhanced code.
    pub fn new(code: u16, enhanced: EnhancedCode, text: impl Into<Cow<'static, str>>) -> Self {
        Reply { code, enhanced: Some(enhanced), text: text.into() }
    }

    /// A reply that is always the same.
    pub const fn constant(code: u16, enhanced: EnhancedCode, text: &'static str) -> Self {
        Reply { code, enhanced: Some(enhanced), text: Cow::Borrowed(text) }
    }

    /// A reply without an enhanced code: banners, 354, answers to HELO.
    pub fn without_enhanced_code(code: u16, text: impl Into<Cow<'static, str>>) -> Self {
        Reply { code, enhanced: None, text: text.into() }
    }

    /// 2xx.
    pub fn is_success(&self) -> bool {
        self.code / 100 == 2
    }

    /// 4xx: the same command may succeed later.
    pub fn is_transient(&self) -> bool {
        self.code / 100 == 4
    }

    /// 5xx: the same command will fail again.
    pub fn is_permanent(&self) -> bool {
        self.code / 100 == 5
    }

    /// Appends the reply in wire format, with CRLF.
    pub fn write_wire(&self, out: &mut Vec<u8>) {
        let mut lines = self.text.split('\n').peekable();
        while let Some(line) = lines.next() {
            let mark = if lines.peek().is_some() { '-' } else { ' ' };
            // Writing to a Vec cannot fail.
            let _ = match self.enhanced {
                Some(enhanced) => write!(out, "{}{mark}{enhanced} {line}\r\n", self.code),
                None => write!(out, "{}{mark}{line}\r\n", self.code),
            };
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.code)?;
        if let Some(enhanced) = self.enhanced {
            write!(f, "{enhanced} ")?;
        }
        f.write_str(&self.text.replace('\n', " "))
    }
}

/// The text is not a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a reply such as \"550 5.7.1 not from here\"")]
pub struct InvalidReply;

impl FromStr for Reply {
    type Err = InvalidReply;

    /// Parses one line such as `550 5.7.1 not from here`. The enhanced code is optional. An
    /// enhanced code of another class (RFC 2034 section 4) and characters other than printable
    /// ASCII are errors.
    fn from_str(line: &str) -> Result<Self, InvalidReply> {
        let (digits, rest) = line.split_once(' ').unwrap_or((line, ""));
        let is_code = digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit());
        let is_valid = is_code && line.len() <= LINE_OCTETS_MAX && line.bytes().all(|b| (0x20..0x7f).contains(&b));
        let code: u16 = digits.parse().ok().filter(|code| is_valid && (200..600).contains(code)).ok_or(InvalidReply)?;
        let rest = rest.trim();
        let (word, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let (enhanced, text) = match word.parse::<EnhancedCode>() {
            Ok(enhanced) if u16::from(enhanced.0) == code / 100 => (Some(enhanced), text.trim_start()),
            Ok(_) => return Err(InvalidReply),
            Err(_) => (None, rest),
        };
        Ok(Reply { code, enhanced, text: Cow::Owned(text.to_owned()) })
    }
}

impl FromStr for EnhancedCode {
    type Err = InvalidReply;

    /// Three numbers separated by dots (RFC 3463 section 2).
    fn from_str(text: &str) -> Result<Self, InvalidReply> {
        let mut numbers = text.split('.').map(|digits| {
            let is_number = (1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u16>().ok().filter(|_| is_number)
        });
        let mut next = || numbers.next().flatten().ok_or(InvalidReply);
        let (class, subject, detail) = (next()?, next()?, next()?);
        let class = u8::try_from(class).ok().filter(|class| matches!(class, 2 | 4 | 5)).ok_or(InvalidReply)?;
        numbers.next().is_none().then_some(EnhancedCode(class, subject, detail)).ok_or(InvalidReply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_multiline_reply_has_the_code() {
        let mut out = Vec::new();
        Reply::new(550, EnhancedCode(5, 1, 1), "one\ntwo").write_wire(&mut out);
        assert_eq!(out, b"550-5.1.1 one\r\n550 5.1.1 two\r\n");
    }

    #[test]
    fn a_reply_is_parsed_from_its_line() {
        for (line, code, enhanced, text) in [
            ("550 5.7.1 not from here", 550, Some(EnhancedCode(5, 7, 1)), "not from here"),
            ("450 later, please", 450, None, "later, please"),
            ("554", 554, None, ""),
            ("554 5.7.1", 554, Some(EnhancedCode(5, 7, 1)), ""),
            ("450 1.2.3.4 is listed", 450, None, "1.2.3.4 is listed"),
        ] {
            let read: Reply = line.parse().unwrap();
            assert_eq!((read.code, read.enhanced, &*read.text), (code, enhanced, text), "{line}");
        }
        let long = format!("550 {}", "x".repeat(507));
        for line in ["", "x", "55 no", "5500 no", "199 no", "550 4.7.1 no", "550 a\tb", "550 a\r\nb", "550 ü", &long] {
            assert_eq!(line.parse::<Reply>(), Err(InvalidReply), "{line}");
        }
    }
}
