//! Keys in the DNS (RFC 6376 section 3.6, RFC 8463 section 3): read, judged, and looked up.

use dns::{DnsAnswer, QueryType};

use super::signature::{SignatureAlgorithm, decode_base64};
use super::{DkimResult, Rejection};
use crate::DnsLookup;
use crate::tag_list::{TagList, is_white_space};

/// RFC 8301 section 3.2: shorter keys must not be accepted.
pub(crate) const RSA_BITS_MIN: usize = 1024;
/// The longest key that is computed with: RFC 8301 requires no more, and an operation with 16,384
/// bits takes milliseconds.
pub(crate) const RSA_BITS_MAX: usize = 4096;
/// The largest DNS record that is read as a key.
const RECORD_OCTETS_MAX: usize = 8192;

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PublicKey {
    /// RSAPublicKey (RFC 8017 appendix A.1.1).
    Rsa(Box<[u8]>),
    Ed25519([u8; 32]),
}

/// The longest RSAPublicKey that is verified with in tens of microseconds: 2048 bits, and an exponent of
/// at most a few octets.
const SHORT_RSA_OCTETS_MAX: usize = 275;

impl PublicKey {
    /// Whether a signature is verified in tens of microseconds.
    pub(crate) fn is_short(&self) -> bool {
        match self {
            PublicKey::Rsa(key) => key.len() <= SHORT_RSA_OCTETS_MAX,
            PublicKey::Ed25519(_) => true,
        }
    }
}

/// A key with its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) key: PublicKey,
    /// `t=y`: the domain is testing DKIM.
    pub(crate) is_test: bool,
    /// `t=s`: the domain of `i=` must be `d=`.
    pub(crate) is_strict: bool,
}

/// Looks up a key.
///
/// # Errors
///
/// There is none that can be used, or the DNS does not answer.
pub(crate) async fn look_up(dns: &dyn DnsLookup, selector: &str, domain: &str) -> Result<KeyRecord, Rejection> {
    let name = dns::to_ascii(&format!("{selector}._domainkey.{domain}"));
    let name = name.ok_or(permanent("the name of the key is too long"))?;
    match dns.lookup(&name, QueryType::Txt).await.answer {
        DnsAnswer::Texts(records) => read_records(&records),
        DnsAnswer::Unanswered(_) => Err(Rejection::new(DkimResult::TempError, "no answer for the key")),
        _ => Err(permanent("no key")),
    }
}

/// The first record that is a key decides; if there is none, the first one says why.
fn read_records(records: &[Box<[u8]>]) -> Result<KeyRecord, Rejection> {
    let mut first_fault = None;
    for record in records {
        match KeyRecord::parse(record) {
            Ok(key) => return Ok(key),
            Err(fault) => first_fault = first_fault.or(Some(fault)),
        }
    }
    Err(first_fault.unwrap_or(permanent("no key")))
}

impl KeyRecord {
    /// Reads a record.
    pub(crate) fn parse(record: &[u8]) -> Result<KeyRecord, Rejection> {
        if record.len() > RECORD_OCTETS_MAX {
            return Err(permanent("the key is too long"));
        }
        let tags = TagList::parse(record).map_err(|_| permanent("the key is not a list of tags"))?;
        let version = tags.value("v");
        if version.is_some() && tags.first() != Some(("v", "DKIM1")) {
            return Err(permanent("unknown version of the key"));
        }
        let has = |name: &str, fits: fn(&str) -> bool| {
            tags.value(name).is_none_or(|list| list.split(':').any(|word| fits(word.trim_matches(is_white_space))))
        };
        if !has("h", |word| word == "sha256") {
            return Err(permanent("the key is for other hashes"));
        }
        if !has("s", |word| word == "*" || word == "email") {
            return Err(permanent("the key is for other services"));
        }
        let flag = |name: &str| {
            let mut flags = tags.value("t").unwrap_or_default().split(':');
            flags.any(|flag| flag.trim_matches(is_white_space) == name)
        };
        let key = match tags.value("p") {
            None => return Err(permanent("the key is missing in its record")),
            Some("") => return Err(permanent("the key is revoked")),
            Some(key) => decode_base64(key).ok_or(permanent("the key is not base64"))?,
        };
        let key = match tags.value("k").unwrap_or("rsa") {
            "rsa" => rsa_key(&key)?,
            "ed25519" => PublicKey::Ed25519(key.try_into().map_err(|_| permanent("the key is invalid"))?),
            _ => return Err(permanent("unknown type of the key")),
        };
        Ok(KeyRecord { key, is_test: flag("y"), is_strict: flag("s") })
    }

    /// Whether the key is for signatures of this kind.
    pub(crate) fn check_algorithm(&self, algorithm: SignatureAlgorithm) -> Result<(), Rejection> {
        match (&self.key, algorithm) {
            (PublicKey::Rsa(_), SignatureAlgorithm::RsaSha256)
            | (PublicKey::Ed25519(_), SignatureAlgorithm::Ed25519Sha256) => Ok(()),
            _ => Err(permanent("the key is of another type")),
        }
    }
}

/// An RSA key, as SubjectPublicKeyInfo or alone.
fn rsa_key(der: &[u8]) -> Result<PublicKey, Rejection> {
    let key = subject_public_key(der).unwrap_or(der);
    let bits = modulus_bits(key).ok_or(permanent("the key is invalid"))?;
    if bits < RSA_BITS_MIN {
        return Err(Rejection::new(DkimResult::Policy, "the key has fewer than 1024 bits"));
    }
    if bits > RSA_BITS_MAX {
        return Err(Rejection::new(DkimResult::Policy, "the key has more than 4096 bits"));
    }
    Ok(PublicKey::Rsa(key.into()))
}

const DER_INTEGER: u8 = 0x02;
const DER_BIT_STRING: u8 = 0x03;
const DER_SEQUENCE: u8 = 0x30;
/// The content of the algorithm rsaEncryption, 1.2.840.113549.1.1.1.
const RSA_ENCRYPTION: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];

/// The key in SubjectPublicKeyInfo (RFC 5280 section 4.1).
fn subject_public_key(der: &[u8]) -> Option<&[u8]> {
    let (info, _) = der_element(der, DER_SEQUENCE)?;
    let (algorithm, rest) = der_element(info, DER_SEQUENCE)?;
    let (bits, _) = der_element(rest, DER_BIT_STRING)?;
    algorithm.starts_with(RSA_ENCRYPTION).then_some(())?;
    bits.strip_prefix(&[0])
}

/// The length of the modulus of an RSAPublicKey.
fn modulus_bits(der: &[u8]) -> Option<usize> {
    let (key, _) = der_element(der, DER_SEQUENCE)?;
    let (modulus, _) = der_element(key, DER_INTEGER)?;
    let zeros = modulus.iter().take_while(|octet| **octet == 0).count();
    let first = modulus.get(zeros)?;
    Some((modulus.len() - zeros) * 8 - first.leading_zeros() as usize)
}

/// The content of the first element, which has this tag, and what follows it.
fn der_element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first_len], rest) = der.split_first_chunk()?;
    if found != tag {
        return None;
    }
    if first_len < 0x80 {
        return rest.split_at_checked(first_len.into());
    }
    let (len, rest) = rest.split_at_checked((first_len & 0x7f).into())?;
    if len.is_empty() || len.len() > 3 {
        return None;
    }
    let len = len.iter().fold(0, |len, octet| len << 8 | usize::from(*octet));
    rest.split_at_checked(len)
}

const fn permanent(reason: &'static str) -> Rejection {
    Rejection::new(DkimResult::PermError, reason)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// RFC 8463 appendix A.2.
    const ED25519: &str = "v=DKIM1; k=ed25519; p=11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    /// An RSAPublicKey with a modulus of this many octets, and its SubjectPublicKeyInfo.
    fn rsa(octets: usize) -> [Vec<u8>; 2] {
        fn element(tag: u8, content: &[u8]) -> Vec<u8> {
            let mut der = vec![tag, 0x82];
            der.extend((content.len() as u16).to_be_bytes());
            der.extend_from_slice(content);
            der
        }
        let mut modulus = vec![0];
        modulus.extend(vec![0xff; octets]);
        let key = [element(DER_INTEGER, &modulus), element(DER_INTEGER, &[1, 0, 1])].concat();
        let key = element(DER_SEQUENCE, &key);
        let algorithm = element(DER_SEQUENCE, &[RSA_ENCRYPTION, &[5, 0]].concat());
        let info = element(DER_SEQUENCE, &[algorithm, element(DER_BIT_STRING, &[&[0], &*key].concat())].concat());
        [key, info]
    }

    fn record(key: &[u8]) -> Result<KeyRecord, Rejection> {
        KeyRecord::parse(format!("p={}", STANDARD.encode(key)).as_bytes())
    }

    #[test]
    fn keys_are_neither_too_short_nor_too_long() {
        for (octets, expected) in [
            (96, Err(DkimResult::Policy)),
            (127, Err(DkimResult::Policy)),
            (128, Ok(())),
            (512, Ok(())),
            (513, Err(DkimResult::Policy)),
            (2048, Err(DkimResult::Policy)),
        ] {
            for der in rsa(octets) {
                let result = record(&der).map(|_| ()).map_err(|rejection| rejection.result);
                assert_eq!(result, expected, "{octets}");
            }
        }
        let [alone, info] = rsa(256);
        assert_eq!(record(&alone).unwrap(), record(&info).unwrap());
        for end in 0..info.len() {
            assert!(record(&info[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn the_conditions_of_a_key_are_kept() {
        let key = |more: &str| KeyRecord::parse(format!("{ED25519}{more}").as_bytes());
        assert_eq!(key("").map(|key| (key.is_test, key.is_strict)), Ok((false, false)));
        assert_eq!(key("; t=s : y").map(|key| (key.is_test, key.is_strict)), Ok((true, true)));
        assert!(key("; h=sha1:sha256; s=tlsrpt : email").is_ok());
        assert!(key("; n=a note").is_ok());
        for (more, reason) in [
            ("; h=sha1", "the key is for other hashes"),
            ("; s=tlsrpt", "the key is for other services"),
            ("; v=DKIM1", "the key is not a list of tags"),
            ("; ;", "the key is not a list of tags"),
        ] {
            assert_eq!(key(more), Err(permanent(reason)), "{more}");
        }
        for (record, reason) in [
            ("v=DKIM1; p=", "the key is revoked"),
            ("v=DKIM1", "the key is missing in its record"),
            ("v=DKIM2; p=x", "unknown version of the key"),
            ("k=rsa; v=DKIM1; p=x", "unknown version of the key"),
            ("k=dsa; p=eHg=", "unknown type of the key"),
            ("k=ed25519; p=eHg=", "the key is invalid"),
            ("p=eHg=", "the key is invalid"),
            ("p=!", "the key is not base64"),
            ("v=spf1 -all", "unknown version of the key"),
            ("no key", "the key is not a list of tags"),
        ] {
            assert_eq!(KeyRecord::parse(record.as_bytes()), Err(permanent(reason)), "{record}");
        }
        let long = format!("p={}", "A".repeat(RECORD_OCTETS_MAX));
        assert_eq!(KeyRecord::parse(long.as_bytes()), Err(permanent("the key is too long")));
    }
}
