//! What is changed, for people: unified diffs of files, and values before and after. Secrets of the configuration are
//! not shown, and no character of a file controls the terminal.

use std::fmt::{self, Display, Formatter};

use mail::printable;
use similar::TextDiff;

/// The step by which a running server takes over a new configuration; it refuses one that needs a restart.
pub(super) const RELOAD: &str = "mailrace reload";
/// Lines around a change.
const CONTEXT_LINES: usize = 3;
/// What a tab is shown as.
const TAB: &str = "    ";

/// Files and values that change, and what the operator has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Files.
    pub files: Vec<FileDiff>,
    /// Values that change at once.
    pub values: Vec<ValueDiff>,
    /// What is not changed, and how the operator can change it.
    pub advice: Vec<String>,
    /// Commands to run afterwards.
    pub next_steps: Vec<String>,
}

/// A file before and after; None: it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiff {
    /// Its path below the root.
    pub path: String,
    /// Before.
    pub former: Option<String>,
    /// After.
    pub text: Option<String>,
}

/// A value before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueDiff {
    /// Its file in /proc or /sys.
    pub path: String,
    /// Before.
    pub former: String,
    /// After.
    pub value: String,
}

impl Preview {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.values.is_empty()
    }

    /// Whether all that is left to do is that a running server reloads its configuration; then it is no longer a step of
    /// the operator.
    pub fn take_reload(&mut self) -> bool {
        let is_reload = self.next_steps == [RELOAD];
        if is_reload {
            self.next_steps.clear();
        }
        is_reload
    }
}

impl Display for Preview {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            file.diff().lines().try_for_each(|line| writeln!(f, "{}", printable(&line.replace('\t', TAB))))?;
            writeln!(f)?;
        }
        let values = self.values.iter().map(|it| format!("{}: {} -> {}", it.path, it.former, it.value));
        write_list(f, "values that change at once", values)?;
        write_list(f, "not changed by this command", self.advice.iter().cloned())?;
        write_list(f, "afterwards", self.next_steps.iter().cloned())
    }
}

impl FileDiff {
    fn diff(&self) -> String {
        let shown = |text: &Option<String>| config::without_secrets(text.as_deref().unwrap_or_default());
        let name = |text: &Option<String>| if text.is_some() { &*self.path } else { "/dev/null" };
        let (former, text) = (shown(&self.former), shown(&self.text));
        let diff = TextDiff::from_lines(&former, &text);
        let mut unified = diff.unified_diff();
        unified.context_radius(CONTEXT_LINES).header(name(&self.former), name(&self.text)).to_string()
    }
}

fn write_list(f: &mut Formatter<'_>, title: &str, items: impl Iterator<Item = String>) -> fmt::Result {
    let mut items = items.peekable();
    if items.peek().is_none() {
        return Ok(());
    }
    writeln!(f, "{title}:")?;
    items.try_for_each(|item| writeln!(f, "  {}", printable(&item)))?;
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_shows_differences_and_no_secret() {
        let former = "a = 1\npassword = \"hunter2\"\nthreads = 8\r\n";
        let file = FileDiff {
            path: "/etc/mailrace.toml".into(),
            former: Some(former.into()),
            text: Some(former.replace('8', "0")),
        };
        let new = FileDiff { path: "/etc/new".into(), former: None, text: Some("x\u{1b} = 1\n".into()) };
        let value = ValueDiff { path: "/proc/sys/a".into(), former: "1".into(), value: "2".into() };
        let preview = Preview {
            files: vec![file, new],
            values: vec![value],
            advice: vec!["mount.atime /srv: mount it again".into()],
            next_steps: vec!["mailrace reload".into()],
        };
        let text = preview.to_string();
        assert!(!text.contains("hunter2") && !text.contains('\u{1b}'));
        insta::assert_snapshot!(text);
        assert_eq!(Preview::default().to_string(), "");
    }

    #[test]
    fn only_a_reload_is_taken_from_the_operator() {
        let with = |step: &str| Preview { next_steps: vec![step.to_owned()], ..Preview::default() };
        let mut preview = with(RELOAD);
        assert!(preview.take_reload() && preview.next_steps.is_empty());
        let mut preview = with("systemctl restart mailrace");
        assert!(!preview.take_reload() && preview.next_steps.len() == 1);
        assert!(!Preview::default().take_reload());
    }
}
