//! The settings of a cluster, as the configuration file gives them.
//!
//! Every value is checked when it is read; files that it names (credentials, certificates) are read
//! when the connection is opened. Defaults are here and nowhere else.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use async_nats::ServerAddr;

use crate::lane::LaneTimes;
use crate::{ClusterName, NodeName};

/// Settings of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The name of the cluster: nodes of different clusters may share servers.
    pub name: ClusterName,
    /// The name of this node.
    pub node: NodeName,
    /// The servers, at least one. Others that they announce are not used.
    pub servers: Vec<NatsServer>,
    /// A file with what the servers ask for; None: nothing.
    pub credentials_file: Option<PathBuf>,
    /// How connections are encrypted.
    pub tls: ClusterTls,
    /// Copies of each record: an odd number of servers.
    pub replicas: usize,
    /// How long a node may deliver without a sign of life. Another node adopts its lanes soon after
    /// that.
    pub lease: Duration,
    /// The most octets that a lane may occupy on each server. None: what the servers allow.
    pub stream_bytes_max: Option<u64>,
    /// Whether mail is refused while it cannot get its second copy. Otherwise it is accepted into lanes that
    /// have none yet.
    pub requires_copies: bool,
    /// Messages of this many octets in all may wait for their second copy.
    pub waiting_bytes_max: u64,
}

impl ClusterConfig {
    /// The default of `name`.
    pub const NAME: &str = "mailrace";
    /// The default of `replicas`.
    pub const REPLICAS: usize = 3;
    /// The default of `lease`.
    pub const LEASE: Duration = Duration::from_secs(3);
    /// The default of `requires_copies`.
    pub const REQUIRES_COPIES: bool = true;
    /// The default of `waiting_bytes_max`.
    pub const WAITING_BYTES_MAX: u64 = 256 << 20;

    /// The times of this cluster's lanes.
    pub fn lane_times(&self) -> LaneTimes {
        LaneTimes::default().with_lease(self.lease)
    }

    /// The settings of a node without any choice.
    pub fn new(name: ClusterName, node: NodeName, servers: Vec<NatsServer>) -> Self {
        ClusterConfig {
            name,
            node,
            servers,
            credentials_file: None,
            tls: ClusterTls::default(),
            replicas: Self::REPLICAS,
            lease: Self::LEASE,
            stream_bytes_max: None,
            requires_copies: Self::REQUIRES_COPIES,
            waiting_bytes_max: Self::WAITING_BYTES_MAX,
        }
    }
}

/// How connections to the servers are encrypted: always where a server's URL or the server itself
/// asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterTls {
    /// A file with the authorities that sign the servers' certificates, in PEM. None: those of the
    /// system.
    pub ca_file: Option<PathBuf>,
    /// The files of the certificate with which this node identifies itself, and of its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The address of a server: `nats://HOST:PORT`, or `tls://HOST:PORT` for one that must use TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsServer(ServerAddr);

impl NatsServer {
    pub(crate) fn address(&self) -> ServerAddr {
        self.0.clone()
    }
}

impl FromStr for NatsServer {
    type Err = NatsServerError;

    fn from_str(text: &str) -> Result<Self, NatsServerError> {
        let address = ServerAddr::from_str(text).map_err(|_| NatsServerError)?;
        let is_plain = matches!(address.scheme(), "nats" | "tls") && !address.has_user_pass();
        let has_path = !matches!(address.clone().into_inner().path(), "" | "/");
        if !is_plain || has_path || address.host().is_empty() || !text.contains("://") {
            return Err(NatsServerError);
        }
        Ok(NatsServer(address))
    }
}

impl fmt::Display for NatsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_url_str())
    }
}

impl fmt::Debug for NatsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsServer({self})")
    }
}

/// A text that is not the address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a NATS server: expected nats://HOST:PORT or tls://HOST:PORT, without a user")]
pub struct NatsServerError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_scheme_and_a_host_and_no_password() {
        for text in ["nats://127.0.0.1:4222", "nats://n1.example.org", "tls://n1.example.org:4333", "nats://[::1]:4222"]
        {
            assert_eq!(text.parse::<NatsServer>().unwrap().to_string(), text);
        }
        for text in ["", "nats1.example.org", "http://nats1", "ws://nats1", "nats://u:p@nats1", "nats://nats1/x"] {
            assert_eq!(text.parse::<NatsServer>(), Err(NatsServerError), "{text}");
        }
    }
}
