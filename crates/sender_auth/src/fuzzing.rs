//! The parsers of outside bytes, for the fuzz targets. None may panic.

use crate::arc;
use crate::dkim::key::KeyRecord;
use crate::dkim::signature::{MessageSignature, SignatureKind};
use crate::dkim::{self, verify};
use crate::dmarc::author;
use crate::dmarc::record::DmarcRecord;
use crate::message_header::MessageHeader;
use crate::reports::destination::{parse_destinations, tls_record};
use crate::results::ResultsField;
use crate::results::forged::{claims_id, forged_fields};

/// In seconds since 1970.
const NOW: u64 = 1_700_000_000;

/// A header with signature fields: what is read can be made canonical.
pub fn dkim_signature(bytes: &[u8]) {
    let header = MessageHeader::parse(bytes.to_vec());
    let (found, _) = dkim::find_signatures(&header, NOW);
    for found in &found {
        if let Ok(signature) = &found.signature {
            let _ = verify::signed_bytes(&header, found.field, signature);
        }
    }
    let _ = MessageSignature::parse(bytes, SignatureKind::Dkim);
}

/// A key in the DNS; one that is read can be used.
pub fn dkim_key(bytes: &[u8]) {
    if let Ok(record) = KeyRecord::parse(bytes) {
        let _ = verify::is_valid(&record.key, bytes, bytes);
    }
}

/// A header with a chain.
pub fn arc_set(bytes: &[u8]) {
    let header = MessageHeader::parse(bytes.to_vec());
    if let Ok(sets) = arc::find_chain(&header, NOW) {
        assert!(sets.len() <= arc::SETS_MAX, "more sets than allowed");
    }
}

/// A policy, a From field, and destinations of reports.
pub fn dmarc_record(bytes: &[u8]) {
    let _ = DmarcRecord::parse(bytes);
    let _ = author::address_domain(bytes);
    let list = tls_record(bytes).unwrap_or_else(|| String::from_utf8_lossy(bytes).into());
    let destinations = parse_destinations(&list, 4);
    assert!(destinations.len() <= 4 && destinations.iter().all(|it| it.address.is_ascii()), "more than asked for");
}

/// A field that may be forged; and values from outside in a field of ours, which cannot leave it.
pub fn authentication_results(bytes: &[u8]) {
    let header = MessageHeader::parse(bytes.to_vec());
    let _ = forged_fields(&header, "mx.example.org");
    let mut field = ResultsField::new("mx.example.org");
    field.push_spf("pass", "mailfrom", &String::from_utf8_lossy(bytes));
    let value = field.finish();
    assert!(claims_id(value.as_bytes(), "mx.example.org"), "our own field is not recognised");
    assert!(filter::Field::new("Authentication-Results", &value).is_ok(), "not a field");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Text that resembles what the parsers expect, so that they get far.
    fn resembling() -> impl Strategy<Value = Vec<u8>> {
        let words = prop::sample::select(vec![
            "DKIM-Signature: ",
            "ARC-Seal: ",
            "ARC-Message-Signature: ",
            "ARC-Authentication-Results: ",
            "Authentication-Results: ",
            "From: ",
            "v=1;",
            "v=DKIM1;",
            "v=DMARC1;",
            "i=1;",
            "a=rsa-sha256;",
            "cv=none;",
            "d=a.example;",
            "s=s;",
            "h=from:to;",
            "bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=;",
            "b=eA==;",
            "p=reject;",
            "p=MEgCQQ==;",
            "mx.example.org",
            "ann@a.example",
            "<",
            ">",
            "(",
            ")",
            "\"",
            "\\",
            ",",
            ";",
            "\r\n",
            "\r\n ",
            "\0",
            "\u{fc}",
        ]);
        let piece = prop_oneof![
            8 => words.prop_map(|word| word.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn no_input_makes_a_parser_panic(bytes in resembling()) {
            super::dkim_signature(&bytes);
            super::dkim_key(&bytes);
            super::arc_set(&bytes);
            super::dmarc_record(&bytes);
            super::authentication_results(&bytes);
        }
    }
}
