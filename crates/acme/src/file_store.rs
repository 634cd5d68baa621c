//! The files: the account, the certificates, and what is remembered of orders and failures.
//!
//! A file is replaced as a whole: written under another name, synced, renamed, and its folder synced, so
//! that a crash leaves the old one or the new one. A file that is missing or damaged counts as not
//! there; losing one costs a new account, a new order or an earlier attempt. All functions block on
//! disk I/O.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use net::{Certificate, CertificateError, CertificateFiles};
use rcgen::KeyPair;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::{AcmeSettings, CertificateNames};

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What is being written has this before its name. No host name begins with a dot.
const UNFINISHED: &str = ".unfinished.";

/// An account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredAccount {
    /// Where it is.
    pub(crate) directory: String,
    /// The contacts that the authority has.
    pub(crate) contacts: Vec<String>,
    /// The credentials, in the form of the crate that uses them.
    pub(crate) credentials: Value,
}

/// An order that is being worked on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredOrder {
    /// Where it was placed.
    pub(crate) directory: String,
    /// The names that were ordered.
    pub(crate) names: CertificateNames,
    /// Its address.
    pub(crate) url: String,
    /// The private key for the certificate, in PEM.
    pub(crate) key: String,
}

/// What is remembered about a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredState {
    /// The directory of the authority that issued it.
    pub(crate) issued_by: Option<String>,
    /// The attempts that failed since.
    pub(crate) failed: Option<FailedAttempts>,
}

/// Attempts that failed, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedAttempts {
    /// Where.
    pub(crate) directory: String,
    /// For which names.
    pub(crate) names: CertificateNames,
    /// How many.
    pub(crate) count: u32,
    /// When the next one is due, in seconds since 1970.
    pub(crate) next_attempt: u64,
    /// The last error.
    pub(crate) error: String,
}

/// Why a chain that was issued is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    /// It cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Chain and key cannot be used together.
    #[error("the certificate that was issued cannot be used: {0}")]
    Unusable(#[from] CertificateError),
    /// It is not what was ordered.
    #[error("the certificate that was issued is not for {0}")]
    NameMissing(Box<str>),
    /// It is useless.
    #[error("the certificate that was issued has expired; is the clock right?")]
    Expired,
}

/// The folder of these settings.
pub(crate) struct FileStore<'a>(pub(crate) &'a AcmeSettings);

impl FileStore<'_> {
    /// Creates the folder, if it is not there.
    pub(crate) fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.0.folder)
    }

    /// The account at the authority, if it is the one of the settings.
    pub(crate) fn account(&self) -> Option<StoredAccount> {
        let stored: StoredAccount = read(&self.account_path())?;
        (stored.directory == self.0.directory.to_string()).then_some(stored)
    }

    pub(crate) fn save_account(&self, account: &StoredAccount) -> io::Result<()> {
        write(&self.account_path(), account)
    }

    /// The account is of no use any more.
    pub(crate) fn remove_account(&self) {
        remove(&self.account_path());
    }

    /// The order for exactly these names, if one is being worked on.
    pub(crate) fn order(&self, names: &CertificateNames) -> Option<StoredOrder> {
        let stored: StoredOrder = read(&self.0.file_named(names, "order"))?;
        (stored.directory == self.0.directory.to_string() && stored.names == *names).then_some(stored)
    }

    pub(crate) fn save_order(&self, order: &StoredOrder) -> io::Result<()> {
        write(&self.0.file_named(&order.names, "order"), order)
    }

    pub(crate) fn remove_order(&self, names: &CertificateNames) {
        remove(&self.0.file_named(names, "order"));
    }

    /// What is remembered about the certificate.
    pub(crate) fn state(&self, names: &CertificateNames) -> StoredState {
        read(&self.0.file_named(names, "state")).unwrap_or_default()
    }

    pub(crate) fn save_state(&self, names: &CertificateNames, state: &StoredState) -> io::Result<()> {
        write(&self.0.file_named(names, "state"), state)
    }

    /// The certificate, if it can be used.
    pub(crate) fn certificate(&self, names: &CertificateNames) -> Option<Certificate> {
        Certificate::load(&in_one_file(self.0.certificate_file(names))).ok()
    }

    /// The key of the certificate, if there is one.
    pub(crate) fn key(&self, names: &CertificateNames) -> Option<KeyPair> {
        KeyPair::from_pem(&fs::read_to_string(self.0.certificate_file(names)).ok()?).ok()
    }

    /// Replaces the certificate, if the new one is what was ordered.
    pub(crate) fn install(
        &self,
        names: &CertificateNames,
        chain: &str,
        key: &str,
        now: SystemTime,
    ) -> Result<Certificate, InstallError> {
        let path = self.0.certificate_file(names);
        // The key first, where `key` finds it.
        let unfinished = write_unfinished(&path, format!("{}\n{chain}", key.trim_end()).as_bytes())?;
        let certificate = Certificate::load(&in_one_file(unfinished.clone()))?;
        if let Some(missing) = names.iter().find(|name| !certificate.names().contains(name)) {
            return Err(InstallError::NameMissing(missing.clone()));
        }
        if now > certificate.not_after() {
            return Err(InstallError::Expired);
        }
        rename(&unfinished, &path)?;
        Ok(certificate)
    }

    /// The port is of no matter: a host has one account for its test authority, too.
    fn account_path(&self) -> PathBuf {
        self.0.folder.join(format!("account@{}", self.0.directory.host()))
    }
}

fn in_one_file(path: PathBuf) -> CertificateFiles {
    CertificateFiles { chain: path.clone(), key: path, names: Vec::new() }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let unfinished = write_unfinished(path, &serde_json::to_vec_pretty(content)?)?;
    rename(&unfinished, path)
}

/// Writes and syncs what is to become a file.
fn write_unfinished(path: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = path.with_file_name(format!("{UNFINISHED}{name}"));
    // One that a crash has left could have another mode.
    remove(&unfinished);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&unfinished)?;
    file.write_all(content)?;
    file.sync_all()?;
    Ok(unfinished)
}

fn rename(unfinished: &Path, path: &Path) -> io::Result<()> {
    fs::rename(unfinished, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// What cannot be removed is overwritten later.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use rcgen::CertificateParams;
    use tempfile::TempDir;

    use super::*;
    use crate::settings::{ChallengeMethod, DirectoryUrl};

    fn settings(folder: &TempDir) -> AcmeSettings {
        AcmeSettings {
            directory: "https://ca.example/dir".parse().unwrap(),
            contacts: Vec::new(),
            challenge: ChallengeMethod::Http01,
            ca_file: None,
            folder: folder.path().join("acme"),
            renew_before: None,
            reuses_key: true,
            external_account: None,
        }
    }

    fn names(names: &[&str]) -> CertificateNames {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn issued(names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        (CertificateParams::new(names).unwrap().self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn everything_comes_back_and_is_private() {
        let folder = TempDir::new().unwrap();
        let settings = settings(&folder);
        let store = FileStore(&settings);
        store.create().unwrap();
        let account = StoredAccount {
            directory: settings.directory.to_string(),
            contacts: vec!["a@b.example".into()],
            credentials: Value::Null,
        };
        store.save_account(&account).unwrap();
        assert_eq!(store.account(), Some(account));
        let mx = names(&["mx.example.org"]);
        let state = StoredState { issued_by: Some("https://ca.example/dir".into()), failed: None };
        store.save_state(&mx, &state).unwrap();
        assert_eq!(store.state(&mx), state);
        let (chain, key) = issued(&["mx.example.org"]);
        store.install(&mx, &chain, &key, SystemTime::now()).unwrap();
        assert_eq!(store.certificate(&mx).unwrap().names(), &*mx);
        assert_eq!(store.key(&mx).unwrap().serialize_pem(), key);
        for file in fs::read_dir(&settings.folder).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{:?}", file.file_name());
            assert!(!file.file_name().to_string_lossy().starts_with('.'));
        }
        assert_eq!(fs::metadata(&settings.folder).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn an_account_elsewhere_and_an_order_for_other_names_do_not_count() {
        let folder = TempDir::new().unwrap();
        let settings = settings(&folder);
        let store = FileStore(&settings);
        store.create().unwrap();
        let mx = names(&["mx.example.org"]);
        let order = StoredOrder {
            directory: settings.directory.to_string(),
            names: mx.clone(),
            url: "https://ca.example/order/1".into(),
            key: "key".into(),
        };
        store.save_order(&order).unwrap();
        assert_eq!(store.order(&mx), Some(order));
        assert_eq!(store.order(&names(&["mx.example.org", "mail.example.org"])), None);
        let elsewhere = AcmeSettings { directory: DirectoryUrl::lets_encrypt(), ..settings.clone() };
        assert_eq!(FileStore(&elsewhere).order(&mx), None);
        store.remove_order(&mx);
        assert_eq!(store.order(&mx), None);
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        let folder = TempDir::new().unwrap();
        let settings = settings(&folder);
        let store = FileStore(&settings);
        store.create().unwrap();
        let mx = names(&["mx.example.org"]);
        for damaged in ["", "{", "[]", "{\"failed\": 1}"] {
            fs::write(settings.file_named(&mx, "state"), damaged).unwrap();
            assert_eq!(store.state(&mx), StoredState::default(), "{damaged}");
        }
    }

    #[test]
    fn a_certificate_that_was_not_ordered_replaces_nothing() {
        let folder = TempDir::new().unwrap();
        let settings = settings(&folder);
        let store = FileStore(&settings);
        store.create().unwrap();
        let wanted = names(&["mx.example.org", "mail.example.org"]);
        let now = SystemTime::now();
        let (chain, key) = issued(&["mx.example.org", "mail.example.org"]);
        let (other_chain, other_key) = issued(&["mx.example.org"]);
        store.install(&wanted, &chain, &key, now).unwrap();
        let before = fs::read(settings.certificate_file(&wanted)).unwrap();
        let refused = |chain: &str, key: &str, now| store.install(&wanted, chain, key, now).unwrap_err();
        assert!(
            matches!(refused(&other_chain, &other_key, now), InstallError::NameMissing(name) if &*name == "mail.example.org")
        );
        assert!(matches!(refused(&chain, &other_key, now), InstallError::Unusable(CertificateError::Mismatch { .. })));
        assert!(matches!(refused("", &key, now), InstallError::Unusable(_)));
        let late = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(100_000_000_000);
        assert!(matches!(refused(&chain, &key, late), InstallError::Expired));
        assert_eq!(fs::read(settings.certificate_file(&wanted)).unwrap(), before);
    }
}
