//! Names in the form in which they are queried.

use std::net::IpAddr;

use hickory_resolver::proto::rr::Name;

/// A domain as used in DNS queries: in lower case, with A-labels (RFC 5890), without a trailing
/// dot. None: it is not a valid host name.
pub fn to_ascii(domain: &str) -> Option<Box<str>> {
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    let labels: Option<Vec<String>> = domain.split('.').map(label_to_ascii).collect();
    let ascii = labels?.join(".");
    (ascii.len() <= NAME_OCTETS_MAX).then(|| ascii.into())
}

/// Only non-ASCII labels are converted, since the conversion rejects underscores, which real hosts
/// have.
fn label_to_ascii(label: &str) -> Option<String> {
    let ascii = match label.is_ascii() {
        true => label.to_ascii_lowercase(),
        false => Name::from_utf8(label).ok()?.to_ascii().to_ascii_lowercase(),
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let fine = !ascii.is_empty() && ascii.len() <= LABEL_OCTETS_MAX && ascii.bytes().all(allowed);
    fine.then_some(ascii)
}

/// The name under which the PTR records of an address are (RFC 1035 section 3.5, RFC 3596 section
/// 2.5). An IPv4-mapped address has the name of its IPv4 address.
pub fn reverse_name(address: IpAddr) -> String {
    let address = address.to_canonical();
    let zone = if address.is_ipv4() { "in-addr.arpa" } else { "ip6.arpa" };
    format!("{}.{zone}", reversed_labels(address))
}

/// The labels of an address in reverse order: octets of IPv4 (RFC 5782 section 2.1), hexadecimal
/// digits of IPv6 (section 2.4).
pub fn reversed_labels(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}")
        }
        IpAddr::V6(v6) => {
            let digits = v6.octets().into_iter().rev().flat_map(|octet| [octet & 15, octet >> 4]);
            digits.map(|digit| format!("{digit:x}")).collect::<Vec<_>>().join(".")
        }
    }
}

/// A name to query, with any octets in its labels: a record of SPF may ask for names that no host
/// has. None: an empty or overlong label, or a name that is too long.
pub(crate) fn query_name(text: &str) -> Option<Name> {
    let labels = || text.split('.').map(str::as_bytes);
    let fits = text.len() <= NAME_OCTETS_MAX && labels().all(|label| (1..=LABEL_OCTETS_MAX).contains(&label.len()));
    fits.then(|| Name::from_labels(labels()).ok()).flatten()
}

/// RFC 1035 section 2.3.4: 255 octets on the wire, including a length octet for each label and for
/// the root.
const NAME_OCTETS_MAX: usize = 253;
/// RFC 1035 section 2.3.4.
const LABEL_OCTETS_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_as_the_dns_has_it_or_none() {
        let long = format!("{}.example", "x".repeat(64));
        let beyond = format!("{}.example", "ü".repeat(60));
        for (domain, ascii) in [
            ("Example.ORG.", Some("example.org")),
            ("_dmarc.some_host.example", Some("_dmarc.some_host.example")),
            ("MÜLLER.some_host.example", Some("xn--mller-kva.some_host.example")),
            ("straße.example", Some("xn--strae-oqa.example")),
            ("", None),
            (".", None),
            ("a..b", None),
            ("a b", None),
            ("\u{ad}.example", None),
            (&long, None),
        ] {
            assert_eq!(to_ascii(domain).as_deref(), ascii, "{domain}");
        }
        assert!(to_ascii(&beyond).is_none_or(|ascii| ascii.split('.').all(|label| label.len() <= LABEL_OCTETS_MAX)));
        assert!(to_ascii(&["abc"; 64].join(".")).is_none(), "255 octets with a dot more than fits");
    }

    #[test]
    fn any_octets_can_be_queried_in_labels_that_fit() {
        let labels = |text: &str| {
            let name = query_name(text)?;
            Some(name.iter().map(|label| String::from_utf8_lossy(label).into_owned()).collect::<Vec<_>>().join("|"))
        };
        let (long, longer) = ("x".repeat(63), "x".repeat(64));
        for (text, expected) in [
            ("example.org", Some("example|org")),
            ("foo:bar/baz.example", Some("foo:bar/baz|example")),
            (r#"a\.b\099 ".*"#, Some(r#"a\|b\099 "|*"#)),
            ("straße.example", Some("straße|example")),
            ("", None),
            (".", None),
            ("a..b", None),
            ("a.", None),
            (&long, Some(&*long)),
            (&longer, None),
        ] {
            assert_eq!(labels(text).as_deref(), expected, "{text}");
        }
        let name = |letters: usize| "abc.".repeat(62) + &"x".repeat(letters);
        assert_eq!((query_name(&name(5)).is_some(), query_name(&name(6)).is_some()), (true, false));
    }

    #[test]
    fn the_name_of_an_address_is_the_address_reversed() {
        for (address, name) in [
            ("192.0.2.1", "1.2.0.192.in-addr.arpa"),
            ("::ffff:192.0.2.1", "1.2.0.192.in-addr.arpa"),
            ("2001:db8:1:2:3:4:567:89ab", "b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        ] {
            assert_eq!(reverse_name(address.parse().unwrap()), name);
        }
    }
}
