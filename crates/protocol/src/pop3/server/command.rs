//! Command lines (RFC 1939 section 3): the verb, and simple arguments.

use memchr::memchr;

/// The first word of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Capa,
    User,
    Pass,
    Auth,
    Stls,
    Utf8,
    Lang,
    Stat,
    List,
    Retr,
    Dele,
    Noop,
    Rset,
    Top,
    Uidl,
    Quit,
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
            b"CAPA" => Verb::Capa,
            b"USER" => Verb::User,
            b"PASS" => Verb::Pass,
            b"AUTH" => Verb::Auth,
            b"STLS" => Verb::Stls,
            b"UTF8" => Verb::Utf8,
            b"LANG" => Verb::Lang,
            b"STAT" => Verb::Stat,
            b"LIST" => Verb::List,
            b"RETR" => Verb::Retr,
            b"DELE" => Verb::Dele,
            b"NOOP" => Verb::Noop,
            b"RSET" => Verb::Rset,
            b"TOP\0" if word.len() == 3 => Verb::Top,
            b"UIDL" => Verb::Uidl,
            b"QUIT" => Verb::Quit,
            _ => Verb::Unknown,
        }
    }
}

/// The verb and its argument: everything after one space, since a password may have more (RFC 1939
/// section 7, PASS).
pub(super) fn split(line: &[u8]) -> (Verb, &[u8]) {
    let end = memchr(b' ', line).unwrap_or(line.len());
    (Verb::from_word(&line[..end]), line.get(end + 1..).unwrap_or_default())
}

/// The words of an argument.
pub(super) fn words(argument: &[u8]) -> impl Iterator<Item = &[u8]> {
    argument.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// Parses digits only; numbers that are too large become the largest one.
pub(super) fn number(word: &[u8]) -> Option<u32> {
    let digits = str::from_utf8(word).ok().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))?;
    (!digits.is_empty()).then(|| digits.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_known_in_any_case_and_only_whole() {
        for (line, verb, argument) in [
            (&b"noop"[..], Verb::Noop, &b""[..]),
            (b"Top 1 0", Verb::Top, b"1 0"),
            (b"TOP\0 1", Verb::Unknown, b"1"),
            (b"TOPS", Verb::Unknown, b""),
            (b"PASS  a b ", Verb::Pass, b" a b "),
            (b"PASS ", Verb::Pass, b""),
            (b"NOO", Verb::Unknown, b""),
            (b"NOOPS", Verb::Unknown, b""),
            (b"", Verb::Unknown, b""),
            (b" NOOP", Verb::Unknown, b"NOOP"),
            (b"utf8", Verb::Utf8, b""),
        ] {
            assert_eq!(split(line), (verb, argument), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn a_number_is_digits() {
        for (word, expected) in [
            (&b"0"[..], Some(0)),
            (b"0017", Some(17)),
            (b"99999999999999999999999", Some(u32::MAX)),
            (b"", None),
            (b"-1", None),
            (b"+1", None),
            (b"1a", None),
            (b"\xff", None),
        ] {
            assert_eq!(number(word), expected, "{}", word.escape_ascii());
        }
    }
}
