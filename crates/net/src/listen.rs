//! Listening sockets. Several threads may accept on one; each has its own handle.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;

use crate::{InheritedSocketError, InheritedSockets, StopReceiver};

/// A listening socket. It closes with the last listener that has it: a thread drops its own handle
/// before its listener.
pub struct ListenerSocket {
    /// The address in the configuration.
    configured: SocketAddr,
    /// The address with the actual port.
    address: SocketAddr,
    listener: TcpListener,
    /// A handle for each worker that has not taken its own yet; creating them early lets failures
    /// happen before clients are served.
    handles: Mutex<Vec<TcpListener>>,
    /// The backlog of a socket that does not listen yet.
    pending_backlog: Mutex<Option<u32>>,
    /// Dropped last of all, which tells the waiting thread that the socket is closed.
    close_sender: Mutex<Option<Sender<Infallible>>>,
}

/// Opens listening sockets: an open one with the same address, an inherited one, or a newly bound
/// one.
pub struct ListenerOpener {
    /// Sockets that may be reused.
    pub previous: Vec<Arc<ListenerSocket>>,
    /// Sockets passed to the process.
    pub inherited: InheritedSockets,
    /// The number of workers.
    pub workers: usize,
    /// Newly bound sockets listen only from [`ListenerSocket::listen`] on: a client that comes before is refused,
    /// and does not wait for a greeting.
    pub refuses_until_served: bool,
}

impl ListenerOpener {
    /// A socket for this address. With port 0 the system chooses a port.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub fn open(&mut self, wanted: SocketAddr, backlog: u32) -> io::Result<Arc<ListenerSocket>> {
        if let Some(place) = self.previous.iter().position(|socket| socket.configured == wanted) {
            return Ok(self.previous.swap_remove(place));
        }
        let (listener, pending_backlog) = match self.inherited.take(wanted) {
            Some(passed) => (passed, None),
            None if self.refuses_until_served => (bind_only(wanted)?.into(), Some(backlog)),
            None => (bind(wanted, backlog)?, None),
        };
        let handles = (0..self.workers).map(|_| listener.try_clone()).collect::<io::Result<_>>()?;
        Ok(Arc::new(ListenerSocket {
            configured: wanted,
            address: listener.local_addr()?,
            listener,
            handles: Mutex::new(handles),
            pending_backlog: Mutex::new(pending_backlog),
            close_sender: Mutex::default(),
        }))
    }

    /// All sockets are open; the others of before close with their last listener.
    ///
    /// # Errors
    ///
    /// An inherited socket has an address that was not wanted.
    pub fn finish(self) -> Result<(), InheritedSocketError> {
        self.inherited.check_all_taken()
    }
}

impl ListenerSocket {
    /// The address with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens, if the socket does not yet.
    ///
    /// # Errors
    ///
    /// The system refuses, such as when another program listens on this address since it was bound.
    pub fn listen(&self) -> io::Result<()> {
        let backlog = self.pending_backlog.lock().take();
        backlog.map_or(Ok(()), |backlog| self.set_backlog(backlog))
    }

    /// Changes the backlog; connections already waiting are kept.
    ///
    /// # Errors
    ///
    /// The system refuses; the old backlog stays.
    pub fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        SockRef::from(&self.listener).listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    /// The handle of one worker; None if all are taken.
    pub(crate) fn take_handle(&self) -> Option<TcpListener> {
        self.handles.lock().pop()
    }

    /// To wait for the close; the caller must not keep a listener with this socket.
    pub(crate) fn on_close(&self) -> SocketClosed {
        let (sender, closed) = mpsc::channel();
        *self.close_sender.lock() = Some(sender);
        SocketClosed(closed)
    }
}

/// The end of a socket.
pub(crate) struct SocketClosed(Receiver<Infallible>);

impl SocketClosed {
    /// Waits until the socket is closed, or for this time.
    pub(crate) fn wait(self, longest: Duration) {
        // Nothing is ever sent: either the socket is closed, or the time is up.
        let _ = self.0.recv_timeout(longest);
    }
}

/// Binds and listens, without accepting yet. Replies are sent without delay (TCP_NODELAY), which
/// accepted sockets inherit.
pub fn bind(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = bind_only(address)?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

fn bind_only(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Accepts connections until the shutdown, and passes each to `serve`, which spawns its session.
pub async fn accept_connections(
    listener: TcpListener,
    mut stop: StopReceiver,
    mut serve: impl FnMut(TcpStream, SocketAddr),
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.wait_for_stop() => return Ok(()),
        };
        match accepted {
            Ok((stream, peer)) => serve(stream, peer),
            // The connection was closed before it was accepted (accept(2)); the next one may work.
            Err(error) if is_of_the_connection(&error) => {}
            // Out of file descriptors or memory: wait until sessions end, since retrying
            // immediately would only use CPU.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;

    use super::*;

    /// Regression: two reloads in quick succession, one removing a listener and the next restoring
    /// it, could find a thread that had not closed it yet: the address was in use.
    #[test]
    fn a_listener_closes_with_its_last_handle() {
        let open = |address| {
            let inherited = InheritedSockets::default();
            ListenerOpener { previous: Vec::new(), inherited, workers: 2, refuses_until_served: false }
                .open(address, 16)
        };
        let socket = open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let again = socket.address();
        let (worker, closed) = (socket.clone(), socket.on_close());
        drop(socket);
        assert!(closed.0.try_recv() == Err(mpsc::TryRecvError::Empty) && open(again).is_err());
        let waiting = thread::spawn(move || closed.0.recv());
        drop(worker);
        assert!(waiting.join().unwrap().is_err());
        assert!(open(again).is_ok());
    }

    #[test]
    fn a_socket_that_waits_for_its_workers_refuses_connections() {
        let inherited = InheritedSockets::default();
        let mut opener = ListenerOpener { previous: Vec::new(), inherited, workers: 1, refuses_until_served: true };
        let socket = opener.open((Ipv4Addr::LOCALHOST, 0).into(), 16).unwrap();
        let connect = || std::net::TcpStream::connect(socket.address());
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        socket.listen().unwrap();
        socket.listen().unwrap();
        connect().unwrap();
    }
}
