//! Files with secrets that the configuration names. They are not read with the text, but when the
//! server starts, reloads or checks the configuration. Errors are shown at their place in the text.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::LoadedConfig;
use super::error::{ConfigError, ConfigErrors, line_number_at};
use super::secret::likely_secret_spans;

/// A file that was read.
pub(super) struct CheckedFile {
    pub(super) path: PathBuf,
    /// The span of the path in the text.
    pub(super) span: Range<usize>,
    /// Why it cannot be used.
    pub(super) fault: Option<String>,
}

/// Returns errors for files that cannot be used, otherwise warnings about those that others can read.
/// Each warning starts with its place in the text. `content` is what the files have: "a private key".
pub(super) fn check_files(
    loaded: &LoadedConfig,
    key: &str,
    content: &str,
    files: impl Iterator<Item = CheckedFile>,
) -> Result<Vec<String>, ConfigErrors> {
    let (mut errors, mut doubts) = (Vec::new(), Vec::new());
    for CheckedFile { path, span, fault } in files {
        let file = path.display();
        if let Some(fault) = fault {
            errors.push(ConfigError::new(span, format!("`{key}` cannot be used"), format!("{file}: {fault}")));
        } else if is_readable_by_all(&path) {
            let (source, line) = (&loaded.source, line_number_at(&loaded.text, span.start));
            doubts.push(format!("{source}:{line}: all local users can read {file}, which contains {content}"));
        }
    }
    if errors.is_empty() {
        Ok(doubts)
    } else {
        Err(ConfigErrors::new(&loaded.source.to_string(), &loaded.text, errors, &likely_secret_spans(&loaded.text)))
    }
}

fn is_readable_by_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.mode() & 0o004 != 0)
}
