//! Writes HTML, and SVG in it. Elements are closed by construction, and text and attributes are escaped, so nothing
//! from a file of results can become markup.

use std::fmt::{self, Display, Write};

/// Attributes of an element: names, and values that are escaped.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

/// A text of HTML that grows.
#[derive(Default)]
pub(super) struct Html {
    text: String,
    ids: usize,
}

/// Appends text with what HTML does not allow replaced.
struct Escaper<'a>(&'a mut String);

impl Html {
    /// An element and what it contains.
    pub(super) fn element(&mut self, name: &'static str, attributes: Attributes<'_>, content: impl FnOnce(&mut Html)) {
        self.open(name, attributes);
        self.text.push('>');
        content(self);
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push('>');
    }

    /// An element that begins and ends a line.
    pub(super) fn block(&mut self, name: &'static str, attributes: Attributes<'_>, content: impl FnOnce(&mut Html)) {
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.element(name, attributes, content);
        self.text.push('\n');
    }

    /// An element with nothing but text.
    pub(super) fn words(&mut self, name: &'static str, attributes: Attributes<'_>, text: impl Display) {
        self.element(name, attributes, |html| html.text(text));
    }

    /// A block with nothing but text.
    pub(super) fn line(&mut self, name: &'static str, attributes: Attributes<'_>, text: impl Display) {
        self.block(name, attributes, |html| html.text(text));
    }

    /// An element without content.
    pub(super) fn leaf(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.open(name, attributes);
        self.text.push_str("/>");
    }

    /// Text.
    pub(super) fn text(&mut self, text: impl Display) {
        // A String takes everything.
        let _ = write!(Escaper(&mut self.text), "{text}");
    }

    /// What must not be escaped: styles and scripts of this crate.
    pub(super) fn verbatim(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    /// An id that no other element has.
    pub(super) fn unique_id(&mut self) -> String {
        self.ids += 1;
        format!("i{}", self.ids)
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn open(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.text.push('<');
        self.text.push_str(name);
        for (attribute, value) in attributes {
            self.text.push(' ');
            self.text.push_str(attribute);
            self.text.push_str("=\"");
            self.text(value);
            self.text.push('"');
        }
    }
}

impl Write for Escaper<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\t' | '\n' => self.0.push(letter),
                // Lines of configurations may end in CRLF.
                '\r' => {}
                _ if letter.is_control() => self.0.push(char::REPLACEMENT_CHARACTER),
                _ => self.0.push(letter),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_closed_and_everything_else_is_escaped() {
        let mut html = Html::default();
        html.element("p", &[("class", &"a\"b"), ("id", &1)], |html| {
            html.words("b", &[], "<script>&'\u{0}\r\n");
            html.leaf("rect", &[]);
        });
        let expected = "<p class=\"a&quot;b\" id=\"1\"><b>&lt;script&gt;&amp;&#39;\u{fffd}\n</b><rect/></p>";
        assert_eq!(html.finish(), expected);
    }
}
