//! Any bytes as a message of a name server: no panic, and no more records than are used of an answer.
//! Names are those of hosts.

#![no_main]

use dns::{DnsAnswer, QueryType, parse_message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let kinds = [QueryType::Mx, QueryType::A, QueryType::Aaaa, QueryType::Txt, QueryType::Ptr, QueryType::Tlsa];
    for kind in kinds {
        let is_name = |name: &str| dns::to_ascii(name).as_deref() == Some(name);
        match parse_message(bytes, "a.example", kind) {
            Some(DnsAnswer::MxHosts(hosts)) => {
                assert!(hosts.len() <= 100 && hosts.iter().all(|host| is_name(&host.name)));
            }
            Some(DnsAnswer::Names(names)) => assert!(names.len() <= 100 && names.iter().all(|name| is_name(name))),
            Some(DnsAnswer::Addresses(addresses)) => assert!((1..=100).contains(&addresses.len())),
            Some(DnsAnswer::Tlsa(records)) => assert!(records.len() <= 100),
            Some(DnsAnswer::Texts(texts)) => assert!(texts.len() <= 500),
            _ => {}
        }
    }
});
