//! The protocol of Redis (RESP2): commands as arrays of strings, and replies, each begun by a line.
//! No I/O.

use crate::LookupAnswer;

/// Maximum octets of a line.
pub(super) const LINE_OCTETS_MAX: usize = 64 * 1024;
/// Maximum octets of a text.
const TEXT_OCTETS_MAX: usize = 4 * 1024 * 1024;
/// Maximum members of a set.
const MEMBERS_MAX: usize = 100_000;

/// Octets that do not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected answer of the server: {0}")]
pub(super) struct ReplyError(pub(super) &'static str);

/// The line that begins a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplyLine {
    /// A word such as OK.
    Word,
    /// An error, whose first word is its kind.
    Error(Box<str>),
    Number(i64),
    /// A text of so many octets follows, and a line end.
    Text(usize),
    /// So many replies follow.
    Array(usize),
    /// Nothing is there.
    Nil,
}

/// A whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Word,
    Error(Box<str>),
    Number(i64),
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
    Nil,
}

impl ReplyLine {
    /// Reads a line without its end.
    pub(super) fn read(line: &[u8]) -> Result<ReplyLine, ReplyError> {
        let (mark, rest) = line.split_first().ok_or(ReplyError("an empty line"))?;
        let number = || str::from_utf8(rest).ok().and_then(|digits| digits.parse::<i64>().ok());
        let count = |most: usize| match number().ok_or(ReplyError("not a number"))? {
            -1 => Ok(None),
            count => usize::try_from(count).ok().filter(|count| *count <= most).map(Some).ok_or(ReplyError("too much")),
        };
        match mark {
            b'+' => Ok(ReplyLine::Word),
            b'-' => Ok(ReplyLine::Error(String::from_utf8_lossy(rest).into())),
            b':' => number().map(ReplyLine::Number).ok_or(ReplyError("not a number")),
            b'$' => Ok(count(TEXT_OCTETS_MAX)?.map_or(ReplyLine::Nil, ReplyLine::Text)),
            b'*' => Ok(count(MEMBERS_MAX)?.map_or(ReplyLine::Nil, ReplyLine::Array)),
            _ => Err(ReplyError("not a reply of Redis")),
        }
    }
}

impl Reply {
    /// What the reply to a command means for its key. The error is one of the whole request.
    pub(super) fn into_answer(self, at: &str) -> Result<LookupAnswer, String> {
        let texts = match self {
            Reply::Nil | Reply::Number(0) => return Ok(LookupAnswer::NotFound),
            Reply::Texts(texts) if texts.is_empty() => return Ok(LookupAnswer::NotFound),
            Reply::Number(1) => return Ok(LookupAnswer::Found(Vec::new())),
            Reply::Text(text) => vec![text],
            Reply::Texts(texts) => texts,
            // The type of this key, and not of others, is wrong.
            Reply::Error(text) if text.starts_with("WRONGTYPE") => {
                return Ok(LookupAnswer::Unavailable(format!("{at}: {text}")));
            }
            Reply::Error(text) => return Err(text.into()),
            Reply::Word | Reply::Number(_) => return Err(ReplyError("not a value").to_string()),
        };
        let values: Result<Vec<String>, _> = texts.into_iter().map(String::from_utf8).collect();
        let invalid = || LookupAnswer::Unavailable(format!("{at}: the value is not UTF-8"));
        Ok(values.map_or_else(|_| invalid(), LookupAnswer::Found))
    }
}

/// Appends a command.
pub(super) fn push_command<W: AsRef<str>>(octets: &mut Vec<u8>, words: &[W]) {
    octets.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        let word = word.as_ref();
        octets.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_command_keeps_every_word_apart() {
        let mut octets = Vec::new();
        push_command(&mut octets, &["GET", "a\r\nDEL ü"]);
        assert_eq!(octets, "*2\r\n$3\r\nGET\r\n$9\r\na\r\nDEL ü\r\n".as_bytes());
    }

    #[test]
    fn lines_are_read_or_refused() {
        for (line, expected) in [
            ("+OK", Ok(ReplyLine::Word)),
            ("-ERR no", Ok(ReplyLine::Error("ERR no".into()))),
            (":1", Ok(ReplyLine::Number(1))),
            ("$-1", Ok(ReplyLine::Nil)),
            ("$5", Ok(ReplyLine::Text(5))),
            ("*-1", Ok(ReplyLine::Nil)),
            ("*2", Ok(ReplyLine::Array(2))),
            ("", Err(ReplyError("an empty line"))),
            ("$x", Err(ReplyError("not a number"))),
            ("$-2", Err(ReplyError("too much"))),
            ("$99999999", Err(ReplyError("too much"))),
            ("*99999999", Err(ReplyError("too much"))),
            ("HTTP/1.1 200", Err(ReplyError("not a reply of Redis"))),
        ] {
            assert_eq!(ReplyLine::read(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn replies_are_answers() {
        let found = |values: &[&str]| LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect());
        let text = |text: &str| text.as_bytes().to_vec();
        for (reply, expected) in [
            (Reply::Nil, LookupAnswer::NotFound),
            (Reply::Number(0), LookupAnswer::NotFound),
            (Reply::Number(1), found(&[])),
            (Reply::Texts(Vec::new()), LookupAnswer::NotFound),
            (Reply::Text(text("ü")), found(&["ü"])),
            (Reply::Texts(vec![text("a"), text("b")]), found(&["a", "b"])),
            (Reply::Text(vec![0xff]), LookupAnswer::Unavailable("r: the value is not UTF-8".into())),
            (Reply::Error("WRONGTYPE x".into()), LookupAnswer::Unavailable("r: WRONGTYPE x".into())),
        ] {
            assert_eq!(reply.into_answer("r"), Ok(expected));
        }
        assert_eq!(Reply::Error("LOADING x".into()).into_answer("r"), Err("LOADING x".into()));
        assert!(Reply::Word.into_answer("r").is_err() && Reply::Number(2).into_answer("r").is_err());
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in proptest::collection::vec(any::<u8>(), 0..20)) {
            let _ = ReplyLine::read(&line);
        }
    }
}
