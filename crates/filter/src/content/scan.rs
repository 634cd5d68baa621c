//! Reads the parts of a message for the rules: their headers, their lines, and the size of attachments.
//! It does no I/O: the check feeds it the content from its first octet.
//!
//! The fields of the message's own header are compared elsewhere, before anything is read.

use protocol::mime::{
    ContentKind, DeclaredEncoding, FieldKind, LineFragment, PartHeader, PartLimitError, PartVisitor, PartWalker,
    Structure,
};

use super::attachment::{Attachment, PartFields};
use super::decoder::ContentDecoder;
use super::field_patterns::FieldPatterns;
use super::field_text::{as_read, is_mime_field, name_and_value, unfolded};
use super::findings::{Findings, LinePosition, TooManyChanges};
use super::line_patterns::LinePatterns;
use super::{ContentLimits, LineScope};
use crate::header::{self, HEADER_OCTETS_MAX};

/// A longer line of the body is compared in pieces.
const LINE_OCTETS_MAX: usize = 4 << 10;

/// Why a message cannot be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScanError {
    #[error(transparent)]
    Parts(#[from] PartLimitError),
    #[error("a header has more than {HEADER_OCTETS_MAX} octets")]
    HeaderTooLong,
    #[error("a multipart has a boundary that is too long or cannot be read")]
    Boundary,
    #[error(
        "a field that names a file is too long or has too many names, or a second type of content contradicts the first"
    )]
    AttachmentField,
    #[error("an enclosed message is encoded, so its parts cannot be read")]
    EncodedMessage,
    #[error("too many lines to replace or remove")]
    TooManyChanges,
    #[error("too many fields or attachments that are to be looked up in a table")]
    TooManyLookups,
}

impl From<TooManyChanges> for ScanError {
    fn from(_: TooManyChanges) -> ScanError {
        ScanError::TooManyChanges
    }
}

/// The patterns of all rules.
pub(super) struct RulePatterns {
    /// Of those that look at fields.
    pub(super) fields: FieldPatterns,
    /// Of those that look at lines of the body.
    pub(super) lines: LinePatterns,
}

/// What the rules need of a message beyond its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ScanNeeds {
    pub(super) fields: bool,
    pub(super) lines: bool,
    pub(super) attachments: bool,
}

/// A message that is being read.
pub(super) struct MessageScan<'r> {
    walker: PartWalker,
    parts: PartReader<'r>,
}

impl<'r> MessageScan<'r> {
    pub(super) fn new(
        patterns: &'r RulePatterns,
        needs: ScanNeeds,
        limits: ContentLimits,
        findings: Findings<'r>,
    ) -> MessageScan<'r> {
        let parts = PartReader {
            patterns,
            needs,
            findings,
            position: 0,
            header: Vec::new(),
            header_start: 0,
            part: 0,
            is_message: true,
            leaf: None,
            raw: LineBuffer::new(limits.body_octets_max),
            error: None,
        };
        MessageScan { walker: PartWalker::new(), parts }
    }

    /// Reads the next octets of the content. Returns whether more are needed.
    pub(super) fn handle_input(&mut self, input: &[u8]) -> bool {
        self.walker.handle_input(input, &mut self.parts);
        let PartReader { needs, raw, error, .. } = &self.parts;
        error.is_none() && (needs.fields || needs.attachments || !raw.is_exhausted())
    }

    /// No more octets are needed, or there are none.
    pub(super) fn finish(mut self) -> Result<Findings<'r>, ScanError> {
        let walked = self.walker.finish(&mut self.parts);
        self.parts.error.map_or(Ok(()), Err)?;
        walked?;
        Ok(self.parts.findings)
    }
}

/// The position in a message.
struct PartReader<'r> {
    patterns: &'r RulePatterns,
    needs: ScanNeeds,
    findings: Findings<'r>,
    position: u64,
    /// The header of the current part, and where it begins.
    header: Vec<u8>,
    header_start: u64,
    part: usize,
    is_message: bool,
    leaf: Option<LeafContent>,
    raw: LineBuffer,
    error: Option<ScanError>,
}

/// The content of a part without parts.
struct LeafContent {
    attachment: Option<Attachment>,
    decoder: ContentDecoder,
    /// The decoded lines; None if they are those of the message, or no text.
    lines: Option<LineBuffer>,
    scratch: Vec<u8>,
}

/// Collects the octets of a line.
struct LineBuffer {
    octets: Vec<u8>,
    start: u64,
    /// How many more octets may be compared.
    left: u64,
}

impl LineBuffer {
    fn new(octets_max: u64) -> LineBuffer {
        LineBuffer { octets: Vec::new(), start: 0, left: octets_max }
    }

    fn is_exhausted(&self) -> bool {
        self.left == 0
    }

    /// Adds octets of a line, which begin at this position of the content. Returns whether the line is to
    /// be compared as it is, since it is too long.
    fn add(&mut self, text: &[u8], position: u64) -> bool {
        if self.octets.is_empty() {
            self.start = position;
        }
        let taken = text.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.octets.extend_from_slice(&text[..taken]);
        self.left -= taken as u64;
        self.octets.len() >= LINE_OCTETS_MAX
    }

    fn take(&mut self) -> Vec<u8> {
        // An empty line counts, too.
        self.left = self.left.saturating_sub(1);
        std::mem::take(&mut self.octets)
    }
}

impl PartReader<'_> {
    fn fail(&mut self, error: impl Into<ScanError>) {
        self.error.get_or_insert(error.into());
    }

    /// Compares the fields of a header that is not the message's own.
    fn compare_fields(&mut self) {
        let (header, mut start) = (std::mem::take(&mut self.header), self.header_start);
        for field in header::fields(&header) {
            let place = start..start + field.len() as u64;
            start = place.end;
            if !self.patterns.fields.may_match(field) {
                continue;
            }
            let text = unfolded(field);
            let Some((name, _)) = name_and_value(&text) else { continue };
            let kind = match (is_mime_field(name), self.is_message) {
                (true, _) => LineScope::Mime,
                (false, true) => LineScope::Nested,
                (false, false) => continue,
            };
            let taken = compare_field(
                self.patterns,
                &mut self.findings,
                &[kind],
                name,
                &text,
                Some(&LinePosition::Field(place)),
            );
            if let Err(error) = taken {
                self.fail(error);
            }
        }
        self.header = header;
    }

    fn compare_line(&mut self, line: Vec<u8>, position: Option<LinePosition>) {
        let text = String::from_utf8_lossy(&line);
        let rules = self.patterns.lines.rules_of(&[LineScope::Body], None, &text);
        if let Err(error) = self.findings.take_body_line(&rules, &text, position.as_ref()) {
            self.fail(error);
        }
    }

    /// The line of the message ends, with this line end.
    fn end_raw_line(&mut self, end: &'static [u8]) {
        if !self.needs.lines || self.raw.is_exhausted() {
            self.raw.octets.clear();
            return;
        }
        let start = if self.raw.octets.is_empty() { self.position } else { self.raw.start };
        let line = self.raw.take();
        let place = start..start + (line.len() + end.len()) as u64;
        self.compare_line(line, Some(LinePosition::Line(place, end)));
    }

    /// Takes decoded octets: counts them, and compares their lines.
    fn take_decoded(&mut self) {
        let Some(leaf) = &mut self.leaf else { return };
        let decoded = std::mem::take(&mut leaf.scratch);
        if let Some(attachment) = &mut leaf.attachment {
            attachment.octets += decoded.len() as u64;
        }
        for piece in decoded.split_inclusive(|octet| *octet == b'\n') {
            let Some(lines) = self.leaf.as_mut().and_then(|leaf| leaf.lines.as_mut()) else { break };
            if lines.is_exhausted() {
                break;
            }
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let is_full = lines.add(text, 0);
            if is_full || text.len() < piece.len() {
                let line = lines.take();
                let text = line.strip_suffix(b"\r").unwrap_or(&line).to_vec();
                self.compare_line(text, None);
            }
        }
        if let Some(leaf) = &mut self.leaf {
            leaf.scratch = decoded;
            leaf.scratch.clear();
        }
    }

    /// What the header of the part says of its content, if a rule is about fields or attachments of parts.
    fn read_part_fields(&mut self) -> Option<PartFields> {
        if !self.needs.fields && !self.needs.attachments {
            return None;
        }
        let fields = PartFields::read(&self.header);
        if fields == PartFields::Unreadable && self.needs.attachments {
            self.fail(ScanError::AttachmentField);
        }
        Some(fields)
    }

    fn begin_leaf(&mut self, attachment: Option<Attachment>, kind: &ContentKind, encoding: DeclaredEncoding) {
        let decoder = ContentDecoder::new(encoding);
        let has_lines = self.needs.lines && *kind == ContentKind::Text && !decoder.is_identity();
        let lines = has_lines.then(|| LineBuffer::new(self.raw.left));
        let is_read = attachment.is_some() || lines.is_some();
        self.leaf = is_read.then(|| LeafContent { attachment, decoder, lines, scratch: Vec::new() });
    }
}

impl PartVisitor for PartReader<'_> {
    fn begin_header(&mut self, part: usize, is_message: bool) {
        self.header.clear();
        (self.header_start, self.part, self.is_message) = (self.position, part, is_message);
    }

    fn header_line(&mut self, _kind: FieldKind, line: &LineFragment<'_>) {
        let len = line.text.len() + line.end.len();
        self.position += len as u64;
        if self.header.len() + len > HEADER_OCTETS_MAX {
            return self.fail(ScanError::HeaderTooLong);
        }
        self.header.extend_from_slice(line.text);
        self.header.extend_from_slice(line.end);
    }

    fn end_header(&mut self, header: &PartHeader, kind: &ContentKind) -> Structure {
        if self.needs.fields && self.part > 0 {
            self.compare_fields();
        }
        let fields = self.read_part_fields();
        let encloses_message =
            *kind == ContentKind::Message || fields.as_ref().is_some_and(PartFields::encloses_message);
        let is_encoded = matches!(header.encoding(), DeclaredEncoding::QuotedPrintable | DeclaredEncoding::Base64);
        if encloses_message && is_encoded && *kind != ContentKind::Message {
            self.fail(ScanError::EncodedMessage);
        }
        let attachment = fields.filter(|_| self.needs.attachments).and_then(|fields| fields.into_attachment(kind));
        if *kind == ContentKind::OpaqueMultipart && (self.needs.fields || self.needs.attachments) {
            self.fail(ScanError::Boundary);
        }
        match kind {
            ContentKind::Multipart { .. } => Structure::Multipart,
            _ if encloses_message => {
                attachment.iter().for_each(|attachment| self.findings.take_attachment(attachment));
                Structure::Message
            }
            _ => {
                self.begin_leaf(attachment, kind, header.encoding());
                Structure::Leaf
            }
        }
    }

    fn begin_outside(&mut self, _part: usize) {}

    fn text(&mut self, text: &[u8]) {
        if self.needs.lines && self.raw.add(text, self.position) {
            self.position += text.len() as u64;
            self.end_raw_line(b"");
        } else {
            self.position += text.len() as u64;
        }
        if let Some(LeafContent { decoder, scratch, .. }) = &mut self.leaf {
            decoder.handle_text(text, scratch);
            self.take_decoded();
        }
    }

    fn line_end(&mut self, end: &[u8]) {
        let known: &'static [u8] = if end == b"\r\n" { b"\r\n" } else { b"\n" };
        self.end_raw_line(known);
        self.position += end.len() as u64;
        if let Some(LeafContent { decoder, scratch, .. }) = &mut self.leaf {
            decoder.handle_line_end(end, scratch);
            self.take_decoded();
        }
    }

    fn end_content(&mut self, _is_end_of_message: bool) {
        if !self.raw.octets.is_empty() {
            self.end_raw_line(b"");
        }
        if let Some(LeafContent { decoder, scratch, .. }) = &mut self.leaf {
            decoder.finish(scratch);
            self.take_decoded();
        }
        let Some(LeafContent { attachment, lines, .. }) = self.leaf.take() else { return };
        if let Some(rest) = lines.map(|mut lines| lines.take()).filter(|rest| !rest.is_empty()) {
            self.compare_line(rest, None);
        }
        attachment.iter().for_each(|attachment| self.findings.take_attachment(attachment));
    }

    fn separator(&mut self, octets: &[u8]) {
        self.position += octets.len() as u64;
    }

    fn end_multipart(&mut self, _part: usize, _encoding: DeclaredEncoding, _has_parts: bool) {}
}

/// Compares a field of this name as it is and as readers see it.
pub(super) fn compare_field(
    patterns: &RulePatterns,
    findings: &mut Findings<'_>,
    scopes: &[LineScope],
    name: &str,
    text: &str,
    position: Option<&LinePosition>,
) -> Result<(), TooManyChanges> {
    let plain = patterns.fields.rules_of(scopes, name, text);
    let read = as_read(text);
    let of_read = read.as_deref().map(|read| patterns.fields.rules_of(scopes, name, read));
    let mut matching: Vec<(usize, &str)> = plain.iter().map(|rule| (*rule, text)).collect();
    let more = of_read.into_iter().flatten().filter(|rule| !plain.contains(rule));
    matching.extend(more.map(|rule| (rule, read.as_deref().unwrap_or(text))));
    if matching.is_empty() {
        return Ok(());
    }
    matching.sort_by_key(|(rule, _)| *rule);
    findings.take_field(&matching, position)
}
