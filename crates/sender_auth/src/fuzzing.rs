//! The parsers of outside bytes, for the fuzz targets. None may panic.

use crate::arc;
use crate::dkim::key::KeyRecord;
use crate::dkim::signature::{MessageSignature, SignatureKind};
use crate::dkim::{self, verify};
use crate::dmarc::author;
use crate::dmarc::record::DmarcRecord;
use crate::message_header::MessageHeader;
use crate::results::ResultsField;
use crate::results::forged::{claims_id, forged_fields};

/// A header with signature fields: what is read can be made canonical.
pub fn dkim_signature(bytes: &[u8]) {
    let header = MessageHeader::parse(bytes.to_vec());
    let (found, _) = dkim::find_signatures(&header, 1_700_000_000);
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
    if let Ok(sets) = arc::find_chain(&header) {
        assert!(sets.len() <= arc::SETS_MAX, "more sets than allowed");
    }
}

/// A policy, and a From field.
pub fn dmarc_record(bytes: &[u8]) {
    let _ = DmarcRecord::parse(bytes);
    let _ = author::address_domain(bytes);
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
