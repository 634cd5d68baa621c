//! Signature fields: DKIM-Signature (RFC 6376 section 3.5), ARC-Message-Signature and the part of
//! ARC-Seal that they share (RFC 8617 section 4.1).

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::{DkimResult, Rejection};
use crate::body_hash::{BodyHashRequest, HASH_OCTETS};
use crate::canonical_form::CanonicalForm;
use crate::message_header::FieldName;
use crate::tag_list::{TagList, is_white_space, without_white_space};

/// The most names in `h=`; real signatures have up to forty.
pub(crate) const SIGNED_FIELDS_MAX: usize = 256;
/// How far the clocks of others may be wrong, in seconds.
pub(crate) const CLOCK_SKEW_MAX: u64 = 300;
/// How much of `b=` names a signature in results (RFC 6008).
const LABEL_OCTETS: usize = 8;

/// Base64 as found in signatures and keys: some lack the padding.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// How a signature is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureAlgorithm {
    RsaSha256,
    /// RFC 8463.
    Ed25519Sha256,
}

/// Which field a signature is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureKind {
    Dkim,
    ArcMessage,
}

/// What names a signature in results, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureLabel {
    /// `d=`.
    pub domain: Option<Box<str>>,
    /// `i=`.
    pub identity: Option<Box<str>>,
    /// `s=`.
    pub selector: Option<Box<str>>,
    /// `a=`.
    pub algorithm: Option<Box<str>>,
    /// The first characters of `b=`.
    pub start: Option<Box<str>>,
}

/// Who signed, and the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealSignature {
    pub(crate) algorithm: SignatureAlgorithm,
    /// In lower case, with A-labels.
    pub(crate) domain: Box<str>,
    /// In lower case.
    pub(crate) selector: Box<str>,
    pub(crate) octets: Box<[u8]>,
}

/// A signature over fields and the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MessageSignature {
    pub(crate) seal: SealSignature,
    pub(crate) header_form: CanonicalForm,
    pub(crate) body: BodyHashRequest,
    pub(crate) body_hash: [u8; HASH_OCTETS],
    /// In the order of `h=`.
    pub(crate) fields: Box<[FieldName]>,
    /// The domain of `i=`; it is `d=` or below it.
    pub(crate) identity_domain: Box<str>,
    timestamp: Option<u64>,
    expires: Option<u64>,
}

impl MessageSignature {
    /// Reads the value of a field.
    pub(crate) fn parse(value: &[u8], kind: SignatureKind) -> (SignatureLabel, Result<MessageSignature, Rejection>) {
        match TagList::parse(value) {
            Ok(tags) => (SignatureLabel::of(&tags), read_message_signature(&tags, kind)),
            Err(_) => (SignatureLabel::default(), Err(neutral("not a list of tags"))),
        }
    }

    /// Whether the signature is valid at this time: `t=` and `x=`.
    pub(crate) fn check_times(&self, now: u64) -> Result<(), Rejection> {
        if self.timestamp.is_some_and(|timestamp| timestamp > now.saturating_add(CLOCK_SKEW_MAX)) {
            return Err(Rejection::new(DkimResult::Policy, "signed in the future"));
        }
        match self.expires {
            Some(expires) if expires.saturating_add(CLOCK_SKEW_MAX) < now => {
                Err(Rejection::new(DkimResult::Fail, "expired"))
            }
            _ => Ok(()),
        }
    }
}

impl SealSignature {
    /// Reads `a=`, `d=`, `s=` and `b=`.
    pub(crate) fn read(tags: &TagList<'_>) -> Result<SealSignature, Rejection> {
        let algorithm = match required(tags, "a")? {
            "rsa-sha256" => SignatureAlgorithm::RsaSha256,
            "ed25519-sha256" => SignatureAlgorithm::Ed25519Sha256,
            "rsa-sha1" => return Err(Rejection::new(DkimResult::Policy, "rsa-sha1 is not accepted")),
            _ => return Err(neutral("unknown algorithm")),
        };
        let domain = dns::to_ascii(required(tags, "d")?).filter(|domain| domain.contains('.'));
        let selector = dns::to_ascii(required(tags, "s")?);
        let octets = decode_base64(required(tags, "b")?).filter(|octets| !octets.is_empty());
        Ok(SealSignature {
            algorithm,
            domain: domain.ok_or(neutral("invalid d="))?,
            selector: selector.ok_or(neutral("invalid s="))?,
            octets: octets.ok_or(neutral("invalid b="))?.into(),
        })
    }
}

impl SignatureLabel {
    fn of(tags: &TagList<'_>) -> SignatureLabel {
        let text = |name: &str| tags.value(name).filter(|value| !value.is_empty()).map(Into::into);
        let start = tags
            .value("b")
            .map(|value| value.chars().filter(|c| !is_white_space(*c)).take(LABEL_OCTETS).collect::<String>().into());
        SignatureLabel { domain: text("d"), identity: text("i"), selector: text("s"), algorithm: text("a"), start }
    }
}

fn read_message_signature(tags: &TagList<'_>, kind: SignatureKind) -> Result<MessageSignature, Rejection> {
    if kind == SignatureKind::Dkim && tags.value("v") != Some("1") {
        return Err(neutral("unknown version"));
    }
    let seal = SealSignature::read(tags)?;
    let (header_form, body_form) = canonical_forms(tags.value("c"))?;
    let body_hash = decode_base64(required(tags, "bh")?).and_then(|hash| hash.try_into().ok());
    let methods = tags.value("q").unwrap_or("dns/txt");
    if !methods.split(':').any(|method| method.trim_matches(is_white_space) == "dns/txt") {
        return Err(neutral("unknown query method"));
    }
    let fields = signed_fields(required(tags, "h")?)?;
    let (timestamp, expires) = (number(tags, "t")?, number(tags, "x")?);
    if expires.zip(timestamp).is_some_and(|(expires, timestamp)| expires < timestamp) {
        return Err(neutral("expires before it was made"));
    }
    let identity_domain = match kind {
        SignatureKind::Dkim => identity_domain(tags.value("i"), &seal.domain)?,
        // In ARC fields `i` is the instance.
        SignatureKind::ArcMessage => seal.domain.clone(),
    };
    Ok(MessageSignature {
        body: BodyHashRequest { form: body_form, limit: number(tags, "l")? },
        seal,
        header_form,
        body_hash: body_hash.ok_or(neutral("invalid bh="))?,
        fields,
        identity_domain,
        timestamp,
        expires,
    })
}

fn canonical_forms(value: Option<&str>) -> Result<(CanonicalForm, CanonicalForm), Rejection> {
    let Some(value) = value else { return Ok(Default::default()) };
    let (header, body) = value.split_once('/').unwrap_or((value, "simple"));
    let forms = CanonicalForm::parse(header).zip(CanonicalForm::parse(body));
    forms.ok_or(neutral("unknown canonicalization"))
}

/// RFC 6376 section 5.4: From must be signed.
fn signed_fields(value: &str) -> Result<Box<[FieldName]>, Rejection> {
    let names = value.split(':').map(|name| name.trim_matches(is_white_space));
    let fields: Box<[FieldName]> =
        names.take(SIGNED_FIELDS_MAX + 1).map(|name| FieldName::new(name.as_bytes())).collect();
    if fields.len() > SIGNED_FIELDS_MAX {
        return Err(neutral("too many signed fields"));
    }
    if fields.iter().any(|field| field.as_bytes().is_empty()) {
        return Err(neutral("invalid h="));
    }
    match fields.iter().any(|field| field.as_bytes() == b"from") {
        true => Ok(fields),
        false => Err(neutral("From is not signed")),
    }
}

/// The domain of `i=`, which must be `d=` or below it.
fn identity_domain(identity: Option<&str>, domain: &str) -> Result<Box<str>, Rejection> {
    let Some(identity) = identity else { return Ok(domain.into()) };
    let own = identity.rsplit_once('@').and_then(|(_, own)| dns::to_ascii(&without_white_space(own)));
    let own = own.ok_or(neutral("invalid i="))?;
    match is_or_is_below(&own, domain) {
        true => Ok(own),
        false => Err(neutral("i= is outside d=")),
    }
}

/// Whether a domain is another one or below it.
pub(crate) fn is_or_is_below(domain: &str, parent: &str) -> bool {
    domain.strip_suffix(parent).is_some_and(|below| below.is_empty() || below.ends_with('.'))
}

/// A decimal number; one that is too large for any use counts as the largest.
fn number(tags: &TagList<'_>, name: &'static str) -> Result<Option<u64>, Rejection> {
    let Some(value) = tags.value(name) else { return Ok(None) };
    if value.is_empty() || value.len() > NUMBER_DIGITS_MAX || !value.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(neutral("a number cannot be read"));
    }
    Ok(Some(value.parse().unwrap_or(u64::MAX)))
}

/// RFC 6376 section 3.5: of `l=`.
const NUMBER_DIGITS_MAX: usize = 76;

fn required<'a>(tags: &TagList<'a>, name: &str) -> Result<&'a str, Rejection> {
    tags.value(name).filter(|value| !value.is_empty()).ok_or(neutral("a required tag is missing"))
}

pub(crate) fn decode_base64(value: &str) -> Option<Vec<u8>> {
    BASE64.decode(without_white_space(value)).ok()
}

const fn neutral(reason: &'static str) -> Rejection {
    Rejection::new(DkimResult::Neutral, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = " v=1; a=rsa-sha256; c=relaxed/simple; d=Example.ORG; s=sel; t=100; x=200;\r\n\
        \th=From : to:\r\n Subject; i=a=40b@news.example.org; l=7;\r\n\
        \tbh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=c2ln\r\n bmF0dXJl";

    fn parse(value: &str) -> Result<MessageSignature, Rejection> {
        MessageSignature::parse(value.as_bytes(), SignatureKind::Dkim).1
    }

    #[test]
    fn a_signature_is_read() {
        let (label, signature) = MessageSignature::parse(VALID.as_bytes(), SignatureKind::Dkim);
        let signature = signature.unwrap();
        assert_eq!((&*signature.seal.domain, &*signature.seal.selector), ("example.org", "sel"));
        assert_eq!(&*signature.seal.octets, b"signature");
        assert_eq!((signature.header_form, signature.body.form), (CanonicalForm::Relaxed, CanonicalForm::Simple));
        assert_eq!((signature.body.limit, &*signature.identity_domain), (Some(7), "news.example.org"));
        let names: Vec<&[u8]> = signature.fields.iter().map(FieldName::as_bytes).collect();
        assert_eq!(names, [b"from".as_slice(), b"to", b"subject"]);
        assert_eq!(label.start.as_deref(), Some("c2lnbmF0"));
        assert_eq!(label.domain.as_deref(), Some("Example.ORG"));
    }

    #[test]
    fn a_signature_that_cannot_be_judged_says_so() {
        for (from, to, reason) in [
            ("v=1", "v=2", "unknown version"),
            ("v=1; ", "", "unknown version"),
            ("rsa-sha256", "rsa-md5", "unknown algorithm"),
            ("a=rsa-sha256; ", "", "a required tag is missing"),
            ("relaxed/simple", "nowsp", "unknown canonicalization"),
            ("Example.ORG", "exa mple", "invalid d="),
            ("Example.ORG", "org", "invalid d="),
            ("s=sel", "s=s..l", "invalid s="),
            ("h=From", "h=X", "From is not signed"),
            ("h=From", "h=From::x", "invalid h="),
            ("news.example.org", "newsexample.org", "i= is outside d="),
            ("news.example.org", "org", "i= is outside d="),
            ("l=7", "l=-7", "a number cannot be read"),
            ("t=100", "t=300", "expires before it was made"),
            ("bh=47DEQ", "bh=!47DEQ", "invalid bh="),
            ("bh=47DEQ", "bh=4747DEQ", "invalid bh="),
            ("; l=7", "; q=http", "unknown query method"),
            ("; l=7", "; l=7; l=8", "not a list of tags"),
        ] {
            assert!(VALID.contains(from), "{from}");
            assert_eq!(parse(&VALID.replacen(from, to, 1)), Err(neutral(reason)), "{from} -> {to}");
        }
        let sha1 = parse(&VALID.replace("rsa-sha256", "rsa-sha1")).unwrap_err();
        assert_eq!(sha1.result, DkimResult::Policy);
        let many = VALID.replace("h=From", &format!("h=From{}", ":x".repeat(SIGNED_FIELDS_MAX)));
        assert_eq!(parse(&many), Err(neutral("too many signed fields")));
    }

    #[test]
    fn a_signature_is_valid_between_its_times() {
        let signature = parse(VALID).unwrap();
        for (now, expected) in
            [(0, Ok(())), (200, Ok(())), (200 + CLOCK_SKEW_MAX, Ok(())), (201 + CLOCK_SKEW_MAX, Err(DkimResult::Fail))]
        {
            assert_eq!(signature.check_times(now).map_err(|rejection| rejection.result), expected, "{now}");
        }
        let future = parse(&VALID.replace("t=100; x=200", "t=99999999999999999999999")).unwrap();
        assert_eq!(future.check_times(1000).unwrap_err().result, DkimResult::Policy);
    }
}
