//! What a check may change in a message.

use std::fmt;
use std::ops::Range;

use mail::{Address, DsnNotify, DsnReturn};

/// One replaced range of octets, and what stands there instead.
pub type ReplacedOctets = (Range<u64>, Vec<u8>);

/// A change to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Puts a field before all others, trace fields included.
    PrependField(Field),
    /// Puts a field after all others.
    AppendField(Field),
    /// Puts a field between others, trace fields included; after all others if there are not so many.
    InsertField {
        /// The number of fields before it.
        index: usize,
        /// The new field.
        field: Field,
    },
    /// Replaces a field, trace fields included. Without such an occurrence nothing is removed, and a
    /// new field is put after all others.
    ReplaceField {
        /// The name, in any case.
        name: Box<str>,
        /// Which one of several, counted from 1 at the top.
        occurrence: usize,
        /// The new field; None removes it.
        field: Option<Field>,
    },
    /// Removes fields of the content's header: their places in the content as it is now, in ascending
    /// order, each with its CRLF.
    RemoveFields {
        /// In bytes from the start of the content.
        places: Box<[Range<usize>]>,
    },
    /// Replaces octets of the content: their places in it as it is now, in ascending order and without
    /// overlap. The content still consists of whole lines.
    ReplaceOctets {
        /// In bytes from the start of the content, each with what replaces it.
        changes: Box<[ReplacedOctets]>,
    },
    /// Replaces what follows the header and the empty line. Lines end in CRLF.
    ReplaceBody(Vec<u8>),
    /// Replaces all of the content. Lines end in CRLF.
    ReplaceContent(Vec<u8>),
    /// Replaces the sender; None is the null sender.
    ChangeSender(Option<Address>),
    /// Replaces what the sender asked of notices (RFC 3461 sections 4.3 and 4.4).
    ChangeNoticeRequest {
        /// RET.
        ret: Option<DsnReturn>,
        /// ENVID, in xtext.
        envid: Option<Box<str>>,
    },
    /// Adds a recipient, who is looked up in the directory like any other.
    AddRecipient {
        /// The address.
        address: Address,
        /// Which notices to send.
        notify: DsnNotify,
        /// ORCPT, with its type.
        orcpt: Option<Box<str>>,
    },
    /// Removes a recipient, with whatever it resolved to.
    RemoveRecipient(Address),
    /// Puts this recipient, who is looked up in the directory like any other, in the place of all.
    Redirect(Address),
}

/// A header field (RFC 5322 section 2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    wire: Box<str>,
}

/// The text is not a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a header field: the name needs printable ASCII without a colon, and a line of the value a leading space")]
pub struct InvalidField;

impl Edit {
    /// Adds a recipient without ESMTP parameters.
    pub fn add_recipient(address: Address) -> Edit {
        Edit::AddRecipient { address, notify: DsnNotify::UNSET, orcpt: None }
    }
}

impl Field {
    /// A field from its name and value. The value may be folded with CRLF and white space, and has
    /// no final CRLF.
    ///
    /// # Errors
    ///
    /// The name or the folding is invalid: such a field could end the header, or add other fields.
    pub fn new(name: &str, value: &str) -> Result<Field, InvalidField> {
        let is_name = !name.is_empty() && name.bytes().all(|octet| octet.is_ascii_graphic() && octet != b':');
        let mut lines = value.split("\r\n");
        let is_line = |line: &str| !line.bytes().any(|octet| matches!(octet, b'\r' | b'\n' | b'\0'));
        let is_folded = lines.next().is_some_and(is_line)
            && lines.all(|line| is_line(line) && line.starts_with([' ', '\t']) && !line.trim().is_empty());
        (is_name && is_folded).then(|| Field { wire: format!("{name}: {value}\r\n").into() }).ok_or(InvalidField)
    }

    /// The field as it is sent, with its final CRLF.
    pub fn wire(&self) -> &str {
        &self.wire
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire.trim_end())
    }
}

/// An address as a filter writes it, without the angle brackets around it, if it has them.
pub(crate) fn without_brackets(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text)
}

/// Whether others may take this body for several messages (see `protocol`): a CR or LF stands alone.
pub fn has_bare_newline(body: &[u8]) -> bool {
    let mut previous = 0;
    for &octet in body {
        if (octet == b'\n') != (previous == b'\r') {
            return true;
        }
        previous = octet;
    }
    previous == b'\r'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_cannot_end_the_header_or_add_another_one() {
        let field = Field::new("X-Test", "one\r\n\ttwo").unwrap();
        assert_eq!(field.wire(), "X-Test: one\r\n\ttwo\r\n");
        for (name, value) in [
            ("", "x"),
            ("X Test", "x"),
            ("X:Test", "x"),
            ("X-T\u{e4}st", "x"),
            ("X-Test", "x\r\nBcc: y"),
            ("X-Test", "x\r\n\r\nbody"),
            ("X-Test", "x\r\n \r\n y"),
            ("X-Test", "x\nBcc: y"),
            ("X-Test", "x\r"),
            ("X-Test", "x\0"),
        ] {
            assert_eq!(Field::new(name, value), Err(InvalidField), "{name}: {value}");
        }
    }
}
