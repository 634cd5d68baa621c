//! Opens the credential checker of `[auth]`, and the server's secret for it.
//!
//! The secret produces the salts of unknown users, which must stay the same after a restart. It is
//! created at the first start, readable by the server's user only.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use credentials::{CredentialChecker, CredentialSource};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::tables::{self, OpenTables};
use config::{AuthBackend, AuthSettings, Config, TableKind};

const SECRET_FILE: &str = "auth.secret";
const SECRET_OCTETS: usize = 32;

/// A random secret of the server.
pub type ServerSecret = [u8; SECRET_OCTETS];

/// The secret, if `[auth]` is configured. Creates it if it is missing.
pub fn load_or_create_secret(config: &Config) -> anyhow::Result<Option<ServerSecret>> {
    let path = config.data_dir.join(SECRET_FILE);
    let kept = || read_or_create(&path).with_context(|| format!("the secret {}", path.display()));
    config.auth.as_ref().map(|_| kept()).transpose()
}

fn read_or_create(path: &Path) -> anyhow::Result<ServerSecret> {
    let octets = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return create(path),
        read => read?,
    };
    let length = octets.len();
    let secret = octets.try_into().ok();
    ensure!(secret.is_some(), "it has {length} octets, expected {SECRET_OCTETS}; remove it to create a new one");
    Ok(secret.unwrap_or_default())
}

/// Writes a temporary file first, so that a partial secret is never used.
fn create(path: &Path) -> anyhow::Result<ServerSecret> {
    let mut secret = ServerSecret::default();
    getrandom(&mut secret, GetRandomFlags::empty())?;
    let new = path.with_extension("secret.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok(secret)
}

/// The checker in force, and what it was opened from.
#[derive(Clone, Copy)]
pub struct PreviousCredentialChecker<'a> {
    /// Its configuration.
    pub auth: &'a AuthSettings,
    /// Its tables.
    pub tables: &'a OpenTables,
    /// The checker.
    pub credentials: &'a CredentialChecker,
}

/// The checker, if `[auth]` is configured. If nothing about it has changed, the one in force stays,
/// with its cache. Otherwise the new one takes over the counters and, if the throttle settings are
/// the same, the failed logins.
///
/// # Errors
///
/// The LDAP settings are invalid, or a thread cannot be created.
pub fn open_credential_checker(
    config: &Config,
    tables: &OpenTables,
    secret: Option<ServerSecret>,
    before: Option<PreviousCredentialChecker<'_>>,
) -> anyhow::Result<Option<intake::LoginPolicy>> {
    let (Some(auth), Some(secret)) = (&config.auth, secret) else { return Ok(None) };
    let credentials = match before {
        Some(before) if before.checks_the_same(auth, tables) => before.credentials.clone(),
        Some(before) => {
            let (source, keeps_throttle) = (credential_source(config, auth, tables)?, before.throttles_the_same(auth));
            before.credentials.create_successor(source, auth.verification.clone(), keeps_throttle).context("[auth]")?
        }
        None => CredentialChecker::new(credential_source(config, auth, tables)?, auth.verification.clone(), secret)
            .context("[auth]")?,
    };
    let senders = auth.senders.as_ref().and_then(|name| tables.find(name)).cloned();
    Ok(Some(intake::LoginPolicy { credentials, senders, in_received_line: auth.trace_users }))
}

impl PreviousCredentialChecker<'_> {
    /// Whether passwords are checked in the same way. The same table object means the same
    /// description and content.
    fn checks_the_same(&self, auth: &AuthSettings, tables: &OpenTables) -> bool {
        let is_same_table = match &auth.source {
            AuthBackend::Dovecot(_) => true,
            AuthBackend::Passwords(name) | AuthBackend::Bind(name) => {
                let tables = self.tables.find(name).zip(tables.find(name));
                tables.is_some_and(|(before, table)| Arc::ptr_eq(before, table))
            }
        };
        let is_set_the_same = self.auth.source == auth.source && self.auth.verification == auth.verification;
        is_same_table && is_set_the_same && self.throttles_the_same(auth)
    }

    fn throttles_the_same(&self, auth: &AuthSettings) -> bool {
        self.auth.verification.throttle == auth.verification.throttle
    }
}

fn credential_source(config: &Config, auth: &AuthSettings, tables: &OpenTables) -> anyhow::Result<CredentialSource> {
    Ok(match &auth.source {
        AuthBackend::Passwords(name) => CredentialSource::Table(
            tables.find(name).context("every configuration has the tables that it names")?.clone(),
        ),
        AuthBackend::Bind(name) => match config.table(name).map(|table| &table.kind) {
            Some(TableKind::Ldap(ldap)) => CredentialSource::Ldap(Box::new(tables::ldap_config_with_password(ldap)?)),
            _ => anyhow::bail!("the table {name:?} is not an LDAP table"),
        },
        AuthBackend::Dovecot(socket) => CredentialSource::Dovecot(socket.clone()),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(auth: &str) -> Config {
        let table = "[[table]]\nname = \"logins\"\ntype = \"static\"\nvalues = [\"{PLAIN}x\"]\n";
        let text = format!("{table}[auth]\npasswords = \"logins\"\n{auth}");
        Config::parse(&text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"))
    }

    #[test]
    fn unchanged_settings_keep_the_credential_checker() {
        let first = config("");
        let tables = OpenTables::open(&first, Arc::new(|_| {})).unwrap();
        let opened = OpenTables::open(&first, Arc::new(|_| {})).unwrap();
        let logins = open_credential_checker(&first, &tables, Some([7; SECRET_OCTETS]), None).unwrap().unwrap();
        let auth = first.auth.as_ref().unwrap();
        let before = PreviousCredentialChecker { auth, tables: &tables, credentials: &logins.credentials };
        for (settings, checks_as, throttles_as) in [
            ("", true, true),
            ("mechanisms = [\"PLAIN\"]\ntrace_users = true\nsenders = \"logins\"\nclear_text = true\n", true, true),
            ("mechanisms = [\"SCRAM-SHA-256\"]\n", false, true),
            ("remember = \"2m\"\n", false, true),
            ("[auth.throttle]\nwindow = \"1h\"\n", false, false),
            ("[auth.throttle]\nshared_clients = [\"192.0.2.1\"]\n", false, false),
        ] {
            let after = config(settings).auth.unwrap();
            let found = (before.checks_the_same(&after, &tables), before.throttles_the_same(&after));
            assert_eq!(found, (checks_as, throttles_as), "{settings}");
        }
        assert!(!before.checks_the_same(auth, &opened), "another table of the same name");
    }

    #[test]
    fn the_secret_is_created_once_with_mode_0600() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SECRET_FILE);
        let made = read_or_create(&path).unwrap();
        assert_ne!(made, ServerSecret::default());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_create(&path).unwrap(), made);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&path, "short").unwrap();
        assert!(read_or_create(&path).unwrap_err().to_string().contains("it has 5 octets"));
    }
}
