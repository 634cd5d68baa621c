//! The names of clusters and nodes. They are parts of the names of streams and subjects.

use std::fmt;
use std::str::FromStr;

/// The maximum length of a name.
const NAME_BYTES_MAX: usize = 32;

/// The text is not a name of a cluster or a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a name: use 1 to {NAME_BYTES_MAX} characters of a to z, 0 to 9 and '-'")]
pub struct InvalidName(String);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                if is_name(text) { Ok($name(text.into())) } else { Err(InvalidName(text.to_owned())) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// The name of a cluster: 1 to 32 characters of `a-z`, `0-9` and `-`.
    ClusterName
);
name!(
    /// The name of a node, unique in its cluster: 1 to 32 characters of `a-z`, `0-9` and `-`.
    NodeName
);

fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_only_characters_that_subjects_and_streams_can_have() {
        for (text, is_valid) in [
            ("mx-1", true),
            (&"a".repeat(NAME_BYTES_MAX), true),
            ("", false),
            (&"a".repeat(NAME_BYTES_MAX + 1), false),
            ("MX", false),
            ("a.b", false),
            ("a*", false),
            ("a b", false),
        ] {
            assert_eq!(text.parse::<NodeName>().is_ok(), is_valid, "{text}");
        }
    }
}
