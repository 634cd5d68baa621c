//! `[srs]`: how senders of forwarded mail are rewritten. As with signing keys, the files are not read
//! with the text, but by [`check_srs_secrets`].

use std::ops::Range;
use std::path::PathBuf;

use route::DomainPattern;
use sender_auth::srs::load_secret;

use super::LoadedConfig;
use super::error::ConfigErrors;
use super::secret_file::{CheckedFile, check_files};

/// Settings of SRS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrsSettings {
    /// The domain of the rewritten addresses, in lower case and with A-labels.
    pub domain: Box<str>,
    /// The secrets, at least one: the first one signs, all verify.
    pub secrets: Vec<SrsSecretFile>,
    /// How many days a rewritten address is valid.
    pub days: u16,
    /// Domains of senders that stay, in addition to our own.
    pub exempt: Vec<DomainPattern>,
}

impl SrsSettings {
    /// The default of `days`.
    pub const DAYS: u16 = 21;
}

/// A secret in a file.
#[derive(Clone, Debug)]
pub struct SrsSecretFile {
    /// The file.
    pub path: PathBuf,
    /// The span of its path in the text.
    pub(super) span: Range<usize>,
}

impl PartialEq for SrsSecretFile {
    /// The position in the text does not matter.
    fn eq(&self, other: &SrsSecretFile) -> bool {
        self.path == other.path
    }
}

impl Eq for SrsSecretFile {}

/// Reads all secrets that `[srs]` names. Returns errors for those that cannot be used, otherwise
/// warnings about files that others can read. Each warning starts with its place in the text.
pub fn check_srs_secrets(loaded: &LoadedConfig) -> Result<Vec<String>, ConfigErrors> {
    let file = |secret: &SrsSecretFile| CheckedFile {
        path: secret.path.clone(),
        span: secret.span.clone(),
        fault: load_secret(&secret.path).err().map(|error| error.to_string()),
    };
    let secrets = loaded.config.srs.iter().flat_map(|srs| &srs.secrets);
    check_files(loaded, "srs.secret_file", "a secret of SRS", secrets.map(file))
}
