//! Any bytes as the path by which an authority asks for the answer to a challenge (HTTP-01, RFC 8555 section
//! 8.3), beside tokens and answers of any text, separated by NUL: no panic, and an answer only to the path that
//! is exactly that of its token, until it is taken back.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use net::{ChallengeStore, HTTP_CHALLENGE_PATH};

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |octet| *octet == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (path, token, answer) = (next(), next(), next());
    let (Ok(token), Ok(answer)) = (str::from_utf8(token), str::from_utf8(answer)) else { return };
    let store = Arc::<ChallengeStore>::default();
    assert!(store.http_answer(path).is_none());
    let pending = store.add_http(token, answer).expect("there is room for one answer");
    let own_path = [HTTP_CHALLENGE_PATH, token.as_bytes()].concat();
    assert_eq!(store.http_answer(path).is_some(), path == own_path);
    assert_eq!(store.http_answer(&own_path).as_deref(), Some(answer));
    drop(pending);
    assert!(store.http_answer(&own_path).is_none());
});
