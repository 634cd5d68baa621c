//! Attachments: which parts of a message are ones, and which of them a rule is about.

use protocol::mime::ContentKind;

use super::Pattern;
use super::field_text::{name_and_value, type_and_names, unfolded};
use crate::header;

/// Octets of a field that names a file; the time to read one may grow with the square of its length.
pub(super) const ATTACHMENT_FIELD_OCTETS_MAX: usize = 4 << 10;
/// File names of one part. Mail programs write one or two; a field of `name=name=name=...` has one that ends the field
/// at each `=`.
pub(super) const ATTACHMENT_NAMES_MAX: usize = 32;
/// Octets of all of them: the names of all attachments of a message are kept for tables.
const ATTACHMENT_NAMES_OCTETS_MAX: usize = 4 * ATTACHMENT_FIELD_OCTETS_MAX;
/// The type of a part that does not say it (RFC 2045 section 5.2).
const DEFAULT_TYPE: &str = "text/plain";
/// Messages with a header and perhaps parts of their own (RFC 2046 section 5.2.1, RFC 6532 section 3.7).
const ENCLOSED_MESSAGES: [&str; 2] = ["message/rfc822", "message/global"];

/// Which attachments match: all that is given must hold for one of them. An attachment is a part with a
/// file name, one that says it is an attachment, or one that is not text; but no multipart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttachmentCondition {
    /// One of its file names matches one of these, which are of whole names or not; empty: whatever its name.
    pub names: Vec<Pattern>,
    /// Its type matches one of these; empty: whatever its type.
    pub types: Vec<Pattern>,
    /// It has more octets than this, decoded.
    pub larger_than: Option<u64>,
    /// The table has one of its file names in lower case, or the end of one with its dot (`.exe`).
    pub table: Option<Box<str>>,
}

/// A part that is an attachment.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    /// In lower case.
    pub(super) media_type: String,
    /// From all fields that name a file: readers differ in which one they use.
    pub(super) names: Vec<String>,
    /// Decoded.
    pub(super) octets: u64,
}

/// What the header of a part says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PartFields {
    Read {
        media_type: String,
        names: Vec<String>,
        is_marked: bool,
    },
    /// A field is too long, there are too many names, or a second type names parts that the first does not.
    Unreadable,
}

impl AttachmentCondition {
    /// Whether it meets all conditions but that of the table.
    pub(super) fn includes(&self, attachment: &Attachment) -> bool {
        let has_name = |pattern: &Pattern| attachment.names.iter().any(|name| pattern.is_match(name));
        let is_larger = self.larger_than.is_none_or(|limit| attachment.octets > limit);
        let has_type = |pattern: &Pattern| pattern.is_match(&attachment.media_type);
        is_larger
            && (self.names.is_empty() || self.names.iter().any(has_name))
            && (self.types.is_empty() || self.types.iter().any(has_type))
    }
}

impl PartFields {
    /// Reads the header of a part.
    pub(super) fn read(part_header: &[u8]) -> PartFields {
        let (mut media_type, mut names, mut is_marked) = (None, Vec::new(), false);
        let mut first_type = String::new();
        for field in header::fields(part_header) {
            let is_disposition = header::is_named(field, "Content-Disposition");
            if !is_disposition && !header::is_named(field, "Content-Type") {
                continue;
            }
            let text = unfolded(field);
            let value = name_and_value(&text).map_or("", |(_, value)| value);
            let Some((word, named)) = type_and_names(value).filter(|_| field.len() <= ATTACHMENT_FIELD_OCTETS_MAX)
            else {
                return PartFields::Unreadable;
            };
            names.extend(named);
            let octets: usize = names.iter().map(String::len).sum();
            if names.len() > ATTACHMENT_NAMES_MAX || octets > ATTACHMENT_NAMES_OCTETS_MAX {
                return PartFields::Unreadable;
            }
            if is_disposition {
                is_marked |= word == "attachment";
            } else if media_type.is_none() {
                (media_type, first_type) = (Some(word), value.to_owned());
            } else if value != first_type && word.starts_with("multipart/") {
                // Readers that take the last field find parts here that nobody has looked at.
                return PartFields::Unreadable;
            }
        }
        let media_type = media_type.filter(|found| found.contains('/')).unwrap_or_else(|| DEFAULT_TYPE.to_owned());
        PartFields::Read { media_type, names, is_marked }
    }

    /// Whether the content is a message.
    pub(super) fn encloses_message(&self) -> bool {
        matches!(self, PartFields::Read { media_type, .. } if ENCLOSED_MESSAGES.contains(&media_type.as_str()))
    }

    /// The attachment that the part is, before its content is read.
    pub(super) fn into_attachment(self, kind: &ContentKind) -> Option<Attachment> {
        let PartFields::Read { media_type, names, is_marked } = self else { return None };
        let is_multipart = matches!(kind, ContentKind::Multipart { .. });
        let is_attachment = is_marked || !names.is_empty() || !media_type.starts_with("text/");
        (is_attachment && !is_multipart).then_some(Attachment { media_type, names, octets: 0 })
    }
}
