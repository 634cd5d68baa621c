//! Any bytes as the path, the query and the content of a request to the HTTP API, separated by NUL: no
//! panic, and content that is not a JSON object is never accepted.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |octet| *octet == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (path, query, content) = (next(), next(), next());
    let is_read = control::api::reads_request(path, query, content);
    assert!(!is_read || content.iter().any(|octet| *octet == b'{'));
});
