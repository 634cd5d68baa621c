//! Which header fields a signature covers. A field that the list names once more than the header has
//! it cannot be added later without breaking the signature (RFC 6376 section 8.15): the list
//! "oversigns" it.
//!
//! | field | absent | present |
//! |---|---|---|
//! | what readers see, and what decides how the message is shown | oversigned | signed and oversigned |
//! | what mailing lists add | not signed | signed and oversigned |
//! | trace fields, and all others | not signed | not signed |

use aws_lc_rs::digest::Context;

use crate::canonical_form::CanonicalForm;
use crate::message_header::{HeaderField, MessageHeader};

/// Always in the list.
const ALWAYS: [&str; 12] = [
    "From",
    "Subject",
    "Date",
    "To",
    "Cc",
    "Reply-To",
    "Message-ID",
    "In-Reply-To",
    "References",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
];

/// In the list if the message has them: a mailing list that changes nothing else may add its own.
const IF_PRESENT: [&str; 9] = [
    "Sender",
    "List-Id",
    "List-Help",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
    "List-Subscribe",
    "List-Post",
    "List-Owner",
    "List-Archive",
];

/// Occurrences of all of them. RFC 5322 section 3.6 allows each once.
const FIELDS_MAX: usize = 100;

/// The fields of one message that a signature covers.
pub(super) struct SignedFields<'a> {
    /// Each with the occurrences in the order of signing: from the bottom up (RFC 6376 section
    /// 5.4.2).
    selected: Vec<(&'static str, Vec<HeaderField<'a>>)>,
}

/// The header repeats fields too often to be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyFields;

impl<'a> SignedFields<'a> {
    pub(super) fn select(header: &'a MessageHeader) -> Result<SignedFields<'a>, TooManyFields> {
        let upwards: Vec<_> = header.fields().rev().map(|(_, field)| field).collect();
        let named = |name: &'static str| {
            let fields = upwards.iter().filter(|field| field.is_named(name.as_bytes()));
            (name, fields.copied().collect::<Vec<_>>())
        };
        let optional = IF_PRESENT.into_iter().map(named).filter(|(_, fields)| !fields.is_empty());
        let selected: Vec<_> = ALWAYS.into_iter().map(named).chain(optional).collect();
        let count: usize = selected.iter().map(|(_, fields)| fields.len()).sum();
        if count > FIELDS_MAX { Err(TooManyFields) } else { Ok(SignedFields { selected }) }
    }

    /// The names for the `h=` tag, in the order of signing.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.selected.iter().flat_map(|(name, fields)| std::iter::repeat_n(*name, fields.len() + 1))
    }

    /// Hashes the fields in relaxed form. Missing ones are empty (RFC 6376 section 5.4).
    pub(super) fn hash(&self, digest: &mut Context) {
        let mut canonical = Vec::new();
        for field in self.selected.iter().flat_map(|(_, fields)| fields) {
            CanonicalForm::Relaxed.push_field(field, &mut canonical);
            canonical.extend_from_slice(b"\r\n");
        }
        digest.update(&canonical);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_oversigned_from_the_bottom_up() {
        let header = b"Received: x\r\nTo: second\r\nList-Id: l\r\nFrom: a\r\nX-Other: y\r\nto : first\r\n";
        let header = MessageHeader::parse(header.to_vec());
        let fields = SignedFields::select(&header).unwrap();
        let names: Vec<_> = fields.names().collect();
        assert_eq!(
            names.join(":"),
            "From:From:Subject:Date:To:To:To:Cc:Reply-To:Message-ID:In-Reply-To:References:MIME-Version:\
             Content-Type:Content-Transfer-Encoding:List-Id:List-Id"
        );
        let to = fields.selected.iter().find(|(name, _)| *name == "To").unwrap();
        let values: Vec<_> = to.1.iter().map(|field| field.line).collect();
        assert_eq!(values, [&b"to : first"[..], b"To: second"]);
    }

    #[test]
    fn a_header_with_too_many_fields_is_not_signed() {
        let header = |count: usize| MessageHeader::parse("Cc: x\r\n".repeat(count).into_bytes());
        assert!(SignedFields::select(&header(FIELDS_MAX)).is_ok());
        assert!(SignedFields::select(&header(FIELDS_MAX + 1)).is_err());
    }
}
