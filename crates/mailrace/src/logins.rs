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
use lookup::credentials::{Credentials, Networks, Settings, Source};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::config::{Auth, AuthSource, Config, TableKind};
use crate::tables::{self, Tables};

const SECRET_FILE: &str = "auth.secret";
const SECRET_OCTETS: usize = 32;

/// A random secret of the server.
pub type Secret = [u8; SECRET_OCTETS];

/// The secret, if `[auth]` is configured. Creates it if it is missing.
pub fn secret(config: &Config) -> anyhow::Result<Option<Secret>> {
    let path = config.data_dir.join(SECRET_FILE);
    let kept = || kept(&path).with_context(|| format!("the secret {}", path.display()));
    config.auth.as_ref().map(|_| kept()).transpose()
}

fn kept(path: &Path) -> anyhow::Result<Secret> {
    let octets = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return make(path),
        read => read?,
    };
    let length = octets.len();
    let secret = octets.try_into().ok();
    ensure!(secret.is_some(), "it has {length} octets, expected {SECRET_OCTETS}; remove it to create a new one");
    Ok(secret.unwrap_or_default())
}

/// Writes a temporary file first, so that a partial secret is never used.
fn make(path: &Path) -> anyhow::Result<Secret> {
    let mut secret = Secret::default();
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
pub struct Before<'a> {
    /// Its configuration.
    pub auth: &'a Auth,
    /// Its tables.
    pub tables: &'a Tables,
    /// The checker.
    pub credentials: &'a Credentials,
}

/// The checker, if `[auth]` is configured. If nothing about it has changed, the one in force stays,
/// with its cache. Otherwise the new one takes over the counters and, if the throttle settings are
/// the same, the failed logins.
///
/// # Errors
///
/// The LDAP settings are invalid, or a thread cannot be created.
pub fn open(
    config: &Config,
    tables: &Tables,
    secret: Option<Secret>,
    before: Option<Before<'_>>,
) -> anyhow::Result<Option<intake::Logins>> {
    let (Some(auth), Some(secret)) = (&config.auth, secret) else { return Ok(None) };
    let credentials = match before {
        Some(before) if before.checks_as(auth, tables) => before.credentials.clone(),
        Some(before) => {
            let (source, keeps_throttle) = (source(config, auth, tables)?, before.throttles_as(auth));
            before.credentials.following(source, checking(auth), keeps_throttle).context("[auth]")?
        }
        None => Credentials::new(source(config, auth, tables)?, checking(auth), secret).context("[auth]")?,
    };
    let senders = auth.senders.as_ref().and_then(|name| tables.find(name)).cloned();
    Ok(Some(intake::Logins { credentials, senders, traced: auth.trace_users }))
}

impl Before<'_> {
    /// Whether passwords are checked in the same way. The same table object means the same
    /// description and content.
    fn checks_as(&self, auth: &Auth, tables: &Tables) -> bool {
        let (AuthSource::Passwords(name) | AuthSource::Bind(name)) = &auth.source;
        let is_same_table = match (self.tables.find(name), tables.find(name)) {
            (Some(before), Some(table)) => Arc::ptr_eq(before, table),
            _ => false,
        };
        let is_set_the_same = self.auth.source == auth.source && self.auth.checking == auth.checking;
        is_same_table && is_set_the_same && self.throttles_as(auth)
    }

    fn throttles_as(&self, auth: &Auth) -> bool {
        self.auth.checking.throttle == auth.checking.throttle && self.auth.shared_clients == auth.shared_clients
    }
}

fn source(config: &Config, auth: &Auth, tables: &Tables) -> anyhow::Result<Source> {
    Ok(match &auth.source {
        AuthSource::Passwords(name) => {
            Source::Table(tables.find(name).context("every configuration has the tables that it names")?.clone())
        }
        AuthSource::Bind(name) => match config.table(name).map(|table| &table.kind) {
            Some(TableKind::Ldap(ldap)) => Source::Ldap(Box::new(tables::directory(ldap)?)),
            _ => anyhow::bail!("the table {name:?} is not an LDAP table"),
        },
    })
}

fn checking(auth: &Auth) -> Settings {
    let mut checking = auth.checking.clone();
    if !auth.shared_clients.is_empty() {
        let networks = auth.shared_clients.clone();
        checking.throttle.shared_clients = Networks::new(move |client| networks.iter().any(|it| it.contains(client)));
    }
    checking
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
    fn passwords_are_checked_by_whom_they_were_where_nothing_about_that_differs() {
        let first = config("");
        let tables = Tables::open(&first, Arc::new(|_| {})).unwrap();
        let opened = Tables::open(&first, Arc::new(|_| {})).unwrap();
        let logins = open(&first, &tables, Some([7; SECRET_OCTETS]), None).unwrap().unwrap();
        let auth = first.auth.as_ref().unwrap();
        let before = Before { auth, tables: &tables, credentials: &logins.credentials };
        for (settings, checks_as, throttles_as) in [
            ("", true, true),
            ("mechanisms = [\"PLAIN\"]\ntrace_users = true\nsenders = \"logins\"\nclear_text = true\n", true, true),
            ("mechanisms = [\"SCRAM-SHA-256\"]\n", false, true),
            ("remember = \"2m\"\n", false, true),
            ("[auth.throttle]\nwindow = \"1h\"\n", false, false),
            ("[auth.throttle]\nshared_clients = [\"192.0.2.1\"]\n", false, false),
        ] {
            let after = config(settings).auth.unwrap();
            let found = (before.checks_as(&after, &tables), before.throttles_as(&after));
            assert_eq!(found, (checks_as, throttles_as), "{settings}");
        }
        assert!(!before.checks_as(auth, &opened), "another table of the same name");
    }

    #[test]
    fn a_secret_is_made_once_for_nobody_else_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SECRET_FILE);
        let made = kept(&path).unwrap();
        assert_ne!(made, Secret::default());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(kept(&path).unwrap(), made);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&path, "short").unwrap();
        assert!(kept(&path).unwrap_err().to_string().contains("it has 5 octets"));
    }
}
