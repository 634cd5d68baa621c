//! Makes text from other hosts safe for terminals and logs. Addresses, greetings and replies may
//! contain characters that control a terminal, change the text direction, end a line, or are
//! invisible. They are escaped as in JSON (RFC 8259 section 7): `\u202e`, or two such units beyond
//! the basic plane. JSON stays equivalent.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with these characters escaped, on one line.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(must_escape) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    text.chars().for_each(|c| match must_escape(c) {
        true => push_escaped(&mut out, c),
        false => out.push(c),
    });
    out.into()
}

/// Whether a character is a control (C0, C1), a line or paragraph separator, a direction mark, or
/// invisible: Unicode's `Cc`, `Cf`, `Zl`, `Zp`, default ignorable code points, and noncharacters.
pub fn must_escape(c: char) -> bool {
    match c {
        ' '..='~' => false,
        '\0'..'\u{a0}' => true,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' => true,
        '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => true,
        '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fdd0}'..='\u{fdef}' | '\u{fe00}'..='\u{fe0f}' => true,
        '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' => true,
        '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        _ => u32::from(c) & 0xfffe == 0xfffe,
    }
}

/// Appends the escape of one character.
pub fn push_escaped(out: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_escaped() {
        for (text, expected) in [
            ("bob@example.org", "bob@example.org"),
            ("b\u{fc}cher \u{4f8b}\u{5b50} \u{1f600} \u{5d0}", "b\u{fc}cher \u{4f8b}\u{5b50} \u{1f600} \u{5d0}"),
            ("\u{1b}[2J\r\n\t\u{7f}\u{9b}", r"\u001b[2J\u000d\u000a\u0009\u007f\u009b"),
            ("a\u{202e}gro.b\u{2066}\u{200f}\u{61c}", r"a\u202egro.b\u2066\u200f\u061c"),
            ("\u{200b}\u{200d}\u{2060}\u{feff}\u{ad}", r"\u200b\u200d\u2060\ufeff\u00ad"),
            ("\u{2028}\u{2029}\u{85}", r"\u2028\u2029\u0085"),
            ("\u{e0041}\u{fe0f}\u{1ffff}", r"\udb40\udc41\ufe0f\ud83f\udfff"),
        ] {
            assert_eq!(printable(text), expected);
            assert_eq!(printable(expected), expected, "once is as good as twice");
        }
    }

    #[test]
    fn a_line_of_json_stays_the_same_json() {
        let value = serde_json::json!({"from": "a\u{202e}\u{e0041}\u{7f}\n\"\\"});
        let line = value.to_string();
        let escaped = printable(&line);
        assert!(escaped.is_ascii() && !escaped.contains(char::is_control), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
