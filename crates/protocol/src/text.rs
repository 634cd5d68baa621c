//! Makes text from a peer safe for logs and reports.

use std::borrow::Cow;

/// The text with each control character replaced by a space, and invalid UTF-8 by U+FFFD.
pub(crate) fn printable(text: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(text) {
        Ok(text) if !text.chars().any(char::is_control) => Cow::Borrowed(text),
        _ => Cow::Owned(String::from_utf8_lossy(text).replace(char::is_control, " ")),
    }
}
