//! `[signing]`: DKIM keys and whose mail is signed with them. As with certificates, the files are not
//! read with the text, but by [`check_signing_keys`].

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use sender_auth::signing::{PrivateKey, SignedSubmitters, SigningThreadsConfig};

use super::LoadedConfig;
use super::error::{ConfigError, ConfigErrors, line_number_at};
use super::secret::likely_secret_spans;

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
    let (mut errors, mut doubts) = (Vec::new(), Vec::new());
    for key in &loaded.config.signing.keys {
        match PrivateKey::load(&key.file) {
            Err(error) => {
                let label = format!("{}: {error}", key.file.display());
                errors.push(ConfigError::new(key.file_span.clone(), "`signing.key.file` cannot be used", label));
            }
            Ok(_) if is_readable_by_all(key) => {
                let line = line_number_at(&loaded.text, key.file_span.start);
                let (source, file) = (&loaded.source, key.file.display());
                doubts.push(format!("{source}:{line}: all local users can read {file}, which contains a private key"));
            }
            Ok(_) => {}
        }
    }
    if errors.is_empty() {
        Ok(doubts)
    } else {
        Err(ConfigErrors::new(&loaded.source.to_string(), &loaded.text, errors, &likely_secret_spans(&loaded.text)))
    }
}

fn is_readable_by_all(key: &SigningKeySettings) -> bool {
    std::fs::metadata(&key.file).is_ok_and(|about| about.mode() & 0o004 != 0)
}
