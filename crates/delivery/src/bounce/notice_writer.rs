//! Writes the lines of a notice and sanitizes text from other hosts: after [`sanitize`] and
//! [`NoticeWriter::wrapped_line`] no text can start a line of its own or make a line over 998
//! octets (RFC 5322 section 2.1.1).

use std::fmt;

/// Where our own lines are wrapped (RFC 5322 section 2.1.1 recommends 78).
const LINE_OCTETS: usize = 76;
/// Longer words are split: RFC 5322 section 2.1.1 allows 998 octets in a line.
const WORD_OCTETS_MAX: usize = 900;
/// How much of one text from another host is quoted.
const TEXT_CHARS_MAX: usize = 2000;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Charset {
    Ascii,
    Utf8,
}

/// Text from another host as one line of harmless characters and bounded length.
pub(super) fn sanitize_foreign_text(text: &str, charset: Charset) -> String {
    let harmless = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '?',
        c if charset == Charset::Ascii && !c.is_ascii() => '?',
        c => c,
    };
    text.chars().take(TEXT_CHARS_MAX).map(harmless).collect()
}

#[derive(Default)]
pub(super) struct NoticeWriter(String);

impl NoticeWriter {
    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = fmt::Write::write_fmt(&mut self.0, line);
        self.0.push_str("\r\n");
    }

    pub(super) fn empty_line(&mut self) {
        self.0.push_str("\r\n");
    }

    /// Writes `lead` and the words of `text`; continuation lines start with `indent`.
    pub(super) fn wrapped_line(&mut self, lead: &str, indent: &str, text: &str) {
        let mut line = lead.to_owned();
        let mut starts = lead.is_empty();
        for word in text.split(' ').filter(|word| !word.is_empty()).flat_map(split_long_word) {
            if line.len() + 1 + word.len() > LINE_OCTETS && !line.trim_start().is_empty() {
                self.line(format_args!("{line}"));
                indent.clone_into(&mut line);
                starts = true;
            }
            if !starts {
                line.push(' ');
            }
            line.push_str(word);
            starts = false;
        }
        self.line(format_args!("{line}"));
    }

    /// Content-Transfer-Encoding (RFC 2045 section 6.1), omitted for the default 7bit, and the
    /// empty line.
    pub(super) fn end_of_header(&mut self, eight_bit: bool) {
        if eight_bit {
            self.line(format_args!("Content-Transfer-Encoding: 8bit"));
        }
        self.empty_line();
    }

    /// Appends complete lines.
    pub(super) fn append(&mut self, lines: &str) {
        self.0.push_str(lines);
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// Splits a word into pieces that fit in a line.
fn split_long_word(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (piece, tail) = rest.split_at(rest.floor_char_boundary(WORD_OCTETS_MAX));
        rest = tail;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_very_long_ones_cut() {
        let mut text = NoticeWriter::default();
        text.wrapped_line("Lead:", " ", &format!("{} {} {}", "a".repeat(60), "b".repeat(30), "ü".repeat(1000)));
        let lengths: Vec<usize> = text.0.split("\r\n").map(str::len).collect();
        assert_eq!(lengths, [66, 31, 901, 901, 201, 0]);
    }
}
