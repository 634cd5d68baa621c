//! Any bytes as a PROXY header (versions 1 and 2): no panic; a header is never longer than the
//! input, does not depend on what follows it, and each of its prefixes is incomplete.

#![no_main]

use libfuzzer_sys::fuzz_target;
use net::parse_proxy_header;

fuzz_target!(|bytes: &[u8]| {
    let parsed = parse_proxy_header(bytes);
    if let Ok(Some((_, length))) = parsed {
        assert!(length <= bytes.len());
        assert_eq!(parse_proxy_header(&bytes[..length]), parsed);
        for end in 0..length {
            assert_eq!(parse_proxy_header(&bytes[..end]), Ok(None));
        }
    }
});
