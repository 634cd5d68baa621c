//! Any bytes as a TLSA record, and as the chain that a server presents: no panic, and a certificate is
//! accepted only if the record has it or its digest.

#![no_main]

use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use mail::{DaneMatching, DanePolicy, DaneRecord, DaneSelector, DaneUsage};
use net::meets_dane_policy;

fuzz_target!(|bytes: &[u8]| {
    // Three numbers, the length of the data, the data; the rest is a chain of two certificates.
    let [usage, selector, matching, length, rest @ ..] = bytes else { return };
    let (data, chain) = rest.split_at(rest.len().min(usize::from(*length)));
    let Some(record) = DaneRecord::new(usage % 5, selector % 3, matching % 4, data) else { return };
    let (first, second) = chain.split_at(chain.len() / 2);
    let is_whole_leaf = record.usage == DaneUsage::EndEntity
        && record.selector == DaneSelector::Certificate
        && record.matching == DaneMatching::Full;
    let records = vec![record];
    let policy = DanePolicy { records, base_domain: "mx.example".into(), names: vec!["mx.example".into()] };
    let is_met = meets_dane_policy(&policy, &[first, second], SystemTime::UNIX_EPOCH);
    if is_whole_leaf {
        assert_eq!(is_met, first == data);
    }
    assert!(!meets_dane_policy(&policy, &[], SystemTime::UNIX_EPOCH));
});
