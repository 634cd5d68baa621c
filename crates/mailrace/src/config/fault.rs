//! Errors in a configuration text and how they are shown: the line with the place marked, what was
//! found and what was expected.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// Errors that are shown; a file that is no configuration at all would fill the screen.
const FAULTS_SHOWN_MAX: usize = 50;

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(super) place: Range<usize>,
    pub(super) title: String,
    pub(super) label: String,
    pub(super) help: Option<String>,
    pub(super) earlier: Option<Range<usize>>,
}

impl Fault {
    /// `title` names the setting and the problem; `label` appears below the marked place.
    pub(super) fn new(place: Range<usize>, title: impl Into<String>, label: impl Into<String>) -> Self {
        Fault { place, title: title.into(), label: label.into(), help: None, earlier: None }
    }

    /// Adds a hint.
    pub(super) fn with_help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    /// Also marks an earlier place in the text, the first of two duplicates.
    pub(super) fn with_earlier(mut self, place: Range<usize>) -> Self {
        self.earlier = Some(place);
        self
    }

    fn group<'a>(&'a self, origin: &'a str, text: &'a str) -> Group<'a> {
        let mark = AnnotationKind::Primary.span(within(text, &self.place)).label(&*self.label);
        let first =
            self.earlier.as_ref().map(|place| AnnotationKind::Context.span(within(text, place)).label("first here"));
        let snippet = Snippet::source(text).path(origin).annotation(mark).annotations(first);
        let group = Level::ERROR.primary_title(&*self.title).element(snippet);
        match &self.help {
            Some(help) => group.element(Level::HELP.message(&**help)),
            None => group,
        }
    }
}

/// A span clipped to the text and to its first line.
fn within(text: &str, place: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(place.start);
    let end = text.ceil_char_boundary(place.end).max(start);
    let line = text[start..end].find('\n').unwrap_or(end - start);
    start..start + line
}

/// The line number of an offset, counted from 1.
pub(super) fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|octet| *octet == b'\n').count()
}

/// The text with an asterisk for each byte of a secret. Offsets and lines stay the same.
fn masked(text: &str, secrets: &[Range<usize>]) -> String {
    let mut octets = text.as_bytes().to_vec();
    for secret in secrets {
        let places = text.floor_char_boundary(secret.start)..text.ceil_char_boundary(secret.end);
        octets[places].iter_mut().filter(|octet| **octet != b'\n').for_each(|octet| *octet = b'*');
    }
    String::from_utf8(octets).expect("only whole characters are replaced")
}

/// All errors in one text: at least one, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    origin: String,
    text: String,
    faults: Vec<Fault>,
}

impl Faults {
    /// The parts in `secrets` are never shown.
    pub(super) fn new(origin: &str, text: &str, mut faults: Vec<Fault>, secrets: &[Range<usize>]) -> Self {
        faults.sort_by_key(|fault| fault.place.start);
        Faults { origin: origin.to_owned(), text: masked(text, secrets), faults }
    }

    /// The number of errors.
    pub fn count(&self) -> usize {
        self.faults.len()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        for fault in self.faults.iter().take(FAULTS_SHOWN_MAX) {
            writeln!(f, "{}\n", renderer.render(&[fault.group(&self.origin, &self.text)]))?;
        }
        match self.faults.len() {
            1 => write!(f, "1 error in {}", self.origin),
            n if n > FAULTS_SHOWN_MAX => {
                write!(f, "{n} errors in {}, only the first {FAULTS_SHOWN_MAX} are shown", self.origin)
            }
            n => write!(f, "{n} errors in {}", self.origin),
        }
    }
}

impl Error for Faults {}
