//! Names in the form in which they are queried.

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
}
