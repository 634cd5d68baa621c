//! The words of structured fields (RFC 5322 section 3.2), without comments and folding. What is not
//! well-formed has no words at all: an open comment or quoted string, a control character.

/// A word and whether it follows white space or a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) kind: WordKind,
    pub(crate) is_spaced: bool,
}

/// What a word is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WordKind {
    /// Anything that is not special, also in other character sets.
    Atom(Vec<u8>),
    /// A quoted string, without its quotes.
    Quoted(Vec<u8>),
    /// One of `<>[]:;@\,.` or `"`, `(` and `)` where they are alone.
    Special(u8),
}

/// The words of a field's value. None: it is not well-formed.
pub(crate) fn words(value: &[u8]) -> Option<Vec<Word>> {
    WordReader::new(value).collect::<Result<_, _>>().ok()
}

/// Not well-formed; what follows has no words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads one word after the other, up to the first fault.
pub(crate) struct WordReader<'a> {
    value: &'a [u8],
    at: usize,
}

impl<'a> WordReader<'a> {
    pub(crate) fn new(value: &'a [u8]) -> WordReader<'a> {
        WordReader { value, at: 0 }
    }

    /// What was read so far.
    pub(crate) fn read_part(&self) -> &'a [u8] {
        &self.value[..self.at]
    }

    /// The next word; None at the end.
    fn read_word(&mut self) -> Result<Option<Word>, Malformed> {
        let mut is_spaced = false;
        while let Some(&octet) = self.value.get(self.at) {
            let (kind, end) = match octet {
                b' ' | b'\t' | b'\r' | b'\n' => {
                    (self.at, is_spaced) = (self.at + 1, true);
                    continue;
                }
                b'(' => {
                    (self.at, is_spaced) = (comment_end(self.value, self.at).ok_or(Malformed)?, true);
                    continue;
                }
                b'"' => quoted(self.value, self.at + 1).ok_or(Malformed)?,
                _ if is_special(octet) => (WordKind::Special(octet), self.at + 1),
                _ => atom(self.value, self.at).ok_or(Malformed)?,
            };
            self.at = end;
            return Ok(Some(Word { kind, is_spaced }));
        }
        Ok(None)
    }
}

impl Iterator for WordReader<'_> {
    type Item = Result<Word, Malformed>;

    fn next(&mut self) -> Option<Result<Word, Malformed>> {
        self.read_word().transpose()
    }
}

/// The atom that starts here, and its end.
fn atom(value: &[u8], start: usize) -> Option<(WordKind, usize)> {
    let rest = &value[start..];
    let len = rest.iter().position(|octet| !is_atom(*octet)).unwrap_or(rest.len());
    (len > 0).then(|| (WordKind::Atom(rest[..len].to_vec()), start + len))
}

/// The end of a comment, which may contain others.
fn comment_end(value: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match value.get(at)? {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'\\' => at += 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The text of a quoted string that starts here, and its end.
fn quoted(value: &[u8], start: usize) -> Option<(WordKind, usize)> {
    let (mut at, mut text) = (start, Vec::new());
    loop {
        match *value.get(at)? {
            b'"' => return Some((WordKind::Quoted(text), at + 1)),
            b'\\' => {
                at += 1;
                text.push(*value.get(at)?);
            }
            b'\r' | b'\n' => {}
            octet => text.push(octet),
        }
        at += 1;
    }
}

fn is_special(octet: u8) -> bool {
    b"<>[]:;@\\,.)".contains(&octet)
}

fn is_atom(octet: u8) -> bool {
    octet > b' ' && octet != 0x7f && !is_special(octet) && !b"(\"".contains(&octet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: &str) -> Option<String> {
        let words = words(value.as_bytes())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let show = |word: &Word| match &word.kind {
            WordKind::Atom(atom) => format!("{}{}", if word.is_spaced { " " } else { "" }, text(atom)),
            WordKind::Quoted(quoted) => format!("'{}'", text(quoted)),
            WordKind::Special(octet) => format!("{}", char::from(*octet)),
        };
        Some(words.iter().map(show).collect())
    }

    #[test]
    fn comments_and_folding_are_left_out() {
        for (value, expected) in [
            ("a@b.c", Some("a@b.c")),
            (" a (x (y) \\) z) b", Some(" a b")),
            ("a\r\n (x)\r\n\tb", Some("a b")),
            ("\"a \\\"b\\\" (c)\" d", Some("'a \"b\" (c)' d")),
            ("é", Some("é")),
            ("(open", None),
            ("(a\\)", None),
            ("\"open", None),
            ("\"a\\", None),
            ("a\0b", None),
            ("a)", Some("a)")),
            ("", Some("")),
        ] {
            assert_eq!(shown(value).as_deref(), expected, "{value:?}");
        }
    }
}
