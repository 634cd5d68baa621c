//! What a service manager is told of the server's state, as sd_notify(3) has it: datagrams to the socket that
//! NOTIFY_SOCKET names, a path or, after '@', an abstract name. Without that variable nobody is told.
//!
//! A datagram that cannot be sent stops nothing: mail is worth more than its report. The manager will say so itself.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// All listeners are bound and served.
    Ready,
    /// The configuration is read again: begun at this many microseconds of the monotonic clock. [`State::Ready`] ends
    /// it.
    Reloading(u128),
    /// The end has begun.
    Stopping,
}

impl State {
    fn text(self) -> String {
        match self {
            State::Ready => "READY=1\nSTATUS=Takes mail".into(),
            State::Reloading(at) => format!("RELOADING=1\nMONOTONIC_USEC={at}\nSTATUS=Reads its configuration again"),
            State::Stopping => "STOPPING=1\nSTATUS=Finishes what is under way".into(),
        }
    }

    /// One that begins now.
    pub(crate) fn reloading() -> State {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        State::Reloading(
            u128::from(now.tv_sec.unsigned_abs()) * 1_000_000 + u128::from(now.tv_nsec.unsigned_abs()) / 1000,
        )
    }
}

/// Who started the server and wants to know.
#[derive(Debug)]
pub(crate) struct Manager {
    address: Option<OsString>,
}

impl Manager {
    /// The one that the environment names.
    pub(crate) fn of_environment() -> Manager {
        Manager { address: std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) }
    }

    /// Tells it.
    ///
    /// # Errors
    ///
    /// There is a manager, and it could not be told.
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
