//! What a server answers: RFC 5321 section 4.2 with the enhanced status codes of RFC 3463.

use std::borrow::Cow;
use std::fmt;

/// An enhanced status code (RFC 3463): class.subject.detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enhanced(pub u8, pub u16, pub u16);

impl fmt::Display for Enhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A reply of one line, or of several where `text` has line feeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Three digits.
    pub code: u16,
    /// The enhanced code, where the reply bears one.
    pub enhanced: Option<Enhanced>,
    /// For people; lines are parted by LF and hold no CR.
    pub text: Cow<'static, str>,
}

impl Reply {
    /// A reply with an enhanced code.
    pub fn new(code: u16, enhanced: Enhanced, text: impl Into<Cow<'static, str>>) -> Self {
        Reply { code, enhanced: Some(enhanced), text: text.into() }
    }

    /// A reply without one: banners, 354, answers to HELO.
    pub fn plain(code: u16, text: impl Into<Cow<'static, str>>) -> Self {
        Reply { code, enhanced: None, text: text.into() }
    }

    /// 2xx.
    pub fn is_success(&self) -> bool {
        self.code / 100 == 2
    }

    /// 4xx: the same may succeed later.
    pub fn is_transient(&self) -> bool {
        self.code / 100 == 4
    }

    /// 5xx: the same will fail again.
    pub fn is_permanent(&self) -> bool {
        self.code / 100 == 5
    }

    /// Appends the reply as it goes over the wire, with its CR LF.
    pub fn write_wire(&self, out: &mut Vec<u8>) {
        let mut lines = self.text.split('\n').peekable();
        while let Some(line) = lines.next() {
            let mark = if lines.peek().is_some() { '-' } else { ' ' };
            // Writing to a Vec cannot fail.
            let _ = match self.enhanced {
                Some(enhanced) => io_write(out, format_args!("{}{mark}{enhanced} {line}\r\n", self.code)),
                None => io_write(out, format_args!("{}{mark}{line}\r\n", self.code)),
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

fn io_write(out: &mut Vec<u8>, args: fmt::Arguments<'_>) -> std::io::Result<()> {
    std::io::Write::write_fmt(out, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_long_reply_bears_the_code() {
        let mut out = Vec::new();
        Reply::new(550, Enhanced(5, 1, 1), "one\ntwo").write_wire(&mut out);
        assert_eq!(out, b"550-5.1.1 one\r\n550 5.1.1 two\r\n");
    }
}
