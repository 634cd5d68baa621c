//! The domain of the author: of the one address in the one From field (RFC 9989 section 4.3).
//!
//! Programs that show mail disagree about anything else, so nothing else is guessed at.

use mail::Address;

use crate::cfws::{Word, WordKind, words};
use crate::message_header::MessageHeader;

/// The domain in From, in lower case and with A-labels.
///
/// # Errors
///
/// The author cannot be told; the reason.
pub(crate) fn author_domain(header: &MessageHeader) -> Result<Box<str>, &'static str> {
    address_domain(author_field(header)?)
}

/// The address in From, its domain in lower case and with A-labels.
///
/// # Errors
///
/// The author cannot be told; the reason.
pub(crate) fn author_address(header: &MessageHeader) -> Result<Address, &'static str> {
    let (local, domain) = read_address(author_field(header)?)?;
    let local = std::str::from_utf8(&local).map_err(|_| "the local part in From is not UTF-8")?;
    Address::new(local, &domain).map_err(|_| "From is not an address that mail can have")
}

/// The value of the only From field.
fn author_field(header: &MessageHeader) -> Result<&[u8], &'static str> {
    let mut fields = header.fields().filter(|(_, field)| field.resembles(b"from"));
    let (_, field) = fields.next().ok_or("no From field")?;
    if fields.next().is_some() {
        return Err("more than one From field");
    }
    if !field.is_named(b"from") {
        return Err("the name of the From field is invalid");
    }
    Ok(field.value)
}

/// The domain of a list with a single mailbox.
pub(crate) fn address_domain(value: &[u8]) -> Result<Box<str>, &'static str> {
    read_address(value).map(|(_, domain)| domain)
}

/// The local part, without quotes, and the domain of a list with a single mailbox.
fn read_address(value: &[u8]) -> Result<(Vec<u8>, Box<str>), &'static str> {
    let words = words(value).ok_or("From cannot be read")?;
    let address = single_address(&words)?;
    let at = |word: &Word| word.kind == WordKind::Special(b'@');
    let mut parts = address.split(at);
    let (Some(local), Some(domain), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err("From is not one address");
    };
    // Within an address, white space and comments are obsolete, and shown in different ways.
    if address.iter().skip(1).any(|word| word.is_spaced) {
        return Err("white space within the address in From");
    }
    check_local_part(local)?;
    let mut text = Vec::new();
    for word in domain {
        match &word.kind {
            WordKind::Atom(atom) => text.extend_from_slice(atom),
            WordKind::Special(b'.') => text.push(b'.'),
            _ => return Err("the domain in From is not a name"),
        }
    }
    let text = std::str::from_utf8(&text).map_err(|_| "the domain in From is not UTF-8")?;
    if text.ends_with('.') {
        return Err("the domain in From is not a name");
    }
    let domain = dns::to_ascii(text).ok_or("the domain in From is not a name")?;
    Ok((unquoted(local), domain))
}

/// The octets of a local part that was checked.
fn unquoted(local: &[Word]) -> Vec<u8> {
    let octets = |word: &Word| match &word.kind {
        WordKind::Atom(text) | WordKind::Quoted(text) => text.clone(),
        WordKind::Special(octet) => vec![*octet],
    };
    local.iter().flat_map(octets).collect()
}

/// The words of the address: those in angle brackets, after a name, or all.
fn single_address(words: &[Word]) -> Result<&[Word], &'static str> {
    let special = |octet: u8| move |word: &Word| word.kind == WordKind::Special(octet);
    if words.iter().any(special(b',')) {
        return Err("more than one address in From");
    }
    if words.iter().any(|word| special(b':')(word) || special(b';')(word)) {
        return Err("a group or a route in From");
    }
    let Some(open) = words.iter().position(special(b'<')) else { return Ok(words) };
    let (name, rest) = words.split_at(open);
    let is_name = |word: &Word| !matches!(word.kind, WordKind::Special(octet) if octet != b'.');
    match rest {
        [_, address @ .., last] if special(b'>')(last) && name.iter().all(is_name) => Ok(address),
        _ => Err("From is not one address"),
    }
}

/// A quoted string, or atoms with dots between them. Encoded words have no meaning here, but some
/// programs decode them.
fn check_local_part(local: &[Word]) -> Result<(), &'static str> {
    const INVALID: Result<(), &str> = Err("the local part in From is invalid");
    if let [Word { kind: WordKind::Quoted(text), .. }] = local {
        return if contains(text, b"=?") { INVALID } else { Ok(()) };
    }
    let is_valid = |(place, word): (usize, &Word)| match &word.kind {
        WordKind::Atom(atom) => place % 2 == 0 && !contains(atom, b"=?"),
        WordKind::Special(b'.') => place % 2 == 1,
        _ => false,
    };
    if local.len() % 2 == 1 && local.iter().enumerate().all(is_valid) { Ok(()) } else { INVALID }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(text, part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(header: &str) -> Result<String, &'static str> {
        author_domain(&MessageHeader::parse(header.as_bytes().to_vec())).map(Into::into)
    }

    #[test]
    fn the_author_is_the_one_address_in_the_one_field() {
        for header in [
            "From: ann@Bank.Example\r\n",
            "FROM : <ann@bank.example>\r\n",
            "From: Ann Lee <ann@bank.example>\r\n",
            "From: \"x@evil.example, y\" <ann@bank.example>\r\n",
            "From: =?utf-8?q?x=40evil.example?= <ann@bank.example>\r\n",
            "From: A. Lee (x@evil.example)\r\n <ann@bank.example> (end)\r\n",
            "From: ann@bank.example (Ann <x@evil.example>)\r\n",
            "From: \"a b\"@bank.example\r\n",
            "From: J\u{f6}rg <a.b+c@bank.example>\r\nSender: x@evil.example\r\n",
        ] {
            assert_eq!(domain(header).as_deref(), Ok("bank.example"), "{header}");
        }
        assert_eq!(domain("From: a@b\u{fc}cher.example\r\n").as_deref(), Ok("xn--bcher-kva.example"));
    }

    #[test]
    fn the_author_has_an_address() {
        let address = |value: &str| author_address(&MessageHeader::parse(format!("From: {value}\r\n").into_bytes()));
        for (value, expected) in [
            ("Ann Lee <Ann.Lee@Bank.Example>", "Ann.Lee@bank.example"),
            ("\"a \\\"b\" @bank.example", ""),
            ("\"a b\"@bank.example (x)", "\"a b\"@bank.example"),
            ("j\u{f6}rg@b\u{fc}cher.example", "j\u{f6}rg@xn--bcher-kva.example"),
            ("ann@bank.example, eve@evil.example", ""),
        ] {
            assert_eq!(address(value).ok(), expected.parse().ok(), "{value}");
        }
    }

    /// Each of these is shown by some program as an address of the bank.
    #[test]
    fn an_author_that_cannot_be_told_is_an_error() {
        for header in [
            "",
            "Subject: x\r\n",
            "From:\r\n",
            "From: a@evil.example\r\nFrom: ann@bank.example\r\n",
            "From: a@evil.example\r\nfrom : ann@bank.example\r\n",
            "From: a@evil.example\r\nFr\0om: ann@bank.example\r\n",
            "Fr\0om: ann@bank.example\r\n",
            "From\r\n : ann@bank.example\r\nFrom: x@evil.example\r\n",
            "From\r\n : ann@bank.example\r\n",
            "From: a@evil.example, ann@bank.example\r\n",
            "From: ann@bank.example <a@evil.example>\r\n",
            "From: <ann@bank.example> <a@evil.example>\r\n",
            "From: <ann@bank.example> a@evil.example\r\n",
            "From: friends: ann@bank.example;\r\n",
            "From: <@evil.example:ann@bank.example>\r\n",
            "From: ann@bank.example@evil.example\r\n",
            "From: ann@bank\r\n .example\r\n",
            "From: ann@bank(x).example\r\n",
            "From: ann @bank.example\r\n",
            "From: ann@[192.0.2.1]\r\n",
            "From: ann@\r\n",
            "From: @bank.example\r\n",
            "From: ann\r\n",
            "From: ann@bank..example\r\n",
            "From: ann@bank.example.\r\n",
            "From: ann@\"bank.example\"\r\n",
            "From: ann@=?utf-8?q?bank?=.example\r\n",
            "From: =?utf-8?b?YW5uQGJhbmsuZXhhbXBsZQ==?=@evil.example\r\n",
            "From: \"=?utf-8?b?YW5u?=\"@evil.example\r\n",
            "From: ann@bank.example (open\r\n",
            "From: \"open <ann@bank.example>\r\n",
            "From: ann\0@bank.example\r\n",
            "From: <ann@bank.example\r\n",
            "From: ann@bank.example>\r\n",
        ] {
            assert!(domain(header).is_err(), "{header:?}: {:?}", domain(header));
        }
        let invalid = MessageHeader::parse(b"From: a@b\xff.example\r\n".to_vec());
        assert!(author_domain(&invalid).is_err());
    }
}
