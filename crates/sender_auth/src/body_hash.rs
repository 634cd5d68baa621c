//! The hashes of canonical bodies (RFC 6376 sections 3.4.3 to 3.4.5), while they are read in pieces of any
//! size.
//!
//! A body is hashed without a copy, except for lines that the relaxed form changes. Empty lines at
//! its end are only counted until something follows them.

use aws_lc_rs::digest::{Context, SHA256};
use memchr::{memchr, memrchr};

use crate::canonical_form::CanonicalForm;

/// The length of SHA-256.
pub(crate) const HASH_OCTETS: usize = 32;

/// A hash of a body to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyHashRequest {
    pub(crate) form: CanonicalForm,
    /// `l=`: only this many bytes of the canonical body.
    pub(crate) limit: Option<u64>,
}

/// Hashes a body as it is read.
#[derive(Default)]
pub(crate) struct BodyHasher {
    bodies: Vec<CanonicalBody>,
}

/// The hashes of a body.
pub(crate) struct BodyHashes {
    hashes: Vec<(BodyHashRequest, BodyHash)>,
}

/// A hash of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyHash {
    pub(crate) digest: [u8; HASH_OCTETS],
    /// The length of the whole canonical body.
    pub(crate) body_len: u64,
}

/// A body in one form.
struct CanonicalBody {
    form: CanonicalForm,
    /// Line ends that are hashed once something follows.
    line_ends: u64,
    /// The last byte was a CR.
    ends_in_cr: bool,
    /// Relaxed: white space that is hashed once something follows in its line.
    ends_in_space: bool,
    /// Lines that the relaxed form changes.
    scratch: Vec<u8>,
    output: HashedOutput,
}

/// The canonical bytes and the hashes over them.
#[derive(Default)]
struct HashedOutput {
    len: u64,
    hashes: Vec<(Option<u64>, Context)>,
}

impl BodyHasher {
    /// Adds a hash, unless it is computed already.
    pub(crate) fn request(&mut self, request: BodyHashRequest) {
        let BodyHashRequest { form, limit } = request;
        let known = self.bodies.iter().position(|body| body.form == form);
        let number = known.unwrap_or(self.bodies.len());
        if known.is_none() {
            self.bodies.push(CanonicalBody::new(form));
        }
        let hashes = &mut self.bodies[number].output.hashes;
        if hashes.iter().all(|(known, _)| *known != limit) {
            hashes.push((limit, Context::new(&SHA256)));
        }
    }

    /// Whether there is nothing to compute.
    pub(crate) fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Takes the next bytes of the body.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        for body in &mut self.bodies {
            match body.form {
                CanonicalForm::Simple => body.update_simple(bytes),
                CanonicalForm::Relaxed => body.update_relaxed(bytes),
            }
        }
    }

    /// The end of the body.
    pub(crate) fn finish(self) -> BodyHashes {
        BodyHashes { hashes: self.bodies.into_iter().flat_map(CanonicalBody::finish).collect() }
    }
}

impl BodyHashes {
    /// The hash that was requested.
    pub(crate) fn hash(&self, request: BodyHashRequest) -> Option<BodyHash> {
        self.hashes.iter().find(|(known, _)| *known == request).map(|(_, hash)| *hash)
    }
}

impl CanonicalBody {
    fn new(form: CanonicalForm) -> CanonicalBody {
        CanonicalBody {
            form,
            line_ends: 0,
            ends_in_cr: false,
            ends_in_space: false,
            scratch: Vec::new(),
            output: HashedOutput::default(),
        }
    }

    fn update_simple(&mut self, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if std::mem::take(&mut self.ends_in_cr) {
            match bytes.strip_prefix(b"\n") {
                Some(rest) => {
                    self.line_ends += 1;
                    bytes = rest;
                }
                None => self.output.append(&mut self.line_ends, b"\r"),
            }
        }
        if let Some(rest) = bytes.strip_suffix(b"\r") {
            self.ends_in_cr = true;
            bytes = rest;
        }
        self.output.append(&mut self.line_ends, bytes);
    }

    fn update_relaxed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let unchanged = if self.ends_in_cr || self.ends_in_space { 0 } else { unchanged_lines_len(bytes) };
            if unchanged > 0 {
                self.output.append(&mut self.line_ends, &bytes[..unchanged]);
                bytes = &bytes[unchanged..];
            } else {
                let line_len = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
                self.relax(&bytes[..line_len]);
                bytes = &bytes[line_len..];
            }
        }
    }

    /// Takes a line, or a part of one.
    fn relax(&mut self, line: &[u8]) {
        self.scratch.clear();
        for &octet in line {
            if octet == b'\n' && self.ends_in_cr {
                (self.ends_in_cr, self.ends_in_space) = (false, false);
                self.scratch.extend_from_slice(b"\r\n");
                continue;
            }
            if std::mem::take(&mut self.ends_in_cr) {
                self.push_relaxed(b'\r');
            }
            match octet {
                b' ' | b'\t' => self.ends_in_space = true,
                b'\r' => self.ends_in_cr = true,
                _ => self.push_relaxed(octet),
            }
        }
        self.output.append(&mut self.line_ends, &self.scratch);
    }

    fn push_relaxed(&mut self, octet: u8) {
        if std::mem::take(&mut self.ends_in_space) {
            self.scratch.push(b' ');
        }
        self.scratch.push(octet);
    }

    /// RFC 6376 sections 3.4.3 and 3.4.4: a body that is not empty ends in one CRLF; an empty one is
    /// a CRLF in the simple form only.
    fn finish(mut self) -> Vec<(BodyHashRequest, BodyHash)> {
        if std::mem::take(&mut self.ends_in_cr) {
            self.scratch.clear();
            self.push_relaxed(b'\r');
            self.output.append(&mut self.line_ends, &self.scratch);
        }
        if self.output.len > 0 || self.form == CanonicalForm::Simple {
            self.output.hash(b"\r\n");
        }
        let (form, body_len) = (self.form, self.output.len);
        let finished = self.output.hashes.into_iter().map(|(limit, context)| {
            let mut digest = [0; HASH_OCTETS];
            digest.copy_from_slice(context.finish().as_ref());
            (BodyHashRequest { form, limit }, BodyHash { digest, body_len })
        });
        finished.collect()
    }
}

impl HashedOutput {
    /// Hashes bytes with the line ends before them, but not those at their own end.
    fn append(&mut self, line_ends: &mut u64, bytes: &[u8]) {
        let (content, ends) = split_line_ends(bytes);
        if !content.is_empty() {
            while *line_ends > 0 {
                let count = (*line_ends).min(LINE_ENDS.len() as u64 / 2);
                self.hash(&LINE_ENDS[..count as usize * 2]);
                *line_ends -= count;
            }
            self.hash(content);
        }
        *line_ends += ends;
    }

    fn hash(&mut self, bytes: &[u8]) {
        for (limit, context) in &mut self.hashes {
            let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.len));
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            context.update(&bytes[..count]);
        }
        self.len += bytes.len() as u64;
    }
}

/// Line ends that are hashed at once.
const LINE_ENDS: &[u8; 128] = &{
    let mut line_ends = [b'\r'; 128];
    let mut at = 1;
    while at < line_ends.len() {
        line_ends[at] = b'\n';
        at += 2;
    }
    line_ends
};

/// The bytes without the CRLFs at their end, and the number of these.
fn split_line_ends(bytes: &[u8]) -> (&[u8], u64) {
    let (mut content, mut count) = (bytes, 0);
    while let Some(rest) = content.strip_suffix(b"\r\n") {
        content = rest;
        count += 1;
    }
    (content, count)
}

/// The length of the first whole lines that the relaxed form does not change.
fn unchanged_lines_len(bytes: &[u8]) -> usize {
    memrchr(b'\n', &bytes[..first_changed(bytes)]).map_or(0, |last| last + 1)
}

/// Octets that are compared at once: the compiler makes vector instructions of it.
const COMPARED_OCTETS: usize = 64;

/// Where the relaxed form first changes something; the length if it does not. Nothing follows.
fn first_changed(bytes: &[u8]) -> usize {
    let mut start = 0;
    while let Some(block) = bytes.get(start..=start + COMPARED_OCTETS) {
        let pairs = block[..COMPARED_OCTETS].iter().zip(&block[1..]);
        if pairs.fold(false, |found, (octet, next)| found | is_changed(*octet, *next)) {
            break;
        }
        start += COMPARED_OCTETS;
    }
    let rest = &bytes[start..];
    let next = rest.iter().skip(1).chain(Some(&b'\n'));
    rest.iter().zip(next).position(|(octet, next)| is_changed(*octet, *next)).map_or(bytes.len(), |at| start + at)
}

/// A tab becomes a space, a second space is removed, and so is one before the end of a line. Evaluates
/// everything, since branches cost more.
fn is_changed(octet: u8, next: u8) -> bool {
    (octet == b'\t') | ((octet == b' ') & ((next == b' ') | (next == b'\r')))
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest::digest;

    use super::*;

    fn hash(form: CanonicalForm, limit: Option<u64>, pieces: &[&[u8]]) -> BodyHash {
        let request = BodyHashRequest { form, limit };
        let mut hasher = BodyHasher::default();
        hasher.request(request);
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher.finish().hash(request).unwrap()
    }

    fn expected(canonical: &[u8]) -> BodyHash {
        let mut bytes = [0; HASH_OCTETS];
        bytes.copy_from_slice(digest(&SHA256, canonical).as_ref());
        BodyHash { digest: bytes, body_len: canonical.len() as u64 }
    }

    /// Bodies with their simple and relaxed forms.
    const BODIES: &[(&[u8], &[u8], &[u8])] = &[
        (b"", b"\r\n", b""),
        (b"\r\n", b"\r\n", b""),
        (b"\r\n\r\n\r\n", b"\r\n", b""),
        (b" \r\n", b" \r\n", b""),
        // Lines of white space at the end are empty lines of the relaxed form.
        (b"a\r\n \r\n\t \r\n", b"a\r\n \r\n\t \r\n", b"a\r\n"),
        (b"a\r\n \r\n\r\n \t", b"a\r\n \r\n\r\n \t\r\n", b"a\r\n"),
        (b" C \r\nD \t E\r\n\r\n\r\n", b" C \r\nD \t E\r\n", b" C\r\nD E\r\n"),
        (b"a", b"a\r\n", b"a\r\n"),
        (b"a \t", b"a \t\r\n", b"a\r\n"),
        (b"a\r\n\r\nb", b"a\r\n\r\nb\r\n", b"a\r\n\r\nb\r\n"),
        (b"a\r\n  \r\nb\r\n\r\n", b"a\r\n  \r\nb\r\n", b"a\r\n\r\nb\r\n"),
        (b"a\rb\r\nc\nd \n e\r", b"a\rb\r\nc\nd \n e\r\r\n", b"a\rb\r\nc\nd \n e\r\r\n"),
        (b"a \r \r\n", b"a \r \r\n", b"a \r\r\n"),
        (b"\ta\r\n  b  c\r\n", b"\ta\r\n  b  c\r\n", b" a\r\n b c\r\n"),
    ];

    #[test]
    fn a_body_has_the_same_hash_however_it_is_cut() {
        for (body, simple, relaxed) in BODIES {
            for (form, canonical) in [(CanonicalForm::Simple, simple), (CanonicalForm::Relaxed, relaxed)] {
                let shown = String::from_utf8_lossy(body).into_owned();
                assert_eq!(hash(form, None, &[body]), expected(canonical), "{form:?} {shown:?}");
                for at in 0..body.len() {
                    let (first, rest) = body.split_at(at);
                    assert_eq!(hash(form, None, &[first, rest]), expected(canonical), "{form:?} {shown:?} at {at}");
                }
                let octets: Vec<&[u8]> = body.chunks(1).collect();
                assert_eq!(hash(form, None, &octets), expected(canonical), "{form:?} {shown:?} by octets");
            }
        }
    }

    #[test]
    fn a_change_is_found_wherever_it_is_in_a_body() {
        for change in ["\t", "  ", " \r\n", "\r", "\n", " \r", "\r\n\r\n"] {
            for at in 0..2 * COMPARED_OCTETS {
                let (before, after) = ("x".repeat(at), "y \nz\r\n".repeat(COMPARED_OCTETS));
                let body = format!("{before}{change}{after}").into_bytes();
                let octets: Vec<&[u8]> = body.chunks(1).collect();
                let expected = hash(CanonicalForm::Relaxed, None, &octets);
                assert_eq!(hash(CanonicalForm::Relaxed, None, &[&body]), expected, "{change:?} at {at}");
            }
        }
    }

    #[test]
    fn many_line_ends_are_hashed_once_something_follows() {
        let mut body = b"a".to_vec();
        body.extend(b"\r\n".repeat(1000));
        assert_eq!(hash(CanonicalForm::Simple, None, &[&body]), expected(b"a\r\n"));
        body.extend(b"b\r\n");
        assert_eq!(hash(CanonicalForm::Relaxed, None, &[&body]), expected(&body));
    }

    #[test]
    fn a_limit_cuts_the_canonical_body_and_its_whole_length_is_known() {
        let found = hash(CanonicalForm::Relaxed, Some(4), &[b"a  b\r", b"\nc\r\n"]);
        assert_eq!((found.digest, found.body_len), (expected(b"a b\r").digest, 8));
        let found = hash(CanonicalForm::Simple, Some(0), &[b"abc"]);
        assert_eq!((found.digest, found.body_len), (expected(b"").digest, 5));
        let found = hash(CanonicalForm::Simple, Some(100), &[b"abc"]);
        assert_eq!((found.digest, found.body_len), (expected(b"abc\r\n").digest, 5));
    }
}
