//! Whether the body of a message on a disk is what was stored. Mail that is damaged must not keep other mail
//! from being copied or moved.

use mail::{Body, BodyError};

/// So many bytes are read at once.
const READ_BYTES: usize = 64 << 10;

/// Reads a body to its end. Blocks.
pub(super) fn check_body(body: &Body) -> Result<(), BodyError> {
    let (mut part, mut position, mut found) = (vec![0; READ_BYTES], 0, 0);
    while position < body.len() {
        let count = body.read_at(&mut part, position)?;
        found = crc32c::crc32c_append(found, &part[..count]);
        position += count as u64;
    }
    if found == body.digest() { Ok(()) } else { Err(BodyError::Digest { found, expected: body.digest() }) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mail::BodyFlags;

    use super::*;

    #[test]
    fn only_a_body_with_all_its_bytes_is_intact() {
        let text = vec![b'x'; 2 * READ_BYTES + 1];
        let (len, digest) = (text.len() as u64, crc32c::crc32c(&text));
        let body = |text: &[u8]| Body::new(Arc::new(text.to_vec()), 0, len, digest, BodyFlags::default());
        let mut other = text.clone();
        other[READ_BYTES] = b'y';
        assert!(check_body(&body(&text)).is_ok());
        assert!(matches!(check_body(&body(&other)), Err(BodyError::Digest { .. })));
        assert!(matches!(check_body(&body(&text[1..])), Err(BodyError::Unreadable(_))));
    }
}
