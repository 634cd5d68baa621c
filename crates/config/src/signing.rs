//! `[signing]`: DKIM keys and whose mail is signed with them. As with certificates, the files are not
//! read with the text, but by [`check_signing_keys`].

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use sender_auth::signing::{PrivateKey, SignedSubmitters, SigningThreadsConfig};

use super::LoadedConfig;
use super::error::ConfigErrors;
use super::secret_file::{CheckedFile, check_files};

/// Settings of signing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningSettings {
    /// Keys in files: no domain has more than [`sender_auth::signing::KEYS_PER_DOMAIN_MAX`].
    pub keys: Vec<SigningKeySettings>,
    /// The table of further keys: `selector:path` by domain.
    pub table: Option<Box<str>>,
    /// Whose mail is signed.
    pub submitters: SignedSubmitters,
    /// Whether notices of this server are signed.
    pub notices: bool,
    /// How long signatures are valid; None: for ever.
    pub expires_after: Option<Duration>,
    /// Whether 8-bit content is converted to 7 bits before it is signed.
    pub seven_bit: bool,
    /// The threads that sign.
    pub threads: SigningThreadsConfig,
}

impl Default for SigningSettings {
    fn default() -> Self {
        SigningSettings {
            keys: Vec::new(),
            table: None,
            submitters: SignedSubmitters::default(),
            notices: true,
            expires_after: None,
            seven_bit: true,
            threads: SigningThreadsConfig::default(),
        }
    }
}

impl SigningSettings {
    /// Whether there can be keys.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.table.is_some()
    }
}

/// A key in a file.
#[derive(Clone, Debug)]
pub struct SigningKeySettings {
    /// The domain that signs, in lower case and with A-labels.
    pub domain: Box<str>,
    /// The selector.
    pub selector: Box<str>,
    /// The file of the private key.
    pub file: PathBuf,
    /// The span of `file` in the text.
    pub(super) file_span: Range<usize>,
}

impl PartialEq for SigningKeySettings {
    /// The position in the text does not matter.
    fn eq(&self, other: &SigningKeySettings) -> bool {
        let parts = |it: &SigningKeySettings| (it.domain.clone(), it.selector.clone(), it.file.clone());
        parts(self) == parts(other)
    }
}

impl Eq for SigningKeySettings {}

/// Reads all keys that `[[signing.key]]` names. Returns errors for those that cannot be used, otherwise
/// warnings about files that others can read. Each warning starts with its place in the text.
pub fn check_signing_keys(loaded: &LoadedConfig) -> Result<Vec<String>, ConfigErrors> {
    let file = |key: &SigningKeySettings| CheckedFile {
        path: key.file.clone(),
        span: key.file_span.clone(),
        fault: PrivateKey::load(&key.file).err().map(|error| error.to_string()),
    };
    check_files(loaded, "signing.key.file", "a private key", loaded.config.signing.keys.iter().map(file))
}
