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
        let mut pattern = text.to_lowercase();
        // One means as much as several, and costs less.
        let mut before = None;
        pattern.retain(|character| before.replace(character) != Some('*') || character != '*');
        Glob(pattern.into())
    }
}

/// The text is not a valid pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct InvalidPattern(&'static str);

/// A pattern for destination names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationPattern {
    text: Box<str>,
    glob: Glob,
}

impl DestinationPattern {
    /// Whether it matches a destination: its name, or the domain of a name `host!domain`.
    pub fn matches(&self, destination: &str) -> bool {
        self.glob.matches(destination) || self.glob.matches(domain_of(destination))
    }
}

impl FromStr for DestinationPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        match text {
            "" => Err(InvalidPattern("a name: example.org, *.example.org")),
            text => Ok(DestinationPattern { text: text.into(), glob: text.into() }),
        }
    }
}

impl fmt::Display for DestinationPattern {
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
    matcher: AddressMatcher,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressMatcher {
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
        match (&self.matcher, address) {
            (AddressMatcher::Null, address) => address.is_none(),
            (_, None) => false,
            (AddressMatcher::Parts { local, domain }, Some(address)) => {
                domain.matches(address.domain())
                    && local.as_ref().is_none_or(|local| local.matches(address.local_part()))
            }
            (AddressMatcher::Whole(glob), Some(address)) => glob.matches(address.as_str()),
        }
    }

    /// Whether it can match an address of this domain.
    pub fn can_match_domain(&self, name: &str) -> bool {
        match &self.matcher {
            AddressMatcher::Null => false,
            AddressMatcher::Parts { domain, .. } => domain.matches(name),
            AddressMatcher::Whole(_) => true,
        }
    }

    /// Whether it matches every address of the domains that it can match.
    pub fn matches_whole_domain(&self) -> bool {
        matches!(self.matcher, AddressMatcher::Parts { local: None, .. })
    }
}

impl FromStr for AddressPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        if text == "<>" {
            return Ok(AddressPattern { text: text.into(), matcher: AddressMatcher::Null });
        }
        let bare = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text);
        let matcher = match bare.rsplit_once('@') {
            None if bare.contains('*') => AddressMatcher::Whole(bare.into()),
            Some((local, domain)) if !domain.is_empty() => {
                AddressMatcher::Parts { local: (!local.is_empty()).then(|| local.into()), domain: domain.into() }
            }
            _ => {
                return Err(InvalidPattern(
                    "an address, a domain or a pattern: bob@example.org, @example.org, bob*, <>",
                ));
            }
        };
        Ok(AddressPattern { text: text.into(), matcher })
    }
}

impl fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text to search for in other texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubstringPattern {
    text: Box<str>,
    /// The text in lower case.
    lowercase: Box<str>,
}

impl SubstringPattern {
    /// Whether `whole` contains it.
    pub fn matches(&self, whole: &str) -> bool {
        whole.to_lowercase().contains(&*self.lowercase)
    }
}

impl FromStr for SubstringPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        match text.trim() {
            "" => Err(InvalidPattern("a text that is not empty: greylisted")),
            _ => Ok(SubstringPattern { text: text.into(), lowercase: text.to_lowercase().into() }),
        }
    }
}

impl fmt::Display for SubstringPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asterisk_matches_anything() {
        for (pattern, text, matcher) in [
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
            assert_eq!(Glob::from(pattern).matches(text), matcher, "{pattern} {text}");
        }
    }

    /// A request could have thousands of them, and each text would cost as many steps.
    #[test]
    fn asterisks_in_a_row_are_one() {
        for (pattern, text, matcher) in [("a****b", "acb", true), ("****", "", true), ("**b", "a", false)] {
            let glob = Glob::from(pattern);
            assert!(!glob.0.contains("**"), "{pattern}");
            assert_eq!(glob.matches(text), matcher, "{pattern} {text}");
        }
    }

    #[test]
    fn addresses_match_whole_by_domain_or_by_part() {
        let bob = "Bob@example.org".parse().unwrap();
        let quoted = "\"a@b\"@example.org".parse().unwrap();
        for (pattern, address, matcher) in [
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
            assert_eq!(read.matches(address), matcher, "{pattern}");
            assert_eq!(read.to_string(), pattern);
        }
        for text in ["", "bob", "bob@", "@", "<bob>"] {
            assert!(text.parse::<AddressPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_destination_matches_by_domain_too() {
        for (pattern, matcher) in [("mx1!example.org", true), ("example.org", true), ("mx1*", true), ("mx1", false)] {
            assert_eq!(pattern.parse::<DestinationPattern>().unwrap().matches("mx1!example.org"), matcher, "{pattern}");
        }
        assert!("".parse::<DestinationPattern>().is_err());
    }

    #[test]
    fn text_patterns_ignore_case_and_are_not_empty() {
        let part: SubstringPattern = " Grey".parse().unwrap();
        assert!(part.matches("450 4.7.1 greylisted") && !part.matches("greylisted"));
        assert_eq!(part.to_string(), " Grey");
        assert!(["", " "].iter().all(|text| text.parse::<SubstringPattern>().is_err()));
    }
}
