//! Templates of commands, paths and configuration files: names in braces are replaced.
//!
//! | name | stands for |
//! |---|---|
//! | `{folder}` | the folder of the system in this run |
//! | `{port}`, `{port2}`, `{port3}` | its port; two more free ones |
//! | `{target}` | its address with the port |
//! | `{user}`, `{group}` | the user of the system, and that one's group |
//! | `{mailrace}` | the program that runs the comparison |
//! | `{count}`, `{seconds}`, `{value}` | those of the scenario, in its load |
//!
//! Anything else in braces stays as it is: configuration files have braces of their own.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::error::CompareError;
use crate::file::CommandTemplate;
use crate::process;

/// What the names stand for.
#[derive(Clone, Debug, Default)]
pub struct Words(HashMap<&'static str, String>);

impl Words {
    /// For a run in this folder.
    #[must_use]
    pub fn of_run(folder: &Path, mailrace: &Path, address: IpAddr, ports: [u16; 3]) -> Words {
        let mut words = Words::default();
        words.set("folder", folder.display());
        words.set("mailrace", mailrace.display());
        words.set("port2", ports[1]);
        words.set("port3", ports[2]);
        words.set_port(address, ports[0]);
        words
    }

    /// For people, of a system at this address: names instead of what differs from run to run.
    #[must_use]
    pub fn for_report(address: IpAddr) -> Words {
        let names = [("folder", "FOLDER"), ("mailrace", "mailrace"), ("port", "PORT"), ("port2", "PORT2")];
        let more = [("port3", "PORT3"), ("user", "USER"), ("group", "GROUP")];
        let mut words = Words(names.into_iter().chain(more).map(|(name, text)| (name, text.to_owned())).collect());
        words.set("target", SocketAddr::new(address, 0).to_string().trim_end_matches('0').to_owned() + "PORT");
        words
    }

    /// Sets `{port}` and `{target}`.
    pub fn set_port(&mut self, address: IpAddr, port: u16) {
        self.set("port", port);
        self.set("target", SocketAddr::new(address, port));
    }

    /// Sets a name.
    pub fn set(&mut self, name: &'static str, text: impl ToString) {
        self.0.insert(name, text.to_string());
    }

    /// The text with the names replaced, in one pass.
    #[must_use]
    pub fn fill(&self, template: &str) -> String {
        let mut filled = String::with_capacity(template.len());
        let mut rest = template;
        while let Some(brace) = rest.find('{') {
            let (before, from_brace) = rest.split_at(brace);
            filled.push_str(before);
            let found = from_brace.find('}').and_then(|end| Some((self.0.get(&from_brace[1..end])?, end)));
            match found {
                Some((text, end)) => {
                    filled.push_str(text);
                    rest = &from_brace[end + 1..];
                }
                None => {
                    filled.push('{');
                    rest = &from_brace[1..];
                }
            }
        }
        filled + rest
    }

    /// The words of a command.
    #[must_use]
    pub fn command(&self, template: &CommandTemplate) -> Vec<String> {
        match template {
            CommandTemplate::Shell(line) => process::shell(&self.fill(line)),
            CommandTemplate::Words(words) => words.iter().map(|word| self.fill(word)).collect(),
        }
    }

    /// A command as a line for people.
    #[must_use]
    pub fn line(&self, template: &CommandTemplate) -> String {
        match template {
            CommandTemplate::Shell(line) => self.fill(line),
            CommandTemplate::Words(words) => words.iter().map(|word| self.fill(word)).collect::<Vec<_>>().join(" "),
        }
    }
}

/// Templates put paths into shell lines without quotes.
///
/// # Errors
///
/// A shell would split the path, or find something else in it.
pub fn check_path(path: &Path) -> Result<(), CompareError> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@".contains(c);
    match path.to_str().is_some_and(|text| text.chars().all(is_plain)) {
        true => Ok(()),
        false => Err(CompareError::Usage(format!(
            "the path {} has characters with a meaning for shells: use another folder",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_replaced_once_and_all_other_braces_stay() {
        let mut words = Words::of_run(Path::new("/x"), Path::new("/bin/m"), [127, 0, 0, 1].into(), [1, 2, 3]);
        words.set("value", "{port}");
        assert_eq!(words.fill("{mailrace} {folder}/a {target} {port} {port3}"), "/bin/m /x/a 127.0.0.1:1 1 3");
        assert_eq!(
            words.fill("http { root {folder}; } user{} {domain}/{local} {"),
            "http { root /x; } user{} {domain}/{local} {"
        );
        assert_eq!(words.fill("{value}"), "{port}");
        words.set_port("::1".parse().unwrap(), 25);
        assert_eq!(words.fill("{target}"), "[::1]:25");
    }

    #[test]
    fn a_path_that_a_shell_would_split_is_refused() {
        assert!(check_path(Path::new("/tmp/a-b_c.d")).is_ok());
        for path in ["/tmp/a b", "/tmp/$HOME", "/tmp/a;b"] {
            assert!(check_path(Path::new(path)).is_err(), "{path}");
        }
    }
}
