//! The address of MySQL servers in the configuration, shown without password:
//! `mysql://user:password@host:port,host/database?ssl-mode=required`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::server_url::{ServerAddress, ServerUrl, ServerUrlError};

const PORT: u16 = 3306;
const SCHEMES: [&str; 2] = ["mysql", "mariadb"];
const SETTINGS: &str = "ssl-mode or socket";

/// Whether connections over TCP use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// Never.
    Disabled,
    /// If the server offers it.
    #[default]
    Preferred,
    /// Always.
    Required,
}

/// Where and how to connect, such as `mysql://mail@db1,db2:3307/mail?ssl-mode=required` or
/// `mysql://mail@%2Frun%2Fmysqld%2Fmysqld.sock/mail`.
#[derive(Clone, PartialEq, Eq)]
pub struct MysqlUrl {
    url: ServerUrl,
    tls: TlsMode,
}

/// Why a text is not the URL of MySQL servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MysqlUrlError {
    /// A syntax error, or an unknown setting.
    #[error("{0} (expected a URL such as mysql://user@host:3306/database?ssl-mode=required)")]
    Syntax(#[from] ServerUrlError),
    /// No host and no socket.
    #[error("no host: for a Unix socket, add ?socket=/run/mysqld/mysqld.sock")]
    NoHost,
}

impl FromStr for MysqlUrl {
    type Err = MysqlUrlError;

    fn from_str(text: &str) -> Result<Self, MysqlUrlError> {
        let mut url = ServerUrl::parse(text, &SCHEMES, "mysql://", PORT)?;
        let mut tls = TlsMode::default();
        for (name, value) in std::mem::take(&mut url.settings) {
            match &*name {
                "ssl-mode" => tls = tls_mode(&value)?,
                "socket" => url.replace_host_by_socket(&value)?,
                _ => return Err(ServerUrlError::Setting { name, expected: SETTINGS }.into()),
            }
        }
        match url.servers.is_empty() {
            true => Err(MysqlUrlError::NoHost),
            false => Ok(MysqlUrl { url, tls }),
        }
    }
}

fn tls_mode(value: &str) -> Result<TlsMode, MysqlUrlError> {
    match value.to_ascii_lowercase().as_str() {
        "disabled" => Ok(TlsMode::Disabled),
        "preferred" => Ok(TlsMode::Preferred),
        "required" | "verify_ca" | "verify_identity" => Ok(TlsMode::Required),
        _ => {
            let expected = "disabled, preferred or required; certificates are always verified";
            Err(ServerUrlError::Value { name: "ssl-mode", expected }.into())
        }
    }
}

impl MysqlUrl {
    /// Whether it contains a password.
    pub fn has_password(&self) -> bool {
        self.url.password.is_some()
    }

    /// The paths of the Unix sockets among the servers.
    pub fn unix_socket_paths(&self) -> Vec<PathBuf> {
        self.url.unix_socket_paths()
    }

    /// Whether connections over TCP use TLS.
    pub(super) fn tls(&self) -> TlsMode {
        self.tls
    }

    /// The servers in the order to try them.
    pub(super) fn servers(&self) -> &[ServerAddress] {
        &self.url.servers
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.url.user.as_deref()
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.url.password.as_deref()
    }

    /// The database. None: the query names it.
    pub(super) fn database(&self) -> Option<&str> {
        Some(&*self.url.path).filter(|name| !name.is_empty())
    }
}

/// A server as errors name it.
pub(super) fn server_url(server: &ServerAddress) -> String {
    match server {
        ServerAddress::Tcp { .. } => format!("mysql://{server}"),
        ServerAddress::Unix(path) => format!("mysql:{}", Path::display(path)),
    }
}

impl fmt::Display for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> MysqlUrl {
        text.parse().unwrap()
    }

    #[test]
    fn servers_database_and_tls_are_read() {
        let url = parse("mysql://mail:s3cret@db1,db2:3307/mail?ssl-mode=REQUIRED");
        let servers: Vec<String> = url.servers().iter().map(server_url).collect();
        assert_eq!(servers, ["mysql://db1:3306", "mysql://db2:3307"]);
        assert_eq!((url.user(), url.password(), url.database()), (Some("mail"), Some("s3cret"), Some("mail")));
        assert!(url.tls() == TlsMode::Required && url.has_password());
        assert_eq!(format!("{url:?}"), "Url(mysql://db1:3306,db2:3307/mail)");
        let plain = parse("mariadb://db");
        assert_eq!((plain.user(), plain.database(), plain.tls()), (None, None, TlsMode::Preferred));
    }

    #[test]
    fn a_socket_is_a_setting_or_a_host() {
        for text in [
            "mysql:///mail?socket=/run/m.sock",
            "mysql://mail@localhost/mail?socket=/run/m.sock",
            "mysql://mail@%2Frun%2Fm.sock/mail",
        ] {
            assert_eq!(parse(text).unix_socket_paths(), [PathBuf::from("/run/m.sock")], "{text}");
        }
        assert_eq!(server_url(&parse("mysql:///?socket=/m").servers()[0]), "mysql:/m");
        assert_eq!(parse("mysql://%2Fa,db,%2Fb").unix_socket_paths().len(), 2);
    }

    #[test]
    fn a_mistake_is_told() {
        for (text, expected) in [
            ("postgres://db", "expected a URL that begins with mysql://"),
            ("mysql:///mail", "no host"),
            ("mysql://db/?socket=/s", "'socket' replaces the host"),
            ("mysql:///?socket=s", "invalid value of 'socket': expected an absolute path"),
            ("mysql://db?ssl-mode=on", "invalid value of 'ssl-mode': expected disabled, preferred or required"),
            ("mysql://db?charset=latin1", "unknown setting 'charset': expected ssl-mode or socket"),
        ] {
            let error = text.parse::<MysqlUrl>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
