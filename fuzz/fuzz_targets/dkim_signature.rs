//! A header with signature fields, and a single one: no panic, and what is read can be made canonical.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sender_auth::fuzzing::dkim_signature(bytes));
