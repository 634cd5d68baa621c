//! The value of a knob, as it was read and as it is printed.

use crate::knob::ValueKind;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number. For bytes, [`Value::UNLIMITED`] is no limit.
    Number(u64),
    /// A word or a text.
    Text(String),
    /// A set of words.
    Set(Vec<String>),
}

impl Value {
    /// A limit that does not exist.
    pub const UNLIMITED: u64 = u64::MAX;

    /// Finds the value of this kind in the text of a file; `field` is the number of the word. None if it is not there.
    pub(crate) fn parse(text: &str, kind: ValueKind, field: usize) -> Option<Value> {
        match kind {
            ValueKind::Integer | ValueKind::Bytes => {
                text.split_ascii_whitespace().nth(field)?.parse().ok().map(Value::Number)
            }
            ValueKind::Choice => Some(Value::Text(chosen_word(text)?.to_owned())),
            ValueKind::Text | ValueKind::Flags => Some(text.trim()).filter(|text| !text.is_empty()).map(Value::text),
        }
    }

    /// A text.
    pub(crate) fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into())
    }

    /// As it is printed.
    pub(crate) fn display(&self, kind: ValueKind) -> String {
        match self {
            Value::Number(number) => display_number(*number, kind),
            Value::Text(text) => text.clone(),
            Value::Set(words) if words.is_empty() => "none".to_owned(),
            Value::Set(words) => words.join(", "),
        }
    }
}

/// A number of this kind as it is printed.
pub(crate) fn display_number(number: u64, kind: ValueKind) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    if number == Value::UNLIMITED {
        return "unlimited".to_owned();
    }
    let unit = UNITS.iter().find(|(unit, _)| kind == ValueKind::Bytes && number >= *unit);
    match unit {
        Some((unit, name)) if number.is_multiple_of(*unit) => format!("{} {name}", number / unit),
        Some((unit, name)) => format!("{:.1} {name}", number as f64 / *unit as f64),
        None => number.to_string(),
    }
}

/// The word in brackets (`none [mq-deadline] kyber`), or the only line.
fn chosen_word(text: &str) -> Option<&str> {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    Some(bracketed.unwrap_or(text).trim()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_what_the_kernel_writes() {
        let parse = |text, kind, field| Value::parse(text, kind, field).map(|value| value.display(kind));
        assert_eq!(parse("4096\t131072\t6291456\n", ValueKind::Bytes, 2).as_deref(), Some("6 MiB"));
        assert_eq!(parse("4096\t131072\t6291457\n", ValueKind::Integer, 2).as_deref(), Some("6291457"));
        assert_eq!(parse("1572864\n", ValueKind::Bytes, 0).as_deref(), Some("1.5 MiB"));
        assert_eq!(parse("none [mq-deadline] kyber\n", ValueKind::Choice, 0).as_deref(), Some("mq-deadline"));
        assert_eq!(parse("cubic\n", ValueKind::Choice, 0).as_deref(), Some("cubic"));
        assert_eq!(parse("\n", ValueKind::Choice, 0), None);
        assert_eq!(parse("-1\n", ValueKind::Integer, 0), None);
        assert_eq!(parse("4096\n", ValueKind::Integer, 2), None);
    }
}
