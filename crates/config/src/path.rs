//! Paths with placeholders. `{data_dir}` is replaced when the configuration is read; `{domain}` and
//! `{local}` stay in a [`MaildirPathTemplate`] until a message is delivered to a mailbox.
//!
//! The names of mailboxes come from outside, so they are encoded as a single plain file name: never
//! empty, never `.` or `..`, never hidden, without separators. Two mailboxes never share a name,
//! and names that differ only in case are the same mailbox, as in lookups.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Where the Maildir of each mailbox is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaildirPathTemplate {
    parts: Vec<PathPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathPart {
    Text(Box<str>),
    DataDir,
    Domain,
    Local,
}

impl MaildirPathTemplate {
    /// Parses a template, which must contain `{local}`. The error says what is wrong with it.
    pub(super) fn parse(template: &str, data_dir: &Path) -> Result<Self, String> {
        let mut parts = parse_template(template, &[PathPart::DataDir, PathPart::Domain, PathPart::Local])?;
        if !parts.contains(&PathPart::Local) {
            return Err("without {local}, all mailboxes would share one folder".to_owned());
        }
        let data_dir: Box<str> = path_str(data_dir)?.into();
        for part in parts.iter_mut().filter(|part| **part == PathPart::DataDir) {
            *part = PathPart::Text(data_dir.clone());
        }
        Ok(MaildirPathTemplate { parts })
    }

    /// The default template in a folder whose name came from a configuration text.
    pub(super) fn with_data_dir(data_dir: &Path) -> Self {
        MaildirPathTemplate::parse("{data_dir}/mail/{domain}/{local}", data_dir)
            .expect("the template is valid, and a folder read from a text is UTF-8")
    }

    /// The Maildir of `mailbox` (a local part without quotes) at `domain`. Both may be any string:
    /// the result never leaves the folder of the template.
    pub fn expand(&self, domain: &str, mailbox: &str) -> PathBuf {
        let mut path = String::new();
        for part in &self.parts {
            match part {
                PathPart::Text(text) => path.push_str(text),
                PathPart::Domain => push_file_name(&mut path, domain),
                PathPart::Local => push_file_name(&mut path, mailbox),
                PathPart::DataDir => {}
            }
        }
        PathBuf::from(path)
    }
}

/// Replaces `{data_dir}`. Other placeholders are an error.
pub(super) fn fill_data_dir(template: &str, data_dir: &Path) -> Result<PathBuf, String> {
    let mut path = String::new();
    for part in parse_template(template, &[PathPart::DataDir])? {
        match part {
            PathPart::Text(text) => path.push_str(&text),
            PathPart::DataDir | PathPart::Domain | PathPart::Local => path.push_str(path_str(data_dir)?),
        }
    }
    Ok(PathBuf::from(path))
}

fn path_str(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

fn parse_template(template: &str, allowed: &[PathPart]) -> Result<Vec<PathPart>, String> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, tail)) = rest.split_once('{') {
        let (name, after) = tail.split_once('}').ok_or("unmatched {")?;
        let part = placeholder(name).filter(|part| allowed.contains(part));
        parts.push(PathPart::Text(text.into()));
        parts.push(part.ok_or_else(|| format!("{{{name}}} is not a known placeholder"))?);
        rest = after;
    }
    parts.push(PathPart::Text(rest.into()));
    match template {
        "" => Err("an empty path".to_owned()),
        t if t.contains(|c: char| c.is_control()) => Err("a control character in a path".to_owned()),
        _ => Ok(parts),
    }
}

fn placeholder(name: &str) -> Option<PathPart> {
    match name {
        "data_dir" => Some(PathPart::DataDir),
        "domain" => Some(PathPart::Domain),
        "local" => Some(PathPart::Local),
        _ => None,
    }
}

/// Appends `name` in lower case, with `%XX` for bytes that are special to a file system or a shell.
fn push_file_name(path: &mut String, name: &str) {
    if name.is_empty() {
        // No other name becomes a single percent sign.
        path.push('%');
    }
    for (place, c) in name.char_indices() {
        let plain = c.is_ascii_alphanumeric() || "-_+=@,~".contains(c) || (c == '.' && place > 0);
        if plain || (!c.is_ascii() && c.is_alphanumeric()) {
            path.extend(c.to_lowercase());
        } else {
            let mut octets = [0; 4];
            for octet in c.encode_utf8(&mut octets).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(path, "%{octet:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use proptest::prelude::*;

    use super::*;

    fn template() -> MaildirPathTemplate {
        MaildirPathTemplate::with_data_dir(Path::new("/data"))
    }

    #[test]
    fn a_mailbox_is_a_folder_of_its_domain() {
        for (domain, mailbox, folder) in [
            ("example.org", "bob", "/data/mail/example.org/bob"),
            ("example.org", "Bob", "/data/mail/example.org/bob"),
            ("example.org", "b.o-b+x", "/data/mail/example.org/b.o-b+x"),
            ("example.org", "jürgen", "/data/mail/example.org/jürgen"),
            ("example.org", "..", "/data/mail/example.org/%2E."),
            ("example.org", ".", "/data/mail/example.org/%2E"),
            ("example.org", "../../etc/passwd", "/data/mail/example.org/%2E.%2F..%2Fetc%2Fpasswd"),
            ("example.org", "/etc", "/data/mail/example.org/%2Fetc"),
            ("example.org", "a\0b", "/data/mail/example.org/a%00b"),
            ("example.org", "%2e", "/data/mail/example.org/%252e"),
            ("example.org", "", "/data/mail/example.org/%"),
            ("[127.0.0.1]", "o'brien", "/data/mail/%5B127.0.0.1%5D/o%27brien"),
            ("..", "\u{202e}x", "/data/mail/%2E./%E2%80%AEx"),
        ] {
            assert_eq!(template().expand(domain, mailbox), Path::new(folder), "{mailbox:?} at {domain:?}");
        }
    }

    #[test]
    fn a_template_with_a_fault_is_refused() {
        let data = Path::new("/data");
        for bad in ["", "/mail", "{data_dir}/{user}/{local}", "{local", "/m/{local}/\0"] {
            assert!(MaildirPathTemplate::parse(bad, data).is_err(), "{bad:?}");
        }
        assert!(fill_data_dir("{data_dir}/{local}", data).is_err());
        assert_eq!(fill_data_dir("{data_dir}/x", data), Ok(PathBuf::from("/data/x")));
    }

    proptest! {
        #[test]
        fn no_name_leaves_its_folder(domain in any::<String>(), mailbox in any::<String>()) {
            let folder = template().expand(&domain, &mailbox);
            let rest = folder.strip_prefix("/data/mail").unwrap();
            prop_assert!(rest.components().all(|c| matches!(c, Component::Normal(_))));
            prop_assert_eq!(rest.components().count(), 2);
            prop_assert!(!rest.to_str().unwrap().contains('\0'));
        }

        #[test]
        fn two_mailboxes_never_share_a_folder(a in "[a-z./% A]{0,6}", b in "[a-z./% A]{0,6}") {
            let same = template().expand("d", &a) == template().expand("d", &b);
            prop_assert_eq!(same, a.to_lowercase() == b.to_lowercase());
        }
    }
}
