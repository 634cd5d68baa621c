//! What the conversion changes, part by part. The plan is made by reading the message once; it is
//! needed because the header of a part, which says how it is encoded, comes before its content.

use crate::mime::{
    ContentKind, DeclaredEncoding, FieldKind, LineFragment, PartHeader, PartLimitError, PartVisitor, PartWalker,
    Structure,
};

/// Octets of a line, without its end (RFC 5321 section 4.5.3.1.6).
const LINE_OCTETS_MAX: usize = 998;

/// What the conversion of one message changes. It fits no other message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SevenBitPlan {
    parts: Vec<PartPlan>,
}

/// What is changed in one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartPlan {
    pub(super) treatment: Treatment,
    /// What a multipart has outside of its parts is written as quoted-printable, which readers do not
    /// show anyway.
    pub(super) encodes_outside: bool,
    pub(super) adds_mime_version: bool,
    pub(super) adds_content_type: bool,
}

/// What becomes of a part: of its field Content-Transfer-Encoding, and of its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Nothing is changed.
    #[default]
    Keep,
    /// The field says `7bit`, and nothing else is changed.
    SevenBit,
    /// The field says `quoted-printable`, and the content is encoded.
    QuotedPrintable,
    /// The field says `base64`, and the content is encoded.
    Base64,
    /// The content is quoted-printable already, and what is wrong in it is mended.
    MendQuotedPrintable,
    /// The same for base64.
    MendBase64,
}

impl Treatment {
    /// The value of the new field, if there is one.
    pub(super) fn label(self) -> Option<&'static str> {
        match self {
            Treatment::SevenBit => Some("7bit"),
            Treatment::QuotedPrintable => Some("quoted-printable"),
            Treatment::Base64 => Some("base64"),
            Treatment::Keep | Treatment::MendQuotedPrintable | Treatment::MendBase64 => None,
        }
    }

    /// For a content that does not fit into 7 bits.
    fn for_content(encoding: DeclaredEncoding, kind: LeafKind) -> Treatment {
        match (encoding, kind) {
            (_, LeafKind::Untouchable) => Treatment::Keep,
            (DeclaredEncoding::QuotedPrintable, _) => Treatment::MendQuotedPrintable,
            (DeclaredEncoding::Base64, _) => Treatment::MendBase64,
            (_, LeafKind::Text) => Treatment::QuotedPrintable,
            (_, LeafKind::Binary) => Treatment::Base64,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeafKind {
    Text,
    Binary,
    Untouchable,
}

impl SevenBitPlan {
    /// Whether the conversion changes nothing: only header fields contain 8-bit octets, or signed
    /// parts, or multiparts whose boundary is not understood.
    pub fn is_identity(&self) -> bool {
        self.parts.iter().all(|part| *part == PartPlan::default())
    }

    /// The plan for this part; one that does not exist is kept.
    pub(super) fn part(&self, part: usize) -> PartPlan {
        self.parts.get(part).copied().unwrap_or_default()
    }
}

/// Reads a message and makes the plan of its conversion.
#[derive(Debug)]
pub struct SevenBitScan {
    walker: PartWalker,
    scan: PartScan,
}

impl Default for SevenBitScan {
    fn default() -> Self {
        SevenBitScan::new()
    }
}

impl SevenBitScan {
    /// Starts before the first octet.
    pub fn new() -> SevenBitScan {
        SevenBitScan { walker: PartWalker::new(), scan: PartScan::default() }
    }

    /// Reads the next octets of the message; where it is split makes no difference.
    pub fn handle_input(&mut self, input: &[u8]) {
        self.walker.handle_input(input, &mut self.scan);
    }

    /// The message ends here.
    pub fn finish(mut self) -> Result<SevenBitPlan, PartLimitError> {
        self.walker.finish(&mut self.scan)?;
        Ok(self.scan.into_plan())
    }
}

/// What was found so far.
#[derive(Debug, Default)]
struct PartScan {
    parts: Vec<PartPlan>,
    part: usize,
    is_message: bool,
    has_mime_version: bool,
    region: ScannedRegion,
    /// Octets of the current line.
    column: usize,
    /// The content has 8-bit octets, NUL, or a line that is too long.
    exceeds_seven_bit: bool,
    /// A part does that is not changed.
    untouchable_exceeds_seven_bit: bool,
}

/// What is being read.
#[derive(Clone, Copy, Debug, Default)]
enum ScannedRegion {
    #[default]
    Header,
    Leaf {
        kind: LeafKind,
        encoding: DeclaredEncoding,
        lacks_mime_version: bool,
        lacks_content_type: bool,
    },
    Outside,
}

impl PartScan {
    fn into_plan(mut self) -> SevenBitPlan {
        if self.untouchable_exceeds_seven_bit {
            // What is around it contains 8-bit octets still.
            let labelled = self.parts.iter_mut().filter(|part| part.treatment == Treatment::SevenBit);
            labelled.for_each(|part| part.treatment = Treatment::Keep);
        }
        let mut plan = SevenBitPlan { parts: self.parts };
        if !self.has_mime_version && !plan.is_identity() {
            plan.parts[0].adds_mime_version = true;
        }
        plan
    }

    fn begin_content(&mut self, region: ScannedRegion) {
        (self.region, self.column, self.exceeds_seven_bit) = (region, 0, false);
    }
}

impl PartVisitor for PartScan {
    fn begin_header(&mut self, part: usize, is_message: bool) {
        self.parts.push(PartPlan::default());
        (self.part, self.is_message, self.region) = (part, is_message, ScannedRegion::Header);
    }

    fn header_line(&mut self, _kind: FieldKind, _line: &LineFragment<'_>) {}

    fn end_header(&mut self, header: &PartHeader, kind: &ContentKind) -> Structure {
        if self.part == 0 {
            self.has_mime_version = header.has_mime_version;
        }
        let encoding = header.encoding();
        let is_untouchable =
            matches!(kind, ContentKind::Multipart { is_signed: true, .. } | ContentKind::OpaqueMultipart);
        if encoding == DeclaredEncoding::EightBit && !is_untouchable {
            self.parts[self.part].treatment = Treatment::SevenBit;
        }
        let kind = match kind {
            _ if is_untouchable => LeafKind::Untouchable,
            ContentKind::Message => return Structure::Message,
            ContentKind::Multipart { .. } => return Structure::Multipart,
            ContentKind::Text => LeafKind::Text,
            ContentKind::Binary | ContentKind::OpaqueMultipart => LeafKind::Binary,
        };
        self.begin_content(ScannedRegion::Leaf {
            kind,
            encoding,
            lacks_mime_version: self.is_message && !header.has_mime_version,
            lacks_content_type: self.is_message && !header.has_content_type(),
        });
        Structure::Leaf
    }

    fn begin_outside(&mut self, part: usize) {
        self.part = part;
        self.begin_content(ScannedRegion::Outside);
    }

    fn text(&mut self, text: &[u8]) {
        self.column += text.len();
        self.exceeds_seven_bit |= self.column > LINE_OCTETS_MAX || !text.is_ascii() || text.contains(&0);
    }

    fn line_end(&mut self, _end: &[u8]) {
        self.column = 0;
    }

    fn end_content(&mut self, _is_end_of_message: bool) {
        if !std::mem::take(&mut self.exceeds_seven_bit) {
            return;
        }
        let part = &mut self.parts[self.part];
        match self.region {
            ScannedRegion::Header => {}
            ScannedRegion::Outside => part.encodes_outside = true,
            ScannedRegion::Leaf { kind, encoding, lacks_mime_version, lacks_content_type } => {
                part.treatment = Treatment::for_content(encoding, kind);
                part.adds_mime_version = lacks_mime_version && part.treatment.label().is_some();
                part.adds_content_type = lacks_content_type && part.treatment.label().is_some();
                self.untouchable_exceeds_seven_bit |= kind == LeafKind::Untouchable;
            }
        }
    }

    fn separator(&mut self, _octets: &[u8]) {}

    /// Without any delimiter, the multipart is one text for its readers.
    fn end_multipart(&mut self, part: usize, encoding: DeclaredEncoding, has_parts: bool) {
        let part = &mut self.parts[part];
        if !has_parts && part.encodes_outside {
            part.encodes_outside = false;
            part.treatment = Treatment::for_content(encoding, LeafKind::Text);
        }
    }
}
