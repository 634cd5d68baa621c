//! Converts a message to 7 bits while it is read, for servers without 8BITMIME (RFC 6152 section 3)
//! and before signing (RFC 6376 section 5.3). Memory is bounded, whatever the message.
//!
//! A message is read twice: a [`SevenBitScan`] finds which parts have octets above 127, NUL, or lines
//! of more than 998 octets, and makes a [`SevenBitPlan`]; a [`SevenBitConverter`] then writes the
//! message by that plan.
//!
//! | what                                    | becomes                                                  |
//! |-----------------------------------------|----------------------------------------------------------|
//! | a part in 7 bits                        | the same octets; `8bit` and `binary` become `7bit`       |
//! | text, and messages but message/rfc822   | quoted-printable                                         |
//! | other content                           | base64                                                   |
//! | message/rfc822                          | its parts are converted                                  |
//! | multipart                               | its parts are converted                                  |
//! | multipart without any delimiter         | as text                                                  |
//! | multipart/signed                        | the same octets: nobody may change it on its way (RFC 1847 section 2.1) |
//! | quoted-printable with 8-bit octets      | these are escaped, as readers take them                  |
//! | base64 with 8-bit octets                | these become `?`, which readers ignore as well           |
//! | before and after the parts of a multipart | quoted-printable, without a label                       |
//! | header fields                           | the same octets: 8BITMIME does not allow others either   |
//!
//! A message that is changed has MIME-Version. If it had no Content-Type, that becomes text of
//! `unknown-8bit` (RFC 1428). Only [`DEPTH_MAX`](super::DEPTH_MAX) and [`PARTS_MAX`](super::PARTS_MAX)
//! prevent a conversion.

mod encoder;
mod plan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

pub use plan::{SevenBitPlan, SevenBitScan};

use super::{
    ContentKind, DeclaredEncoding, FieldKind, LineFragment, PartHeader, PartLimitError, PartVisitor, PartWalker,
    Structure,
};
use encoder::Encoder;
use plan::{PartPlan, Treatment};

/// Converts a message in memory. Borrowed if nothing has to be changed.
pub fn to_seven_bit(message: &[u8]) -> Result<Cow<'_, [u8]>, PartLimitError> {
    let mut scan = SevenBitScan::new();
    scan.handle_input(message);
    let plan = scan.finish()?;
    if plan.is_identity() {
        return Ok(Cow::Borrowed(message));
    }
    let mut converted = Vec::with_capacity(message.len() + message.len() / 2);
    let mut converter = SevenBitConverter::new(Arc::new(plan));
    converter.handle_input(message, &mut converted);
    converter.finish(&mut converted);
    Ok(Cow::Owned(converted))
}

/// Writes a message in 7 bits, by its plan.
#[derive(Debug)]
pub struct SevenBitConverter {
    walker: PartWalker,
    plan: Arc<SevenBitPlan>,
    position: PartPosition,
}

/// The position in a part.
#[derive(Debug)]
struct PartPosition {
    part: PartPlan,
    /// The new fields of the header are still to be written.
    owes_fields: bool,
    encoder: Encoder,
}

impl SevenBitConverter {
    /// Starts before the first octet.
    pub fn new(plan: Arc<SevenBitPlan>) -> SevenBitConverter {
        let position = PartPosition { part: PartPlan::default(), owes_fields: false, encoder: Encoder::Verbatim };
        SevenBitConverter { walker: PartWalker::new(), plan, position }
    }

    /// Reads the next octets of the message, and appends what becomes of them to `out`: at most four
    /// octets for each octet, and a few kilobytes. Where the message is split makes no difference to
    /// the result.
    pub fn handle_input(&mut self, input: &[u8], out: &mut Vec<u8>) {
        let mut writer = PartWriter { plan: &self.plan, position: &mut self.position, out };
        self.walker.handle_input(input, &mut writer);
    }

    /// The message ends here; appends the rest.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let mut writer = PartWriter { plan: &self.plan, position: &mut self.position, out };
        // The scan has kept the limits.
        let _ = self.walker.finish(&mut writer);
    }
}

struct PartWriter<'a> {
    plan: &'a SevenBitPlan,
    position: &'a mut PartPosition,
    out: &'a mut Vec<u8>,
}

impl PartWriter<'_> {
    /// Writes the new fields in place of the old ones, or at the end of the header.
    fn write_fields(&mut self) {
        if !std::mem::take(&mut self.position.owes_fields) {
            return;
        }
        let part = self.position.part;
        if part.adds_mime_version {
            self.out.extend_from_slice(b"MIME-Version: 1.0\r\n");
        }
        if part.adds_content_type {
            self.out.extend_from_slice(b"Content-Type: text/plain; charset=unknown-8bit\r\n");
        }
        if let Some(label) = part.treatment.label() {
            self.out.extend_from_slice(format!("Content-Transfer-Encoding: {label}\r\n").as_bytes());
        }
    }
}

impl PartVisitor for PartWriter<'_> {
    fn begin_header(&mut self, part: usize, _is_message: bool) {
        self.position.part = self.plan.part(part);
        self.position.owes_fields = true;
    }

    fn header_line(&mut self, kind: FieldKind, line: &LineFragment<'_>) {
        let is_replaced = kind == FieldKind::TransferEncoding && self.position.part.treatment.label().is_some();
        let is_continuation = line.text.starts_with(b" ") || line.text.starts_with(b"\t");
        if is_replaced || (kind == FieldKind::Malformed && !is_continuation) {
            self.write_fields();
        }
        if !is_replaced {
            self.out.extend_from_slice(line.text);
            self.out.extend_from_slice(line.end);
        }
    }

    fn end_header(&mut self, _header: &PartHeader, kind: &ContentKind) -> Structure {
        self.write_fields();
        let treatment = self.position.part.treatment;
        self.position.encoder = match treatment {
            Treatment::Keep | Treatment::SevenBit => Encoder::Verbatim,
            Treatment::QuotedPrintable => Encoder::QuotedPrintable(encoder::QuotedPrintable::default()),
            Treatment::Base64 => Encoder::Base64(encoder::Base64Lines::default()),
            Treatment::MendQuotedPrintable => Encoder::MendedQuotedPrintable(encoder::MendedQuotedPrintable::default()),
            Treatment::MendBase64 => Encoder::MendedBase64(encoder::MendedBase64::default()),
        };
        match kind {
            ContentKind::Message => Structure::Message,
            ContentKind::Multipart { is_signed: false, .. }
                if matches!(treatment, Treatment::Keep | Treatment::SevenBit) =>
            {
                Structure::Multipart
            }
            _ => Structure::Leaf,
        }
    }

    fn begin_outside(&mut self, part: usize) {
        self.position.encoder = match self.plan.part(part).encodes_outside {
            true => Encoder::QuotedPrintable(encoder::QuotedPrintable::default()),
            false => Encoder::Verbatim,
        };
    }

    fn text(&mut self, text: &[u8]) {
        self.position.encoder.handle_text(text, self.out);
    }

    fn line_end(&mut self, end: &[u8]) {
        self.position.encoder.handle_line_end(end, self.out);
    }

    fn end_content(&mut self, is_end_of_message: bool) {
        self.position.encoder.finish(is_end_of_message, self.out);
    }

    fn separator(&mut self, octets: &[u8]) {
        self.out.extend_from_slice(octets);
    }

    fn end_multipart(&mut self, _part: usize, _encoding: DeclaredEncoding, _has_parts: bool) {}
}
