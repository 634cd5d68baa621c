//! Paths in angle brackets (RFC 5321 section 4.1.2). A source route before the address is parsed
//! and ignored, as section 3.6.1 and appendix C require. Unless the grammar is strict, the brackets
//! may be missing, the domain may end in a dot, and trusted clients may omit the domain.

use mail::{Address, AddressError};

/// The content of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SmtpPath {
    /// `<>`.
    Null,
    /// `<postmaster>` without a domain, in any case.
    Postmaster,
    /// An address.
    Address(Address),
}

/// How clients may write paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathGrammar<'a> {
    /// Only as in RFC 5321.
    pub(super) strict: bool,
    /// The domain to append to an address without one; None if it is required.
    pub(super) origin: Option<&'a str>,
}

/// Why a path is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathError {
    /// No angle brackets around it, or no space after it.
    Brackets,
    /// The content is not a valid address.
    Address(AddressError),
}

impl SmtpPath {
    /// Parses the path at the start of `text`; returns it with the rest of the text.
    pub(super) fn parse<'t>(text: &'t str, grammar: PathGrammar<'_>) -> Result<(SmtpPath, &'t str), PathError> {
        let Some(inner) = text.strip_prefix('<') else { return SmtpPath::parse_bare(text, grammar) };
        let end = closing_bracket(inner).ok_or(PathError::Brackets)?;
        let (inner, rest) = (&inner[..end], &inner[end + 1..]);
        if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
            return Err(PathError::Brackets);
        }
        Ok((SmtpPath::parse_inner(inner, grammar).map_err(PathError::Address)?, rest))
    }

    /// Parses a path without brackets: up to the first white space. An empty text is not a null
    /// path, and a parameter, as in `MAIL FROM: SIZE=1000`, is not an address without a domain.
    fn parse_bare<'t>(text: &'t str, grammar: PathGrammar<'_>) -> Result<(SmtpPath, &'t str), PathError> {
        let end = text.find([' ', '\t']).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let is_parameter = word.contains('=') && !word.contains('@');
        match SmtpPath::parse_inner(word, grammar) {
            Ok(path) if !grammar.strict && !word.is_empty() && !is_parameter => Ok((path, rest)),
            _ => Err(PathError::Brackets),
        }
    }

    fn parse_inner(inner: &str, grammar: PathGrammar<'_>) -> Result<SmtpPath, AddressError> {
        if inner.is_empty() {
            return Ok(SmtpPath::Null);
        }
        if inner.eq_ignore_ascii_case("postmaster") {
            return Ok(SmtpPath::Postmaster);
        }
        let address = without_route(inner).ok_or(AddressError::Domain)?;
        match grammar.strict {
            true => address.parse(),
            false => Address::parse_lenient(address, grammar.origin),
        }
        .map(SmtpPath::Address)
    }
}

/// Converts `@one,@two:user@domain` to `user@domain`. None if the route is invalid.
fn without_route(inner: &str) -> Option<&str> {
    if !inner.starts_with('@') {
        return Some(inner);
    }
    let (route, address) = inner.split_once(':')?;
    let is_hop = |hop: &str| hop.strip_prefix('@').is_some_and(|domain| Address::new("x", domain).is_ok());
    route.split(',').all(is_hop).then_some(address)
}

/// The index of the first `>` outside a quoted local part.
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

    const STRICT: PathGrammar<'_> = PathGrammar { strict: true, origin: None };
    const LENIENT: PathGrammar<'_> = PathGrammar { strict: false, origin: None };
    const OURS: PathGrammar<'_> = PathGrammar { strict: false, origin: Some("here.example") };

    #[test]
    fn a_path_is_read_up_to_its_bracket() {
        for (text, address, rest) in [
            ("<bob@Example.org>", "bob@example.org", ""),
            ("<bob@example.org> SIZE=1", "bob@example.org", " SIZE=1"),
            ("<\"b> \\\"<b\"@example.org> X", "\"b> \\\"<b\"@example.org", " X"),
            ("<@a.example,@b.example:bob@example.org>", "bob@example.org", ""),
        ] {
            let expected = SmtpPath::Address(address.parse().unwrap());
            assert_eq!(SmtpPath::parse(text, STRICT), Ok((expected, rest)), "{text}");
        }
        assert_eq!(SmtpPath::parse("<>", STRICT), Ok((SmtpPath::Null, "")));
        assert_eq!(SmtpPath::parse("<PostMaster> ", STRICT), Ok((SmtpPath::Postmaster, " ")));
    }

    #[test]
    fn invalid_paths_are_refused() {
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
            assert_eq!(SmtpPath::parse(text, STRICT), Err(error), "{text}");
        }
    }

    #[test]
    fn a_lenient_grammar_accepts_common_client_mistakes() {
        let path = |address: &str| SmtpPath::Address(address.parse().unwrap());
        for (text, address, rest) in [
            ("bob@example.org", "bob@example.org", ""),
            ("bob@example.org SIZE=1", "bob@example.org", " SIZE=1"),
            ("<bob@example.org.>", "bob@example.org", ""),
            ("bob@example.org.\tX", "bob@example.org", "\tX"),
        ] {
            assert_eq!(SmtpPath::parse(text, LENIENT), Ok((path(address), rest)), "{text}");
            assert_eq!(SmtpPath::parse(text, OURS), Ok((path(address), rest)), "{text}");
            assert!(SmtpPath::parse(text, STRICT).is_err(), "{text}");
        }
        for (text, address) in
            [("<joe>", "joe@here.example"), ("joe", "joe@here.example"), ("<\"a b\">", "\"a b\"@here.example")]
        {
            assert_eq!(SmtpPath::parse(text, OURS), Ok((path(address), "")), "{text}");
            assert!(SmtpPath::parse(text, LENIENT).is_err(), "{text}");
        }
        assert_eq!(SmtpPath::parse("postmaster", LENIENT), Ok((SmtpPath::Postmaster, "")));
        for text in
            ["", " ", "<bob", "bob>", "<bob@>", "bob@", "<bob@.>", "<bob@example.org..>", "<@x>", "b\"@example.org"]
        {
            assert!(SmtpPath::parse(text, OURS).is_err(), "{text}");
        }
        assert_eq!(SmtpPath::parse("SIZE=1000", OURS), Err(PathError::Brackets));
        assert_eq!(SmtpPath::parse("<a=b>", OURS), Ok((path("a=b@here.example"), "")));
        assert_eq!(SmtpPath::parse("a=b@example.org", OURS), Ok((path("a=b@example.org"), "")));
    }
}
