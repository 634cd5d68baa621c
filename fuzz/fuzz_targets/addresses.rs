//! Any text as an address: no panic, and the canonical form of a valid one parses to the same
//! address.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mail::Address;

fuzz_target!(|text: &str| {
    let Ok(address) = text.parse::<Address>() else { return };
    assert_eq!(address.as_str().parse().as_ref(), Ok(&address));
    assert!(!address.as_str().contains(['\r', '\n', '\0']));
    assert_eq!(Address::new(&address.unquoted_local_part(), address.domain()).as_ref(), Ok(&address));
});
