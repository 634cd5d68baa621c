//! mailrace.toml(5), made from `default.toml` line by line:
//!
//! | line                                    | becomes                                         |
//! |-----------------------------------------|-------------------------------------------------|
//! | `# --- Title ---`                       | a section                                       |
//! | `[name]`, `[[name]]`, or after `# `     | a subsection; after `# `, all its keys are examples |
//! | `key = value   # comment`, or after `# ` | a key; after `# `, its value is an example     |
//! | white space, then `# comment`           | the continuation of a comment                   |
//! | `# prose`                               | a paragraph; it belongs to the key or table after it |
//! | an empty line                           | the end of a paragraph                          |

use super::{escaped, heading};

/// Starts a comment, also on lines that continue one.
const COMMENT_MARK: &str = "# ";

/// The kind of a line.
#[derive(Debug, PartialEq, Eq)]
enum SettingsLine<'a> {
    Title(&'a str),
    Table { name: &'a str, is_example: bool },
    Key { name: &'a str, value: &'a str, comment: &'a str, is_example: bool },
    CommentContinued(&'a str),
    Prose(&'a str),
    Empty,
}

/// The page for the text of `default.toml`.
pub(super) fn page(defaults: &str) -> String {
    let name = ".SH NAME\nmailrace.toml \\- the configuration of mailrace\n.SH DESCRIPTION\n";
    let page = heading("mailrace.toml", 5) + name;
    let mut writer = PageWriter { page, ..PageWriter::default() };
    defaults.lines().map(parse_line).for_each(|line| writer.write_line(&line));
    writer.end_prose();
    writer.page.push_str(".SH \"SEE ALSO\"\n\\fBmailrace\\fR(1), \\fBmailrace\\-check\\fR(1)\n");
    writer.page
}

/// The page so far.
#[derive(Default)]
struct PageWriter {
    page: String,
    /// Prose that is not written yet: before a table, it goes below the table's heading.
    prose: String,
    /// Whether the current table is an example, so that all its keys are.
    in_example: bool,
}

impl PageWriter {
    fn write_line(&mut self, line: &SettingsLine) {
        match line {
            SettingsLine::Prose(text) => self.prose.push_str(&format!("{}\n", escaped(text))),
            SettingsLine::Empty => self.end_prose(),
            SettingsLine::CommentContinued(text) => self.page.push_str(&format!("{}\n", escaped(text))),
            SettingsLine::Title(title) => {
                self.end_prose();
                self.page.push_str(&format!(".SH \"{}\"\n", escaped(&title.to_uppercase())));
            }
            SettingsLine::Table { name, is_example } => {
                self.in_example = *is_example;
                let example = if *is_example { " (an example)" } else { "" };
                self.page.push_str(&format!(".SS \"{}{example}\"\n", escaped(name)));
                self.end_prose();
            }
            SettingsLine::Key { name, value, comment, is_example } => {
                self.end_prose();
                let example = if *is_example && !self.in_example { "  (an example: no default)" } else { "" };
                self.page.push_str(&format!(".TP\n\\fB{}\\fR = {}{example}\n", escaped(name), escaped(value)));
                if !comment.is_empty() {
                    self.page.push_str(&format!("{}\n", escaped(comment)));
                }
            }
        }
    }

    fn end_prose(&mut self) {
        if self.prose.is_empty() {
            return;
        }
        // A heading already starts a paragraph; mandoc(1) warns about a second one.
        let heading = self.page.lines().next_back().is_some_and(|line| line.starts_with(".S"));
        self.page.push_str(if heading { "" } else { ".PP\n" });
        self.page.push_str(&std::mem::take(&mut self.prose));
    }
}

fn parse_line(line: &str) -> SettingsLine<'_> {
    if line.trim().is_empty() {
        return SettingsLine::Empty;
    }
    if line.starts_with(' ') {
        return SettingsLine::CommentContinued(line.trim_start().trim_start_matches(COMMENT_MARK));
    }
    if let Some(title) = line.strip_prefix("# --- ") {
        return SettingsLine::Title(title.trim_end_matches('-').trim_end());
    }
    let (said, is_example) = match line.strip_prefix(COMMENT_MARK) {
        Some(said) => (said, true),
        None => (line, false),
    };
    if said.starts_with('[') {
        let name = split_comment(said).0;
        return SettingsLine::Table { name, is_example };
    }
    match said.split_once(" = ") {
        Some((name, rest)) if is_name(name) => {
            let (value, comment) = split_comment(rest);
            SettingsLine::Key { name, value, comment, is_example }
        }
        _ => SettingsLine::Prose(said.trim_start_matches('#').trim_start()),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Splits a value from the comment after it. A '#' in quotes belongs to the value.
fn split_comment(text: &str) -> (&str, &str) {
    let mut is_quoted = false;
    let at = text.char_indices().find(|&(_, character)| {
        is_quoted ^= character == '"';
        character == '#' && !is_quoted
    });
    match at {
        Some((at, _)) => (text[..at].trim_end(), text[at + 1..].trim_start()),
        None => (text.trim_end(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# Every setting.
# Sizes: 1000, "64KiB".

# hostname = "mx1.example.org"    # default: the machine's own name
threads = 0                       # for sessions;
                                  # 0: half

# --- Where mail comes in -------------------

# What listens.
[[listener]]
filter = "(a#b)"                  # a | b
concurrency = { start = 1 }

# [[table]]
# name = "people"                 # its name
# query = "SELECT = $1"
"#;

    #[test]
    fn each_line_of_the_defaults_has_its_place_in_the_page() {
        insta::assert_snapshot!(page(TEXT).replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn a_hash_in_quotes_is_no_comment() {
        let line = SettingsLine::Key { name: "a", value: "\"#\"", comment: "b", is_example: false };
        assert_eq!(parse_line("a = \"#\"  # b"), line);
    }

    #[test]
    fn prose_that_speaks_of_keys_is_prose() {
        assert_eq!(
            parse_line("# A line that begins with \"# key =\""),
            SettingsLine::Prose("A line that begins with \"# key =\"")
        );
    }

    #[test]
    fn every_key_of_the_defaults_is_in_the_page() {
        let page = page(config::DEFAULT);
        let keys = config::DEFAULT.lines().filter_map(|line| match parse_line(line) {
            SettingsLine::Key { name, .. } => Some(name),
            _ => None,
        });
        let mut count = 0;
        for key in keys {
            assert!(page.contains(&format!("\\fB{key}\\fR = ")), "{key}");
            count += 1;
        }
        assert!(count > 100, "only {count} keys were found");
    }
}
