//! What is wrong with a configuration text, and how it is shown: the line, a mark under the place, what was
//! found and what was expected.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// Faults that are shown; a file that is no configuration at all would fill the screen for nothing.
const FAULTS_SHOWN_MAX: usize = 50;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(super) place: Range<usize>,
    pub(super) title: String,
    pub(super) label: String,
    pub(super) help: Option<String>,
    pub(super) earlier: Option<Range<usize>>,
}

impl Fault {
    /// `title` names the setting and says in a word or two what is the matter; `label` stands under the place.
    pub(super) fn new(place: Range<usize>, title: impl Into<String>, label: impl Into<String>) -> Self {
        Fault { place, title: title.into(), label: label.into(), help: None, earlier: None }
    }

    /// Adds a line of advice.
    pub(super) fn with_help(mut self, help: Option<String>) -> Self {
        self.help = help;
        self
    }

    /// Points at where the same was said before.
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

/// A place that does not reach over the text's end, nor over the end of its first line.
fn within(text: &str, place: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(place.start);
    let end = text.ceil_char_boundary(place.end).max(start);
    let line = text[start..end].find('\n').unwrap_or(end - start);
    start..start + line
}

/// In which line of the text a place is; the first is 1.
pub(super) fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|octet| *octet == b'\n').count()
}

/// The text with a star for each byte of a secret, so that all places and lines stay what they are.
fn masked(text: &str, secrets: &[Range<usize>]) -> String {
    let mut octets = text.as_bytes().to_vec();
    for secret in secrets {
        let places = text.floor_char_boundary(secret.start)..text.ceil_char_boundary(secret.end);
        octets[places].iter_mut().filter(|octet| **octet != b'\n').for_each(|octet| *octet = b'*');
    }
    String::from_utf8(octets).expect("whole characters became stars")
}

/// All that is wrong with one text; at least one fault, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    origin: String,
    text: String,
    faults: Vec<Fault>,
}

impl Faults {
    /// What stands at the places of `secrets` is never shown.
    pub(super) fn new(origin: &str, text: &str, mut faults: Vec<Fault>, secrets: &[Range<usize>]) -> Self {
        faults.sort_by_key(|fault| fault.place.start);
        Faults { origin: origin.to_owned(), text: masked(text, secrets), faults }
    }

    /// How many there are.
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
            1 => write!(f, "1 fault in {}", self.origin),
            n if n > FAULTS_SHOWN_MAX => {
                write!(f, "{n} faults in {}, the first {FAULTS_SHOWN_MAX} are shown", self.origin)
            }
            n => write!(f, "{n} faults in {}", self.origin),
        }
    }
}

impl Error for Faults {}
