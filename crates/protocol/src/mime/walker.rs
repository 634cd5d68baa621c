//! Finds the parts of a message as it comes in: headers, contents, delimiters. What becomes of them
//! is the business of a [`PartVisitor`].
//!
//! | region  | what it is                                     | ends with                                   |
//! |---------|------------------------------------------------|---------------------------------------------|
//! | Header  | the header of a message or part                | an empty line, or a delimiter               |
//! | Leaf    | the content of a part without parts            | a delimiter of a multipart around it        |
//! | Outside | what a multipart has before and after its parts | its first delimiter, or one of a multipart around it |
//!
//! The line end before a delimiter belongs to the delimiter (RFC 2046 section 5.1.1), so the last line
//! end of a content waits for the next line. The end of the message ends everything that is open.

use super::header::{ContentKind, DeclaredEncoding, FieldKind, PartHeader};
use super::lines::{FRAGMENT_OCTETS_MAX, LineFragment, LineReader};

/// How deeply multiparts and messages may be nested.
pub const DEPTH_MAX: usize = 100;
/// How many parts a message may have, with itself, multiparts and enclosed messages.
pub const PARTS_MAX: usize = 10_000;

/// Why the parts of a message are not read to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartLimitError {
    /// Exceeds [`PARTS_MAX`].
    #[error("the message has more than {PARTS_MAX} MIME parts")]
    TooManyParts,
    /// Exceeds [`DEPTH_MAX`].
    #[error("the MIME parts of the message are nested more than {DEPTH_MAX} deep")]
    TooDeep,
}

/// How a content is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// It has no parts.
    Leaf,
    /// A message with a header of its own.
    Message,
    /// Parts between delimiters. Only for [`ContentKind::Multipart`].
    Multipart,
}

/// What happens to the parts; they are numbered from 0, the message itself, in the order of their
/// headers. Each octet of the message is passed on once, in order: in a line of a header, a text, a line
/// end or a separator.
pub trait PartVisitor {
    /// The header of this part begins.
    fn begin_header(&mut self, part: usize, is_message: bool);
    /// A line of the header, or a fragment of one.
    fn header_line(&mut self, kind: FieldKind, line: &LineFragment<'_>);
    /// The header is complete; the empty line follows, unless a delimiter ended it.
    fn end_header(&mut self, header: &PartHeader, kind: &ContentKind) -> Structure;
    /// What is outside of the parts of this multipart begins.
    fn begin_outside(&mut self, part: usize);
    /// Octets of a content, or outside of parts; not a line end.
    fn text(&mut self, text: &[u8]);
    /// A line end of a content, or outside of parts.
    fn line_end(&mut self, end: &[u8]);
    /// The content, or what is outside of parts, has ended.
    fn end_content(&mut self, is_end_of_message: bool);
    /// A line that separates, or a line end that belongs to one.
    fn separator(&mut self, octets: &[u8]);
    /// A multipart has ended.
    fn end_multipart(&mut self, part: usize, encoding: DeclaredEncoding, has_parts: bool);
}

/// The position in the structure of a message.
#[derive(Debug)]
pub struct PartWalker {
    lines: LineReader,
    walk: Walk,
}

#[derive(Debug)]
struct Walk {
    /// The multiparts and messages around the current position.
    frames: Vec<Frame>,
    region: Region,
    header: PartHeader,
    part: usize,
    parts: usize,
    /// A line end that may belong to a delimiter.
    held_end: &'static [u8],
    error: Option<PartLimitError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    Start,
    Header,
    Leaf,
    Outside,
}

#[derive(Debug)]
struct Frame {
    part: usize,
    encoding: DeclaredEncoding,
    /// None for a message, and after the last delimiter.
    boundary: Option<Box<[u8]>>,
    is_multipart: bool,
    is_digest: bool,
    has_parts: bool,
}

/// A line that is a delimiter: of which frame, and whether it is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Delimiter {
    frame: usize,
    is_last: bool,
}

impl Default for PartWalker {
    fn default() -> Self {
        PartWalker::new()
    }
}

impl PartWalker {
    /// Starts before the first octet.
    pub fn new() -> PartWalker {
        let walk = Walk {
            frames: Vec::new(),
            region: Region::Start,
            header: PartHeader::new(false),
            part: 0,
            parts: 0,
            held_end: b"",
            error: None,
        };
        PartWalker { lines: LineReader::new(), walk }
    }

    /// Reads the next octets of the message; where it is split makes no difference to what is found.
    pub fn handle_input(&mut self, input: &[u8], visitor: &mut impl PartVisitor) {
        self.walk.begin(visitor);
        self.lines.handle_input(input, &mut |line| self.walk.handle_line(&line, visitor));
    }

    /// The message ends here.
    ///
    /// # Errors
    ///
    /// The parts were not visited to the end.
    pub fn finish(&mut self, visitor: &mut impl PartVisitor) -> Result<(), PartLimitError> {
        self.walk.begin(visitor);
        self.lines.finish(&mut |line| self.walk.handle_line(&line, visitor));
        self.walk.finish(visitor);
        self.walk.error.map_or(Ok(()), Err)
    }
}

impl Walk {
    fn begin(&mut self, visitor: &mut impl PartVisitor) {
        if self.region == Region::Start {
            self.begin_header(false, true, visitor);
        }
    }

    fn handle_line(&mut self, line: &LineFragment<'_>, visitor: &mut impl PartVisitor) {
        if self.error.is_some() {
            return;
        }
        if let Some(delimiter) = self.delimiter(line, visitor) {
            return self.cross(delimiter, line, visitor);
        }
        if self.region == Region::Header {
            return self.handle_header_line(line, visitor);
        }
        self.release_line_end(visitor);
        visitor.text(line.text);
        self.held_end = line.end;
    }

    fn handle_header_line(&mut self, line: &LineFragment<'_>, visitor: &mut impl PartVisitor) {
        if line.is_start && line.text.is_empty() {
            self.end_header(line.end, visitor);
        } else {
            let kind = self.header.handle_line(line);
            visitor.header_line(kind, line);
        }
    }

    fn release_line_end(&mut self, visitor: &mut impl PartVisitor) {
        let end = std::mem::take(&mut self.held_end);
        if !end.is_empty() {
            visitor.line_end(end);
        }
    }

    /// The innermost multipart with this boundary counts. A header without an empty line may be
    /// followed by a delimiter of its own content.
    fn delimiter(&mut self, line: &LineFragment<'_>, visitor: &mut impl PartVisitor) -> Option<Delimiter> {
        let is_whole = line.is_start && line.text.len() < FRAGMENT_OCTETS_MAX - 1;
        let text = line.text.strip_prefix(b"--").filter(|_| is_whole)?;
        if self.region == Region::Header
            && let ContentKind::Multipart { boundary, .. } = self.header.content_kind()
            && boundary_match(text, boundary).is_some()
        {
            self.end_header(b"", visitor);
        }
        let found = |(frame, multipart): (usize, &Frame)| {
            let is_last = boundary_match(text, multipart.boundary.as_deref()?)?;
            Some(Delimiter { frame, is_last })
        };
        self.frames.iter().enumerate().rev().find_map(found)
    }

    /// Ends what is open inside of the multipart, and passes its delimiter on.
    fn cross(&mut self, delimiter: Delimiter, line: &LineFragment<'_>, visitor: &mut impl PartVisitor) {
        while self.region == Region::Header && self.error.is_none() {
            self.end_header(b"", visitor);
        }
        if self.error.is_some() {
            return;
        }
        visitor.end_content(false);
        self.end_frames(delimiter.frame + 1, visitor);
        for octets in [std::mem::take(&mut self.held_end), line.text, line.end] {
            visitor.separator(octets);
        }
        let multipart = &mut self.frames[delimiter.frame];
        multipart.has_parts = true;
        if delimiter.is_last {
            multipart.boundary = None;
            self.region = Region::Outside;
            visitor.begin_outside(multipart.part);
        } else {
            let is_digest = multipart.is_digest;
            self.begin_header(is_digest, false, visitor);
        }
    }

    /// Ends the frames from this one on, the innermost first.
    fn end_frames(&mut self, first: usize, visitor: &mut impl PartVisitor) {
        for frame in self.frames.drain(first..).rev() {
            if frame.is_multipart {
                visitor.end_multipart(frame.part, frame.encoding, frame.has_parts);
            }
        }
    }

    fn begin_header(&mut self, default_is_message: bool, is_message: bool, visitor: &mut impl PartVisitor) {
        if self.parts == PARTS_MAX {
            self.error = Some(PartLimitError::TooManyParts);
            return;
        }
        (self.part, self.parts) = (self.parts, self.parts + 1);
        (self.region, self.header) = (Region::Header, PartHeader::new(default_is_message));
        visitor.begin_header(self.part, is_message);
    }

    fn end_header(&mut self, separator: &[u8], visitor: &mut impl PartVisitor) {
        let kind = self.header.content_kind().clone();
        let structure = visitor.end_header(&self.header, &kind);
        visitor.separator(separator);
        if structure == Structure::Leaf {
            self.region = Region::Leaf;
            return;
        }
        if self.frames.len() == DEPTH_MAX {
            self.error = Some(PartLimitError::TooDeep);
            return;
        }
        let (boundary, is_digest) = match kind {
            ContentKind::Multipart { boundary, is_digest, .. } => (Some(boundary), is_digest),
            _ => (None, false),
        };
        let is_multipart = structure == Structure::Multipart;
        let encoding = self.header.encoding();
        let frame = Frame { part: self.part, encoding, boundary, is_multipart, is_digest, has_parts: false };
        self.frames.push(frame);
        if is_multipart {
            self.region = Region::Outside;
            visitor.begin_outside(self.part);
        } else {
            self.begin_header(false, true, visitor);
        }
    }

    fn finish(&mut self, visitor: &mut impl PartVisitor) {
        while self.region == Region::Header && self.error.is_none() {
            self.end_header(b"", visitor);
        }
        if self.error.is_none() {
            self.release_line_end(visitor);
            visitor.end_content(true);
            self.end_frames(0, visitor);
        }
    }
}

/// Whether what follows the hyphens is this boundary, and then whether it is the last delimiter.
/// White space may follow; anything else makes another line of it.
fn boundary_match(text: &[u8], boundary: &[u8]) -> Option<bool> {
    match text.strip_prefix(boundary)?.trim_ascii_end() {
        b"" => Some(false),
        b"--" => Some(true),
        _ => None,
    }
}
