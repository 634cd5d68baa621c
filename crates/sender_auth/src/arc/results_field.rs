//! What a sealer says it found: its ARC-Authentication-Results (RFC 8617 section 4.1.1).

use crate::cfws::{Word, WordKind, words};

/// Whether a field says that DMARC passed for this domain. One that names no domain says nothing about
/// the author of the message as it is now.
pub(crate) fn says_dmarc_passed(value: &[u8], author_domain: &str) -> bool {
    let Some(words) = words(value) else { return false };
    let mut results = words.split(|word| word.kind == WordKind::Special(b';'));
    results.any(|result| is_dmarc_pass(result, author_domain))
}

fn is_dmarc_pass(result: &[Word], author_domain: &str) -> bool {
    let text = text_of(result).to_ascii_lowercase();
    let mut parts = text.split(' ').filter(|part| !part.is_empty());
    if parts.next() != Some("dmarc=pass") {
        return false;
    }
    let domains = parts.filter_map(|part| part.strip_prefix("header.from="));
    let mut is_author = domains.map(|domain| domain.rsplit('@').next() == Some(author_domain)).peekable();
    is_author.peek().is_some() && is_author.all(|is_author| is_author)
}

/// The words, with one space where there was any, but none around `=`.
fn text_of(result: &[Word]) -> String {
    let mut text = String::new();
    for word in result {
        let octets: &[u8] = match &word.kind {
            WordKind::Atom(octets) | WordKind::Quoted(octets) => octets,
            WordKind::Special(octet) => std::slice::from_ref(octet),
        };
        if word.is_spaced && !text.ends_with('=') && !octets.starts_with(b"=") {
            text.push(' ');
        }
        text.push_str(&String::from_utf8_lossy(octets));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pass_for_the_author_counts() {
        for (value, expected) in [
            ("i=1; mx.example; spf=pass; dmarc=pass header.from=a.example", true),
            ("i=1; mx.example; DMARC = pass (p=none)\r\n header.from=A.example", true),
            ("i=1; mx.example; dmarc=pass", false),
            ("i=1; mx.example; dmarc=pass (header.from=a.example)", false),
            ("i=1; mx.example; dmarc=pass; spf=pass header.from=a.example", false),
            ("i=1; mx.example; dmarc=pass header.from=a.example header.from=b.example", false),
            ("i=1; mx.example; dmarc=pass header.from=ann@a.example", true),
            ("i=1; mx.example; dmarc=pass header.from=b.example", false),
            ("i=1; mx.example; dmarc=fail header.from=a.example", false),
            ("i=1; mx.example; dmarc=passing", false),
            ("i=1; mx.example; (; dmarc=pass) dmarc=none", false),
            ("i=1; mx.example; reason=\"; dmarc=pass\" spf=pass", false),
            ("i=1; mx.example; xdmarc=pass", false),
            ("i=1; mx.example; (dmarc=pass", false),
        ] {
            assert_eq!(says_dmarc_passed(value.as_bytes(), "a.example"), expected, "{value}");
        }
    }
}
