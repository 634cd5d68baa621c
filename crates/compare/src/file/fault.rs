//! Errors in the file and how they are shown: the line with the place marked.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// An error at a place of the text.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    span: Range<usize>,
    text: String,
}

impl Fault {
    pub(super) fn new(span: Range<usize>, text: &str) -> Fault {
        Fault { span, text: text.to_owned() }
    }

    pub(super) fn from_toml(error: &toml::de::Error) -> Fault {
        Fault { span: error.span().unwrap_or(0..0), text: error.message().to_owned() }
    }
}

/// All errors as text, each with its line.
pub(super) fn render(faults: &[Fault], text: &str, origin: &str) -> String {
    let renderer = Renderer::plain();
    let shown = faults.iter().map(|fault| {
        let mark = AnnotationKind::Primary.span(first_line(text, &fault.span));
        let snippet = Snippet::source(text).path(origin).annotation(mark);
        renderer.render(&[Level::ERROR.primary_title(&*fault.text).element(snippet)])
    });
    shown.collect::<Vec<String>>().join("\n\n")
}

/// A span clipped to the text and to its first line: a table may be many lines long.
fn first_line(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(span.start);
    let end = text.ceil_char_boundary(span.end).max(start);
    let length = text[start..end].find('\n').unwrap_or(end - start);
    start..start + length
}
