//! Whatever a directory sends as a message is read or refused; nothing panics, and nothing is made of what is not there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lookup::ldap;

fuzz_target!(|input: &[u8]| ldap::read_message(input));
