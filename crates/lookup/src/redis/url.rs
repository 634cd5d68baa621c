//! The address of Redis servers in the configuration, shown without password:
//! `redis://user:password@host:port,host/database`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::server_url::{ServerAddress, ServerUrl, ServerUrlError};

const PORT: u16 = 6379;
const SCHEMES: [&str; 2] = ["redis", "rediss"];

/// Where and how to connect, such as `redis://db1,db2:6380/1`, `rediss://db` with TLS, or
/// `redis:///?socket=/run/redis/redis.sock`.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    url: ServerUrl,
    database: u32,
}

/// Why a text is not the URL of Redis servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedisUrlError {
    /// A syntax error, or an unknown setting.
    #[error("{0} (expected a URL such as redis://host:6379/0, or rediss:// with TLS)")]
    Syntax(#[from] ServerUrlError),
    /// No host and no socket.
    #[error("no host: for a Unix socket, add ?socket=/run/redis/redis.sock")]
    NoHost,
    /// A database that is not a number.
    #[error("'{0}' is not the number of a database")]
    Database(Box<str>),
}

impl FromStr for RedisUrl {
    type Err = RedisUrlError;

    fn from_str(text: &str) -> Result<Self, RedisUrlError> {
        let mut url = ServerUrl::parse(text, &SCHEMES, "redis:// or rediss://", PORT)?;
        for (name, value) in std::mem::take(&mut url.settings) {
            match &*name {
                "socket" => url.replace_host_by_socket(&value)?,
                _ => return Err(ServerUrlError::Setting { name, expected: "socket" }.into()),
            }
        }
        if url.servers.is_empty() {
            return Err(RedisUrlError::NoHost);
        }
        let database = match &*url.path {
            "" => 0,
            number => number.parse().map_err(|_| RedisUrlError::Database(number.into()))?,
        };
        Ok(RedisUrl { url, database })
    }
}

impl RedisUrl {
    /// Whether it contains a password.
    pub fn has_password(&self) -> bool {
        self.url.password.is_some()
    }

    /// The paths of the Unix sockets among the servers.
    pub fn unix_socket_paths(&self) -> Vec<PathBuf> {
        self.url.unix_socket_paths()
    }

    /// Whether connections over TCP use TLS.
    pub fn has_tls(&self) -> bool {
        &*self.url.scheme == "rediss"
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

    pub(super) fn database(&self) -> u32 {
        self.database
    }
}

/// A server as errors name it.
pub(super) fn server_url(server: &ServerAddress) -> String {
    match server {
        ServerAddress::Tcp { .. } => format!("redis://{server}"),
        ServerAddress::Unix(_) => format!("redis:{server}"),
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_login_and_database_are_read() {
        let url: RedisUrl = "rediss://mail:s3cret@db1,db2:6380/3".parse().unwrap();
        let servers: Vec<String> = url.servers().iter().map(server_url).collect();
        assert_eq!(servers, ["redis://db1:6379", "redis://db2:6380"]);
        assert_eq!((url.user(), url.password(), url.database()), (Some("mail"), Some("s3cret"), 3));
        assert!(url.has_tls() && url.has_password());
        assert_eq!(format!("{url:?}"), "Url(rediss://db1:6379,db2:6380/3)");
        let local: RedisUrl = "redis:///?socket=/run/r.sock".parse().unwrap();
        assert_eq!(local.unix_socket_paths(), [PathBuf::from("/run/r.sock")]);
        assert_eq!(server_url(&local.servers()[0]), "redis:/run/r.sock");
    }

    #[test]
    fn a_mistake_is_told() {
        for (text, expected) in [
            ("http://db", "expected a URL that begins with redis:// or rediss://"),
            ("redis:///1", "no host"),
            ("redis://db/mail", "'mail' is not the number of a database"),
            ("redis://db?db=1", "unknown setting 'db': expected socket"),
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
