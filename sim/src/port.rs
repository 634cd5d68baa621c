//! Ports for servers in other processes, which cannot be given port 0.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::TcpListener;
use std::ops::Range;

const PORT_MIN: u16 = 16_384;
/// Where the kernel's own range begins if it is unknown.
const EPHEMERAL_MIN: u16 = 32_768;
const TRIES_MAX: usize = 100;

/// A free port of 127.0.0.1. It stays free until a server takes it, and while that server is down:
/// it is outside the range from which the kernel takes the ports of clients.
pub fn free_port() -> u16 {
    let ports = ports();
    let random_port = |_| ports.start + (RandomState::new().hash_one(()) % ports.len() as u64) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..TRIES_MAX).map(random_port).find(is_free).expect("a port of 127.0.0.1 is free")
}

fn ports() -> Range<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ephemeral_min = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(EPHEMERAL_MIN);
    PORT_MIN..ephemeral_min.max(PORT_MIN + 1000)
}
