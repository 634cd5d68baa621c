//! Who wrote a message: the address in its From field (RFC 5322 section 3.6.2), read strictly. What
//! another reader could take for a second author is never a single one.

use filter::header;
use mail::Address;

/// What the From fields of a header say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Author {
    /// One field with one mailbox.
    One(Address),
    /// No From field.
    Missing,
    /// Several fields, a list, a group, or what cannot be read.
    Unclear,
}

/// Finds the author in a header, which has CRLF line ends.
pub fn find_author(header: &[u8]) -> Author {
    let mut values = header::fields(header).filter_map(|field| header::value_of(field, "From"));
    match (values.next(), values.next()) {
        (None, _) => Author::Missing,
        (Some(value), None) => parse_mailbox(value).map_or(Author::Unclear, Author::One),
        (Some(_), Some(_)) => Author::Unclear,
    }
}

/// The address of a field's value that is exactly one mailbox (RFC 5322 section 3.4). Comments and
/// quoted text can hold anything; encoded words are no address.
fn parse_mailbox(value: &[u8]) -> Option<Address> {
    let value = std::str::from_utf8(value).ok()?;
    let Mailbox { outside, angle } = split_mailbox(value)?;
    match angle {
        Some(inside) => inside.trim_matches(is_folding_space).parse().ok(),
        None => outside.trim_matches(is_folding_space).parse().ok(),
    }
}

fn is_folding_space(octet: char) -> bool {
    matches!(octet, ' ' | '\t' | '\r' | '\n')
}

/// A mailbox without its comments.
#[derive(Default)]
struct Mailbox {
    /// What is not within angle brackets.
    outside: String,
    /// What is within them.
    angle: Option<String>,
}

impl Mailbox {
    fn part(&mut self, in_angle: bool) -> &mut String {
        match &mut self.angle {
            Some(inside) if in_angle => inside,
            _ => &mut self.outside,
        }
    }
}

/// None: a list, a group, or unbalanced.
fn split_mailbox(value: &str) -> Option<Mailbox> {
    let (mut mailbox, mut in_angle, mut chars) = (Mailbox::default(), false, value.chars());
    while let Some(next) = chars.next() {
        match next {
            '(' => skip_comment(&mut chars)?,
            '"' => copy_quoted(&mut chars, mailbox.part(in_angle))?,
            '<' if mailbox.angle.is_none() => {
                mailbox.angle = Some(String::new());
                in_angle = true;
            }
            '>' if in_angle => return is_blank(chars.as_str()).then_some(mailbox),
            '<' | '>' | ')' | ',' | ';' | ':' | '\\' | '\0' => return None,
            other => mailbox.part(in_angle).push(other),
        }
    }
    (!in_angle).then_some(mailbox)
}

/// Whether there are only comments and white space.
fn is_blank(text: &str) -> bool {
    let mut chars = text.chars();
    while let Some(next) = chars.next() {
        match next {
            '(' if skip_comment(&mut chars).is_some() => {}
            next if is_folding_space(next) => {}
            _ => return false,
        }
    }
    true
}

/// After an opening parenthesis; comments nest (RFC 5322 section 3.2.2).
fn skip_comment(chars: &mut std::str::Chars<'_>) -> Option<()> {
    let mut depth = 1usize;
    while depth > 0 {
        match chars.next()? {
            '\\' => drop(chars.next()?),
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    Some(())
}

/// After an opening quote: copies the string with its quotes (RFC 5322 section 3.2.4).
fn copy_quoted(chars: &mut std::str::Chars<'_>, target: &mut String) -> Option<()> {
    target.push('"');
    loop {
        let next = chars.next()?;
        target.push(next);
        match next {
            '"' => return Some(()),
            '\\' => target.push(chars.next()?),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(header: &str) -> Author {
        find_author(header.as_bytes())
    }

    #[test]
    fn one_mailbox_is_the_author() {
        for value in [
            "bob@example.org",
            " <bob@example.org>",
            " Bob <bob@Example.ORG>",
            " \"Bob, (or <not>): \\\"x\\\"\" <bob@example.org>",
            " Bob\r\n\t<bob@example.org>\r\n ",
            " (a (nested) comment, with \\) ) bob@example.org (more)",
            " =?utf-8?q?a=40b=2Eexample?= <bob@example.org> (x)",
            " Gr\u{fc}n <bob@example.org>",
            " < bob@example.org >",
        ] {
            let found = author(&format!("Subject: x\r\nFrom:{value}\r\nTo: y\r\n"));
            assert_eq!(found, Author::One("bob@example.org".parse().unwrap()), "{value:?}");
        }
        let quoted = author("from : <\"b ob\"@example.org>\r\n");
        assert_eq!(quoted, Author::One("\"b ob\"@example.org".parse().unwrap()));
    }

    #[test]
    fn what_could_be_read_as_another_author_is_unclear() {
        for value in [
            "",
            " bob",
            " bob@example.org, eve@example.net",
            " <bob@example.org>, <eve@example.net>",
            " <bob@example.org> <eve@example.net>",
            " <bob@example.org> eve@example.net",
            " group: bob@example.org;",
            " <@eve.example:bob@example.org>",
            " bob@example.org eve@example.net",
            " bob@example.org <>",
            " <>",
            " <bob@example.org",
            " bob@example.org>",
            " \"bob <bob@example.org>",
            " (bob@example.org",
            " bob@example.org)",
            " bob@exa mple.org",
            " =?utf-8?q?bob=40example=2Eorg?=",
            " bob@=?utf-8?q?example.org?=",
            " bob\\@example.org",
            " bob@example.org\0",
        ] {
            assert_eq!(author(&format!("From:{value}\r\n")), Author::Unclear, "{value:?}");
        }
        assert_eq!(find_author(b"From: bob@ex\xe4mple.org\r\n"), Author::Unclear);
        assert_eq!(author("From: bob@example.org\r\nFROM : bob@example.org\r\n"), Author::Unclear);
    }

    #[test]
    fn a_header_may_have_no_author() {
        assert_eq!(author(""), Author::Missing);
        assert_eq!(author("Subject: x\r\n From: folded@example.org\r\nFromage: y\r\n"), Author::Missing);
    }
}
