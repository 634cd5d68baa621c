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
    /// Whether a mailbox that is not in it may have the path of `@domain`, before it uses the pattern.
    pub has_wildcards: bool,
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
    /// The folder of each mailbox, or why it is unknown now; a table gets one query for all,
    /// and another one for wildcards.
    /// Without a table this does not wait.
    pub async fn resolve(&self, mailboxes: &[&Address]) -> Vec<Result<PathBuf, String>> {
        let Some(places) = &self.table else { return self.by_pattern(mailboxes) };
        let MailboxPathTable { table, root, .. } = places;
        let keys: Vec<&str> = mailboxes.iter().map(|mailbox| mailbox.as_str()).collect();
        let mut answers = table.lookup(&keys).await;
        if places.has_wildcards {
            look_up_wildcards(&**table, mailboxes, &mut answers).await;
        }
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

/// Replaces each NotFound by the answer for the whole domain.
async fn look_up_wildcards(table: &dyn Table, mailboxes: &[&Address], answers: &mut [LookupAnswer]) {
    let missing = mailboxes.iter().zip(answers).filter(|(_, answer)| **answer == LookupAnswer::NotFound);
    let (keys, missing): (Vec<String>, Vec<&mut LookupAnswer>) =
        missing.map(|(mailbox, answer)| (format!("@{}", mailbox.domain()), answer)).unzip();
    if keys.is_empty() {
        return;
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    missing.into_iter().zip(table.lookup(&keys).await).for_each(|(answer, found)| *answer = found);
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
    use std::sync::Mutex;

    use lookup::LookupFuture;

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

    /// Has the mailboxes `bob@x.org` and `@x.org`, and keeps the keys of each lookup.
    #[derive(Default)]
    struct Places(Mutex<Vec<Vec<String>>>);

    impl Table for Places {
        fn name(&self) -> &str {
            "places"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
            self.0.lock().unwrap().push(keys.iter().map(ToString::to_string).collect());
            let answer = |key: &&str| match *key {
                "bob@x.org" => LookupAnswer::Found(vec!["bob".into()]),
                "@x.org" => LookupAnswer::Found(vec!["rest".into()]),
                "@down.org" => LookupAnswer::Unavailable("no cable".into()),
                _ => LookupAnswer::NotFound,
            };
            Box::pin(std::future::ready(keys.iter().map(answer).collect()))
        }
    }

    #[tokio::test]
    async fn a_mailbox_without_a_path_has_that_of_its_domain_where_there_are_wildcards() {
        let paths = async |has_wildcards, mailboxes: &[&str]| {
            let places = Arc::new(Places::default());
            let table = MailboxPathTable { table: places.clone(), root: "/mail".into(), has_wildcards };
            let resolver = MailboxPathResolver { pattern: Arc::new(|_| "/pattern".into()), table: Some(table) };
            let mailboxes: Vec<Address> = mailboxes.iter().map(|mailbox| mailbox.parse().unwrap()).collect();
            let found = resolver.resolve(&mailboxes.iter().collect::<Vec<_>>()).await;
            let found: Vec<String> =
                found.into_iter().map(|path| path.map_or_else(|why| why, |path| path.display().to_string())).collect();
            let asked = places.0.lock().unwrap().clone();
            (found, asked)
        };
        let all = ["a@x.org", "bob@x.org", "c@y.org", "d@down.org"];
        let (found, asked) = paths(true, &all).await;
        assert_eq!(found, ["/mail/rest", "/mail/bob", "/pattern", "no cable"]);
        assert_eq!(asked, [&all[..], &["@x.org", "@y.org", "@down.org"]]);
        assert_eq!(paths(true, &["bob@x.org"]).await.1.len(), 1);
        let (found, asked) = paths(false, &all).await;
        assert_eq!(found, ["/pattern", "/mail/bob", "/pattern", "/pattern"]);
        assert_eq!(asked.len(), 1);
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
