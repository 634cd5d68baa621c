//! The name servers, and how long the first one takes to answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::host::Host;
use crate::settings::ServerSettings;

/// The port of name servers in resolv.conf.
const PORT: u16 = 53;
/// Questions of a measurement. The first may have to be passed on; the others are in the cache of a resolver.
const QUESTIONS: usize = 5;
/// A response over UDP without EDNS (RFC 1035 section 4.2.1); a longer one is cut, and still an answer.
const RESPONSE_OCTETS: usize = 512;

/// How long a name server takes to answer from its cache.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolverTimes {
    /// The server.
    pub server: SocketAddr,
    /// The number of questions.
    pub count: usize,
    /// The median in microseconds; None if a question was not answered in time.
    pub median_us: Option<f64>,
}

impl ResolverTimes {
    /// How long to wait for an answer.
    pub const WAIT_MAX: Duration = Duration::from_secs(1);

    /// The median, or [`ResolverTimes::WAIT_MAX`] without an answer.
    #[must_use]
    pub fn answer_time(&self) -> Duration {
        self.median_us.map_or(ResolverTimes::WAIT_MAX, |median_us| Duration::from_secs_f64(median_us / 1e6))
    }

    /// Asks the first name server of this host for the name servers of the root. None if the host names no server.
    ///
    /// # Errors
    ///
    /// No socket can be opened, or there is no route to the server.
    pub fn measure(host: &Host, settings: &ServerSettings) -> io::Result<Option<ResolverTimes>> {
        let first = name_servers(host, settings).into_iter().next();
        first.map(|server| measure(server, ResolverTimes::WAIT_MAX)).transpose()
    }
}

fn measure(server: SocketAddr, wait_max: Duration) -> io::Result<ResolverTimes> {
    let local: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local, 0))?;
    // A connected socket gets answers of this server only, and its refusals.
    socket.connect(server)?;
    socket.set_read_timeout(Some(wait_max))?;
    let mut times_us: Vec<f64> = (0..QUESTIONS as u8).map_while(|number| ask(&socket, number)).collect();
    times_us.sort_by(f64::total_cmp);
    let median_us = times_us.get(QUESTIONS / 2).copied().filter(|_| times_us.len() == QUESTIONS);
    Ok(ResolverTimes { server, count: QUESTIONS, median_us })
}

/// The time of one question in microseconds. None if there is no answer: then further questions are not worth waiting.
fn ask(socket: &UdpSocket, number: u8) -> Option<f64> {
    // RFC 1035 section 4.1: the id, "recursion desired", one question: the root, NS, IN.
    let question = [b'm', number, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
    let mut response = [0; RESPONSE_OCTETS];
    let begin = Instant::now();
    socket.send(&question).ok()?;
    let length = socket.recv(&mut response).ok()?;
    let is_response = length > 2 && response[..2] == question[..2] && response[2] & 0x80 != 0;
    is_response.then(|| begin.elapsed().as_secs_f64() * 1e6)
}

/// The name servers of the configuration, or those of the host, in the order in which they are asked.
pub(crate) fn name_servers(host: &Host, settings: &ServerSettings) -> Vec<SocketAddr> {
    if !settings.name_servers.is_empty() {
        return settings.name_servers.clone();
    }
    let text = host.read("/etc/resolv.conf").unwrap_or_default();
    text.lines().filter_map(name_server).map(|address| (address, PORT).into()).collect()
}

/// The address in a line `nameserver ADDRESS` of resolv.conf(5).
fn name_server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_ascii_whitespace();
    if words.next()? != "nameserver" {
        return None;
    }
    words.next()?.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[test]
    fn a_server_that_answers_is_timed() {
        let (socket, address) = server();
        let answering = std::thread::spawn(move || {
            for _ in 0..QUESTIONS {
                let mut question = [0; 64];
                let (length, client) = socket.recv_from(&mut question).unwrap();
                question[2] |= 0x80;
                socket.send_to(&question[..length], client).unwrap();
            }
        });
        let times = measure(address, Duration::from_secs(30)).unwrap();
        answering.join().unwrap();
        assert!(times.median_us.is_some_and(|median| median > 0.0), "{times:?}");
    }

    #[test]
    fn a_silent_server_is_not_waited_for_again() {
        let (socket, address) = server();
        let times = measure(address, Duration::from_millis(50)).unwrap();
        assert_eq!(times.median_us, None);
        socket.set_nonblocking(true).unwrap();
        let questions = std::iter::from_fn(|| socket.recv_from(&mut [0; 64]).ok()).count();
        assert_eq!(questions, 1);
    }

    #[test]
    fn addresses_are_found_as_resolv_conf_has_them() {
        assert_eq!(name_server("nameserver 127.0.0.53 # local"), Some("127.0.0.53".parse().unwrap()));
        assert_eq!(name_server("  nameserver\tfe80::1%eth0"), Some("fe80::1".parse().unwrap()));
        assert_eq!(name_server("# nameserver 127.0.0.53"), None);
        assert_eq!(name_server("nameserver"), None);
    }
}
