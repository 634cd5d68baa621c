//! The structure of MIME messages (RFC 2045, 2046), as far as a mail server reads and changes it.
//!
//! A [`PartWalker`] finds the parts of a message while it is read, for a [`PartVisitor`]. Memory is
//! bounded, whatever the message: [`DEPTH_MAX`] and [`PARTS_MAX`] end the walk.

mod content_type;
mod header;
mod lines;
pub mod seven_bit;
mod walker;

pub use header::{ContentKind, DeclaredEncoding, FieldKind, HEADER_END, PartHeader, header_len, header_len_from};
pub use lines::{FRAGMENT_OCTETS_MAX, LineFragment};
pub use walker::{DEPTH_MAX, PARTS_MAX, PartLimitError, PartVisitor, PartWalker, Structure};
