//! The values of header fields.

/// The end of a line and the empty line after it.
pub(super) const HEAD_END: &[u8] = b"\r\n\r\n";

/// Parses digits only.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    let is_sound = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_sound.then(|| str::from_utf8(digits).ok()?.parse().ok())?
}

/// The members of a list without quoted strings (RFC 9110 section 5.6.1), some of which may be
/// empty.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}
