//! A header with a chain of ARC: no panic, and no more sets than allowed.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sender_auth::fuzzing::arc_set(bytes));
