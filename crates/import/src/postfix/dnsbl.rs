//! Parses DNS lists as Postfix writes them: `zen.spamhaus.org=127.0.0.[2..11]*3`. Each part of an
//! answer is a number, or numbers and ranges in brackets; here answers are addresses and networks.

use std::net::Ipv4Addr;

use mail::Address;

use super::config_draft::{quoted, quoted_list};

/// Answers of one list; more are not translated.
const ANSWERS_MAX: usize = 65_536;
/// Networks that represent them.
const CODES_MAX: usize = 1024;

/// A list and its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PostfixDnsbl {
    pub(super) name: String,
    /// None: all answers.
    pub(super) codes: Vec<String>,
    /// The weight of an answer.
    pub(super) weight: i64,
}

impl PostfixDnsbl {
    /// Parses a list; None if it cannot be translated.
    pub(super) fn parse(text: &str) -> Option<PostfixDnsbl> {
        let (text, weight) = match text.rsplit_once('*') {
            Some((text, weight)) => (text, weight.trim().parse().ok()?),
            None => (text, 1),
        };
        let (name, answers) = match text.split_once('=') {
            Some((name, answers)) => (name, Some(answers)),
            None => (text, None),
        };
        let name = name.trim().trim_end_matches('.');
        let is_name = name.contains('.') && name.parse::<Ipv4Addr>().is_err();
        is_name.then(|| Address::new("postmaster", name).ok()).flatten()?;
        let codes = answers.map_or(Some(Vec::new()), codes)?;
        Some(PostfixDnsbl { name: name.to_owned(), codes, weight })
    }

    /// The list with all its answers, for one whose answers cannot be translated.
    pub(super) fn with_all_answers(text: &str) -> Option<PostfixDnsbl> {
        let weight = text.rsplit_once('*').map_or("", |(_, weight)| weight);
        let name = text.split(['=', '*']).next()?;
        PostfixDnsbl::parse(&if weight.is_empty() { name.to_owned() } else { format!("{name}*{weight}") })
    }

    /// An element of `lists` of `dnsbl_score`.
    pub(super) fn weighed_value(&self) -> String {
        format!("{{ {}, weight = {} }}", self.keys(), self.weight)
    }

    /// The value of `dnsbl` in a rule.
    pub(super) fn value(&self) -> String {
        format!("{{ {} }}", self.keys())
    }

    /// The value of `rhsbl` in a rule that looks up this name.
    pub(super) fn value_for(&self, subject: &str) -> String {
        format!("{{ {}, of = [{}] }}", self.keys(), quoted(subject))
    }

    fn keys(&self) -> String {
        match self.codes.as_slice() {
            [] => format!("zone = {}", quoted(&self.name)),
            codes => {
                let codes = quoted_list(codes.iter().map(String::as_str));
                format!("zone = {}, codes = {codes}", quoted(&self.name))
            }
        }
    }
}

/// The answers as addresses and networks, all in 127.0.0.0/8.
fn codes(text: &str) -> Option<Vec<String>> {
    let mut numbers: Vec<u32> = vec![0];
    for part in parts(text)? {
        if numbers.len() * part.len() > ANSWERS_MAX {
            return None;
        }
        numbers = numbers.iter().flat_map(|head| part.iter().map(move |octet| head << 8 | u32::from(*octet))).collect();
    }
    numbers.sort_unstable();
    numbers.dedup();
    let codes = blocks(&numbers);
    let is_code = numbers.iter().all(|number| number >> 24 == 127);
    (is_code && !codes.is_empty() && codes.len() <= CODES_MAX).then_some(codes)
}

/// The four parts of an answer, each with its possible values.
fn parts(text: &str) -> Option<Vec<Vec<u8>>> {
    let (mut parts, mut rest) = (Vec::new(), text.trim());
    while parts.len() < 4 {
        let (part, behind) = match rest.strip_prefix('[') {
            Some(inside) => inside.split_once(']')?,
            None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
        };
        parts.push(octets(part)?);
        rest = match behind.strip_prefix('.') {
            Some(rest) if parts.len() < 4 => rest,
            None if behind.is_empty() && parts.len() == 4 => "",
            _ => return None,
        };
    }
    Some(parts)
}

fn octets(text: &str) -> Option<Vec<u8>> {
    let range = |text: &str| -> Option<std::ops::RangeInclusive<u8>> {
        match text.split_once("..") {
            Some((first, last)) => Some(first.trim().parse().ok()?..=last.trim().parse().ok()?),
            None => text.trim().parse().ok().map(|octet| octet..=octet),
        }
    };
    let ranges: Option<Vec<_>> = text.split(';').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

/// The smallest set of networks with exactly these numbers.
fn blocks(numbers: &[u32]) -> Vec<String> {
    let (mut blocks, mut rest) = (Vec::new(), numbers);
    while let Some(first) = rest.first() {
        let run =
            rest.iter().zip(0..).take_while(|(number, place)| first.checked_add(*place) == Some(**number)).count();
        let fits = |bits: &u32| first.trailing_zeros() >= *bits && run >> bits > 0;
        let bits = (0..32).take_while(fits).last().unwrap_or(0);
        let base = Ipv4Addr::from_bits(*first);
        blocks.push(if bits == 0 { base.to_string() } else { format!("{base}/{}", 32 - bits) });
        rest = &rest[1 << bits..];
    }
    blocks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_become_networks() {
        for (text, expected) in [
            ("zen.spamhaus.org", Some("{ zone = \"zen.spamhaus.org\" }")),
            (
                "zen.spamhaus.org=127.0.0.[2..11]*3",
                Some("{ zone = \"zen.spamhaus.org\", codes = [\"127.0.0.2/31\", \"127.0.0.4/30\", \"127.0.0.8/30\"] }"),
            ),
            ("a.example=127.0.0.[2;4..5]", Some("{ zone = \"a.example\", codes = [\"127.0.0.2\", \"127.0.0.4/31\"] }")),
            ("a.example=127.[0..15].[0..255].1", None),
            ("a.example=127.0.[0..255].[0..255]", Some("{ zone = \"a.example\", codes = [\"127.0.0.0/16\"] }")),
            ("a.example=192.0.2.1", None),
            ("a.example=127.0.0", None),
            ("a.example=127.0.0.[11..2]", None),
            ("a b.example", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(PostfixDnsbl::parse(text).map(|zone| zone.value()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_list_counts_with_all_answers_if_they_cannot_be_translated() {
        let list = PostfixDnsbl::with_all_answers("a.example=192.0.2.1*-2").unwrap();
        assert_eq!(list.weighed_value(), "{ zone = \"a.example\", weight = -2 }");
        assert_eq!(PostfixDnsbl::with_all_answers("a.example=127.0.0").unwrap().weight, 1);
        assert_eq!(PostfixDnsbl::with_all_answers("a b*3"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[a.=127\\[\\];*-]{0,30}|(?s).{0,30}") {
            PostfixDnsbl::parse(&text);
        }
    }
}
