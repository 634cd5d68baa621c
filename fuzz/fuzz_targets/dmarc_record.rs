//! A policy in the DNS, and a From field: no panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sender_auth::fuzzing::dmarc_record(bytes));
