//! Any bytes as an LDAP message are decoded or refused; nothing panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| ldap::read_message(input));
