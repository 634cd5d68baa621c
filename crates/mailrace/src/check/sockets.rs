//! Local unix sockets in the configuration on which nothing listens: those of LMTP servers,
//! directories and databases. Network servers are not tried: they may be reachable for the server,
//! as its own user and at another time, but not from here.
//!
//! The connections are non-blocking, so a check never hangs.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use ldap::LdapUrl;
use route::FixedHop;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use config::{AuthBackend, Config, TableKind};

/// A warning for each socket that does not accept connections.
pub(super) fn unreachable_socket_warnings(config: &Config) -> Vec<String> {
    let told = sockets(config).into_iter().filter_map(|(whose, path)| {
        let error = io::Error::from(try_connect(&path).err()?);
        Some(format!("{whose}: {} cannot be reached: {error}", path.display()))
    });
    told.collect()
}

/// The sockets, and the sections that name them.
fn sockets(config: &Config) -> BTreeSet<(String, PathBuf)> {
    let mut sockets = BTreeSet::new();
    let mut add = |whose: String, hop: Option<&FixedHop>| {
        if let Some(FixedHop::Unix(path)) = hop {
            sockets.insert((whose, path.clone()));
        }
    };
    for transport in &config.transports {
        add(format!("the transport {:?}", transport.name), transport.next_hop());
    }
    for route in &config.routes {
        add(format!("the route for {}", route.pattern), route.next_hop.as_ref());
    }
    if let Some(AuthBackend::Dovecot(path)) = config.auth.as_ref().map(|auth| &auth.source) {
        sockets.insert(("[auth] dovecot".to_owned(), path.clone()));
    }
    for table in &config.tables {
        let whose = format!("the table {:?}", table.name);
        sockets.extend(table_sockets(&table.kind).into_iter().map(|path| (whose.clone(), path)));
    }
    sockets
}

fn table_sockets(kind: &TableKind) -> Vec<PathBuf> {
    match kind {
        TableKind::Postgres(postgres) => postgres.url.unix_socket_paths(),
        TableKind::Mysql(mysql) => mysql.url.unix_socket_paths(),
        TableKind::Redis(redis) => redis.url.unix_socket_paths(),
        TableKind::Ldap(ldap) => {
            let path = |url: &LdapUrl| match url {
                LdapUrl::Unix { path } => Some(path.clone()),
                LdapUrl::Tcp { .. } => None,
            };
            ldap.directory.servers.urls.iter().filter_map(path).collect()
        }
        _ => Vec::new(),
    }
}

/// Connects and disconnects. A server that is too busy to accept the connection also counts as
/// running.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(()),
        connected => connected,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_sockets_without_a_listener_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = format!(
            "[transport.dovecot]\ntype = \"lmtp\"\nnext_hop = \"unix:{}\"\n\
             [[route]]\ndomain = \"a.example\"\ntransport = \"dovecot\"\nnext_hop = \"unix:{}\"\n\
             [[route]]\ndomain = \"b.example\"\nnext_hop = \"b.example\"\n\
             [[table]]\nname = \"d\"\ntype = \"ldap\"\nurl = \"ldapi://{}\"\nbase = \"dc=a\"\nfilter = \"(mail={{key}})\"\n\
             [[table]]\nname = \"p\"\ntype = \"postgres\"\nurl = \"host={} port=5433\"\nquery = \"SELECT $1\"\n",
            path("lmtp"),
            path("stale"),
            path("ldapi").replace('/', "%2F"),
            folder.path().display(),
        );
        let config = Config::parse(&text, "text", "mx.here").unwrap_or_else(|faults| panic!("{faults}"));
        let _there = UnixListener::bind(path("lmtp")).unwrap();
        drop(UnixListener::bind(path("stale")).unwrap());
        let told = unreachable_socket_warnings(&config).join("\n").replace(&path(""), "DIR/");
        insta::assert_snapshot!("unreachable", told);
    }

    #[test]
    fn a_server_that_takes_no_connection_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("busy");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        // The backlog of the listener fills up, since nothing accepts connections.
        for _ in 0..10 {
            assert_eq!(try_connect(&path), Ok(()));
        }
    }
}
