//! Certificates against TLSA records (RFC 6698, RFC 7671), as SMTP uses them (RFC 7672 section 3).
//!
//! One record that matches is enough. DANE-EE(3) compares the certificate of the server, whatever
//! its names and dates. DANE-TA(2) looks for the authority among the other certificates that the
//! server sends, where RFC 7672 section 3.1.2 wants it, and verifies the chain up to there; an
//! authority that the server does not send is not looked for elsewhere. Every digest that a record
//! names is computed: nothing is gained by choosing the strongest (digest agility) as long as both
//! are unbroken.

use std::time::SystemTime;

use mail::{DaneMatching, DanePolicy, DaneRecord, DaneSelector, DaneUsage};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{Error, RootCertStore};
use sha2::{Digest, Sha256, Sha512};

use crate::certificate_chain::verify_named;

/// Whether a chain in DER, the certificate of the server first, is what TLSA records demand at this
/// time. Clients do this in their handshake ([`TlsClient::dane`](crate::TlsClient::dane)).
pub fn meets_dane_policy(policy: &DanePolicy, chain: &[&[u8]], now: SystemTime) -> bool {
    let chain: Vec<CertificateDer<'_>> = chain.iter().map(|&certificate| certificate.into()).collect();
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    chain.split_first().is_some_and(|(own, others)| verify(policy, own, others, now).is_ok())
}

/// Verifies what a server presents.
pub(crate) fn verify(
    policy: &DanePolicy,
    end_entity: &CertificateDer<'_>,
    others: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    let by_usage = |usage| policy.records.iter().filter(move |record| record.usage == usage);
    if by_usage(DaneUsage::EndEntity).any(|record| matches(record, end_entity)) {
        return Ok(());
    }
    let is_anchor = |other: &&CertificateDer<'_>| by_usage(DaneUsage::TrustAnchor).any(|record| matches(record, other));
    let mut anchors = RootCertStore::empty();
    let found = others.iter().filter(is_anchor).map(|anchor| anchors.add(anchor.clone().into_owned()));
    // One that cannot be read leads nowhere, and says why if it is the only one.
    let unread = found.filter_map(Result::err).last();
    if anchors.is_empty() {
        return Err(unread.unwrap_or_else(|| Error::General("the certificate matches no TLSA record".to_owned())));
    }
    // The verifier limits the work for one chain, so it gets all anchors at once.
    verify_named(end_entity, others, &anchors, &policy.names, now)
}

/// Whether the certificate is the one that the record is about.
fn matches(record: &DaneRecord, certificate: &CertificateDer<'_>) -> bool {
    match record.selector {
        DaneSelector::Certificate => is_data(record, certificate),
        DaneSelector::PublicKey => ParsedCertificate::try_from(certificate)
            .is_ok_and(|parsed| is_data(record, &parsed.subject_public_key_info())),
    }
}

fn is_data(record: &DaneRecord, part: &[u8]) -> bool {
    match record.matching {
        DaneMatching::Full => *record.data == *part,
        DaneMatching::Sha256 => *record.data == Sha256::digest(part)[..],
        DaneMatching::Sha512 => *record.data == Sha512::digest(part)[..],
    }
}
