//! Where mailboxes are: by the pattern of their transport, or by a table.
//!
//! A table gives a path below the transport's root, relative or absolute. Paths outside the root
//! are rejected: more people can write to a directory than to the configuration.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use lookup::{LookupAnswer, Table};
use mail::Address;

/// The Maildir of a mailbox, by a pattern.
pub type MaildirPathFn = Arc<dyn Fn(&Address) -> PathBuf + Send + Sync>;

/// A table of mailbox paths.
#[derive(Clone)]
pub struct MailboxPathTable {
    /// Keyed by address; a mailbox that is not in it uses the pattern.
    pub table: Arc<dyn Table>,
    /// All paths must be below this folder.
    pub root: PathBuf,
}

/// Finds the mailboxes of a transport.
#[derive(Clone)]
pub struct MailboxPathResolver {
    /// The path of a mailbox,
    pub pattern: MaildirPathFn,
    /// unless this table has one.
    pub table: Option<MailboxPathTable>,
}

impl MailboxPathResolver {
    /// The folder of each mailbox, or why it is unknown now; a table gets one query for all.
    /// Without a table this does not wait.
    pub async fn resolve(&self, mailboxes: &[&Address]) -> Vec<Result<PathBuf, String>> {
        let Some(MailboxPathTable { table, root }) = &self.table else { return self.by_pattern(mailboxes) };
        let keys: Vec<&str> = mailboxes.iter().map(|mailbox| mailbox.as_str()).collect();
        let answers = table.lookup(&keys).await;
        let path = |(mailbox, answer): (&&Address, LookupAnswer)| match answer {
            LookupAnswer::Found(values) => match &values[..] {
                [one] => path_below(root, one).ok_or_else(|| {
                    format!(
                        "table '{}': the path of {mailbox} is '{one}', which is not below {}",
                        table.name(),
                        root.display()
                    )
                }),
                _ => Err(format!("table '{}': {mailbox} has {} paths, expected one", table.name(), values.len())),
            },
            LookupAnswer::NotFound => Ok((self.pattern)(mailbox)),
            LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => Err(why),
        };
        mailboxes.iter().zip(answers).map(path).collect()
    }

    /// The folders by the pattern alone.
    pub fn by_pattern(&self, mailboxes: &[&Address]) -> Vec<Result<PathBuf, String>> {
        mailboxes.iter().map(|mailbox| Ok((self.pattern)(mailbox))).collect()
    }
}

/// Divides the paths for several attempts, looked up together, among the attempts: `size` paths to
/// each. A shifted path would deliver mail to someone else's mailbox.
pub fn split_by_size<T>(places: Vec<T>, sizes: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
    let mut places = places.into_iter();
    sizes.map(|size| places.by_ref().take(size).collect()).collect()
}

/// The folder named by the text, if it is below the root.
fn path_below(root: &Path, text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let relative = if path.is_absolute() { path.strip_prefix(root).ok()? } else { path };
    let sound = relative.components().all(|component| matches!(component, Component::Normal(_)));
    let named = relative.components().next().is_some() && !text.contains(char::is_control);
    (sound && named).then(|| root.join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a recipient without a known mailbox shifted the paths of all attempts behind it,
    /// and their mail went to the wrong mailboxes.
    #[test]
    fn an_unknown_path_does_not_shift_the_others() {
        let (known, unknown) = (|text: &str| Ok(PathBuf::from(text)), || Err("it is down".to_owned()));
        let places = vec![unknown(), known("a"), unknown(), known("b"), known("c")];
        let expected = [vec![unknown(), known("a"), unknown()], vec![], vec![known("b")], vec![known("c")]];
        assert_eq!(split_by_size(places, [3, 0, 1, 1].into_iter()), expected);
    }

    #[test]
    fn paths_outside_the_root_are_rejected() {
        let root = Path::new("/srv/mail");
        for (text, path) in [
            ("a/b/Maildir/", Some("/srv/mail/a/b/Maildir")),
            ("/srv/mail/a", Some("/srv/mail/a")),
            ("/srv/mail//a", Some("/srv/mail/a")),
            ("/srv/mailbox/a", None),
            ("/etc", None),
            ("../a", None),
            ("a/../../b", None),
            ("/srv/mail/../x", None),
            ("./a", None),
            ("a\n", None),
            ("/srv/mail", None),
            ("", None),
        ] {
            assert_eq!(path_below(root, text).as_deref(), path.map(Path::new), "{text:?}");
        }
    }
}
