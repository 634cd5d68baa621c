//! Command lines (RFC 5321 section 4.1): the verb, and simple arguments.

use memchr::memchr2;

/// The first word of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Helo,
    Ehlo,
    Lhlo,
    Mail,
    Rcpt,
    Data,
    Bdat,
    Rset,
    Noop,
    Starttls,
    Auth,
    Xclient,
    Quit,
    Help,
    Vrfy,
    /// A verb of some RFC that is not implemented.
    Unimplemented,
    Unknown,
}

impl Verb {
    fn from_word(word: &[u8]) -> Verb {
        let mut upper = [0; 4];
        if let Some(upper) = upper.get_mut(..word.len()) {
            upper.copy_from_slice(word);
            upper.make_ascii_uppercase();
        }
        match &upper {
            b"HELO" => Verb::Helo,
            b"EHLO" => Verb::Ehlo,
            b"LHLO" => Verb::Lhlo,
            b"MAIL" => Verb::Mail,
            b"RCPT" => Verb::Rcpt,
            b"DATA" => Verb::Data,
            b"BDAT" => Verb::Bdat,
            b"RSET" => Verb::Rset,
            b"NOOP" => Verb::Noop,
            b"QUIT" => Verb::Quit,
            b"HELP" => Verb::Help,
            b"VRFY" => Verb::Vrfy,
            b"AUTH" => Verb::Auth,
            b"EXPN" | b"ETRN" | b"TURN" | b"ATRN" | b"SEND" | b"SOML" | b"SAML" => Verb::Unimplemented,
            _ if word.eq_ignore_ascii_case(b"STARTTLS") => Verb::Starttls,
            _ if word.eq_ignore_ascii_case(b"XCLIENT") => Verb::Xclient,
            _ => Verb::Unknown,
        }
    }

    /// The stage name for logging a refusal.
    pub(super) fn stage(self) -> &'static str {
        match self {
            Verb::Helo => "HELO",
            Verb::Ehlo => "EHLO",
            Verb::Lhlo => "LHLO",
            Verb::Mail => "MAIL",
            Verb::Rcpt => "RCPT",
            Verb::Data => "DATA",
            Verb::Bdat => "BDAT",
            Verb::Rset => "RSET",
            Verb::Noop => "NOOP",
            Verb::Starttls => "STARTTLS",
            Verb::Auth => "AUTH",
            Verb::Xclient => "XCLIENT",
            Verb::Quit => "QUIT",
            Verb::Help => "HELP",
            Verb::Vrfy => "VRFY",
            Verb::Unimplemented | Verb::Unknown => "command",
        }
    }

    /// Whether it is allowed before a required STARTTLS (RFC 3207 section 4).
    pub(super) fn needs_no_tls(self) -> bool {
        matches!(self, Verb::Ehlo | Verb::Lhlo | Verb::Noop | Verb::Starttls | Verb::Quit)
    }
}

/// Whether a line (without its CRLF) has no bare CR or NUL. It cannot have an LF, since the first
/// LF ended it.
pub(super) fn has_no_bare_cr_or_nul(line: &[u8]) -> bool {
    memchr2(b'\r', b'\0', line).is_none()
}

/// The verb and its arguments, trimmed.
pub(super) fn split(line: &[u8]) -> (Verb, &[u8]) {
    let end = memchr2(b' ', b'\t', line).unwrap_or(line.len());
    (Verb::from_word(&line[..end]), line[end..].trim_ascii())
}

/// The text after a keyword such as `FROM:`, in any case. White space after the colon, which many
/// clients send, is ignored.
pub(super) fn after_keyword<'a>(arguments: &'a str, keyword: &str) -> Option<&'a str> {
    let (head, rest) = arguments.split_at_checked(keyword.len())?;
    head.eq_ignore_ascii_case(keyword).then(|| rest.trim_start())
}

/// A valid HELO name. It goes into Received lines, so characters with a meaning there are refused;
/// otherwise names are accepted as sent, including underscores.
pub(super) fn parse_host(arguments: &str) -> Option<&str> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]+/~=%#*".contains(&b);
    let fits = (1..=mail::DOMAIN_OCTETS_MAX).contains(&arguments.len());
    (fits && arguments.bytes().all(allowed)).then_some(arguments)
}

/// The arguments of BDAT (RFC 3030).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The size of the chunk that follows the command line.
    pub(super) octets: u64,
    /// The chunk is the last of the message.
    pub(super) last: bool,
}

impl Chunk {
    /// Parses `octets [LAST]`.
    pub(super) fn parse(arguments: &[u8]) -> Option<Chunk> {
        let mut words = str::from_utf8(arguments).ok()?.split_ascii_whitespace();
        let octets = number(words.next()?)?;
        let last = match words.next() {
            None => false,
            Some(word) if word.eq_ignore_ascii_case("LAST") => true,
            Some(_) => return None,
        };
        words.next().is_none().then_some(Chunk { octets, last })
    }

    /// Whether the chunk makes no progress with the message.
    pub(super) fn is_idle(self) -> bool {
        self.octets == 0 && !self.last
    }
}

/// Parses digits only; also None if the number exceeds u64.
pub(super) fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_known_in_any_case_and_only_whole() {
        for (line, verb, arguments) in [
            (&b"noop"[..], Verb::Noop, &b""[..]),
            (b"NoOp  a b ", Verb::Noop, b"a b"),
            (b"MAIL\tFROM:<>", Verb::Mail, b"FROM:<>"),
            (b"NOO", Verb::Unknown, b""),
            (b"NOOPS", Verb::Unknown, b""),
            (b"", Verb::Unknown, b""),
            (b" NOOP", Verb::Unknown, b"NOOP"),
            (b"starttls", Verb::Starttls, b""),
        ] {
            assert_eq!(split(line), (verb, arguments), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_chunk_is_a_number_and_perhaps_last() {
        let chunk = |octets, last| Some(Chunk { octets, last });
        for (arguments, expected) in [
            (&b"0"[..], chunk(0, false)),
            (b"0086 last", chunk(86, true)),
            (b"18446744073709551615", chunk(u64::MAX, false)),
            (b"18446744073709551616", None),
            (b"", None),
            (b"LAST", None),
            (b"+5", None),
            (b"-5", None),
            (b"5 FIRST", None),
            (b"5 LAST LAST", None),
            (b"5\xff", None),
        ] {
            assert_eq!(Chunk::parse(arguments), expected, "{}", arguments.escape_ascii());
        }
    }

    #[test]
    fn a_host_name_has_nothing_that_means_something_in_a_received_line() {
        for name in ["mx.example.org", "[127.0.0.1]", "[IPv6:::1]", "WIN_PC", "x"] {
            assert_eq!(parse_host(name), Some(name));
        }
        for name in ["", "a b", "a)b", "a;b", "a<b", "a\"b", "b\u{fc}cher", &"x".repeat(256)] {
            assert_eq!(parse_host(name), None, "{name}");
        }
    }
}
