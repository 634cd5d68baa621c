//! The hosts that may be put under load: this machine, and others only if the operator states that
//! they own them.
//!
//! A name is resolved once, and all of its addresses must be loopback addresses. Connections use
//! its first IPv4 address if it has one, since servers on `localhost` listen there. Names that
//! cannot be resolved or are not allowed are a fault before anything is sent.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::BenchError;

/// Targets on other machines that the operator owns.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OwnedTargetOptions {
    /// Host on another machine that you own and may put under load
    #[arg(long = "i-own-this-target", value_name = "HOST")]
    pub owned: Vec<String>,
}

/// A server to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetServer {
    /// The host without the port.
    pub host: String,
    /// The first IPv4 address, or the first address.
    pub address: SocketAddr,
}

impl TargetServer {
    /// Resolves `HOST:PORT`. All addresses must be loopback addresses, unless the host is owned.
    pub fn resolve(name: &str, ownership: &OwnedTargetOptions) -> Result<TargetServer, BenchError> {
        let (host, port) = name.rsplit_once(':').ok_or_else(|| usage(name, "expected HOST:PORT"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().map_err(|_| usage(name, "the port is not a number from 0 to 65535"))?;
        let addresses = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> =
            addresses.map_err(BenchError::system(format_args!("resolving {host}")))?.collect();
        let foreign = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        if let Some(foreign) = foreign
            && !ownership.owned.iter().any(|owned| owned == host)
        {
            let why = format!("{} is another machine; if you own it, add --i-own-this-target {host}", foreign.ip());
            return Err(usage(name, &why));
        }
        let preferred = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
        let address = *preferred.ok_or_else(|| usage(name, "no address found"))?;
        Ok(TargetServer { host: host.to_owned(), address })
    }
}

fn usage(name: &str, why: &str) -> BenchError {
    BenchError::Usage(format!("target {name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str, owned: &[&str]) -> Result<TargetServer, BenchError> {
        let owned = owned.iter().map(|&host| host.to_owned()).collect();
        TargetServer::resolve(name, &OwnedTargetOptions { owned })
    }

    #[test]
    fn load_goes_to_this_machine_and_to_what_the_operator_owns() {
        for name in ["127.0.0.1:25", "127.8.0.1:25", "[::1]:25", "[::ffff:127.0.0.1]:25"] {
            assert!(resolve(name, &[]).is_ok(), "{name}");
        }
        for name in ["192.0.2.1:25", "[2001:db8::1]:25", "0.0.0.0:25"] {
            assert!(matches!(resolve(name, &["192.0.2.2"]), Err(BenchError::Usage(_))), "{name}");
        }
        assert_eq!(resolve("192.0.2.1:25", &["192.0.2.1"]).unwrap().address, "192.0.2.1:25".parse().unwrap());
    }

    #[test]
    fn an_invalid_target_is_refused() {
        for name in ["127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:smtp"] {
            assert!(resolve(name, &[]).is_err(), "{name}");
        }
    }
}
