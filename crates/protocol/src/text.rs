//! What a peer said, made fit for logs and reports.

use std::borrow::Cow;

/// The text without control characters, each of which becomes a space; broken letters become the mark for such.
pub(crate) fn printable(text: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(text) {
        Ok(text) if !text.chars().any(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(String::from_utf8_lossy(text).replace(char::is_control, " ")),
    }
}
