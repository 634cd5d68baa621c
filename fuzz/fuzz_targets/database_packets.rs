//! Any bytes as a packet of MySQL or a line of Redis are read or refused; nothing panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    lookup::mysql::read_packet(input);
    lookup::redis::read_line(input);
});
