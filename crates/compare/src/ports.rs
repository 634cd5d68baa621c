//! Free ports of this machine, for servers that cannot choose one themselves.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::error::CompareError;

/// The ports below are those of well-known services.
const PORT_MIN: u32 = 16_384;
/// At least so many are tried, whatever the range of the kernel.
const COUNT_MIN: u32 = 1000;
const RANGE_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// The usual first port of clients.
const CLIENT_PORT_MIN: u32 = 32_768;

/// How many ports this process has looked at.
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);

/// A free port of an address of this machine. It stays free until a server takes it: it is outside the
/// range from which the kernel takes the ports of clients, and is not returned again for long.
///
/// # Errors
///
/// No port is free.
pub(crate) fn free_port(address: IpAddr) -> Result<u16, CompareError> {
    let count = clients_begin().saturating_sub(PORT_MIN).max(COUNT_MIN);
    // Processes that run at the same time begin at different ports.
    let offset = std::process::id().wrapping_mul(97);
    for _ in 0..count {
        let number = LOOKED_AT.fetch_add(1, Relaxed).wrapping_add(offset) % count;
        let port = u16::try_from(PORT_MIN + number).unwrap_or(u16::MAX);
        if TcpListener::bind((address, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(CompareError::Failed(format!("no port of {address} is free between {PORT_MIN} and {}", PORT_MIN + count)))
}

/// The address itself if this machine has it; else that of its loopback interface.
pub(crate) fn address_here(address: IpAddr) -> IpAddr {
    let loopback: IpAddr = if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    if TcpListener::bind((address, 0)).is_ok() { address } else { loopback }
}

fn clients_begin() -> u32 {
    let range = fs::read_to_string(RANGE_FILE).unwrap_or_default();
    range.split_ascii_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(CLIENT_PORT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_differ() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let (one, two) = (free_port(address).unwrap(), free_port(address).unwrap());
        assert_ne!(one, two);
        assert!(TcpListener::bind((address, one)).is_ok());
    }
}
