//! Listening sockets passed by another program, as by systemd (sd_listen_fds(3)), which sets the
//! variables LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES. Each socket is matched to the listener with
//! its address.
//!
//! A descriptor that is not a listening TCP socket, and one that no listener wants, are errors: the
//! program that passed it expects it to be served. The environment is read once and cleared, before
//! other threads start.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use socket2::SockRef;

/// Passed sockets that no listener has taken yet.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<PassedSocket>,
}

#[derive(Debug)]
struct PassedSocket {
    /// The name in LISTEN_FDNAMES.
    name: String,
    address: SocketAddr,
    listener: TcpListener,
}

/// What is wrong with a passed socket.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketError {
    /// The descriptor cannot be used.
    #[error("the inherited socket {name:?} is not a listening TCP socket: {error}")]
    Unusable {
        /// The name in LISTEN_FDNAMES.
        name: String,
        /// What it is instead, or the system's error.
        error: io::Error,
    },
    /// No listener has its address.
    #[error("the inherited socket {name:?} listens on {address}, but no [[listener]] has that address")]
    NoListener {
        /// The name in LISTEN_FDNAMES.
        name: String,
        /// Its address.
        address: SocketAddr,
    },
}

impl InheritedSockets {
    /// Takes all sockets that the environment passes to this process. Call it once, while the
    /// process has a single thread: it clears the environment, so that no child process takes the
    /// sockets.
    ///
    /// # Errors
    ///
    /// A descriptor is not a listening TCP socket.
    pub fn from_environment() -> Result<InheritedSockets, InheritedSocketError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).map(|index| take(&mut passed, index, &names));
        Ok(InheritedSockets { sockets: sockets.collect::<Result<_, _>>()? })
    }

    /// Takes the socket that listens on this address, if any.
    pub fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let index = self.sockets.iter().position(|socket| socket.address == address)?;
        Some(self.sockets.swap_remove(index).listener)
    }

    /// Call it when all listeners have taken their sockets.
    ///
    /// # Errors
    ///
    /// A socket was not taken.
    pub fn check_all_taken(self) -> Result<(), InheritedSocketError> {
        match self.sockets.into_iter().next() {
            Some(PassedSocket { name, address, .. }) => Err(InheritedSocketError::NoListener { name, address }),
            None => Ok(()),
        }
    }
}

fn take(passed: &mut ListenFd, index: usize, names: &str) -> Result<PassedSocket, InheritedSocketError> {
    // systemd uses this name for sockets without one.
    let name = names.split(':').nth(index).filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
    match prepare(passed, index) {
        Ok((listener, address)) => Ok(PassedSocket { name, address, listener }),
        Err(error) => Err(InheritedSocketError::Unusable { name, error }),
    }
}

/// Sets the same options as `bind`.
fn prepare(passed: &mut ListenFd, index: usize) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = passed.take_tcp_listener(index)?.expect("each index is taken once");
    let socket = SockRef::from(&listener);
    if !socket.is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket is not listening"));
    }
    socket.set_tcp_nodelay(true)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str) -> PassedSocket {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        PassedSocket { name: name.into(), address: listener.local_addr().unwrap(), listener }
    }

    #[test]
    fn a_socket_goes_to_the_listener_that_has_its_address_and_only_once() {
        let sockets = vec![passed("one"), passed("two")];
        let address = sockets[1].address;
        let mut inherited = InheritedSockets { sockets };
        assert!(inherited.take("127.0.0.1:1".parse().unwrap()).is_none());
        assert_eq!(inherited.take(address).unwrap().local_addr().unwrap(), address);
        assert!(inherited.take(address).is_none());
    }

    #[test]
    fn an_untaken_socket_is_reported_with_its_name_and_address() {
        let socket = passed("submission");
        let address = socket.address;
        let told = InheritedSockets { sockets: vec![socket] }.check_all_taken().unwrap_err().to_string();
        assert!(told.contains("\"submission\"") && told.contains(&address.to_string()), "{told}");
        assert!(InheritedSockets::default().check_all_taken().is_ok());
    }
}
