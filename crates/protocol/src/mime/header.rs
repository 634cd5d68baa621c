//! The header of a message or part: the fields that say what its content is, and how it is encoded.
//! The first field of a name counts. Only an empty line ends the header, or a delimiter.

use memchr::{memchr, memmem};

use super::content_type::{ContentType, first_word};
use super::lines::LineFragment;

/// Octets of a Content-Type field that are read. A longer multipart is not changed: its boundary may
/// come later.
const FIELD_OCTETS_MAX: usize = 8 << 10;

/// The end of the last field, and the empty line.
pub const HEADER_END: &[u8] = b"\r\n\r\n";

/// The length of the header of a message, without the empty line after it. None if these first bytes do
/// not contain its end; `is_whole` says that there are no more, and then they are the header.
pub fn header_len(start: &[u8], is_whole: bool) -> Option<usize> {
    header_len_from(start, 0, is_whole)
}

/// The same, where the end does not begin before `searched`.
pub fn header_len_from(start: &[u8], searched: usize, is_whole: bool) -> Option<usize> {
    if start.starts_with(b"\r\n") {
        return Some(0);
    }
    let end = memmem::find(&start[searched..], HEADER_END).map(|end| searched + end + 2);
    end.or(is_whole.then_some(start.len()))
}

/// What a line of a header belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Content-Type.
    ContentType,
    /// Content-Transfer-Encoding.
    TransferEncoding,
    /// MIME-Version.
    MimeVersion,
    /// Another field.
    Other,
    /// No field: some readers end the header before it.
    Malformed,
}

/// What Content-Transfer-Encoding says (RFC 2045 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredEncoding {
    /// `7bit`, or nothing.
    SevenBit,
    /// `8bit` or `binary`.
    EightBit,
    /// `quoted-printable`.
    QuotedPrintable,
    /// `base64`.
    Base64,
    /// Readers show such a content as it is.
    Unknown,
}

/// What a content is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentKind {
    /// Text, or made of lines like it.
    Text,
    /// Anything else that has no parts.
    Binary,
    /// A message with a header of its own.
    Message,
    /// Parts between delimiters.
    Multipart {
        /// What delimiters have after their two hyphens.
        boundary: Box<[u8]>,
        /// Parts without a type are messages (RFC 2046 section 5.1.5).
        is_digest: bool,
        /// multipart/signed, which nobody on the way may change (RFC 1847 section 2.1).
        is_signed: bool,
    },
    /// A multipart whose boundary is not understood, while readers may find its parts.
    OpaqueMultipart,
}

/// A header as it comes in.
#[derive(Debug)]
pub struct PartHeader {
    field: FieldKind,
    content_type: Option<Vec<u8>>,
    encoding: Option<Vec<u8>>,
    /// The field that is being read counts.
    is_first: bool,
    pub(super) has_mime_version: bool,
    default_is_message: bool,
    /// Once it is asked for, until the fields change that it depends on: parts of a hostile message may
    /// ask for each of a million lines.
    content_kind: Option<ContentKind>,
}

impl PartHeader {
    pub(super) fn new(default_is_message: bool) -> PartHeader {
        PartHeader {
            field: FieldKind::Malformed,
            content_type: None,
            encoding: None,
            is_first: false,
            has_mime_version: false,
            default_is_message,
            content_kind: None,
        }
    }

    pub(super) fn has_content_type(&self) -> bool {
        self.content_type.is_some()
    }

    /// Takes the next fragment, and says what it belongs to.
    pub(super) fn handle_line(&mut self, line: &LineFragment<'_>) -> FieldKind {
        if !line.is_start || line.text.starts_with(b" ") || line.text.starts_with(b"\t") {
            self.collect(line.text);
            return self.field;
        }
        let (field, value) = field_and_value(line.text);
        self.field = field;
        self.is_first = match field {
            FieldKind::ContentType => self.content_type.is_none(),
            FieldKind::TransferEncoding => self.encoding.is_none(),
            FieldKind::MimeVersion | FieldKind::Other | FieldKind::Malformed => false,
        };
        self.has_mime_version |= field == FieldKind::MimeVersion;
        self.collect(value);
        field
    }

    fn collect(&mut self, text: &[u8]) {
        let value = match self.field {
            FieldKind::ContentType if self.is_first => self.content_type.get_or_insert_default(),
            FieldKind::TransferEncoding if self.is_first => self.encoding.get_or_insert_default(),
            _ => return,
        };
        self.content_kind = None;
        let room = FIELD_OCTETS_MAX.saturating_sub(value.len());
        value.extend_from_slice(&text[..text.len().min(room)]);
    }

    /// How the content is encoded.
    pub fn encoding(&self) -> DeclaredEncoding {
        let word = first_word(self.encoding.as_deref().unwrap_or_default());
        match word.to_ascii_lowercase().as_slice() {
            b"" | b"7bit" => DeclaredEncoding::SevenBit,
            b"8bit" | b"binary" => DeclaredEncoding::EightBit,
            b"quoted-printable" => DeclaredEncoding::QuotedPrintable,
            b"base64" => DeclaredEncoding::Base64,
            _ => DeclaredEncoding::Unknown,
        }
    }

    /// What the content is, as far as the header has come in.
    pub(super) fn content_kind(&mut self) -> &ContentKind {
        let found = self.content_kind.take().unwrap_or_else(|| self.find_content_kind());
        self.content_kind.insert(found)
    }

    /// RFC 2045 section 5.2: text, unless the header says otherwise.
    fn find_content_kind(&self) -> ContentKind {
        let is_encoded = matches!(self.encoding(), DeclaredEncoding::QuotedPrintable | DeclaredEncoding::Base64);
        let found = match &self.content_type {
            None if self.default_is_message => return ContentKind::Message,
            None => return ContentKind::Text,
            Some(value) => ContentType::parse(value),
        };
        let is_cut = self.content_type.as_ref().is_some_and(|value| value.len() == FIELD_OCTETS_MAX);
        match (found.main.as_slice(), found.sub.as_slice(), found.boundary) {
            (b"multipart", _, _) if found.has_unknown_boundary || is_cut => ContentKind::OpaqueMultipart,
            (b"multipart", sub, Some(boundary)) => {
                ContentKind::Multipart { boundary, is_digest: sub == b"digest", is_signed: sub == b"signed" }
            }
            (b"multipart", b"signed", None) => ContentKind::OpaqueMultipart,
            // An encoded message, which RFC 2045 section 6.4 forbids, is passed through unread.
            (b"message", b"rfc822", _) if !is_encoded => ContentKind::Message,
            (b"text" | b"message" | b"multipart" | b"", _, _) => ContentKind::Text,
            _ => ContentKind::Binary,
        }
    }
}

fn field_and_value(line: &[u8]) -> (FieldKind, &[u8]) {
    let Some(colon) = memchr(b':', line) else {
        // The first line of an mbox.
        let kind = if line.starts_with(b"From ") { FieldKind::Other } else { FieldKind::Malformed };
        return (kind, line);
    };
    let (name, value) = (line[..colon].trim_ascii_end(), &line[colon + 1..]);
    let kind = match name {
        _ if name.eq_ignore_ascii_case(b"Content-Type") => FieldKind::ContentType,
        _ if name.eq_ignore_ascii_case(b"Content-Transfer-Encoding") => FieldKind::TransferEncoding,
        _ if name.eq_ignore_ascii_case(b"MIME-Version") => FieldKind::MimeVersion,
        _ if line.starts_with(b"From ") || (!name.is_empty() && name.iter().all(u8::is_ascii_graphic)) => {
            FieldKind::Other
        }
        _ => FieldKind::Malformed,
    };
    (kind, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_ends_before_the_empty_line() {
        assert_eq!(header_len(b"A: 1\r\n\r\nbody\r\n\r\n", false), Some(6));
        assert_eq!(header_len(b"\r\nbody", false), Some(0));
        assert_eq!(header_len(b"A: 1\r\n", false), None);
        assert_eq!(header_len(b"A: 1\r\n", true), Some(6));
        assert_eq!(header_len(b"", true), Some(0));
    }
}
