//! Where mailboxes are: by the pattern of their transport, or where a table of places says.
//!
//! A place of a table is a path below the transport's root, or one that begins with it. Nothing that a table says leads
//! out of there: a directory is written by more people than the configuration.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use lookup::{Answer, Table};
use mail::Address;

/// The Maildir of a mailbox, by a pattern.
pub type Folders = Arc<dyn Fn(&Address) -> PathBuf + Send + Sync>;

/// A table of places.
#[derive(Clone)]
pub struct PlaceTable {
    /// Keyed by address; a mailbox that is not in it is where the pattern says.
    pub table: Arc<dyn Table>,
    /// All places are below this folder.
    pub root: PathBuf,
}

/// Knows where the mailboxes of a transport are.
#[derive(Clone)]
pub struct Places {
    /// Where mailboxes are,
    pub folders: Folders,
    /// unless a table says where.
    pub table: Option<PlaceTable>,
}

impl Places {
    /// The folder of each mailbox, or why that cannot be said now; a table is asked once for all of them. Without a table
    /// nothing is awaited.
    pub async fn of(&self, mailboxes: &[&Address]) -> Vec<Result<PathBuf, String>> {
        let Some(PlaceTable { table, root }) = &self.table else { return self.by_pattern(mailboxes) };
        let keys: Vec<&str> = mailboxes.iter().map(|mailbox| mailbox.as_str()).collect();
        let answers = table.lookup(&keys).await;
        let place = |(mailbox, answer): (&&Address, Answer)| match answer {
            Answer::Found(values) => match &values[..] {
                [one] => below(root, one).ok_or_else(|| {
                    format!("table '{}': the place of {mailbox} is '{one}', not below {}", table.name(), root.display())
                }),
                _ => Err(format!("table '{}': {mailbox} has {} places", table.name(), values.len())),
            },
            Answer::NotFound => Ok((self.folders)(mailbox)),
            Answer::Unavailable(why) | Answer::Unconfirmed(why) => Err(why),
        };
        mailboxes.iter().zip(answers).map(place).collect()
    }

    /// The folders where no table says otherwise.
    pub(super) fn by_pattern(&self, mailboxes: &[&Address]) -> Vec<Result<PathBuf, String>> {
        mailboxes.iter().map(|mailbox| Ok((self.folders)(mailbox))).collect()
    }
}

/// The places of several attempts, asked together, dealt out again: so many to each. Whatever became of one, each attempt
/// gets its own: a place that went astray would bring mail into somebody else's mailbox.
pub(super) fn shares<T>(places: Vec<T>, sizes: impl Iterator<Item = usize>) -> Vec<Vec<T>> {
    let mut places = places.into_iter();
    sizes.map(|size| places.by_ref().take(size).collect()).collect()
}

/// The folder that the text names, if that is below the root.
fn below(root: &Path, text: &str) -> Option<PathBuf> {
    let path = Path::new(text);
    let relative = if path.is_absolute() { path.strip_prefix(root).ok()? } else { path };
    let sound = relative.components().all(|component| matches!(component, Component::Normal(_)));
    let named = relative.components().next().is_some() && !text.contains(char::is_control);
    (sound && named).then(|| root.join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever came behind a mailbox without a place, within one attempt, used to shift the places of all attempts behind
    /// it: their mail went into mailboxes of others.
    #[test]
    fn a_mailbox_without_a_place_shifts_nobody_elses() {
        let (known, unknown) = (|text: &str| Ok(PathBuf::from(text)), || Err("it is down".to_owned()));
        let places = vec![unknown(), known("a"), unknown(), known("b"), known("c")];
        let expected = [vec![unknown(), known("a"), unknown()], vec![], vec![known("b")], vec![known("c")]];
        assert_eq!(shares(places, [3, 0, 1, 1].into_iter()), expected);
    }

    #[test]
    fn a_place_is_below_the_root_or_none() {
        let root = Path::new("/srv/mail");
        for (text, place) in [
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
            assert_eq!(below(root, text).as_deref(), place.map(Path::new), "{text:?}");
        }
    }
}
