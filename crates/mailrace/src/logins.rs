//! Who may log in, opened from the configuration: the checker of passwords, and the secret that the server keeps for it.
//!
//! The secret makes the salts that users seem to have whom nobody knows, which must be the same ones after a restart. It is
//! made at the first start, for the server's user alone, and nobody has to know of it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use lookup::credentials::{Credentials, Networks, Source};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::config::{AuthSource, Config, TableKind};
use crate::tables::{self, Tables};

const SECRET_FILE: &str = "auth.secret";
const SECRET_OCTETS: usize = 32;

/// What the server keeps to itself.
pub type Secret = [u8; SECRET_OCTETS];

/// The secret, where anybody may log in at all. It is made where it is missing.
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
    ensure!(secret.is_some(), "it has {length} octets, expected {SECRET_OCTETS}; remove it, and another one is made");
    Ok(secret.unwrap_or_default())
}

/// By another name first: half a secret would be taken for one.
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

/// The checker, where anybody may log in.
pub fn open(config: &Config, tables: &Tables, secret: Option<Secret>) -> anyhow::Result<Option<intake::Logins>> {
    let (Some(auth), Some(secret)) = (&config.auth, secret) else { return Ok(None) };
    let source = match &auth.source {
        AuthSource::Passwords(name) => {
            Source::Table(tables.find(name).context("every configuration has the tables that it names")?.clone())
        }
        AuthSource::Bind(name) => match config.table(name).map(|table| &table.kind) {
            Some(TableKind::Ldap(ldap)) => Source::Ldap(Box::new(tables::directory(ldap)?)),
            _ => anyhow::bail!("the table {name:?} is no directory"),
        },
    };
    let mut checking = auth.checking.clone();
    if !auth.shared_clients.is_empty() {
        let networks = auth.shared_clients.clone();
        checking.throttle.shared_clients = Networks::new(move |client| networks.iter().any(|it| it.contains(client)));
    }
    let credentials = Credentials::new(source, checking, secret).context("[auth]")?;
    let senders = auth.senders.as_ref().and_then(|name| tables.find(name)).cloned();
    Ok(Some(intake::Logins { credentials, senders, traced: auth.trace_users }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
