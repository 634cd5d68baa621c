//! Any bytes as a message: no panic, its parts are the same whether it arrives whole or in pieces, and every
//! octet is passed on once, in order. The last byte is the size of the pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::mime::{
    ContentKind, DeclaredEncoding, FieldKind, LineFragment, PartHeader, PartVisitor, PartWalker, Structure,
};

/// Keeps the octets, and where in them something begins or ends.
#[derive(Debug, Default, PartialEq)]
struct Recorder {
    octets: Vec<u8>,
    marks: Vec<(usize, &'static str)>,
}

impl Recorder {
    fn mark(&mut self, what: &'static str) {
        self.marks.push((self.octets.len(), what));
    }
}

impl PartVisitor for Recorder {
    fn begin_header(&mut self, _part: usize, is_message: bool) {
        self.mark(if is_message { "message" } else { "part" });
    }

    fn header_line(&mut self, _kind: FieldKind, line: &LineFragment<'_>) {
        self.octets.extend_from_slice(line.text);
        self.octets.extend_from_slice(line.end);
    }

    fn end_header(&mut self, header: &PartHeader, kind: &ContentKind) -> Structure {
        self.mark(if header.encoding() == DeclaredEncoding::Base64 { "base64" } else { "content" });
        match kind {
            ContentKind::Multipart { .. } => Structure::Multipart,
            ContentKind::Message => Structure::Message,
            ContentKind::Text | ContentKind::Binary | ContentKind::OpaqueMultipart => Structure::Leaf,
        }
    }

    fn begin_outside(&mut self, _part: usize) {
        self.mark("outside");
    }

    fn text(&mut self, text: &[u8]) {
        self.octets.extend_from_slice(text);
    }

    fn line_end(&mut self, end: &[u8]) {
        self.octets.extend_from_slice(end);
    }

    fn end_content(&mut self, _is_end_of_message: bool) {
        self.mark("end");
    }

    fn separator(&mut self, octets: &[u8]) {
        self.octets.extend_from_slice(octets);
    }

    fn end_multipart(&mut self, _part: usize, _encoding: DeclaredEncoding, _has_parts: bool) {
        self.mark("end of multipart");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&size, bytes)) = bytes.split_last() else { return };
    let whole = read(bytes, usize::MAX);
    let cut = read(bytes, 1 + usize::from(size));
    assert_eq!(whole, cut);
    if let Some(whole) = whole {
        assert_eq!(whole.octets, bytes);
    }
});

/// None: a limit was exceeded.
fn read(bytes: &[u8], size: usize) -> Option<Recorder> {
    let (mut walker, mut recorder) = (PartWalker::new(), Recorder::default());
    bytes.chunks(size).for_each(|piece| walker.handle_input(piece, &mut recorder));
    walker.finish(&mut recorder).ok().map(|()| recorder)
}
