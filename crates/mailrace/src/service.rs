//! Reports the server's state to a service manager as in sd_notify(3): datagrams to the socket in
//! NOTIFY_SOCKET, a path or, after '@', an abstract name. Without that variable nothing is sent.
//!
//! A datagram that cannot be sent is not an error for the server.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The states to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// All listeners are bound and served.
    Ready,
    /// The configuration is being reloaded, since this many microseconds of the monotonic clock.
    /// [`State::Ready`] ends it.
    Reloading(u128),
    /// Shutdown has begun.
    Stopping,
}

impl State {
    fn text(self) -> String {
        match self {
            State::Ready => "READY=1\nSTATUS=Accepting mail".into(),
            State::Reloading(at) => format!("RELOADING=1\nMONOTONIC_USEC={at}\nSTATUS=Reloading the configuration"),
            State::Stopping => "STOPPING=1\nSTATUS=Shutting down".into(),
        }
    }

    /// A reload that starts now.
    pub(crate) fn reloading() -> State {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        State::Reloading(
            u128::from(now.tv_sec.unsigned_abs()) * 1_000_000 + u128::from(now.tv_nsec.unsigned_abs()) / 1000,
        )
    }
}

/// The service manager that started the server.
#[derive(Debug)]
pub(crate) struct Manager {
    address: Option<OsString>,
}

impl Manager {
    /// The manager named by the environment.
    pub(crate) fn of_environment() -> Manager {
        Manager { address: std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) }
    }

    /// Reports the state.
    ///
    /// # Errors
    ///
    /// There is a manager, and the datagram cannot be sent.
    pub(crate) fn tell(&self, state: State) -> io::Result<()> {
        let Some(address) = &self.address else { return Ok(()) };
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(address)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.text().as_bytes(), &address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn a_manager_hears_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let at_path = UnixDatagram::bind(&path).unwrap();
        Manager { address: Some(path.into()) }.tell(State::Ready).unwrap();
        assert!(heard(&at_path).starts_with("READY=1\n"));

        let name = format!("mailrace-service-test-{}", std::process::id());
        let abstract_one = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = Manager { address: Some(format!("@{name}").into()) };
        manager.tell(State::Stopping).unwrap();
        assert!(heard(&abstract_one).starts_with("STOPPING=1\n"));
        manager.tell(State::reloading()).unwrap();
        assert!(heard(&abstract_one).starts_with("RELOADING=1\nMONOTONIC_USEC="));
    }

    #[test]
    fn where_nobody_asked_nobody_is_told() {
        assert!(Manager { address: None }.tell(State::Ready).is_ok());
        assert!(Manager { address: Some("/nowhere/at/all".into()) }.tell(State::Ready).is_err());
    }
}
