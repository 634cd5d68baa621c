//! Errors in a configuration text and how they are shown: the line with the place marked, what was
//! found and what was expected.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// Errors that are shown; a file that is no configuration at all would fill the screen.
const ERRORS_SHOWN_MAX: usize = 50;

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(super) span: Range<usize>,
    pub(super) title: String,
    pub(super) label: String,
    pub(super) help: Option<String>,
    pub(super) earlier: Option<Range<usize>>,
}

impl ConfigError {
    /// `title` names the setting and the problem; `label` appears below the marked place.
    pub(super) fn new(place: Range<usize>, title: impl Into<String>, label: impl Into<String>) -> Self {
        ConfigError { span: place, title: title.into(), label: label.into(), help: None, earlier: None }
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

    fn report_group<'a>(&'a self, origin: &'a str, text: &'a str) -> Group<'a> {
        let mark = AnnotationKind::Primary.span(clamp_span(text, &self.span)).label(&*self.label);
        let first = self
            .earlier
            .as_ref()
            .map(|place| AnnotationKind::Context.span(clamp_span(text, place)).label("first here"));
        let snippet = Snippet::source(text).path(origin).annotation(mark).annotations(first);
        let group = Level::ERROR.primary_title(&*self.title).element(snippet);
        match &self.help {
            Some(help) => group.element(Level::HELP.message(&**help)),
            None => group,
        }
    }
}

/// A span clipped to the text and to its first line.
fn clamp_span(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(span.start);
    let end = text.ceil_char_boundary(span.end).max(start);
    let line = text[start..end].find('\n').unwrap_or(end - start);
    start..start + line
}

/// The line number of an offset, counted from 1.
pub(super) fn line_number_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|octet| *octet == b'\n').count()
}

/// The text with an asterisk for each byte of a secret. Offsets and lines stay the same.
pub(super) fn mask_secrets(text: &str, secrets: &[Range<usize>]) -> String {
    let mut octets = text.as_bytes().to_vec();
    for secret in secrets {
        let places = text.floor_char_boundary(secret.start)..text.ceil_char_boundary(secret.end);
        octets[places].iter_mut().filter(|octet| **octet != b'\n').for_each(|octet| *octet = b'*');
    }
    String::from_utf8(octets).expect("only whole characters are replaced")
}

/// All errors in one text: at least one, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    origin: String,
    text: String,
    errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// The parts in `secrets` are never shown.
    pub(super) fn new(origin: &str, text: &str, mut errors: Vec<ConfigError>, secrets: &[Range<usize>]) -> Self {
        errors.sort_by_key(|error| error.span.start);
        ConfigErrors { origin: origin.to_owned(), text: mask_secrets(text, secrets), errors }
    }

    /// The number of errors.
    pub fn count(&self) -> usize {
        self.errors.len()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        for error in self.errors.iter().take(ERRORS_SHOWN_MAX) {
            writeln!(f, "{}\n", renderer.render(&[error.report_group(&self.origin, &self.text)]))?;
        }
        match self.errors.len() {
            1 => write!(f, "1 error in {}", self.origin),
            n if n > ERRORS_SHOWN_MAX => {
                write!(f, "{n} errors in {}, only the first {ERRORS_SHOWN_MAX} are shown", self.origin)
            }
            n => write!(f, "{n} errors in {}", self.origin),
        }
    }
}

impl Error for ConfigErrors {}
