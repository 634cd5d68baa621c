//! Where reports go: destinations as their owners write them, and whether a destination in another domain
//! has agreed. Only `mailto:` is supported; other addresses are left out.

use dns::{DnsAnswer, QueryType};
use mail::Address;

use crate::DnsLookup;
use crate::dkim::signature::is_or_is_below;
use crate::dmarc::record::DmarcRecord;
use crate::tag_list::is_white_space;

/// The most octets of a list that is read.
const LIST_OCTETS_MAX: usize = 2000;

/// A destination of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportDestination {
    /// The recipient.
    pub address: Address,
    /// It takes no larger message.
    pub octets_max: Option<u64>,
}

/// The DNS did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// The first destinations of a list such as `mailto:a@b.example!10m,mailto:c@d.example`, at most
/// `count_max`, each once.
pub fn parse_destinations(list: &str, count_max: usize) -> Vec<ReportDestination> {
    let mut found: Vec<ReportDestination> = Vec::new();
    let list = &list[..list.floor_char_boundary(LIST_OCTETS_MAX)];
    for destination in list.split(',').filter_map(parse_destination) {
        if found.len() < count_max && !found.iter().any(|known| known.address == destination.address) {
            found.push(destination);
        }
    }
    found
}

/// `mailto:address!size`. A comma or an exclamation mark in the address is written with `%`.
fn parse_destination(uri: &str) -> Option<ReportDestination> {
    let uri = uri.trim_matches(is_white_space);
    let (scheme, rest) = uri.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("mailto") {
        return None;
    }
    let (rest, octets_max) = match rest.rsplit_once('!') {
        Some((rest, size)) => (rest, Some(parse_size(size)?)),
        None => (rest, None),
    };
    let address = rest.split('?').next().unwrap_or_default();
    let address = percent_decoded(address)?;
    let (local, domain) = address.rsplit_once('@')?;
    let address = address.parse().or_else(|_| Address::new(local, domain)).ok()?;
    let address = Some(address).filter(Address::is_ascii)?;
    Some(ReportDestination { address, octets_max })
}

/// A number with a unit: `k`, `m`, `g` or `t`, in powers of 1024 (RFC 7489 section 6.4).
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        b't' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX).saturating_mul(1 << shift))
}

/// RFC 3986 section 2.1. None: it is not UTF-8, or an escape is incomplete.
fn percent_decoded(text: &str) -> Option<String> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&octet, tail)) = rest.split_first() {
        if octet != b'%' {
            octets.push(octet);
            rest = tail;
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        octets.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(octets).ok()
}

/// The destinations in the only TLS reporting record of a domain (RFC 8460 section 3); None if it has none.
///
/// # Errors
///
/// The DNS did not answer.
pub async fn tls_reports_to(dns: &dyn DnsLookup, domain: &str) -> Result<Option<Box<str>>, Unanswered> {
    let texts = texts_at(dns, &format!("_smtp._tls.{domain}")).await?;
    let mut lists = texts.iter().filter_map(|text| tls_record(text));
    let first = lists.next();
    Ok(first.filter(|_| lists.next().is_none()))
}

/// `v=TLSRPTv1; rua=...`
pub(crate) fn tls_record(text: &[u8]) -> Option<Box<str>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut tags = text.split(';').filter_map(|part| part.split_once('='));
    let trimmed = |(name, value): (&str, &str)| (name.trim().to_owned(), value.trim().to_owned());
    if tags.next().map(trimmed)? != ("v".to_owned(), "TLSRPTv1".to_owned()) {
        return None;
    }
    tags.map(trimmed).find(|(name, _)| name == "rua").map(|(_, value)| value.into())
}

/// The destination to use for reports about `domain`: one in its organization is used as it is. Another one
/// must have agreed (RFC 9990 section 4), and may have named another address of the same host. None: it has
/// not.
///
/// # Errors
///
/// The DNS did not answer.
pub async fn verified_destination(
    dns: &dyn DnsLookup,
    destination: &ReportDestination,
    domain: &str,
    organization: &str,
) -> Result<Option<ReportDestination>, Unanswered> {
    let Some(host) = dns::to_ascii(destination.address.domain()) else { return Ok(None) };
    if is_or_is_below(&host, organization) {
        return Ok(Some(destination.clone()));
    }
    let texts = texts_at(dns, &format!("{domain}._report._dmarc.{host}")).await?;
    let Some(record) = texts.iter().find_map(|text| DmarcRecord::parse(text)) else { return Ok(None) };
    let Some(list) = record.reports_to else { return Ok(Some(destination.clone())) };
    let is_there = |named: &ReportDestination| dns::to_ascii(named.address.domain()).as_deref() == Some(&*host);
    Ok(parse_destinations(&list, 1).into_iter().find(is_there))
}

async fn texts_at(dns: &dyn DnsLookup, name: &str) -> Result<Vec<Box<[u8]>>, Unanswered> {
    let Some(name) = dns::to_ascii(name) else { return Ok(Vec::new()) };
    match dns.lookup(&name, QueryType::Txt).await.answer {
        DnsAnswer::Texts(texts) => Ok(texts.iter().map(|text| text.as_ref().into()).collect()),
        DnsAnswer::Unanswered(_) => Err(Unanswered),
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Instant;

    use dns::CachedAnswer;

    use super::*;
    use crate::DnsFuture;

    /// TXT records by name; a name with an empty list does not answer.
    struct Texts(HashMap<&'static str, Vec<&'static str>>);

    impl DnsLookup for Texts {
        fn cached(&self, _: &str, _: QueryType) -> Option<CachedAnswer> {
            None
        }

        fn lookup<'a>(&'a self, name: &'a str, _: QueryType) -> DnsFuture<'a> {
            let answer = match self.0.get(name) {
                Some(texts) if texts.is_empty() => DnsAnswer::Unanswered("silence".into()),
                Some(texts) => DnsAnswer::Texts(texts.iter().map(|text| text.as_bytes().into()).collect()),
                None => DnsAnswer::NoSuchName,
            };
            Box::pin(std::future::ready(CachedAnswer { answer, expires_at: Instant::now(), authenticated: false }))
        }
    }

    fn listed(list: &str) -> Vec<(String, Option<u64>)> {
        parse_destinations(list, 3).into_iter().map(|it| (it.address.to_string(), it.octets_max)).collect()
    }

    #[test]
    fn a_list_has_addresses_and_their_limits() {
        let of = |address: &str, octets| (address.to_owned(), octets);
        for (list, expected) in [
            ("mailto:a@b.example", vec![of("a@b.example", None)]),
            (
                "MAILTO:a@b.example!10m, mailto:c@d.example!5K",
                vec![of("a@b.example", Some(10 << 20)), of("c@d.example", Some(5 << 10))],
            ),
            ("mailto:a%2Cb%21@c.example?subject=x", vec![of("\"a,b!\"@c.example", None)]),
            ("https://b.example/x,mailto:a@b.example!7", vec![of("a@b.example", Some(7))]),
            ("mailto:a@b.example!99999999999999999999t", vec![of("a@b.example", Some(u64::MAX))]),
            ("mailto:a@b.example,mailto:a@b.example", vec![of("a@b.example", None)]),
        ] {
            assert_eq!(listed(list), expected, "{list}");
        }
        assert_eq!(listed("mailto:a@a.example,mailto:b@a.example,mailto:c@a.example,mailto:d@a.example").len(), 3);
        for hostile in ["", "mailto:", "mailto:a", "mailto:a@b.example!x", "mailto:%zz@b.example", "mailto:a%0d%0a@b"] {
            assert_eq!(listed(hostile), [], "{hostile}");
        }
        assert_eq!(listed(&"mailto:\u{e4}@x.example,".repeat(100_000)), []);
    }

    #[tokio::test]
    async fn a_destination_elsewhere_must_have_agreed() {
        let dns = Texts(HashMap::from([
            ("a.example._report._dmarc.agreed.example", vec!["v=DMARC1;"]),
            ("a.example._report._dmarc.moved.example", vec!["v=DMARC1; rua=mailto:new@moved.example"]),
            ("a.example._report._dmarc.abroad.example", vec!["v=DMARC1; rua=mailto:x@victim.example"]),
            ("a.example._report._dmarc.other.example", vec!["v=spf1 -all"]),
            ("a.example._report._dmarc.silent.example", vec![]),
        ]));
        for (address, expected) in [
            ("r@a.example", Ok(Some("r@a.example"))),
            ("r@sub.example.org", Ok(Some("r@sub.example.org"))),
            ("r@agreed.example", Ok(Some("r@agreed.example"))),
            ("r@moved.example", Ok(Some("new@moved.example"))),
            ("r@abroad.example", Ok(None)),
            ("r@other.example", Ok(None)),
            ("r@nobody.example", Ok(None)),
            ("r@notexample.org", Ok(None)),
            ("r@silent.example", Err(Unanswered)),
        ] {
            let organization = if address.ends_with(".org") { "example.org" } else { "a.example" };
            let destination = ReportDestination { address: address.parse().unwrap(), octets_max: None };
            let found = verified_destination(&dns, &destination, "a.example", organization).await;
            let found = found.map(|found| found.map(|found| found.address.to_string()));
            assert_eq!(found, expected.map(|known| known.map(str::to_owned)), "{address}");
        }
    }

    #[tokio::test]
    async fn a_domain_wants_tls_reports_by_one_record() {
        let dns = Texts(HashMap::from([
            ("_smtp._tls.a.example", vec!["v=spf1 -all", "v=TLSRPTv1; rua=mailto:t@a.example"]),
            ("_smtp._tls.two.example", vec!["v=TLSRPTv1;rua=mailto:t@a.example", "v=TLSRPTv1;rua=mailto:u@a.example"]),
            ("_smtp._tls.other.example", vec!["v=TLSRPTv2; rua=mailto:t@a.example"]),
            ("_smtp._tls.silent.example", vec![]),
        ]));
        assert_eq!(tls_reports_to(&dns, "a.example").await, Ok(Some("mailto:t@a.example".into())));
        for domain in ["two.example", "other.example", "none.example"] {
            assert_eq!(tls_reports_to(&dns, domain).await, Ok(None), "{domain}");
        }
        assert_eq!(tls_reports_to(&dns, "silent.example").await, Err(Unanswered));
    }
}
