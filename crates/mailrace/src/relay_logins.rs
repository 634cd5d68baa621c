//! The logins at relays: from a table by sender, or from a file with one password or token. A file is
//! read again when it changes, since tokens expire within the hour; while it cannot be read, mail
//! waits.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use config::{RelayAuthSettings, RelayLoginSettings, RelaySecretFile};
use delivery::remote::{LoginFuture, LoginSecurity, LoginSource, RelayLogins};
use lookup::{LookupAnswer, Table};
use mail::Address;
use parking_lot::Mutex;
use protocol::sasl::client::LoginMechanism;
use protocol::smtp::client::{MalformedCredentials, SmtpCredentials};

use crate::file_stamp::FileStamp;
use crate::tables::OpenTables;

/// Octets of a file with a password or token.
const FILE_OCTETS_MAX: u64 = 16 << 10;

/// The logins of a transport.
pub fn relay_logins(settings: &RelayAuthSettings, tables: &OpenTables) -> RelayLogins {
    let source = ConfiguredLogins {
        file: settings.login.clone().map(FileLogin::new),
        senders: settings.senders.as_ref().and_then(|name| tables.find(name)).cloned(),
        mechanisms: settings.mechanisms.clone(),
        needs_tls: settings.security != LoginSecurity::ClearText,
    };
    RelayLogins { source: Arc::new(source), security: settings.security }
}

/// Where the logins of a transport come from.
struct ConfiguredLogins {
    file: Option<FileLogin>,
    senders: Option<Arc<dyn Table>>,
    mechanisms: Vec<LoginMechanism>,
    needs_tls: bool,
}

impl std::fmt::Debug for ConfiguredLogins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfiguredLogins").field("mechanisms", &self.mechanisms).finish_non_exhaustive()
    }
}

impl LoginSource for ConfiguredLogins {
    fn find<'a>(&'a self, sender: Option<&'a Address>) -> LoginFuture<'a> {
        Box::pin(async move {
            if let (Some(table), Some(sender)) = (&self.senders, sender)
                && let Some(login) = login_of_sender(&**table, sender).await?
            {
                return Ok(Some(login.restricted(&self.mechanisms, self.needs_tls)));
            }
            let Some(file) = &self.file else { return Ok(None) };
            let login = file.credentials()?;
            Ok(Some(match &file.settings.secret {
                RelaySecretFile::Password(_) => login.restricted(&self.mechanisms, self.needs_tls),
                RelaySecretFile::Token(_) => login.restricted(&[LoginMechanism::XOAuth2], self.needs_tls),
            }))
        })
    }

    fn depends_on_sender(&self) -> bool {
        self.senders.is_some()
    }
}

/// The login of the address, or else of its domain.
async fn login_of_sender(table: &dyn Table, sender: &Address) -> Result<Option<SmtpCredentials>, String> {
    let keys = [sender.as_str(), sender.domain()];
    let keys = if table.whole_keys_only() { &keys[..1] } else { &keys[..] };
    for (key, answer) in keys.iter().zip(table.lookup(keys).await) {
        match answer {
            LookupAnswer::NotFound => {}
            LookupAnswer::Found(values) => return parse_login(table.name(), key, &values).map(Some),
            LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => {
                return Err(format!("the login of {sender} is not available: {why}"));
            }
        }
    }
    Ok(None)
}

/// `user:password`. The password may contain colons.
fn parse_login(table: &str, key: &str, values: &[String]) -> Result<SmtpCredentials, String> {
    let invalid = || format!("table '{table}': the value of {key} is not a login; expected user:password");
    let [value] = values else { return Err(invalid()) };
    let (user, password) = value.split_once(':').ok_or_else(invalid)?;
    SmtpCredentials::new(user, password).map_err(|_| invalid())
}

/// A login whose secret is in a file.
struct FileLogin {
    settings: RelayLoginSettings,
    read: Mutex<Option<(FileStamp, SmtpCredentials)>>,
}

impl FileLogin {
    fn new(settings: RelayLoginSettings) -> FileLogin {
        FileLogin { settings, read: Mutex::new(None) }
    }

    /// The login, as it is in the file now. Looking costs one system call while it has not changed.
    fn credentials(&self) -> Result<SmtpCredentials, String> {
        let path = self.settings.secret.path();
        let unreadable = |error: io::Error| format!("unable to read {}: {error}", path.display());
        let stamp = FileStamp::from(&fs::metadata(path).map_err(unreadable)?);
        let mut read = self.read.lock();
        if let Some((known, credentials)) = &*read
            && *known == stamp
        {
            return Ok(credentials.clone());
        }
        let (stamp, text) = read_file(path).map_err(unreadable)?;
        let credentials = self.parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        *read = Some((stamp, credentials.clone()));
        Ok(credentials)
    }

    fn parse(&self, text: &str) -> Result<SmtpCredentials, MalformedCredentials> {
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        match &self.settings.secret {
            RelaySecretFile::Password(_) => SmtpCredentials::new(&self.settings.user, line),
            RelaySecretFile::Token(_) => SmtpCredentials::with_token(&self.settings.user, line),
        }
    }
}

/// The text of a file and its stamp, of the same open file.
fn read_file(path: &Path) -> io::Result<(FileStamp, String)> {
    let file = File::open(path)?;
    let stamp = FileStamp::from(&file.metadata()?);
    let mut text = String::new();
    file.take(FILE_OCTETS_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_OCTETS_MAX {
        let what = format!("it has more than {FILE_OCTETS_MAX} octets, which is no password or token");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok((stamp, text))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn file_login(path: PathBuf) -> ConfiguredLogins {
        let secret = RelaySecretFile::Token(path);
        ConfiguredLogins {
            file: Some(FileLogin::new(RelayLoginSettings { user: "bob".into(), secret })),
            senders: None,
            mechanisms: vec![LoginMechanism::Plain],
            needs_tls: true,
        }
    }

    #[tokio::test]
    async fn a_file_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let logins = file_login(path.clone());
        assert!(logins.find(None).await.unwrap_err().starts_with("unable to read"));
        for token in ["first", "second", "other!"] {
            fs::write(folder.path().join("new"), format!("{token}\n")).unwrap();
            fs::rename(folder.path().join("new"), &path).unwrap();
            let expected = SmtpCredentials::with_token("bob", token).unwrap();
            assert_eq!(logins.find(None).await, Ok(Some(expected.clone())));
            assert_eq!(logins.find(None).await, Ok(Some(expected)));
        }
        fs::write(&path, "two\nlines\n").unwrap();
        assert!(logins.find(None).await.unwrap_err().ends_with("white space and control characters"));
        fs::write(&path, "x".repeat(20 << 10)).unwrap();
        assert!(logins.find(None).await.unwrap_err().contains("more than 16384 octets"));
        fs::remove_file(&path).unwrap();
        assert!(logins.find(None).await.is_err());
    }

    #[tokio::test]
    async fn senders_have_logins_by_address_or_domain() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logins");
        fs::write(&path, "alice@example.org  alice:se:cret\nexample.net  shared:word\nbad@example.org  nothing\n")
            .unwrap();
        let table = lookup::text::TextTable::load("logins", &path).unwrap();
        let logins = ConfiguredLogins {
            file: None,
            senders: Some(Arc::new(table)),
            mechanisms: vec![LoginMechanism::Plain],
            needs_tls: false,
        };
        let find = async |sender: &str| logins.find(Some(&sender.parse().unwrap())).await;
        let login = |user, password| {
            let login = SmtpCredentials::new(user, password).unwrap();
            Ok(Some(login.restricted(&[LoginMechanism::Plain], false)))
        };
        assert_eq!(find("Alice@example.org").await, login("alice", "se:cret"));
        assert_eq!(find("anybody@example.net").await, login("shared", "word"));
        assert_eq!(find("bob@example.org").await, Ok(None));
        assert_eq!(logins.find(None).await, Ok(None));
        let refused = find("bad@example.org").await.unwrap_err();
        assert!(refused.contains("user:password") && !refused.contains("nothing"), "{refused}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let logins = file_login("/dev/null".into());
        assert_eq!(format!("{logins:?}"), "ConfiguredLogins { mechanisms: [Plain], .. }");
    }
}
