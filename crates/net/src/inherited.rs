//! Listening sockets that another program has opened for us, as systemd does (sd_listen_fds(3)): the variables
//! LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES tell of them. Each goes to the listener that has its address.
//!
//! A descriptor that is no listening stream socket of the internet, and one that nobody asked for, are errors: whoever
//! passed it believes that it is served. The environment is read once and cleared, before there are other threads.

use std::io;
use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use socket2::SockRef;

/// Sockets that were passed and are not taken yet.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: Vec<Passed>,
}

#[derive(Debug)]
struct Passed {
    /// What LISTEN_FDNAMES calls it.
    name: String,
    address: SocketAddr,
    listener: TcpListener,
}

/// What is wrong with a socket that was passed.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// It cannot be used.
    #[error("the inherited socket {name:?} is no listening TCP socket: {error}")]
    Unfit {
        /// What LISTEN_FDNAMES calls it.
        name: String,
        /// What it is instead, or what the system said.
        error: io::Error,
    },
    /// No listener has its address.
    #[error(
        "the inherited socket {name:?} listens on {address}, and no [[listener]] of the configuration has that address"
    )]
    Unasked {
        /// What LISTEN_FDNAMES calls it.
        name: String,
        /// Where it listens.
        address: SocketAddr,
    },
}

impl Inherited {
    /// Takes all sockets that the environment tells of, if they are meant for this process. To be called once, while
    /// the process has no other thread: it clears the environment, so that no child takes them for its own.
    ///
    /// # Errors
    ///
    /// One of them is not what a listener could use.
    pub fn from_environment() -> Result<Inherited, InheritedError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).map(|index| take(&mut passed, index, &names));
        Ok(Inherited { sockets: sockets.collect::<Result<_, _>>()? })
    }

    /// The socket that listens on this address, if there is one.
    pub fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let index = self.sockets.iter().position(|socket| socket.address == address)?;
        Some(self.sockets.swap_remove(index).listener)
    }

    /// To be asked when all listeners have theirs.
    ///
    /// # Errors
    ///
    /// There is a socket that none of them took.
    pub fn none_left(self) -> Result<(), InheritedError> {
        match self.sockets.into_iter().next() {
            Some(Passed { name, address, .. }) => Err(InheritedError::Unasked { name, address }),
            None => Ok(()),
        }
    }
}

fn take(passed: &mut ListenFd, index: usize, names: &str) -> Result<Passed, InheritedError> {
    // systemd calls those that nobody named so.
    let name = names.split(':').nth(index).filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
    match opened(passed, index) {
        Ok((listener, address)) => Ok(Passed { name, address, listener }),
        Err(error) => Err(InheritedError::Unfit { name, error }),
    }
}

/// With what `bind` gives its sockets, too.
fn opened(passed: &mut ListenFd, index: usize) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = passed.take_tcp_listener(index)?.expect("each index is taken once");
    let socket = SockRef::from(&listener);
    if !socket.is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
    }
    socket.set_tcp_nodelay(true)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str) -> Passed {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Passed { name: name.into(), address: listener.local_addr().unwrap(), listener }
    }

    #[test]
    fn a_socket_goes_to_the_listener_that_has_its_address_and_only_once() {
        let sockets = vec![passed("one"), passed("two")];
        let address = sockets[1].address;
        let mut inherited = Inherited { sockets };
        assert!(inherited.take("127.0.0.1:1".parse().unwrap()).is_none());
        assert_eq!(inherited.take(address).unwrap().local_addr().unwrap(), address);
        assert!(inherited.take(address).is_none());
    }

    #[test]
    fn a_socket_that_nobody_takes_is_told_by_its_name_and_address() {
        let socket = passed("submission");
        let address = socket.address;
        let told = Inherited { sockets: vec![socket] }.none_left().unwrap_err().to_string();
        assert!(told.contains("\"submission\"") && told.contains(&address.to_string()), "{told}");
        assert!(Inherited::default().none_left().is_ok());
    }
}
