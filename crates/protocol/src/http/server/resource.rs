//! What a path stands for: its content, and the fields that describe it, formatted once.

use std::borrow::Cow;

use mail::Timestamp;

/// A resource. The fields of its responses are made when it is, since many responses have them.
#[derive(Debug)]
pub struct Resource {
    content: Content,
    /// With its quotes.
    etag: Box<str>,
    modified: Timestamp,
    content_type: Cow<'static, str>,
    /// Content-Length of the whole, Content-Type, what every response has, the validators, and what
    /// was added, each with CRLF.
    fields: Box<[u8]>,
    /// Where the parts of `fields` after Content-Length begin.
    type_at: usize,
    common_at: usize,
    validators_at: usize,
}

/// Where the octets of a resource are.
#[derive(Debug)]
pub enum Content {
    /// Here.
    Bytes(Box<[u8]>),
    /// In a file, which the driver has.
    File {
        /// Its length.
        octets: u64,
    },
}

impl Resource {
    /// `version` changes with every change of the content: visible ASCII without quotes, for a
    /// strong entity tag (RFC 9110 section 8.8.3). `modified` is cut to seconds, and must not be in
    /// the future.
    /// The content type has no control characters.
    pub fn new(
        content: Content,
        version: &str,
        modified: Timestamp,
        content_type: impl Into<Cow<'static, str>>,
    ) -> Resource {
        let content_type = content_type.into();
        let octets = content.octets();
        let modified = Timestamp(modified.seconds() * 1000);
        let etag = format!("\"{version}\"");
        let length_field = format!("Content-Length: {octets}\r\n");
        let type_field = format!("Content-Type: {content_type}\r\n");
        let common = "Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n";
        let validators = format!("ETag: {etag}\r\nLast-Modified: {}\r\n", modified.to_http_date());
        let type_at = length_field.len();
        let common_at = type_at + type_field.len();
        Resource {
            content,
            etag: etag.into(),
            modified,
            content_type,
            fields: [&*length_field, &type_field, common, &validators].concat().into_bytes().into(),
            type_at,
            common_at,
            validators_at: common_at + common.len(),
        }
    }

    /// Adds a field to all responses with this resource, also to those that say that it has not
    /// changed. Control characters are left out of its value.
    #[must_use]
    pub fn with_field(self, name: &'static str, value: &str) -> Resource {
        let value: String = value.chars().filter(|character| !character.is_control()).collect();
        let mut fields = self.fields.into_vec();
        fields.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        Resource { fields: fields.into(), ..self }
    }

    /// Its length.
    pub fn octets(&self) -> u64 {
        self.content.octets()
    }

    /// Its octets; None if they are in a file.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Bytes(bytes) => Some(bytes),
            Content::File { .. } => None,
        }
    }

    pub(super) fn etag(&self) -> &str {
        &self.etag
    }

    pub(super) fn modified(&self) -> Timestamp {
        self.modified
    }

    pub(super) fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The fields of a response with the whole resource.
    pub(super) fn whole_fields(&self) -> &[u8] {
        &self.fields
    }

    /// The fields of a response with one part, except its length.
    pub(super) fn part_fields(&self) -> &[u8] {
        &self.fields[self.type_at..]
    }

    /// The fields of a response with several parts, except its type and length.
    pub(super) fn multipart_fields(&self) -> &[u8] {
        &self.fields[self.common_at..]
    }

    /// The fields of a response without content.
    pub(super) fn validators(&self) -> &[u8] {
        &self.fields[self.validators_at..]
    }
}

impl Content {
    fn octets(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File { octets } => *octets,
        }
    }
}
