//! Parses one log line, in text or JSON: the inverse of [`crate::format`].

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::events::MailEventKind;

/// `2026-11-20T17:46:16.123Z`.
const TIME_OCTETS: usize = 24;

/// A parsed line.
pub struct LogLine<'a> {
    /// The time as in the log, which sorts as text.
    pub time: Cow<'a, str>,
    /// What it is about.
    pub kind: LineKind,
    fields: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// An event about mail.
    Mail(MailEventKind),
    /// An event of the server itself.
    Info,
    /// An event of the server that may need a person.
    Warning,
    /// A fault that stays until a person acts.
    Error,
}

impl LogLine<'_> {
    /// The value of a field; empty if missing.
    pub fn text(&self, name: &str) -> &str {
        self.fields.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// An address without angle brackets.
    pub fn address(&self, name: &str) -> &str {
        let text = self.text(name);
        text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text)
    }

    /// A number; 0 if missing.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// Parses a line, with or without a prefix of syslog or the journal. None if it is not a line of
/// this log.
pub fn parse_line(line: &str) -> Option<LogLine<'_>> {
    let line = line.trim_end();
    let unprefixed = || line.split_once("]: ").and_then(|(_, line)| parse_plain(line));
    parse_plain(line).or_else(unprefixed)
}

fn parse_plain(line: &str) -> Option<LogLine<'_>> {
    if line.starts_with('{') {
        return parse_json(line);
    }
    let (time, rest) = line.split_at_checked(TIME_OCTETS).filter(|(time, _)| is_time(time))?;
    let (name, rest) = rest.strip_prefix(' ')?.split_once(' ')?;
    Some(LogLine { time: time.into(), kind: parse_kind(name)?, fields: fields(rest)? })
}

fn parse_json(line: &str) -> Option<LogLine<'_>> {
    let object: Map<String, Value> = serde_json::from_str(line).ok()?;
    let time = object.get("time")?.as_str().filter(|time| is_time(time))?.to_owned();
    let what = parse_kind(object.get("event")?.as_str()?)?;
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let fields = object.into_iter().map(|(name, value)| (name.into(), text(value).into())).collect();
    Some(LogLine { time: time.into(), kind: what, fields })
}

fn parse_kind(name: &str) -> Option<LineKind> {
    match name {
        "info" => Some(LineKind::Info),
        "warning" => Some(LineKind::Warning),
        "error" => Some(LineKind::Error),
        name => MailEventKind::named(name).map(LineKind::Mail),
    }
}

fn is_time(text: &str) -> bool {
    let fits = |(octet, pattern): (u8, u8)| if pattern == b'0' { octet.is_ascii_digit() } else { octet == pattern };
    text.len() == TIME_OCTETS && text.bytes().zip(*b"0000-00-00T00:00:00.000Z").all(fits)
}

/// Fields `name=value`; None if one of them is incomplete.
fn fields(mut rest: &str) -> Option<Vec<(Cow<'_, str>, Cow<'_, str>)>> {
    let mut fields = Vec::with_capacity(12);
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => after.split_once(' ').map_or((after.into(), ""), |(value, after)| (value.into(), after)),
        };
        fields.push((name.into(), value));
        rest = after;
    }
    Some(fields)
}

/// The value after an opening quotation mark, and the text after the closing one.
fn unquote(quoted: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = quoted.find(['"', '\\'])?;
    if quoted.as_bytes()[end] == b'"' {
        return Some((quoted[..end].into(), strip_space(&quoted[end + 1..])?));
    }
    let (mut value, mut rest) = (String::new(), quoted);
    loop {
        let at = rest.find(['"', '\\'])?;
        value.push_str(&rest[..at]);
        if rest.as_bytes()[at] == b'"' {
            return Some((value.into(), strip_space(&rest[at + 1..])?));
        }
        let (c, after) = unescape(&rest[at + 1..])?;
        value.push(c);
        rest = after;
    }
}

/// The character after a backslash, and the text after it.
fn unescape(rest: &str) -> Option<(char, &str)> {
    let mut after = rest.chars();
    let c = match after.next()? {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => return unescape_units(after.as_str()),
        c => c,
    };
    Some((c, after.as_str()))
}

/// The character of UTF-16 escapes: one, or two beyond the basic plane (RFC 8259 section 7).
fn unescape_units(rest: &str) -> Option<(char, &str)> {
    let (first, after) = unit(rest)?;
    if let Ok(c) = char::try_from(u32::from(first)) {
        return Some((c, after));
    }
    let (second, after) = unit(after.strip_prefix("\\u")?)?;
    let c = char::decode_utf16([first, second]).next()?.ok()?;
    Some((c, after))
}

fn unit(rest: &str) -> Option<(u16, &str)> {
    let (digits, after) = rest.split_at_checked(4)?;
    Some((u16::from_str_radix(digits, 16).ok()?, after))
}

fn strip_space(rest: &str) -> Option<&str> {
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(' ') }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::{LogEntry, write_line};
    use crate::settings::LogFormat;
    use mail::LogLevel;

    proptest! {
        #[test]
        fn every_value_reads_back_as_it_was_written(one in any::<String>(), other in any::<String>()) {
            for format in [LogFormat::Text, LogFormat::Json] {
                let fields = vec![("error", one.clone()), ("why", other.clone())];
                let (mut out, time) = (String::new(), mail::Timestamp(1_795_196_776_123));
                write_line(&mut out, format, time, &LogEntry::Server { level: LogLevel::Error, text: "x y".into(), fields });
                let read = parse_line(&out).unwrap();
                prop_assert_eq!((read.kind, &*read.time), (LineKind::Error, "2026-11-20T17:46:16.123Z"));
                let values = ["message", "error", "why"].map(|name| read.text(name));
                prop_assert_eq!(values, ["x y", &*one, &*other]);
            }
        }

        #[test]
        fn no_text_is_too_odd_to_be_read(line in any::<String>()) {
            let _ = parse_line(&line);
            let _ = parse_line(&format!("2026-11-20T17:46:16.123Z error message={line}"));
        }
    }
}
