//! Reads Exim's configuration as lines: continuation lines are joined, comments dropped, macros
//! replaced, included files inserted and `.ifdef` evaluated. See "The runtime configuration file" of
//! Exim's specification.
//!
//! Everything that can grow has a limit, because a macro can name another one: what exceeds a limit is an
//! error, and nothing is imported.

use std::path::{Path, PathBuf};

use crate::FileReader;

/// The longest line, with its continuation lines and with macros replaced.
pub const LINE_MAX: usize = 64 * 1024;
/// All lines together.
pub const TEXT_MAX: usize = 4 * 1024 * 1024;
/// Files that include each other.
pub const INCLUDES_MAX: usize = 16;
/// Macros.
pub const MACROS_MAX: usize = 2000;

/// The configuration cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    /// The file, and the line if one is to blame.
    pub place: String,
    /// What is wrong there.
    pub fault: String,
}

impl std::fmt::Display for SourceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

impl std::error::Error for SourceError {}

/// A line of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigLine {
    /// Where it is.
    pub place: String,
    /// Its text, without white space around it.
    pub text: String,
}

/// The lines of `text`, which is the file at `path`.
///
/// # Errors
///
/// A file that it includes cannot be read, a condition is not closed, or a limit is exceeded.
pub fn read_lines(text: &str, path: &Path, files: &dyn FileReader) -> Result<Vec<ConfigLine>, SourceError> {
    let mut reader = LineReader { files, macros: Vec::new(), lines: Vec::new(), size: 0, open: Vec::new() };
    reader.read_file(text, path)?;
    Ok(reader.lines)
}

struct LineReader<'a> {
    files: &'a dyn FileReader,
    /// Names and values, in the order of their definitions.
    macros: Vec<(String, String)>,
    lines: Vec<ConfigLine>,
    size: usize,
    /// The files that are being read.
    open: Vec<PathBuf>,
}

/// A condition that is open.
struct Condition {
    /// Whether the lines of this branch count.
    active: bool,
    /// Whether a branch was active already, or the whole condition is in an inactive one.
    decided: bool,
}

impl LineReader<'_> {
    fn read_file(&mut self, text: &str, path: &Path) -> Result<(), SourceError> {
        let whole = |fault: String| SourceError { place: path.display().to_string(), fault };
        if self.open.iter().any(|it| it == path) {
            return Err(whole("this file includes itself: remove one .include".into()));
        }
        if self.open.len() >= INCLUDES_MAX {
            return Err(whole(format!("more than {INCLUDES_MAX} files include each other")));
        }
        self.open.push(path.to_owned());
        let mut conditions: Vec<Condition> = Vec::new();
        let mut pending: Option<ConfigLine> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let place = format!("{}: line {number}", path.display());
            self.read_line(line, place, &mut conditions, &mut pending)?;
        }
        if let Some(line) = pending {
            self.finish(line)?;
        }
        self.open.pop();
        match conditions.is_empty() {
            true => Ok(()),
            false => Err(whole("an .ifdef has no .endif".into())),
        }
    }

    fn read_line(
        &mut self,
        line: &str,
        place: String,
        conditions: &mut Vec<Condition>,
        pending: &mut Option<ConfigLine>,
    ) -> Result<(), SourceError> {
        let line = line.trim();
        // Comments and directives may stand between continuation lines.
        if line.starts_with('#') || line.is_empty() && pending.is_none() {
            return Ok(());
        }
        if line.starts_with('.') && line[1..].starts_with(|c: char| c.is_ascii_lowercase()) {
            return self.directive(line, place, conditions);
        }
        if conditions.last().is_some_and(|condition| !condition.active) {
            return Ok(());
        }
        let expanded = self.expand(line, &place)?;
        let (text, continues) = match expanded.strip_suffix('\\') {
            Some(start) => (start.to_owned(), true),
            None => (expanded, false),
        };
        let mut whole = match pending.take() {
            Some(begun) => ConfigLine { text: begun.text + &text, ..begun },
            None => ConfigLine { place, text },
        };
        if whole.text.len() > LINE_MAX {
            let fault = format!("the line is longer than {LINE_MAX} octets");
            return Err(SourceError { place: std::mem::take(&mut whole.place), fault });
        }
        match continues {
            true => *pending = Some(whole),
            false => self.finish(whole)?,
        }
        Ok(())
    }

    /// Adds a complete line, or the macro that it defines.
    fn finish(&mut self, line: ConfigLine) -> Result<(), SourceError> {
        self.size += line.text.len();
        if self.size > TEXT_MAX {
            let fault = format!("the configuration is larger than {TEXT_MAX} octets");
            return Err(SourceError { place: line.place, fault });
        }
        let Some((name, value)) = macro_definition(&line.text) else {
            self.lines.push(line);
            return Ok(());
        };
        if self.macros.len() >= MACROS_MAX {
            return Err(SourceError { place: line.place, fault: format!("there are more than {MACROS_MAX} macros") });
        }
        match self.macros.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => value.clone_into(known),
            None => self.macros.push((name.to_owned(), value.to_owned())),
        }
        Ok(())
    }

    /// The line with the values of macros, in the order in which they were defined. The name in a definition
    /// stays.
    fn expand(&self, line: &str, place: &str) -> Result<String, SourceError> {
        let start = macro_definition(line).map_or(0, |(name, _)| name.len());
        let mut text = line[start..].to_owned();
        if !text.contains(|c: char| c.is_ascii_uppercase()) {
            return Ok(line.to_owned());
        }
        for (name, value) in &self.macros {
            if text.contains(name.as_str()) {
                let growth = text.matches(name.as_str()).count().saturating_mul(value.len());
                if growth.saturating_add(text.len()) > LINE_MAX {
                    let fault = format!("with its macros the line is longer than {LINE_MAX} octets");
                    return Err(SourceError { place: place.to_owned(), fault });
                }
                text = text.replace(name.as_str(), value);
            }
        }
        Ok(format!("{}{text}", &line[..start]))
    }

    fn directive(&mut self, line: &str, place: String, conditions: &mut Vec<Condition>) -> Result<(), SourceError> {
        let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let is_active = conditions.last().is_none_or(|condition| condition.active);
        let stray = || SourceError { place: place.clone(), fault: format!("{name} without .ifdef") };
        match name {
            ".ifdef" | ".ifndef" => {
                let holds = self.is_defined(argument) == (name == ".ifdef");
                conditions.push(Condition { active: is_active && holds, decided: !is_active || holds });
            }
            ".elifdef" | ".elifndef" | ".else" => {
                let holds = name == ".else" || self.is_defined(argument) == (name == ".elifdef");
                let condition = conditions.last_mut().ok_or_else(stray)?;
                condition.active = !condition.decided && holds;
                condition.decided |= holds;
            }
            ".endif" => {
                conditions.pop().ok_or_else(stray)?;
            }
            ".include" | ".include_if_exists" if is_active => {
                let argument = self.expand(argument.trim(), &place)?;
                self.include(argument.trim_matches('"'), name == ".include", &place)?;
            }
            _ if is_active && !name.starts_with(".include") => {
                return Err(SourceError { fault: format!("{name} is not a directive that Exim has"), place });
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the words after `.ifdef` contain a macro. Those about how Exim was built are taken for defined,
    /// except for that of the TLS library that Debian's Exim does not have.
    fn is_defined(&self, words: &str) -> bool {
        let is_built_in = |word: &str| {
            ["_HAVE_", "_OPT_", "_DRIVER_"].iter().any(|it| word.starts_with(it)) && word != "_HAVE_OPENSSL"
        };
        words.split_whitespace().any(is_built_in) || self.macros.iter().any(|(name, _)| words.contains(name.as_str()))
    }

    fn include(&mut self, path: &str, is_needed: bool, place: &str) -> Result<(), SourceError> {
        match self.files.text(Path::new(path)) {
            Ok(text) => self.read_file(&text, Path::new(path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_needed => Ok(()),
            Err(error) => {
                Err(SourceError { place: place.to_owned(), fault: format!("cannot include {path}: {error}") })
            }
        }
    }
}

/// The name and value of a macro that a line defines: `NAME = value`, or `NAME == value` to define it
/// anew.
fn macro_definition(line: &str) -> Option<(&str, &str)> {
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let value = rest.trim_start().strip_prefix('=')?;
    let value = value.strip_prefix('=').unwrap_or(value).trim();
    name.starts_with(|c: char| c.is_ascii_uppercase()).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    struct Folder(&'static [(&'static str, &'static str)]);

    impl FileReader for Folder {
        fn text(&self, path: &Path) -> io::Result<String> {
            let found = self.0.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    fn lines(text: &str, files: &'static [(&'static str, &'static str)]) -> Result<Vec<String>, String> {
        let read = read_lines(text, Path::new("/exim.conf"), &Folder(files));
        read.map(|lines| lines.into_iter().map(|line| line.text).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn macros_conditions_and_continuation_lines_are_those_of_exim() {
        let text = "A_NAME = one\n.ifdef A_NAME\nx = A_NAME \\\n  # a comment between\n   and more\n.else\ny\n.endif\n\
                    .ifndef A_NAME\nz\n.elifdef NONE\nq\n.else\nw = XA_NAMEX\n.endif\nA_NAME == two\nv = A_NAME\n";
        assert_eq!(lines(text, &[]).unwrap(), ["x = one and more", "w = XoneX", "v = two"]);
    }

    #[test]
    fn included_files_stand_where_they_are_included() {
        let files = &[("/a", "a = 1\n"), ("/loop", ".include /loop\n")];
        assert_eq!(lines(".include /a\n.include_if_exists /none\nb\n", files).unwrap(), ["a = 1", "b"]);
        assert!(lines(".include /none\n", files).unwrap_err().starts_with("/exim.conf: line 1: cannot include /none"));
        assert!(lines(".include /loop\n", files).unwrap_err().contains("/loop: this file includes itself"));
    }

    #[test]
    fn what_grows_without_end_is_an_error() {
        let mut bomb = "A0 = xxxxxxxxxx\n".to_owned();
        (1..40).for_each(|n| {
            bomb += &format!("B{n}_ = {0}{0}\n", if n == 1 { "A0".into() } else { format!("B{}_", n - 1) })
        });
        assert!(lines(&format!("{bomb}x = B39_\n"), &[]).unwrap_err().contains("the line is longer than"));
        assert!(
            lines(&format!("x = {}\n", "y".repeat(1 << 20)), &[]).unwrap_err().contains("line 1: the line is longer")
        );
        assert!(lines(".ifdef X\n", &[]).unwrap_err().contains("no .endif"));
        assert!(lines(".endif\n", &[]).unwrap_err().contains("without .ifdef"));
        assert!(lines(".nonsense\n", &[]).unwrap_err().contains("not a directive"));
    }
}
