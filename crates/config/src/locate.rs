//! Finds the configuration: the named file, else the first default file that exists, else the
//! built-in text.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;
use std::{fs, io};

use crate::{Config, ConfigErrors, DEFAULT};

/// Where to look for the configuration unless a file is named.
pub const DEFAULT_FILES: [&str; 2] = ["./mailrace.toml", "/etc/mailrace/mailrace.toml"];

/// The only default file for programs such as `sendmail`, which run in any folder: a file in the
/// working folder could belong to anyone, and would decide where mail goes.
const SYSTEM_FILE: &str = "/etc/mailrace/mailrace.toml";

/// The source of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// This file.
    File(PathBuf),
    /// No file exists: [`DEFAULT`].
    BuiltIn,
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigSource::File(path) => write!(f, "{}", path.display()),
            ConfigSource::BuiltIn => write!(f, "the built-in default (no {})", DEFAULT_FILES.join(", no ")),
        }
    }
}

/// A configuration and its source.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// Its source.
    pub source: ConfigSource,
    /// Its text.
    pub text: String,
    /// Its settings.
    pub config: Config,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("reading the configuration {path}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// The file is not text.
    #[error("the configuration {path} is not UTF-8")]
    NotUtf8 {
        /// The file.
        path: String,
        /// The reason.
        source: FromUtf8Error,
    },
    /// The text has errors.
    #[error(transparent)]
    Invalid(#[from] ConfigErrors),
    /// There is no configuration that a program which injects mail may use; the reason.
    #[error("{0}")]
    NotForInjection(String),
}

/// Finds, reads and checks the configuration.
pub fn load(named: Option<&Path>) -> Result<LoadedConfig, LoadError> {
    let source = find_source(named);
    let machine = machine_name();
    let (text, origin) = match &source {
        ConfigSource::File(path) => (read_text(path)?, path.display().to_string()),
        ConfigSource::BuiltIn => (DEFAULT.to_owned(), "the built-in default".to_owned()),
    };
    let config = Config::parse(&text, &origin, &machine)?;
    Ok(LoadedConfig { source, text, config })
}

/// Reads and checks the configuration for a program that injects mail: the named file, else
/// [`SYSTEM_FILE`] and no other. `data_dir` in the latter must be absolute.
///
/// # Errors
///
/// Those of [`load()`]. Without a named file, [`LoadError::NotForInjection`].
pub fn load_for_injection(named: Option<&Path>) -> Result<LoadedConfig, LoadError> {
    named.map_or_else(|| load_system_file(Path::new(SYSTEM_FILE)), |named| load(Some(named)))
}

fn load_system_file(file: &Path) -> Result<LoadedConfig, LoadError> {
    let loaded = load(Some(file)).map_err(|error| {
        let reason = error.source().map_or(String::new(), |source| format!(": {source}"));
        LoadError::NotForInjection(format!("{error}{reason}; use -C to name another file"))
    })?;
    match loaded.config.data_dir.is_absolute() {
        true => Ok(loaded),
        false => {
            let folder = loaded.config.data_dir.display();
            let text = format!("{}: data_dir is {folder}, expected an absolute path", file.display());
            Err(LoadError::NotForInjection(text))
        }
    }
}

fn find_source(named: Option<&Path>) -> ConfigSource {
    let usual = || DEFAULT_FILES.iter().map(Path::new).find(|path| path.exists());
    named.or_else(usual).map_or(ConfigSource::BuiltIn, |path| ConfigSource::File(path.to_owned()))
}

fn read_text(path: &Path) -> Result<String, LoadError> {
    let name = || path.display().to_string();
    let bytes = fs::read(path).map_err(|source| LoadError::Unreadable { path: name(), source })?;
    String::from_utf8(bytes).map_err(|source| LoadError::NotUtf8 { path: name(), source })
}

/// The host name of this machine; empty if it is not valid UTF-8.
pub fn machine_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_take_mail_have_no_other_file_than_the_usual_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mailrace.toml");
        let is_refused = |file: &Path| matches!(load_system_file(file), Err(LoadError::NotForInjection(_)));
        assert!(is_refused(&file));
        let with = |data_dir: &str| DEFAULT.replace("data_dir = \"./mailrace-data\"", data_dir);
        fs::write(&file, with("data_dir = \"./elsewhere\"")).unwrap();
        assert!(is_refused(&file));
        fs::write(&file, with("data_dir = \"/var/lib/mailrace\"")).unwrap();
        assert!(load_system_file(&file).is_ok());
        fs::write(&file, "no = [").unwrap();
        assert!(is_refused(&file));
    }
}
