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
            ValueKind::Choice => Some(plain_text(text)).filter(|word| !word.is_empty()).map(Value::Text),
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

/// The text of a value as it is compared: the kernel separates words by tabs, and puts the chosen one in brackets (`none
/// [mq-deadline] kyber`).
pub(crate) fn plain_text(text: &str) -> String {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    chosen.unwrap_or(text).split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// The words of a value of which one is chosen; None if it is another one.
pub(crate) fn choices(text: &str) -> Option<impl Iterator<Item = &str>> {
    text.contains('[').then(|| text.split_ascii_whitespace().map(|word| word.trim_matches(['[', ']'])))
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

    #[test]
    fn values_are_compared_as_the_kernel_means_them() {
        assert_eq!(plain_text("4096\t131072\t6291456\n"), "4096 131072 6291456");
        assert_eq!(plain_text("none [mq-deadline] bfq\n"), "mq-deadline");
        assert_eq!(plain_text("cubic\n"), "cubic");
        assert_eq!(choices("none [mq-deadline] bfq\n").unwrap().collect::<Vec<_>>(), ["none", "mq-deadline", "bfq"]);
        assert!(choices("cubic\n").is_none());
    }
}
