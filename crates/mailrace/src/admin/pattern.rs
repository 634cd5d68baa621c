//! Patterns for addresses and names: `*` matches anything, and case is ignored. An address pattern
//! may be a domain alone (`@example.org`). Invalid patterns are refused when they are read, and so
//! is an empty text, which would match everything or the wrong thing.

use std::fmt;
use std::str::FromStr;

use mail::Address;

/// A text in which `*` matches any characters, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Glob(Box<str>);

impl Glob {
    /// Whether the pattern matches the whole text.
    fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let Some((start, rest)) = self.0.split_once('*') else { return *self.0 == *text };
        let Some(mut text) = text.strip_prefix(start) else { return false };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost match is as good as any: it leaves the most text for the rest.
        for piece in middle.split('*') {
            let Some(at) = text.find(piece) else { return false };
            text = &text[at + piece.len()..];
        }
        text.ends_with(end)
    }
}

impl From<&str> for Glob {
    fn from(text: &str) -> Self {
        Glob(text.to_lowercase().into())
    }
}

/// The text is not a valid pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct NotAPattern(&'static str);

/// A pattern for destination names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    text: Box<str>,
    glob: Glob,
}

impl NamePattern {
    /// Whether it matches a destination: its name, or the domain of a name `host!domain`.
    pub fn matches(&self, destination: &str) -> bool {
        self.glob.matches(destination) || self.glob.matches(domain_of(destination))
    }
}

impl FromStr for NamePattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        match text {
            "" => Err(NotAPattern("a name: example.org, *.example.org")),
            text => Ok(NamePattern { text: text.into(), glob: text.into() }),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The domain of a destination, which may be `host!domain`.
pub(super) fn domain_of(destination: &str) -> &str {
    destination.rsplit_once('!').map_or(destination, |(_, domain)| domain)
}

/// A pattern for addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressPattern {
    text: Box<str>,
    meant: Meant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Meant {
    /// The null sender, `<>`.
    Null,
    /// Both parts; None matches any local part.
    Parts { local: Option<Glob>, domain: Glob },
    /// Without `@`: matches the address as a whole.
    Whole(Glob),
}

impl AddressPattern {
    /// Whether it matches an address; None is the null sender.
    pub fn matches(&self, address: Option<&Address>) -> bool {
        match (&self.meant, address) {
            (Meant::Null, address) => address.is_none(),
            (_, None) => false,
            (Meant::Parts { local, domain }, Some(address)) => {
                domain.matches(address.domain()) && local.as_ref().is_none_or(|local| local.matches(address.local()))
            }
            (Meant::Whole(glob), Some(address)) => glob.matches(address.as_str()),
        }
    }

    /// Whether it can match an address of this domain.
    pub fn reaches(&self, name: &str) -> bool {
        match &self.meant {
            Meant::Null => false,
            Meant::Parts { domain, .. } => domain.matches(name),
            Meant::Whole(_) => true,
        }
    }

    /// Whether it matches every address of the domains that it can match.
    pub fn is_domain(&self) -> bool {
        matches!(self.meant, Meant::Parts { local: None, .. })
    }
}

impl FromStr for AddressPattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        if text == "<>" {
            return Ok(AddressPattern { text: text.into(), meant: Meant::Null });
        }
        let bare = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text);
        let meant = match bare.rsplit_once('@') {
            None if bare.contains('*') => Meant::Whole(bare.into()),
            Some((local, domain)) if !domain.is_empty() => {
                Meant::Parts { local: (!local.is_empty()).then(|| local.into()), domain: domain.into() }
            }
            _ => return Err(NotAPattern("an address, a domain or a pattern: bob@example.org, @example.org, bob*, <>")),
        };
        Ok(AddressPattern { text: text.into(), meant })
    }
}

impl fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text to search for in other texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    text: Box<str>,
    /// The text in lower case.
    small: Box<str>,
}

impl Part {
    /// Whether `whole` contains it.
    pub fn is_in(&self, whole: &str) -> bool {
        whole.to_lowercase().contains(&*self.small)
    }
}

impl FromStr for Part {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        match text.trim() {
            "" => Err(NotAPattern("a text that is not empty: greylisted")),
            _ => Ok(Part { text: text.into(), small: text.to_lowercase().into() }),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asterisk_stands_for_anything() {
        for (pattern, text, meant) in [
            ("bob", "Bob", true),
            ("bob", "bobby", false),
            ("bob*", "bob", true),
            ("*", "", true),
            ("*ob*", "knobs", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("a*ba", "aba", true),
            ("ab*ba", "aba", false),
            ("*ab*ab", "ab", false),
            ("*a*a*", "aa", true),
            ("É*", "éa", true),
        ] {
            assert_eq!(Glob::from(pattern).matches(text), meant, "{pattern} {text}");
        }
    }

    #[test]
    fn an_address_is_meant_by_its_domain_by_itself_or_by_a_part() {
        let bob = "Bob@example.org".parse().unwrap();
        let quoted = "\"a@b\"@example.org".parse().unwrap();
        for (pattern, address, meant) in [
            ("bob@example.org", Some(&bob), true),
            ("<bob@Example.org>", Some(&bob), true),
            ("@example.org", Some(&bob), true),
            ("@*.org", Some(&bob), true),
            ("@example", Some(&bob), false),
            ("b*@example.org", Some(&bob), true),
            ("*ample*", Some(&bob), true),
            ("*@b*", Some(&quoted), false),
            ("\"a@b\"@example.org", Some(&quoted), true),
            ("<>", None, true),
            ("<>", Some(&bob), false),
            ("*", None, false),
        ] {
            let read: AddressPattern = pattern.parse().unwrap();
            assert_eq!(read.matches(address), meant, "{pattern}");
            assert_eq!(read.to_string(), pattern);
        }
        for text in ["", "bob", "bob@", "@", "<bob>"] {
            assert!(text.parse::<AddressPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_destination_is_meant_by_its_domain_too() {
        for (pattern, meant) in [("mx1!example.org", true), ("example.org", true), ("mx1*", true), ("mx1", false)] {
            assert_eq!(pattern.parse::<NamePattern>().unwrap().matches("mx1!example.org"), meant, "{pattern}");
        }
        assert!("".parse::<NamePattern>().is_err());
    }

    #[test]
    fn a_part_is_looked_for_without_regard_to_case_and_is_never_empty() {
        let part: Part = " Grey".parse().unwrap();
        assert!(part.is_in("450 4.7.1 greylisted") && !part.is_in("greylisted"));
        assert_eq!(part.to_string(), " Grey");
        assert!(["", " "].iter().all(|text| text.parse::<Part>().is_err()));
    }
}
