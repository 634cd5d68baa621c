//! Any bytes as a message to sign: no panic; the canonical body does not depend on how the body is
//! split, and is its own canonical form; so is a canonical field.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sender_auth::author::find_author;
use sender_auth::canonical::{BodyCanonicalizer, Canonicalization};

fn canonical(algorithm: Canonicalization, body: &[u8], chunk: usize) -> Vec<u8> {
    let (mut canonicalizer, mut canonical) = (BodyCanonicalizer::new(algorithm), Vec::new());
    body.chunks(chunk).for_each(|chunk| canonicalizer.update(chunk, &mut canonical));
    canonicalizer.finish(&mut canonical);
    canonical
}

fuzz_target!(|input: (u8, &[u8])| {
    let (chunk, bytes) = (usize::from(input.0) + 1, input.1);
    find_author(bytes);
    for algorithm in [Canonicalization::Simple, Canonicalization::Relaxed] {
        let whole = canonical(algorithm, bytes, usize::MAX);
        assert_eq!(canonical(algorithm, bytes, chunk), whole);
        assert_eq!(canonical(algorithm, &whole, chunk), whole);
        assert!(whole.is_empty() || whole.ends_with(b"\r\n"));
    }
    for field in filter::header::fields(bytes) {
        let (mut once, mut twice) = (Vec::new(), Vec::new());
        Canonicalization::Relaxed.write_field(field, &mut once);
        Canonicalization::Relaxed.write_field(&once, &mut twice);
        assert_eq!(once, twice);
    }
});
