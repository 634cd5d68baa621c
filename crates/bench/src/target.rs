//! Whom load may go to: this machine, and no other unless the operator says that it is theirs.
//!
//! A name is resolved once, and all of its addresses must be of the loopback network; the connections then go to one
//! of them, an IPv4 address where there is one, since that is where servers on `localhost` are found. What is not resolved
//! or not allowed is a fault before the first byte is sent.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::Fault;

/// The operator's word for targets that are not of this machine.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Ownership {
    /// A target that is not this machine, and that you may put under load
    #[arg(long = "i-own-this-target", value_name = "HOST")]
    pub owned: Vec<String>,
}

/// Somebody to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// As it was named, without the port.
    pub host: String,
    /// Where it is: its first IPv4 address, or its first one.
    pub address: SocketAddr,
}

impl Target {
    /// Resolves `HOST:PORT`. Each address that it has must be of the loopback network, or the host be owned.
    pub fn resolve(name: &str, ownership: &Ownership) -> Result<Target, Fault> {
        let (host, port) = name.rsplit_once(':').ok_or_else(|| usage(name, "expected HOST:PORT"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().map_err(|_| usage(name, "the port is not a number from 0 to 65535"))?;
        let addresses = (host, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = addresses.map_err(Fault::system(format_args!("resolving {host}")))?.collect();
        let foreign = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        if let Some(foreign) = foreign
            && !ownership.owned.iter().any(|owned| owned == host)
        {
            let why = format!("{} is not this machine; if you own it, say --i-own-this-target {host}", foreign.ip());
            return Err(usage(name, &why));
        }
        let preferred = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
        let address = *preferred.ok_or_else(|| usage(name, "it has no address"))?;
        Ok(Target { host: host.to_owned(), address })
    }
}

fn usage(name: &str, why: &str) -> Fault {
    Fault::Usage(format!("target {name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str, owned: &[&str]) -> Result<Target, Fault> {
        let owned = owned.iter().map(|&host| host.to_owned()).collect();
        Target::resolve(name, &Ownership { owned })
    }

    #[test]
    fn load_goes_to_this_machine_and_to_what_the_operator_owns() {
        for name in ["127.0.0.1:25", "127.8.0.1:25", "[::1]:25", "[::ffff:127.0.0.1]:25"] {
            assert!(resolve(name, &[]).is_ok(), "{name}");
        }
        for name in ["192.0.2.1:25", "[2001:db8::1]:25", "0.0.0.0:25"] {
            assert!(matches!(resolve(name, &["192.0.2.2"]), Err(Fault::Usage(_))), "{name}");
        }
        assert_eq!(resolve("192.0.2.1:25", &["192.0.2.1"]).unwrap().address, "192.0.2.1:25".parse().unwrap());
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for name in ["127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:smtp"] {
            assert!(resolve(name, &[]).is_err(), "{name}");
        }
    }
}
