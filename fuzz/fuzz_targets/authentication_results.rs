//! A header with results of others, and values from outside in a field of ours: no panic, and the
//! field stays one field, in our name.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sender_auth::fuzzing::authentication_results(bytes));
