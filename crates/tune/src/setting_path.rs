//! A setting of `mailrace.toml` by its name, such as `limits.sessions` or `queue.local.concurrency`.
//!
//! Sections that can be repeated are found by their `name` (`host` for `[[next_hop]]`, `domain` for `[[route]]`). Parts
//! with dots are quoted: `domain."example.org".delimiter`.

use std::fmt;
use std::str::FromStr;

use toml::{Table, Value};

/// Sections that can be repeated, with the key that tells them apart.
const REPEATED: [(&str, &str); 6] = [
    ("queue", "name"),
    ("table", "name"),
    ("domain", "name"),
    ("access", "name"),
    ("next_hop", "host"),
    ("route", "domain"),
];

/// The parts of a name; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingPath(Vec<String>);

impl FromStr for SettingPath {
    type Err = String;

    fn from_str(text: &str) -> Result<SettingPath, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = match rest.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').ok_or_else(|| format!("{text}: a quote is not closed"))?,
                None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
            };
            if part.is_empty() {
                return Err(format!("{text}: a part is empty; expected a setting such as limits.sessions"));
            }
            parts.push(part.to_owned());
            rest = match after.strip_prefix('.') {
                Some(rest) => rest,
                None if after.is_empty() => return Ok(SettingPath(parts)),
                None => return Err(format!("{text}: expected a dot before {after:?}")),
            };
        }
    }
}

impl SettingPath {
    pub(crate) fn parts(&self) -> &[String] {
        &self.0
    }

    /// The value in a configuration; None if it is not set there.
    pub(crate) fn find<'a>(&self, configuration: &'a Table) -> Option<&'a Value> {
        let (first, rest) = self.0.split_first()?;
        let mut found = configuration.get(first)?;
        let mut rest = rest.iter();
        if let Value::Array(sections) = found
            && let Some(key) = repeated_by(first)
        {
            let name = rest.next()?;
            found = sections.iter().find(|section| is_named(section, key, name))?;
        }
        rest.try_fold(found, |value, part| value.get(part))
    }

    /// Sets the value, and adds the sections that it needs.
    ///
    /// # Errors
    ///
    /// A part of the name is a value, and not a section.
    pub(crate) fn set(&self, configuration: &mut Table, value: Value) -> Result<(), String> {
        let (last, above) = self.0.split_last().ok_or("a setting has a name")?;
        let mut section = configuration;
        let mut above = above.iter();
        while let Some(part) = above.next() {
            let key = repeated_by(part);
            section = match (key, key.and_then(|_| above.next())) {
                (Some(key), Some(name)) => repeated_section(section, part, key, name),
                (Some(key), None) => return Err(format!("{self}: name one of the sections by its {key}")),
                (None, _) => section.entry(part).or_insert_with(|| Table::new().into()).as_table_mut(),
            }
            .ok_or_else(|| format!("{self}: {part} is no section"))?;
        }
        section.insert(last.clone(), value);
        Ok(())
    }
}

/// The key that tells the sections of a list apart; None if a section of this name is single.
pub(crate) fn repeated_by(section: &str) -> Option<&'static str> {
    REPEATED.iter().find(|(name, _)| *name == section).map(|(_, key)| *key)
}

fn is_named(section: &Value, key: &str, name: &str) -> bool {
    section.get(key).and_then(Value::as_str) == Some(name)
}

/// The section of a list with this name, which is added if there is none; None if it is not a list of sections.
fn repeated_section<'a>(parent: &'a mut Table, list: &str, key: &str, name: &str) -> Option<&'a mut Table> {
    let sections = parent.entry(list).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()?;
    let place = match sections.iter().position(|section| is_named(section, key, name)) {
        Some(place) => place,
        None => {
            sections.push(Table::from_iter([(key.to_owned(), Value::from(name))]).into());
            sections.len() - 1
        }
    };
    sections[place].as_table_mut()
}

/// A value of the command line: TOML if it is, else a text.
pub(crate) fn parse_value(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok().filter(|table| table.len() == 1);
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| text.into())
}

impl fmt::Display for SettingPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
            let dot = if index > 0 { "." } else { "" };
            let quote = if part.contains('.') { "\"" } else { "" };
            write!(f, "{dot}{quote}{part}{quote}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, path: &str, value: &str) -> Result<Table, String> {
        let mut table: Table = text.parse().unwrap();
        path.parse::<SettingPath>()?.set(&mut table, parse_value(value))?;
        Ok(table)
    }

    #[test]
    fn a_setting_is_found_and_set_in_sections_lists_and_inline_tables() {
        let queues = "[[queue]]\nname = \"local\"\nconcurrency = 1\n\n[[queue]]\nname = \"lame\"\n";
        for (before, path, value, after) in [
            ("", "threads", "4", "threads = 4"),
            ("[limits]\nsessions = 5", "limits.sessions", "6", "[limits]\nsessions = 6"),
            ("", "limits.body_memory", "64MiB", "[limits]\nbody_memory = \"64MiB\""),
            (queues, "queue.local.concurrency", "2", &queues.replace("= 1", "= 2")),
            ("", "queue.local.concurrency", "2", "[[queue]]\nname = \"local\"\nconcurrency = 2"),
            (queues, "queue.local.retry.first", "2m", &queues.replace("= 1", "= 1\nretry = { first = \"2m\" }")),
            ("a = { b = 1, c = 9 }", "a.b", "3", "a = { b = 3, c = 9 }"),
        ] {
            assert_eq!(set(before, path, value).unwrap(), after.parse::<Table>().unwrap(), "{path}");
        }
    }

    #[test]
    fn names_with_dots_are_quoted() {
        let path: SettingPath = "domain.\"a.example\".delimiter".parse().unwrap();
        assert_eq!(path.to_string(), "domain.\"a.example\".delimiter");
        let table: Table = "[[domain]]\nname = \"a.example\"\ndelimiter = \"-\"\n".parse().unwrap();
        assert_eq!(path.find(&table).and_then(Value::as_str), Some("-"));
    }

    #[test]
    fn what_is_no_name_of_a_setting_is_refused() {
        for path in ["", ".", "a..b", "a.", "\"a", "\"a\"b"] {
            assert!(path.parse::<SettingPath>().is_err(), "{path}");
        }
        assert!(set("limits = 1", "limits.sessions", "2").is_err());
        assert!(set("", "queue.concurrency", "2").is_err());
    }

    #[test]
    fn a_value_is_toml_or_a_text() {
        assert_eq!(parse_value("4"), Value::Integer(4));
        assert_eq!(parse_value("true"), Value::Boolean(true));
        assert_eq!(parse_value("\"a\""), Value::String("a".to_owned()));
        assert_eq!(parse_value("64MiB"), Value::String("64MiB".to_owned()));
        assert_eq!(parse_value("1\nother = 2"), Value::String("1\nother = 2".to_owned()));
        assert_eq!(parse_value(""), Value::String(String::new()));
    }
}
