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
pub(crate) enum ServiceState {
    /// All listeners are bound and served.
    Ready,
    /// The configuration is being reloaded, since this many microseconds of the monotonic clock.
    /// [`ServiceState::Ready`] ends it.
    Reloading(u128),
    /// Shutdown has begun.
    Stopping,
}

impl ServiceState {
    fn text(self) -> String {
        match self {
            ServiceState::Ready => "READY=1\nSTATUS=Accepting mail".into(),
            ServiceState::Reloading(at) => {
                format!("RELOADING=1\nMONOTONIC_USEC={at}\nSTATUS=Reloading the configuration")
            }
            ServiceState::Stopping => "STOPPING=1\nSTATUS=Shutting down".into(),
        }
    }

    /// A reload that starts now.
    pub(crate) fn reloading() -> ServiceState {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        ServiceState::Reloading(
            u128::from(now.tv_sec.unsigned_abs()) * 1_000_000 + u128::from(now.tv_nsec.unsigned_abs()) / 1000,
        )
    }
}

/// The service manager that started the server.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    address: Option<OsString>,
}

impl ServiceManager {
    /// The manager named by the environment.
    pub(crate) fn from_environment() -> ServiceManager {
        ServiceManager { address: std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) }
    }

    /// Reports the state.
    ///
    /// # Errors
    ///
    /// There is a manager, and the datagram cannot be sent.
    pub(crate) fn notify(&self, state: ServiceState) -> io::Result<()> {
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

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn notifications_reach_path_and_abstract_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let at_path = UnixDatagram::bind(&path).unwrap();
        ServiceManager { address: Some(path.into()) }.notify(ServiceState::Ready).unwrap();
        assert!(received(&at_path).starts_with("READY=1\n"));

        let name = format!("mailrace-service-test-{}", std::process::id());
        let abstract_one = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let manager = ServiceManager { address: Some(format!("@{name}").into()) };
        manager.notify(ServiceState::Stopping).unwrap();
        assert!(received(&abstract_one).starts_with("STOPPING=1\n"));
        manager.notify(ServiceState::reloading()).unwrap();
        assert!(received(&abstract_one).starts_with("RELOADING=1\nMONOTONIC_USEC="));
    }

    #[test]
    fn without_notify_socket_nothing_is_sent() {
        assert!(ServiceManager { address: None }.notify(ServiceState::Ready).is_ok());
        assert!(ServiceManager { address: Some("/nowhere/at/all".into()) }.notify(ServiceState::Ready).is_err());
    }
}
