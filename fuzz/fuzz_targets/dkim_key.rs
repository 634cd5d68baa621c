//! A key in the DNS: no panic, and one that is read can be used.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sender_auth::fuzzing::dkim_key(bytes));
