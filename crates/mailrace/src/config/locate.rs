//! Which configuration is in force: the file that was named, else the first of the usual files that is there,
//! else the text that is built in.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Config, DEFAULT};

/// Where a configuration is looked for when none is named.
pub const USUAL_FILES: [&str; 2] = ["./mailrace.toml", "/etc/mailrace/mailrace.toml"];

/// Where a configuration came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This file.
    File(PathBuf),
    /// There was none: [`DEFAULT`].
    BuiltIn,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::BuiltIn => write!(f, "the built-in default (no {})", USUAL_FILES.join(", no ")),
        }
    }
}

/// A configuration and where it came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where it came from.
    pub source: Source,
    /// Its text.
    pub text: String,
    /// What it says.
    pub config: Config,
}

/// Finds, reads and checks the configuration. Faults of the text come as [`super::Faults`] inside the error.
pub fn load(named: Option<&Path>) -> anyhow::Result<Loaded> {
    let source = find(named);
    let machine = machine_name();
    let (text, origin) = match &source {
        Source::File(path) => (text_of(path)?, path.display().to_string()),
        Source::BuiltIn => (DEFAULT.to_owned(), "the built-in default".to_owned()),
    };
    let config = Config::parse(&text, &origin, &machine)?;
    Ok(Loaded { source, text, config })
}

fn find(named: Option<&Path>) -> Source {
    let usual = || USUAL_FILES.iter().map(Path::new).find(|path| path.exists());
    named.or_else(usual).map_or(Source::BuiltIn, |path| Source::File(path.to_owned()))
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(path).with_context(|| format!("reading the configuration {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("the configuration {} is not UTF-8", path.display()))
}

/// What the machine calls itself; empty if it has no name that can be written.
fn machine_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}
