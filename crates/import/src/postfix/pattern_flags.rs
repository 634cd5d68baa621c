//! The flag `x` of patterns, which other notations than that of pcre_table(5) read differently.
//!
//! | table | `x` | becomes |
//! |---|---|---|
//! | `pcre` | blanks and comments outside of classes of characters are ignored | the pattern without them |
//! | `regexp` | the pattern is a basic regular expression (regexp_table(5)) | nothing: there are none here |

use super::main_cf::logical_lines;
use super::map_text::pattern_end;

/// Why a table of patterns is not translated.
const BASIC: &str = "a pattern is a basic regular expression (its flag x)";

/// The lines of a table of patterns, whose patterns do not have the flag.
///
/// # Errors
///
/// A line has no counterpart, and later lines depend on it.
pub(super) fn pattern_lines(text: &str, kind: &str) -> Result<Vec<String>, &'static str> {
    logical_lines(text).into_iter().map(|line| without_flag(line, kind)).collect()
}

/// A line without the flag.
///
/// # Errors
///
/// Its pattern has no counterpart.
pub(super) fn without_flag(line: String, kind: &str) -> Result<String, &'static str> {
    let is_condition = line.get(..2).is_some_and(|word| word.eq_ignore_ascii_case("if"));
    let start = if is_condition { 2 } else { 0 };
    let Some(end) = pattern_end(&line[start..]).map(|end| start + end) else { return Ok(line) };
    let begin = end - line[start..end].trim_start_matches(['!', ' ', '\t']).len();
    let Some(mark) = line[begin..end].chars().next() else { return Ok(line) };
    let Some(close) = line[begin..end].rfind(mark).map(|close| begin + close) else { return Ok(line) };
    let flags = &line[close + mark.len_utf8()..end];
    match flags.matches('x').count() % 2 {
        0 => Ok(line),
        _ if kind == "regexp" => Err(BASIC),
        _ => {
            let pattern_begin = begin + mark.len_utf8();
            let pattern = without_blanks(line.get(pattern_begin..close).unwrap_or_default());
            Ok(format!("{}{pattern}{mark}{}{}", &line[..pattern_begin], flags.replace('x', ""), &line[end..]))
        }
    }
}

/// A pattern without its blanks and comments.
fn without_blanks(pattern: &str) -> String {
    let (mut kept, mut rest) = (String::new(), pattern);
    while let Some(first) = rest.chars().next() {
        let (count, is_kept) = match first {
            '\\' => (1 + rest[1..].chars().next().map_or(0, char::len_utf8), true),
            '[' => (class_end(rest), true),
            '#' => (rest.find('\n').unwrap_or(rest.len()), false),
            first => (first.len_utf8(), !first.is_ascii_whitespace()),
        };
        kept.push_str(if is_kept { &rest[..count] } else { "" });
        rest = &rest[count..];
    }
    kept
}

/// The end of the class of characters at the start of a text.
pub(super) fn class_end(text: &str) -> usize {
    let first = 1 + usize::from(text[1..].starts_with('^'));
    let mut place = first;
    while let Some(c) = text[place..].chars().next() {
        let named = text[place..].strip_prefix("[:").and_then(|name| name.find(":]"));
        place += match (c, named) {
            (_, Some(end)) => end + "[::]".len(),
            ('\\', _) => 1 + text[place + 1..].chars().next().map_or(0, char::len_utf8),
            (']', _) if place > first => return place + 1,
            _ => c.len_utf8(),
        };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blanks in classes were ignored, too.
    #[test]
    fn blanks_outside_of_classes_are_no_part_of_a_pattern() {
        for (line, expected) in [
            ("/a b[ c]\\ d # e/x REJECT", "/ab[ c]\\ d/ REJECT"),
            ("!/[[:alpha:] ] [\\] ] []#] [^] ] f/ix x y", "!/[[:alpha:] ][\\] ][]#][^] ]f/i x y"),
            ("if /a b/x", "if /ab/"),
            ("IF!/a b/x", "IF!/ab/"),
            ("/a b/xx OK", "/a b/xx OK"),
            ("/a b/i x/x", "/a b/i x/x"),
            ("endif", "endif"),
            ("/a b", "/a b"),
        ] {
            assert_eq!(without_flag(line.into(), "pcre").as_deref(), Ok(expected), "{line}");
        }
        assert_eq!(without_flag("/a\\(b\\)/x OK".into(), "regexp"), Err(BASIC));
        assert_eq!(without_flag("/a b/ OK".into(), "regexp").as_deref(), Ok("/a b/ OK"));
    }

    proptest::proptest! {
        #[test]
        fn any_line_is_read(line in "(if |!)?/[a \\[\\]\\\\^#:/x]{0,20}|(?s).{0,20}") {
            drop(without_flag(line.clone(), "pcre"));
            drop(without_flag(line, "regexp"));
        }
    }
}
