//! PostgreSQL connection strings in libpq's two forms, URL and `key=value`. Parsed once from the
//! configuration, and shown without password.
//!
//! Hosts are tried in order. Settings of libpq that are not supported are errors, so that none is
//! silently ignored.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, SslNegotiation};

use super::error::error_text;

const PORT: u16 = 5432;

/// Where and how to connect, such as `postgres://mail@db1,db2:5433/mail?sslmode=require` or
/// `host=/run/postgresql user=mail dbname=mail`.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(tokio_postgres::Config);

/// Why a text is not a connection string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostgresUrlError {
    /// Neither form, or an unknown setting or invalid value.
    #[error("{0} (expected a URL such as postgres://user@host:5432/database?sslmode=require, or key=value settings)")]
    Syntax(String),
    /// No host.
    #[error("no host: for a Unix socket, give its folder as host=/run/postgresql")]
    NoHost,
    /// The numbers of hosts and addresses differ.
    #[error("{hosts} entries in 'host', but {addresses} in 'hostaddr': give one address per host, or none")]
    Addresses {
        /// Number of hosts.
        hosts: usize,
        /// Number of addresses.
        addresses: usize,
    },
    /// The numbers of hosts and ports differ.
    #[error("{hosts} hosts, but {ports} ports: give one port for all, or one per host")]
    Ports {
        /// Number of hosts.
        hosts: usize,
        /// Number of ports.
        ports: usize,
    },
    /// Load balancing is not supported.
    #[error("load_balance_hosts=random is not supported: hosts are tried in order")]
    LoadBalancing,
}

/// One of the hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetHost {
    /// Its address.
    pub(super) host: HostAddress,
    /// The port, which for a Unix socket is part of its file name.
    pub(super) port: u16,
}

/// The address of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostAddress {
    /// A name to resolve, or an IP address as text.
    Name(String),
    /// This address, with the name to verify.
    Address { name: Option<String>, address: IpAddr },
    /// The Unix socket in this folder.
    Unix(PathBuf),
}

impl FromStr for PostgresUrl {
    type Err = PostgresUrlError;

    fn from_str(text: &str) -> Result<Self, PostgresUrlError> {
        let parsed: tokio_postgres::Config =
            text.parse().map_err(|error| PostgresUrlError::Syntax(error_text(&error)))?;
        let (hosts, addresses) = (parsed.get_hosts().len(), parsed.get_hostaddrs().len());
        if hosts == 0 && addresses == 0 {
            return Err(PostgresUrlError::NoHost);
        }
        if hosts != 0 && addresses != 0 && hosts != addresses {
            return Err(PostgresUrlError::Addresses { hosts, addresses });
        }
        let (hosts, ports) = (hosts.max(addresses), parsed.get_ports().len());
        if ports > 1 && ports != hosts {
            return Err(PostgresUrlError::Ports { hosts, ports });
        }
        if parsed.get_load_balance_hosts() != LoadBalanceHosts::Disable {
            return Err(PostgresUrlError::LoadBalancing);
        }
        Ok(PostgresUrl(parsed))
    }
}

impl PostgresUrl {
    /// Whether it contains a password.
    pub fn has_password(&self) -> bool {
        self.0.get_password().is_some()
    }

    /// The paths of the Unix sockets among the hosts, as libpq names them.
    pub fn unix_socket_paths(&self) -> Vec<PathBuf> {
        let socket = |target: TargetHost| match target.host {
            HostAddress::Unix(folder) => Some(folder.join(format!(".s.PGSQL.{}", target.port))),
            HostAddress::Name(_) | HostAddress::Address { .. } => None,
        };
        self.targets().into_iter().filter_map(socket).collect()
    }

    /// Whether to use TLS.
    pub(super) fn ssl_mode(&self) -> SslMode {
        self.0.get_ssl_mode()
    }

    /// Whether TLS starts immediately or is negotiated.
    pub(super) fn ssl_negotiation(&self) -> SslNegotiation {
        self.0.get_ssl_negotiation()
    }

    /// The hosts in the order to try them.
    pub(super) fn targets(&self) -> Vec<TargetHost> {
        let (hosts, addresses, ports) = (self.0.get_hosts(), self.0.get_hostaddrs(), self.0.get_ports());
        let port = |place: usize| ports.get(place).or(ports.first()).copied().unwrap_or(PORT);
        let place = |place: usize| match (hosts.get(place), addresses.get(place)) {
            (Some(Host::Unix(folder)), _) => Some(HostAddress::Unix(folder.clone())),
            (Some(Host::Tcp(name)), Some(&address)) => Some(HostAddress::Address { name: Some(name.clone()), address }),
            (Some(Host::Tcp(name)), None) => Some(HostAddress::Name(name.clone())),
            (None, Some(&address)) => Some(HostAddress::Address { name: None, address }),
            (None, None) => None,
        };
        (0..).map_while(|number| Some(TargetHost { host: place(number)?, port: port(number) })).collect()
    }

    /// All settings except the hosts. `password` overrides that of the URL.
    pub(super) fn settings(&self, password: Option<&str>, timeout: Duration) -> tokio_postgres::Config {
        let mut settings = tokio_postgres::Config::new();
        settings
            .application_name(self.0.get_application_name().unwrap_or("mailrace"))
            .ssl_mode(self.0.get_ssl_mode())
            .ssl_negotiation(self.0.get_ssl_negotiation())
            .channel_binding(self.0.get_channel_binding())
            .target_session_attrs(self.0.get_target_session_attrs())
            .keepalives(self.0.get_keepalives())
            .keepalives_idle(self.0.get_keepalives_idle())
            .connect_timeout(timeout);
        if let Some(user) = self.0.get_user() {
            settings.user(user);
        }
        if let Some(password) = password.map(str::as_bytes).or(self.0.get_password()) {
            settings.password(password);
        }
        if let Some(database) = self.0.get_dbname() {
            settings.dbname(database);
        }
        if let Some(options) = self.0.get_options() {
            settings.options(options);
        }
        if let Some(interval) = self.0.get_keepalives_interval() {
            settings.keepalives_interval(interval);
        }
        if let Some(retries) = self.0.get_keepalives_retries() {
            settings.keepalives_retries(retries);
        }
        if let Some(&timeout) = self.0.get_tcp_user_timeout() {
            settings.tcp_user_timeout(timeout);
        }
        settings
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets: Vec<String> = self.targets().iter().map(TargetHost::authority).collect();
        write!(f, "postgres://{}/{}", targets.join(","), self.0.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

impl TargetHost {
    fn authority(&self) -> String {
        let port = self.port;
        match &self.host {
            HostAddress::Name(name) | HostAddress::Address { name: Some(name), .. } if name.contains(':') => {
                format!("[{name}]:{port}")
            }
            HostAddress::Name(name) | HostAddress::Address { name: Some(name), .. } => format!("{name}:{port}"),
            HostAddress::Address { name: None, address } => std::net::SocketAddr::new(*address, port).to_string(),
            HostAddress::Unix(folder) => format!("{}/.s.PGSQL.{port}", folder.display()),
        }
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        text.parse::<PostgresUrl>().unwrap().targets().iter().map(TargetHost::to_string).collect()
    }

    #[test]
    fn both_forms_name_hosts_in_their_order() {
        for (text, expected) in [
            ("postgres://mail@db", vec!["postgres://db:5432"]),
            (
                "postgresql://mail:s3cret@db1:5433,db2,db3:5434/mail",
                vec!["postgres://db1:5433", "postgres://db2:5432", "postgres://db3:5434"],
            ),
            ("host=db1,db2 port=5433 user=mail", vec!["postgres://db1:5433", "postgres://db2:5433"]),
            ("host=db1 hostaddr=::1", vec!["postgres://db1:5432"]),
            ("hostaddr=::1,127.0.0.1", vec!["postgres://[::1]:5432", "postgres://127.0.0.1:5432"]),
            ("postgres://[::1]:5433/", vec!["postgres://[::1]:5433"]),
            ("postgres://%2Frun%2Fpostgresql:5433/mail", vec!["postgres:///run/postgresql/.s.PGSQL.5433"]),
            ("postgres:///mail?host=/run/postgresql", vec!["postgres:///run/postgresql/.s.PGSQL.5432"]),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_shown_has_no_password() {
        let url: PostgresUrl = "postgres://mail:s3cret@db1,db2/people".parse().unwrap();
        assert!(url.has_password() && !"host=db1 user=mail".parse::<PostgresUrl>().unwrap().has_password());
        assert_eq!(url.to_string(), "postgres://db1:5432,db2:5432/people");
        assert_eq!(format!("{url:?}"), "Url(postgres://db1:5432,db2:5432/people)");
    }

    #[test]
    fn a_mistake_is_told() {
        for (text, expected) in [
            ("user=mail", PostgresUrlError::NoHost),
            ("postgres:///mail", PostgresUrlError::NoHost),
            ("host=a,b hostaddr=::1", PostgresUrlError::Addresses { hosts: 2, addresses: 1 }),
            ("host=a,b,c port=1,2", PostgresUrlError::Ports { hosts: 3, ports: 2 }),
            ("host=a load_balance_hosts=random", PostgresUrlError::LoadBalancing),
        ] {
            assert_eq!(text.parse::<PostgresUrl>(), Err(expected), "{text}");
        }
        for (text, expected) in [
            ("host=a sslmode=verify-full", "invalid value for option `sslmode`"),
            ("host=a sslrootcert=x", "unknown option `sslrootcert`"),
            ("mysql://a", "invalid connection string"),
        ] {
            let error = text.parse::<PostgresUrl>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn settings_are_those_of_the_url_without_its_hosts() {
        let url: PostgresUrl =
            "postgres://mail:one@db/people?sslmode=require&application_name=x&options=-csearch_path%3Dm\
                        &target_session_attrs=read-write&keepalives_idle=7&tcp_user_timeout=9&channel_binding=require"
                .parse()
                .unwrap();
        let timeout = Duration::from_secs(3);
        let mut expected = url.0.clone();
        expected.connect_timeout(timeout);
        let mut settings = url.settings(None, timeout);
        settings.host("db").port(5432);
        assert_eq!(settings, expected);
        assert_eq!(url.settings(Some("two"), timeout).get_password(), Some(&b"two"[..]));
    }
}
