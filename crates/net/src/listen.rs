//! Listening sockets. Several threads may accept on one; each has its own handle.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;

use crate::StopReceiver;

/// Binds and listens, without accepting yet. Replies are sent without delay (TCP_NODELAY), which
/// accepted sockets inherit.
pub fn bind(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Changes the backlog; connections already waiting are kept.
pub fn set_backlog(listener: &TcpListener, backlog: u32) -> io::Result<()> {
    SockRef::from(listener).listen(i32::try_from(backlog).unwrap_or(i32::MAX))
}

/// Accepts connections until the shutdown, and spawns `session` for each. Requires a
/// single-threaded runtime.
pub async fn accept_connections<F>(
    listener: TcpListener,
    mut stop: StopReceiver,
    mut session: impl FnMut(TcpStream, SocketAddr) -> F,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.wait_for_stop() => return Ok(()),
        };
        match accepted {
            Ok((stream, peer)) => drop(tokio::spawn(session(stream, peer))),
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
