//! Any bytes as the file of the HTTP API's tokens, and any text as a token, separated by NUL: no panic, what is
//! not even spelt as a token is never accepted, and a valid file accepts its own token alone.

#![no_main]

use control::tokens::file_accepts;
use libfuzzer_sys::fuzz_target;
use mail::Timestamp;

const NOW: Timestamp = Timestamp(784_111_777_000);
const TOKEN: &str = "mailrace_0123456789ab_c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ";
/// Has the hash of that token's secret.
const FILE: &str = r#"[{"id":"0123456789ab","name":"a","role":"read","created":0,"expires":null,
    "sha256":"58e6bd850f5a383c61200dda3cda87f7a15930399e8132cc54e030f1ae4f8c1b"}]"#;

fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|octet| *octet == 0).unwrap_or(bytes.len());
    let (file, text) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let Ok(text) = str::from_utf8(text) else { return };
    assert!(!file_accepts(file, text, NOW) || text.starts_with("mailrace_"), "{text:?}");
    assert_eq!(file_accepts(FILE.as_bytes(), text, NOW), text == TOKEN, "{text:?}");
    assert!(file_accepts(FILE.as_bytes(), TOKEN, NOW));
});
