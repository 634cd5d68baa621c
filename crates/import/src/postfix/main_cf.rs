//! Parses main.cf, and the files of LDAP and SQL maps, in the syntax of postconf(5).
//!
//! A logical line starts with a character other than white space and continues with lines that
//! start with white space, across comments and empty lines. The last definition of a name wins.
//! There are no errors: a line that is not a definition is kept, to be reported.

use std::collections::HashMap;

/// The definitions in a file, in the order of their last occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MainCf {
    settings: Vec<(String, String)>,
    places: HashMap<String, usize>,
    oddities: Vec<String>,
}

impl MainCf {
    /// Parses any text.
    pub fn parse(text: &str) -> Self {
        let mut file = MainCf::default();
        for line in logical_lines(text) {
            match definition(&line) {
                Some((name, value)) => file.set(name, value),
                None => file.oddities.push(line),
            }
        }
        file
    }

    /// The value of a name as written, not expanded.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|place| &*self.settings[*place].1)
    }

    /// The same file with other values for some names.
    #[must_use]
    pub fn with_overrides(&self, settings: &[(String, String)]) -> MainCf {
        let mut file = self.clone();
        settings.iter().for_each(|(name, value)| file.set(name, value));
        file
    }

    /// All definitions.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Lines that are not definitions.
    pub fn malformed_lines(&self) -> &[String] {
        &self.oddities
    }

    fn set(&mut self, name: &str, value: &str) {
        match self.places.get(name) {
            Some(place) => value.clone_into(&mut self.settings[*place].1),
            None => {
                self.places.insert(name.to_owned(), self.settings.len());
                self.settings.push((name.to_owned(), value.to_owned()));
            }
        }
    }
}

/// Lines joined with their continuations, without comments and empty lines.
pub(super) fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let words = line.trim_start();
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        match lines.last_mut().filter(|_| line.starts_with(char::is_whitespace)) {
            Some(begun) => begun.push_str(line.trim_end()),
            None => lines.push(line.trim_end().to_owned()),
        }
    }
    lines
}

/// `name = value`; the value may be empty.
pub(super) fn definition(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    is_name.then(|| (name, value.trim()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings(text: &str) -> Vec<(String, String)> {
        MainCf::parse(text).settings
    }

    #[test]
    fn a_line_that_begins_with_white_space_goes_on_with_the_one_before() {
        let text =
            "# a comment\n\nmydestination = a.example,\n    b.example\n # within\n\n\tc.example\nempty =\nx=y=z\n";
        let expected = [("mydestination", "a.example,    b.example\tc.example"), ("empty", ""), ("x", "y=z")];
        assert_eq!(settings(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn the_last_definition_counts() {
        assert_eq!(MainCf::parse("a = 1\nb = 2\na = 3\n").value("a"), Some("3"));
    }

    #[test]
    fn what_is_no_definition_is_kept_as_an_oddity() {
        let file = MainCf::parse("no definition\n= 5\ntwo words = 5\na = 1");
        assert_eq!(file.malformed_lines(), ["no definition", "= 5", "two words = 5"]);
        assert_eq!(file.value("a"), Some("1"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s).{0,200}") {
            MainCf::parse(&text);
        }
    }
}
