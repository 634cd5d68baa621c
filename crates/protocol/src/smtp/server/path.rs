//! Paths in angle brackets (RFC 5321 section 4.1.2). A source route before the address is read and forgotten, as
//! section 3.6.1 and appendix C want.

use mail::{Address, AddressError};

/// What stands between the brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// `<>`.
    Null,
    /// `<postmaster>` without a domain, in any case of letters.
    Postmaster,
    /// An address.
    Address(Address),
}

/// Why a path is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathError {
    /// No angle brackets around it, or no space after it.
    Brackets,
    /// What is in them is no address.
    Address(AddressError),
}

impl Path {
    /// Reads the path that `text` begins with; gives what follows it too.
    pub(super) fn parse(text: &str) -> Result<(Path, &str), PathError> {
        let inner = text.strip_prefix('<').ok_or(PathError::Brackets)?;
        let end = closing_bracket(inner).ok_or(PathError::Brackets)?;
        let (inner, rest) = (&inner[..end], &inner[end + 1..]);
        if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
            return Err(PathError::Brackets);
        }
        Ok((Path::of(inner).map_err(PathError::Address)?, rest))
    }

    fn of(inner: &str) -> Result<Path, AddressError> {
        if inner.is_empty() {
            return Ok(Path::Null);
        }
        if inner.eq_ignore_ascii_case("postmaster") {
            return Ok(Path::Postmaster);
        }
        without_route(inner).ok_or(AddressError::Domain)?.parse().map(Path::Address)
    }
}

/// `@one,@two:user@domain` is `user@domain`. None where the route is no route.
fn without_route(inner: &str) -> Option<&str> {
    if !inner.starts_with('@') {
        return Some(inner);
    }
    let (route, address) = inner.split_once(':')?;
    let is_hop = |hop: &str| hop.strip_prefix('@').is_some_and(|domain| Address::new("x", domain).is_ok());
    route.split(',').all(is_hop).then_some(address)
}

/// The place of the first `>` that is not inside a quoted local part.
fn closing_bracket(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        if escaped {
            escaped = false;
        } else if byte == b'"' {
            quoted = !quoted;
        } else {
            escaped = quoted && byte == b'\\';
        }
        byte == b'>' && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_up_to_its_bracket() {
        for (text, address, rest) in [
            ("<bob@Example.org>", "bob@example.org", ""),
            ("<bob@example.org> SIZE=1", "bob@example.org", " SIZE=1"),
            ("<\"b> \\\"<b\"@example.org> X", "\"b> \\\"<b\"@example.org", " X"),
            ("<@a.example,@b.example:bob@example.org>", "bob@example.org", ""),
        ] {
            let expected = Path::Address(address.parse().unwrap());
            assert_eq!(Path::parse(text), Ok((expected, rest)), "{text}");
        }
        assert_eq!(Path::parse("<>"), Ok((Path::Null, "")));
        assert_eq!(Path::parse("<PostMaster> "), Ok((Path::Postmaster, " ")));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        use PathError::*;
        for (text, error) in [
            ("", Brackets),
            ("bob@example.org", Brackets),
            ("<bob@example.org", Brackets),
            ("<bob@example.org>SIZE=1", Brackets),
            ("<\"bob@example.org>", Brackets),
            ("<bob>", Address(AddressError::NoDomain)),
            ("<@a.example>", Address(AddressError::Domain)),
            ("<@a b:bob@example.org>", Address(AddressError::Domain)),
            ("<< >", Address(AddressError::NoDomain)),
        ] {
            assert_eq!(Path::parse(text), Err(error), "{text}");
        }
    }
}
