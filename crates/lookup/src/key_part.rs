//! The parts of a key that queries and templates can name.
//!
//! | name                 | of `bob@mail.example.org`        | of `bob`, `example.org` |
//! |----------------------|----------------------------------|-------------------------|
//! | `key`                | `bob@mail.example.org`           | the key                 |
//! | `local`              | `bob`                            | the key                 |
//! | `domain`             | `mail.example.org`               | none                    |
//! | `label1` to `label9` | `org`, `example`, `mail`, none … | none                    |
//!
//! The domain begins after the last `@`. An empty part counts as none, and a key that lacks a part
//! that a query needs is not found: with nothing in its place the query could find more than it
//! should.

use std::fmt;

/// The most labels that can be named.
const LABELS_MAX: u8 = 9;

/// A part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The whole key.
    Key,
    /// The part before the last `@`, or the whole key without one.
    Local,
    /// The part after the last `@`.
    Domain,
    /// A label of that domain, counted from its end: 1 is the top-level domain.
    Label(u8),
}

impl KeyPart {
    /// All names, for errors.
    pub const NAMES: &'static str = "key, local, domain or label1 to label9";

    /// The part of this name.
    pub fn parse(name: &str) -> Option<KeyPart> {
        match name {
            "key" => Some(KeyPart::Key),
            "local" => Some(KeyPart::Local),
            "domain" => Some(KeyPart::Domain),
            _ => {
                let digit = name.strip_prefix("label").filter(|digit| digit.len() == 1)?;
                let place = digit.parse().ok().filter(|place| (1..=LABELS_MAX).contains(place))?;
                Some(KeyPart::Label(place))
            }
        }
    }

    /// This part of a key, which is never empty; None if the key lacks it.
    pub fn of(self, key: &str) -> Option<&str> {
        let split = key.rsplit_once('@');
        let domain = split.map(|(_, domain)| domain);
        let part = match self {
            KeyPart::Key => Some(key),
            KeyPart::Local => Some(split.map_or(key, |(local, _)| local)),
            KeyPart::Domain => domain,
            KeyPart::Label(place) => domain.and_then(|domain| domain.rsplit('.').nth(usize::from(place) - 1)),
        };
        part.filter(|part| !part.is_empty())
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Key => f.write_str("key"),
            KeyPart::Local => f.write_str("local"),
            KeyPart::Domain => f.write_str("domain"),
            KeyPart::Label(place) => write!(f, "label{place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(key: &str) -> Vec<Option<&str>> {
        ["key", "local", "domain", "label1", "label2", "label3", "label9"]
            .map(|name| KeyPart::parse(name).unwrap().of(key))
            .to_vec()
    }

    #[test]
    fn a_key_has_its_parts_and_no_empty_ones() {
        let (all, none) = (Some, None);
        assert_eq!(
            parts("a@b@x.example.org"),
            [all("a@b@x.example.org"), all("a@b"), all("x.example.org"), all("org"), all("example"), all("x"), none]
        );
        assert_eq!(parts("bob"), [all("bob"), all("bob"), none, none, none, none, none]);
        assert_eq!(parts("@org"), [all("@org"), none, all("org"), all("org"), none, none, none]);
        assert_eq!(parts("bob@"), [all("bob@"), all("bob"), none, none, none, none, none]);
        assert_eq!(parts("b@.org."), [all("b@.org."), all("b"), all(".org."), none, all("org"), none, none]);
        assert_eq!(parts(""), [none; 7]);
    }

    #[test]
    fn names_are_those_that_are_shown() {
        for name in ["key", "local", "domain", "label1", "label9"] {
            assert_eq!(KeyPart::parse(name).map(|part| part.to_string()).as_deref(), Some(name));
        }
        for name in ["", "Key", "label", "label0", "label10", "label+1", "user"] {
            assert_eq!(KeyPart::parse(name), None, "{name}");
        }
    }
}
